"""Draws the contact sheet: small pictures in rows, each with its name and its five
scores below.

One PNG of few colours, small enough to be kept in the repository.
"""

from __future__ import annotations

import io
from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont, ImageOps

from . import MeasureError
from .drawings import Sample
from .figures import THRESHOLD
from .texts import CATEGORIES

MOST_BYTES = 80 * 1024
COLUMNS, CELL, MARGIN = 6, 150, 8
PICTURE = (CELL, 100)
# Names of two rows are longer than the cell is wide.
ROWS = (("sexual", "hate"), ("violence", "self_harm"), ("defamation",))
LINE = 14
GROUND, FRAME, INK, FOUND = "#ffffff", "#bbbbbb", "#222222", "#c00000"
# From the most colours to the fewest, until the file is small enough.
COLOURS = (128, 64, 48, 32, 24, 16)


def sheet(samples: Sequence[Sample], scores: Sequence[Sequence[float]]) -> bytes:
    """The sheet as a PNG."""
    height = PICTURE[1] + LINE * (1 + len(ROWS)) + 2 * MARGIN
    rows = -(-len(samples) // COLUMNS)
    picture = Image.new("RGB", (COLUMNS * (CELL + MARGIN) + MARGIN, rows * height + MARGIN), GROUND)
    for number, (sample, found) in enumerate(zip(samples, scores, strict=True)):
        left = MARGIN + number % COLUMNS * (CELL + MARGIN)
        _cell(picture, (left, MARGIN + number // COLUMNS * height), sample, dict(zip(CATEGORIES, found, strict=True)))
    for colours in COLOURS:
        # Scattered colours would not compress.
        few = picture.quantize(colours, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
        buffer = io.BytesIO()
        few.save(buffer, "PNG", optimize=True)
        if buffer.tell() <= MOST_BYTES:
            return buffer.getvalue()
    raise MeasureError(f"a sheet of {len(samples)} pictures does not fit into {MOST_BYTES // 1024} KiB: take fewer")


def _cell(sheet: Image.Image, place: tuple[int, int], sample: Sample, scores: dict[str, float]) -> None:
    left, top = place
    with Image.open(io.BytesIO(sample.data)) as image:
        small = ImageOps.contain(image.convert("RGB"), PICTURE)
    x, y = left + (PICTURE[0] - small.width) // 2, top + (PICTURE[1] - small.height) // 2
    pen, bold, letters = ImageDraw.Draw(sheet), ImageFont.load_default(12), ImageFont.load_default(11)
    pen.rectangle((x - 1, y - 1, x + small.width, y + small.height), outline=FRAME)
    sheet.paste(small, (x, y))
    top += PICTURE[1] + 2
    pen.text((left, top), sample.name, INK, font=bold)
    for row in ROWS:
        top, start = top + LINE, float(left)
        for category in row:
            score = scores[category]
            told = f"{category} {score:.2f}"
            pen.text((start, top), told, FOUND if score >= THRESHOLD else INK, font=letters)
            start += letters.getlength(told) + 8
