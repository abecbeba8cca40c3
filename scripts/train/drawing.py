"""What drawn training pictures have in common: tiles, grounds, and how one lies on the other.

A tile is a transparent picture of one sign, drawn by Pillow in units of the
sign: x right, y down, the sign within -1..1, the tile within ±1.6 × ±1.1. A
ground is [height, width, 3] in 0..1. Everything comes from the generator that
is passed in, so equal seeds give equal pictures.
"""

from __future__ import annotations

import io
import math
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

Colour = tuple[int, int, int]
Point = tuple[float, float]
Points = list[Point]

# Pixels of a sign's unit, and of a tile.
UNIT = 200
TILE = (640, 440)
# Unclothed skin of many people, and only that: light to dark.
SKIN: list[Colour] = [(255, 219, 190), (241, 194, 150), (224, 172, 125), (198, 134, 90), (141, 85, 56), (92, 58, 42)]


class Tile:
    """One sign, drawn in its own units."""

    def __init__(self) -> None:
        self.image = Image.new("RGBA", TILE, (0, 0, 0, 0))
        self._draw = ImageDraw.Draw(self.image)

    @staticmethod
    def _at(points: Iterable[Point]) -> Points:
        return [(TILE[0] / 2 + x * UNIT, TILE[1] / 2 + y * UNIT) for x, y in points]

    def polygon(self, points: Iterable[Point], fill: Colour) -> None:
        self._draw.polygon(self._at(points), fill=fill)

    def line(self, points: Iterable[Point], width: float, fill: Colour) -> None:
        """A stroke with round joints and ends."""
        places, wide = self._at(points), width * UNIT
        self._draw.line(places, fill=fill, width=max(round(wide), 1), joint="curve")
        for x, y in places:
            self._draw.ellipse((x - wide / 2, y - wide / 2, x + wide / 2, y + wide / 2), fill=fill)

    def rectangle(self, left: float, top: float, right: float, bottom: float, fill: Colour) -> None:
        self.polygon([(left, top), (right, top), (right, bottom), (left, bottom)], fill)

    def disc(self, radius: float, fill: Colour, centre: Point = (0, 0)) -> None:
        self.polygon(circle(radius, centre), fill)

    def ring(self, radius: float, width: float, fill: Colour, centre: Point = (0, 0)) -> None:
        outer = circle(radius + width / 2, centre)
        inner = circle(radius - width / 2, centre)
        # A closed band: out, and back within.
        self.polygon([*outer, outer[0], inner[0], *reversed(inner)], fill)

    def clear(self, points: Iterable[Point]) -> None:
        """Cuts a hole."""
        self._draw.polygon(self._at(points), fill=(0, 0, 0, 0))

    def text(self, words: str, size: float, fill: Colour, centre: Point = (0, 0)) -> None:
        (place,) = self._at([centre])
        font = ImageFont.load_default(size=size * UNIT)
        self._draw.text(place, words, font=font, fill=fill, anchor="mm", stroke_width=round(size * 8), stroke_fill=fill)


def circle(radius: float, centre: Point = (0, 0), sides: int = 72) -> Points:
    return regular(sides, radius, centre)


def regular(sides: int, radius: float, centre: Point = (0, 0), start: float = -90) -> Points:
    return [polar(radius, start + 360 * n / sides, centre) for n in range(sides)]


def polar(radius: float, degrees: float, centre: Point = (0, 0)) -> Point:
    angle = math.radians(degrees)
    return (centre[0] + radius * math.cos(angle), centre[1] + radius * math.sin(angle))


def turned(points: Iterable[Point], degrees: float, scale: float = 1, centre: Point = (0, 0)) -> Points:
    """Rotated about the origin, scaled, then moved."""
    c, s = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return [(centre[0] + scale * (c * x - s * y), centre[1] + scale * (s * x + c * y)) for x, y in points]


def shade(colour: Colour, rng: np.random.Generator, by: int = 22) -> Colour:
    """The colour, a little off."""
    red, green, blue = (int(np.clip(part + rng.integers(-by, by + 1), 0, 255)) for part in colour)
    return (red, green, blue)


def any_colour(rng: np.random.Generator, low: int = 0, high: int = 256) -> Colour:
    red, green, blue = (int(part) for part in rng.integers(low, high, 3))
    return (red, green, blue)


# --- grounds -----------------------------------------------------------------


def cloud(rng: np.random.Generator, height: int, width: int, cells: float) -> np.ndarray:
    """Smooth noise in 0..1 with about `cells` lumps a side."""
    rows, columns = max(int(cells * height / max(height, width)), 2), max(int(cells * width / max(height, width)), 2)
    coarse = Image.fromarray(rng.random((rows, columns)).astype(np.float32))
    return np.clip(np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)), 0, 1)


