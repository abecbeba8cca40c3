"""Owns the figures of expressions and replies: what the judges say of each
answer, and counts over many.

An answer is judged the same whoever wrote it: the report sets what people wrote
for the same texts beside the model's, which shows what a judge is worth.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import likeness, replies
from .asking import EXPRESSION, REPLY
from .expressing import Said
from .inputs import Input
from .judges import Judges


@dataclass(frozen=True)
class Pair:
    """Both expressions of a text as the judges see them, the positive one first."""

    lang: str
    # Said in the light that was asked for.
    right: tuple[bool, bool]
    # Names and numbers of the text, and how many of them each expression has.
    facts: int
    kept: tuple[int, int]
    copies: int
    # Mean cosine to the text, and how far the two are from each other.
    content: float
    distinct: float
    # In characters, against the text's.
    lengths: tuple[float, float]
    # Of the two, by the server's moderation; None where it was not asked.
    flagged: int | None = None


@dataclass(frozen=True)
class Reply:
    """A reply as it is counted."""

    lang: str
    one_sentence: bool
    shares_words: bool
    content: float
    opening: tuple[str, ...]
    vector: np.ndarray = field(repr=False)
    flagged: int | None = None


@dataclass(frozen=True)
class Answer:
    """A text with an answer to it: both expressions, or the reply."""

    text: str = field(repr=False)
    lang: str
    said: tuple[str, ...] = field(repr=False)
    flagged: int | None = None


def expressed(inputs: list[Input], said: list[Said]) -> list[Answer]:
    """The expressions of the statements."""
    return [
        Answer(item.text, item.lang, answer.expressions, answer.flagged.get(EXPRESSION))
        for item, answer in zip(inputs, said, strict=True)
        if item.statement and answer.expressions
    ]


def replied(inputs: list[Input], said: list[Said], statement: bool = True) -> list[Answer]:
    """The replies to the statements, or to the other texts."""
    return [
        Answer(item.text, item.lang, (answer.reply,), answer.flagged.get(REPLY))
        for item, answer in zip(inputs, said, strict=True)
        if item.statement is statement and answer.reply
    ]


def written(inputs: list[Input], tasks: tuple[str, ...]) -> list[Answer]:
    """What people answered to the statements, where they did."""
    return [
        Answer(item.text, item.lang, tuple(item.written[task] for task in tasks))
        for item in inputs
        if item.statement and all(task in item.written for task in tasks)
    ]


def pairs(answers: list[Answer], judges: Judges) -> list[Pair]:
    """Judges both expressions of each text."""
    if not answers:
        return []
    texts, positive, negative = [[a.text for a in answers], *([a.said[i] for a in answers] for i in (0, 1))]
    right = zip(judges.positive(positive), ~judges.positive(negative), strict=True)
    one, two, three = map(judges.vectors, (texts, positive, negative))
    content = ((one * two).sum(axis=1) + (one * three).sum(axis=1)) / 2
    distinct = 1 - (two * three).sum(axis=1)
    return [
        Pair(
            answer.lang,
            (bool(lights[0]), bool(lights[1])),
            len(likeness.facts(answer.text, answer.lang)),
            tuple(likeness.kept(answer.text, said, answer.lang) for said in answer.said),
            sum(likeness.repeats(answer.text, said) for said in answer.said),
            float(content[i]),
            float(distinct[i]),
            tuple(len(said) / len(answer.text) for said in answer.said),
            answer.flagged,
        )
        for i, (answer, lights) in enumerate(zip(answers, right, strict=True))
    ]


def reply_figures(answers: list[Answer], judges: Judges) -> list[Reply]:
    """Judges each reply."""
    if not answers:
        return []
    said = [answer.said[0] for answer in answers]
    texts, vectors = judges.vectors([answer.text for answer in answers]), judges.vectors(said)
    return [
        Reply(
            answer.lang,
            replies.one_sentence(reply),
            replies.shares_words(answer.text, reply),
            float(text @ vector),
            replies.opening(reply),
            vector,
            answer.flagged,
        )
        for answer, reply, text, vector in zip(answers, said, texts, vectors, strict=True)
    ]


def by_language(found: list[Any]) -> Iterator[tuple[str, list[Any]]]:
    """All, then the items of each language, the commonest first."""
    yield "all", found
    counts = Counter(item.lang for item in found)
    for lang in sorted(counts, key=lambda lang: (-counts[lang], lang)):
        yield lang, [item for item in found if item.lang == lang]


PAIR_HEADER = (
    "texts", "positive right", "negative right", "both right", "facts kept", "all kept", "copies", "content",
    "distinct", "length", "flagged",
)


def pair_cells(found: list[Pair]) -> list[str]:
    """A row below PAIR_HEADER."""
    count = len(found)
    with_facts = [pair for pair in found if pair.facts]
    return [
        str(count),
        percent(sum(pair.right[0] for pair in found), count),
        percent(sum(pair.right[1] for pair in found), count),
        percent(sum(all(pair.right) for pair in found), count),
        percent(sum(sum(pair.kept) for pair in found), 2 * sum(pair.facts for pair in found)),
        percent(sum(kept == pair.facts for pair in with_facts for kept in pair.kept), 2 * len(with_facts)),
        str(sum(pair.copies for pair in found)),
        decimal(np.mean([pair.content for pair in found]) if found else None),
        decimal(np.mean([pair.distinct for pair in found]) if found else None),
        decimal(np.median([length for pair in found for length in pair.lengths]) if found else None),
        flagged(found),
    ]


REPLY_HEADER = ("texts", "one sentence", "words shared", "content", "alike", "largest set", "flagged")


def reply_cells(found: list[Reply]) -> list[str]:
    """A row below REPLY_HEADER; what is alike is counted among the replies of this row, as of a hundred."""
    count = len(found)
    alike = replies.alike([r.opening for r in found], np.array([r.vector for r in found])) if found else np.zeros(0, int)
    largest = int(alike.max()) + 1 if alike.any() else 0
    return [
        str(count),
        percent(sum(reply.one_sentence for reply in found), count),
        percent(sum(reply.shares_words for reply in found), count),
        decimal(np.mean([reply.content for reply in found]) if found else None),
        percent(int((alike > 0).sum()), count, ""),
        percent(largest, count, ""),
        flagged(found),
    ]


def flagged(found: list[Any]) -> str:
    known = [item.flagged for item in found if item.flagged is not None]
    return str(sum(known)) if known else "–"


def percent(part: int, whole: int, unit: str = " %") -> str:
    return f"{100 * part / whole:.1f}{unit}" if whole else "–"


def decimal(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
