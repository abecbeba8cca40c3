"""Asks the server for expressions and replies, and has it moderate them.

A request that fails is counted by its code and the run goes on: what a model
cannot answer belongs into its figures. Only what would fail every text, such as
a wrong key, ends the run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from . import MeasureError
from .asking import EXPRESSION, REPLY, Course, Server, Talk, moderated, refusal, spread
from .inputs import Input
from .texts import pieces

# What both expressions are where there is nothing to express.
FALSE = "false"
FIELDS = {EXPRESSION: ("positive", "negative"), REPLY: ("text",)}
FLAGGED = 0.5
BLANK = "blank_answer"


@dataclass(frozen=True)
class Said:
    """What the server made of one text; an operation that is in `errors` gave no answer."""

    # Absent also where nothing can be expressed.
    expressions: tuple[str, str] | None = field(repr=False)
    inexpressible: bool
    reply: str | None = field(repr=False)
    # By operation: the error's code; seconds until an answer; answers that its own moderation flags.
    errors: Mapping[str, str]
    seconds: Mapping[str, float]
    flagged: Mapping[str, int]


def ask_all(
    server: Server,
    inputs: list[Input],
    connections: int,
    say: Callable[[str], None] = lambda line: None,
    moderate: bool = True,
) -> tuple[list[Said], Course]:
    """What is said to every text, in their order."""
    found: dict[int, Said] = {}

    def work(talk: Talk, i: int) -> None:
        found[i] = _said(talk, inputs[i], moderate)

    course = spread(server, len(inputs), connections, work, say)
    return [found[i] for i in range(len(inputs))], course


def _said(talk: Talk, item: Input, moderate: bool) -> Said:
    answers: dict[str, tuple[str, ...]] = {}
    errors: dict[str, str] = {}
    seconds: dict[str, float] = {}
    for path, fields in FIELDS.items():
        reply = talk.ask(path, text=item.text)
        if reply.status == 200:
            answer = _strings(reply.raw, path, fields, item.place)
            if all(map(str.strip, answer)):
                answers[path], seconds[path] = answer, reply.seconds
            else:
                errors[path] = BLANK
        elif reply.status in (401, 404, 501) or reply.code == "unknown_model":
            raise refusal(reply, path, talk.server, item.place)
        else:
            errors[path] = reply.code
    inexpressible = answers.get(EXPRESSION) == (FALSE, FALSE)
    if inexpressible:
        del answers[EXPRESSION]
    place = f"an answer to {item.place}"
    flagged = {path: sum(_flagged(talk, text, place) for text in said) for path, said in answers.items() if moderate}
    expressions, reply_text = answers.get(EXPRESSION), answers.get(REPLY)
    both = (expressions[0], expressions[1]) if expressions else None
    return Said(both, inexpressible, reply_text[0] if reply_text else None, errors, seconds, flagged)


def _strings(raw: bytes, path: str, fields: tuple[str, ...], place: str) -> tuple[str, ...]:
    try:
        found = json.loads(raw)
        answer = tuple(found[name] for name in fields)
    except (ValueError, KeyError, TypeError):
        answer = (None,)
    if not all(isinstance(text, str) for text in answer):
        raise MeasureError(
            f"the answer of {path} for {place} has no {' and '.join(fields)}: ask a Dichroic server of this version"
        )
    return answer


def _flagged(talk: Talk, text: str, place: str) -> bool:
    # An expression may be longer than a text that is taken for moderation.
    return any(max(moderated(talk, piece, place)[0]) >= FLAGGED for piece in pieces(text, windows=True))
