"""Several machines: a real nginx with deploy/nginx.conf before three replicas,
each in a network namespace with an address of its own, under load. Run by
`make test-deploy`; needs root.
"""

from __future__ import annotations

import ctypes
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from nginx_conf import Nginx
from tiny_replica import Endpoint, Load, Replica, eventually, make_key

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="making network namespaces needs root")

IP = Path(sys.executable).with_name("ip")
# Addresses that are nobody's (RFC 5737).
CALLERS, BALANCER, *REPLICAS = [f"192.0.2.{number}" for number in range(1, 6)]
PORT = 8080
# So that one count of connections and of failures holds for all callers.
ONE_WORKER = {"worker_processes auto;": "worker_processes 1;"}


class Machines:
    """Network namespaces at one bridge, which stands in the callers': this machine's own network is left alone."""

    def __init__(self, folder: Path, undo: ExitStack) -> None:
        self._folder, self._undo = folder, undo
        self._prefix = f"dichroic-{os.getpid()}-{secrets.token_hex(4)}"
        self._started = 0
        self.key = make_key(folder / "keys.json", "--limit", "1000000", "--burst", "100000")
        self.front = Endpoint(BALANCER, PORT)
        self._add(CALLERS, "type", "bridge")
        for number, address in enumerate((BALANCER, *REPLICAS)):
            self._add(address, "type", "veth", "peer", "name", f"port{number}", "netns", self._name(CALLERS))
            ip("-n", self._name(CALLERS), "link", "set", f"port{number}", "master", "lan", "up")

    def _add(self, address: str, *link: str) -> None:
        name = self._name(address)
        ip("netns", "add", name)
        self._undo.callback(ip, "netns", "del", name)
        ip("-n", name, "link", "add", "name", "lan", *link)
        ip("-n", name, "address", "add", f"{address}/24", "dev", "lan")
        for device in ("lo", "lan"):
            ip("-n", name, "link", "set", device, "up")

    def _name(self, address: str) -> str:
        return f"{self._prefix}-{address}"

    @contextmanager
    def at(self, address: str) -> Iterator[None]:
        """Puts this thread on that machine, and with it the threads and processes that it starts."""
        with open("/proc/thread-self/ns/net") as here, open(f"/run/netns/{self._name(address)}") as there:
            enter(there.fileno())
            try:
                yield
            finally:
                enter(here.fileno())

    def start(self, address: str, **settings: str) -> Replica:
        """Returns when it is ready."""
        self._started += 1
        with self.at(address):
            folder = self._folder / f"replica-{self._started}"
            replica = Replica(folder, self._folder / "keys.json", None, (address, PORT), **settings)
        self._undo.callback(replica.stop)
        return replica

    def balance(self, changes: Mapping[str, str] | None = None) -> Nginx:
        folder = self._folder / "nginx"
        folder.mkdir()
        with self.at(BALANCER):
            nginx = Nginx(folder, (BALANCER, PORT), [f"{address}:{PORT}" for address in REPLICAS], changes)
        self._undo.callback(nginx.stop)
        return nginx


def ip(*words: str) -> None:
    done = subprocess.run([IP, *words], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"


def enter(namespace: int) -> None:
    # Python has os.setns from 3.12 on.
    if ctypes.CDLL(None, use_errno=True).setns(namespace, 0) != 0:
        raise OSError(ctypes.get_errno(), "a network namespace cannot be entered")


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    """With the test in the place of the callers."""
    with ExitStack() as undo:
        made = Machines(tmp_path, undo)
        undo.enter_context(made.at(CALLERS))
        yield made


def served(replica: Replica) -> int:
    return sum(line["path"] == "/v1/guardians/text" and line["status"] == 200 for line in replica.logged("request"))


def await_asked(replica: Replica) -> None:
    eventually(lambda: served(replica) > 0, "a replica is not asked")


def in_hand(replica: Replica) -> float:
    """Requests that it is working on, without the one that asks."""
    return replica.counter("dichroic_requests_in_flight") - 1


def test_a_rolling_restart_under_load_loses_no_request(machines: Machines) -> None:
    machines.balance(ONE_WORKER)
    old = [machines.start(address) for address in REPLICAS]
    new: list[Replica] = []
    load = Load([machines.front], machines.key, callers=6)
    try:
        for replica in old:
            await_asked(replica)
            if new:
                # Until nginx no longer passes over the last one, for which docs/operations.md tells the operator to
                # wait: else nobody may be left when the next one stops.
                await_asked(new[-1])
            before = len(load.answers)
            replica.stop()
            new.append(machines.start(replica.host))
            assert len(load.answers) > before, "nobody was answered meanwhile"
        for replica in new:
            await_asked(replica)
    finally:
        load.stop()
    assert not load.lost, load.lost[:3]
    assert {answer.status for answer in load.answers} == {200}
    assert [replica.process.returncode for replica in old] == [0, 0, 0], "a replica did not end by itself"
    assert len({replica.process.pid for replica in old + new}) == 6


@pytest.mark.parametrize("asks_again", [True, False])
def test_a_killed_replica_costs_at_most_what_it_had_in_hand(machines: Machines, asks_again: bool) -> None:
    # However slow the machine: what is cut is asked again, and a replica that has failed is not asked any more.
    changes = {
        **ONE_WORKER,
        "proxy_next_upstream_timeout 10s;": "proxy_next_upstream_timeout 60s;",
        "fail_timeout=2s;": "fail_timeout=60s;",
        # To see what a replica was cut in.
        " alert;": " error;",
    }
    if not asks_again:
        changes["proxy_next_upstream error timeout non_idempotent;"] = "proxy_next_upstream off;"
    balancer = machines.balance(changes)
    slow = {"DICHROIC_BATCH_WAIT_US": "250000", "DICHROIC_MODERATION_CACHE": "false"}
    victim, *others = [machines.start(address, **slow) for address in REPLICAS]
    load = Load([machines.front], machines.key, callers=12)
    try:
        eventually(lambda: in_hand(victim) > 1, "the replica has nothing in hand")
        # It keeps that, and gets what comes to it while the others answer. Who waits in the end waits for it.
        victim.process.send_signal(signal.SIGSTOP)
        before = len(load.answers)
        eventually(lambda: len(load.answers) > before + 24, "requests stop with one replica")
        load.end()
        eventually(lambda: sum(map(in_hand, others)) == 0, "the other replicas do not answer")
    finally:
        victim.process.kill()
        load.stop()
    again = machines.front.ask(machines.key)
    balancer.stop()
    assert not load.lost, f"no answer, or not in time: {load.lost[:3]}"
    answers = {answer.headers["X-Request-Id"]: answer for answer in load.answers}
    lines = {line["request_id"]: line for line in map(json.loads, balancer.log("access").splitlines())}
    cut = {id_ for id_ in answers if lines[id_]["upstream_status"] != "200"}
    assert len(cut) >= 2, "the replica had nothing in hand"
    assert all(lines[id_]["upstream"].startswith(f"{victim.host}:{PORT}") for id_ in cut)
    # They were waiting for its answer when it ended: nobody came to a closed door.
    errors = [line for line in balancer.log("error").splitlines() if "[error]" in line]
    assert len(errors) == len(cut), errors
    assert all("while reading response header from upstream" in line for line in errors), errors
    failed = {id_ for id_, answer in answers.items() if answer.status != 200}
    assert failed == (set() if asks_again else cut)
    for id_ in failed:
        error = json.loads(answers[id_].body)["error"]
        assert (answers[id_].status, error["code"], error["request_id"]) == (500, "internal_error", id_)
    assert again.status == 200
