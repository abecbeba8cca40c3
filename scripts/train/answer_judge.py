"""Trains the judge of generated answers and writes its delta.

An encoder that reads a text with one answer to it, `cls text sep answer sep`, and tells how likely a reader finds the
answer right: as a reply, a positive or a negative expression, each by a logit of its own. Of a text alone, `cls text sep`,
three further logits tell its mood: good news, bad news, neither; a second head tells which of the sentences that were written
beforehand fit it. Learns from answers of a generator's own that readers
told apart (judge_data.READ, `sampled`, `sampled_more`), from the judged moods of our lines, and from the sentences that
readers found to fit (`attitudes`). A tenth of the judged
texts, chosen by a hash, is kept aside. All randomness comes from `--seed`; an interrupted run goes on from its checkpoint.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.numpy import load_file
from safetensors.torch import save_file
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent))

import attitude_data  # noqa: E402
import generator_data  # noqa: E402
import text_data  # noqa: E402
import training_run  # noqa: E402
from forge import encoder  # noqa: E402
from forge.judge import VERDICTS  # noqa: E402
from judge_data import Item, judged, moods, sentences, told, told_apart, windows  # noqa: E402
from text_model import Encoder, load_base  # noqa: E402


# What the sentences of a text count, summed, against an answer.
SENTENCES_WEIGHT = 0.1


class AnswerJudge(Encoder):
    """The encoder with a logit for each of VERDICTS, over the mean and the highest of its states, and one for each sentence
    that could fit, over the mean."""

    head_names = ("verdict", "attitude")

    def __init__(self, base: dict[str, Tensor], kind: encoder.Backbone, rank: int, frozen: int = 0) -> None:
        super().__init__(base, kind, rank)
        self.verdict = nn.Linear(2 * self.width, len(VERDICTS))
        self.attitude = nn.Linear(self.width, sum(map(len, attitude_data.names(replies=True))))
        self.frozen = [self.norm_0, *self.layers[:frozen]] if frozen else []
        for part in self.frozen:
            part.requires_grad_(False)
        # Of modules that a delta was loaded for: what stays as it is then is no longer the base's.
        self.loaded: set[str] = set()

    def forward(self, ids: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        states = F.dropout(self.pooled(ids, lengths), 0.1, self.training)
        return self.verdict(states), self.attitude(states[:, : self.width])

    def load_delta(self, delta: Mapping[str, np.ndarray]) -> None:
        """Goes on from a delta that was kept, where what stayed as it was is not in it."""
        untouched = {name: value.numpy() for name, value in super().delta_tensors().items()}
        super().load_delta({**untouched, **delta})
        self.loaded = {name.rsplit(".", 2)[0] for name in delta}

    def delta_tensors(self) -> dict[str, Tensor]:
        """The delta without what is as in the base."""
        frozen = {module.name for part in self.frozen for module in part.modules() if hasattr(module, "name")}
        still = tuple(f"{name}." for name in frozen - self.loaded)
        return {name: value for name, value in super().delta_tensors().items() if not name.startswith(still)}


def padded(rows: Sequence[list[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    ids = torch.zeros((len(rows), max(map(len, rows))), dtype=torch.long)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row)
    return ids.to(device), torch.tensor([len(row) for row in rows], device=device)


def loss_of(said: tuple[Tensor, Tensor], items: Sequence[Item]) -> Tensor:
    logits, of_sentences = said
    tasks = len(generator_data.TASKS)
    loss = logits.new_zeros(())
    answers = [i for i, item in enumerate(items) if item.task is not None]
    if answers:
        found = logits[answers, [items[i].task for i in answers]]
        target, weight = (logits.new_tensor([value(items[i]) for i in answers]) for value in (lambda i: i.target[0], lambda i: i.weight))
        loss = loss + (F.binary_cross_entropy_with_logits(found, target, reduction="none") * weight).sum()
    alone = [i for i, item in enumerate(items) if item.task is None and item.target]
    if alone:
        target = logits.new_tensor([items[i].target for i in alone])
        loss = loss - (torch.log_softmax(logits[alone, tasks:], dim=1) * target).sum()
    read = [i for i, item in enumerate(items) if item.fitting]
    if read:
        fit, known = (torch.from_numpy(np.stack([getattr(items[i].fitting, part) for i in read])).to(logits.device) for part in ("fit", "known"))
        losses = F.binary_cross_entropy_with_logits(of_sentences[read].float(), fit, reduction="none") * known
        loss = loss + SENTENCES_WEIGHT * losses.sum()
    return loss / len(items)


@torch.no_grad()
def said(model: AnswerJudge, rows: Sequence[list[int]], head: int = 0) -> np.ndarray:
    """The logits of each row, of the verdicts or of the second head."""
    model.eval()
    out = np.zeros((len(rows), getattr(model, model.head_names[head]).out_features), np.float32)
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    for start in range(0, len(order), 64):
        at = order[start : start + 64]
        out[at] = model(*padded([rows[i] for i in at], model.words.device))[head].float().cpu().numpy()
    model.train()
    return out


def planned(rows: Sequence[list[int]], batch: int, passes: float, seed: int) -> list[list[int]]:
    """Batches of items of like length, in random order, pass by pass."""
    rng = random.Random(seed)
    out: list[list[int]] = []
    while passes > 0:
        order = list(range(len(rows)))
        rng.shuffle(order)
        found: list[list[int]] = []
        for start in range(0, len(order), 50 * batch):
            span = sorted(order[start : start + 50 * batch], key=lambda i: len(rows[i]))
            groups = [span[i : i + batch] for i in range(0, len(span), batch)]
            rng.shuffle(groups)
            found += groups
        out += found[: round(len(found) * min(passes, 1.0))]
        passes -= 1
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", type=Path, required=True, help="folder with the base weights of mpnet")
    parser.add_argument("--out", type=Path, required=True, help="delta to write")
    parser.add_argument("--start", type=Path, help="judge.safetensors to go on from")
    parser.add_argument("--known", nargs="*", default=[], help="with --start: files of judged answers that it has learned from")
    parser.add_argument("--share", type=float, default=1.0, help="of what is known, and of all moods, so much is taken, drawn by chance")
    parser.add_argument("--frozen", type=int, default=4, help="lowest layers that stay as they are: less to compute, and to keep")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--passes", type=float, default=1.5)
    parser.add_argument("--look-every", type=int, default=200)
    training_run.add_options(parser, seed=260, rank=8, rate=5e-4, checkpoint_every=100)
    args = parser.parse_args()
    if not args.start and (args.known or args.share < 1):
        parser.error("--known and --share are for a run with --start")
    device, log, settings = training_run.begin(args)

    kind = encoder.BACKBONES["mpnet"]
    tokenizer = text_data.plain_tokenizer(kind, args.base)
    learned, aside = moods()
    everything = judged() + told_apart() + learned
    items = [item for item in everything if not generator_data.judged_aside(item.text)]
    drawn = random.Random(args.seed)
    items = [item for item in items if item.file and item.file not in args.known or drawn.random() < args.share]
    items += sentences(aside=False)
    look = [item for item in judged() if generator_data.judged_aside(item.text)] + [item for item in aside if generator_data.judged_aside(item.text)]
    read = sentences(aside=True)
    rows, look_rows, read_rows = (windows(tokenizer, kind, some) for some in (items, look, read))
    plan = planned(rows, args.batch, args.passes, args.seed)
    log(f"{len(items)} items, {len(look)} kept aside, {len(plan)} steps of {args.batch}")

    model = AnswerJudge(load_base(args.base / kind.weights), kind, args.rank, args.frozen).to(device)
    if args.start:
        start = load_file(args.start)
        model.load_delta(start)
        if "attitude.weight" not in start:
            # A finished one has its rare replies lifted already.
            lift = attitude_data.lifted(np.zeros(model.attitude.out_features), [item.fitting for item in sentences(aside=False)])
            model.attitude.bias.data -= torch.from_numpy(lift).to(device)
    if args.bf16:
        model.in_bf16()
    head = set(model.attitude.parameters())
    tuned = [p for p in model.parameters() if p.requires_grad]
    # The head of sentences may begin from nothing.
    groups = [{"params": [p for p in tuned if p not in head], "times": 1.0}, {"params": list(head), "times": 4.0}]
    optimiser = torch.optim.AdamW(groups, lr=args.rate, weight_decay=0.01, betas=(0.9, 0.98))
    bound = {k: v for k, v in settings.items() if k not in ("work", "out", "threads", "device", "checkpoint_every", "look_every")}
    bound["lines"] = hashlib.sha256(repr(rows).encode()).hexdigest()
    checkpoint = training_run.Checkpoint(args.work, bound, model, optimiser)
    checkpoint.resume(device, log)

    def looked() -> str:
        of_sentences = attitude_data.report(said(model, read_rows, 1), [item.fitting for item in read], counts)
        return f"{told(said(model, look_rows), look)}; {of_sentences}"

    counts = [len(names) for names in attitude_data.names(replies=True)]
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
            group["lr"] = args.rate * group["times"] * min((step + 1) / warm, (1 - gone) * len(plan) / max(1, len(plan) - warm))
        # Dropout follows the step, so a resumed run repeats what it would have done.
        torch.manual_seed(args.seed * 1_000_003 + step)
        loss = loss_of(model(*padded([rows[i] for i in at], device)), [items[i] for i in at])
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(tuned, 1.0)
        optimiser.step()
        running, since = running + float(loss.detach()), since + 1
        if (step + 1) % 50 == 0:
            log(f"step {step + 1}/{len(plan)} loss {running / since:.4f} {since * args.batch / (time.monotonic() - clock):.0f} items/s")
            running, since, clock = 0.0, 0, time.monotonic()
        if (step + 1) % args.checkpoint_every == 0 or step + 1 == len(plan):
            checkpoint.save(step + 1, time.monotonic() - begun)
        if (step + 1) % args.look_every == 0:
            log(f"kept aside: {looked()}")
            clock = time.monotonic()
    log(f"kept aside at the end: {looked()}")
    text_data.write(args.out, lambda p: save_file(model.delta_tensors(), str(p)))
    log(f"wrote {args.out}")


if __name__ == "__main__":
    main()
