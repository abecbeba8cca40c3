"""Runs a server where nothing but loopback exists and nothing can be written,
asks it, and tells what it saw. Not a test by itself: tests call `seen_apart`,
which starts this file again in namespaces of its own. That takes root; the
server is started as a user who has no rights.
"""

from __future__ import annotations

import ctypes
import fcntl
import http.client
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

USER = 65532
PORT = 8080
KEY = "a-key-for-this-test-alone"
READY_SECONDS = 300
LIBC = ctypes.CDLL(None)
# Why a test is skipped whose user may do none of this. Where root may not either, that is a failure.
TAKES_ROOT = "making a network and a mount namespace takes root"


@dataclass(frozen=True)
class Plan:
    """What is started, and what it is asked."""

    command: list[str]
    # Where, inside the root.
    folder: str
    requests: list[dict[str, Any]]
    environment: dict[str, str] = field(default_factory=dict)
    # All that the server can reach of this machine, and what is mounted there: folders by their places inside.
    root: str = "/"
    mounts: dict[str, str] = field(default_factory=dict)
    # Programs to start in the server's place, only to see which can be.
    tried: list[str] = field(default_factory=list)

    def enter(self) -> None:
        """Makes a process that was just forked the server's."""
        os.chroot(self.root)
        os.chdir(self.folder)
        os.setgroups([])
        os.setresgid(USER, USER, USER)
        os.setresuid(USER, USER, USER)
        LIBC.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it ends with this script, however that ends


def seen_apart(plan: Plan, timeout: float) -> dict[str, Any]:
    """What this script sees in a network and a mount namespace of its own."""
    command = ["unshare", "--net", "--mount", "--", sys.executable, __file__]
    asked = json.dumps(asdict(plan))
    done = subprocess.run(command, input=asked, capture_output=True, text=True, check=False, timeout=timeout)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["answers"], f"the server was never ready: {seen['log']}"
    return seen


def main() -> None:
    plan = Plan(**json.load(sys.stdin))
    raise_loopback()
    mount(plan)
    make_read_only()
    before = counters()
    client = Client()
    log = os.memfd_create("log")
    server = subprocess.Popen(
        plan.command,
        # Nothing from outside.
        env={"DICHROIC_API_KEY": KEY, **plan.environment},
        preexec_fn=plan.enter,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
    )
    try:
        seen = watch(server, client, plan.requests)
        server.send_signal(signal.SIGTERM)
        seen["exit_code"] = server.wait(60)
    finally:
        if server.poll() is None:
            server.kill()
            server.wait()
        os.lseek(log, 0, os.SEEK_SET)
        said = os.read(log, 1 << 20).decode(errors="replace")
    after = counters()
    seen["counted"] = {name: after[name] - before[name] for name in after}
    seen["connections_of_the_client"] = client.connections
    # The counters must be able to show what did not happen.
    try_to_leave()
    seen["counted_when_somebody_tries"] = {name: value - after[name] for name, value in counters().items()}
    seen["log"] = said[-4000:]
    seen["started"] = [program for program in plan.tried if can_be_started(plan, program)]
    print(json.dumps(seen))


def watch(server: subprocess.Popen[bytes], client: Client, requests: list[dict[str, Any]]) -> dict[str, Any]:
    until = time.monotonic() + READY_SECONDS
    while client.ask("GET", "/readyz")[0] != 200:
        if server.poll() is not None or time.monotonic() > until:
            return {"answers": [], "exit": server.poll()}
        time.sleep(0.2)
    process = Path("/proc", str(server.pid))
    answers, peers = [], set()
    for request in requests:
        answers.append(client.ask("POST", request["path"], request["body"], lambda: peers.update(remotes(process))))
    status = (process / "status").read_text()
    return {
        "answers": answers,
        "interfaces": sorted(re.findall(r"^\s*(\S+):", (process / "net/dev").read_text(), re.MULTILINE)),
        "routes": (process / "net/route").read_text().splitlines()[1:],
        "peers": sorted(peers),
        "user": re.search(r"^Uid:\s+(.*)$", status, re.MULTILINE)[1].split(),
        "capabilities": re.search(r"^CapEff:\s+(\S+)$", status, re.MULTILINE)[1],
        "writable": writable(process),
    }


