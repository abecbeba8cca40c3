"""Mixed requests: which kind comes when (pure), and asking a server for them.

Of a hundred, one asks for a reply, three show a small picture and the others a
text: replies take seconds on a small machine, and a run has an end.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from demo_support import Server

from .processes import Clock, OutOfTime, SideFailed

GENERATED_EVERY, PICTURE_EVERY = 100, 25
# What is generated, in turn.
GENERATED = ("reply", "pair")
# Sentences of a text, in turn: short ones are the rule, and the longest fill a model's window.
LENGTHS = (1, 1, 1, 2, 1, 3, 1, 5)
CLIENTS = 8
ANSWER_SECONDS = 120
PATHS = {"text": "/v1/guardians/text", "picture": "/v1/guardians/image", "reply": "/v1/sunshines/text", "pair": "/v1/prisms/text"}


@dataclass(frozen=True)
class Request:
    """One request; `number` counts those of its kind to its model and chooses what is asked."""

    kind: str
    model: str
    number: int


@dataclass(frozen=True)
class Mixture:
    """What is asked: different texts, and small pictures in Base64."""

    texts: Sequence[str]
    pictures: Sequence[str]

    def body(self, request: Request) -> dict[str, str]:
        name, given = ("image", self.pictures) if request.kind == "picture" else ("text", self.texts)
        return {name: given[request.number % len(given)], "model": request.model}


def order(count: int, models: Sequence[str]) -> list[Request]:
    """So many requests; every kind goes to each model in turn."""
    seen: Counter[str] = Counter()
    found = []
    for place in range(1, count + 1):
        generated = GENERATED[(place // GENERATED_EVERY - 1) % len(GENERATED)]
        kind = "text" if place % PICTURE_EVERY else "picture" if place % GENERATED_EVERY else generated
        found.append(Request(kind, models[seen[kind] % len(models)], seen[kind] // len(models)))
        seen[kind] += 1
    return found


def few(models: Sequence[str]) -> list[Request]:
    """Requests of every kind and length to each model: a server that has answered them has worked."""
    counts = {"text": len(LENGTHS), "picture": 4, "reply": 2, "pair": 2}
    return [
        Request(kind, model, number) for kind, count in counts.items() for number in range(count) for model in models
    ]


def texts(sentences: Sequence[str]) -> list[str]:
    """As many different texts as sentences, of as many sentences as LENGTHS says."""
    return [
        " ".join(sentences[(number + further) % len(sentences)] for further in range(LENGTHS[number % len(LENGTHS)]))
        for number in range(len(sentences))
    ]


def ask(server: Server, requests: Sequence[Request], mixture: Mixture, clock: Clock, seconds: float) -> None:
    """Asks all of them, several at a time, in their order. One that is refused fails the side."""
    until = time.monotonic() + clock.limit(seconds)
    waiting: SimpleQueue[Request] = SimpleQueue()
    for request in requests:
        waiting.put(request)
    failed = threading.Event()

    def client() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=ANSWER_SECONDS)
        try:
            while not failed.is_set():
                request = waiting.get_nowait()
                if time.monotonic() > until:
                    if clock.left() < 1:
                        raise OutOfTime
                    left = waiting.qsize() + 1
                    raise SideFailed(f"{left} of {len(requests)} requests were left after {seconds:.0f} s")
                _one(connection, server.key, request, mixture.body(request))
        except Empty:
            return
        except (OSError, http.client.HTTPException) as error:
            raise SideFailed(f"a request got no answer ({error!r})") from error
        finally:
            connection.close()

    def guarded() -> None:
        try:
            client()
        except BaseException:
            failed.set()
            raise

    with ThreadPoolExecutor(CLIENTS) as pool:
        for done in [pool.submit(guarded) for _ in range(CLIENTS)]:
            done.result()


def _one(connection: http.client.HTTPConnection, key: str, request: Request, body: dict[str, Any]) -> None:
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    connection.request("POST", PATHS[request.kind], json.dumps(body), headers)
    answer = connection.getresponse()
    raw = answer.read()
    # What our own moderation turned down was generated all the same.
    turned_down = request.kind in GENERATED and answer.status == 500 and b'"generation_rejected"' in raw
    if answer.status != 200 and not turned_down:
        raise SideFailed(f"POST {PATHS[request.kind]} to {request.model} answered {answer.status}: {raw[:120]!r}")
