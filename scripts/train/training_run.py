"""What every training has: its options, its log, its random numbers."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch


class Log:
    def __init__(self, path: Path) -> None:
        self.path, self.start = path, time.monotonic()

    def __call__(self, line: str) -> None:
        line = f"{time.monotonic() - self.start:7.0f}s  {line}"
        print(line, flush=True)
        with self.path.open("a", encoding="utf-8") as handle:
            handle.write(line + "\n")


def add_options(parser: argparse.ArgumentParser, seed: int, rank: int, rate: float, checkpoint_every: int) -> None:
    """The options that all trainings share; the numbers are their defaults."""
    parser.add_argument("--work", type=Path, required=True, help="folder for checkpoints and the log")
    parser.add_argument("--seed", type=int, default=seed)
    parser.add_argument("--rank", type=int, default=rank)
    parser.add_argument("--rate", type=float, default=rate)
    parser.add_argument("--minutes", type=float, default=0.0,
                        help="stop tuning after this long, the rate having come down by then (0: no limit)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--bf16", action="store_true",
                        help="matrix products in bfloat16: twice as fast on processors with AVX-512 BF16 or AMX")
    parser.add_argument("--checkpoint-every", type=int, default=checkpoint_every)


def begin(args: argparse.Namespace) -> tuple[torch.device, Log, dict]:
    """Seeds torch, makes the folders, and logs the settings, which it gives as plain JSON values."""
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    args.work.mkdir(parents=True, exist_ok=True)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    settings = json.loads(json.dumps(vars(args), default=str))
    log = Log(args.work / "train.log")
    log(f"settings {json.dumps(settings)}")
    return torch.device(args.device), log, settings