class Client:
    """Counts each connection that it opens, or tries to."""

    def __init__(self) -> None:
        self.connections = 0

    def ask(self, method: str, path: str, body: Any = None, meanwhile: Any = None) -> tuple[int, Any]:
        self.connections += 1
        connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=300)
        try:
            headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            raw = answer.read()
            if meanwhile:
                meanwhile()
            return answer.status, json.loads(raw) if body is not None else None
        except OSError:
            return 0, None
        finally:
            connection.close()


# --- the network ------------------------------------------------------------------


def raise_loopback() -> None:
    with socket.socket() as control:
        flags = fcntl.ioctl(control, 0x8913, struct.pack("16sH14x", b"lo", 0))  # SIOCGIFFLAGS
        up = struct.unpack("16sH14x", flags)[1] | 1  # IFF_UP
        fcntl.ioctl(control, 0x8914, struct.pack("16sH14x", b"lo", up))  # SIOCSIFFLAGS


def counters() -> dict[str, int]:
    """What this network has counted so far, IPv4 and IPv6 together: connections
    opened, datagrams sent, and packets for which there was no way.
    """
    found: dict[str, int] = {}
    lines = Path("/proc/net/snmp").read_text().splitlines()
    for names, values in zip(lines[::2], lines[1::2]):
        group = names.split(":")[0]
        found.update({group + name: int(value) for name, value in zip(names.split()[1:], values.split()[1:])})
    newer = Path("/proc/net/snmp6")
    for line in newer.read_text().splitlines() if newer.exists() else []:
        name, value = line.split()
        found[name] = int(value)
    return {
        "connections": found["TcpActiveOpens"],
        "datagrams": found["UdpOutDatagrams"] + found.get("Udp6OutDatagrams", 0),
        "no_way": found["IpOutNoRoutes"] + found.get("Ip6OutNoRoutes", 0),
    }


def remotes(process: Path) -> set[str]:
    """The other ends of every socket in the server's network, ports left out."""
    found = set()
    for name in ("tcp", "tcp6", "udp", "udp6", "raw", "raw6"):
        table = process / "net" / name
        for line in table.read_text().splitlines()[1:] if table.exists() else []:
            words = bytes.fromhex(line.split()[2].split(":")[0])
            # Each 32 bits stand in the order of this machine.
            address = b"".join(words[at : at + 4][::-1] for at in range(0, len(words), 4))
            found.add(socket.inet_ntop(socket.AF_INET if len(address) == 4 else socket.AF_INET6, address))
    return found


def try_to_leave() -> None:
    """Towards addresses that are set aside for documents, by TCP and by UDP."""
    for family, address in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            try:
                with socket.socket(family, kind) as way_out:
                    way_out.connect((address, 53))
            except OSError:
                continue
            raise SystemExit(f"there is a way to {address}")


# --- the file system ----------------------------------------------------------------


def mount(plan: Plan) -> None:
    """Makes the plan's root a mount, and mounts what belongs there."""
    if plan.root != "/":
        for target, source in {"": plan.root, **plan.mounts}.items():
            subprocess.run(["mount", "--bind", source, plan.root + target], check=True)


def can_be_started(plan: Plan, program: str) -> bool:
    quiet = subprocess.DEVNULL
    try:
        subprocess.run(
            [program], env={}, preexec_fn=plan.enter, stdin=quiet, stdout=quiet, stderr=quiet, check=False, timeout=60
        )
    except FileNotFoundError:
        return False
    return True


def make_read_only() -> None:
    for point in mounts(Path("/proc/self")):
        subprocess.run(["mount", "-o", "remount,bind,ro", point], capture_output=True, check=False)
    left = writable(Path("/proc/self"))
    if "/" in left:
        sys.exit("the root of this mount namespace cannot be made read-only")


def mounts(process: Path) -> list[str]:
    lines = (process / "mounts").read_text().splitlines()
    # Spaces and their like are written as octal numbers.
    unescape = re.compile(r"\\([0-7]{3})")
    return [unescape.sub(lambda code: chr(int(code[1], 8)), line.split()[1]) for line in lines]


def writable(process: Path) -> list[str]:
    """Mounts that can be reached and are not read-only; of several at one place the uppermost counts."""
    found = []
    for point in sorted(set(mounts(process))):
        try:
            if not os.statvfs(process / "root" / point.lstrip("/")).f_flag & os.ST_RDONLY:
                found.append(point)
        except OSError:
            continue
    return found


if __name__ == "__main__":
    main()
