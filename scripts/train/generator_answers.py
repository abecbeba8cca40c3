"""Lets a generator answer many texts, for a smaller one to learn from.

Greedily, in batches, by the trainable form of the model with its adapter merged,
so that it needs nothing but PyTorch, on a GPU too. Writes JSON lines in the form
of ours: `text`, `positive`, `negative`, `reply`. Which texts, and what of the answers is fit to
be learned, generator_widen.py says.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.numpy import load_file
from tokenizers import Tokenizer

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from forge import gguf_tokenizer, low_rank  # noqa: E402
from forge.decoder import Checkpoint  # noqa: E402
from generator_data import TASKS  # noqa: E402
from generator_model import Generator  # noqa: E402
from generator_trees import Prompts  # noqa: E402


@torch.no_grad()
def answers(model: Generator, prompts: list[list[int]], kept: torch.Tensor, end: int, most: int) -> list[list[int]]:
    """The likeliest continuation of each prompt, token by token, of the tokens `kept`, up to `end` or `most` tokens."""
    device, rows = model.words.device, len(prompts)
    lengths = torch.tensor([len(ids) for ids in prompts], device=device)
    width = int(lengths.max())
    ids = torch.zeros((rows, width), dtype=torch.long, device=device)
    for row, prompt in enumerate(prompts):
        ids[row, : len(prompt)] = torch.tensor(prompt, device=device)
    seen = torch.arange(width + most, device=device)[None, :] < lengths[:, None]
    places = torch.arange(width, device=device).expand(rows, width)
    before = torch.ones((width, width), dtype=torch.bool, device=device).tril()
    memory = model.memory(rows, width + most)
    states = model.states(ids, places, seen[:, None, :width] & before, memory, 0)
    states = states[torch.arange(rows, device=device), lengths - 1]
    head, said, open_ = model.words[kept], [], torch.ones(rows, dtype=torch.bool, device=device)
    for step in range(most):
        token = kept[F.linear(states.to(head.dtype), head).argmax(dim=-1)]
        said.append(torch.where(open_, token, end))
        open_ &= token != end
        if step % 8 == 7 and not bool(open_.any()):
            break
        seen[:, width + step] = True
        states = model.states(
            token[:, None], (lengths + step)[:, None], seen[:, None, : width + step + 1], memory, width + step
        )[:, 0]
    out = torch.stack(said, dim=1).tolist()
    return [row[: row.index(end)] if end in row else [] for row in out]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=Path, required=True, help="JSON lines with a `text` each")
    parser.add_argument("--gguf", type=Path, required=True)
    parser.add_argument("--adapter", type=Path, required=True, help="generator.safetensors of the model")
    parser.add_argument("--prompts", type=Path, required=True, help="the model's prompts.json")
    parser.add_argument("--vocabulary", type=Path, required=True, help="the tokens that its answers may hold")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=384, help="answers written at once")
    parser.add_argument("--most", type=int, default=72, help="tokens of an answer")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--minutes", type=float, default=1e9, help="stop after this long")
    args = parser.parse_args()
    device, begun = torch.device(args.device), time.monotonic()

    texts = [json.loads(line)["text"] for line in args.texts.read_text(encoding="utf-8").splitlines()]
    tokenizer_path = args.out.with_suffix(".tokenizer.json")
    gguf_tokenizer.write(Checkpoint(args.gguf).metadata, tokenizer_path)
    tokenizer = Tokenizer.from_file(str(tokenizer_path))
    prompts = Prompts(args.prompts, tokenizer)
    adapter = low_rank.unpacked(load_file(args.adapter))
    rank = max(len(value) for name, value in adapter.items() if name.endswith(".lora_a"))
    model = Generator(args.gguf, rank, torch.bfloat16 if device.type == "cuda" else torch.float32).to(device)
    model.load_adapter(adapter)
    model.merge()
    kept = np.flatnonzero(np.unpackbits(load_file(args.vocabulary)["kept"])[: len(model.words)])
    kept = torch.from_numpy(kept).to(device)
    print(f"{time.monotonic() - begun:.0f}s: {len(texts)} texts", flush=True)

    # By like length in a batch, all tasks of a text together, the batches by chance: what a run that is cut short has answered
    # is no choice of the short ones.
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    each = max(1, args.rows // len(TASKS))
    batches = [order[start : start + each] for start in range(0, len(order), each)]
    random.Random(1).shuffle(batches)
    with args.out.open("w", encoding="utf-8") as out:
        for number, batch in enumerate(batches):
            if time.monotonic() - begun > 60 * args.minutes:
                print(f"out of time after {number} of {len(batches)} batches", flush=True)
                break
            asked = [prompts.prefix + prompts.plain(texts[i]) + prompts.suffix[task] for i in batch for task in TASKS]
            said = iter(answers(model, asked, kept, prompts.end, args.most))
            for i in batch:
                given = {task: tokenizer.decode(ids).strip() for task, ids in zip(TASKS, said) if ids}
                out.write(json.dumps({"text": texts[i], **given, "lang": "en", "kind": "statement"}, ensure_ascii=False) + "\n")
            out.flush()
            if number % 10 == 0:
                print(f"{time.monotonic() - begun:.0f}s: {number + 1} of {len(batches)} batches", flush=True)
    print(f"{time.monotonic() - begun:.0f}s: wrote {args.out}", flush=True)


if __name__ == "__main__":
    main()
