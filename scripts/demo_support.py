"""What the demonstration needs besides its requests: a key, a free port, a
server that is started and stopped, and two pictures that it draws itself.
scripts/evaluate starts its server here as well.
"""

from __future__ import annotations

import http.client
import io
import json
import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

READY_SECONDS = 180
ANSWER_SECONDS = 120
STOP_SECONDS = 30
# What the caller's environment may say to a server that is started here: where files lie, not how it works.
KEPT = ("DICHROIC_MODELS_DIR", "DICHROIC_RUNTIME_LIBRARY")


class DemoError(Exception):
    """Something that the demonstration expected did not happen."""


def make_key() -> str:
    """An API key in the product's form: 8 characters name it, 40 guard it (160 bits), and `_` only parts them."""
    return f"dk_{secrets.token_hex(4)}_{secrets.token_hex(20)}"


def end_in_order(script: str) -> None:
    """Lets SIGTERM and SIGHUP end a script by way of its `finally`, where what it started is stopped."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        # Whoever began it with nohup wants it to go on.
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda *_: sys.exit(f"{script}: stopped."))


class Server:
    """A running server on a loopback port of its own."""

    def __init__(self, port: int, key: str, pid: int) -> None:
        self.port, self.key, self.pid = port, key, pid
        # Seconds from its start until it was ready; set once it is.
        self.ready_after = 0.0
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_SECONDS)

    def get(self, path: str) -> int:
        try:
            self._connection.request("GET", path)
            answer = self._connection.getresponse()
            answer.read()
            return answer.status
        except (OSError, http.client.HTTPException):
            self._connection.close()
            return 0

    def post(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """Status and parsed body, in the order of keys that the server sent."""
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        try:
            self._connection.request("POST", path, json.dumps(body), headers)
            answer = self._connection.getresponse()
            raw = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise DemoError(f"POST {path} got no answer ({error!r})") from error
        try:
            return answer.status, json.loads(raw)
        except ValueError as error:
            raise DemoError(f"POST {path} answered something that is not JSON: {raw[:200]!r}") from error


@contextmanager
def running(binary: str, root: Path, **settings: str) -> Iterator[Server]:
    """Starts the server, waits until it is ready, and stops it with SIGTERM.

    `settings` are environment variables of this server alone. Those of the
    caller's that are its settings, and the file dichroic.toml, do not count:
    what is measured or shown is to be the same everywhere.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    key = make_key()
    environment = {name: told for name, told in os.environ.items() if not name.startswith("DICHROIC_") or name in KEPT}
    # Its only caller may ask faster than the default limit allows.
    environment |= {**settings, "DICHROIC_API_KEY": key, "DICHROIC_USAGE_LIMIT": "0"}
    with tempfile.TemporaryFile() as log:
        started = time.perf_counter()
        try:
            process = subprocess.Popen(
                [binary, "serve", "--listen", f"127.0.0.1:{port}", "--config", os.devnull],
                cwd=root,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        except OSError as error:
            raise DemoError(f"{binary} cannot be started ({error.strerror}): run make build first") from error
        try:
            server = Server(port, key, process.pid)
            _await_ready(process, server)
            server.ready_after = time.perf_counter() - started
            yield server
            process.send_signal(signal.SIGTERM)
            try:
                code = process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                raise DemoError(f"the server did not stop within {STOP_SECONDS} s of SIGTERM") from None
            if code != 0:
                raise DemoError(f"the server exited with {code} after SIGTERM")
        except Exception:
            log.seek(0)
            lines = log.read().decode(errors="replace").splitlines()[-20:]
            print("\nthe server's last lines:", *lines, sep="\n  ", file=sys.stderr)
            raise
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


def _await_ready(process: subprocess.Popen[bytes], server: Server) -> None:
    until = time.monotonic() + READY_SECONDS
    while server.get("/readyz") != 200:
        if process.poll() is not None:
            killed = process.returncode == -signal.SIGKILL
            memory = ": if memory ran out, name fewer models with MODELS" if killed else ""
            raise DemoError(f"the server exited with {process.returncode} before it was ready{memory}")
        if time.monotonic() > until:
            raise DemoError(f"the server was not ready within {READY_SECONDS} s")
        time.sleep(0.02)


# --- pictures ----------------------------------------------------------------


def photograph() -> bytes:
    """A landscape as a JPEG: graded sky, sun, two ridges, a meadow, film grain."""
    from PIL import Image, ImageDraw, ImageFilter

    width, height = 640, 480
    grain = random.Random(1)
    picture = Image.new("RGB", (width, height))
    draw = ImageDraw.Draw(picture)
    for y in range(height):
        share = y / height
        draw.line([(0, y), (width, y)], (round(90 + 130 * share), round(150 + 70 * share), round(225 - 30 * share)))
    draw.ellipse([470, 60, 540, 130], (255, 244, 200))
    for base, rough, colour in ((260, 46, (92, 112, 128)), (330, 30, (70, 98, 76)), (400, 10, (96, 138, 62))):
        ridge, peak = [(0, height)], float(base)
        for x in range(0, width + 20, 20):
            peak += grain.uniform(-rough, rough) * 0.5 + (base - peak) * 0.3
            ridge.append((x, round(peak)))
        draw.polygon([*ridge, (width, height)], colour)
    for _ in range(5000):
        x, y = grain.randrange(width), grain.randrange(405, height)
        blade = [(x, y), (x + grain.randint(-2, 2), y - grain.randint(2, 9))]
        draw.line(blade, (60 + grain.randrange(70), 110 + grain.randrange(60), 40))
    noise = Image.effect_noise((width, height), 18).convert("RGB")
    picture = Image.blend(picture.filter(ImageFilter.GaussianBlur(0.8)), noise, 0.06)
    return _encoded(picture, "JPEG", quality=88)


def lettering(text: str) -> bytes:
    """Black words on a white card, as a PNG."""
    from PIL import Image, ImageDraw, ImageFont

    picture = Image.new("RGB", (640, 160), "white")
    font = ImageFont.load_default(40)
    ImageDraw.Draw(picture).text((30, 55), text, "black", font=font)
    return _encoded(picture, "PNG")


def _encoded(picture: Any, form: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, form, **options)
    return buffer.getvalue()
