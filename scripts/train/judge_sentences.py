"""Trains a judge that tells which attitudes and replies fit a text, in eight languages, and writes its delta.

An encoder with a logit for each sentence of `authored/attitudes`, over the mean of its states. It learns from texts whose
fitting sentences readers told; those that generators keep aside are kept aside. All randomness comes from `--seed`; an
interrupted run goes on from its checkpoint.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.numpy import load_file, save_file
from torch import Tensor, nn

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import attitude_data  # noqa: E402
import text_data  # noqa: E402
import training_run  # noqa: E402
from answer_judge import padded, planned  # noqa: E402
from forge import encoder, low_rank  # noqa: E402
from forge.judge import HEADS, TEXT_TOKENS  # noqa: E402
from text_calibrate import ranges_of  # noqa: E402
from text_model import Encoder, load_base  # noqa: E402
from text_scores import Classifier  # noqa: E402

# Of the factors that a head is kept as.
HEAD_RANK = 32
# Sequences that the ranges of the int8 graph are measured on.
RANGED = 1200


class Teller(Encoder):
    """The encoder with a logit for each sentence."""

    head_names = ("attitude",)

    def __init__(self, base: dict[str, Tensor], kind: encoder.Backbone, rank: int, sentences: int) -> None:
        super().__init__(base, kind, rank)
        self.attitude = nn.Linear(self.width, sentences)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        return self.attitude(F.dropout(self.pooled(ids, lengths)[:, : self.width], 0.1, self.training))


def kept_head(name: str, weight: np.ndarray, bias: np.ndarray, states: np.ndarray, rank: int = HEAD_RANK) -> dict[str, np.ndarray]:
    """The head as it is kept: factors of eight bits, and a bias that makes up for what they lose in the mean of such states."""
    a, b = low_rank.least_for(weight, states, rank)
    kept = low_rank.packed({f"{name}.weight.lora_a": a, f"{name}.weight.lora_b": b})
    lost = weight - low_rank.change(low_rank.unpacked(kept), f"{name}.weight")
    return {**kept, f"{name}.bias": (bias + lost @ states.mean(axis=0)).astype(np.float32)}


def loss_of(logits: Tensor, rows: Sequence[attitude_data.Fitting]) -> Tensor:
    """The loss a text, summed over the sentences of which it is known."""
    fit, known = (torch.from_numpy(np.stack([getattr(row, part) for row in rows])).to(logits.device) for part in ("fit", "known"))
    losses = F.binary_cross_entropy_with_logits(logits.float(), fit, reduction="none") * known
    return losses.sum() / len(rows)


def windows(tokenizer, kind: encoder.Backbone, texts: Sequence[str]) -> list[list[int]]:
    """The ids of texts alone, as the server has them."""
    found = tokenizer.encode_batch(list(texts), add_special_tokens=False)
    return [[kind.cls_id, *one.ids[:TEXT_TOKENS], kind.sep_id] for one in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", type=Path, required=True, help="folder with the base weights of multilingual-e5-small")
    parser.add_argument("--out", type=Path, required=True, help="delta to write")
    parser.add_argument("--start", type=Path, help="judge.safetensors to go on from")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--passes", type=float, default=4.0)
    training_run.add_options(parser, seed=640, rank=16, rate=6e-4, checkpoint_every=100)
    args = parser.parse_args()
    device, log, settings = training_run.begin(args)

    kind = encoder.BACKBONES["multilingual-e5"]
    tokenizer, base = text_data.plain_tokenizer(kind, args.base), encoder.load_base(args.base / kind.weights)
    rows = attitude_data.read(replies=True)
    aside, learned = ([row for row in rows if row.aside == side] for side in (True, False))
    ids = windows(tokenizer, kind, [row.text for row in learned])
    plan = planned(ids, args.batch, args.passes, args.seed)
    log(f"{len(learned)} texts, {len(aside)} kept aside, {len(plan)} steps of {args.batch}")

    counts = [len(names) for names in attitude_data.names(replies=True)]
    model = Teller(load_base(args.base / kind.weights), kind, args.rank, sum(counts)).to(device)
    if args.start:
        model.load_delta(load_file(args.start))
    if args.bf16:
        model.in_bf16()
    head = set(model.attitude.parameters())
    tuned = [p for p in model.parameters() if p.requires_grad]
    # A head may begin from nothing.
    groups = [{"params": [p for p in tuned if p not in head], "times": 1.0}, {"params": list(head), "times": 4.0}]
    optimiser = torch.optim.AdamW(groups, lr=args.rate, weight_decay=0.01, betas=(0.9, 0.98))
    bound = {k: v for k, v in settings.items() if k not in ("work", "out", "threads", "device", "checkpoint_every")}
    bound["lines"] = hashlib.sha256(repr(ids).encode()).hexdigest()
    checkpoint = training_run.Checkpoint(args.work, bound, model, optimiser)
    checkpoint.resume(device, log)

    warm, running, since = max(1, len(plan) // 25), 0.0, 0
    clock, begun = time.monotonic(), time.monotonic() - checkpoint.spent
    for step, at in enumerate(plan[checkpoint.done :], start=checkpoint.done):
        gone = step / len(plan)
        if args.minutes:
            gone = max(gone, (time.monotonic() - begun) / 60 / args.minutes)
        if gone >= 1:
            log(f"out of time after {step} of {len(plan)} steps")
            break
        for group in optimiser.param_groups:
            group["lr"] = args.rate * group["times"] * min((step + 1) / warm, 1 - gone)
        # Dropout follows the step, so a resumed run repeats what it would have done.
        torch.manual_seed(args.seed * 1_000_003 + step)
        loss = loss_of(model(*padded([ids[i] for i in at], device)), [learned[i] for i in at])
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(tuned, 1.0)
        optimiser.step()
        running, since = running + float(loss.detach()), since + 1
        if (step + 1) % 50 == 0:
            log(f"step {step + 1}/{len(plan)} loss {running / since:.4f} {since * args.batch / (time.monotonic() - clock):.0f} texts/s")
            running, since, clock = 0.0, 0, time.monotonic()
        if (step + 1) % args.checkpoint_every == 0 or step + 1 == len(plan):
            checkpoint.save(step + 1, time.monotonic() - begun)

    delta = low_rank.packed({name: value.numpy() for name, value in model.delta_tensors().items()}, bits=5)
    shown = Classifier(encoder.graph(encoder.merge(base, delta, HEADS), kind, "float32", show=True, heads=HEADS), kind.special_ids, tokenizer, args.threads)
    delta |= ranges_of(shown, random.Random(args.seed).sample(ids, RANGED), HEADS)
    plain = encoder.graph(encoder.merge(base, delta, HEADS), kind, "float32", heads=HEADS, embedding=True)
    states = Classifier(plain, kind.special_ids, tokenizer, args.threads).each(random.Random(args.seed).sample(ids, RANGED), "embedding")
    delta |= kept_head("attitude", delta.pop("attitude.weight"), attitude_data.lifted(delta["attitude.bias"], learned), states)
    for precision in ("float32", "int8"):
        graph = encoder.graph(encoder.merge(base, delta, HEADS), kind, precision, heads=HEADS)
        classifier = Classifier(graph, kind.special_ids, tokenizer, args.threads)
        logits = classifier.each(windows(tokenizer, kind, [row.text for row in aside]), "attitude")
        log(f"{precision}: {attitude_data.report(logits, aside, counts)}")
    text_data.write(args.out, lambda path: save_file(delta, str(path)))


if __name__ == "__main__":
    main()
