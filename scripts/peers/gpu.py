"""What the built models do on a GPU: the work given to the gauge, and the table of what it measured."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

# Answers generated at once, and texts a batch × tokens a text.
ROWS = (1, 8, 64, 256)
SHAPES = ((64, 16), (512, 16), (64, 256))
TOKENS = 64
SECONDS = 3.0
# What the CPU computes of the same graph, for comparing: slow in half precision, so little of it.
TOLD_ROWS, TOLD_TOKENS, TOLD_SHAPE = 4, 24, (8, 16)
# Batches that are waited for, as many as the gauge asks at once, and one more.
BATCHES = 5


def generation(bundle: Path, texts: Sequence[str], rows: int, tokens: int) -> dict[str, Any]:
    """A job: both expressions' and the reply's prompts in turn, as the server gives them to the graph."""
    told = json.loads((bundle / "manifest.json").read_text(encoding="utf-8"))["generator"]["tasks"]
    tokenizer = Tokenizer.from_file(str(bundle / "tokenizer.json"))

    def ids(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    tasks = itertools.cycle(told)
    bodies = [ids(text + told[next(tasks)]["suffix"]) for text in itertools.islice(itertools.cycle(texts), rows)]
    prefix = ids(next(iter(told.values()))["prefix"])
    return {
        "job": "generate", "bundle": str(bundle), "prefix": prefix, "first": bodies[:1] * 3, "whole": [],
        "together": bodies, "tokens": tokens,
    }


def moderation(bundle: Path, texts: Sequence[str], shape: tuple[int, int], seconds: float) -> dict[str, Any]:
    """A job: windows of equally many tokens, cut from the texts one after the other."""
    batch, tokens = shape
    tokenizer = Tokenizer.from_file(str(bundle / "tokenizer.json"))
    opening, *_, closing = tokenizer.encode("a").ids
    words = itertools.cycle([token for text in texts for token in tokenizer.encode(text, add_special_tokens=False).ids])
    windows = [[opening, *itertools.islice(words, tokens - 2), closing] for _ in range(batch * BATCHES)]
    return {"job": "moderate", "bundle": str(bundle), "windows": windows, "batch": batch, "seconds": seconds}


def alike(ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]) -> tuple[int, int]:
    """How many answers are equal, and of how many."""
    return sum(list(one) == list(other) for one, other in zip(ours, theirs, strict=True)), len(ours)


def furthest(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> float:
    """The largest difference of two scores of the same text."""
    return max(abs(a - b) for one, other in zip(ours, theirs, strict=True) for a, b in zip(one, other, strict=True))


def table(card: str, models: Mapping[str, Mapping[str, Any]]) -> str:
    """The figures of each identifier, as a page has them."""
    lines = [
        f"On one {card}.", "",
        "| Identifier | Answers at once | Generation, tokens/s | First token, ms | Texts × tokens | Moderation, texts/s |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for model, found in models.items():
        generated = [(str(n), f"{one['rate']:,.0f}", f"{one['first']:.1f}") for n, one in found["generation"].items()]
        moderated = [(shape, f"{rate:,.0f}") for shape, rate in found["moderation"].items()]
        for left, right in itertools.zip_longest(generated, moderated):
            lines.append("| " + " | ".join([model, *(left or ("", "", "")), *(right or ("", ""))]) + " |")
    lines.append("")
    for model, found in models.items():
        equal, of, differ = *found["equal"], found["differ"]
        lines.append(
            f"`{model}`, beside the CPU's provider on the same graphs: {equal} of {of} answers of {TOLD_TOKENS} tokens"
            f" equal, scores at most {differ:.4f} apart."
        )
    return "\n".join(lines) + "\n"
