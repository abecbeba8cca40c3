"""Trains a judge that tells which everyday situation a text is about and which attitudes fit it, in eight languages, and
writes its delta.

An encoder with a logit for each situation of `authored/situations` and for each attitude of `authored/attitudes`, over the
mean of its states. It learns from texts that were written for a situation, from others whose situation a reader told (the
better of two first; those of no situation are measured and not learned), from those whose fitting attitudes readers told, and,
of English ones whose mood alone is known, the mood: the sum over the situations of that mood. A tenth of the texts, chosen by a
hash, is kept aside, and with it those that generators keep aside. What people wrote stands in `situations.json.xz` beside the
model, with the probability from which a situation counts as known (`--least`). All randomness comes from `--seed`; an
interrupted run goes on from its checkpoint.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.numpy import load_file, save_file
from torch import Tensor, nn

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import attitude_data  # noqa: E402
import judge_data  # noqa: E402
import text_data  # noqa: E402
import training_run  # noqa: E402
from answer_judge import padded, planned  # noqa: E402
from forge import encoder, low_rank  # noqa: E402
from forge.judge import HEADS, TEXT_TOKENS  # noqa: E402
from text_calibrate import ranges_of  # noqa: E402
from text_model import Encoder, load_base  # noqa: E402
from text_scores import Classifier, softmax  # noqa: E402

# Of two situations that a reader told.
SHARES = (0.7, 0.3)
# Of a text whose situation a reader told, against one that was written for it: the first are as people write, and harder.
TOLD_WEIGHT = 2.0
# What the mood counts against the situation itself.
MOOD_WEIGHT = 0.7
# What the attitudes of a text count, summed, against its situation.
ATTITUDES_WEIGHT = 0.1
# Texts of which the mood alone is known.
MOODS = 4500
# Of the factors that a head is kept as.
HEAD_RANK = 32
ASIDE = 0.1
# Sequences that the ranges of the int8 graph are measured on.
RANGED = 1200


@dataclass(frozen=True)
class Row:
    text: str
    # By situation, and by good news, bad news and neither; zeros where nobody told.
    situations: np.ndarray
    moods: np.ndarray
    weight: float
    told: bool
    aside: bool
    # What is known of the attitudes that fit it.
    fitting: attitude_data.Fitting | None = None


class Teller(Encoder):
    """The encoder with a logit for each situation and each attitude."""

    head_names = ("situation", "attitude")

    def __init__(self, base: dict[str, Tensor], kind: encoder.Backbone, rank: int, situations: int, attitudes: int) -> None:
        super().__init__(base, kind, rank)
        self.situation = nn.Linear(self.width, situations)
        self.attitude = nn.Linear(self.width, attitudes)

    def forward(self, ids: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        states = F.dropout(self.pooled(ids, lengths)[:, : self.width], 0.1, self.training)
        return self.situation(states), self.attitude(states)


def kept_head(name: str, weight: np.ndarray, bias: np.ndarray, states: np.ndarray, rank: int = HEAD_RANK) -> dict[str, np.ndarray]:
    """The head as it is kept: factors of eight bits, and a bias that makes up for what they lose in the mean of such states."""
    a, b = low_rank.least_for(weight, states, rank)
    kept = low_rank.packed({f"{name}.weight.lora_a": a, f"{name}.weight.lora_b": b})
    lost = weight - low_rank.change(low_rank.unpacked(kept), f"{name}.weight")
    return {**kept, f"{name}.bias": (bias + lost @ states.mean(axis=0)).astype(np.float32)}


def packed(written: dict) -> bytes:
    """What people wrote, as it is kept."""
    content = json.dumps(written, ensure_ascii=False, separators=(",", ":")).encode()
    return lzma.compress(content, preset=9 | lzma.PRESET_EXTREME)


def read(names: Sequence[str], language: str | None = None) -> tuple[list[Row], np.ndarray]:
    """The texts whose situation was told, in one language or in all, and the moods [situations, 3] of the situations."""
    lines = text_data.authored_lines(text_data.AUTHORED, "situations")
    about = {line["situation"]: line["mood"] for line in lines if "text" not in line}
    # What is both, as a farewell is, counts half for either.
    of = {"g": (1, 0, 0), "b": (0, 1, 0), "n": (0, 0, 1), "m": (0.5, 0.5, 0)}
    moods = np.array([of[about[name]] for name in names], np.float32)
    rows = []
    for line in lines:
        if "text" not in line or line["lang"] != (language or line["lang"]):
            continue
        told, target = line.get("told", False), np.zeros(len(names), np.float32)
        found = [name for name in line["situations"] if name != "none"]
        for name, share in zip(found, SHARES if len(found) > 1 else (1.0,)):
            target[names.index(name)] = share
        aside = line.get("aside", False) or text_data.share_of(line["text"]) < ASIDE
        rows.append(Row(line["text"], target, target @ moods, TOLD_WEIGHT if told else 1.0, told, aside))
    return rows, moods


def loss_of(said: tuple[Tensor, Tensor], rows: Sequence[Row], moods: Tensor) -> Tensor:
    return of_situations(said[0], rows, moods) + ATTITUDES_WEIGHT * of_attitudes(said[1], rows)


def of_attitudes(logits: Tensor, rows: Sequence[Row]) -> Tensor:
    """The loss a text, summed over the attitudes of which anything is known."""
    at = [i for i, row in enumerate(rows) if row.fitting]
    if not at:
        return logits.sum() * 0.0
    fit, known = (torch.from_numpy(np.stack([getattr(rows[i].fitting, part) for i in at])).to(logits.device) for part in ("fit", "known"))
    losses = F.binary_cross_entropy_with_logits(logits[at].float(), fit, reduction="none") * known
    return losses.sum() / len(rows)


def of_situations(logits: Tensor, rows: Sequence[Row], moods: Tensor) -> Tensor:
    said = F.log_softmax(logits.float(), dim=-1)
    mood = torch.log((said.exp() @ moods).clamp(min=1e-6))
    situations, of_mood = (torch.from_numpy(np.stack(a)).to(logits.device) for a in ([r.situations for r in rows], [r.moods for r in rows]))
    weights = torch.tensor([r.weight for r in rows], device=logits.device)
    losses = -(situations * said).sum(-1) - MOOD_WEIGHT * (of_mood * mood).sum(-1)
    return (losses * weights).sum() / weights.sum().clamp(min=1.0)


def windows(tokenizer, kind: encoder.Backbone, texts: Sequence[str]) -> list[list[int]]:
    """The ids of texts alone, as the server has them."""
    found = tokenizer.encode_batch(list(texts), add_special_tokens=False)
    return [[kind.cls_id, *one.ids[:TEXT_TOKENS], kind.sep_id] for one in found]


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", type=Path, required=True, help="folder with the base weights of multilingual-e5-small")
    parser.add_argument("--model", type=Path, required=True, help="folder of the model that has the judge, e.g. models/gamma-1.5-flash")
    parser.add_argument("--out", type=Path, required=True, help="delta to write")
    parser.add_argument("--start", type=Path, help="judge.safetensors to go on from")
    parser.add_argument("--share", type=float, default=1.0, help="with --start: of the texts whose situation or mood is known so many")
    parser.add_argument("--least", type=float, required=True, help="probability from which a situation counts as known")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--passes", type=float, default=3.0)
    training_run.add_options(parser, seed=640, rank=16, rate=6e-4, checkpoint_every=100)
    args = parser.parse_args()
    if not args.start and args.share < 1:
        parser.error("--share is for a run with --start")
    device, log, settings = training_run.begin(args)

    kind = encoder.BACKBONES["multilingual-e5"]
    tokenizer, base = text_data.plain_tokenizer(kind, args.base), encoder.load_base(args.base / kind.weights)
    said = args.model / "situations.json.xz"
    written = json.loads(lzma.decompress(said.read_bytes()))
    rows, moods = read(written["names"])
    aside = [row for row in rows if row.aside]
    none = np.zeros(len(written["names"]), np.float32)
    alone = [Row(item.text, none, np.array(item.target, np.float32), 1.0, False, False) for item in judge_data.moods()[0]]
    learned = [row for row in rows if not row.aside and row.situations.any()]
    learned += random.Random(args.seed).sample(alone, MOODS)
    if args.share < 1:
        learned = random.Random(args.seed).sample(learned, round(args.share * len(learned)))
    fitting = attitude_data.read()
    # Texts whose situation is measured are not learned from for their attitudes either.
    measured = {row.text.strip() for row in aside}
    untold = np.zeros(3, np.float32)
    learned += [Row(one.text, none, untold, 0.0, False, False, one) for one in fitting if not one.aside and one.text not in measured]
    ids = windows(tokenizer, kind, [row.text for row in learned])
    plan = planned(ids, args.batch, args.passes, args.seed)
    log(f"{len(learned)} texts, {len(aside)} kept aside, {len(plan)} steps of {args.batch}")

    counts = [len(names) for names in attitude_data.names()]
    model = Teller(load_base(args.base / kind.weights), kind, args.rank, len(written["names"]), sum(counts)).to(device)
    if args.start:
        model.load_delta(load_file(args.start))
    if args.bf16:
        model.in_bf16()
    head = {*model.situation.parameters(), *model.attitude.parameters()}
    tuned = [p for p in model.parameters() if p.requires_grad]
    # A head may begin from nothing.
    groups = [{"params": [p for p in tuned if p not in head], "times": 1.0}, {"params": list(head), "times": 4.0}]
    optimiser = torch.optim.AdamW(groups, lr=args.rate, weight_decay=0.01, betas=(0.9, 0.98))
    bound = {k: v for k, v in settings.items() if k not in ("work", "out", "threads", "device", "checkpoint_every", "least")}
    bound["lines"] = hashlib.sha256(repr(ids).encode()).hexdigest()
    checkpoint = training_run.Checkpoint(args.work, bound, model, optimiser)
    checkpoint.resume(device, log)

    of_moods = torch.from_numpy(moods).to(device)
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
        loss = loss_of(model(*padded([ids[i] for i in at], device)), [learned[i] for i in at], of_moods)
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
    for name in Teller.head_names:
        delta |= kept_head(name, delta.pop(f"{name}.weight"), delta[f"{name}.bias"], states)
    for precision in ("float32", "int8"):
        graph = encoder.graph(encoder.merge(base, delta, HEADS), kind, precision, heads=HEADS)
        classifier = Classifier(graph, kind.special_ids, tokenizer, args.threads)
        told = [one for one in fitting if one.aside]
        logits = classifier.each(windows(tokenizer, kind, [one.text for one in told]), "attitude")
        log(f"{precision}, attitudes: {attitude_data.report(logits, told, counts)}")
        for name, some in (("written for one", [r for r in aside if not r.told]), ("told by a reader", [r for r in aside if r.told])):
            log(f"{precision}, {name}: {report(classifier.each(windows(tokenizer, kind, [r.text for r in some]), 'situation'), some, moods)}")
    text_data.write(args.out, lambda path: save_file(delta, str(path)))
    text_data.write(said, lambda path: path.write_bytes(packed({**written, "least": args.least})))


if __name__ == "__main__":
    main()
