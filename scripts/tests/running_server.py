"""A server process for tests: the real binary on a free port, with the built models."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import requests

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
from demo_support import make_key  # noqa: E402

# The environment without settings of a server.
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("DICHROIC_")}
BINARY = Path(os.environ.get("DICHROIC_TEST_BINARY", ROOT / "target" / "debug" / "dichroic"))
ASKED = [name for name in re.split(r"[,\s]+", os.environ.get("MODELS", "")) if name]
MODELS = [
    name
    for name in ("alpha-4o-mini", "beta-3-haiku")
    if not ASKED or name in ASKED
]


class Running:
    """A server process with its address and key."""

    def __init__(self, process: subprocess.Popen[bytes], url: str, key: str, folder: Path) -> None:
        self.process, self.url, self.key, self.folder = process, url, key, folder
        self.log_path = folder / "log"

    def post(self, path: str, body: Any, session: Any = requests, key: str | None = None) -> requests.Response:
        headers = {"Authorization": f"Bearer {key or self.key}"}
        return session.post(self.url + path, json=body, headers=headers, timeout=120)

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(40)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(folder: Path, **settings: str) -> Running:
    assert BINARY.is_file(), f"{BINARY} is missing: run `cargo build` (make test does)"
    port, key = free_port(), make_key()
    environment = {
        **CLEAN,
        "DICHROIC_API_KEY": key,
        "DICHROIC_USAGE_LIMIT": "0",
        "DICHROIC_KEYS_FILE": str(folder / "keys.json"),
        "DICHROIC_LISTEN": f"127.0.0.1:{port}",
        "DICHROIC_REQUEST_TIMEOUT_MS": "110000",
        **settings,
    }
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen([BINARY, "serve"], cwd=ROOT, env=environment, stdout=log, stderr=log)
    running = Running(process, f"http://127.0.0.1:{port}", key, folder)
    try:
        _await_ready(running)
    except BaseException:
        running.stop()
        raise
    return running


def _await_ready(running: Running) -> None:
    deadline = time.monotonic() + 180
    while True:
        try:
            if requests.get(running.url + "/readyz", timeout=30).status_code == 200:
                return
        except (requests.ConnectionError, requests.Timeout):
            # Not bound yet, or bound and busy with the first inferences.
            pass
        assert running.process.poll() is None, (running.folder / "log").read_text()[-2000:]
        assert time.monotonic() < deadline, "the server was not ready in time"
        time.sleep(0.2)
