"""Owns how a text classifier's training is supplied: texts drawn, taught, tokenised and put in batches, span by span.

Without PyTorch, so that other processes can draw while the training computes.
All randomness comes from the seed; what is drawn does not depend on who draws it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]

import text_data  # noqa: E402
import text_mixture  # noqa: E402
from forge import encoder  # noqa: E402

# How far a teacher is believed where there is no label.
TEACHER_WEIGHT = 0.5
# Sources of long texts that are read whole, up to this many tokens.
WHOLE, WHOLE_TOKENS = ("authored/passages", "authored/stories"), 160
# Sources of which that holds for what is harmful: of a harmless text every window is harmless.
WHOLE_IF_HARMFUL = ("authored/posts",)


def tokenise(
    tokenizer: Tokenizer, kind: encoder.Backbone, rows: list[text_data.Row], limit: int, seed: int | None
) -> list[list[int]]:
    """Token ids; with a seed, half of the long texts give a window from within."""
    rng = random.Random(seed)
    out = []
    for row, encoding in zip(rows, tokenizer.encode_batch([row.text for row in rows], add_special_tokens=False)):
        # Where one sentence of many makes the label, the whole must be seen.
        whole = row.source in WHOLE or (row.source in WHOLE_IF_HARMFUL and row.positive())
        ids, room = encoding.ids, (WHOLE_TOKENS if whole else limit) - 2
        if len(ids) > room:
            start = rng.randint(0, len(ids) - room) if seed is not None and rng.random() < 0.5 else 0
            ids = ids[start : start + room]
        out.append([kind.cls_id, *ids, kind.sep_id])
    return out


def batches(lengths: list[int], size: int, seed: int) -> list[list[int]]:
    """Batches of like length, in random order: sorted within spans of 50 batches."""
    rng = random.Random(seed)
    out = []
    span = size * 50
    for start in range(0, len(lengths), span):
        inside = sorted(range(start, min(start + span, len(lengths))), key=lambda i: lengths[i])
        groups = [inside[i : i + size] for i in range(0, len(inside), size)]
        rng.shuffle(groups)
        out += groups
    return out


def of_eights(tokens: int) -> int:
    """The next multiple of eight, in which a GPU computes."""
    return -(-tokens // 8) * 8


def taught(rows: list[text_data.Row], path: Path) -> list[text_data.Row]:
    """The rows with a teacher's probabilities, as text_teach.py wrote them.

    Of English only: no teacher here reads other languages well. Nor does one know better than a reader who was sure.
    """
    return [
        row if np.isnan(p[0]) or not text_data.is_english(row) or (row.read and max(row.weights) == 1)
        else replace(row, soft=tuple(map(float, p)))
        for row, p in zip(rows, text_data.said_of(rows, path))
    ]


def targets_of(rows: list[text_data.Row], share: float) -> tuple[np.ndarray, ...]:
    """Targets and weights [rows, 5], kinds and sentiments [rows]; a teacher's word fills what a source left open and has
    this share in what it says."""
    targets = np.array([row.targets for row in rows], np.float32)
    weights = np.array([row.weights for row in rows], np.float32)
    # A little smoothing: no source's labels are beyond doubt.
    targets = targets * 0.96 + 0.02
    is_taught = np.array([row.soft is not None for row in rows])[:, None]
    soft = np.array([row.soft or (0.0,) * 5 for row in rows], np.float32)
    mixed = np.where(weights > 0, share * soft + (1 - share) * targets, soft)
    return (
        np.where(is_taught, mixed, targets).astype(np.float32),
        np.where(is_taught, np.maximum(weights, TEACHER_WEIGHT), weights).astype(np.float32),
        np.array([row.kind for row in rows]),
        np.array([row.sentiment for row in rows]),
    )


@dataclass(frozen=True)
class Span:
    """Texts drawn for some of a run's steps: `ids` [texts, tokens], `lengths` [texts], what `targets_of` gives, and the
    batches, as numbers of texts."""

    ids: np.ndarray
    lengths: np.ndarray
    wanted: tuple[np.ndarray, ...]
    batches: list[list[int]]


class Supply:
    """Draws a run's texts span by span, in processes of its own: a GPU waits for nothing more than for texts."""

    def __init__(self, pools: text_mixture.Pools, tokenizer: Tokenizer, args: argparse.Namespace) -> None:
        self.pools, self.tokenizer, self.args = pools, tokenizer, args
        self.steps = args.rows // args.batch
        self.steps_each = min(args.span // args.batch, self.steps)
        if not self.steps_each:
            raise SystemExit("A run draws at least one batch of texts: give more --rows and --span, or a smaller --batch.")
        self.count = -(-self.steps // self.steps_each)

    def span(self, number: int) -> Span:
        args, seed = self.args, self.args.seed + 100_000 * number
        wanted = min(self.steps_each, self.steps - number * self.steps_each) * args.batch
        # Shares are rounded source by source: draw a few too many, and leave those.
        count = round(1.02 * wanted) + 100
        drawn = self.pools.draw(count, seed, args.emphasis)
        if len(drawn) < wanted:
            # Of sources that are not there the others take the share.
            drawn = self.pools.draw(round(count * 1.02 * wanted / max(len(drawn), 1)) + 100, seed, args.emphasis)
        if len(drawn) < wanted:
            raise SystemExit(f"Of {wanted} texts for a span only {len(drawn)} are there: give --data with more sources.")
        drawn = drawn[:wanted]
        kind = encoder.BACKBONES[args.backbone]
        rows = tokenise(self.tokenizer, kind, drawn, args.tokens, seed)
        ids = np.zeros((len(rows), of_eights(max(map(len, rows)))), np.int32)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = row
        targets = targets_of(drawn, args.teacher_share)
        return Span(ids, np.array([len(row) for row in rows]), targets, batches([len(row) for row in rows], args.batch, seed))

    def spans(self, first: int) -> Iterator[Span]:
        """Those from `first` on, in order; a few are drawn ahead."""
        numbers = range(first, self.count)
        if self.args.drawers < 1:
            yield from map(self.span, numbers)
            return
        global _SUPPLY
        _SUPPLY = self
        # Forked: the rows are large, and every process reads them only.
        pool = ProcessPoolExecutor(self.args.drawers, multiprocessing.get_context("fork"), _alone, (os.getpid(),))
        try:
            ahead = deque(pool.submit(_span, number) for number in numbers[: 2 * self.args.drawers])
            for following in range(first + len(ahead), self.count + len(ahead)):
                found = ahead.popleft().result()
                if following < self.count:
                    ahead.append(pool.submit(_span, following))
                yield found
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


# What the processes that draw inherit.
_SUPPLY: Supply


def _alone(parent: int) -> None:
    # One process a core: a fork of running threads would wait for them without end.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"

    def watch() -> None:
        # A training that is killed takes its drawers along.
        while os.getppid() == parent:
            time.sleep(2)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _span(number: int) -> Span:
    return _SUPPLY.span(number)
