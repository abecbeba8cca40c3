"""Owns the generators' training data: texts with answers that people wrote, or left as a model had written them.

An example is a text with any of three answers (`positive`, `negative`,
`reply`), and with the answers of a model that a reader refused. Splits are
those of the classifiers (text_data.split_of): the same text never falls on two
sides.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import text_data

TASKS = ("positive", "negative", "reply")
# Lines written for this project, whose manner is the one to learn.
WRITTEN = (*text_data.EXPRESSED_FILES, "special")
# Written later, and learned from whole: so the lines kept aside, which the cards are measured on, stay what they were.
LEARNED = ("pairs_short", "pairs_close", "pairs_close_languages", "plain_languages")
# Texts that alpha-4o-mini has answered, with better answers; `refused` is what it had said. In `preferred` as few words as
# possible were changed: of its fourth stage in the first 1,115 lines, of its fifth in the others. `plain` has answers of
# one plain manner, each the text's own words and an attitude that fits, and what the fifth stage had said; of its first
# 1,920 lines those without `refused` are of texts that the fourth had answered, the 1,030 that follow have new texts, of
# the kinds that the sixth misjudges. `plain_languages` is of that manner, in seven more languages. `sampled` has what the
# sixth stage wrote of new texts, four times each, told apart by readers: answers that are right, and beside them wrong
# ones; where all were wrong, a reader's own. Up to two lines a text, the fuller one last. `sampled_more` is the same of the
# seventh stage: replies five times each, expressions where the server had drawn them anew. `answered` is a reader's own
# throughout: new everyday texts, bad and good news told flatly, who did what, notices, opinions, fragments, stories;
# `refused` are replies of the eighth stage that take bad news for good or good for bad, told by how they and the reader's
# begin.
PREFERRED = ("preferred", "plain", "sampled", "sampled_more", "answered")
# What the texts of our lines tell, judged apart from any answer: a letter for each line of a file, `-` where nobody judged.
MOODS = "moods"
# Public sources, and how many of their lines a pass takes: they widen the
# subjects, but their answers often lose or invent facts.
PUBLIC = {"expression/train/positive-frames": 500, "expression/train/imdb-counterfactual": 300, "reply/train/counsel-chat": 150}


@dataclass(frozen=True)
class Example:
    """A text with its answers; a task without one is absent."""

    text: str
    answers: dict[str, str]
    source: str
    lang: str = "en"
    kind: str = "statement"
    note: str = ""
    refused: dict[str, str] = field(default_factory=dict)


def example_of(item: dict, source: str) -> Example:
    # "false" says that there is nothing to express: no generator answers those.
    answers = {task: item[task].strip() for task in TASKS if item.get(task) and item[task] != "false"}
    refused = {task: said.strip() for task, said in item.get("refused", {}).items()}
    for task, said in refused.items():
        if not said or said == answers.get(task, said):
            raise SystemExit(f"{source}: the refused {task} of {item['text']!r} has no other answer beside it.")
    return Example(
        item["text"].strip(), answers, source, item.get("lang", "en"), item.get("kind", "statement"), item.get("note", ""),
        refused,
    )


def written(folder: Path = text_data.AUTHORED, names: Iterable[str] | None = None) -> list[Example]:
    """Our own lines, in file order: those of which a tenth is kept aside, unless others are named."""
    return [
        example_of(item, f"authored/{name}")
        for name in (WRITTEN if names is None else names)
        for item in text_data.authored_lines(folder, name)
    ]


def moods(folder: Path = text_data.AUTHORED) -> dict[str, str]:
    """The letter of each text that was judged."""
    found: dict[str, str] = {}
    for line in text_data.authored_lines(folder, MOODS):
        rows = text_data.authored_lines(folder, line["file"])
        if len(rows) != len(line["moods"]):
            raise SystemExit(f"{line['file']} has {len(rows)} lines, and {len(line['moods'])} were judged: judge them again.")
        found |= {row["text"].strip(): letter for row, letter in zip(rows, line["moods"]) if letter != "-"}
    return found


def split(examples: list[Example]) -> tuple[list[Example], list[Example]]:
    """Those to train on, and the tenth that is kept aside."""
    sides: dict[bool, list[Example]] = {True: [], False: []}
    for example in examples:
        sides[text_data.split_of(example.text, example.source) == "validation"].append(example)
    return sides[False], sides[True]


def learned() -> list[Example]:
    """The lines that are learned from whole, and those that a reader put right, as if they had been written so."""
    return written(names=LEARNED) + right_alone(split(written(names=PREFERRED))[0])


def right_alone(examples: list[Example]) -> list[Example]:
    """Without what was refused; of a text with two sets of answers the later one."""
    return list({example.text: replace(example, refused={}) for example in examples}.values())


def at_most(examples: list[Example], most: int, rng: random.Random) -> list[Example]:
    """All lines of a language, or `most` of them, drawn by chance: the most written one must not outweigh the others."""
    by_language: dict[str, list[Example]] = {}
    for example in examples:
        by_language.setdefault(example.lang, []).append(example)
    return [row for rows in by_language.values() for row in (rng.sample(rows, most) if len(rows) > most else rows)]


def public(data: Path, rng: random.Random) -> list[Example]:
    """A share of the public sources, drawn anew for every pass."""
    out: list[Example] = []
    for name, count in PUBLIC.items():
        with gzip.open(data / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
            rows = [example_of(json.loads(line), name.rpartition("/")[2]) for line in lines]
        rows = [
            row for row in rows
            if row.answers and row.text.isascii() and 4 <= len(row.text.split()) <= 40
            and all(_keeps_length(row.text, answer) for answer in row.answers.values())
            and text_data.split_of(row.text, row.source) != "validation"
        ]
        out += rng.sample(rows, min(count, len(rows)))
    return out


def _keeps_length(text: str, answer: str) -> bool:
    return answer.isascii() and "http" not in answer and 4 <= len(answer.split()) <= 1.5 * len(text.split()) + 12
