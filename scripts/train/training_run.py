"""What every training has: its options, its log, its random numbers."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch

import text_data


class Log:
    def __init__(self, path: Path) -> None:
        self.path, self.start = path, time.monotonic()

    def __call__(self, line: str) -> None:
        line = f"{time.monotonic() - self.start:7.0f}s  {line}"
        print(line, flush=True)
        with self.path.open("a", encoding="utf-8") as handle:
            handle.write(line + "\n")


class Checkpoint:
    """What an interrupted run goes on from: the model, its optimiser, the steps done and the seconds spent on them."""

    def __init__(self, work: Path, settings: dict, model: torch.nn.Module, optimiser: torch.optim.Optimizer) -> None:
        """`settings` are those without which the run would be another one."""
        self.path, self.settings, self.model, self.optimiser = work / "checkpoint.pt", settings, model, optimiser
        self.done, self.spent = 0, 0.0

    def resume(self, device: torch.device, log: Log) -> bool:
        """Whether there was something to go on from."""
        if not self.path.exists():
            return False
        state = torch.load(self.path, weights_only=True, map_location=device)
        if state["settings"] != self.settings:
            raise SystemExit(f"{self.path} is of a run with other settings or lines: use another --work folder.")
        self.model.load_state_dict(state["model"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.done, self.spent = state["done"], state["spent"]
        log(f"resumed after {self.done} steps")
        return True

    def save(self, done: int, spent: float) -> None:
        state = {
            "settings": self.settings, "model": self.model.state_dict(), "optimiser": self.optimiser.state_dict(),
            "done": done, "spent": spent,
        }
        text_data.write(self.path, lambda path: torch.save(state, path))


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
