"""Narrows the feed-forward parts of a trained text classifier: a start for a faster one.

The two products there are two thirds of a layer's work. Kept are the inner channels whose activations, over training
texts, vary most in what they add to the layer's states; what the others add in the mean goes into the bias. The delta
that is written names the channels kept (scripts/forge/encoder.py), and `text_classifier.py --start` goes on from it.
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


def narrowed(delta: dict[str, np.ndarray], layer: int, kept: np.ndarray, mean: np.ndarray, down: np.ndarray) -> dict[str, np.ndarray]:
    """The unpacked delta with these inner channels of a layer only; `mean` [inner] is what each channel holds."""
    at = f"encoder.layer.{layer}"
    gone = np.setdiff1d(np.arange(len(mean)), kept)
    up, bias = f"{at}.intermediate.dense.weight.lora_b", f"{at}.intermediate.dense.bias.delta"
    return delta | {
        up: delta[up][kept],
        bias: delta[bias][kept],
        f"{at}.output.dense.weight.lora_a": delta[f"{at}.output.dense.weight.lora_a"][:, kept],
        f"{at}.output.dense.bias.delta": delta[f"{at}.output.dense.bias.delta"] + down[:, gone] @ mean[gone],
        encoder.KEPT.format(layer): kept.astype(np.int16),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder that holds moderation/train/")
    parser.add_argument("--base", type=Path, required=True, help="folder with the base weights and tokenizer.json")
    parser.add_argument("--model", type=Path, required=True, help="model folder of the classifier, e.g. models/beta-3-haiku")
    parser.add_argument("--out", type=Path, required=True, help="text.safetensors to write")
    parser.add_argument("--inner", type=int, default=1024, help="inner channels that a layer keeps")
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
        delta = narrowed(delta, layer, kept, activations.mean(axis=0), down)
    written = {k: np.ascontiguousarray(v.astype(np.float16) if k.endswith(".delta") else v) for k, v in delta.items()}
    text_data.write(args.out, lambda path: save_file(written, str(path)))


if __name__ == "__main__":
    main()
