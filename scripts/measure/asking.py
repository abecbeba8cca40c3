"""Owns the talk with the server: texts and pictures over several kept connections,
429 waited out, refusals put into words. The moderation of texts is asked for
here; `expressing` asks for expressions and replies, `images` for the moderation
of pictures.

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

MODERATION, IMAGE = "/v1/guardians/text", "/v1/guardians/image"
EXPRESSION, REPLY = "/v1/prisms/text", "/v1/sunshines/text"
# What an operation needs of a model.
NEEDED = {MODERATION: "text moderation", IMAGE: "image moderation", EXPRESSION: "generator", REPLY: "generator"}
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


class NotInstalled(MeasureError):
    """The server lives, but has not got what was asked for."""


@dataclass(frozen=True)
class Reply:
    """What came back, and after how long; waiting for a 429 to pass is not counted."""

    status: int
    raw: bytes = field(repr=False)
    seconds: float

    @property
    def code(self) -> str:
        """The server's word for an error; its message is not repeated, since it could quote the text."""
        try:
            code = str(json.loads(self.raw)["error"]["code"])
        except (ValueError, KeyError, TypeError):
            code = ""
        return code if re.fullmatch(r"[a-z_]{1,40}", code) else "no code"


@dataclass(frozen=True)
class Course:
    """How a run went."""

    seconds: float
    refusals: int


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


def digest(server: Server, component: str = "text") -> str | None:
    """The digest of a component of the model as `/metrics` tells it; None where that is not public."""
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
        if (found.get("model"), found.get("component")) == (server.model, component):
            return found.get("sha256")
    return None


def ask_all(
    server: Server, texts: list[Text], windows: bool, connections: int, say: Callable[[str], None] = lambda line: None
) -> Answers:
    """Scores every text."""
    scores = np.zeros((len(texts), len(CATEGORIES)))
    latencies: list[float] = []

    def work(talk: Talk, i: int) -> None:
        for piece in pieces(texts[i].text, windows):
            found, seconds = moderated(talk, piece, texts[i].place)
            scores[i] = np.maximum(scores[i], found)
            latencies.append(seconds)

    course = spread(server, len(texts), connections, work, say)
    return Answers(scores, len(latencies), course.refusals, course.seconds, np.array(latencies))


def moderated(talk: Talk, piece: str, place: str) -> tuple[list[float], float]:
    """The five scores of a piece, and how long they took."""
    reply = talk.ask(MODERATION, text=piece)
    if reply.status != 200:
        raise refusal(reply, MODERATION, talk.server, place)
    return scores_of(reply, place), reply.seconds


def spread(
    server: Server,
    count: int,
    connections: int,
    work: Callable[[Talk, int], None],
    say: Callable[[str], None] = lambda line: None,
    what: str = "texts",
) -> Course:
    """Calls `work` once for each number below `count`, over several connections.

    Raises the first failure once all threads have ended.
    """
    stop = threading.Event()
    talks = [Talk(server, stop) for _ in range(min(connections, count))]
    # next() of a count is atomic.
    numbers = itertools.count()

    def share(talk: Talk) -> None:
        try:
            while not stop.is_set() and (i := next(numbers)) < count:
                work(talk, i)
                talk.done += 1
        except _Stopped:
            pass
        except BaseException:
            stop.set()
            raise
        finally:
            talk.close()

    started = time.monotonic()
    with ThreadPoolExecutor(len(talks)) as pool:
        try:
            waiting = {pool.submit(share, talk) for talk in talks}
            while waiting:
                done, waiting = wait(waiting, SAY_SECONDS, FIRST_EXCEPTION)
                for worker in done:
                    worker.result()
                if waiting:
                    say(f"{sum(talk.done for talk in talks):,} of {count:,} {what}")
        finally:
            # Also on Ctrl-C: nobody begins another text.
            stop.set()
    return Course(time.monotonic() - started, sum(talk.refusals for talk in talks))


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


class _Stopped(Exception):
    """The run has ended, and nobody waits for this answer any more."""


class Talk:
    """One kept connection, used by one thread."""

    def __init__(self, server: Server, stop: threading.Event) -> None:
        self.server = server
        self.done = self.refusals = 0
        self._stop = stop
        self._connection = server.connect()

    def close(self) -> None:
        self._connection.close()

    def ask(self, path: str, **content: str) -> Reply:
        """The answer to a text or picture; comes back later for as long as the server says to."""
        body = json.dumps({**content, "model": self.server.model})
        waited = 0.0
        while True:
            started = time.monotonic()
            status, later, raw = self._post(path, body)
            if status != 429:
                return Reply(status, raw, time.monotonic() - started)
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
            if self._stop.wait(pause):
                raise _Stopped

    def _post(self, path: str, body: str) -> tuple[int, str, bytes]:
        """Status, Retry-After and body."""
        headers = {"Authorization": f"Bearer {self.server.key}", "Content-Type": "application/json"}
        while True:
            # The server may have closed a kept connection that was idle during a
            # wait; the same on a new one is a failure.
            kept = self._connection.sock is not None
            try:
                self._connection.request("POST", self.server.path(path), body, headers)
                answer = self._connection.getresponse()
                return answer.status, answer.headers.get("Retry-After", "").strip(), answer.read()
            except (OSError, http.client.HTTPException) as error:
                self._connection.close()
                if not kept or isinstance(error, TimeoutError):
                    raise MeasureError(f"{self.server.url} gives no answer ({type(error).__name__})") from None


def scores_of(reply: Reply, place: str) -> list[float]:
    """The five scores of a verdict on a text or a picture."""
    try:
        given = json.loads(reply.raw)["category_scores"]
        scores = [given[category] for category in CATEGORIES]
    except (ValueError, KeyError, TypeError):
        raise MeasureError(f"the answer for {place} has no scores of the five categories") from None
    # Written so that NaN, which Python's parser takes, fails too.
    if not all(type(score) in (int, float) and 0 <= score <= 1 for score in scores):
        raise MeasureError(f"the answer for {place} has a score that is not in 0..1")
    return scores


def refusal(reply: Reply, path: str, server: Server, place: str) -> MeasureError:
    """Why the server refused, by its status and code."""
    code = reply.code
    if reply.status == 401:
        return MeasureError(f"the server does not accept the key ({code})")
    if code == "unknown_model":
        return MeasureError(f"the server knows no model {server.model}")
    if reply.status == 501:
        return NotInstalled(
            f"the server has no {NEEDED[path]} of {server.model} installed ({code}): run make models where it runs, or"
            " name another model"
        )
    if reply.status == 404:
        return MeasureError(f"there is no {path} at {server.url} ({code})")
    return MeasureError(f"the server answered {reply.status} ({code}) for {place}")
