"""One side at a time: a program that measures and ends, or a server that is
waited for, asked, and ended by its process id. Everything is bounded by a clock.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

STOP_SECONDS = 20


class SideFailed(Exception):
    """A side could not be measured; the text says why."""


class OutOfTime(Exception):
    """The run's time is used up: nobody's fault, nothing to compare."""


class Clock:
    """The time that a run may take."""

    def __init__(self, seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._started, self._seconds = now, now(), seconds

    def spent(self) -> float:
        return self._now() - self._started

    def left(self) -> float:
        return self._seconds - self.spent()

    def limit(self, seconds: float) -> float:
        """The seconds, or what is left of the run."""
        if self.left() < 1:
            raise OutOfTime
        return min(seconds, self.left())


def ask(
    command: Sequence[str | Path],
    job: Mapping[str, Any],
    clock: Clock,
    seconds: float,
    cwd: Path,
    environment: Mapping[str, str],
) -> Any:
    """Gives a program its job and returns the JSON it answers."""
    limit = clock.limit(seconds)
    try:
        process = subprocess.Popen(
            list(map(str, command)),
            cwd=cwd,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    except OSError as error:
        raise SideFailed(f"{Path(command[0]).name} cannot be started ({error.strerror})") from error
    try:
        out, errors = process.communicate(json.dumps(job).encode(), timeout=limit)
    except subprocess.TimeoutExpired:
        if clock.left() < 1:
            raise OutOfTime from None
        raise SideFailed(f"no answer within {limit:.0f} s") from None
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    if process.returncode != 0:
        raise SideFailed(f"it ended with {process.returncode}: {last_line(errors)}")
    try:
        return json.loads(out)
    except ValueError:
        raise SideFailed(f"it answered something that is not JSON: {out[:80]!r}") from None


@contextmanager
def serving(
    command: Callable[[int], Sequence[str | Path]],
    ready: str,
    clock: Clock,
    seconds: float,
    cwd: Path,
    environment: Mapping[str, str],
) -> Iterator[int]:
    """Starts a server on a free loopback port, waits until `ready` answers 200, gives the port, ends it."""
    limit = clock.limit(seconds)
    port = free_port()
    with tempfile.TemporaryFile() as log:
        try:
            process = subprocess.Popen(
                list(map(str, command(port))),
                cwd=cwd,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        except OSError as error:
            raise SideFailed(f"the server cannot be started ({error.strerror})") from error
        try:
            until = time.monotonic() + limit
            while get(port, ready) != 200:
                if process.poll() is not None:
                    log.seek(0)
                    raise SideFailed(f"the server ended with {process.returncode}: {last_line(log.read())}")
                if time.monotonic() > until:
                    if clock.left() < 1:
                        raise OutOfTime
                    raise SideFailed(f"the server was not ready within {limit:.0f} s")
                time.sleep(0.1)
            yield port
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def settled(port: int, clock: Clock, seconds: float) -> None:
    """Waits until our server has measured the batches of its text classifiers: it does so once it is ready and idle."""
    until = time.monotonic() + clock.limit(seconds)
    while not measured_batches(read(port, "/metrics")):
        if time.monotonic() > until:
            raise SideFailed(f"the server had not measured its batches within {seconds:.0f} s")
        time.sleep(0.05)


def measured_batches(text: str) -> bool:
    """Whether these metrics name the batch of every text classifier; it is 0 until it is set or measured."""
    found = re.findall(r'^dichroic_batch_tokens\{component="text",[^}]*\} (\S+)$', text, re.MULTILINE)
    return all(float(value) > 0 for value in found)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def get(port: int, path: str) -> int:
    """The status, or 0 where nobody answers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


def read(port: int, path: str) -> str:
    """The text of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        text = answer.read().decode(errors="replace")
        if answer.status != 200:
            raise SideFailed(f"GET {path} answered {answer.status}")
        return text
    except (OSError, http.client.HTTPException) as error:
        raise SideFailed(f"GET {path} got no answer ({error!r})") from error
    finally:
        connection.close()


def post(port: int, path: str, body: Mapping[str, Any], key: str, seconds: float) -> Any:
    """The parsed answer to one request."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)
    try:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
        connection.request("POST", path, json.dumps(body), headers)
        answer = connection.getresponse()
        raw = answer.read()
        if answer.status != 200:
            raise SideFailed(f"POST {path} answered {answer.status}: {raw[:80]!r}")
        return json.loads(raw)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise SideFailed(f"POST {path} got no answer ({error!r})") from error
    finally:
        connection.close()


def last_line(output: bytes) -> str:
    lines = [line for line in output.decode(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip()[-200:] if lines else "it said nothing"
