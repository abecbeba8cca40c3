"""Owns what a judge of answers learns from: answers that readers told apart, and the moods of texts.

Splits: a tenth of the texts, chosen by a hash, is kept aside, in whatever file they are.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

sys.path.insert(0, str(Path(__file__).resolve().parent))

import attitude_data  # noqa: E402
import generator_data  # noqa: E402
import text_data  # noqa: E402
from forge import encoder  # noqa: E402
from forge.judge import ANSWER_TOKENS, TEXT_TOKENS  # noqa: E402

# Files of judged answers, of the generators whose answers are judged.
READ = ("judged", "judged_delta", "judged_more")
# Pairs of an answer that readers found right and one that they refused.
TOLD_APART = ("sampled", "sampled_more")
# What readers left open is rather wrong, and weighs half.
WORTH = {"right": (1.0, 1.0), "doubtful": (0.35, 0.5), "wrong": (0.0, 1.0)}
# In the order of the verdicts of moods.
MOOD_OF = {"g": (1.0, 0.0, 0.0), "b": (0.0, 1.0, 0.0), "n": (0.0, 0.0, 1.0), "m": (0.5, 0.5, 0.0)}


@dataclass(frozen=True)
class Item:
    """An answer to a text, or a text alone where `task` is none: its mood, or the sentences that fit it."""

    text: str
    answer: str
    task: int | None
    # How right it is; of a text alone its mood; nothing where `fitting` is told.
    target: tuple[float, ...]
    weight: float = 1.0
    file: str = ""
    fitting: attitude_data.Fitting | None = None


def judged(folder: Path = text_data.AUTHORED) -> list[Item]:
    """Every answer that readers judged, file by file and text by text."""
    return [
        Item(text, answer, task, WORTH[verdict][:1], WORTH[verdict][1], file)
        for file in READ
        for text, found in generator_data.judged(file, folder)
        for task, name in enumerate(generator_data.TASKS)
        for verdict in WORTH
        for answer in found[name][verdict]
    ]


def told_apart() -> list[Item]:
    """The right and the refused answers of the files that have both, each once."""
    found: dict[tuple[str, str, int], Item] = {}
    for example in generator_data.split(generator_data.written(names=TOLD_APART))[0]:
        for name, refused in example.refused.items():
            task = generator_data.TASKS.index(name)
            for answer, right in ((example.answers[name], 1.0), *((said, 0.0) for said in refused)):
                found[example.text, answer, task] = Item(example.text, answer, task, (right,))
    return list(found.values())


def moods() -> tuple[list[Item], list[Item]]:
    """Texts with their moods: those to learn from, and those kept aside by generators, too."""
    letters = generator_data.moods()
    whole = {example.text for example in generator_data.written(names=generator_data.LEARNED)}
    sides: dict[bool, list[Item]] = {True: [], False: []}
    for text, letter in letters.items():
        aside = text_data.split_of(text, f"authored/{generator_data.MOODS}") == "validation"
        if not (aside and text in whole):
            sides[aside].append(Item(text, "", None, MOOD_OF[letter]))
    return sides[False], sides[True]


def sentences(aside: bool) -> list[Item]:
    """English texts with the sentences that fit them, those kept aside or the others."""
    return [Item(one.text, "", None, (), fitting=one) for one in attitude_data.read("en", replies=True) if one.aside == aside]


def windows(tokenizer: Tokenizer, kind: encoder.Backbone, items: Sequence[Item]) -> list[list[int]]:
    """The ids of each item, as the server has them."""
    def ids(texts: list[str]) -> list[list[int]]:
        return [found.ids for found in tokenizer.encode_batch(texts, add_special_tokens=False)]

    out = []
    for item, text, answer in zip(items, ids([item.text for item in items]), ids([item.answer for item in items])):
        row = [kind.cls_id, *text[:TEXT_TOKENS], kind.sep_id]
        out.append(row if item.task is None else [*row, *answer[:ANSWER_TOKENS], kind.sep_id])
    return out


def area(scores: np.ndarray, right: np.ndarray) -> float:
    """How often a right answer has the higher score of a right and a wrong one."""
    ranks = np.argsort(np.argsort(scores, kind="stable"), kind="stable")
    count = right.sum()
    return float((ranks[right].mean() - (count - 1) / 2) / max(1, (~right).sum())) if 0 < count < len(right) else float("nan")


def told(logits: np.ndarray, items: Sequence[Item]) -> str:
    """What these logits are worth: of each task how well right answers are told from wrong ones, and how often the answer
    that is chosen by them is right where a right one is among a text's; of moods how often they are right."""
    parts = []
    for task, name in enumerate(generator_data.TASKS):
        clear = [i for i, item in enumerate(items) if item.task == task and item.target[0] in (0.0, 1.0)]
        right, scores = np.array([items[i].target[0] == 1.0 for i in clear]), logits[clear, task]
        best: dict[str, int] = {}
        for i in (i for i, item in enumerate(items) if item.task == task):
            if items[i].text not in best or logits[i, task] > logits[best[items[i].text], task]:
                best[items[i].text] = i
        possible = {items[i].text for i in clear if items[i].target[0] == 1.0}
        chosen = np.mean([items[best[text]].target[0] == 1.0 for text in possible]) if possible else float("nan")
        share = np.mean([item.target[0] == 1.0 for item in items if item.task == task and item.text in possible]) if possible else 0
        parts.append(f"{name} area {area(scores, right):.3f}, chosen right {chosen:.3f} of {len(possible)} ({share:.3f} by chance)")
    alone = [i for i, item in enumerate(items) if item.task is None and item.target and max(item.target) == 1.0]
    if alone:
        of_mood = logits[alone][:, len(generator_data.TASKS) :]
        moods_right = of_mood.argmax(axis=1) == np.array([np.argmax(items[i].target) for i in alone])
        clear = np.array([items[i].target[2] == 0.0 for i in alone])
        news = (of_mood[:, 0] > of_mood[:, 1]) == np.array([items[i].target[0] == 1.0 for i in alone])
        parts.append(f"moods {moods_right.mean():.3f} of {len(alone)}, good from bad news {news[clear].mean():.3f} of {clear.sum()}")
    return "; ".join(parts)
