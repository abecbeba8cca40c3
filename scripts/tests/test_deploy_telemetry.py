"""Traces and logs of the running server: what reaches a collector and what stands
in a line of the log, as docs/operations.md says, and that no text and no key is
among it. Run by `make test-deploy`.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from rust_sources import read
from tiny_replica import MODEL, Answer, Replica, make_key

PATH = "/v1/guardians/text"
SPAN = f"POST {PATH}"
TEXT = "Zanzibar pineapples never listen to my aunt Griselda."
WORDS = [word for word in re.findall(r"\w+", TEXT) if len(word) > 6]
REQUEST_ID = "one-of-a-kind"
SENT = {"OTEL_EXPORTER_OTLP_HEADERS": "x-collector-token=blue-harbour"}


@dataclass(frozen=True)
class Post:
    """What a collector was sent."""

    path: str
    headers: dict[str, str]
    body: bytes


class Collector:
    """Takes whatever is posted to it, on a port of loopback."""

    def __init__(self) -> None:
        self.posts: list[Post] = []
        posts = self.posts

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                posts.append(Post(self.path, {name.lower(): value for name, value in self.headers.items()}, body))
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=[0.05])
        self.thread.start()

    def setting(self) -> dict[str, str]:
        return {"DICHROIC_OTLP_ENDPOINT": f"http://127.0.0.1:{self.server.server_port}"}

    def bytes(self) -> bytes:
        """Everything that arrived."""
        return b"".join(post.body for post in self.posts)

    def stop(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture(autouse=True)
def nothing_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what a test sets may change what is traced."""
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.stop()


@pytest.fixture
def key(tmp_path: Path) -> str:
    return make_key(tmp_path / "keys.json")


@pytest.fixture
def start(tmp_path: Path, key: str) -> Iterator[Callable[..., Replica]]:
    started: list[Replica] = []

    def one(**settings: str) -> Replica:
        started.append(Replica(tmp_path / "replica", tmp_path / "keys.json", **settings))
        return started[-1]

    yield one
    for replica in started:
        replica.stop()


def ask(replica: Replica, key: str, **headers: str) -> Answer:
    return replica.post(PATH, key, {"text": TEXT}, headers=headers)


def end(replica: Replica) -> None:
    """By SIGTERM, which is when the last spans are sent."""
    replica.stop()
    assert replica.process.returncode == 0, replica.log()[-2000:]


def logged(replica: Replica) -> list[dict[str, object]]:
    """The lines of what was asked, in order."""
    return [line for line in replica.logged("request") if line["path"] == PATH]


def key_id(key: str) -> str:
    return key.split("_")[1]


def secret_part(key: str) -> str:
    return key.split("_", 2)[2]


# --- traces ------------------------------------------------------------------------


def test_a_request_is_traced_to_the_collector_as_the_variables_say(
    collector: Collector, start: Callable[..., Replica], key: str
) -> None:
    resource = {"OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=the-old-mill"}
    replica = start(**collector.setting(), **SENT, **resource)
    assert ask(replica, key).status == 200
    end(replica)
    assert collector.posts, "nothing was posted"
    for post in collector.posts:
        assert post.path == "/v1/traces"
        assert post.headers["content-type"] == "application/x-protobuf"
        assert post.headers["x-collector-token"] == "blue-harbour"
        for told in (b"deployment.environment.name", b"the-old-mill", b"service.name", b"dichroic"):
            assert told in post.body
    # The operation and what is below it; what probes and scrapes ask is no operation.
    arrived = collector.bytes()
    assert arrived.count(SPAN.encode()) == 1
    for told in (b"http.route", b"dichroic.model", MODEL.encode(), b"queue", b"inference", b"dichroic.component"):
        assert told in arrived
    assert b"GET " not in arrived
    (line,) = logged(replica)
    assert bytes.fromhex(str(line["trace_id"])) in arrived
    said = arrived + repr([(post.path, post.headers) for post in collector.posts]).encode()
    for secret in [*WORDS, key, secret_part(key), key_id(key)]:
        assert secret.encode() not in said, secret
    assert "blue-harbour" not in replica.log()


@pytest.mark.parametrize(
    ("sampler", "argument", "kept"),
    [
        ("always_off", None, set()),
        # Of requests without a trace of their own so many are kept; the others are kept as their callers say.
        ("parentbased_traceidratio", "0", {"sampled"}),
        ("parentbased_traceidratio", "1", {"sampled", "own"}),
    ],
)
def test_the_sampler_decides_what_is_sent(
    collector: Collector,
    start: Callable[..., Replica],
    key: str,
    sampler: str,
    argument: str | None,
    kept: set[str],
) -> None:
    ratio = {} if argument is None else {"OTEL_TRACES_SAMPLER_ARG": argument}
    replica = start(**collector.setting(), OTEL_TRACES_SAMPLER=sampler, **ratio)
    traces = {"sampled": ("1f" * 16, "01"), "unsampled": ("2e" * 16, "00")}
    for trace, flags in traces.values():
        assert ask(replica, key, traceparent=f"00-{trace}-{'3d' * 8}-{flags}").status == 200
    assert ask(replica, key).status == 200
    end(replica)
    arrived = collector.bytes()
    assert arrived.count(SPAN.encode()) == len(kept)
    assert bool(collector.posts) == bool(kept)
    for name, (trace, _) in traces.items():
        assert (bytes.fromhex(trace) in arrived) == (name in kept), name
    named = [line.get("trace_id") for line in logged(replica)]
    assert [trace is not None for trace in named] == [name in kept for name in ("sampled", "unsampled", "own")]
    assert named[0] in (None, traces["sampled"][0])


