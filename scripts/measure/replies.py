"""Owns what is counted of replies: one sentence, words shared with the text, replies that are alike."""

from __future__ import annotations

import re

import numpy as np

from . import likeness

# Replies that begin with the same words are alike; in scripts without spaces two characters stand for a word.
OPENING_WORDS = 6
ALIKE_COSINE = 0.95
# Shorter words are mostly grammar.
LEAST_LETTERS = 4
_ROWS = 512

_CLOSERS = "\"”’')\\]»」』）"
_END = re.compile(rf"[.!?…]+[{_CLOSERS}]*(?=\s|$)|[。！？]+[{_CLOSERS}]*")
# "Dr. Lee", "J. Smith" and "at 5 p.m. on Monday" end no sentence there.
_SHORTENED = re.compile(r"(\b([A-Z]|Mr|Mrs|Ms|Mme|Dr|Dra|Sr|Sra|St|No|Nr|vs|etc|bzw|ca)|(\b\w\.)+\w)\.$")
# "am 4. Juni"
_MONTH = re.compile(r"Januar|Februar|März|April|Mai|Juni|Juli|August|September|Oktober|November|Dezember")
_DAY = re.compile(r"\b\d{1,2}\.$")


def one_sentence(reply: str) -> bool:
    """Whether the reply is exactly one sentence, and finished; a last "…" is where one was cut."""
    reply = reply.strip()
    ends = [end for end in _END.finditer(reply) if not _goes_on(reply, end)]
    if len(ends) != 1 or ends[0][0].startswith("…"):
        return False
    return not any(map(str.isalnum, reply[ends[0].end() :]))


def _goes_on(reply: str, end: re.Match[str]) -> bool:
    rest = reply[end.end() :].lstrip()
    so_far = reply[: end.start() + 1]
    shortened = _SHORTENED.search(so_far) is not None or bool(_DAY.search(so_far) and _MONTH.match(rest))
    return end[0][0] in ".…" and rest != "" and (shortened or rest[0].islower())


def opening(reply: str) -> tuple[str, ...]:
    """The first words."""
    return tuple(likeness.units(reply)[: OPENING_WORDS * (2 if likeness.is_wide(reply) else 1)])


def shares_words(text: str, reply: str) -> bool:
    """Whether the reply takes up a word of the text; in scripts without spaces, two characters in a row."""
    return not _telling(text).isdisjoint(_telling(reply))


def _telling(text: str) -> set[str]:
    units = likeness.units(text)
    if likeness.is_wide(text):
        return set(map("".join, zip(units, units[1:])))
    return {word for word in units if len(word) >= LEAST_LETTERS}


def alike(openings: list[tuple[str, ...]], vectors: np.ndarray) -> np.ndarray:
    """How many others each reply is alike to: the same opening, or nearly the same content."""
    numbers = {words: number for number, words in enumerate(dict.fromkeys(openings))}
    same = np.array([numbers[words] for words in openings], dtype=int)
    counts = np.zeros(len(openings), dtype=int)
    # Some rows at a time: a square of all replies to a large file would not fit in memory.
    for start in range(0, len(openings), _ROWS):
        rows = slice(start, start + _ROWS)
        like = (vectors[rows] @ vectors.T > ALIKE_COSINE) | (same[rows, None] == same[None, :])
        # Not the reply itself, whether or not rounding keeps it at a cosine of 1.
        counts[rows] = like.sum(axis=1) - 1
    return counts
