"""Tunes a generator on our answers and writes its adapter.

A text and its answers are one tree: the text once, and each answer as a branch
that sees the text and itself, at the positions that the server gives it. With
`--recipe` the frozen weights are quantised anew from time to time, so that the
delta makes up for what that loses. With `--preferred` it learns from answers
of a model that a reader put right: the right ones as ever, and beside each that
was refused to prefer the right one more than it did at the start (direct
preference optimisation, arXiv:2305.18290). All randomness comes from `--seed`; an
interrupted run goes on from its checkpoint.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import generator_data  # noqa: E402
import text_data  # noqa: E402
import training_run  # noqa: E402
from forge import gguf_tokenizer, low_rank  # noqa: E402
from forge.decoder import Checkpoint  # noqa: E402
from generator_model import Generator  # noqa: E402
from generator_trees import Pairs, Prompts, Tree, order  # noqa: E402


# A lead of so many nats at the start makes a pair an easy one.
EASY = 4.0


def padded(trees: list[Tree], device: torch.device) -> tuple[torch.Tensor, ...]:
    width = max(len(tree.ids) for tree in trees)
    ids = torch.zeros((len(trees), width), dtype=torch.long)
    positions = torch.zeros((len(trees), width), dtype=torch.long)
    # Padding is a branch of its own, which sees itself and that nobody sees.
    branch = torch.full((len(trees), width), -1, dtype=torch.long)
    places, tokens, owners, answers = [], [], [], 0
    for row, tree in enumerate(trees):
        n = len(tree.ids)
        ids[row, :n], positions[row, :n], branch[row, :n] = (
            torch.tensor(values) for values in (tree.ids, tree.positions, tree.branch)
        )
        places += [row * width + at for at, _, _ in tree.wanted]
        tokens += [token for _, token, _ in tree.wanted]
        owners += [answers + answer for _, _, answer in tree.wanted]
        answers += tree.answers
    before = torch.ones((width, width), dtype=torch.bool).tril()
    visible = (branch[:, None, :] == 0) & (branch[:, :, None] >= 0) | (branch[:, None, :] == branch[:, :, None])
    parts = ids, positions, visible & before, torch.tensor(places), torch.tensor(tokens), torch.tensor(owners)
    return tuple(part.to(device) for part in parts)


class Vocabulary:
    """The tokens that a training step tells apart: those of the answers, and others drawn by chance.

    The head of a small model costs as much as half its layers, nearly all of it
    for tokens of other scripts and of program code that no answer could hold.
    """

    OTHERS = 8192

    def __init__(self, model: Generator, trees: list[Tree], seed: int) -> None:
        size = len(model.words)
        told = {token for tree in trees for _, token, _ in tree.wanted}
        told |= set(random.Random(seed).sample(range(size), min(self.OTHERS, size)))
        kept = torch.tensor(sorted(told), device=model.words.device)
        self.words = model.words[kept]
        self.place = torch.full((size,), -1, device=kept.device)
        self.place[kept] = torch.arange(len(kept), device=kept.device)

    def losses(self, states: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        logits = F.linear(states.to(self.words.dtype), self.words).float()
        return F.cross_entropy(logits, self.place[tokens], reduction="none")


def surprises(
    model: Generator, trees: list[Tree], device: torch.device, vocabulary: Vocabulary | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Summed loss of each answer, tree by tree, against the whole vocabulary if none is given, and its tokens."""
    ids, positions, mask, places, tokens, owners = padded(trees, device)
    states = model.states(ids, positions, mask).flatten(0, 1)[places]
    losses = vocabulary.losses(states, tokens) if vocabulary else F.cross_entropy(model.logits(states), tokens, reduction="none")
    sums = torch.zeros(sum(tree.answers for tree in trees), device=device)
    return sums.index_add(0, owners, losses), torch.bincount(owners)


@torch.no_grad()
def leads(
    model: Generator, batches: list[list[Tree]], device: torch.device, vocabulary: Vocabulary
) -> list[torch.Tensor | None]:
    """The leads of the pairs of each batch that has any."""
    return [
        pairs.lead(surprises(model, batch, device, vocabulary)[0]) if pairs.better else None
        for batch, pairs in ((batch, Pairs(batch)) for batch in batches)
    ]


