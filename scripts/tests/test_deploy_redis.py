"""Usage limits of several replicas in one Redis: real servers, and a real
redis-server that is stopped, frozen, slowed down and started under load. Run
by `make test-deploy`, whose set-up brings the redis-server.
"""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import ssl
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path

import pytest
from certificates import issue, make_authority
from rust_sources import ROOT
from tiny_replica import Answer, Load, Replica, eventually, free_port, make_key

TOOLS = Path(sys.executable).parent
PASSWORD = "open-sesame-on-the-wire"
# The longest that may be set, for a busy machine of two processors: only one that is asked to wait this long is late.
PATIENT = "1000"
REASONS = ("away", "timeout", "error")
LOST, TRIED, BACK = "Redis does not answer", "Redis is still away", "Redis answers again"
# Connections that a replica holds, as docs/operations.md says.
POOL = 4


class Redis:
    """A redis-server that keeps nothing on disk."""

    def __init__(self, folder: Path, *words: str, port: int | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.words, self.port = folder, words, port or free_port()
        self.context: ssl.SSLContext | None = None
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> Redis:
        listen = ["--port", str(self.port)] if "--tls-port" not in self.words else ["--port", "0"]
        command = [TOOLS / "redis-server", "--bind", "127.0.0.1", *listen, "--save", "", "--appendonly", "no"]
        with open(self.folder / "redis.log", "ab") as log:
            self.process = subprocess.Popen([*command, *self.words], cwd=self.folder, stdout=log, stderr=log)
        try:
            eventually(self._answers, "redis-server does not listen")
        except BaseException:
            self.stop()
            raise
        return self

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.folder / "redis.log").read_text()[-2000:]
        try:
            self.command("PING")
        except OSError:
            return False
        return True

    def command(self, line: str, wanted: str = "") -> str:
        """The first line of the answer to an inline command that begins with `wanted`; nothing where none does."""
        return next((found for found in self.lines(line) if found.startswith(wanted)), "")

    def lines(self, line: str) -> list[str]:
        """The answer to an inline command, over a connection of its own."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=2) as plain:
            if self.context is None:
                return self._lines(plain, line)
            with self.context.wrap_socket(plain, server_hostname="127.0.0.1") as encrypted:
                return self._lines(encrypted, line)

    @staticmethod
    def _lines(connection: socket.socket, line: str) -> list[str]:
        # PING after it: its answer is the last line.
        connection.sendall(line.encode() + b"\r\nPING\r\n")
        with connection.makefile("rb") as answer:
            return [found.decode().strip() for found in takewhile(lambda found: found != b"+PONG\r\n", answer)]

    def calls(self) -> dict[str, int]:
        """How often each command was called since CONFIG RESETSTAT, by scripts too; subcommands are not told apart."""
        found = (re.match(r"cmdstat_(\w+).*:calls=(\d+)", line) for line in self.lines("INFO commandstats"))
        return {told[1]: int(told[2]) for told in found if told}

    def connections_made(self) -> int:
        """All that were ever made, this question's own included."""
        return int(self.command("INFO stats", "total_connections_received:").split(":")[1])

    def held(self) -> dict[str, str]:
        """The open connections that are not of this process, with the last command on each."""
        # One of this process asks; others have asked, and are about to go.
        lines = self.lines("CLIENT SETNAME asks\r\nCLIENT LIST")
        rows = [dict(re.findall(r"(\S+?)=(\S*)", line)) for line in lines if line.startswith("id=")]
        return {row["id"]: row["cmd"] for row in rows if row["name"] != "asks" and row["cmd"] != "ping"}

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def freeze(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[Redis]:
    made = Redis(tmp_path / "redis").start()
    yield made
    made.stop()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Replica]]:
    """Starts replicas over one key file, and stops them in the end."""
    started: list[Replica] = []

    def one(**settings: str) -> Replica:
        replica = Replica(tmp_path / f"replica-{len(started)}", tmp_path / "keys.json", **settings)
        started.append(replica)
        return replica

    yield one
    for replica in started:
        replica.stop()


@pytest.fixture
def key(tmp_path: Path) -> Callable[[int, int], str]:
    """Makes keys with a limit a minute and a burst; before the replicas start, so that they know it at once."""
    return lambda limit, burst: make_key(tmp_path / "keys.json", "--limit", str(limit), "--burst", str(burst))