# --- logs --------------------------------------------------------------------------


def documented() -> set[str]:
    """The fields of a request's line, as docs/operations.md lists them."""
    table = read("docs/operations.md").split("| Field | What it is |\n| --- | --- |\n")[1].split("\n\n")[0]
    # The second name of `request_id` (in `span`) is where it stands.
    fields = {name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])} - {"span"}
    assert "`request_id` (in `span`)" in table and len(fields) > 10
    return fields


def line_of_json(log: str) -> dict[str, str]:
    """The fields of the one request, each as it stands in the log."""
    lines = [json.loads(line) for line in log.splitlines()]
    (line,) = [line for line in lines if line.get("path") == PATH and line["message"] == "request"]
    assert line["level"] == "INFO" and line["timestamp"].endswith("Z")
    assert line["span"].keys() == {"name", "request_id"}
    of_every_line = ("timestamp", "level", "message", "target", "span")
    own = {name: value for name, value in line.items() if name not in of_every_line}
    own["request_id"] = line["span"]["request_id"]
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in own.items()}


def line_of_text(log: str) -> dict[str, str]:
    assert "\x1b" not in log, "colours in a file"
    lines = [re.fullmatch(r"\S+Z +([A-Z]+) request{(.*?)}: [\w:]+: request (.*)", line) for line in log.splitlines()]
    (line,) = [line for line in lines if line and f'path="{PATH}"' in line[3]]
    assert line[1] == "INFO"
    return {name: value.strip('"') for name, value in re.findall(r'(\w+)=("[^"]*"|\S+)', f"{line[2]} {line[3]}")}


FORMATS: dict[str, Callable[[str], dict[str, str]]] = {"json": line_of_json, "text": line_of_text}


@pytest.mark.parametrize("form", [*FORMATS, "default"])
def test_a_request_has_one_line_with_the_documented_fields(
    collector: Collector, start: Callable[..., Replica], key: str, form: str
) -> None:
    chosen = {} if form == "default" else {"DICHROIC_LOG_FORMAT": form}
    replica = start(**collector.setting(), **chosen)
    answer = ask(replica, key, **{"x-request-id": REQUEST_ID})
    end(replica)
    judged = json.loads(answer.body)
    found = [name for name, is_so in judged["categories"].items() if is_so]
    assert found, "the tiny classifier finds nothing here: another text is needed to see every field"
    line = FORMATS["json" if form == "default" else form](replica.log())
    assert line.keys() == documented()
    expected = {
        "request_id": REQUEST_ID,
        "method": "POST",
        "path": PATH,
        "status": "200",
        "code": "none",
        "model": MODEL,
        "key_id": key_id(key),
        "received": str(len(json.dumps({"model": MODEL, "text": TEXT}))),
        "sent": str(len(answer.body)),
        "flagged": "true",
        "categories": ",".join(found),
    }
    assert {name: line[name] for name in expected} == expected
    times = {name: float(line[name]) for name in ("latency_ms", "queue_ms", "inference_ms")}
    assert all(time > 0 for time in times.values()), times
    # Milliseconds, which the caller saw pass.
    assert times["queue_ms"] + times["inference_ms"] <= times["latency_ms"] <= answer.seconds * 1000
    assert re.fullmatch(r"[0-9a-f]{32}", line["trace_id"])


@pytest.mark.parametrize("form", FORMATS)
def test_no_text_and_no_key_is_logged_even_where_everything_is(
    start: Callable[..., Replica], key: str, form: str
) -> None:
    replica = start(DICHROIC_LOG_FORMAT=form, DICHROIC_LOG="trace")
    wrong = key[:-1] + ("a" if key[-1] != "a" else "b")
    asked = [
        ask(replica, key),
        ask(replica, wrong),
        # No ASCII: the tokens of such a text are the library's business, which logs too.
        replica.post(PATH, key, {"text": f"{TEXT} — é", "model": MODEL}),
        replica.post(PATH, key, {"text": TEXT, "model": "Zanzibar-1"}),
        replica.post("/v1/Griselda", key, {}),
        # Too long a text, and a component that this server does not have.
        replica.post(PATH, key, {"text": TEXT * 20}),
        replica.post("/v1/prisms/text", key, {"text": TEXT}),
    ]
    end(replica)
    assert [answer.status for answer in asked][:3] == [200, 401, 200] and all(answer.status >= 400 for answer in asked[3:])
    log = replica.log()
    # There is what could tell: the line of each request, the name of its key, and what only this level has.
    assert log.count(PATH) >= 5 and "TRACE" in log and key_id(key) in log
    for secret in [*WORDS, key, wrong, secret_part(key), secret_part(wrong)]:
        assert secret not in log, secret
