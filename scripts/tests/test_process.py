"""The server's process as whoever runs it meets it: it is told to stop while it starts, also as the first process of a
container; and what it logs cannot be written. The real binary, with the tiny text classifier of tests/fixtures.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import secrets
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import onnx
import pytest
from loopback_only import TAKES_ROOT
from tiny_replica import MODEL, Replica, eventually

# Exactly what a container's first process lacks: a default action for signals.
AS_FIRST = ["unshare", "--pid", "--fork", "--kill-child", "--"]
LEAVING_SECONDS = 3


class Starting(Replica):
    """A replica that nobody waits for, in a process namespace of its own if it is to be the first process there."""

    def __init__(self, folder: Path, *, first: bool, prepare: Callable[[Path], None] = lambda _: None, **settings: str) -> None:
        self.first, self.prepare = first, prepare
        super().__init__(folder, folder / "keys.json", **settings)

    def _launch(self, command: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
        self.prepare(self.folder / "models" / MODEL / "build" / "text")
        return super()._launch([*(AS_FIRST if self.first else []), *command], environment)

    def _await_ready(self) -> None:
        pass

    def send(self, number: signal.Signals) -> None:
        if not self.first:
            return self.process.send_signal(number)
        (child,) = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        os.kill(int(child), number)


def as_process(*, first: bool) -> object:
    marks = [pytest.mark.skipif(os.geteuid() != 0, reason=TAKES_ROOT)] if first else []
    return pytest.param(first, id="first process" if first else "any process", marks=marks)


@pytest.fixture(params=[as_process(first=False), as_process(first=True)])
def first(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def started() -> Iterator[list[Replica]]:
    """Those that a test started: none outlives it."""
    replicas: list[Replica] = []
    yield replicas
    for replica in replicas:
        if replica.process.poll() is None:
            replica.process.kill()
            replica.process.wait()


def bound(replica: Replica) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((replica.host, replica.port)) == 0


def never_read(component: Path) -> None:
    """Makes the manifest one whose reading takes until somebody writes it."""
    (component / "manifest.json").unlink()
    os.mkfifo(component / "manifest.json")


def hang(component: Path, longer_than: int = 0) -> None:
    """Makes the fixture's model one that does not come to an end over texts of more tokens than that: its answer goes
    through a loop of 10^12 rounds.
    """
    path = component / "model.onnx"
    graph = onnx.load(path)
    answer = graph.graph.output[0].name
    for node in graph.graph.node:
        node.output[:] = ["counted" if name == answer else name for name in node.output]
    text = f"""<ir_version: 9, opset_import: ["" : 18]>
    looped (float[n,m] counted, int32[n] lengths) => (float[n,m] {answer})
        <int32 most = {{{longer_than}}}, int64 many = {{1000000000000}}> {{
        longest = ReduceMax <keepdims = 0> (lengths)
        endless = Greater (longest, most)
        times = Cast <to = 7> (endless)
        rounds = Mul (times, many)
        yes = Constant <value = bool {{1}}> ()
        {answer} = Loop (rounds, yes, counted) <body = one (int64 i, bool go, float[n,m] x) => (bool on, float[n,m] y) {{
            on = Identity (go)
            y = Identity (x)
        }}>
    }}"""
    looped = onnx.parser.parse_model(text)
    graph.graph.initializer.extend(looped.graph.initializer)
    graph.graph.node.extend(looped.graph.node)
    onnx.checker.check_model(graph)
    onnx.save(graph, path)
    manifest = json.loads((component / "manifest.json").read_text(encoding="utf-8"))
    (listed,) = [file for file in manifest["files"] if file["path"] == "model.onnx"]
    listed.update(bytes=path.stat().st_size, sha256=hashlib.sha256(path.read_bytes()).hexdigest())
    (component / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_start_that_is_loading(
    tmp_path: Path, started: list[Replica], first: bool, number: signal.Signals
) -> None:
    replica = Starting(tmp_path / "server", first=first, prepare=never_read)
    started.append(replica)
    eventually(lambda: "device chosen" in replica.log(), "it did not begin")
    replica.send(number)
    assert replica.process.wait(LEAVING_SECONDS) == 0, replica.log()
    assert "stopped before it served" in replica.log() and "model loaded" not in replica.log()


def test_a_signal_ends_a_start_whose_first_inference_does_not_end(
    tmp_path: Path, started: list[Replica], first: bool
) -> None:
    replica = Starting(tmp_path / "server", first=first, prepare=hang)
    started.append(replica)
    eventually(lambda: bound(replica), "it opened no socket")
    replica.send(signal.SIGTERM)
    assert replica.process.wait(LEAVING_SECONDS) == 0, replica.log()
    assert "model loaded" in replica.log() and "listening" not in replica.log()


def test_a_stop_does_not_wait_for_a_model_that_hangs(tmp_path: Path, started: list[Replica]) -> None:
    """The server's own first text has fewer tokens than the one that is asked for here."""
    key = secrets.token_urlsafe(32)
    settings = {"DICHROIC_API_KEY": key, "DICHROIC_SHUTDOWN_GRACE_MS": "100"}
    replica = Starting(tmp_path / "server", first=False, prepare=lambda component: hang(component, 12), **settings)
    started.append(replica)
    eventually(lambda: "listening" in replica.log(), "it was never ready")
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(replica.post, "/v1/guardians/text", key, {"text": "the train leaves " * 5})
        metric = f'dichroic_queue_duration_seconds_count{{component="text",model="{MODEL}"}}'
        eventually(lambda: replica.counter(metric) > 1, "the text was not taken up")
        replica.send(signal.SIGTERM)
        # The grace, and the second after each of two cuts.
        assert replica.process.wait(3 + LEAVING_SECONDS) == 0, replica.log()
        with pytest.raises((OSError, http.client.HTTPException)):
            asked.result()
    assert "what did not end in time was cut" in replica.log()


# --- the log ----------------------------------------------------------------------


class Unheard(Replica):
    """A replica whose standard error takes nothing."""

    def __init__(self, folder: Path, sink: int, **settings: str) -> None:
        self.sink = sink
        super().__init__(folder, folder / "keys.json", **settings)

    def _launch(self, command: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
        (self.folder / "log").touch()
        return subprocess.Popen(command, cwd=self.folder, env=environment, stdout=subprocess.DEVNULL, stderr=self.sink)


def closed_pipe() -> int:
    reader, writer = os.pipe()
    os.close(reader)
    return writer


@pytest.mark.parametrize("sink", [closed_pipe, lambda: os.open("/dev/full", os.O_WRONLY)], ids=["closed pipe", "full disk"])
@pytest.mark.parametrize("form", ["json", "text"])
def test_a_log_that_cannot_be_written_keeps_nobody_from_an_answer(
    tmp_path: Path, sink: Callable[[], int], form: str
) -> None:
    key, writer = secrets.token_urlsafe(32), sink()
    try:
        replica = Unheard(tmp_path / "server", writer, DICHROIC_API_KEY=key, DICHROIC_LOG_FORMAT=form)
    finally:
        os.close(writer)
    try:
        assert replica.get("/livez")[0] == 200
        for _ in range(3):
            assert replica.ask(key).status == 200
        replica.process.terminate()
        assert replica.process.wait(20) == 0
    finally:
        replica.stop()
