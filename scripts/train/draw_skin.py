#!/usr/bin/env python3
"""Draws harmless pictures in the colours of skin: a set for false positives of the sexual score.

Owns one tar file that is never committed, with the sources `skin-<kind>`:

| kind | what is drawn |
| --- | --- |
| desert | dunes in two to five ridges under a sky, with wind ripples |
| sand | sand from above: ripples, footprints, pebbles |
| beach | sand, surf and sea, parasols, towels |
| face | one to three faces of ellipses with hair, eyes, mouth, clothes below the neck |
| bread | loaves, rolls and pancakes on a board or plate |
| fruit | peaches, apricots, eggs and potatoes, in heaps |
| plate | sausages, pasta, sauce on a plate |
| wood | planks with grain and knots |
| leather | a sofa or a bag: cushions, seams |
| pots | clay pots and vases on a shelf |

Colours come from the tones of skin in drawing.py, so that colour alone tells
nothing. The set is for judging: `image_calibration.py --judge` reads it, and
nothing is fitted to it.

    .venv/bin/python scripts/train/draw_skin.py --out FOLDER

Runs in the build environment (Pillow, numpy). Equal seeds give equal files.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

sys.path.insert(0, str(Path(__file__).resolve().parent))

from drawing import SKIN, Colour, any_colour, cloud, lit, rough, shade, size_of, write_tar  # noqa: E402

Paint = Callable[[np.random.Generator, int, int], np.ndarray]


def tone(rng: np.random.Generator) -> Colour:
    return shade(SKIN[rng.integers(len(SKIN))], rng, 12)


def part(colour: Colour) -> np.ndarray:
    return np.array(colour) / 255


def shaded(picture: Image.Image, rng: np.random.Generator, soft: float) -> np.ndarray:
    """A drawing with soft edges, on which light and dark lie unevenly."""
    pixels = np.asarray(picture.filter(ImageFilter.GaussianBlur(soft)), dtype=np.float64) / 255
    return pixels * (0.8 + 0.4 * rough(rng, *pixels.shape[:2]))[..., None]


def ball(draw: ImageDraw.ImageDraw, box: tuple[float, float, float, float], colour: Colour) -> None:
    """An ellipse that is lit from the upper left."""
    left, top, right, bottom = box
    for n in range(12):
        t = n / 12
        light = tuple(min(int(c * (0.62 + 0.5 * t)), 255) for c in colour)
        inset_x, inset_y = (right - left) * 0.5 * t, (bottom - top) * 0.5 * t
        draw.ellipse((left + 0.7 * inset_x, top + 0.7 * inset_y, right - 1.2 * inset_x, bottom - 1.2 * inset_y), fill=light)


def ground(rng: np.random.Generator, height: int, width: int, colour: Colour) -> tuple[Image.Image, ImageDraw.ImageDraw]:
    picture = Image.new("RGB", (width, height), colour)
    return picture, ImageDraw.Draw(picture)


def desert(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    y, x = np.mgrid[0:height, 0:width]
    top, low = part(shade((110, 165, 225), rng)), part(shade((235, 215, 190), rng))
    mix = (y / height)[..., None]
    picture = top * (1 - mix) + low * mix
    ridges = int(rng.integers(2, 6))
    for n in range(ridges):
        line = height * (0.25 + 0.6 * n / ridges) + 0.14 * height * np.sin(x / rng.uniform(35, 110) + rng.uniform(0, 6))
        light = 0.75 + 0.25 * np.sin((y - line) / rng.uniform(5, 25) + x / rng.uniform(20, 60))
        picture = np.where((y > line)[..., None], part(tone(rng)) * light[..., None], picture)
    return picture


def sand(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    y, x = np.mgrid[0:height, 0:width]
    ripple = np.sin((y + 20 * cloud(rng, height, width, 4) + x * rng.uniform(-0.5, 0.5)) / rng.uniform(3, 14))
    picture = Image.fromarray((part(tone(rng)) * (0.85 + 0.12 * ripple)[..., None] * 255).clip(0, 255).astype(np.uint8))
    draw = ImageDraw.Draw(picture)
    dark = tone(rng)
    for n in range(int(rng.integers(0, 8))):
        left, upper = 40 + 30 * n % width, height * (0.3 + 0.3 * (n % 2))
        draw.ellipse((left, upper, left + 14, upper + 28), fill=dark)
    for _ in range(int(rng.integers(0, 14))):
        left, upper, size = rng.uniform(0, width), rng.uniform(0, height), rng.uniform(3, 12)
        draw.ellipse((left, upper, left + size, upper + 0.7 * size), fill=any_colour(rng, 90, 220))
    return shaded(picture, rng, 0.8)


def beach(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    picture, draw = ground(rng, height, width, shade((150, 195, 235), rng))
    sea, shore = height * rng.uniform(0.25, 0.4), height * rng.uniform(0.5, 0.65)
    draw.rectangle((0, sea, width, height), fill=shade((40, 120, 160), rng))
    draw.rectangle((0, shore, width, height), fill=tone(rng))
    foam = [(x, shore + 6 * math.sin(x / 17)) for x in range(0, width + 8, 8)]
    draw.line(foam, fill=(240, 245, 245), width=5)
    for _ in range(int(rng.integers(1, 5))):
        x, y, size = rng.uniform(0, width), rng.uniform(shore + 15, height), rng.uniform(20, 45)
        draw.line([(x, y), (x, y - 1.4 * size)], fill=(230, 230, 230), width=3)
        draw.pieslice((x - size, y - 2 * size, x + size, y - 0.6 * size), 180, 360, fill=any_colour(rng, 60, 255))
        draw.polygon([(x, y + 4), (x + size, y), (x + size * 1.2, y + 10), (x + 6, y + 15)], fill=any_colour(rng, 60, 255))
    return shaded(picture, rng, 0.8)


def face(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    picture, draw = ground(rng, height, width, any_colour(rng, 60, 230))
    count = int(rng.integers(1, 4))
    for n in range(count):
        x, size = width * (n + 0.5) / count, min(width / count, height) * rng.uniform(0.26, 0.36)
        y, skin_tone, hair = height * rng.uniform(0.38, 0.5), tone(rng), shade((60, 40, 25), rng, 40)
        draw.ellipse((x - 1.7 * size, y + 1.25 * size, x + 1.7 * size, y + 4 * size), fill=any_colour(rng))
        draw.rectangle((x - 0.35 * size, y + 0.8 * size, x + 0.35 * size, y + 1.5 * size), fill=skin_tone)
        draw.ellipse((x - 0.95 * size, y - 1.35 * size, x + 0.95 * size, y + 0.8 * size), fill=hair)
        ball(draw, (x - 0.8 * size, y - 1.05 * size, x + 0.8 * size, y + 1.15 * size), skin_tone)
        for eye in (x - 0.33 * size, x + 0.33 * size):
            draw.ellipse((eye - 0.15 * size, y - 0.2 * size, eye + 0.15 * size, y), fill=(250, 250, 250))
            draw.ellipse((eye - 0.07 * size, y - 0.18 * size, eye + 0.07 * size, y - 0.03 * size), fill=hair)
        mouth = (x - 0.35 * size, y + 0.25 * size, x + 0.35 * size, y + 0.75 * size)
        draw.arc(mouth, 20, 160, fill=(150, 55, 55), width=max(int(0.09 * size), 2))
        nose = [(x, y), (x - 0.1 * size, y + 0.28 * size), (x + 0.06 * size, y + 0.3 * size)]
        draw.line(nose, fill=shade(skin_tone, rng, 30), width=2)
    return shaded(picture, rng, 1)


def bread(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    picture, draw = ground(rng, height, width, tone(rng) if rng.random() < 0.5 else any_colour(rng, 150, 250))
    for _ in range(int(rng.integers(2, 8))):
        w, h = rng.uniform(50, 150), rng.uniform(35, 70)
        x, y, crust = rng.uniform(-20, width - 40), rng.uniform(0, height - 30), tone(rng)
        ball(draw, (x, y, x + w, y + h), crust)
        for n in range(int(rng.integers(0, 4))):
            left = x + w * (0.25 + 0.17 * n)
            draw.line([(left, y + 0.25 * h), (left + 0.1 * w, y + 0.6 * h)], fill=(245, 225, 190), width=4)
    return shaded(picture, rng, 1.2)


def fruit(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    picture, draw = ground(rng, height, width, any_colour(rng, 40, 220))
    for _ in range(int(rng.integers(8, 30))):
        size, x, y = rng.uniform(30, 80), rng.uniform(-20, width), rng.uniform(0, height)
        ball(draw, (x, y, x + size, y + size * rng.uniform(0.8, 1.15)), tone(rng))
        if rng.random() < 0.5:
            draw.arc((x + 0.25 * size, y, x + 0.9 * size, y + size), 130, 230, fill=shade((170, 80, 60), rng), width=2)
        if rng.random() < 0.3:
            draw.ellipse((x + 0.4 * size, y - 6, x + 0.4 * size + 18, y + 3), fill=shade((60, 120, 50), rng))
    return shaded(picture, rng, 1)


def plate(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    picture, draw = ground(rng, height, width, any_colour(rng, 60, 220))
    x, y, size = width / 2, height / 2, 0.46 * min(width, height)
    draw.ellipse((x - 1.25 * size, y - size, x + 1.25 * size, y + size), fill=(245, 245, 242))
    draw.ellipse((x - size, y - 0.78 * size, x + size, y + 0.78 * size), fill=(228, 228, 226))
    for _ in range(int(rng.integers(10, 40))):
        left, upper = x + rng.uniform(-0.6, 0.6) * size, y + rng.uniform(-0.5, 0.5) * size
        bend, end = rng.uniform(10, 40), float(rng.integers(90, 300))
        box = (left - bend, upper - bend, left + bend, upper + bend)
        draw.arc(box, 0, end, fill=shade((240, 215, 160), rng), width=4)
    for _ in range(int(rng.integers(1, 5))):
        left, upper = x + rng.uniform(-0.6, 0.2) * size, y + rng.uniform(-0.5, 0.4) * size
        long, turn, colour = 0.55 * size, rng.uniform(-0.5, 0.5), tone(rng)
        for n in range(14):
            cx, cy = left + long * n / 14, upper + long * n / 14 * turn
            ball(draw, (cx - 12, cy - 12, cx + 12, cy + 12), colour)
    return shaded(picture, rng, 1)


def wood(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    y, x = np.mgrid[0:height, 0:width]
    planks = int(rng.integers(1, 7))
    row = y * planks // height
    picture = np.zeros((height, width, 3))
    for n in range(planks):
        knot = (rng.uniform(0, width), rng.uniform(0, height))
        bend = 30 * np.exp(-(((x - knot[0]) / 45) ** 2 + ((y - knot[1]) / 16) ** 2))
        grain = np.sin((y + bend + 6 * cloud(rng, height, width, 3)) / rng.uniform(1.5, 5))
        picture = np.where((row == n)[..., None], part(tone(rng)) * (0.88 + 0.12 * grain)[..., None], picture)
    seam = np.diff(row, axis=0, prepend=row[:1]) > 0
    picture[seam] *= 0.4
    return picture


def leather(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    colour = tone(rng)
    picture, draw = ground(rng, height, width, shade(colour, rng))
    across, down = int(rng.integers(1, 4)), int(rng.integers(1, 3))
    for i in range(across):
        for j in range(down):
            box = (width * i / across + 3, height * j / down + 3, width * (i + 1) / across - 3, height * (j + 1) / down - 3)
            draw.rounded_rectangle(box, 22, fill=shade(colour, rng, 14), outline=shade((90, 60, 45), rng), width=3)
            for n in range(int(rng.integers(0, 5))):
                px, py = rng.uniform(box[0], box[2]), rng.uniform(box[1], box[3])
                draw.ellipse((px - 5, py - 5, px + 5, py + 5), fill=shade((80, 55, 40), rng))
    creased = shaded(picture, rng, 3)
    return creased * (0.92 + 0.16 * cloud(rng, height, width, 60))[..., None]


def pots(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    picture, draw = ground(rng, height, width, any_colour(rng, 120, 240))
    shelf = height * rng.uniform(0.75, 0.9)
    draw.rectangle((0, shelf, width, height), fill=shade((110, 80, 55), rng))
    for n in range(int(rng.integers(2, 6))):
        x, size, clay = width * rng.uniform(0.05, 0.85), rng.uniform(25, 55), tone(rng)
        tall = size * rng.uniform(1.2, 2.6)
        draw.rectangle((x + 0.25 * size, shelf - tall - 0.3 * size, x + 0.75 * size, shelf - 0.5 * tall), fill=clay)
        ball(draw, (x - 0.2 * size, shelf - tall, x + 1.2 * size, shelf), clay)
        mouth = (x + 0.15 * size, shelf - tall - 0.4 * size, x + 0.85 * size, shelf - tall - 0.2 * size)
        draw.ellipse(mouth, fill=shade((70, 45, 35), rng))
    return shaded(picture, rng, 1)


KINDS: dict[str, Paint] = {
    paint.__name__: paint for paint in (desert, sand, beach, face, bread, fruit, plate, wood, leather, pots)
}


def draw(kind: str, n: int, seed: int) -> Image.Image:
    """The n-th picture of a kind."""
    rng = np.random.default_rng([seed, 55, sorted(KINDS).index(kind), n])
    return lit(np.clip(KINDS[kind](rng, *size_of(rng)), 0, 1), rng)


def pictures(each: int, seed: int) -> Iterator[tuple[str, Image.Image]]:
    for kind in sorted(KINDS):
        for n in range(each):
            yield f"skin-{kind}/{n:04d}", draw(kind, n, seed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for skin.tar")
    parser.add_argument("--each", type=int, default=24, help="pictures of each of the ten kinds")
    parser.add_argument("--seed", type=int, default=32)
    options = parser.parse_args()
    print(f"skin.tar: {write_tar(options.out / 'skin.tar', pictures(options.each, options.seed))} pictures")
    return 0


if __name__ == "__main__":
    sys.exit(main())
