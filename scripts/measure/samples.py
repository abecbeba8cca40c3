"""Owns the sheet of answers for people to read: the same texts, all models side by side, nothing edited.

It holds our own lines only, never a user's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .asking import EXPRESSION, REPLY
from .expressing import FALSE, Said
from .inputs import Input

# What would be markup, in GitHub's dialect too.
_MARKUP = re.compile(r"([\\`*_\[\]|~$#])")


@dataclass(frozen=True)
class Column:
    """A model's answers, in the order of the texts."""

    model: str
    digest: str | None
    said: list[Said]


def sheet(inputs: list[Input], columns: list[Column], missing: list[str]) -> str:
    """The sheet in Markdown."""
    out = [
        "# Samples",
        "",
        f"What the models answer to {len(inputs)} English texts that nothing was trained on, written by"
        " `scripts/evaluate samples` and unedited. The texts are statements of the tenth of our own lines that training"
        " keeps aside, drawn by their hashes. `false` means that the text was taken for one with nothing to express.",
        "",
    ]
    out += [f"- {column.model}: generator {_digest(column)}" for column in columns]
    out += [f"- {model}: not installed" for model in missing]
    for number, item in enumerate(inputs, 1):
        out += ["", *_block(number, item, [(column.model, column.said[number - 1]) for column in columns])]
    return "\n".join(out) + "\n"


def _digest(column: Column) -> str:
    return f"manifest SHA-256 `{column.digest}`" if column.digest else "of unknown digest"


def _block(number: int, item: Input, said: list[tuple[str, Said]]) -> list[str]:
    header = ["", *(model for model, _ in said)]
    rows = [
        ["positive", *(_expression(answer, 0) for _, answer in said)],
        ["negative", *(_expression(answer, 1) for _, answer in said)],
        ["reply", *(_reply(answer) for _, answer in said)],
    ]
    lines = [f"## {number}", "", f"Text: {shown(item.text)}", "", _row(header), "| --- " * len(header) + "|"]
    return lines + [_row(row) for row in rows]


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _expression(said: Said, which: int) -> str:
    if said.inexpressible:
        return f"`{FALSE}`"
    return shown(said.expressions[which]) if said.expressions else _failed(said, EXPRESSION)


def _reply(said: Said) -> str:
    return shown(said.reply) if said.reply else _failed(said, REPLY)


def _failed(said: Said, path: str) -> str:
    return f"*no answer ({said.errors[path].replace('_', ' ')})*"


def shown(text: str) -> str:
    """A text so that Markdown shows it as it is, on one line of a table."""
    safe = _MARKUP.sub(r"\\\1", text.strip().replace("&", "&amp;").replace("<", "&lt;"))
    return "<br>".join(safe.splitlines())
