"""Owns the generators' training data: texts with answers that people wrote, or left as a model had written them.

An example is a text with any of three answers (`positive`, `negative`,
`reply`), with further ones that are as right, and with the answers of a model
that a reader refused. Splits are those of the classifiers (text_data.split_of):
the same text never falls on two sides. Of judged answers another tenth is kept
aside (judged_aside): learn from those files or from the others, not from both.
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
# begin. `answered_languages` has such texts and answers in seven more languages.
PREFERRED = ("preferred", "plain", "sampled", "sampled_more", "answered", "answered_languages")
# What alpha's eighth stage and delta-3.1 answered to texts of `answered`, and its ninth to new ones that mostly tell without
# a word of feeling what is good or bad, many times each, told apart by readers, for the judge of answers; `~` before an answer
# stands for the text's own words up to its closing sign. `judged_beta` and `judged_gamma` are what those answered to texts of
# `judged_more`, the latter also to new ones in seven more languages; `own` are a reader's where none to a task was right.
JUDGED = ("judged", "judged_delta", "judged_more", "judged_beta", "judged_gamma")
VERDICTS = ("right", "doubtful", "wrong")
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
    # Beside the answer to a task: others as right, and refused ones.
    others: dict[str, tuple[str, ...]] = field(default_factory=dict)
    refused: dict[str, tuple[str, ...]] = field(default_factory=dict)


def example_of(item: dict, source: str) -> Example:
    # "false" says that there is nothing to express: no generator answers those.
    answers = {task: item[task].strip() for task in TASKS if item.get(task) and item[task] != "false"}
    refused = {task: said.strip() for task, said in item.get("refused", {}).items()}
    for task, said in refused.items():
        if not said or said == answers.get(task, said):
            raise SystemExit(f"{source}: the refused {task} of {item['text']!r} has no other answer beside it.")
    return Example(
        item["text"].strip(), answers, source, item.get("lang", "en"), item.get("kind", "statement"), item.get("note", ""),
        refused={task: (said,) for task, said in refused.items()},
    )


def written(folder: Path = text_data.AUTHORED, names: Iterable[str] | None = None) -> list[Example]:
    """Our own lines, in file order: those of which a tenth is kept aside, unless others are named."""
    return [
        example
        for name in (WRITTEN if names is None else names)
        for example in (
            _of_judged(folder, name) if name in JUDGED
            else (example_of(item, f"authored/{name}") for item in text_data.authored_lines(folder, name))
        )
    ]


def judged(name: str, folder: Path = text_data.AUTHORED) -> list[tuple[str, dict[str, dict[str, list[str]]]]]:
    """Texts with the answers to each task by verdict: the best of the right ones first, the worst of the wrong ones."""
    return [
        (line["text"], {
            task: {verdict: [_whole(line["text"], said) for said in line.get(task, {}).get(verdict, [])] for verdict in VERDICTS}
            for task in TASKS
        })
        for line in text_data.authored_lines(folder, name)
    ]


def _whole(text: str, answer: str) -> str:
    if not answer.startswith("~"):
        return answer
    words = text.rstrip(".!?…。！？")
    return words[:1].upper() + words[1:] + answer[1:]


def judged_aside(text: str) -> bool:
    """Of the judged texts the tenth that is kept aside: their answers are of texts that others have learned from."""
    return int(text_data.name_of(text), 16) % 10 == 0


def _of_judged(folder: Path, name: str) -> Iterable[Example]:
    """The answers that were judged, as answers to learn from; where none to a task was right, a reader's own."""
    answered = {example.text: example.answers for example in written(folder, ["answered"])}
    for line, (text, found) in zip(text_data.authored_lines(folder, name), judged(name, folder), strict=True):
        own = {task: _whole(text, said) for task, said in line.get("own", {}).items()}
        for task, said in own.items():
            found[task]["right"] = [*found[task]["right"], said]
        right = {task: said["right"] for task, said in found.items() if said["right"]}
        answers = answered.get(text, {}) | {task: said[0] for task, said in right.items()}
        yield Example(
            text, answers, f"authored/{name}", line.get("lang", "en"),
            others={task: tuple(said[1:]) for task, said in right.items()},
            refused={task: tuple(found[task]["wrong"]) for task in right if found[task]["wrong"]},
        )


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
        if example.source.removeprefix("authored/") in JUDGED:
            aside = judged_aside(example.text)
        else:
            aside = text_data.split_of(example.text, example.source) == "validation"
        sides[aside].append(example)
    return sides[False], sides[True]


def learned() -> list[Example]:
    """The lines that are learned from whole, and those that a reader put right, as if they had been written so."""
    return written(names=LEARNED) + right_alone(split(written(names=PREFERRED))[0])


def right_alone(examples: list[Example]) -> list[Example]:
    """Without what was refused; of a text with two sets of answers the later one."""
    return list({example.text: replace(example, others={}, refused={}) for example in examples}.values())


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
