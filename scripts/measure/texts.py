"""Owns the measured texts: reading them with their labels, and cutting long ones.

A file holds JSON lines of `{"text", "labels", "source"?}`, plain or packed by gzip or bzip2.
`labels` says 1, 0 or null of each category; what is null or absent was not
judged and is masked. An error names file and line and shows nothing of either.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import MeasureError

CATEGORIES = ("sexual", "hate", "self_harm", "violence", "defamation")

# The operation's limit, in Unicode scalar values.
MOST_CHARACTERS = 500
# Pieces of a long text overlap by a quarter, so that no sentence of common
# length is seen only in halves.
STRIDE = 375
OVERLAP = MOST_CHARACTERS - STRIDE

_SURROGATES = re.compile("[\ud800-\udfff]")
_SOURCE = re.compile(r"[^\x00-\x1f\x7f\u2028\u2029]{1,80}")


@dataclass(frozen=True)
class Text:
    """One text with what its source says of it; `place` is its file and line."""

    # Kept out of the repr, so that no message shows it.
    text: str = field(repr=False)
    labels: tuple[int | None, ...]
    source: str
    place: str


@dataclass(frozen=True)
class File:
    """What the report says of a data file."""

    name: str
    sha256: str
    texts: int


@dataclass(frozen=True)
class Data:
    """The texts to measure, and how many were left out and why."""

    texts: list[Text]
    files: list[File]
    blank: int
    unjudged: int
    beyond_limit: int


def read(paths: list[Path], windows: bool = False, limit: int | None = None) -> Data:
    """Reads every file; with a limit, takes that many texts evenly spaced."""
    found: list[Text] = []
    files = []
    blank = unjudged = 0
    for path in paths:
        raw = read_bytes(path)
        texts = [_text(item, stem(path), place) for place, item in lines(path, raw)]
        files.append(File(path.name, hashlib.sha256(raw).hexdigest(), len(texts)))
        for text in texts:
            if not any(map(str.strip, pieces(text.text, windows))):
                blank += 1
            elif all(label is None for label in text.labels):
                unjudged += 1
            else:
                found.append(text)
    if not found:
        raise MeasureError("the data hold no text with a judged category")
    taken = spaced(found, limit)
    return Data(taken, files, blank, unjudged, len(found) - len(taken))


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise MeasureError(f"{path} cannot be read ({error.strerror})") from None


def stem(path: Path) -> str:
    """A data file's name without its endings."""
    return re.sub(r"(\.jsonl?)?(\.gz|\.bz2)?$", "", path.name)


def lines(path: Path, raw: bytes) -> Iterator[tuple[str, Any]]:
    """Place and parsed JSON of every line that is not blank."""
    try:
        unpack = {".gz": gzip.decompress, ".bz2": bz2.decompress}.get(path.suffix, bytes)
        content = unpack(raw).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise MeasureError(f"{path} is not UTF-8") from None
    except (OSError, EOFError, ValueError, zlib.error):
        raise MeasureError(f"{path} is not a whole {'bzip2' if path.suffix == '.bz2' else 'gzip'} file") from None
    # Not splitlines: a text may hold the other line ends of Unicode.
    for number, line in enumerate(content.split("\n"), 1):
        if line.strip():
            place = f"{path}:{number}"
            try:
                yield place, json.loads(line)
            except (ValueError, RecursionError):
                raise MeasureError(f"{place} is not JSON") from None


def _text(item: Any, file: str, place: str) -> Text:
    if not isinstance(item, dict) or not isinstance(item.get("text"), str) or not isinstance(item.get("labels"), dict):
        raise MeasureError(f'{place} is not of the form {{"text": …, "labels": {{…}}}}')
    if unknown := len(set(item["labels"]) - set(CATEGORIES)):
        raise MeasureError(f"{place} labels {unknown} categories other than {', '.join(CATEGORIES)}")
    source = item.get("source")
    source = file if source is None else source
    if not isinstance(source, str) or not _SOURCE.fullmatch(source):
        raise MeasureError(f"{place} has a source that is no name of 1 to 80 characters")
    labels = tuple(_label(item["labels"].get(category), place) for category in CATEGORIES)
    return Text(whole(item["text"]), labels, source, place)


def whole(text: str) -> str:
    """The text without lone surrogates, which are no characters: the server would refuse the request."""
    return _SURROGATES.sub("\ufffd", text)


def spaced(found: list[Any], limit: int | None) -> list[Any]:
    """As many as the limit allows, evenly spaced, so that no file's end is lost."""
    if limit is None or limit >= len(found):
        return found
    return [found[i * len(found) // limit] for i in range(limit)]


def _label(value: Any, place: str) -> int | None:
    if value is None:
        return None
    # `in` alone would let 1.0 pass, which may be a probability elsewhere in the file.
    if type(value) not in (int, bool) or value not in (0, 1):
        raise MeasureError(f"{place} has a label that is neither 1, 0 nor null")
    return int(value)


def pieces(text: str, windows: bool) -> list[str]:
    """What is sent of a text: its first 500 characters, or all of it in overlapping pieces."""
    if len(text) <= MOST_CHARACTERS:
        return [text]
    if not windows:
        return [text[:MOST_CHARACTERS]]
    found, start = [], 0
    while start + MOST_CHARACTERS < len(text):
        found.append(text[start : _after_space(text, start + MOST_CHARACTERS)])
        start = _after_space(text, start + STRIDE)
    found.append(text[start:])
    # The operation refuses blank texts.
    return [piece for piece in found if piece.strip()]


def _after_space(text: str, at: int) -> int:
    """The last place up to `at` that follows white space; `at` itself where none is near."""
    for place in range(at, at - OVERLAP, -1):
        if text[place - 1].isspace():
            return place
    return at