def url(redis: Redis) -> str:
    return f"redis://127.0.0.1:{redis.port}"


def fallbacks(replica: Replica, *reasons: str) -> float:
    """Requests that were judged by the replica's share, for these reasons or any."""
    asked = reasons or REASONS
    return sum(replica.counter(f'dichroic_limit_fallbacks_total{{reason="{reason}"}}') for reason in asked)


def flood(replicas: list[Replica], key: str, each: int) -> list[Answer]:
    """So many requests to each replica, by two callers each at once."""
    answers: list[Answer] = []

    def call(replica: Replica) -> None:
        connection = replica.connect()
        for _ in range(each // 2):
            answers.append(replica.ask(key, connection))
        connection.close()

    callers = [threading.Thread(target=call, args=[replica]) for replica in replicas for _ in range(2)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(answers) == each // 2 * len(callers), "a caller gave up"
    return answers


# --- one limit for all -----------------------------------------------------------


def test_two_servers_one_key_and_the_limit_holds_in_total(
    redis: Redis, key: Callable[[int, int], str], start: Callable[..., Replica]
) -> None:
    caller, other = key(6, 40), key(6, 40)
    settings = {"DICHROIC_REDIS_URL": url(redis), "DICHROIC_REDIS_TIMEOUT_MS": PATIENT, "DICHROIC_REPLICAS": "2"}
    replicas = [start(**settings) for _ in range(2)]
    began = time.monotonic()
    answers = flood(replicas, caller, 60)
    given_back = int((time.monotonic() - began) / 10)  # six a minute
    statuses = [answer.status for answer in answers]
    assert set(statuses) == {200, 429}
    assert 40 <= statuses.count(200) <= 40 + given_back
    assert [fallbacks(replica) for replica in replicas] == [0, 0], "Redis was not asked for each of them"
    # The headers are those of a limiter in memory: they count down over both replicas.
    for answer in answers:
        assert answer.headers["RateLimit-Policy"] == '"key";q=6;w=60'
        left = re.fullmatch(r'"key";r=(\d+);t=(\d+)', answer.headers["RateLimit"])
        assert left, answer.headers["RateLimit"]
        if answer.status == 429:
            assert left[1] == "0" and 0 < int(answer.headers["Retry-After"]) <= 10
        else:
            assert 0 <= int(left[1]) < 40 and 0 < int(left[2]) <= 400
    # Another key has its own bucket, and Redis forgets both when they are full.
    assert replicas[0].ask(other).headers["RateLimit"].startswith('"key";r=39;')
    assert redis.command("KEYS *") == "*2"
    names = {f"dichroic:{text.split('_')[1]}:6:40" for text in (caller, other)}
    for name in names:
        assert 0 < int(redis.command(f"PTTL {name}").lstrip(":")) <= 400_000, f"{name} would stay"


def test_without_redis_each_server_would_allow_it_all(
    key: Callable[[int, int], str], start: Callable[..., Replica]
) -> None:
    """That the test above can fail."""
    caller = key(6, 40)
    statuses = [answer.status for answer in flood([start(), start()], caller, 60)]
    assert statuses.count(200) >= 80


def test_where_redis_is_away_from_the_start_each_server_allows_its_share(
    key: Callable[[int, int], str], start: Callable[..., Replica], tmp_path: Path
) -> None:
    caller, later = key(6, 40), key(6, 40)
    redis = Redis(tmp_path / "redis")
    settings = {"DICHROIC_REDIS_URL": url(redis), "DICHROIC_REDIS_TIMEOUT_MS": PATIENT, "DICHROIC_REPLICAS": "2"}
    replicas = [start(**settings) for _ in range(2)]
    for replica in replicas:
        began = time.monotonic()
        statuses = [answer.status for answer in flood([replica], caller, 40)]
        given_back = int((time.monotonic() - began) / 20)  # three a minute
        assert 20 <= statuses.count(200) <= 20 + given_back
        assert fallbacks(replica, "away") == 40
    # It comes, and is used without anybody doing anything.
    try:
        redis.start()
        for replica in replicas:
            eventually(lambda replica=replica: bool(replica.logged(BACK)), "Redis is there, and nobody has noticed")
            assert len(replica.logged(LOST)) == 1
        statuses = [answer.status for answer in flood(replicas, later, 60)]
        assert 40 <= statuses.count(200) <= 42
    finally:
        redis.stop()


# --- what it costs Redis ---------------------------------------------------------


def test_a_request_is_one_call_of_one_script_and_nothing_beside_it(
    redis: Redis, key: Callable[[int, int], str], start: Callable[..., Replica]
) -> None:
    caller = key(1, 15)
    replica = start(DICHROIC_REDIS_URL=url(redis), DICHROIC_REDIS_TIMEOUT_MS=PATIENT)
    assert redis.command("CONFIG RESETSTAT") == "+OK"
    statuses = [replica.ask(caller).status for _ in range(20)]
    assert set(statuses) == {200, 429} and fallbacks(replica) == 0
    # What the script does is counted too: every run reads the time and the bucket, and a request that passes is
    # written down. So these numbers leave no room for one of them outside of the script.
    inside = {"time": 20, "get": 20, "set": statuses.count(200)}
    assert redis.calls() == {"evalsha": 20, **inside, "config": 1, "ping": 1}


def test_all_requests_share_the_connections_of_the_start(
    redis: Redis, key: Callable[[int, int], str], start: Callable[..., Replica]
) -> None:
    caller = key(1_000_000, 100_000)
    settings = {"DICHROIC_REDIS_URL": url(redis), "DICHROIC_REDIS_TIMEOUT_MS": PATIENT}
    replicas = []
    for count in (1, 2):
        replicas.append(start(**settings))
        assert len(redis.held()) == POOL * count
    before, held = redis.connections_made(), redis.held()
    load = Load(replicas, caller)
    try:
        eventually(lambda: len(load.answers) > 200, "requests are not answered")
        during = redis.held()
    finally:
        load.stop()
    assert not load.lost and {answer.status for answer in load.answers} == {200}
    assert during == dict.fromkeys(held, "evalsha"), "each is used, and no other"
    # Two looks at what is held, and this question itself.
    assert redis.connections_made() == before + 3
    assert [fallbacks(replica) for replica in replicas] == [0, 0]


# --- Redis stops and starts under load ---------------------------------------------


@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_redis_stops_and_starts_under_load_and_no_request_is_lost_or_hung(
    redis: Redis, key: Callable[[int, int], str], start: Callable[..., Replica], how: str
) -> None:
    caller = key(1_000_000, 100_000)
    timeout, stop, resume = {
        "killed": (PATIENT, redis.kill, redis.start),
        "frozen": ("50", redis.freeze, redis.thaw),
    }[how]
    settings = {"DICHROIC_REDIS_URL": url(redis), "DICHROIC_REDIS_TIMEOUT_MS": timeout, "DICHROIC_REPLICAS": "2"}
    replicas = [start(**settings) for _ in range(2)]
    load = Load(replicas, caller)
    try:
        for _ in range(2):
            time.sleep(1)
            outages = [len(replica.logged(LOST)) for replica in replicas]
            stop()
            for replica, before in zip(replicas, outages, strict=True):
                eventually(
                    lambda replica=replica, before=before: len(replica.logged(LOST)) > before, "nobody noticed"
                )
            during = len(load.answers)
            eventually(lambda during=during: len(load.answers) > during + 100, "requests stopped with Redis")
            resume()
            for replica in replicas:
                eventually(
                    lambda replica=replica: len(replica.logged(BACK)) == len(replica.logged(LOST)),
                    "Redis is back, and nobody has noticed",
                )
    finally:
        load.stop()
        if how == "frozen":
            redis.thaw()
    assert not load.lost, load.lost[:3]
    assert {answer.status for answer in load.answers} == {200}
    assert max(answer.seconds for answer in load.answers) < 5
    for replica in replicas:
        if how == "killed":
            assert fallbacks(replica, "error") > 0, "somebody met the broken connection"
            assert len(replica.logged(LOST)) == 2, "one line for each outage"
        else:
            # The system keeps the connections of a process that stands still: nothing breaks, no answer comes.
            assert fallbacks(replica, "timeout") > 0
            assert fallbacks(replica, "error") == 0
        assert all(line["cause"] for line in replica.logged(LOST))
    # Afterwards it is asked for each request again.
    assert redis.command("CONFIG RESETSTAT") == "+OK"
    eventually(lambda: all(settled(replica, caller) for replica in replicas), "requests still go without Redis")
    assert redis.command("INFO commandstats", "cmdstat_evalsha") != ""


def settled(replica: Replica, key: str) -> bool:
    """Whether ten requests pass without a fallback."""
    before = fallbacks(replica)
    for _ in range(10):
        assert replica.ask(key).status == 200
    return fallbacks(replica) == before


# --- Redis is slow ---------------------------------------------------------------------


class LongWay:
    """Passes on what comes and goes between its port and that of a Redis, each way after a delay of seconds."""

    def __init__(self, redis: Redis) -> None:
        self.delay = 0.0
        self._redis = redis
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def _accept(self) -> None:
        # Ends when the listener is shut down.
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._redis.port), timeout=20)
                far.settimeout(None)
                for source, target in ((near, far), (far, near)):
                    target.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    threading.Thread(target=self._pass_on, args=[source, target], daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while some := source.recv(65536):
                time.sleep(self.delay)
                target.sendall(some)
        # Who is at the other end learns of it, and the other direction ends too.
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def stop(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listener.close()


@pytest.fixture
def way(redis: Redis) -> Iterator[LongWay]:
    made = LongWay(redis)
    yield made
    made.stop()


def test_a_redis_that_is_slow_is_not_waited_for_until_it_is_fast_again(
    way: LongWay, key: Callable[[int, int], str], start: Callable[..., Replica]
) -> None:
    caller = key(1_000_000, 100_000)
    shared, share = '"key";q=1000000;w=60', '"key";q=500000;w=60'
    replica = start(
        DICHROIC_REDIS_URL=f"redis://127.0.0.1:{way.port}",
        # A busy machine mostly answers within it, and the long way never does.
        DICHROIC_REDIS_TIMEOUT_MS="50",
        DICHROIC_REPLICAS="2",
        DICHROIC_LOG="debug",
    )
    eventually(lambda: settled(replica, caller), "Redis is not used from the start", seconds=60)

    outages, trials = len(replica.logged(LOST)), len(replica.logged(TRIED))
    late = fallbacks(replica, "timeout")
    answers: list[Answer] = []

    def noticed() -> bool:
        answers.append(replica.ask(caller))
        return len(replica.logged(LOST)) > outages

    way.delay = 0.2
    eventually(noticed, "Redis is slow, and nobody has noticed")
    assert fallbacks(replica, "timeout") >= late + 5
    assert fallbacks(replica, "error") == 0
    # It is there, and tried: what answers too late is not used again.
    eventually(lambda: len(replica.logged(TRIED)) > trials, "nobody looks whether Redis is fast again")
    away = [replica.ask(caller) for _ in range(20)]
    assert {answer.headers["RateLimit-Policy"] for answer in away} == {share}
    (lost,) = replica.logged(LOST)[outages:]
    assert lost["cause"] == "no answer in time", "its connections were whole"
    # Nobody waited until an answer of Redis would have been there, but for what a busy machine does to a few.
    answers += away
    assert {answer.status for answer in answers} == {200}
    assert statistics.median(answer.seconds for answer in answers) < 2 * way.delay
    assert max(answer.seconds for answer in answers) < 5

    way.delay = 0
    # Where the machine is busy, more than one trial may be needed.
    back = "Redis is fast, and nobody has noticed"
    eventually(lambda: len(replica.logged(BACK)) == len(replica.logged(LOST)), back, seconds=60)
    eventually(lambda: settled(replica, caller), "requests still go without Redis", seconds=60)
    eventually(lambda: replica.ask(caller).headers["RateLimit-Policy"] == shared, back, seconds=60)


# --- TLS and password ----------------------------------------------------------------


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an authority (ca.pem) and a certificate of it for 127.0.0.1 (redis.pem, redis.key)."""
    folder = tmp_path_factory.mktemp("authority")
    make_authority(folder)
    issue(folder, "redis")
    return folder


def acl() -> list[str]:
    """The rights that docs/operations.md gives a user."""
    text = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    told = re.search(r"ACL SETUSER limits on >PASSWORD (.+)", text)
    assert told, "the rights are not where they were"
    return ["--user", "limits", "on", f">{PASSWORD}", *told[1].split()]


@pytest.fixture
def guarded(tmp_path: Path, authority: Path) -> Iterator[Redis]:
    """Speaks TLS alone, and has one user with the documented rights; the default user may only ping and look."""
    port = free_port()
    tls = ["--tls-port", str(port), "--tls-auth-clients", "no", "--tls-ca-cert-file", str(authority / "ca.pem")]
    certificate = ["--tls-cert-file", str(authority / "redis.pem"), "--tls-key-file", str(authority / "redis.key")]
    default = ["--user", "default", "on", "nopass", "+ping", "+exists", "~*"]
    made = Redis(tmp_path / "guarded", *tls, *certificate, *acl(), *default, port=port)
    made.context = ssl.create_default_context(cafile=str(authority / "ca.pem"))
    yield made.start()
    made.stop()


def test_tls_and_password_reach_redis_and_no_log(
    guarded: Redis, authority: Path, key: Callable[[int, int], str], start: Callable[..., Replica]
) -> None:
    caller = key(6, 4)
    name = f"{caller.split('_')[1]}:6:4"
    server = f"127.0.0.1:{guarded.port}"
    settings = {
        "DICHROIC_REDIS_CA_FILE": str(authority / "ca.pem"),
        "DICHROIC_REDIS_TIMEOUT_MS": PATIENT,
        # The most that can be logged.
        "DICHROIC_LOG": "trace",
    }
    in_url = start(DICHROIC_REDIS_URL=f"rediss://limits:{PASSWORD}@{server}", **settings)
    beside = start(DICHROIC_REDIS_URL=f"rediss://limits@{server}", DICHROIC_REDIS_PASSWORD=PASSWORD, **settings)
    statuses = [replica.ask(caller).status for replica in (in_url, beside) * 3]
    assert statuses == [200] * 4 + [429] * 2
    assert fallbacks(in_url) == fallbacks(beside) == 0
    assert guarded.command(f"EXISTS dichroic:{name}") == ":1"
    # Another prefix is one that this user may not use: Redis says so, and what counts is the share.
    elsewhere = start(
        DICHROIC_REDIS_URL=f"rediss://limits@{server}",
        DICHROIC_REDIS_PASSWORD=PASSWORD,
        DICHROIC_REDIS_PREFIX="other:",
        **settings,
    )
    assert elsewhere.ask(caller).status == 200
    (lost,) = elsewhere.logged(LOST)
    assert "NOPERM" in str(lost["cause"]), lost
    for replica in (in_url, beside):
        assert replica.logged("usage limits are counted in Redis")[0]["server"] == server
    for replica in (in_url, beside, elsewhere):
        assert PASSWORD not in replica.log()


@pytest.mark.parametrize(
    ("address", "password", "certificates", "cause"),
    [
        ("rediss://limits@{}", "wrong-" + PASSWORD, "ca.pem", "authentication failed"),
        ("rediss://limits@{}", PASSWORD, "redis.pem", "certificate"),
        # Not the name that the certificate is for.
        ("rediss://limits@localhost:{port}", PASSWORD, "ca.pem", "certificate"),
        ("redis://limits@{}", PASSWORD, None, ""),
    ],
)
def test_a_redis_that_cannot_be_used_is_told_without_the_password(
    guarded: Redis,
    authority: Path,
    key: Callable[[int, int], str],
    start: Callable[..., Replica],
    address: str,
    password: str,
    certificates: str | None,
    cause: str,
) -> None:
    caller = key(6, 4)
    settings = {} if certificates is None else {"DICHROIC_REDIS_CA_FILE": str(authority / certificates)}
    replica = start(
        DICHROIC_REDIS_URL=address.format(f"127.0.0.1:{guarded.port}", port=guarded.port),
        DICHROIC_REDIS_PASSWORD=password,
        DICHROIC_REPLICAS="2",
        DICHROIC_LOG="trace",
        **settings,
    )
    assert [replica.ask(caller).status for _ in range(3)] == [200, 200, 429]
    (lost,) = replica.logged(LOST)
    assert cause in str(lost["cause"]), lost
    assert PASSWORD not in replica.log() and password not in replica.log()
