"""Fits two heads of the judge of answers on its finished states: which everyday situation an English text is about, and which
attitudes and replies fit it.

Regressions on the English texts of judge_situations.py: a larger encoder that has learned moods and right answers tells
both well without learning anew. Run this after answer_judge_finish.py: it adds those heads to judge.safetensors, or fits
them anew, writes the attitudes in English beside it, where the replies must stand already, and changes nothing else. Prints what they are worth on the
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

import attitude_data  # noqa: E402
import text_data  # noqa: E402
from forge import encoder, low_rank  # noqa: E402
from forge.judge import HEADS  # noqa: E402
from judge_situations import MOOD_WEIGHT, kept_head, packed, read, report, windows  # noqa: E402
from text_scores import Classifier  # noqa: E402

HELD_BACK = 5e-3
# For the sentences that are chosen one by one, of which several fit a text.
HELD_BACK_ATTITUDES = 0.025
# Of two replies that are as likely, the one that fits fewer texts says more: so much of the log of its share is taken off.
RARER = 0.5
HEAD_RANK = 40


def regression(states: np.ndarray, targets: np.ndarray, weights: np.ndarray, moods: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weight [situations, width] and bias of the multinomial logistic regression of shares [rows, situations] on states,
    with a say for the mood, as in judge_situations.py."""
    mean, spread = states.mean(axis=0), states.std(axis=0) + 1e-6
    x, y, w, of_moods = (torch.from_numpy(a.astype(np.float32)) for a in ((states - mean) / spread, targets, weights, moods))

    def loss(weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        said = F.log_softmax(F.linear(x, weight, bias), -1)
        mood = torch.log((said.exp() @ of_moods).clamp(min=1e-6))
        losses = -(y * said).sum(-1) - MOOD_WEIGHT * ((y @ of_moods) * mood).sum(-1)
        return (losses * w).sum() / w.sum() + HELD_BACK * weight.square().sum()

    own, bias = least(loss, targets.shape[1], states.shape[1])
    own /= spread
    return own, bias - own @ mean


def fitting(states: np.ndarray, rows: list[attitude_data.Fitting]) -> tuple[np.ndarray, np.ndarray]:
    """Weight [attitudes, width] and bias of the logistic regressions of the attitudes and replies that fit on states, each for
    itself; rare replies are lifted."""
    mean, spread = states.mean(axis=0), states.std(axis=0) + 1e-6
    x = torch.from_numpy(((states - mean) / spread).astype(np.float32))
    fit, known = (torch.from_numpy(np.stack([getattr(row, part) for row in rows])) for part in ("fit", "known"))

    def loss(weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        losses = F.binary_cross_entropy_with_logits(F.linear(x, weight, bias), fit, reduction="none") * known
        return losses.sum() / len(rows) + HELD_BACK_ATTITUDES * weight.square().sum()

    own, bias = least(loss, fit.shape[1], states.shape[1])
    own /= spread
    replies = sum(map(len, attitude_data.names()))
    share = ((fit * known).sum(0) / known.sum(0).clamp(min=1)).numpy()[replies:]
    bias[replies:] -= RARER * np.log(share + 1e-3)
    return own, bias - own @ mean


def least(loss, outputs: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """The weight [outputs, width] and bias of which `loss` is least."""
    weight, bias = torch.zeros(outputs, width, requires_grad=True), torch.zeros(outputs, requires_grad=True)
    optimiser = torch.optim.LBFGS([weight, bias], max_iter=150, line_search_fn="strong_wolfe")

    def step() -> torch.Tensor:
        optimiser.zero_grad()
        value = loss(weight, bias)
        value.backward()
        return value

    optimiser.step(step)
    return weight.detach().numpy().copy(), bias.detach().numpy().copy()


def logits(kept: dict[str, np.ndarray], head: str, states: np.ndarray) -> np.ndarray:
    """What a head as it is kept says of states."""
    return states @ low_rank.change(low_rank.unpacked(kept), f"{head}.weight").T + kept[f"{head}.bias"]


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
    # Replies, those for variants among them, stand in that file alone.
    own = args.model / "situations.json.xz"
    english = {**json.loads(lzma.decompress(own.read_bytes())), "least": args.least, "names": written["names"]}
    english["attitudes"]["en"][:2] = written["attitudes"]["en"][:2]
    if list(map(len, english["attitudes"]["en"])) != list(map(len, attitude_data.names(replies=True))):
        raise SystemExit(f"{own} has not as many sentences as authored/attitudes names.")
    delta = {name: value for name, value in load_file(path).items() if not name.startswith(("situation.", "attitude."))}
    tokenizer = text_data.plain_tokenizer(kind, args.base)
    graph = encoder.graph(encoder.merge(encoder.load_base(args.base / kind.weights), delta, HEADS), kind, heads=HEADS, embedding=True)
    rows, moods = read(written["names"], "en")
    model = Classifier(graph, kind.special_ids, tokenizer, args.threads)
    states = model.each(windows(tokenizer, kind, [row.text for row in rows]), "embedding")
    targets, weights = np.stack([row.situations for row in rows]), np.array([row.weight for row in rows])
    learned = np.array([not row.aside and row.situations.any() for row in rows])
    kept = kept_head("situation", *regression(states[learned], targets[learned], weights[learned], moods), states, HEAD_RANK)
    for name, told in (("written for one", False), ("told by a reader", True)):
        at = [i for i, row in enumerate(rows) if row.aside and row.told == told]
        print(f"{name}: {report(logits(kept, 'situation', states[at]), [rows[i] for i in at], moods)}", flush=True)
    read_by = attitude_data.read("en", replies=True)
    states = model.each(windows(tokenizer, kind, [row.text for row in read_by]), "embedding")
    learned = [i for i, row in enumerate(read_by) if not row.aside]
    kept |= kept_head("attitude", *fitting(states[learned], [read_by[i] for i in learned]), states, HEAD_RANK)
    at = [i for i, row in enumerate(read_by) if row.aside]
    said = logits(kept, "attitude", states[at])
    print(f"attitudes: {attitude_data.report(said, [read_by[i] for i in at], [len(names) for names in attitude_data.names(replies=True)])}", flush=True)

    delta |= kept
    text_data.write(path, lambda p: save_file(delta, str(p)))
    text_data.write(own, lambda p: p.write_bytes(packed(english)))


if __name__ == "__main__":
    main()
