"""What every measurement is given, and the ways to ask: our gauge, a peer's script, our server, any server by load."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from demo_support import Server, running

from .environment import Peers
from .figures import Outcome
from .material import Generator, Material, Photograph, Pictures, Text
from .mixed import Mixture
from .processes import Clock, SideFailed, ask, settled
from .served import settings

HERE = Path(__file__).resolve().parent
# A side that takes longer is stuck.
SIDE_SECONDS = 180


@dataclass
class Bench:
    """What every measurement needs."""

    root: Path
    binary: Path
    gauge: Path
    library: Path
    peers: Peers
    material: Material
    clock: Clock
    threads: int
    quick: bool

    @property
    def tokens(self) -> int:
        return 24 if self.quick else 64

    @property
    def seconds(self) -> float:
        return 1.5 if self.quick else 4.0

    @cached_property
    def generators(self) -> dict[str, Generator]:
        return {}

    def generator(self, model: str) -> Generator:
        if model not in self.generators:
            self.generators[model] = self.material.generator(model)
        return self.generators[model]

    @cached_property
    def text(self) -> Text:
        return self.material.text()

    @cached_property
    def pictures(self) -> Pictures:
        return self.material.pictures()

    @cached_property
    def photograph(self) -> Photograph:
        return self.material.photograph()

    @cached_property
    def mixture(self) -> Mixture:
        return self.material.mixture()

    @cached_property
    def installed(self) -> dict[str, list[Path]]:
        return self.material.installed()

    def ours(self, job: Mapping[str, Any]) -> Any:
        """What examples/gauge.rs answers to a job."""
        return ask([self.gauge], job, self.clock, SIDE_SECONDS, self.root, os.environ)

    def theirs(self, script: str, job: Mapping[str, Any]) -> Any:
        """What a script inside .venv-peers answers to a job."""
        command = [self.peers.python, HERE / script]
        return ask(command, job, self.clock, SIDE_SECONDS, self.root, self.peers.environment)

    @contextmanager
    def server(self, folder: Path, models: Sequence[str], **more: str) -> Iterator[Server]:
        """Our server with these identifiers of a models folder and `more` settings, once it has measured its batches."""
        self.clock.limit(SIDE_SECONDS)
        told = settings(folder, models, self.threads) | more
        with running(str(self.binary), self.root, **told, DICHROIC_RUNTIME_LIBRARY=str(self.library)) as server:
            settled(server.port, self.clock, SIDE_SECONDS)
            yield server


# What a side answered before it became figures; checks need tokens and scores.
Raw = dict[str, Any]
Measure = Callable[[Bench, Raw], Outcome]


def load(
    bench: Bench,
    port: int,
    key: str,
    path: str,
    bodies: Path,
    connections: int,
    seconds: float,
    rate: float | None = None,
) -> dict[str, Any]:
    """Asks a server over keep-alive connections; the gauge is the client of all of them.

    It begins again where the bodies end: however fast a server is, they last. None that is measured remembers any.
    """
    found = bench.ours(
        {
            "job": "load",
            "address": f"127.0.0.1:{port}",
            "path": path,
            "key": key,
            "bodies": str(bodies),
            "skip": 0,
            "repeat": True,
            "connections": connections,
            "seconds": seconds,
            "rate": rate,
        }
    )
    if found["refused"] or not found["answers"]:
        raise SideFailed(f"of {found['answers'] + found['refused']} requests {found['refused']} were refused")
    return found
