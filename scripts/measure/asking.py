"""Owns the talk with the server: texts over several kept connections, every
answer checked, 429 waited out.

Each connection is one thread that takes the next text when its last is
answered. The first failure stops them all. Messages name a text by its place
and an error by the server's code, never by what was sent.
"""

from __future__ import annotations

import http.client
import itertools
import json
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from . import MeasureError
from .texts import CATEGORIES, Text, pieces

PATH = "/v1/guardians/text"
ANSWER_SECONDS = 120
# How long one request may be told to come back later, in all.
PATIENCE_SECONDS = 300
SAY_SECONDS = 10


@dataclass(frozen=True)
class Server:
    """Where to ask, as whom, and which model."""

    url: str
    key: str = field(repr=False)
    model: str

    def connect(self) -> http.client.HTTPConnection:
        parts = urlsplit(self.url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        return kind(parts.hostname or "", parts.port, timeout=ANSWER_SECONDS)

    def path(self, path: str) -> str:
        """The path below that of the address, for a server behind a proxy."""
        return urlsplit(self.url).path.rstrip("/") + path


@dataclass(frozen=True)
class Answers:
    """Scores `[texts, 5]`, the highest of a text's pieces, and how the run went."""

    scores: np.ndarray
    requests: int
    refusals: int
    seconds: float
    # Of every answered request, waiting for a 429 to pass not counted.
    latencies: np.ndarray


def checked_url(url: str) -> str:
    """The address without a slash at its end, if it is one."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable or parts.query or parts.fragment or parts.username is not None:
        raise MeasureError("--url must look like http://127.0.0.1:8080")
    return url.rstrip("/")


def digest(server: Server) -> str | None:
    """The digest of the model's text classifier as `/metrics` tells it; None where that is not public."""
    connection = server.connect()
    try:
        connection.request("GET", server.path("/metrics"))
        told = connection.getresponse().read().decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    for labels in re.findall(r"^dichroic_model_info\{([^}]*)\} 1$", told, re.MULTILINE):
        found = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        if (found.get("model"), found.get("component")) == (server.model, "text"):
            return found.get("sha256")
    return None


def ask_all(
    server: Server, texts: list[Text], windows: bool, connections: int, say: Callable[[str], None] = lambda line: None
) -> Answers:
    """Scores every text; raises the first failure once all threads have ended."""
    run = _Run(server, texts, windows)
    started = time.monotonic()
    with ThreadPoolExecutor(connections) as pool:
        try:
            waiting = {pool.submit(run.work) for _ in range(min(connections, len(texts)))}
            while waiting:
                done, waiting = wait(waiting, SAY_SECONDS, FIRST_EXCEPTION)
                for worker in done:
                    worker.result()
                if waiting:
                    say(f"{run.done:,} of {len(texts):,} texts")
        finally:
            # Also on Ctrl-C: nobody begins another text.
            run.stop.set()
    return Answers(run.scores, len(run.latencies), run.refusals, time.monotonic() - started, np.array(run.latencies))


def post(server: Server, path: str, body: dict[str, Any], what: str) -> Any:
    """The server's answer to one request on a connection of its own; `what` names the request in an error."""
    headers = {"Authorization": f"Bearer {server.key}", "Content-Type": "application/json"}
    waited = 0.0
    while True:
        connection = server.connect()
        try:
            connection.request("POST", server.path(path), json.dumps(body), headers)
            answer = connection.getresponse()
            raw = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise MeasureError(f"{server.url} gives no answer ({type(error).__name__})") from None
        finally:
            connection.close()
        if answer.status == 200:
            try:
                return json.loads(raw)
            except ValueError:
                raise MeasureError(f"the answer for {what} is not JSON") from None
        if answer.status != 429 or waited >= PATIENCE_SECONDS:
            raise MeasureError(f"the server answered {answer.status} for {what}")
        time.sleep(1)
        waited += 1


class _Run:
    """What the threads of one run share."""

    def __init__(self, server: Server, texts: list[Text], windows: bool) -> None:
        self.server, self.texts, self.windows = server, texts, windows
        self.scores = np.zeros((len(texts), len(CATEGORIES)))
        self.latencies: list[float] = []
        self.done = self.refusals = 0
        self.stop = threading.Event()
        # next() of a count, and append, are atomic; the sums need the lock.
        self._next = itertools.count()
        self._lock = threading.Lock()

    def work(self) -> None:
        """One connection's share of the texts."""
        connection = self.server.connect()
        try:
            while not self.stop.is_set() and (i := next(self._next)) < len(self.texts):
                text = self.texts[i]
                for piece in pieces(text.text, self.windows):
                    scores = self._ask(connection, piece, text.place)
                    if scores is None:
                        return
                    self.scores[i] = np.maximum(self.scores[i], scores)
                with self._lock:
                    self.done += 1
        except BaseException:
            self.stop.set()
            raise
        finally:
            connection.close()

    def _ask(self, connection: http.client.HTTPConnection, piece: str, place: str) -> list[float] | None:
        """The five scores; None when the run was stopped while waiting."""
        body = json.dumps({"text": piece, "model": self.server.model})
        waited = 0.0
        while True:
            started = time.monotonic()
            status, later, raw = self._post(connection, body)
            if status == 200:
                self.latencies.append(time.monotonic() - started)
                return _scores(raw, place)
            if status != 429:
                raise MeasureError(_refusal(status, raw, self.server, place))
            with self._lock:
                self.refusals += 1
            # A server that says 0 is still given a moment.
            pause = max(0.1, float(later)) if re.fullmatch(r"\d{1,9}", later) else 1.0
            waited += pause
            if waited > PATIENCE_SECONDS:
                raise MeasureError(
                    f"the server was too busy, or the key's usage limit too low, for {PATIENCE_SECONDS} s (429,"
                    f" Retry-After {pause:.0f} s): ask over fewer connections with --concurrency, or use a key with a"
                    " higher limit"
                )
            if self.stop.wait(pause):
                return None

    def _post(self, connection: http.client.HTTPConnection, body: str) -> tuple[int, str, bytes]:
        """Status, Retry-After and body."""
        headers = {"Authorization": f"Bearer {self.server.key}", "Content-Type": "application/json"}
        while True:
            # The server may have closed a kept connection that was idle during a
            # wait; the same on a new one is a failure.
            kept = connection.sock is not None
            try:
                connection.request("POST", self.server.path(PATH), body, headers)
                answer = connection.getresponse()
                return answer.status, answer.headers.get("Retry-After", "").strip(), answer.read()
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                if not kept or isinstance(error, TimeoutError):
                    raise MeasureError(f"{self.server.url} gives no answer ({type(error).__name__})") from None


def _scores(raw: bytes, place: str) -> list[float]:
    try:
        given = json.loads(raw)["category_scores"]
        scores = [given[category] for category in CATEGORIES]
    except (ValueError, KeyError, TypeError):
        raise MeasureError(f"the answer for {place} has no scores of the five categories") from None
    # Written so that NaN, which Python's parser takes, fails too.
    if not all(type(score) in (int, float) and 0 <= score <= 1 for score in scores):
        raise MeasureError(f"the answer for {place} has a score that is not in 0..1")
    return scores


def _refusal(status: int, raw: bytes, server: Server, place: str) -> str:
    """Why the server refused, by its status and code; its message is not repeated, since it could quote the text."""
    try:
        code = str(json.loads(raw)["error"]["code"])
    except (ValueError, KeyError, TypeError):
        code = ""
    code = code if re.fullmatch(r"[a-z_]{1,40}", code) else "no code"
    if status == 401:
        return f"the server does not accept the key ({code})"
    if code == "unknown_model":
        return f"the server knows no model {server.model}"
    if status == 501:
        return f"the server has no text moderation of {server.model} installed ({code})"
    if status == 404:
        return f"there is no {PATH} at {server.url} ({code})"
    return f"the server answered {status} ({code}) for {place}"
