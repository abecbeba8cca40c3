"""Trains a text classifier and writes its delta.

First the heads are fitted on the frozen encoder, then low-rank deltas of every
layer with them; or a run goes on from a delta (`--start`). All randomness comes
from `--seed`; an interrupted run goes on from its last checkpoint.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.numpy import load_file
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).resolve().parent))

import text_data  # noqa: E402
import text_mixture  # noqa: E402
import text_supply  # noqa: E402
import training_run  # noqa: E402
from forge import encoder  # noqa: E402
from measure import metrics  # noqa: E402
from text_model import HEADS, TextClassifier, load_base  # noqa: E402
from text_supply import Span, Supply, of_eights, targets_of, tokenise  # noqa: E402


def pad(rows: list[list[int]], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(map(len, rows))
    ids = torch.zeros((len(rows), width), dtype=torch.long)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row)
    return ids.to(device), torch.tensor([len(row) for row in rows], device=device)


def loss_of(
    harm: torch.Tensor,
    expressibility: torch.Tensor,
    sentiment: torch.Tensor,
    rows: tuple[torch.Tensor, ...],
) -> torch.Tensor:
    targets, weights, kinds, sentiments = rows
    loss = (F.binary_cross_entropy_with_logits(harm, targets, reduction="none") * weights).sum()
    # Without a look at what is known: a GPU would be waited for.
    loss = loss + 0.5 * F.cross_entropy(expressibility, kinds, reduction="sum", ignore_index=-1, label_smoothing=0.02)
    told = F.binary_cross_entropy_with_logits(sentiment, sentiments.clamp(min=0).float() * 0.96 + 0.02, reduction="none")
    loss = loss + (told * (sentiments >= 0)).sum()
    return loss / len(targets)


@torch.no_grad()
def scores(model: TextClassifier, ids: list[list[int]], size: int = 64) -> tuple[np.ndarray, np.ndarray]:
    model.eval()
    harm, special = np.zeros((len(ids), 5)), np.zeros((len(ids), 5))
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
    for start in range(0, len(order), size):
        at = order[start : start + size]
        a, b, _ = model(*pad([ids[i] for i in at], model.words.device))
        harm[at], special[at] = a.cpu().numpy(), b.cpu().numpy()
    model.train()
    return harm, special


def glance(model: TextClassifier, rows: list[text_data.Row], ids: list[list[int]]) -> str:
    """A short look at the validation sample, for the log only."""
    harm, special = scores(model, ids)
    parts = []
    for c, category in enumerate(text_data.CATEGORIES):
        for name, keep in (
            ("all", lambda r: True),
            ("authored", lambda r: r.source.startswith("authored")),
            ("held-out", lambda r: r.source in text_data.HELD_OUT_SOURCES),
        ):
            at = [i for i, r in enumerate(rows) if r.weights[c] > 0 and keep(r)]
            labels = np.array([rows[i].targets[c] for i in at])
            if labels.sum() >= 5:
                parts.append(f"{category}/{name} {metrics.auprc(labels, harm[at, c]):.3f}")
    at = [i for i, r in enumerate(rows) if r.kind >= 0 and r.source.startswith("authored/")]
    right = np.mean([special[i].argmax() == rows[i].kind for i in at]) if at else float("nan")
    return " ".join(parts) + f" | kind {right:.3f}"


def fit_heads(model: TextClassifier, rows: list[text_data.Row], ids: list[list[int]], share: float, log: training_run.Log) -> None:
    """Logistic regression of both heads on the frozen encoder's embeddings."""
    device = model.words.device
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
    pooled = torch.zeros((len(ids), model.harm.in_features), device=device)
    model.eval()
    with torch.no_grad():
        for start in range(0, len(order), 64):
            at = order[start : start + 64]
            pooled[at] = model.pooled(*pad([ids[i] for i in at], device))
    model.train()
    log(f"embedded {len(ids)} texts")
    wanted = tuple(torch.from_numpy(part).to(device) for part in targets_of(rows, share))
    parameters = [p for name in HEADS for p in getattr(model, name).parameters()]
    optimiser = torch.optim.LBFGS(parameters, max_iter=150, line_search_fn="strong_wolfe")

    def step() -> torch.Tensor:
        optimiser.zero_grad()
        loss = loss_of(*model.heads(pooled), wanted)
        loss = loss + 1e-4 * sum(p.square().sum() for p in parameters)
        loss.backward()
        return loss

    before = float(optimiser.step(step).detach())
    log(f"heads fitted: loss {before:.4f} -> {float(step().detach()):.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder that holds moderation/train/")
    parser.add_argument("--base", type=Path, required=True, help="folder with the base weights and tokenizer.json")
    parser.add_argument("--backbone", choices=list(encoder.BACKBONES), default="minilm")
    parser.add_argument("--layers", type=int, nargs="*", help="layers of the base that are kept (all)")
    parser.add_argument("--out", type=Path, required=True, help="text.safetensors to write")
    parser.add_argument("--rows", type=int, default=90_000, help="texts drawn for tuning")
    parser.add_argument("--probe-rows", type=int, default=8_000, help="texts drawn for the heads alone")
    parser.add_argument("--start", type=Path, help="delta (text.safetensors) to go on from; of one with all layers, those kept are taken")
    parser.add_argument("--emphasis", choices=list(text_mixture.EMPHASIS), default="even")
    parser.add_argument("--opinion", type=Path, help="what an earlier model holds of all rows (text_teach.py): contradicted labels of public sources weigh less")
    parser.add_argument("--teacher", type=Path, help="what a teacher holds of all rows (text_teach.py): learnt beside the labels")
    parser.add_argument("--teacher-share", type=float, default=0.6, help="how far it is believed where a source has a label")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--frozen", type=int, default=0, help="lowest layers that stay as they are: less to compute")
    parser.add_argument("--span", type=int, default=40_000, help="texts that are drawn at a time")
    parser.add_argument("--drawers", type=int, default=0, help="processes that draw texts ahead, for a device that would wait for them")
    parser.add_argument("--look-every", type=int, default=900)
    parser.add_argument("--looked", type=int, default=3200, help="validation texts of a look")
    training_run.add_options(parser, seed=20, rank=32, rate=6e-4, checkpoint_every=200)
    args = parser.parse_args()
    device, log, settings = training_run.begin(args)

    kind = encoder.BACKBONES[args.backbone]
    tokenizer = text_data.plain_tokenizer(kind, args.base)
    start = load_file(args.start) if args.start else None
    if start and args.layers and f"encoder.layer.{len(args.layers)}.output.dense.bias.delta" in start:
        start = encoder.of_layers(start, args.layers)
    model = TextClassifier(load_base(args.base / kind.weights, args.layers, start), kind, args.rank).to(device)
    if args.bf16:
        model.in_bf16()
    rows = text_data.load(args.data)
    look = random.Random(args.seed).sample(
        [r for r in rows if r.side() == "validation" and r.sentiment < 0
         and (r.positive() or text_data.share_of(r.text) < 0.35)
         and r.source != "cold-zh"],
        args.looked * 4 // 5,
    ) + random.Random(args.seed).sample(
        [r for r in rows if r.source in text_data.HELD_OUT_SOURCES and r.text.isascii()], args.looked // 5
    )
    look_ids = tokenise(tokenizer, kind, look, 96, None)
    if args.opinion:
        rows = text_data.doubted(rows, text_data.said_of(rows, args.opinion))
    if args.teacher:
        rows = text_supply.taught(rows, args.teacher)

    pools = text_mixture.Pools(rows)
    if args.frozen:
        still = ("norm_0.", *(f"layers.{i}." for i in range(args.frozen)))
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(parameter.requires_grad and not name.startswith(still))
    heads = [p for n, p in model.named_parameters() if n.startswith(HEADS)]
    low_rank = [p for n, p in model.named_parameters() if "lora" in n]
    vectors = [p for n, p in model.named_parameters() if n.split(".")[-1] in ("weight", "bias")
               and not n.startswith(HEADS)]
    optimiser = torch.optim.AdamW(
        [
            {"params": low_rank, "lr": args.rate, "weight_decay": 0.01},
            {"params": vectors, "lr": args.rate, "weight_decay": 0.0},
            {"params": heads, "lr": args.rate, "weight_decay": 0.01},
        ],
        betas=(0.9, 0.98),
    )
    supply = Supply(pools, tokenizer, args)
    steps = supply.steps
    warm = max(1, steps // 25)
    bound = {k: settings[k] for k in ("seed", "rows", "rank", "batch", "tokens", "rate", "minutes", "start", "emphasis", "backbone", "layers", "opinion", "teacher", "teacher_share", "frozen", "bf16", "span")}
    checkpoint = training_run.Checkpoint(args.work, bound, model, optimiser)
    if not checkpoint.resume(device, log):
        if start:
            model.load_delta(start)
            log(f"start: {glance(model, look, look_ids)}")
        else:
            sample = pools.draw(args.probe_rows, args.seed + 1, args.emphasis)
            fit_heads(model, sample, tokenise(tokenizer, kind, sample, args.tokens, args.seed), args.teacher_share, log)
            log(f"probe: {glance(model, look, look_ids)}")
    done = checkpoint.done
    log(f"{steps} steps of {args.batch} texts")

    def planned() -> Iterator[tuple[Span, list[int]]]:
        first, skipped = divmod(done, supply.steps_each)
        for span in supply.spans(first):
            for at in span.batches[skipped:]:
                yield span, at
            skipped = 0

    running, since, clock, begun = torch.zeros((), device=device), 0, time.monotonic(), time.monotonic() - checkpoint.spent
    for step, (span, at) in enumerate(planned(), start=done):
        gone = step / steps
        if args.minutes:
            gone = max(gone, (time.monotonic() - begun) / 60 / args.minutes)
        if gone >= 1:
            log(f"out of time after {step} of {steps} steps")
            break
        for group in optimiser.param_groups:
            group["lr"] = args.rate * min((step + 1) / warm, (1 - gone) * steps / max(1, steps - warm))
        # Dropout follows the step, so a resumed run repeats what it would have done.
        torch.manual_seed(args.seed * 1_000_003 + step)
        lengths = torch.from_numpy(span.lengths[at])
        ids = torch.from_numpy(span.ids[at, : of_eights(int(lengths.max()))]).long().to(device)
        loss = loss_of(*model(ids, lengths.to(device)), tuple(torch.from_numpy(part[at]).to(device) for part in span.wanted))
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_([p for g in optimiser.param_groups for p in g["params"]], 1.0)
        optimiser.step()
        running, since = running + loss.detach(), since + len(at)
        if (step + 1) % 50 == 0:
            took = time.monotonic() - clock
            log(f"step {step + 1}/{steps} loss {float(running) / 50:.4f} {since / took:.0f} texts/s")
            running, since, clock = running * 0, 0, time.monotonic()
        if (step + 1) % args.checkpoint_every == 0 or step + 1 == steps:
            checkpoint.save(step + 1, time.monotonic() - begun)
            text_data.write(args.work / "latest.safetensors", lambda p: save_file(model.delta_tensors(), str(p)))
        if (step + 1) % args.look_every == 0:
            log(f"look: {glance(model, look, look_ids)}")
            clock = time.monotonic()
    log(f"final: {glance(model, look, look_ids)}")
    text_data.write(args.out, lambda p: save_file(model.delta_tensors(), str(p)))
    log(f"wrote {args.out}")


if __name__ == "__main__":
    main()
