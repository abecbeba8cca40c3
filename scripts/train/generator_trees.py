"""Owns the form in which a generator learns: a text and its answers as one tree of tokens."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TypeVar

from tokenizers import Tokenizer

from generator_data import TASKS, Example

# An array or a tensor.
Sums = TypeVar("Sums")


class Prompts:
    """The token ids around a text, as models/<identifier>/prompts.json has them."""

    def __init__(self, path: Path, tokenizer: Tokenizer) -> None:
        found = json.loads(path.read_text(encoding="utf-8"))
        self.tokenizer = tokenizer

        def special(text: str) -> list[int]:
            tokenizer.encode_special_tokens = False
            return tokenizer.encode(text, add_special_tokens=False).ids

        prefixes = {found["tasks"][task]["prefix"] for task in TASKS}
        if len(prefixes) != 1:
            raise SystemExit(f"{path} gives the tasks different prefixes: a tree needs one.")
        self.prefix = special(prefixes.pop())
        self.suffix = {task: special(found["tasks"][task]["suffix"]) for task in TASKS}
        (self.end,) = special(found["stop"][0])

    def plain(self, text: str) -> list[int]:
        """A text's ids; what looks like a special token in it is text."""
        self.tokenizer.encode_special_tokens = True
        return self.tokenizer.encode(text, add_special_tokens=False).ids


class Tree:
    """An example as tokens: ids, positions, branch of each, and which are answers.

    The first `given` answers are those to give. `pairs` has, by the numbers of answers, a right one, a refused one to the
    same task, and what that pair counts: those of a task count as much as one pair together.
    """

    def __init__(self, example: Example, prompts: Prompts) -> None:
        self.ids = prompts.prefix + prompts.plain(example.text)
        self.positions = list(range(len(self.ids)))
        self.branch = [0] * len(self.ids)
        # (where a token is predicted, the token, the number of its answer)
        self.wanted: list[tuple[int, int, int]] = []
        trunk = len(self.ids)
        right = {task: [number] for number, task in enumerate(example.answers)}
        branches = list(example.answers.items())
        self.given = len(branches)
        self.pairs: list[tuple[int, int, float]] = []
        # An answer beside which none was refused has nothing to be compared with.
        for task, refused in example.refused.items():
            for said in example.others.get(task, ()):
                right[task].append(len(branches))
                branches.append((task, said))
            wrong = range(len(branches), len(branches) + len(refused))
            branches += ((task, said) for said in refused)
            count = len(right[task]) * len(wrong)
            self.pairs += ((better, worse, 1 / count) for better in right[task] for worse in wrong)
        self.answers = len(branches)
        for number, (task, words) in enumerate(branches, start=1):
            answer = [*prompts.plain(words), prompts.end]
            own = prompts.suffix[task] + answer[:-1]
            first = len(self.ids) + len(prompts.suffix[task]) - 1
            self.wanted += [(first + i, token, number - 1) for i, token in enumerate(answer)]
            self.ids += own
            self.positions += range(trunk, trunk + len(own))
            self.branch += [number] * len(own)


class Pairs:
    """The answers of a batch that are to be given, and its pairs of a right and a refused one, by their numbers in it."""

    def __init__(self, trees: list[Tree]) -> None:
        self.better, self.worse, self.counts, self.given = [], [], [], []
        at = 0
        for tree in trees:
            for better, worse, counts in tree.pairs:
                self.better.append(at + better)
                self.worse.append(at + worse)
                self.counts.append(counts)
            self.given += range(at, at + tree.given)
            at += tree.answers

    def lead(self, sums: Sums) -> Sums:
        """How much likelier the better answer is than the refused one, in nats, of the losses of a batch's answers."""
        return sums[self.worse] - sums[self.better]


def order(trees: list[Tree], budget: int, rng: random.Random) -> list[list[Tree]]:
    """Batches of like length within a budget of padded tokens, in random order."""
    rng.shuffle(trees)
    out: list[list[Tree]] = []
    for start in range(0, len(trees), 400):
        batch: list[Tree] = []
        groups = []
        for tree in sorted(trees[start : start + 400], key=lambda t: len(t.ids)):
            if batch and len(tree.ids) * (len(batch) + 1) > budget:
                groups.append(batch)
                batch = []
            batch.append(tree)
        groups.append(batch)
        rng.shuffle(groups)
        out += groups
    return out
