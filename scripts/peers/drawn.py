"""Pictures that the measurements draw themselves: a photograph of a megapixel, and small pictures of many sizes."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from demo_support import lettering, photograph

# Columns and rows: about a megapixel, as cameras' 4 : 3.
MEGAPIXEL = (1152, 864)
SMALL = 48


def large_photograph() -> bytes:
    """A JPEG with nothing written in it: light from above, large and soft shapes, and the grain of a film."""
    width, height = MEGAPIXEL
    random = np.random.default_rng(1)
    light = np.linspace(60, -60, height)[:, None, None] * np.array([0.6, 0.8, 1.2])
    values = np.full((height, width, 3), 120.0) + light
    for cells in (3, 6, 12, 24):
        # The smaller the shapes, the fainter, and none is as small as letters: so nothing looks like strokes.
        values += _soft(random, cells, width, height) * (110 / cells**0.8)
        values += _soft(random, cells, width, height) * (40 / cells**0.8) * random.uniform(-1, 1, 3)
    values += random.normal(0, 4, (height, width, 1))
    buffer = io.BytesIO()
    Image.fromarray(values.clip(0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def _soft(random: np.random.Generator, cells: int, width: int, height: int) -> np.ndarray:
    """One value a pixel, [height, width, 1], smooth between the points of a grid."""
    grid = random.normal(0, 1, (max(2, cells * height // width), cells)).astype(np.float32)
    return np.asarray(Image.fromarray(grid).resize((width, height), Image.Resampling.BICUBIC))[..., None]


def small_pictures(words: Sequence[str]) -> list[bytes]:
    """Cuttings of a photograph in sizes of their own; every fourth is a card with words instead."""
    random = np.random.default_rng(2)
    scene = Image.open(io.BytesIO(photograph()))
    found = []
    for number in range(SMALL):
        if number % 4 == 3:
            found.append(lettering(words[number % len(words)]))
            continue
        width, height = (int(side) for side in random.integers(64, 321, 2))
        left, top = int(random.integers(0, 640 - width)), int(random.integers(0, 480 - height))
        buffer = io.BytesIO()
        scene.crop((left, top, left + width, top + height)).save(buffer, "JPEG", quality=85)
        found.append(buffer.getvalue())
    return found


def page_size(width: int, height: int, rules: Mapping[str, Any]) -> tuple[int, int]:
    """Columns and rows of what the text detector is shown of a picture, as `imaging::reading::Page::overview` scales
    it: by area, with a longest side, its rim repeated up to a multiple.
    """
    area = width * height
    if area < rules["least_pixels"]:
        scale = min(math.sqrt(rules["least_pixels"] / area), 2.0)
    else:
        scale = min(math.sqrt(rules["most_pixels"] / area), 1.0)
    scale = min(scale, rules["most_side"] / max(width, height))
    sides = (max(1, int(side * scale + 0.5)) for side in (width, height))
    columns, rows = (-(-side // rules["multiple"]) * rules["multiple"] for side in sides)
    return columns, rows
