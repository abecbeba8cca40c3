"""Fits a head of the judge of answers on its finished states: which everyday situation an English text is about.

A regression on texts that were written for one and on others whose situation a reader told (the better of two first; those of
no situation are measured and not learned). A tenth, chosen by a hash, is kept aside. Run this after answer_judge_finish.py: it
adds the head to judge.safetensors, or fits it anew, and changes nothing else. Prints what it is worth on the texts kept aside.
"""

from __future__ import annotations

import argparse
import json
import lzma
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from safetensors.numpy import load_file, save_file  # noqa: E402

import text_data  # noqa: E402
from forge import encoder, low_rank  # noqa: E402
from forge.judge import HEADS  # noqa: E402
from judge_sentences import kept_head, windows  # noqa: E402
from text_scores import Classifier, softmax  # noqa: E402

# Of two situations that a reader told.
SHARES = (0.7, 0.3)
# Of a text whose situation a reader told, against one that was written for it: the first are as people write, and harder.
TOLD_WEIGHT = 2.0
# What the mood counts against the situation itself.
MOOD_WEIGHT = 0.7
ASIDE = 0.1
HELD_BACK = 5e-3
HEAD_RANK = 40


@dataclass(frozen=True)
class Row:
    text: str
    # By situation, and by good news, bad news and neither; zeros where nobody told.
    situations: np.ndarray
    moods: np.ndarray
    weight: float
    told: bool
    aside: bool


def read(names: Sequence[str]) -> tuple[list[Row], np.ndarray]:
    """The texts whose situation was told, and the moods [situations, 3] of the situations."""
    lines = text_data.authored_lines(text_data.AUTHORED, "situations")
    about = {line["situation"]: line["mood"] for line in lines if "text" not in line}
    # What is both, as a farewell is, counts half for either.
    of = {"g": (1, 0, 0), "b": (0, 1, 0), "n": (0, 0, 1), "m": (0.5, 0.5, 0)}
    moods = np.array([of[about[name]] for name in names], np.float32)
    rows = []
    for line in lines:
        if "text" not in line:
            continue
        told, target = line.get("told", False), np.zeros(len(names), np.float32)
        found = [name for name in line["situations"] if name != "none"]
        for name, share in zip(found, SHARES if len(found) > 1 else (1.0,)):
            target[names.index(name)] = share
        aside = line.get("aside", False) or text_data.share_of(line["text"]) < ASIDE
        rows.append(Row(line["text"], target, target @ moods, TOLD_WEIGHT if told else 1.0, told, aside))
    return rows, moods


def report(logits: np.ndarray, rows: Sequence[Row], moods: np.ndarray) -> str:
    """How often the likeliest situation, and its mood, is one that was told, of all and of those that are surest."""
    found = softmax(logits)
    top, sure = found.argmax(1), found.max(1)
    right = np.array([row.situations[at] > 0 for row, at in zip(rows, top)])
    mood = np.array([(row.moods * moods[at]).sum() > 0 for row, at in zip(rows, top)])
    order = np.argsort(-sure)
    parts = [f"{len(rows)} texts: situation {right.mean():.3f}, mood {mood.mean():.3f}"]
    for share in (0.25, 0.5, 0.75):
        first = order[: max(1, round(len(rows) * share))]
        parts.append(f"of the surest {share:.0%} (from {sure[first[-1]]:.2f}) {right[first].mean():.3f}, {mood[first].mean():.3f}")
    return "; ".join(parts)


def regression(states: np.ndarray, targets: np.ndarray, weights: np.ndarray, moods: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weight [situations, width] and bias of the multinomial logistic regression of shares [rows, situations] on states,
    with a say for the mood, the sum over the situations of it."""
    mean, spread = states.mean(axis=0), states.std(axis=0) + 1e-6
    x, y, w, of_moods = (torch.from_numpy(a.astype(np.float32)) for a in ((states - mean) / spread, targets, weights, moods))

    def loss(weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        said = F.log_softmax(F.linear(x, weight, bias), -1)
        mood = torch.log((said.exp() @ of_moods).clamp(min=1e-6))
        losses = -(y * said).sum(-1) - MOOD_WEIGHT * ((y @ of_moods) * mood).sum(-1)
        return (losses * w).sum() / w.sum() + HELD_BACK * weight.square().sum()

    weight = torch.zeros(targets.shape[1], states.shape[1], requires_grad=True)
    bias = torch.zeros(targets.shape[1], requires_grad=True)
    optimiser = torch.optim.LBFGS([weight, bias], max_iter=150, line_search_fn="strong_wolfe")

    def step() -> torch.Tensor:
        optimiser.zero_grad()
        value = loss(weight, bias)
        value.backward()
        return value

    optimiser.step(step)
    own = weight.detach().numpy() / spread
    return own, bias.detach().numpy() - own @ mean


def logits(kept: dict[str, np.ndarray], states: np.ndarray) -> np.ndarray:
    """What the head as it is kept says of states."""
    return states @ low_rank.change(low_rank.unpacked(kept), "situation.weight").T + kept["situation.bias"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", type=Path, required=True, help="folder with the base weights of mpnet")
    parser.add_argument("--model", type=Path, required=True, help="folder of the model that has the judge, e.g. models/alpha-4o-mini")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    kind, path = encoder.BACKBONES["mpnet"], args.model / "judge.safetensors"
    written = json.loads(lzma.decompress((args.model / "situations.json.xz").read_bytes()))
    delta = {name: value for name, value in load_file(path).items() if not name.startswith("situation.")}
    tokenizer = text_data.plain_tokenizer(kind, args.base)
    graph = encoder.graph(encoder.merge(encoder.load_base(args.base / kind.weights), delta, HEADS), kind, heads=HEADS, embedding=True)
    rows, moods = read(written["names"])
    model = Classifier(graph, kind.special_ids, tokenizer, args.threads)
    states = model.each(windows(tokenizer, kind, [row.text for row in rows]), "embedding")
    targets, weights = np.stack([row.situations for row in rows]), np.array([row.weight for row in rows])
    learned = np.array([not row.aside and row.situations.any() for row in rows])
    kept = kept_head("situation", *regression(states[learned], targets[learned], weights[learned], moods), states, HEAD_RANK)
    for name, told in (("written for one", False), ("told by a reader", True)):
        at = [i for i, row in enumerate(rows) if row.aside and row.told == told]
        print(f"{name}: {report(logits(kept, states[at]), [rows[i] for i in at], moods)}", flush=True)
    delta |= kept
    text_data.write(path, lambda p: save_file(delta, str(p)))


if __name__ == "__main__":
    main()
