#!/usr/bin/env python3
"""Asks all four operations of a Dichroic server. Needs nothing but Python 3.10.

    DICHROIC_URL=http://127.0.0.1:8080 DICHROIC_KEY=dk_… python3 examples/example.py [model]
"""

import base64
import json
import os
import sys
import time
import urllib.error
import urllib.request

URL = os.environ.get("DICHROIC_URL", "http://127.0.0.1:8080")
TRIES = 5
# A picture of eight by eight pixels. Yours: Path("picture.png").read_bytes()
PICTURE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAIAAABLbSncAAAAdklEQVR42g3JoQEEIQwAsB+HIRiCIRgi+nQ1uhpdjWasJza/5janqWY32awmmu/X"
    "3e501e0uu9VFfzHc4Qw17CGHNcR4Md3pTDXtKac1xXzB5VBskkV4EW44ocIOGVaIeJFuOqnSTplWinxRbjmlyi5ZVony/QEfRGLB4iT3qwAAAABJ"
    "RU5ErkJggg=="
)


class Refused(Exception):
    """The server's error: `code` is the word to act on, `request_id` finds it in the server's log."""

    def __init__(self, status, error):
        super().__init__(f"{status} {error['code']}: {error['message']} (request {error['request_id']})")
        self.status, self.code, self.param, self.request_id = status, error["code"], error["param"], error["request_id"]


def ask(path, body):
    """The answer to `body`. Waits and asks again when the server says so."""
    headers = {"Authorization": f"Bearer {os.environ['DICHROIC_KEY']}", "Content-Type": "application/json"}
    request = urllib.request.Request(URL + path, json.dumps(body).encode(), headers)
    for attempt in range(1, TRIES + 1):
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as answer:
            if answer.status != 429 or attempt == TRIES:
                raise Refused(answer.status, json.load(answer)["error"]) from None
            time.sleep(int(answer.headers.get("Retry-After", 1)))


def main():
    if "DICHROIC_KEY" not in os.environ:
        sys.exit("set DICHROIC_KEY to an API key")
    model = sys.argv[1] if len(sys.argv) > 1 else "alpha-4o-mini"
    questions = {
        "/v1/prisms/text": {"text": "My train is half an hour late again."},
        "/v1/sunshines/text": {"text": "I have an exam tomorrow and I am nervous."},
        "/v1/guardians/text": {"text": "I will find you and hurt you.", "score_threshold": 0.5},
        "/v1/guardians/image": {"image": base64.b64encode(PICTURE).decode()},
    }
    try:
        for path, body in questions.items():
            print(path, json.dumps(ask(path, {**body, "model": model}), ensure_ascii=False), flush=True)
    except Refused as refusal:
        sys.exit(f"{path}: {refusal}")
    except (OSError, ValueError) as error:
        sys.exit(f"{path}: no answer of a Dichroic server: {error}")


if __name__ == "__main__":
    main()