def rough(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    """Noise of several sizes in 0..1."""
    parts = [cloud(rng, height, width, cells) / n for n, cells in enumerate((3, 9, 30, 90), start=1)]
    return sum(parts) / sum(1 / n for n in range(1, 5))


def plain(colour: Colour, height: int, width: int) -> np.ndarray:
    return np.ones((height, width, 3)) * np.array(colour) / 255


def wall(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    stone = shade(((170, 90, 70), (150, 150, 145), (205, 195, 170), (110, 105, 100))[rng.integers(4)], rng)
    ground = plain(stone, height, width) * (0.75 + 0.5 * rough(rng, height, width))[..., None]
    if rng.random() < 0.6:
        rows = int(rng.integers(14, 34))
        y, x = np.mgrid[0:height, 0:width]
        x = x + (y // rows % 2) * rows
        mortar = (y % rows < 2) | (x % (2 * rows) < 2)
        ground[mortar] = ground[mortar] * 0.3 + 0.5
    return ground


def cloth(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    y, x = np.mgrid[0:height, 0:width]
    angle, pitch = rng.uniform(0, math.pi), rng.uniform(30, 110)
    folds = np.sin((x * math.cos(angle) + y * math.sin(angle)) / pitch * math.tau + 3 * cloud(rng, height, width, 4))
    weave = 0.03 * ((x + y) % 2)
    return plain(any_colour(rng), height, width) * (0.8 + 0.2 * folds + weave)[..., None]


def flag(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    """The sky or a square that a flag is in."""
    y = np.linspace(0, 1, height)[:, None, None]
    top, bottom = (np.array(shade(c, rng, 40)) / 255 for c in ((110, 160, 220), (215, 225, 235)))
    ground = np.broadcast_to(top * (1 - y) + bottom * y, (height, width, 3)).copy()
    if rng.random() < 0.5:
        skyline = height - (height * 0.35 * cloud(rng, 1, width, 9)[0]).astype(int)
        ground[np.arange(height)[:, None] > skyline] = np.array(any_colour(rng, 40, 140)) / 255
    return ground


def paper(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    ground = plain(shade((238, 234, 222), rng, 16), height, width) * (0.93 + 0.1 * rough(rng, height, width))[..., None]
    if rng.random() < 0.5:
        ground[:: int(rng.integers(14, 26))] *= 0.82
    if rng.random() < 0.3:
        ground[:, :: int(rng.integers(14, 26))] *= 0.82
    return ground


def skin(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    """An arm or a back: a tone, rounded by light."""
    y, x = np.mgrid[0:height, 0:width]
    angle = rng.uniform(0, math.pi)
    across = (x - width / 2) * math.cos(angle) + (y - height / 2) * math.sin(angle)
    light = 1 - (across / (0.75 * max(height, width))) ** 2
    ground = plain(shade(SKIN[rng.integers(len(SKIN))], rng, 10), height, width)
    return ground * (0.5 + 0.5 * light + 0.08 * (rough(rng, height, width) - 0.5))[..., None]


def noise(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    return np.stack([cloud(rng, height, width, rng.uniform(3, 120)) for _ in range(3)], axis=-1)


GROUNDS: dict[str, Callable[[np.random.Generator, int, int], np.ndarray]] = {
    "wall": wall, "flag": flag, "cloth": cloth, "paper": paper, "skin": skin, "noise": noise,
}


# --- laying ------------------------------------------------------------------


def perspective(source: Points, target: Points) -> list[float]:
    """Pillow's eight numbers: from a place in the target to one in the source."""
    rows, values = [], []
    for (u, v), (x, y) in zip(source, target):
        rows += [[x, y, 1, 0, 0, 0, -u * x, -u * y], [0, 0, 0, x, y, 1, -v * x, -v * y]]
        values += [u, v]
    return np.linalg.solve(np.array(rows), np.array(values)).tolist()


def lay(ground: np.ndarray, tile: Tile, rng: np.random.Generator, turn: float, kind: str) -> np.ndarray:
    """The tile on the ground: turned by at most `turn` degrees, in perspective, with the ground showing through."""
    height, width = ground.shape[:2]
    radius = rng.uniform(0.2, 0.46) * min(height, width)
    angle = rng.uniform(-turn, turn)
    centre = (width * rng.uniform(0.38, 0.62), height * rng.uniform(0.38, 0.62))
    half = (TILE[0] / 2 / UNIT, TILE[1] / 2 / UNIT)
    corners = [(-half[0], -half[1]), (half[0], -half[1]), (half[0], half[1]), (-half[0], half[1])]
    target = [
        (x + radius * rng.uniform(-0.35, 0.35), y + radius * rng.uniform(-0.35, 0.35))
        for x, y in turned(corners, angle, radius, centre)
    ]
    # Reduced first: the warp itself does not average.
    factor = min(1.5 * radius / UNIT, 1)
    size = (max(round(TILE[0] * factor), 8), max(round(TILE[1] * factor), 8))
    small = tile.image.convert("RGBa").resize(size, Image.Resampling.BOX)
    source = [(0.0, 0.0), (size[0], 0.0), (size[0], size[1]), (0.0, size[1])]
    warped = small.transform(
        (width, height), Image.Transform.PERSPECTIVE, perspective(source, target), Image.Resampling.BICUBIC
    )
    if kind == "wall" and rng.random() < 0.5:
        warped = warped.filter(ImageFilter.GaussianBlur(rng.uniform(0.5, 2)))
    layer = np.asarray(warped, dtype=np.float64) / 255
    if kind in ("flag", "cloth"):
        layer = waved(layer, rng)
    paint, alpha = layer[..., :3], layer[..., 3:]
    if kind == "wall":
        # Sprayed or brushed: the stone shows, and paint is missing here and there.
        kept = np.clip(1.25 - rng.uniform(0, 0.9) * rough(rng, height, width), 0, 1)[..., None]
        paint, alpha = paint * kept, alpha * kept
        grain = ground / max(ground.mean(), 0.05)
        paint = paint * (0.6 + 0.4 * np.clip(grain, 0, 1.6))
    elif kind == "skin":
        opacity = rng.uniform(0.65, 0.95)
        light = ground.mean(-1, keepdims=True) / max(ground.mean(), 0.05)
        paint, alpha = paint * opacity * np.clip(light, 0.3, 1.2), alpha * opacity
    elif kind == "paper":
        opacity = rng.uniform(0.75, 1.0)
        paint, alpha = paint * opacity, alpha * opacity
    return np.clip(ground * (1 - alpha) + paint, 0, 1)


def waved(layer: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A layer as cloth in the wind: moved up and down along its width, light and dark by the slope."""
    height, width = layer.shape[:2]
    pitch, phase, size = rng.uniform(60, 200), rng.uniform(0, math.tau), rng.uniform(1, 9)
    along = np.arange(width) / pitch * math.tau + phase
    rows = np.clip(np.arange(height)[:, None] + np.round(size * np.sin(along))[None].astype(int), 0, height - 1)
    moved = layer[rows, np.arange(width)[None]].copy()
    moved[..., :3] *= (0.87 + 0.13 * np.cos(along))[None, :, None]
    return moved


def hide(picture: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A pole, a leaf or a corner of something in front of it."""
    height, width = picture.shape[:2]
    front = Image.fromarray((picture * 255).astype(np.uint8))
    draw = ImageDraw.Draw(front)
    colour = any_colour(rng)
    x, y = rng.uniform(0.2, 0.8) * width, rng.uniform(0.2, 0.8) * height
    size = rng.uniform(0.05, 0.16) * min(height, width)
    form = rng.integers(3)
    if form == 0:
        lean = rng.uniform(-0.4, 0.4) * height
        draw.line([(x - lean, 0), (x + lean, height)], fill=colour, width=max(int(size * 0.7), 2))
    elif form == 1:
        draw.ellipse((x - size, y - 0.6 * size, x + size, y + 0.6 * size), fill=colour)
    else:
        draw.polygon([(x + dx * size, y + dy * size) for dx, dy in rng.uniform(-1.4, 1.4, (5, 2))], fill=colour)
    return np.asarray(front) / 255


def lit(picture: np.ndarray, rng: np.random.Generator) -> Image.Image:
    """Light from one side, a camera's noise and blur."""
    height, width = picture.shape[:2]
    y, x = np.mgrid[0:height, 0:width]
    angle = rng.uniform(0, math.tau)
    slope = ((x / width - 0.5) * math.cos(angle) + (y / height - 0.5) * math.sin(angle)) * rng.uniform(0, 0.6)
    picture = picture * (rng.uniform(0.75, 1.15) + slope)[..., None] + rng.normal(0, rng.uniform(0, 0.04), picture.shape)
    made = Image.fromarray((np.clip(picture, 0, 1) * 255).astype(np.uint8))
    return made.filter(ImageFilter.GaussianBlur(rng.uniform(0, 1.2)))


def size_of(rng: np.random.Generator) -> tuple[int, int]:
    """Height and width: the longer 320, as the photographs have it."""
    short = int(320 / rng.uniform(1, 1.6))
    return (320, short) if rng.random() < 0.4 else (short, 320)


# --- files -------------------------------------------------------------------


def write_tar(path: Path, pictures: Iterable[tuple[str, Image.Image]]) -> int:
    """Writes `<source>/<n>` pictures as JPEG; answers how many. Equal pictures give an equal file."""
    partial, count = path.with_name(path.name + ".partial"), 0
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(partial, "w") as archive:
        for name, picture in pictures:
            data = io.BytesIO()
            picture.save(data, format="JPEG", quality=90)
            entry = tarfile.TarInfo(f"{name}.jpg")
            entry.size = data.tell()
            data.seek(0)
            archive.addfile(entry, data)
            count += 1
    partial.replace(path)
    return count
