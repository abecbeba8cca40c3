"""deploy/nginx.conf in a real nginx on loopback, before two stand-ins for
replicas that answer, hang up or are gone. Run by `make test-deploy`.
"""

from __future__ import annotations

import http.client
import http.server
import json
import os
import re
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from nginx_conf import NGINX, Nginx
from rust_sources import ROOT, constant
from tiny_replica import eventually, free_port

KEY = "a-key-that-no-log-may-hold"
LIMIT = constant("http/extract.rs", "IMAGE_BODY_BYTES")


class Replica:
    """Answers with its name, or as `status` and `hangs_up` say."""

    def __init__(self, name: str) -> None:
        self.status = 200
        self.hangs_up = False
        self.asked: list[tuple[str, dict[str, str], int]] = []
        self.connections = 0
        replica = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                replica.connections += 1

            def handle_one_request(self) -> None:
                try:
                    super().handle_one_request()
                except ConnectionError:
                    self.close_connection = True

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                replica.asked.append(
                    (self.path, {key.lower(): value for key, value in self.headers.items()}, len(body))
                )
                if replica.hangs_up:
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                text = json.dumps({"replica": name}).encode()
                self.send_response(replica.status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST = do_OPTIONS = answer

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()


class Balancer(Nginx):
    def __init__(self, folder: Path, replicas: list[Replica], changes: Mapping[str, str] | None = None) -> None:
        addresses = [f"127.0.0.1:{replica.port}" for replica in replicas]
        super().__init__(folder, ("127.0.0.1", free_port()), addresses, changes)

    def ask(
        self,
        path: str = "/v1/guardians/text",
        body: bytes = b"{}",
        method: str = "POST",
        key: str | None = KEY,
        **headers: str,
    ) -> tuple[int, dict[str, object], http.client.HTTPMessage]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            shown = {} if key is None else {"Authorization": f"Bearer {key}"}
            connection.request(method, path, body, {**shown, **named})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read()), answer.headers
        finally:
            connection.close()


@pytest.fixture
def replicas() -> Iterator[list[Replica]]:
    made = [Replica("one"), Replica("two")]
    yield made
    for replica in made:
        replica.stop()


@pytest.fixture
def balancer(tmp_path: Path, replicas: list[Replica]) -> Iterator[Balancer]:
    made = Balancer(tmp_path, replicas)
    yield made
    made.stop()


def attempts(replicas: list[Replica]) -> int:
    return sum(len(replica.asked) for replica in replicas)


