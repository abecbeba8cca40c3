"""Owns the measures of a classifier, in plain numpy: ranking, threshold, calibration."""

from __future__ import annotations

import numpy as np


def auprc(labels: np.ndarray, scores: np.ndarray) -> float:
    """Average precision; equal scores count as one step, so order cannot flatter."""
    labels = np.asarray(labels).astype(bool)
    if not labels.any():
        return float("nan")
    order = np.argsort(-scores, kind="stable")
    sorted_scores, sorted_labels = np.asarray(scores)[order], labels[order]
    last_of_tie = np.append(np.diff(sorted_scores) != 0, True)
    true = np.cumsum(sorted_labels)[last_of_tie]
    seen = (np.arange(len(labels)) + 1)[last_of_tie]
    recall = true / labels.sum()
    return float(np.sum(np.diff(recall, prepend=0.0) * true / seen))


def roc_auc(labels: np.ndarray, scores: np.ndarray) -> float:
    """Chance that a positive outranks a negative, ties counted half."""
    labels = np.asarray(labels).astype(bool)
    positives, negatives = int(labels.sum()), int((~labels).sum())
    if not positives or not negatives:
        return float("nan")
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    return float((ranks[labels].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def at_threshold(labels: np.ndarray, scores: np.ndarray, threshold: float = 0.5) -> dict[str, float]:
    """Precision, recall, F1 and false-positive rate of `score >= threshold`."""
    labels, flagged = np.asarray(labels).astype(bool), np.asarray(scores) >= threshold
    true = int((labels & flagged).sum())
    false = int((~labels & flagged).sum())
    missed = int((labels & ~flagged).sum())
    negatives = int((~labels).sum())
    precision = true / (true + false) if true + false else float("nan")
    recall = true / (true + missed) if true + missed else float("nan")
    denominator = 2 * true + false + missed
    return {
        "precision": precision,
        "recall": recall,
        "f1": 2 * true / denominator if denominator and true + missed else float("nan"),
        "fpr": false / negatives if negatives else float("nan"),
    }


def calibration_error(labels: np.ndarray, scores: np.ndarray, bins: int = 10) -> float:
    """Expected calibration error over equally wide bins."""
    labels, scores = np.asarray(labels, dtype=float), np.asarray(scores, dtype=float)
    if not len(labels):
        return float("nan")
    place = np.minimum((scores * bins).astype(int), bins - 1)
    error = 0.0
    for i in range(bins):
        inside = place == i
        if inside.any():
            error += inside.mean() * abs(labels[inside].mean() - scores[inside].mean())
    return float(error)
