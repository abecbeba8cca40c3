"""The demonstration against a stand-in server: it must pass only when every
answer has the contract's shape and the server stops as asked.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parents[1]
SERVER = '''#!{python}
import http.server, json, os, signal, sys, time
ANSWERS = json.loads({answers!r})

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        self.answer(200 if self.path == "/readyz" else 404, {{}})
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(ANSWERS["wait"])
        key = os.environ["DICHROIC_API_KEY"]
        allowed = self.headers["Authorization"] == "Bearer " + key and len(key) >= 32
        self.answer(200 if allowed else 401, ANSWERS[self.path])
    def answer(self, status, body):
        raw = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)
    def log_message(self, *_):
        pass

assert sys.argv[1:3] == ["serve", "--listen"] and sys.argv[4:] == ["--config", "/dev/null"]
assert not os.environ.keys() & {{"DICHROIC_SPECULATION", "DICHROIC_URL"}}, "settings of the caller"
assert os.environ["DICHROIC_MODELS_DIR"] == "elsewhere"
open({pid!r}, "w").write(str(os.getpid()))
signal.signal(signal.SIGTERM, lambda *_: os._exit(ANSWERS["exit"]))
host, port = sys.argv[3].split(":")
http.server.HTTPServer((host, int(port)), Handler).serve_forever()
'''
SCORES = {"sexual": 0.01, "hate": 0.2, "self_harm": 0, "violence": 0.1, "defamation": 0.05}
HATEFUL = {**SCORES, "hate": 0.9}
VERDICT = {"flagged": False, "categories": dict.fromkeys(SCORES, False), "category_scores": SCORES}


def answers(**changed: Any) -> dict[str, Any]:
    return {
        "/v1/prisms/text": {"positive": "Good.", "negative": "Bad."},
        "/v1/sunshines/text": {"text": "Well done!"},
        "/v1/guardians/text": VERDICT,
        "/v1/guardians/image": VERDICT,
        "exit": 0,
        "wait": 0,
        **changed,
    }


def start(folder: Path, given: dict[str, Any]) -> subprocess.Popen[str]:
    server, pid = folder / "server", str(folder / "pid")
    server.write_text(SERVER.format(python=sys.executable, answers=json.dumps(given), pid=pid))
    server.chmod(0o755)
    shell = {"DICHROIC_SPECULATION": "lookup", "DICHROIC_URL": "http://127.0.0.1:1", "DICHROIC_MODELS_DIR": "elsewhere"}
    return subprocess.Popen(
        [sys.executable, str(SCRIPTS / "demo"), str(server)],
        env={**os.environ, **shell, "MODELS": "beta-3-haiku"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Where the tests run in the background, or under nohup, a child would inherit that they are not heeded.
        preexec_fn=heed_signals,
    )


def heed_signals() -> None:
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)


def demo(folder: Path, given: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    process = start(folder, given)
    out, err = process.communicate(timeout=60)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def test_all_four_operations_are_asked_and_shown(tmp_path: Path) -> None:
    done = demo(tmp_path, answers())

    assert done.returncode == 0, done.stdout + done.stderr
    for path in ("prisms/text", "sunshines/text", "guardians/text", "guardians/image"):
        assert f"POST /v1/{path}" in done.stdout
    assert "every answer has the right shape" in done.stdout


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"/v1/prisms/text": {"negative": "Bad.", "positive": "Good."}}, "its keys are not positive, negative"),
        ({"/v1/prisms/text": {"positive": "false", "negative": "Bad."}}, 'only one of the two is "false"'),
        ({"/v1/sunshines/text": {"text": "x" * 201}}, "longer than 200"),
        ({"/v1/guardians/text": {**VERDICT, "flagged": True}}, "flagged contradicts"),
        ({"/v1/guardians/image": {**VERDICT, "category_scores": HATEFUL}}, "hate contradicts its score"),
        ({"/v1/guardians/image": {**VERDICT, "category_scores": {**SCORES, "hate": True}}}, "hate is not in 0..1"),
        ({"exit": 3}, "the server exited with 3 after SIGTERM"),
    ],
)
def test_a_wrong_shape_or_a_bad_end_fails(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    done = demo(tmp_path, answers(**changed))

    assert done.returncode == 1
    assert said in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_demonstration_that_is_stopped_leaves_no_server(tmp_path: Path, number: signal.Signals) -> None:
    # The first answer never comes.
    process = start(tmp_path, answers(wait=60))
    pid, until = tmp_path / "pid", time.monotonic() + 30
    while not (pid.exists() and pid.read_text()) and time.monotonic() < until:
        time.sleep(0.05)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)

    assert process.returncode == 1 and err == "demo: stopped.\n"
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)
