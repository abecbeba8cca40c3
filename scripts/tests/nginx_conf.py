"""deploy/nginx.conf for the tests: read, and run in a real nginx."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import crossplane
from rust_sources import ROOT
from tiny_replica import eventually

NGINX = Path(sys.executable).with_name("nginx")


def directives(path: Path) -> list[dict[str, Any]]:
    """Every directive with the names of the blocks around it, as `http/upstream dichroic/server`."""
    parsed = crossplane.parse(str(path), check_ctx=False, check_args=False)
    assert parsed["status"] == "ok", parsed["errors"]
    return list(_flat(parsed["config"][0]["parsed"], ""))


def _flat(block: list[dict[str, Any]], above: str) -> Iterator[dict[str, Any]]:
    for item in block:
        if "block" in item:
            name = " ".join([item["directive"], *item["args"]])
            yield from _flat(item["block"], f"{above}{name}/")
        else:
            yield {"path": f"{above}{item['directive']}", "args": item["args"]}


def seconds(text: str) -> float:
    """A time as nginx and Compose write it."""
    number, unit = re.fullmatch(r"(\d+)(ms|s|m)", text).groups()
    return int(number) * {"ms": 0.001, "s": 1, "m": 60}[unit]


def size(text: str) -> int:
    number, unit = re.fullmatch(r"(\d+)([kmg]?)", text.lower()).groups()
    return int(number) * {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}[unit]


class Nginx:
    """An nginx with deploy/nginx.conf for other addresses, with all that it writes in `folder`."""

    def __init__(
        self, folder: Path, address: tuple[str, int], replicas: list[str], changes: Mapping[str, str] | None = None
    ) -> None:
        self.folder, (self.host, self.port) = folder, address
        text = (ROOT / "deploy/nginx.conf").read_text(encoding="utf-8")
        (second,) = re.findall(r"^.* dichroic-2:.*\n", text, flags=re.MULTILINE)
        further = [second.replace("dichroic-2", f"dichroic-{number}") for number in range(3, len(replicas) + 1)]
        text = replaced(text, second, second + "".join(further))
        for number, replica in enumerate(replicas, start=1):
            text = replaced(text, f"dichroic-{number}:8080", replica)
        text = replaced(text, "listen 8080;", f"listen {self.host}:{self.port};")
        text = replaced(text, "/tmp/", f"{folder}/")
        text = replaced(text, "/dev/stdout", f"{folder}/access")
        text = replaced(text, "/dev/stderr", f"{folder}/error")
        for old, new in (changes or {}).items():
            text = replaced(text, old, new)
        (folder / "nginx.conf").write_text(text, encoding="utf-8")
        # Workers of an nginx that root starts would be somebody who may not enter this folder.
        alone = "daemon off; user root;" if os.geteuid() == 0 else "daemon off;"
        command: list[str | Path] = [NGINX, "-p", folder, "-c", "nginx.conf", "-e", folder / "error", "-g", alone]
        # A session of its own, to which its workers belong.
        self.process = subprocess.Popen(command, start_new_session=True)
        try:
            eventually(self._listens, "nginx does not listen")
        except BaseException:
            self.stop()
            raise

    def _listens(self) -> bool:
        assert self.process.poll() is None, self.log("error")
        with socket.socket() as probe:
            return probe.connect_ex((self.host, self.port)) == 0

    def log(self, name: str) -> str:
        """What is in `access` or `error`."""
        return (self.folder / name).read_text(encoding="utf-8")

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            # Workers would outlive a master that is killed alone.
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def replaced(text: str, old: str, new: str) -> str:
    assert old in text, f"{old} is not in nginx.conf"
    return text.replace(old, new)
