"""Owns which sentences fit a text: our own texts, and the attitudes and replies that readers found to fit them.

`authored/attitudes` names the attitudes of either light and the replies in its first line, in the order of the sentences in
`situations.json.xz` and of a judge's logits. Each further line is of another file of ours: for each of its lines the names of
all that fit, kind by kind with a bar between; nothing where nobody read the text, two kinds where nobody read it for replies;
and a star behind them where the attitudes of `later` were not there yet.

Splits: what generators keep aside is kept aside.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

import generator_data  # noqa: E402
import text_data  # noqa: E402

KINDS = ("positive", "negative", "reply")
# Of two replies that are as likely, the one that fits fewer texts says more: so much of the log of its share is taken off.
RARER = 0.5


@dataclass(frozen=True)
class Fitting:
    """A text with 1 for each attitude that fits it, and with 1 for each of which that is known."""

    text: str
    language: str
    fit: np.ndarray
    known: np.ndarray
    aside: bool


def names(replies: bool = False, folder: Path = text_data.AUTHORED) -> list[list[str]]:
    """The names of the positive and of the negative attitudes, and of the replies if these are asked for."""
    codes = text_data.authored_lines(folder, "attitudes")[0]["codes"]
    return [codes[kind] for kind in KINDS[: 3 if replies else 2]]


def read(language: str | None = None, replies: bool = False, folder: Path = text_data.AUTHORED) -> list[Fitting]:
    """The texts that somebody read, in one language or in all, with what is known of the attitudes, and of the replies if these
    are asked for."""
    first, *lines = text_data.authored_lines(folder, "attitudes")
    kinds = KINDS[: 3 if replies else 2]
    columns = [(kind, name) for kind in kinds for name in first["codes"][kind]]
    place = {column: i for i, column in enumerate(columns)}
    late = np.array([kind != "reply" and name in first["later"] for kind, name in columns])
    of_reply = np.array([kind == "reply" for kind, _ in columns])
    found = []
    for line in lines:
        rows = text_data.authored_lines(folder, line["file"])
        if len(rows) != len(line["fit"]):
            raise SystemExit(f"{line['file']} has {len(rows)} lines, and {len(line['fit'])} were read: read them again.")
        for row, told in zip(rows, line["fit"]):
            if not told or row.get("lang", "en") != (language or row.get("lang", "en")):
                continue
            fit = np.zeros(len(columns), np.float32)
            parts = told.rstrip("*").split("|")
            for kind, those in zip(kinds, parts):
                fit[[place[kind, name] for name in those.split()]] = 1
            unknown = (late & told.endswith("*")) | (of_reply & (len(parts) < 3))
            text = row["text"].strip()
            aside = text_data.split_of(text, f"authored/{line['file']}") == "validation" or generator_data.judged_aside(text)
            found.append(Fitting(text, row.get("lang", "en"), fit, (~unknown).astype(np.float32), aside))
    return found


def lifted(bias: np.ndarray, rows: list[Fitting]) -> np.ndarray:
    """The bias of a head that learned from these rows, with rare replies lifted."""
    fit, known = (np.stack([getattr(row, part) for row in rows]) for part in ("fit", "known"))
    share = (fit * known).sum(0) / np.maximum(known.sum(0), 1)
    replies = sum(map(len, names()))
    return np.concatenate([bias[:replies], bias[replies:] - RARER * np.log(share[replies:] + 1e-3)]).astype(np.float32)


def report(logits: np.ndarray, rows: list[Fitting], counts: list[int]) -> str:
    """How often the likeliest sentence of each kind fits, of all texts and of those of which that is surest, and how many texts
    the same one is the likeliest of at most. `counts` says how many sentences of each kind there are."""
    parts, begin = [], 0
    for kind, count in zip(KINDS, counts):
        at = slice(begin, begin + count)
        begin += count
        read_for = [i for i, row in enumerate(rows) if row.known[at].any()]
        known, fit = (np.stack([getattr(rows[i], part)[at] for i in read_for]) for part in ("known", "fit"))
        said = np.where(known > 0, logits[read_for, at], -np.inf)
        top, sure = said.argmax(1), 1 / (1 + np.exp(-said.max(1)))
        right = fit[np.arange(len(top)), top] > 0
        half = np.argsort(-sure)[: max(1, len(top) // 2)]
        parts.append(
            f"{kind} {right.mean():.3f} of {len(top)}, of the surest half (from {sure[half[-1]]:.2f}) {right[half].mean():.3f},"
            f" at most {np.bincount(top).max()} alike"
        )
    return "; ".join(parts)
