"""What the developer of a caller relies on: the OpenAPI document of a running
server is valid, and the programs in examples/ work against it, wait when they
are told to, and say what went wrong.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import openapi_spec_validator
import pytest
import requests
from running_server import MODELS, ROOT, Running, start

EXAMPLES = ROOT / "examples"
CATEGORIES = ["sexual", "hate", "self_harm", "violence", "defamation"]
OPERATIONS = {
    "/v1/prisms/text": {"positive", "negative"},
    "/v1/sunshines/text": {"text"},
    "/v1/guardians/text": {"flagged", "categories", "category_scores"},
    "/v1/guardians/image": {"flagged", "categories", "category_scores"},
}
# The last one is the smallest.
MODEL = MODELS[-1] if MODELS else ""

needs_model = pytest.mark.skipif(not MODELS, reason="no model is set up that these tests know")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    running = start(tmp_path_factory.mktemp("server"), DICHROIC_MODELS=MODEL)
    try:
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="module")
def rust() -> Path:
    target = ROOT / "target" / "examples"
    package = ["--manifest-path", EXAMPLES / "rust" / "Cargo.toml", "--target-dir", target]
    subprocess.run(["cargo", "build", "--locked", "--quiet", *package], check=True)
    return target / "debug" / "dichroic-example"


@pytest.fixture(params=["curl", "python", "javascript", "rust"])
def example(request: pytest.FixtureRequest) -> list[str | Path]:
    """The command of an example."""
    match request.param:
        case "curl":
            return ["bash", EXAMPLES / "curl.sh"]
        case "python":
            return [sys.executable, EXAMPLES / "example.py"]
        case "javascript":
            return ["node", EXAMPLES / "example.mjs"]
        case _:
            return [request.getfixturevalue("rust")]


def call(example: list[str | Path], url: str, key: str | None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DICHROIC_")}
    environment |= {"DICHROIC_URL": url} | ({"DICHROIC_KEY": key} if key else {})
    return subprocess.run([*example, MODEL], env=environment, capture_output=True, text=True, timeout=240)


def answers(said: str) -> dict[str, dict[str, Any]]:
    """Each line is a path and a JSON object."""
    return {path: json.loads(body) for path, body in (line.split(" ", 1) for line in said.splitlines())}


@needs_model
def test_the_document_is_valid(server: Running) -> None:
    openapi_spec_validator.validate(requests.get(f"{server.url}/openapi.json", timeout=10).json())


@needs_model
def test_an_example_asks_all_four_operations(server: Running, example: list[str | Path]) -> None:
    done = call(example, server.url, server.key)
    assert done.returncode == 0, done.stderr
    said = answers(done.stdout)
    assert {path: set(body) for path, body in said.items()} == OPERATIONS
    assert all(said["/v1/prisms/text"].values()) and said["/v1/sunshines/text"]["text"]
    for path in ("/v1/guardians/text", "/v1/guardians/image"):
        found, scores = said[path]["categories"], said[path]["category_scores"]
        assert sorted(found) == sorted(scores) == sorted(CATEGORIES)
        assert said[path]["flagged"] is any(found.values())
    threat = said["/v1/guardians/text"]["category_scores"]
    assert max(threat, key=threat.get) == "violence"


@needs_model
def test_an_example_says_why_it_was_refused(server: Running, example: list[str | Path]) -> None:
    done = call(example, server.url, "dk_00000000_wrong")
    assert done.returncode != 0 and done.stdout == ""
    assert "/v1/prisms/text" in done.stderr and "401" in done.stderr and "invalid_api_key" in done.stderr
    assert done.stderr.count("\n") == 1, "one line, no trace"
    without = call(example, server.url, None)
    assert without.returncode != 0 and "set DICHROIC_KEY" in without.stderr


@dataclass
class Busy:
    """A server that is too busy for a number of requests, and then answers each with the same object."""

    refusals: int
    wait: int
    url: str = ""
    asked: list[tuple[float, str, bytes]] = field(default_factory=list)


@contextmanager
def busy(refusals: int, wait: int) -> Iterator[Busy]:
    state = Busy(refusals, wait)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            state.asked.append((time.monotonic(), self.path, body))
            refused = len(state.asked) <= state.refusals
            error = {
                "type": "rate_limit_error",
                "code": "rate_limit_exceeded",
                "message": "the usage limit of this API key is exceeded; see the Retry-After header",
                "param": None,
                "request_id": "made-up",
            }
            answer = json.dumps({"error": error} if refused else {"asked": len(state.asked)}).encode()
            self.send_response(429 if refused else 200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(answer)))
            if refused:
                self.send_header("retry-after", str(state.wait))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listener:
        state.url = f"http://127.0.0.1:{listener.server_port}"
        threading.Thread(target=listener.serve_forever, daemon=True).start()
        yield state
        listener.shutdown()


def test_an_example_waits_as_long_as_it_is_told(example: list[str | Path]) -> None:
    with busy(refusals=1, wait=1) as server:
        done = call(example, server.url, "dk_any")
    assert done.returncode == 0, done.stderr
    assert list(answers(done.stdout)) == list(OPERATIONS)
    (first, path, body), (second, *again), *rest = server.asked
    assert again == [path, body] and second - first >= 1
    assert len(rest) == 3 and rest[-1][0] - second < 1, "only the refused one was waited for"


def test_an_example_gives_up_in_the_end(example: list[str | Path]) -> None:
    with busy(refusals=100, wait=0) as server:
        done = call(example, server.url, "dk_any")
    assert done.returncode != 0 and "429" in done.stderr and "rate_limit_exceeded" in done.stderr
    assert len(server.asked) == 5
