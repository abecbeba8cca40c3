"""Owns the figures of a run and their Markdown: tables by category and by source.

Labels are `[texts, 5]` with NaN where nothing was judged; a masked text counts
in no figure of that category.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from . import metrics
from .asking import MODERATION, Answers
from .texts import CATEGORIES, MOST_CHARACTERS, STRIDE, Data, Text

ANY = "any harm"
THRESHOLD = 0.5
# Least threshold that the interface takes, and the false-positive rates that a table of others is made for.
LEAST_THRESHOLD, RATES = 0.1, (0.01, 0.03)
HEADER = (
    "| {} | 1/0 | AUPRC | ROC-AUC | precision | recall | F1 | FPR | ECE | TP | FP | FN | TN |\n" + "| --- " * 13 + "|"
)


@dataclass(frozen=True)
class Run:
    """All that a report tells of."""

    model: str
    digest: str | None
    data: Data
    windows: bool
    connections: int
    answers: Answers

    @property
    def labels(self) -> np.ndarray:
        return labels_of(self.data.texts)

    @property
    def long(self) -> int:
        return sum(len(text.text) > MOST_CHARACTERS for text in self.data.texts)


def labels_of(texts: list[Text]) -> np.ndarray:
    """`[texts, 5]`, NaN where nothing was judged."""
    return np.array([[np.nan if label is None else label for label in text.labels] for text in texts], dtype=float)


def any_harm(labels: np.ndarray) -> np.ndarray:
    """1 where any category is, 0 where all were judged and none is, else NaN: the unjudged may hold harm."""
    return np.where((labels == 1).any(axis=1), 1.0, np.where((labels == 0).all(axis=1), 0.0, np.nan))


def columns(labels: np.ndarray, scores: np.ndarray) -> Iterable[tuple[str, np.ndarray, np.ndarray]]:
    """Name, labels and scores of each category, then of any harm, whose score is the highest."""
    for c, category in enumerate(CATEGORIES):
        yield category, labels[:, c], scores[:, c]
    yield ANY, any_harm(labels), scores.max(axis=1)


def line(name: str, labels: np.ndarray, scores: np.ndarray) -> str:
    """One row of a table; `labels` may hold NaN."""
    judged = ~np.isnan(labels)
    labels, scores = labels[judged], scores[judged]
    counts = metrics.confusion(labels, scores, THRESHOLD)
    point = metrics.at_threshold(labels, scores, THRESHOLD)
    measures = [
        metrics.auprc(labels, scores),
        metrics.roc_auc(labels, scores),
        *(point[name] for name in ("precision", "recall", "f1", "fpr")),
        metrics.calibration_error(labels, scores),
    ]
    cells = [name, f"{counts.tp + counts.fn}/{counts.fp + counts.tn}", *map(number, measures), *map(str, counts)]
    return "| " + " | ".join(cells) + " |"


def thresholds(name: str, labels: np.ndarray, scores: np.ndarray) -> str:
    """One row of the table of other thresholds: for each of RATES the threshold, its recall and its precision."""
    judged = ~np.isnan(labels)
    labels, scores = labels[judged], scores[judged]
    cells = [name]
    for rate in RATES:
        found = metrics.threshold_for(labels, scores, rate, LEAST_THRESHOLD)
        if np.isnan(found) or found > 1:
            cells += ["–"] * 3
            continue
        point = metrics.at_threshold(labels, scores, found)
        cells += [f"{found:.2f}" if round(found, 2) == found else f"{found:.4f}", number(point["recall"]), number(point["precision"])]
    return "| " + " | ".join(cells) + " |"


def number(value: float) -> str:
    return "–" if np.isnan(value) else f"{value:.3f}"


def plain(name: str) -> str:
    """A name from outside as it may stand in a Markdown table and inside the block of a card."""
    return name.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")


def report(run: Run, level: int = 1, plots: str | None = None, least: int = 1) -> str:
    """The whole report in Markdown; `plots` is the folder of the two plots, as a link sees it; a row of a source is of at `least`
    so many texts."""
    labels, scores = run.labels, run.answers.scores
    mark = "#" * level
    out = [f"{mark} Text moderation of {run.model}, measured through the running server", "", *_about(run), ""]
    out += [f"{mark}# By category", "", HEADER.format("category")]
    out += [line(*column) for column in columns(labels, scores)]
    heads = " | ".join(f"at most {rate:.0%} of the harmless flagged: threshold | recall | precision" for rate in RATES)
    out += ["", f"{mark}# Other thresholds", ""]
    out += ["Scores are given for every text, so a caller can hold each category to a threshold of its own.", ""]
    out += [f"| category | {heads} |", "| --- " * (1 + 3 * len(RATES)) + "|"]
    out += [thresholds(*column) for column in columns(labels, scores)]
    if plots is not None:
        out += ["", f"![Precision and recall of each category]({plots}precision_recall.svg)"]
        out += [f"![Scores against the share that was harmful]({plots}reliability.svg)"]
    out += ["", f"{mark}# By category and source", ""]
    if least > 1:
        out += [f"Sources with {least} texts and more in a category, or without anything harmful or flagged.", ""]
    out += [HEADER.format("category, source")]
    sources = np.array([text.source for text in run.data.texts])
    clear = []
    for name, judged, found in columns(labels, scores):
        quiet = []
        for source in dict.fromkeys(sources):
            at = (sources == source) & ~np.isnan(judged)
            if at.any() and not judged[at].any() and (found[at] < THRESHOLD).all():
                quiet.append(f"{plain(source)} {at.sum()}")
            elif at.sum() >= least:
                out.append(line(f"{name}, {plain(source)}", judged[at], found[at]))
        if quiet:
            clear += ["", f"{name}, nothing harmful and nothing flagged: {', '.join(quiet)}."]
    out += clear
    return "\n".join([*out, "", *_this_run(run)]) + "\n"


def _about(run: Run) -> list[str]:
    data = run.data
    files = "; ".join(
        f"`{plain(file.name)}` ({file.texts:,} texts, SHA-256 `{file.sha256[:16]}…`)" for file in data.files
    )
    out = [f"- {len(data.texts):,} texts, asked one by one of `{MODERATION}`. Data: {files}."]
    if run.digest:
        out.append(f"- Classifier: manifest SHA-256 `{run.digest}`.")
    left = [f"{data.blank:,} blank texts", f"{data.unjudged:,} in which no category was judged"]
    if data.beyond_limit:
        left.append(f"{data.beyond_limit:,} beyond the limit that was set (those taken are evenly spaced)")
    out.append(f"- Left out: {', '.join(left)}.")
    if run.windows:
        how = f"asked in overlapping pieces of at most {MOST_CHARACTERS} (stride {STRIDE}), the highest score counts"
    else:
        how = f"cut to their first {MOST_CHARACTERS}, labels unchanged"
    out.append(f"- {run.long:,} texts of more than {MOST_CHARACTERS} characters: {how}.")
    out.append(
        f"- `1/0` counts harmful and harmless texts; categories that a source did not judge are masked. Precision,"
        f" recall, F1, FPR (false-positive rate) and TP, FP, FN, TN are at a score of {THRESHOLD} and above; ECE is the"
        f" expected calibration error over 10 bins. `{ANY}` takes the highest score, over texts with any harm or with"
        f" all five categories judged. A dash means that no figure exists."
    )
    return out


def _this_run(run: Run) -> list[str]:
    """Speed belongs to one machine at one time, and says so."""
    answers, texts = run.answers, len(run.data.texts)
    p50, p90, p95, p99 = np.percentile(answers.latencies, [50, 90, 95, 99]) * 1000
    return [
        f"Speed of this run only, on its machine and beside whatever else ran there: {texts:,} texts"
        f" ({answers.requests:,} requests) in {answers.seconds:.1f} s, {texts / answers.seconds:.1f} texts per second"
        f" over {run.connections} connections; latency in ms p50 {p50:.1f}, p90 {p90:.1f}, p95 {p95:.1f}, p99 {p99:.1f},"
        f" longest {answers.latencies.max() * 1000:.1f}; told to come back later (429) {answers.refusals:,} times."
    ]
