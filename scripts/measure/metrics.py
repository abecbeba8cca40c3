"""Owns the measures of a classifier, in plain numpy: ranking, threshold, calibration."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Confusion(NamedTuple):
    """How many texts fell where at a threshold."""

    tp: int
    fp: int
    fn: int
    tn: int


def precision_recall(labels: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Precision and recall at every distinct score, from the highest down.

    Equal scores count as one step, so order cannot flatter. Needs a positive.
    """
    labels = np.asarray(labels).astype(bool)
    order = np.argsort(-scores, kind="stable")
    sorted_scores, sorted_labels = np.asarray(scores)[order], labels[order]
    last_of_tie = np.append(np.diff(sorted_scores) != 0, True)
    true = np.cumsum(sorted_labels)[last_of_tie]
    seen = (np.arange(len(labels)) + 1)[last_of_tie]
    return true / seen, true / labels.sum()


def auprc(labels: np.ndarray, scores: np.ndarray) -> float:
    """Average precision."""
    if not np.asarray(labels).astype(bool).any():
        return float("nan")
    precision, recall = precision_recall(labels, scores)
    return float(np.sum(np.diff(recall, prepend=0.0) * precision))


def roc_auc(labels: np.ndarray, scores: np.ndarray) -> float:
    """Chance that a positive outranks a negative, ties counted half."""
    labels = np.asarray(labels).astype(bool)
    positives, negatives = int(labels.sum()), int((~labels).sum())
    if not positives or not negatives:
        return float("nan")
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    return float((ranks[labels].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def confusion(labels: np.ndarray, scores: np.ndarray, threshold: float = 0.5) -> Confusion:
    """Counts of `score >= threshold` against the labels."""
    labels, flagged = np.asarray(labels).astype(bool), np.asarray(scores) >= threshold
    return Confusion(
        int((labels & flagged).sum()),
        int((~labels & flagged).sum()),
        int((labels & ~flagged).sum()),
        int((~labels & ~flagged).sum()),
    )


def at_threshold(labels: np.ndarray, scores: np.ndarray, threshold: float = 0.5) -> dict[str, float]:
    """Precision, recall, F1 and false-positive rate of `score >= threshold`."""
    tp, fp, fn, tn = confusion(labels, scores, threshold)
    return {
        "precision": tp / (tp + fp) if tp + fp else float("nan"),
        "recall": tp / (tp + fn) if tp + fn else float("nan"),
        "f1": 2 * tp / (2 * tp + fp + fn) if tp + fn else float("nan"),
        "fpr": fp / (fp + tn) if fp + tn else float("nan"),
    }


def threshold_for(labels: np.ndarray, scores: np.ndarray, fpr: float, least: float = 0.0, step: float = 1e-4) -> float:
    """The lowest threshold, in steps, from `least` on, at which at most this share of the negatives is flagged."""
    labels = np.asarray(labels).astype(bool)
    negatives = np.sort(np.asarray(scores, dtype=float)[~labels])[::-1]
    if not len(negatives) or not labels.any():
        return float("nan")
    allowed = int(fpr * len(negatives))
    if allowed >= len(negatives):
        return least
    # Above the first negative that may not be flagged.
    above = (np.floor(negatives[allowed] / step + 1e-6) + 1) * step
    return float(max(least, round(above, 10)))


def reliability(labels: np.ndarray, scores: np.ndarray, bins: int = 10) -> list[tuple[float, float, int]]:
    """Mean score, share of positives and count of each equally wide bin that holds any."""
    labels, scores = np.asarray(labels, dtype=float), np.asarray(scores, dtype=float)
    place = np.minimum((scores * bins).astype(int), bins - 1)
    return [
        (float(scores[inside].mean()), float(labels[inside].mean()), int(inside.sum()))
        for inside in (place == i for i in range(bins))
        if inside.any()
    ]


def calibration_error(labels: np.ndarray, scores: np.ndarray, bins: int = 10) -> float:
    """Expected calibration error over equally wide bins."""
    if not len(labels):
        return float("nan")
    return sum(count * abs(share - mean) for mean, share, count in reliability(labels, scores, bins)) / len(labels)
