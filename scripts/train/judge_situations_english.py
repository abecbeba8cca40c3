"""Fits a head of the judge of answers that tells which everyday situation an English text is about, on its finished states.

A regression on the English texts of judge_situations.py: a larger encoder that has learned moods and right answers tells
situations well without learning anew. Run this after answer_judge_finish.py: it adds that head to judge.safetensors, or fits
it anew, writes the English ones of what people wrote beside it, and changes nothing else. Prints what it is worth on the
texts kept aside.
"""

from __future__ import annotations

import argparse
import json
import lzma
import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from safetensors.numpy import load_file, save_file  # noqa: E402

import text_data  # noqa: E402
from forge import encoder  # noqa: E402
from forge.judge import HEADS  # noqa: E402
from judge_situations import MOOD_WEIGHT, kept_head, packed, read, report, windows  # noqa: E402
from text_scores import Classifier  # noqa: E402

HELD_BACK = 5e-3


def regression(states: np.ndarray, targets: np.ndarray, weights: np.ndarray, moods: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weight [situations, width] and bias of the multinomial logistic regression of shares [rows, situations] on states,
    with a say for the mood, as in judge_situations.py."""
    mean, spread = states.mean(axis=0), states.std(axis=0) + 1e-6
    x, y, w, of_moods = (torch.from_numpy(a.astype(np.float32)) for a in ((states - mean) / spread, targets, weights, moods))
    weight = torch.zeros(targets.shape[1], states.shape[1], requires_grad=True)
    bias = torch.zeros(targets.shape[1], requires_grad=True)
    optimiser = torch.optim.LBFGS([weight, bias], max_iter=150, line_search_fn="strong_wolfe")

    def step() -> torch.Tensor:
        optimiser.zero_grad()
        said = F.log_softmax(F.linear(x, weight, bias), -1)
        mood = torch.log((said.exp() @ of_moods).clamp(min=1e-6))
        losses = -(y * said).sum(-1) - MOOD_WEIGHT * ((y @ of_moods) * mood).sum(-1)
        loss = (losses * w).sum() / w.sum() + HELD_BACK * weight.square().sum()
        loss.backward()
        return loss

    optimiser.step(step)
    own = weight.detach().numpy() / spread
    return own.astype(np.float32), (bias.detach().numpy() - own @ mean).astype(np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", type=Path, required=True, help="folder with the base weights of mpnet")
    parser.add_argument("--model", type=Path, required=True, help="folder of the model that has the judge, e.g. models/alpha-4o-mini")
    parser.add_argument("--written", type=Path, required=True, help="situations.json.xz of all languages")
    parser.add_argument("--least", type=float, required=True, help="probability from which a situation counts as known")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    kind, path = encoder.BACKBONES["mpnet"], args.model / "judge.safetensors"
    written = json.loads(lzma.decompress(args.written.read_bytes()))
    delta = {name: value for name, value in load_file(path).items() if not name.startswith("situation.")}
    tokenizer = text_data.plain_tokenizer(kind, args.base)
    graph = encoder.graph(encoder.merge(encoder.load_base(args.base / kind.weights), delta, HEADS), kind, heads=HEADS, embedding=True)
    rows, moods = read(written["names"], "en")
    model = Classifier(graph, kind.special_ids, tokenizer, args.threads)
    states = model.each(windows(tokenizer, kind, [row.text for row in rows]), "embedding")
    targets, weights = np.stack([row.situations for row in rows]), np.array([row.weight for row in rows])
    learned = np.array([not row.aside and row.situations.any() for row in rows])
    weight, bias = regression(states[learned], targets[learned], weights[learned], moods)
    for name, told in (("written for one", False), ("told by a reader", True)):
        at = [i for i, row in enumerate(rows) if row.aside and row.told == told]
        print(f"{name}: {report(states[at] @ weight.T + bias, [rows[i] for i in at], moods)}", flush=True)

    delta |= kept_head(weight, bias)
    text_data.write(path, lambda p: save_file(delta, str(p)))
    own = args.model / "situations.json.xz"
    english = {**written, "least": args.least, "sentences": {"en": written["sentences"]["en"]}}
    if own.exists():
        # Replies for variants stand in that file alone.
        english["particular"] = json.loads(lzma.decompress(own.read_bytes())).get("particular", {})
    text_data.write(own, lambda p: p.write_bytes(packed(english)))


if __name__ == "__main__":
    main()
