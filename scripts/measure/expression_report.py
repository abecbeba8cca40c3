"""Owns the report on expressions and replies, in Markdown. No measured text enters it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from . import expression, likeness, replies, texts
from .asking import EXPRESSION, MODERATION, REPLY, Course
from .expressing import FLAGGED, Said
from .expression import PAIR_HEADER, REPLY_HEADER, decimal, percent
from .figures import plain
from .inputs import KINDS, STATEMENT, Input, Inputs
from .judges import Judges

FALSE_HEADER = ("special texts", "answered false", "statements", "answered false")
OPERATION_HEADER = ("asked", "answered", "p50 ms", "p95 ms", "errors by code")
# A file of our statements that look like special texts.
NEAR_MISSES = "authored/near_miss"


@dataclass(frozen=True)
class Run:
    """All that a report tells of."""

    model: str
    digest: str | None
    inputs: Inputs
    said: list[Said]
    course: Course
    connections: int
    judges: Judges


@dataclass(frozen=True)
class Judged:
    """The answers to the statements, and the replies to all else, as the judges see them."""

    pairs: list[expression.Pair]
    replies: list[expression.Reply]
    other_replies: list[expression.Reply]
    # What people wrote for the same statements bounds what a model can reach under these judges.
    people_pairs: list[expression.Pair]
    people_replies: list[expression.Reply]


def judged(run: Run) -> Judged:
    """Asks the judges, which takes a while."""
    items, said, judges = run.inputs.items, run.said, run.judges
    return Judged(
        expression.pairs(expression.expressed(items, said), judges),
        expression.reply_figures(expression.replied(items, said), judges),
        expression.reply_figures(expression.replied(items, said, statement=False), judges),
        expression.pairs(expression.written(items, ("positive", "negative")), judges),
        expression.reply_figures(expression.written(items, ("reply",)), judges),
    )


def report(run: Run, found: Judged, level: int = 1) -> str:
    """The whole report."""
    mark = "#" * level
    out = [f"{mark} Expressions and replies of {run.model}, measured through the running server", "", *_about(run), ""]
    out += [f"{mark}# Expressions", "", *_table("language", PAIR_HEADER, _pair_rows(found.pairs)), ""]
    rows = _reply_rows(found.replies)
    if found.other_replies:
        rows.append(("to special texts", expression.reply_cells(found.other_replies)))
    out += [f"{mark}# Replies", "", *_table("language", REPLY_HEADER, rows), ""]
    out += [f"{mark}# Where nothing can be expressed", "", *_table("texts", FALSE_HEADER, _false_rows(run)), ""]
    out += [f"{mark}# Operations", "", *_table("operation", OPERATION_HEADER, _operation_rows(run)), "", *_this_run(run), ""]
    if found.people_pairs or found.people_replies:
        out += [f"{mark}# What people wrote for the same texts, judged the same way", ""]
        out += [*_table("language, expressions", PAIR_HEADER, _pair_rows(found.people_pairs)), ""]
        out += [*_table("language, replies", REPLY_HEADER, _reply_rows(found.people_replies)), ""]
    return "\n".join([*out, f"{mark}# What the figures mean, and what they do not show", "", *_meaning()]) + "\n"


def _table(first: str, header: Iterable[str], rows: Iterable[tuple[str, list[str]]]) -> list[str]:
    cells = [first, *header]
    lines = ["| " + " | ".join(cells) + " |", "| --- " * len(cells) + "|"]
    return lines + ["| " + " | ".join([name, *row]) + " |" for name, row in rows]


def _pair_rows(pairs: list[expression.Pair]) -> list[tuple[str, list[str]]]:
    return [(name, expression.pair_cells(found)) for name, found in expression.by_language(pairs)]


def _reply_rows(found: list[expression.Reply]) -> list[tuple[str, list[str]]]:
    return [(name, expression.reply_cells(part)) for name, part in expression.by_language(found)]


def _about(run: Run) -> list[str]:
    inputs, judges = run.inputs, run.judges
    statements = sum(item.statement for item in inputs.items)
    if inputs.files:
        files = (f"`{plain(file.name)}` ({file.texts:,} texts, SHA-256 `{file.sha256[:16]}…`)" for file in inputs.files)
        origin = f"Data: {'; '.join(files)}."
    else:
        origin = "They are the tenth of our own lines that training keeps aside."
    out = [
        f"- {len(inputs.items):,} texts, {statements:,} of them statements, each asked of `{EXPRESSION}` and `{REPLY}`."
        f" {origin} SHA-256 of the texts: `{inputs.sha256[:16]}…`.",
        f"- Left out: {inputs.blank:,} blank texts, {inputs.long:,} of more than {texts.MOST_CHARACTERS} characters,"
        f" {inputs.foreign:,} in languages that were not asked for, {inputs.beyond_limit:,} beyond the limit that was set"
        " (those taken are evenly spaced).",
    ]
    if run.digest:
        out.append(f"- Generator: manifest SHA-256 `{run.digest}`.")
    out.append(
        f"- Light is judged by the sentiment head of {plain(judges.light_name)} (from {plain(judges.light_base)}, manifest"
        f" SHA-256 `{judges.light_digest[:16]}…`), content by the untuned {judges.content_base}, flags by `{MODERATION}`"
        f" of the same model at {FLAGGED}."
    )
    if not all(judges.reads(item.lang) for item in inputs.items):
        out.append(
            "- A judge here reads mainly English: light and content in other languages are hardly measured."
            " `--judge` and `--encoder multilingual-e5` take others."
        )
    return out


def _false_rows(run: Run) -> list[tuple[str, list[str]]]:
    """By language, then by kind. Texts that got an error are in neither count."""
    asked = [
        (item, said.inexpressible)
        for item, said in zip(run.inputs.items, run.said, strict=True)
        if EXPRESSION not in said.errors
    ]
    rows = []
    for name, items in expression.by_language([item for item, _ in asked]):
        rows.append((name, _false_cells([(item, false) for item, false in asked if name in ("all", item.lang)])))
    for kind in KINDS:
        of_kind = [(item, false) for item, false in asked if item.kind == kind]
        if of_kind and kind != STATEMENT:
            rows.append((kind, _false_cells(of_kind)))
    near = [(item, false) for item, false in asked if item.source == NEAR_MISSES]
    return rows + ([("near misses", _false_cells(near))] if near else [])


def _false_cells(asked: list[tuple[Input, bool]]) -> list[str]:
    cells = []
    for statement in (False, True):
        found = [false for item, false in asked if item.statement is statement]
        cells += [str(len(found)), percent(sum(found), len(found))]
    return cells


def _operation_rows(run: Run) -> list[tuple[str, list[str]]]:
    rows = []
    for path in (EXPRESSION, REPLY):
        # "false" comes from a classifier alone: it would make the generator look fast.
        seconds = [s.seconds[path] for s in run.said if path in s.seconds and not (path == EXPRESSION and s.inexpressible)]
        codes = Counter(said.errors[path] for said in run.said if path in said.errors)
        errors = ", ".join(f"{code} {count}" for code, count in sorted(codes.items())) or "none"
        times = [f"{1000 * value:.0f}" for value in np.percentile(seconds, [50, 95])] if seconds else ["–", "–"]
        answered = sum(path in said.seconds for said in run.said)
        rows.append((f"`{path}`", [str(len(run.said)), str(answered), *times, errors]))
    return rows


def _this_run(run: Run) -> list[str]:
    """Speed belongs to one machine at one time, and says so."""
    said = Counter(text for answer in run.said for text in answer.expressions or ())
    again = sum(count for count in said.values() if count > 1)
    return [
        f"Latencies are of this run only, on its machine and beside whatever else ran there: {run.course.seconds:.0f} s over"
        f" {run.connections} connections, told to come back later (429) {run.course.refusals:,} times. Those of"
        f" `{EXPRESSION}` leave out texts answered false, which need no generator. {again:,} expressions were given word"
        " for word more than once; the fixed sentences for texts in distress are such, and count like any other answer."
    ]


def _meaning() -> list[str]:
    return [
        "- Shares are of the statements that were answered: texts with an error or a wrong \"false\" are in the tables"
        " above and in no other figure. A dash means that no figure exists.",
        "- Facts are numbers (in English texts in words too) and words with a capital inside a sentence, by their"
        " letters; `facts kept` is the share of all of them, `all kept` that of the expressions of texts that have any. Names that open a sentence or are"
        " written without a capital are not seen, German nouns are all taken for names, and numbers in words are known"
        " in English only.",
        "- `copies` and `flagged` are counts, of two expressions or one reply a text. A copy has at least"
        f" {10 * likeness.COPIED_TENTHS} % of its words from the text, in their order, and at least as large a share of"
        " the text's.",
        "- `content` is the mean cosine to the text, `distinct` one minus that between the two expressions, `length` the"
        " median of characters against the text's. Cosines by different encoders do not compare.",
        f"- Of replies, `words shared` is the share that take up a word of {replies.LEAST_LETTERS} or more letters from the"
        " text (two characters in a row in Japanese, Chinese and Korean); `alike` says how many of a hundred have another"
        f" with the same first {replies.OPENING_WORDS} words ({2 * replies.OPENING_WORDS} such characters) or a cosine"
        f" above {decimal(replies.ALIKE_COSINE)}, and `largest set` how many of a hundred one reply and those like it are.",
        "- Not shown: whether the language is fluent, who did what to whom, what was invented, and whether a reply is kind"
        " or wise. A light that is right by the head may be wrong to a reader. Only people can say that:"
        " `models/SAMPLES.md` is for them.",
        "- A server that picks its answers by the same head and the same rules for facts and copies looks better here than"
        " it is.",
    ]