@torch.no_grad()
def glance(model: Generator, trees: list[Tree], device: torch.device) -> str:
    total, count, better, pairs = 0.0, 0, 0, 0
    for start in range(0, len(trees), 8):
        batch = trees[start : start + 8]
        found, (sums, tokens) = Pairs(batch), surprises(model, batch, device)
        total, count = total + float(sums[found.given].sum()), count + int(tokens[found.given].sum())
        better, pairs = better + int((found.lead(sums) > 0).sum()), pairs + len(found.better)
    of_pairs = f", the right answer likelier than the refused one in {better} of {pairs} pairs" if pairs else ""
    return f"kept aside: loss {total / count:.4f} over {count} tokens{of_pairs}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="folder that holds expression/train/ and reply/train/; without it our lines alone")
    parser.add_argument("--gguf", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, required=True, help="the model's prompts.json")
    parser.add_argument("--out", type=Path, required=True, help="generator.safetensors to write")
    parser.add_argument("--extra", type=Path, nargs="*", default=[], help="JSON lines of further checked answers, in the form of ours")
    parser.add_argument("--start", type=Path, help="adapter to go on from")
    parser.add_argument("--langs", nargs="*", default=["en"], help="languages to learn from")
    parser.add_argument("--most", type=int, default=10**6, help="lines of one language that a pass takes, of those with lines kept aside")
    parser.add_argument("--most-learned", type=int, default=10**6, help="as --most, of the lines written later")
    parser.add_argument("--preferred", nargs="+", choices=(*generator_data.PREFERRED, *generator_data.JUDGED, "plain_languages"), help="learn from these files of ours alone, but for a tenth of each; where they hold refused answers, to prefer the others to them")
    parser.add_argument("--right-alone", action="store_true", help="with --preferred: learn the right answers without those that were refused")
    parser.add_argument("--firmness", type=float, default=0.1, help="where answers were refused: the weight of a nat's lead (beta)")
    parser.add_argument("--passes", type=float, default=2.0)
    parser.add_argument("--recipe", type=Path, help="model.json: learn with the error of its generator's quantisation in view")
    parser.add_argument("--settle-every", type=int, default=50, help="steps between two quantisations, with --recipe")
    parser.add_argument("--budget", type=int, default=900, help="padded tokens of a step")
    parser.add_argument("--frozen", type=int, default=0, help="lowest layers whose deltas stay as they are: less to compute")
    training_run.add_options(parser, seed=70, rank=16, rate=3e-4, checkpoint_every=50)
    args = parser.parse_args()
    device, log, settings = training_run.begin(args)

    checkpoint = Checkpoint(args.gguf)
    tokenizer_path = args.work / "tokenizer.json"
    gguf_tokenizer.write(checkpoint.metadata, tokenizer_path)
    prompts = Prompts(args.prompts, Tokenizer.from_file(str(tokenizer_path)))
    del checkpoint

    train, aside = generator_data.split(generator_data.written(names=args.preferred))
    if args.right_alone:
        train = generator_data.right_alone(train)
    learned = [] if args.preferred else generator_data.learned()
    train, aside, learned = ([e for e in side if e.lang in args.langs and e.answers] for side in (train, aside, learned))
    extra = [
        generator_data.example_of(json.loads(line), "extra")
        for path in args.extra for line in path.read_text(encoding="utf-8").splitlines()
    ]
    extra = generator_data.split(extra)[0]
    rng = random.Random(args.seed)
    plan: list[list[Tree]] = []
    passes = args.passes
    while passes > 0:
        rows = generator_data.at_most(train, args.most, rng) + generator_data.at_most(learned, args.most_learned, rng) + extra
        rows += generator_data.public(args.data, rng) if args.data else []
        trees = [Tree(row, prompts) for row in rows]
        trees = [tree for tree in trees if len(tree.ids) <= 420]
        whole = order(trees, args.budget, rng)
        plan += whole[: round(len(whole) * min(passes, 1.0))]
        passes -= 1
    looked = random.Random(1).sample(aside, min(60, len(aside)))
    look = sorted((Tree(row, prompts) for row in looked), key=lambda t: len(t.ids))
    if not plan or not look:
        raise SystemExit("There are no lines of these languages to learn from and to keep aside: give others by --langs.")

    model = Generator(args.gguf, args.rank, torch.bfloat16 if args.bf16 else torch.float32).to(device)
    if args.start:
        model.load_adapter(low_rank.unpacked(load_file(args.start)))
    for layer in model.layers[: args.frozen]:
        layer.requires_grad_(False)
    parameters = [p for p in model.parameters() if p.requires_grad]
    vocabulary = Vocabulary(model, [tree for batch in plan for tree in batch], args.seed)
    optimiser = torch.optim.AdamW(parameters, lr=args.rate, weight_decay=0.0, betas=(0.9, 0.98))
    precision = json.loads(args.recipe.read_text(encoding="utf-8"))["components"]["generator"]["precision"] if args.recipe else None
    bound = {k: v for k, v in settings.items() if k not in ("work", "out", "threads", "device", "checkpoint_every")}
    bound["plan"] = hashlib.sha256(repr([tree.ids for batch in plan for tree in batch]).encode()).hexdigest()
    checkpoint = training_run.Checkpoint(args.work, bound, model, optimiser)
    if not checkpoint.resume(device, log):
        log(glance(model, look, device))
    done = checkpoint.done
    log(f"{len(train) + len(learned)} lines of ours, {len(extra)} more, {len(plan)} steps, {sum(len(t.ids) for b in plan for t in b)} tokens")

    if precision:
        model.settle(args.gguf, precision)
        log("quantised: " + glance(model, look, device))
    at_start: list[torch.Tensor | None] = []
    if any(tree.pairs for batch in plan for tree in batch):
        known = args.work / "leads.pt"
        if done:
            at_start = torch.load(known, weights_only=True, map_location=device)
        else:
            at_start = leads(model, plan, device, vocabulary)
            text_data.write(known, lambda p: torch.save(at_start, p))
            log("the leads of the model at the start are measured")
    begun, clock, since, running, counted = time.monotonic() - checkpoint.spent, time.monotonic(), 0, 0.0, 0
    warm = max(1, len(plan) // 25)
    gains: list[float] = []
    for step in range(done, len(plan)):
        gone = step / len(plan)
        if args.minutes:
            gone = max(gone, (time.monotonic() - begun) / 60 / args.minutes)
        if gone >= 1:
            log(f"out of time after {step} of {len(plan)} steps")
            break
        if precision and step > done and step % args.settle_every == 0:
            model.settle(args.gguf, precision)
        for group in optimiser.param_groups:
            group["lr"] = args.rate * min((step + 1) / warm, (1 - gone) * len(plan) / (len(plan) - warm))
        pairs, (sums, tokens) = Pairs(plan[step]), surprises(model, plan[step], device, vocabulary)
        loss, count = sums[pairs.given].sum(), int(tokens[pairs.given].sum())
        aim = loss / count
        if pairs.better:
            gain = pairs.lead(sums) - at_start[step]
            # What it would hardly have said counts little beside the other pairs of its step.
            counts = torch.tensor(pairs.counts, device=device) * torch.sigmoid(-at_start[step] / EASY)
            aim = aim - (counts * F.logsigmoid(args.firmness * gain)).sum() / counts.sum()
            gains.append(float(gain.detach().mean()))
        optimiser.zero_grad(set_to_none=True)
        aim.backward()
        if torch.isfinite(torch.nn.utils.clip_grad_norm_(parameters, 1.0)):
            optimiser.step()
            running, counted = running + float(loss.detach()), counted + count
        else:
            # One such step would end the run, as the deltas are no numbers any more; seen in bfloat16 on a GPU.
            log(f"step {step + 1}: no finite gradient, left out")
        since += sum(len(tree.ids) for tree in plan[step])
        if (step + 1) % 20 == 0:
            gained = f" pairs {sum(gains) / len(gains):+.1f} nats" if gains else ""
            log(f"step {step + 1}/{len(plan)} loss {running / max(counted, 1):.4f}{gained} {since / (time.monotonic() - clock):.0f} tokens/s")
            running, counted, since, clock = 0.0, 0, 0, time.monotonic()
            gains.clear()
        if (step + 1) % args.checkpoint_every == 0 or step + 1 == len(plan):
            checkpoint.save(step + 1, time.monotonic() - begun)
            text_data.write(args.work / "latest.safetensors", lambda p: save_file(low_rank.packed(model.adapter(), low_rank.OF_GENERATORS), str(p)))
    if precision:
        model.settle(args.gguf, precision)
    log(glance(model, look, device))
    text_data.write(args.out, lambda p: save_file(low_rank.packed(model.adapter(), low_rank.OF_GENERATORS), str(p)))
    log(f"wrote {args.out}")


if __name__ == "__main__":
    main()