def test_nginx_takes_the_configuration(balancer: Balancer) -> None:
    done = subprocess.run(
        [NGINX, "-t", "-p", balancer.folder, "-c", "nginx.conf", "-e", "stderr"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and "warn" not in done.stderr, done.stderr


def test_both_replicas_are_asked_over_kept_connections(balancer: Balancer, replicas: list[Replica]) -> None:
    answers = [balancer.ask() for _ in range(20)]
    assert {status for status, _, _ in answers} == {200}
    assert {answer["replica"] for _, answer, _ in answers} == {"one", "two"}
    assert attempts(replicas) == 20
    # Turn by turn while neither has more to do, whichever worker asks.
    assert [len(replica.asked) for replica in replicas] == [10, 10]
    # One for each replica and worker process, and not one for each request.
    assert sum(replica.connections for replica in replicas) <= 2 * (os.cpu_count() or 1) < 20


def test_a_request_keeps_its_id_or_gets_one(balancer: Balancer, replicas: list[Replica]) -> None:
    balancer.ask(X_Request_Id='mine-"quoted"')
    balancer.ask()
    # Nor does what the server would not take stand in a log.
    balancer.ask(X_Request_Id="some words of a caller")
    balancer.ask(X_Request_Id="m" * 129)
    ids = [headers["x-request-id"] for replica in replicas for _, headers, _ in replica.asked]
    assert 'mine-"quoted"' in ids
    others = [id_ for id_ in ids if id_ != 'mine-"quoted"']
    assert len(others) == 3 and all(re.fullmatch(r"[0-9a-f]{32}", other) for other in others)
    balancer.stop()
    assert "some words" not in balancer.log("access")


def test_a_replica_that_is_gone_loses_nothing(balancer: Balancer, replicas: list[Replica]) -> None:
    replicas[0].stop()
    answers = [balancer.ask() for _ in range(10)]
    assert {(status, answer["replica"]) for status, answer, _ in answers} == {(200, "two")}


def test_a_replica_that_dies_over_a_request_does_not_take_the_answer_along(
    balancer: Balancer, replicas: list[Replica]
) -> None:
    replicas[0].hangs_up = True
    answers = [balancer.ask() for _ in range(10)]
    assert {(status, answer["replica"]) for status, answer, _ in answers} == {(200, "two")}
    # It was asked at all, and left alone for a while after its second failure, by all workers.
    assert 1 <= len(replicas[0].asked) <= 2


def test_what_brings_replicas_down_goes_to_two_of_them_at_most(balancer: Balancer, replicas: list[Replica]) -> None:
    for replica in replicas:
        replica.hangs_up = True
    status, answer, headers = balancer.ask(X_Request_Id="mine")
    assert status == 500 and attempts(replicas) == 2
    error = answer["error"]
    assert (error["type"], error["code"], error["param"]) == ("server_error", "internal_error", None)
    assert error["request_id"] == headers["X-Request-Id"] == "mine"
    assert headers["Content-Type"] == "application/json"


def test_an_id_that_would_break_the_answer_is_not_repeated(balancer: Balancer, replicas: list[Replica]) -> None:
    for replica in replicas:
        replica.stop()
    status, answer, _ = balancer.ask(X_Request_Id='","x":"')
    assert status == 500
    assert re.fullmatch(r"[0-9a-f]{32}", answer["error"]["request_id"])


@pytest.mark.parametrize("status", [400, 401, 429, 500, 501])
def test_the_answer_of_a_replica_is_the_answer(balancer: Balancer, replicas: list[Replica], status: int) -> None:
    for replica in replicas:
        replica.status = status
    got, answer, _ = balancer.ask()
    assert (got, set(answer)) == (status, {"replica"})
    assert attempts(replicas) == 1


def test_the_largest_body_passes_and_one_byte_more_is_refused_in_the_servers_words(
    balancer: Balancer, replicas: list[Replica]
) -> None:
    status, _, _ = balancer.ask("/v1/guardians/image", b"x" * LIMIT)
    assert status == 200 and [length for replica in replicas for _, _, length in replica.asked] == [LIMIT]
    with begun(balancer, f"Content-Length: {LIMIT + 1}") as connection:
        status, error, _ = answered(connection)
    assert status == 400 and error["code"] == "body_too_large"
    assert attempts(replicas) == 1


def test_a_post_without_a_credential_is_refused_before_its_body(balancer: Balancer, replicas: list[Replica]) -> None:
    with begun(balancer, f"Content-Length: {LIMIT}", "X-Request-Id: mine") as connection:
        status, error, headers = answered(connection)
    assert (status, error["type"], error["code"]) == (401, "authentication_error", "missing_api_key")
    assert error["message"] in (ROOT / "src/http/error.rs").read_text(encoding="utf-8")
    assert headers["WWW-Authenticate"] == "Bearer" and headers["Content-Type"] == "application/json"
    assert error["request_id"] == headers["X-Request-Id"] == "mine"
    assert attempts(replicas) == 0


@pytest.mark.parametrize(
    ("path", "method"), [("/v1/guardians/text", "GET"), ("/v1/guardians/text", "OPTIONS"), ("/docs", "GET")]
)
def test_whoever_sends_no_body_needs_no_credential_to_reach_a_replica(
    balancer: Balancer, replicas: list[Replica], path: str, method: str
) -> None:
    status, _, _ = balancer.ask(path, b"", method, key=None)
    assert status == 200 and attempts(replicas) == 1


def test_more_requests_at_once_than_an_address_may_have_are_refused(tmp_path: Path, replicas: list[Replica]) -> None:
    balancer = Balancer(tmp_path, replicas, {"limit_conn clients 128;": "limit_conn clients 1;"})
    try:
        with begun(balancer, f"Content-Length: {LIMIT}", f"Authorization: Bearer {KEY}"):
            eventually(lambda: balancer.ask()[0] == 429, "the second is not refused")
            _, answer, headers = balancer.ask()
            assert balancer.ask("/docs", b"", "GET")[0] == 200
        error = answer["error"]
        assert (error["type"], error["code"], headers["Retry-After"]) == ("rate_limit_error", "overloaded", "1")
        assert error["request_id"] == headers["X-Request-Id"]
        eventually(lambda: balancer.ask()[0] == 200, "the place is not free again")
    finally:
        balancer.stop()


def test_a_body_that_cannot_be_kept_is_refused_in_the_servers_words(
    balancer: Balancer, replicas: list[Replica]
) -> None:
    (balancer.folder / "client_body").rmdir()
    status, answer, headers = balancer.ask("/v1/guardians/image", b"x" * LIMIT)
    assert (status, answer["error"]["code"]) == (500, "internal_error")
    assert answer["error"]["request_id"] == headers["X-Request-Id"]
    assert attempts(replicas) == 0


def begun(balancer: Balancer, *headers: str) -> socket.socket:
    """A connection on which the head of a request was sent, and nothing of its body."""
    connection = socket.create_connection(("127.0.0.1", balancer.port), timeout=10)
    head = ["POST /v1/guardians/image HTTP/1.1", "Host: h", *headers]
    connection.sendall("".join(f"{line}\r\n" for line in [*head, ""]).encode())
    return connection


def answered(connection: socket.socket) -> tuple[int, dict[str, object], http.client.HTTPMessage]:
    answer = http.client.HTTPResponse(connection)
    answer.begin()
    return answer.status, json.loads(answer.read())["error"], answer.headers


@pytest.mark.parametrize(
    "path", ["/metrics", "/readyz", "/", "/v2/prisms/text", "/v1/../metrics", "/v1/%2e%2e/metrics"]
)
def test_the_inside_is_not_shown(balancer: Balancer, replicas: list[Replica], path: str) -> None:
    status, answer, _ = balancer.ask(path, b"", "GET")
    assert (status, answer["error"]["code"]) == (404, "not_found")
    assert attempts(replicas) == 0


@pytest.mark.parametrize("path", ["/docs", "/docs/index.css", "/openapi.json"])
def test_the_documentation_is(balancer: Balancer, replicas: list[Replica], path: str) -> None:
    status, _, _ = balancer.ask(path, b"", "GET")
    assert status == 200 and [asked for replica in replicas for asked, _, _ in replica.asked] == [path]


@pytest.mark.parametrize("path", ["/docs", "/openapi.json"])
def test_no_body_goes_to_the_documentation(balancer: Balancer, replicas: list[Replica], path: str) -> None:
    status, answer, _ = balancer.ask(path, b"x" * LIMIT, key=None)
    assert (status, answer["error"]["code"]) == (400, "body_too_large") and attempts(replicas) == 0


def test_the_balancer_is_alive_without_replicas(balancer: Balancer, replicas: list[Replica]) -> None:
    for replica in replicas:
        replica.stop()
    assert balancer.ask("/livez", b"", "GET")[:2] == (200, {"status": "alive"})


def test_no_credential_and_no_query_reach_the_log(balancer: Balancer, replicas: list[Replica]) -> None:
    balancer.ask("/v1/guardians/image?note=secret-query", b"x" * LIMIT)
    balancer.ask("/v1/guardians/text?note=secret-query")
    for replica in replicas:
        replica.hangs_up = True
    balancer.ask("/v1/prisms/text?note=secret-query")
    balancer.stop()
    lines = map(json.loads, balancer.log("access").splitlines())
    # In any order: each worker writes its own.
    assert {(line["path"], line["status"]) for line in lines} == {
        ("/v1/guardians/image", 200),
        ("/v1/guardians/text", 200),
        ("/v1/prisms/text", 500),
    }
    logged = balancer.log("access") + balancer.log("error")
    assert KEY not in logged and "secret-query" not in logged
