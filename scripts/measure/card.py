"""Owns the marked blocks of a model's card, and writing files so that no reader
meets half of one.
"""

from __future__ import annotations

import os
from pathlib import Path

from . import MeasureError

BEGIN, END = "<!-- evaluation:begin -->", "<!-- evaluation:end -->"


def replace_block(card: Path, title: str, block: str, marks: tuple[str, str] = (BEGIN, END)) -> None:
    """Puts `block` between the marks of the card; appends it, and begins the card, where there is none."""
    begin, end = marks
    text = card.read_text(encoding="utf-8") if card.exists() else f"# {title}\n"
    marked = f"{begin}\n{block.strip()}\n{end}"
    begins, ends = text.count(begin), text.count(end)
    if (begins, ends) == (0, 0):
        text = f"{text.rstrip()}\n\n{marked}\n"
    elif (begins, ends) == (1, 1) and text.index(begin) < text.index(end):
        text = text[: text.index(begin)] + marked + text[text.index(end) + len(end) :]
    else:
        raise MeasureError(f"{card} does not hold one {begin} with one {end} after it: mend the card, then run again")
    write(card, text)


def write(path: Path, content: str | bytes) -> None:
    """Writes through a temporary name; makes the folder where it is missing."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(path.name + ".partial")
        partial.write_bytes(content.encode() if isinstance(content, str) else content)
        partial.chmod(0o644)
        os.replace(partial, path)
    except OSError as error:
        raise MeasureError(f"{path} cannot be written ({error.strerror})") from None
