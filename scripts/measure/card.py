"""Owns the marked block of a model's card, and writing files so that no reader
meets half of one.
"""

from __future__ import annotations

import os
from pathlib import Path

from . import MeasureError

BEGIN, END = "<!-- evaluation:begin -->", "<!-- evaluation:end -->"


def replace_block(card: Path, title: str, block: str) -> None:
    """Puts `block` between the marks of the card; appends it, and begins the card, where there is none."""
    text = card.read_text(encoding="utf-8") if card.exists() else f"# {title}\n"
    marked = f"{BEGIN}\n{block.strip()}\n{END}"
    begins, ends = text.count(BEGIN), text.count(END)
    if (begins, ends) == (0, 0):
        text = f"{text.rstrip()}\n\n{marked}\n"
    elif (begins, ends) == (1, 1) and text.index(BEGIN) < text.index(END):
        text = text[: text.index(BEGIN)] + marked + text[text.index(END) + len(END) :]
    else:
        raise MeasureError(f"{card} does not hold one {BEGIN} with one {END} after it: mend the card, then run again")
    write(card, text)


def write(path: Path, text: str) -> None:
    """Writes through a temporary name; makes the folder where it is missing."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(path.name + ".partial")
        partial.write_text(text, encoding="utf-8")
        partial.chmod(0o644)
        os.replace(partial, path)
    except OSError as error:
        raise MeasureError(f"{path} cannot be written ({error.strerror})") from None
