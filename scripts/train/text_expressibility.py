"""Fits the head that tells what has nothing to express, on the states of a classifier that is trained and calibrated.

What moderation needs outweighs that head in training, and the lines for it are few: a regression on the finished states,
in which they weigh most, tells more. Run this after text_calibrate.py; it changes that head and its threshold alone, and no
score of harm, so that ensembles stay as they were calibrated. Prints what it is worth on the lines kept aside.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from safetensors.numpy import load_file, save_file  # noqa: E402

import text_card  # noqa: E402
import text_data  # noqa: E402
from forge import encoder  # noqa: E402
from text_calibrate import UNREADABLE  # noqa: E402
from text_data import Row  # noqa: E402
from text_scores import Classifier, softmax  # noqa: E402

SOURCES = ("authored/special", "authored/near_miss")
# Of everything else, which is all statements: how many are drawn in English, and in all other languages together, and what
# each counts against a line written for this head.
OTHERS, OTHERS_WEIGHT = 6000, 0.2
HELD_BACK = 1e-3
FOLDS = 5
# Share of near misses that may be taken for special: what is lost so gets no answer at all.
LOST = 0.05


def drawn(rows: list[Row], seed: int) -> list[Row]:
    """The lines for this head, and a sample of other statements."""
    known = [row for row in rows if row.kind >= 0 and row.sentiment < 0]
    out = [row for row in known if row.source in SOURCES]
    for english in (True, False):
        others = [
            row for row in known
            if row.source not in SOURCES and row.side() == "train" and (row.lang == "en") == english
        ]
        out += random.Random(seed).sample(others, min(OTHERS, len(others)))
    return out


def regression(states: np.ndarray, kinds: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weight [5, width] and bias [5] of the multinomial logistic regression of `kinds` on states [rows, width]."""
    mean, spread = states.mean(axis=0), states.std(axis=0) + 1e-6
    x = torch.from_numpy(((states - mean) / spread).astype(np.float32))
    y, w = torch.from_numpy(kinds), torch.from_numpy(weights.astype(np.float32))
    weight = torch.zeros(5, x.shape[1], requires_grad=True)
    bias = torch.zeros(5, requires_grad=True)
    optimiser = torch.optim.LBFGS([weight, bias], max_iter=150, line_search_fn="strong_wolfe")

    def step() -> torch.Tensor:
        optimiser.zero_grad()
        losses = F.cross_entropy(F.linear(x, weight, bias), y, reduction="none", label_smoothing=0.02)
        loss = (losses * w).sum() / w.sum() + HELD_BACK * weight.square().sum()
        loss.backward()
        return loss

    optimiser.step(step)
    own = weight.detach().numpy() / spread
    return own.astype(np.float32), (bias.detach().numpy() - own @ mean).astype(np.float32)


def threshold_of(states: np.ndarray, rows: list[Row], kinds: np.ndarray, weights: np.ndarray) -> float:
    """Least share of a special text, such that of near misses that the regression has not seen LOST are taken for one."""
    fold = np.array([int(text_data.name_of(row.text), 16) % FOLDS for row in rows])
    special = np.zeros(len(rows))
    for out in range(FOLDS):
        weight, bias = regression(states[fold != out], kinds[fold != out], weights[fold != out])
        special[fold == out] = 1 - softmax(states[fold == out] @ weight.T + bias)[:, 0]
    near = special[[row.source == "authored/near_miss" for row in rows]]
    # The encoder has learned from these lines, the regression alone has not: lines that are new to both are lost more often.
    return round(float(np.clip(np.quantile(near, 1 - LOST), 0.5, 0.9)), 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder that holds moderation/train/")
    parser.add_argument("--base", type=Path, required=True, help="folder of the unpacked base of --model")
    parser.add_argument("--model", type=Path, required=True, help="model folder, e.g. models/alpha-4o-mini")
    parser.add_argument("--seed", type=int, default=181)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    recipe = json.loads((args.model / "model.json").read_text(encoding="utf-8"))["components"]["text"]
    kind, unread = encoder.BACKBONES[recipe["backbone"]], UNREADABLE[recipe["backbone"]]
    path = args.model / recipe["delta"]
    base, delta = encoder.load_base(args.base / kind.weights, recipe.get("layers")), load_file(path)
    graph = encoder.graph(encoder.merge(base, delta), kind, embedding=True)
    model = Classifier(graph, kind.special_ids, text_data.plain_tokenizer(kind, args.base), args.threads)

    rows = [row for row in drawn(text_data.load(args.data), args.seed) if row.lang == "en" or not unread]
    states = model.first([row.text for row in rows], "embedding")
    kinds = np.array([row.kind for row in rows])
    weights = np.array([1.0 if row.source in SOURCES else OTHERS_WEIGHT for row in rows])

    def told(name: str, weight: np.ndarray, bias: np.ndarray, threshold: float) -> None:
        aside = [i for i, row in enumerate(rows) if row.side() == "validation"]
        print(f"\n{name}, threshold {threshold}")
        print("\n".join(text_card.special_lines([rows[i] for i in aside], states[aside] @ weight.T + bias, threshold)), flush=True)

    settings_path = args.model / recipe["calibration"]
    settings = json.loads(settings_path.read_text(encoding="utf-8"))
    told("before", delta["expressibility.weight"], delta["expressibility.bias"], settings["expressibility"]["threshold"])
    learned = np.array([row.side() != "validation" for row in rows])
    seen = [row for row, is_learned in zip(rows, learned) if is_learned]
    weight, bias = regression(states[learned], kinds[learned], weights[learned])
    threshold = threshold_of(states[learned], seen, kinds[learned], weights[learned])
    told(f"{learned.sum()} lines", weight, bias, threshold)

    settings["expressibility"]["threshold"] = threshold
    delta |= {"expressibility.weight": weight, "expressibility.bias": bias}
    text_data.write(path, lambda p: save_file(delta, str(p)))
    text_data.write(settings_path, lambda p: p.write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8"))


if __name__ == "__main__":
    main()
