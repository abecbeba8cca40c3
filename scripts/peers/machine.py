"""How the server is as a process: its start beside ONNX Runtime's, its processor time at rest, its memory.

All with every model that is set up. Some sides take minutes and differ little
from round to round: those are measured once.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from pathlib import Path

from demo_support import Server

from . import procfs
from .bench import SIDE_SECONDS, Bench, Measure, Raw
from .figures import Outcome
from .material import graphs
from .mixed import ask, few, order
from .rows import TOGETHER

# What the allocators and threads of a server do after its last answer is over by then.
SETTLE_SECONDS = 5.0
# Of a whole run and of a quick one.
REST_SECONDS = (30.0, 10.0)
EARLY, LATE = 1_000, (10_000, 2_000)
MEMORY_SECONDS = 600
BY_IDENTIFIER = "machine/identifiers"


def _served(bench: Bench) -> tuple[Path, list[str]]:
    return bench.root / "models", list(bench.installed)


def _folders(bench: Bench) -> list[Path]:
    return [folder for folders in bench.installed.values() for folder in folders]


def _start(bench: Bench, raw: Raw) -> Outcome:
    files = [path for folder in _folders(bench) for path in sorted(folder.iterdir()) if path.is_file()]
    _read_through([bench.binary, bench.library, *files])
    with bench.server(*_served(bench)) as server:
        return {"ready": server.ready_after}


def _onnxruntime(bench: Bench, raw: Raw) -> Outcome:
    # As src/runtime/instructions.rs asks for.
    has = set(re.findall(r"\b(?:avx2|fma|f16c)\b", Path("/proc/cpuinfo").read_text(encoding="utf-8")))
    files = graphs(_folders(bench), ours=len(has) == 3)
    _read_through(files)
    found = bench.theirs("open_onnx.py", {"graphs": [str(path) for path in files], "threads": bench.threads})
    return {"open": found["seconds"]}


def _idle(bench: Bench, raw: Raw) -> Outcome:
    folder, models = _served(bench)
    span = REST_SECONDS[bench.quick]
    with bench.server(folder, models) as server:
        # One that has only started could rest because it has never woken its threads.
        ask(server, few(models), bench.mixture, bench.clock, SIDE_SECONDS)
        time.sleep(bench.clock.limit(SETTLE_SECONDS))
        before, start = _ticks(server), time.perf_counter()
        time.sleep(bench.clock.limit(span))
        after, seconds = _ticks(server), time.perf_counter() - start
    return procfs.idle(before, after, os.sysconf("SC_CLK_TCK"), seconds)


def _memory(bench: Bench, raw: Raw) -> Outcome:
    folder, models = _served(bench)
    asked = order(LATE[bench.quick], models)
    figures = {}
    with bench.server(folder, models) as server:
        for name, part in (("early", asked[:EARLY]), ("late", asked[EARLY:])):
            ask(server, part, bench.mixture, bench.clock, MEMORY_SECONDS)
            figures[name] = _resident(bench, server)
    return figures


def _by_identifier(bench: Bench, raw: Raw) -> Outcome:
    folder, models = _served(bench)
    groups = {model: [model] for model in models}
    if len(models) > 1:
        groups[TOGETHER] = models
    figures = {}
    for name, served in groups.items():
        with bench.server(folder, served) as server:
            ask(server, few(served), bench.mixture, bench.clock, SIDE_SECONDS)
            figures[name] = _resident(bench, server)
    return figures


def _read_through(paths: Sequence[Path]) -> None:
    """Brings files into the page cache."""
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.read(1 << 22):
                pass


def _ticks(server: Server) -> int:
    return procfs.ticks(Path(f"/proc/{server.pid}/stat").read_text(encoding="utf-8", errors="replace"))


def _resident(bench: Bench, server: Server) -> float:
    time.sleep(bench.clock.limit(SETTLE_SECONDS))
    return procfs.resident(Path(f"/proc/{server.pid}/status").read_text(encoding="utf-8", errors="replace"))


SIDES: dict[str, Measure] = {"machine/start": _start, "machine/onnxruntime": _onnxruntime}
ONCE: dict[str, Measure] = {
    "machine/idle": _idle,
    "machine/memory": _memory,
    BY_IDENTIFIER: _by_identifier,
}
