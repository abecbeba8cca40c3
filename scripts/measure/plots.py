"""Draws the two plots of a run as SVG: precision against recall, and reliability.

Written by hand: two charts of five lines do not earn a plotting library, which
would need an environment of its own beside `.venv`, and the bytes are the same
on every machine, whatever its fonts. So a plot changes when a figure does.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from . import metrics
from .texts import CATEGORIES

# Okabe and Ito's colours, told apart by colour-blind readers too.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#222222")
SIDE, LEFT, TOP = 360, 60, 40
WIDTH, HEIGHT = LEFT + SIDE + 160, TOP + SIDE + 70
# A curve has as many points as the chart can show, however many texts made it.
POINTS = 181
# A bin of fewer texts is drawn hollow: its share is mostly chance.
FEW = 10


def precision_recall(labels: np.ndarray, scores: np.ndarray) -> str:
    """Labels `[texts, 5]` with NaN where unjudged; categories without both a 1 and a 0 have no line."""
    marks, legend = [], []
    for c, (y, p) in enumerate(_judged(labels, scores)):
        area = None
        if 0 < y.sum() < len(y):
            precision, recall = metrics.precision_recall(y, p)
            at = np.searchsorted(recall, np.linspace(0, 1, POINTS) - 1e-12)
            # A single point would leave no line: begin at the left edge.
            points = [(0.0, precision[0]), *zip(recall[at], precision[at])]
            marks.append(_line(points, COLOURS[c]))
            area = metrics.auprc(y, p)
        legend.append(area)
    return _chart("Precision and recall", "recall", "precision", marks, _legend("AUPRC", legend))


def reliability(labels: np.ndarray, scores: np.ndarray) -> str:
    """Mean score of each tenth of the scale against the share of its texts that was harmful."""
    marks = [f'<path d="M{_x(0)} {_y(0)}L{_x(1)} {_y(1)}" stroke="#999" stroke-dasharray="4 4"/>']
    legend = []
    for c, (y, p) in enumerate(_judged(labels, scores)):
        bins = metrics.reliability(y, p) if len(y) else []
        marks.append(_line([(mean, share) for mean, share, _ in bins], COLOURS[c]))
        for mean, share, count in bins:
            fill = "#fff" if count < FEW else COLOURS[c]
            marks.append(f'<circle cx="{_x(mean)}" cy="{_y(share)}" r="3" fill="{fill}" stroke="{COLOURS[c]}"/>')
        legend.append(metrics.calibration_error(y, p) if len(y) else None)
    note = _words(LEFT + SIDE + 14, TOP + 130, f"hollow: under {FEW} texts")
    return _chart("Reliability", "mean score", "share harmful", marks, [*_legend("ECE", legend), note])


def _judged(labels: np.ndarray, scores: np.ndarray) -> Iterable[tuple[np.ndarray, np.ndarray]]:
    for c in range(len(CATEGORIES)):
        at = ~np.isnan(labels[:, c])
        yield labels[at, c], scores[at, c]


def _x(value: float) -> str:
    return _short(LEFT + value * SIDE)


def _y(value: float) -> str:
    return _short(TOP + (1 - value) * SIDE)


def _short(value: float) -> str:
    """A tenth of a pixel is fine enough, and hides how processors round."""
    return f"{value:.1f}".removesuffix(".0")


def _line(points: Iterable[tuple[float, float]], colour: str) -> str:
    path = "L".join(dict.fromkeys(f"{_x(x)} {_y(y)}" for x, y in points))
    return f'<path d="M{path}" stroke="{colour}" stroke-width="1.6"/>' if path else ""


def _words(x: float, y: float, words: str, more: str = "") -> str:
    return f'<text x="{_short(x)}" y="{_short(y)}"{more}>{words}</text>'


def _legend(measure: str, values: list[float | None]) -> list[str]:
    left, out = LEFT + SIDE + 14, [_words(LEFT + SIDE + 14, TOP + 8, measure)]
    for c, (category, value) in enumerate(zip(CATEGORIES, values)):
        y = TOP + 28 + 19 * c
        out.append(f'<path d="M{left} {y - 4}h16" stroke="{COLOURS[c]}" stroke-width="3"/>')
        out.append(_words(left + 22, y, f"{category} " + ("–" if value is None else f"{value:.3f}")))
    return out


def _chart(title: str, across: str, up: str, marks: list[str], legend: list[str]) -> str:
    middle = 'text-anchor="middle"'
    grid = []
    for tenths in range(0, 11, 2):
        share = tenths / 10
        grid.append(f'<path d="M{_x(share)} {_y(0)}V{_y(1)}M{_x(0)} {_y(share)}H{_x(1)}" stroke="#ddd"/>')
        grid.append(_words(LEFT + share * SIDE, TOP + SIDE + 18, f"{share:.1f}", f" {middle}"))
        grid.append(_words(LEFT - 8, TOP + (1 - share) * SIDE + 4, f"{share:.1f}", ' text-anchor="end"'))
    turned = f' {middle} transform="rotate(-90 18 {TOP + SIDE / 2:.0f})"'
    body = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
        ' role="img" font-family="sans-serif" font-size="12" fill="none">',
        f"<title>{title}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        '<g fill="#222">',
        _words(LEFT + SIDE / 2, TOP - 16, title, f' {middle} font-size="14"'),
        _words(LEFT + SIDE / 2, TOP + SIDE + 42, across, f" {middle}"),
        _words(18, TOP + SIDE / 2, up, turned),
        "</g>",
        *(part.replace("<text", '<text fill="#222"') for part in [*grid, *legend]),
        *filter(None, marks),
        "</svg>",
    ]
    return "\n".join(body) + "\n"
