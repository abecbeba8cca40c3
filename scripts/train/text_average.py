"""Averages two deltas of one base.

Two stages of a training often err in different places; the mean of their
weights does better than either. The low-rank factors lie side by side, so the
rank is the sum of both, unless `--rank` asks for the nearest of a lower one.
Deltas of generators are written packed, as their trainer does, by `--packed`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

sys.path.insert(0, str(Path(__file__).resolve().parent))

import text_data  # noqa: E402
from forge import low_rank  # noqa: E402


def mean(
    first: dict[str, np.ndarray], second: dict[str, np.ndarray], share: float = 0.5
) -> dict[str, np.ndarray]:
    """The mean of two unpacked deltas, of which the second has this share; what one alone has is taken as it is."""
    out = {}
    for name in sorted({*first, *second}):
        if name.startswith("activation."):
            continue
        if name.endswith(".inner.kept"):
            if not np.array_equal(first.get(name), second.get(name)):
                raise SystemExit(f"{name}: of two that keep other inner channels there is no mean")
            out[name] = first[name].astype(np.int16)
            continue
        if name not in first or name not in second:
            value = first.get(name, second.get(name))
        elif name.endswith(".lora_a"):
            value = np.concatenate([first[name], second[name]])
        elif name.endswith(".lora_b"):
            value = np.concatenate([(1 - share) * first[name], share * second[name]], axis=1)
        else:
            value = (1 - share) * first[name] + share * second[name]
        # As a training writes them: the factors are packed later, what is added to biases is kept as it is.
        out[name] = value.astype(np.float16 if name.endswith(".delta") else np.float32)
    return out


def of_rank(delta: dict[str, np.ndarray], rank: int) -> dict[str, np.ndarray]:
    """The delta whose low-rank changes are the nearest of this rank."""
    out = dict(delta)
    for name in delta:
        if name.endswith(".lora_a") and len(delta[name]) > rank:
            other = name.removesuffix("a") + "b"
            u, sizes, v = np.linalg.svd(delta[other].astype(np.float64) @ delta[name], full_matrices=False)
            # Shared evenly, neither factor needs a wider range of 8-bit steps.
            root = np.sqrt(sizes[:rank])
            out[name] = (root[:, None] * v[:rank]).astype(np.float32)
            out[other] = (u[:, :rank] * root).astype(np.float32)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("deltas", type=Path, nargs=2, help="text.safetensors, or generator.safetensors, of either stage")
    parser.add_argument("--out", type=Path, required=True, help="file to write; text.safetensors is for text_calibrate.py")
    parser.add_argument("--share", type=float, default=0.5, help="share of the second in the mean")
    parser.add_argument("--packed", action="store_true", help="write factors of few bits, as generators have them")
    parser.add_argument("--rank", type=int, help="highest rank of the result (the sum of both)")
    args = parser.parse_args()
    first, second = (low_rank.unpacked(load_file(path)) for path in args.deltas)
    found = mean(first, second, args.share)
    if args.rank:
        found = of_rank(found, args.rank)
    if args.packed:
        found = low_rank.packed(found, low_rank.OF_GENERATORS)
    text_data.write(args.out, lambda path: save_file(found, str(path)))


if __name__ == "__main__":
    main()
