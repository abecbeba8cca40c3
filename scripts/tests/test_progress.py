"""The bar of long work, as a terminal shows it: drawn while something is done, and gone afterwards."""

from __future__ import annotations

import fcntl
import hashlib
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "scripts" / "tests")]

from running_server import BINARY, Running, start  # noqa: E402

MODEL = "beta-3-haiku"
SECONDS = 120
CLEARED = "\r\x1b[2K"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a model, and a bundle of one file."""
    folder = tmp_path_factory.mktemp("progress")
    shutil.copytree(ROOT / "tests/fixtures/tiny-text", folder / "models" / MODEL / "build" / "text")
    (folder / "bundle").mkdir()
    (folder / "bundle/server").write_bytes(b"server")
    (folder / "bundle/SHA256SUMS").write_text(f"{hashlib.sha256(b'server').hexdigest()}  server\n", encoding="utf-8")
    return folder


def environment(**more: str) -> dict[str, str]:
    left_out = ("DICHROIC_", "NO_COLOR", "CLICOLOR")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    return {**clean, "DICHROIC_RUNTIME_LIBRARY": str(ROOT / "runtime/libonnxruntime.so"), "TERM": "xterm", **more}


def on_a_terminal(folder: Path, *words: str, **settings: str) -> str:
    """What a command, which must succeed, writes to a terminal that is both of its outputs."""
    here, there = pty.openpty()
    fcntl.ioctl(there, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    command = [str(BINARY), *words]
    process = subprocess.Popen(
        command, cwd=folder, env=environment(**settings), stdin=subprocess.DEVNULL, stdout=there, stderr=there
    )
    os.close(there)
    written, end = b"", time.monotonic() + SECONDS
    try:
        while select.select([here], [], [], max(0.0, end - time.monotonic()))[0]:
            try:
                written += os.read(here, 65_536)
            except OSError:
                # The other side is closed: the command has ended.
                break
        assert process.wait(max(0.1, end - time.monotonic())) == 0, written
    finally:
        process.kill()
        process.wait()
        os.close(here)
    return written.decode()


def screen(written: str) -> list[str]:
    """The lines that are left to see."""
    lines = [line.rsplit(CLEARED, 1)[-1] for line in written.replace("\r\n", "\n").split("\n")]
    assert not any("\r" in line or "\x1b" in line for line in lines), lines
    return [line for line in lines if line]


def bars(written: str) -> list[str]:
    return [line.strip() for line in re.split("[\r\n]+", written.replace("\x1b[2K", "")) if re.search("[█░]{10}", line)]


@pytest.mark.parametrize("colours", [{}, {"NO_COLOR": "1"}])
def test_a_check_of_files_shows_how_far_it_is(folder: Path, colours: dict[str, str]) -> None:
    for words, work, size, left in [
        (["models", "verify"], f"{MODEL} text", r"9\.1\d kB", [rf"ok +{MODEL} +text +2 files, 0\.1 MB"]),
        (["check", "--bundle", "bundle"], "comparing files", "6 B", ["ok +list +1 files", "ok +files +each as listed"]),
    ]:
        written = on_a_terminal(folder, *words, **colours)
        drawn = bars(written)
        assert drawn and all(re.fullmatch(rf"{work}  [█░]{{24}}  \S+ k?B of {size}", line) for line in drawn), written
        assert re.search(f"█{{24}}  {size} of {size}", drawn[-1]), drawn
        seen = screen(written)
        assert len(seen) == len(left) and all(re.match(*pair) for pair in zip(left, seen)), seen
        assert not re.search(r"\x1b\[[\d;]*m", written), "a bar has no colours"


def test_a_whole_check_and_an_addition_clear_their_bars(folder: Path) -> None:
    settings = {"DICHROIC_MODELS": MODEL, "DICHROIC_API_KEY": "a-key-for-the-tests-of-the-bars"}
    written = on_a_terminal(folder, "check", **settings)
    assert any(line.startswith("comparing files") for line in bars(written)), written
    assert all(line.startswith("ok ") for line in screen(written)), written

    source = str(ROOT / "tests/fixtures/tiny-sigmoid")
    place = ["--id", MODEL, "--models-dir", "own", "--map", "toxic=hate"]
    written = on_a_terminal(folder, "models", "add", source, *place)
    works = [line.split("  ")[0] for line in bars(written)]
    assert list(dict.fromkeys(works)) == ["copying files", "comparing files"], written
    assert screen(written)[0].startswith(f"{MODEL}  text  tiny-sigmoid  "), written


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Running]:
    running = start(folder, DICHROIC_MODELS_DIR=str(folder / "models"))
    try:
        yield running
    finally:
        running.stop()


def test_a_load_run_shows_how_far_it_is(folder: Path, server: Running) -> None:
    words = ["bench", "--url", server.url, "--model", MODEL, "--requests", "20", "--seconds", "60"]
    written = on_a_terminal(folder, *words, DICHROIC_API_KEY=server.key)
    drawn = bars(written)
    assert drawn and all(re.search(r" \d+/20 .* of at most 60 s$", line) for line in drawn), written
    assert screen(written)[0].startswith("guardian_text at "), written


def test_nobody_who_is_no_terminal_gets_a_bar(folder: Path) -> None:
    for words in (["models", "verify"], ["check", "--bundle", "bundle"]):
        command = [str(BINARY), *words]
        done = subprocess.run(
            command, cwd=folder, env=environment(), capture_output=True, text=True, check=True, timeout=SECONDS
        )
        assert done.stderr == "" and not re.search("[\r\x1b█░]", done.stdout), done
    assert bars(on_a_terminal(folder, "models", "verify", TERM="dumb")) == []
