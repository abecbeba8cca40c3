"""Server processes for the tests of deploy/: the real binary on a free port of
loopback, with the tiny text classifier of tests/fixtures. They answer within
milliseconds, and what they answer means nothing.
"""

from __future__ import annotations

import http.client
import json
import os
import secrets
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rust_sources import ROOT

BINARY = Path(os.environ.get("DICHROIC_TEST_BINARY", ROOT / "target" / "debug" / "dichroic"))
MODEL = "beta-3-haiku"
READY_SECONDS = 60
ANSWER_SECONDS = 30


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def clean_environment() -> dict[str, str]:
    """This process's environment without settings of a server."""
    return {name: value for name, value in os.environ.items() if not name.startswith("DICHROIC_")}


def make_key(keys_file: Path, *words: str) -> str:
    """A key as `dichroic keys create` makes it, with limits of its own."""
    command = [BINARY, "keys", "create", "--keys-file", keys_file, "--label", "test", *words]
    done = subprocess.run(
        command, cwd=keys_file.parent, env=clean_environment(), capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def eventually(true: Callable[[], bool], told: str, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, told
        time.sleep(0.05)


class Answer:
    """Status, headers, body and how long it took."""

    def __init__(self, status: int, headers: http.client.HTTPMessage, body: bytes, seconds: float) -> None:
        self.status, self.headers, self.body, self.seconds = status, headers, body, seconds


class Endpoint:
    """Where requests go: a server, or a balancer before servers. With a context it is asked over TLS."""

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        self.host, self.port, self.tls = host, port, tls

    def connect(self) -> http.client.HTTPConnection:
        if self.tls is not None:
            return http.client.HTTPSConnection(self.host, self.port, timeout=ANSWER_SECONDS, context=self.tls)
        return http.client.HTTPConnection(self.host, self.port, timeout=ANSWER_SECONDS)

    def get(self, path: str) -> tuple[int, str]:
        connection = self.connect()
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def ask(self, key: str, connection: http.client.HTTPConnection | None = None) -> Answer:
        """One text moderated, over the given connection or one of its own."""
        return self.post("/v1/guardians/text", key, {"text": "the train leaves at nine"}, connection=connection)

    def post(
        self,
        path: str,
        key: str,
        fields: Mapping[str, str],
        *,
        headers: Mapping[str, str] | None = None,
        connection: http.client.HTTPConnection | None = None,
    ) -> Answer:
        own = connection or self.connect()
        try:
            start = time.monotonic()
            body = json.dumps({"model": MODEL, **fields})
            sent = {"Authorization": f"Bearer {key}", "Content-Type": "application/json", **(headers or {})}
            own.request("POST", path, body, sent)
            answer = own.getresponse()
            read = answer.read()
            return Answer(answer.status, answer.headers, read, time.monotonic() - start)
        finally:
            if connection is None:
                own.close()


class Replica(Endpoint):
    """A server process, on a free port of loopback or where it is told; its log is the file `log` of its folder."""

    def __init__(
        self,
        folder: Path,
        keys_file: Path,
        tls: ssl.SSLContext | None = None,
        address: tuple[str, int] | None = None,
        /,
        **settings: str,
    ) -> None:
        assert BINARY.is_file(), f"{BINARY} is missing: run `cargo build` (make test-deploy does)"
        library = ROOT / "runtime/libonnxruntime.so"
        assert library.exists(), f"{library} is missing: run `make setup`"
        folder.mkdir(parents=True)
        super().__init__(*(address or ("127.0.0.1", free_port())), tls)
        self.folder = folder
        model = folder / "models" / MODEL / "build" / "text"
        shutil.copytree(ROOT / "tests/fixtures/tiny-text", model)
        environment = {
            **clean_environment(),
            "DICHROIC_MODELS_DIR": str(folder / "models"),
            "DICHROIC_MODELS": MODEL,
            "DICHROIC_RUNTIME_LIBRARY": str(library),
            "DICHROIC_KEYS_FILE": str(keys_file),
            # Nobody is told: keys that are made later take their time until they are read.
            "DICHROIC_API_KEY": secrets.token_urlsafe(32),
            "DICHROIC_LISTEN": f"{self.host}:{self.port}",
            "DICHROIC_THREADS": "2",
            **settings,
        }
        self.process = self._launch([str(BINARY), "serve"], environment)
        try:
            self._await_ready()
        except BaseException:
            self.stop()
            raise

    def _launch(self, command: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
        with open(self.folder / "log", "wb") as log:
            return subprocess.Popen(command, cwd=self.folder, env=environment, stdout=log, stderr=log)

    def _await_ready(self) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while True:
            assert self.process.poll() is None, self.log()[-2000:]
            try:
                if self.get("/readyz")[0] == 200:
                    return
            except OSError:
                pass
            assert time.monotonic() < deadline, "the server was not ready in time"
            time.sleep(0.05)

    def log(self) -> str:
        return (self.folder / "log").read_text(encoding="utf-8", errors="replace")

    def logged(self, message: str) -> list[dict[str, object]]:
        """The lines of the log whose message begins so."""
        # Under load the last line may be half written.
        whole = (line for line in self.log().splitlines(keepends=True) if line.endswith("\n"))
        lines = [json.loads(line) for line in whole if line.startswith("{")]
        return [line for line in lines if str(line.get("message", "")).startswith(message)]

    def counter(self, series: str) -> float:
        """The value of one series, labels included; a series that is not there is an error."""
        (line,) = [line for line in self.get("/metrics")[1].splitlines() if line.startswith(f"{series} ")]
        return float(line.rsplit(" ", 1)[1])

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(40)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Load:
    """Callers that ask without a pause until they are told to stop."""

    def __init__(self, endpoints: Sequence[Endpoint], key: str, callers: int = 3) -> None:
        self.answers: list[Answer] = []
        self.lost: list[Exception] = []
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._call, args=[endpoint, key]) for endpoint in endpoints for _ in range(callers)
        ]
        for thread in self._threads:
            thread.start()

    def _call(self, endpoint: Endpoint, key: str) -> None:
        connection = endpoint.connect()
        while not self._stop.is_set():
            try:
                self.answers.append(endpoint.ask(key, connection))
            except (OSError, http.client.HTTPException) as error:
                self.lost.append(error)
                connection.close()
                connection = endpoint.connect()
        connection.close()

    def end(self) -> None:
        """No further request; those under way go on."""
        self._stop.set()

    def stop(self) -> None:
        self.end()
        for thread in self._threads:
            thread.join()
