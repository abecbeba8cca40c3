"""Narrows the feed-forward parts of a trained text classifier: a start for a faster one.

The two products there are two thirds of a layer's work. Kept are the inner channels whose activations, over training
texts, vary most in what they add to the layer's states; what the others add in the mean goes into the bias, and what
follows from those kept, by least squares, into their weights. The delta that is written names the channels kept
(scripts/forge/encoder.py). It can be calibrated as it is, and `text_classifier.py --start` goes on from it.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import text_data  # noqa: E402
from forge import encoder, low_rank  # noqa: E402
from text_scores import Classifier  # noqa: E402


def told(activations: np.ndarray, down: np.ndarray) -> np.ndarray:
    """How much each column of `activations` [tokens, inner] varies in what it adds through `down` [width, inner]."""
    return activations.var(axis=0) * np.square(down).sum(axis=0)


def chosen(activations: np.ndarray, down: np.ndarray, count: int) -> np.ndarray:
    """The `count` of those columns that tell most, ascending."""
    return np.sort(np.argsort(-told(activations, down), kind="stable")[:count])


def taken_over(activations: np.ndarray, down: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """What the weights of the kept channels gain [width, kept], for these to add what follows from them of the others."""
    centred = (activations - activations.mean(axis=0)).astype(np.float64)
    gone = np.setdiff1d(np.arange(centred.shape[1]), kept)
    own = covariance(centred[:, kept])
    return np.linalg.solve(own, centred[:, kept].T @ (centred[:, gone] @ down[:, gone].T) / len(centred)).T


def covariance(centred: np.ndarray) -> np.ndarray:
    """That of the columns, with a little more on its diagonal, so that it can be divided by."""
    own = centred.T @ centred / len(centred)
    return own + 1e-3 * np.trace(own) / len(own) * np.eye(len(own))


def low_ranked(change: np.ndarray, activations: np.ndarray, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Two factors [width, rank] and [rank, in] whose product does to such inputs [tokens, in] what `change` does, as nearly as it can."""
    centred = (activations - activations.mean(axis=0)).astype(np.float64)
    left, _, _ = np.linalg.svd(change @ np.linalg.cholesky(covariance(centred)), full_matrices=False)
    first = left[:, :rank]
    return first.astype(np.float32), (first.T @ change).astype(np.float32)


def narrowed(
    delta: dict[str, np.ndarray], layer: int, kept: np.ndarray, activations: np.ndarray, down: np.ndarray, more: int
) -> dict[str, np.ndarray]:
    """The unpacked delta with these inner channels of a layer only, of which `activations` [tokens, inner] tells what each
    holds; the rank of what changes their weights grows by `more`."""
    at = f"encoder.layer.{layer}"
    mean, gone = activations.mean(axis=0), np.setdiff1d(np.arange(activations.shape[1]), kept)
    up, bias = f"{at}.intermediate.dense.weight.lora_b", f"{at}.intermediate.dense.bias.delta"
    first, second = (f"{at}.output.dense.weight.lora_{part}" for part in "ba")
    gained = taken_over(activations, down, kept)
    change = delta[first] @ delta[second][:, kept] + gained
    outer, inner = low_ranked(change, activations[:, kept], len(delta[second]) + more)
    # The mean of what the others add, less that of what takes its place.
    level = down[:, gone] @ mean[gone] - (outer @ inner - delta[first] @ delta[second][:, kept]) @ mean[kept]
    return delta | {
        up: delta[up][kept],
        bias: delta[bias][kept],
        first: outer,
        second: inner,
        f"{at}.output.dense.bias.delta": delta[f"{at}.output.dense.bias.delta"] + level.astype(np.float32),
        encoder.KEPT.format(layer): kept.astype(np.int16),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder that holds moderation/train/")
    parser.add_argument("--base", type=Path, required=True, help="folder with the base weights and tokenizer.json")
    parser.add_argument("--model", type=Path, required=True, help="model folder of the classifier, e.g. models/beta-3-haiku")
    parser.add_argument("--out", type=Path, required=True, help="text.safetensors to write")
    parser.add_argument("--inner", type=int, default=1024, help="inner channels that a layer keeps")
    parser.add_argument("--more", type=int, default=8, help="how much the rank of what changes their weights may grow")
    parser.add_argument("--texts", type=int, default=3000, help="training texts to look at")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    recipe = json.loads((args.model / "model.json").read_text(encoding="utf-8"))["components"]["text"]
    kind = encoder.backbone(recipe)
    base = encoder.load_base(args.base / kind.weights, recipe.get("layers"))
    delta = low_rank.unpacked({k: v for k, v in load_file(args.model / recipe["delta"]).items() if not k.startswith("activation.")})
    merged = encoder.merge(base, delta)
    tokenizer = text_data.plain_tokenizer(kind, args.base)
    model = Classifier(encoder.graph(merged, kind, "float32", show=True), kind.special_ids, tokenizer, args.threads)
    rows = [r for r in text_data.load(args.data) if r.side() == "train" and text_data.is_english(r) and r.sentiment < 0]
    texts = [row.text for row in random.Random(args.seed).sample(rows, min(args.texts, len(rows)))]
    windows = sorted((window for text in texts for window in model.windows(text)), key=len)
    for layer in range(encoder.layer_count(merged)):
        name = f"layer.{layer}.gelu"
        seen = []
        for start in range(0, len(windows), 32):
            batch = windows[start : start + 32]
            inside = np.arange(len(batch[-1]))[None, :] < np.array([len(row) for row in batch])[:, None]
            seen.append(model.run(batch, [name])[0][inside])
        activations, down = np.concatenate(seen), merged[f"encoder.layer.{layer}.output.dense.weight"]
        kept = chosen(activations, down, args.inner)
        all_of_it = told(activations, down)
        print(f"layer {layer}: {len(activations)} tokens, kept {all_of_it[kept].sum() / all_of_it.sum():.3f} of what varies", flush=True)
        delta = narrowed(delta, layer, kept, activations, down, args.more)
        after = encoder.merge(base, delta)[f"encoder.layer.{layer}.output.dense.weight"]
        missing = (activations @ down.T - activations[:, kept] @ after.T).var(axis=0).sum() / (activations @ down.T).var(axis=0).sum()
        print(f"layer {layer}: {missing:.4f} of what the layer adds is not what it was", flush=True)
    written = {k: np.ascontiguousarray(v.astype(np.float16) if k.endswith(".delta") else v) for k, v in delta.items()}
    text_data.write(args.out, lambda path: save_file(written, str(path)))


if __name__ == "__main__":
    main()
