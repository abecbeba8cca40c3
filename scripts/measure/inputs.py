"""Owns the texts that expressions and replies are asked for: our own lines that
training keeps aside, or files of JSON lines `{"text", "lang"?, "kind"?}`.

What is no statement (`kind`) has nothing to express. An error names file and
line and shows nothing of either.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import MeasureError, texts

# The split belongs to the training, whose scripts are no package.
sys.path.append(str(Path(__file__).resolve().parents[1] / "train"))

import generator_data  # noqa: E402
import text_data  # noqa: E402

STATEMENT = "statement"
KINDS = text_data.EXPRESSIBILITY
SAMPLES = 100

_LANGUAGE = re.compile(r"[a-z]{2,3}(-[A-Za-z0-9]{1,8})*")


@dataclass(frozen=True)
class Input:
    """One text; `place` is where it was found, `written` what people answered to it, by task."""

    # Kept out of the repr, so that no message shows it.
    text: str = field(repr=False)
    lang: str
    kind: str
    source: str
    place: str
    written: Mapping[str, str] = field(repr=False, default_factory=dict)

    @property
    def statement(self) -> bool:
        return self.kind == STATEMENT


@dataclass(frozen=True)
class Inputs:
    """The texts to measure, and how many were left out and why; no files where they are our own."""

    items: list[Input]
    files: list[texts.File]
    blank: int = 0
    long: int = 0
    foreign: int = 0
    beyond_limit: int = 0

    @property
    def sha256(self) -> str:
        """Of the texts in their order: two reports compare where this is equal."""
        return hashlib.sha256(b"".join(item.text.encode() + b"\0" for item in self.items)).hexdigest()


def kept_aside(langs: list[str] | None = None, limit: int | None = None) -> Inputs:
    """The tenth of our own lines that nothing is trained on."""
    return _chosen(_aside(), [], langs, limit)


def from_files(paths: list[Path], langs: list[str] | None = None, limit: int | None = None) -> Inputs:
    """Every line of the files."""
    items, files = [], []
    for path in paths:
        raw = texts.read_bytes(path)
        found = [_input(item, texts.stem(path), place) for place, item in texts.lines(path, raw)]
        files.append(texts.File(path.name, hashlib.sha256(raw).hexdigest(), len(found)))
        items += found
    return _chosen(items, files, langs, limit)


def samples() -> list[Input]:
    """A hundred English statements kept aside, the same on every machine and in no order of ours."""
    found = [item for item in _aside() if item.lang == "en" and item.statement]
    return sorted(found, key=lambda item: text_data.share_of(item.text))[:SAMPLES]


def _aside() -> list[Input]:
    try:
        _, aside = generator_data.split(generator_data.written())
    except OSError as error:
        raise MeasureError(
            f"our own line file {error.filename} cannot be read ({error.strerror}): restore scripts/train/authored, or"
            " give texts with --data"
        ) from None
    return [
        Input(line.text, line.lang, line.kind, line.source, f"held-out line {number}, of {line.source}", line.answers)
        for number, line in enumerate(aside, 1)
    ]


def _input(item: Any, source: str, place: str) -> Input:
    if not isinstance(item, dict) or not isinstance(item.get("text"), str):
        raise MeasureError(f'{place} is not of the form {{"text": …, "lang"?: …, "kind"?: …}}')
    lang, kind = (item.get(key) for key in ("lang", "kind"))
    lang = "en" if lang is None else lang
    kind = STATEMENT if kind is None else kind
    if not isinstance(lang, str) or not _LANGUAGE.fullmatch(lang):
        raise MeasureError(f"{place} has a lang that is no language code such as en")
    if kind not in KINDS:
        raise MeasureError(f"{place} has a kind other than {', '.join(KINDS)}")
    return Input(texts.whole(item["text"]), lang, kind, source, place)


def _chosen(found: list[Input], files: list[texts.File], langs: list[str] | None, limit: int | None) -> Inputs:
    spoken = [item for item in found if langs is None or item.lang in langs]
    said = [item for item in spoken if item.text.strip()]
    # A text cut in the middle would be another text, with other facts.
    short = [item for item in said if len(item.text) <= texts.MOST_CHARACTERS]
    if not short:
        where = f" in {', '.join(langs)}" if langs else ""
        raise MeasureError(
            f"the data hold no text of 1 to {texts.MOST_CHARACTERS} characters{where}: give other --data or --langs"
        )
    taken = texts.spaced(short, limit)
    left = (len(spoken) - len(said), len(said) - len(short), len(found) - len(spoken), len(short) - len(taken))
    return Inputs(taken, files, *left)
