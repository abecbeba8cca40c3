#!/usr/bin/env python3
"""Draws the synthetic pictures under tests/golden/images.

Owns what is on them: gradients, drawn scenes, skin-coloured shapes, noise and
lettering, in sizes that stress the resize (one pixel, very wide, very tall,
exactly the network's input). All are PNG, so every decoder sees the same
bytes. The two `photo-*.png` files beside them are photographs from a CC0 set
and are not touched here. Needs Pillow and numpy; equal versions give equal
files.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

TARGET = Path(__file__).resolve().parents[2] / "tests" / "golden" / "images"
SKIN = [(241, 194, 125), (224, 172, 105), (198, 134, 66), (141, 85, 36), (255, 219, 172)]


def gradient() -> Image.Image:
    y, x = np.mgrid[0:48, 0:64]
    return Image.fromarray(
        np.stack([x * 4, y * 5, 255 - (x + y) * 2], axis=-1).astype(np.uint8)
    )


def noise() -> Image.Image:
    return Image.fromarray(np.random.default_rng(7).integers(0, 256, (90, 90, 3), dtype=np.uint8))


def checker(side: int, cell: int) -> Image.Image:
    y, x = np.mgrid[0:side, 0:side]
    on = ((x // cell + y // cell) % 2).astype(bool)
    return Image.fromarray(
        np.where(on[..., None], np.uint8([250, 250, 250]), np.uint8([20, 40, 160])).astype(np.uint8)
    )


def landscape() -> Image.Image:
    picture = Image.new("RGB", (320, 200), (135, 190, 235))
    draw = ImageDraw.Draw(picture)
    draw.ellipse((240, 20, 290, 70), fill=(255, 230, 120))
    draw.polygon([(0, 140), (70, 60), (150, 140)], fill=(110, 110, 120))
    draw.polygon([(90, 140), (190, 45), (300, 140)], fill=(90, 95, 110))
    draw.rectangle((0, 135, 320, 200), fill=(70, 140, 60))
    draw.rectangle((40, 110, 100, 165), fill=(180, 90, 60))
    draw.polygon([(30, 110), (70, 80), (110, 110)], fill=(120, 40, 35))
    draw.rectangle((62, 135, 78, 165), fill=(70, 40, 20))
    for x in (150, 190, 235, 280):
        draw.rectangle((x, 130, x + 6, 160), fill=(90, 60, 30))
        draw.ellipse((x - 14, 95, x + 20, 138), fill=(30, 100, 40))
    return picture


def face() -> Image.Image:
    picture = Image.new("RGB", (180, 220), (200, 210, 220))
    draw = ImageDraw.Draw(picture)
    draw.ellipse((30, 20, 150, 190), fill=SKIN[1])
    draw.pieslice((25, 5, 155, 150), 180, 360, fill=(60, 35, 20))
    for x in (65, 115):
        draw.ellipse((x - 12, 92, x + 12, 108), fill=(255, 255, 255))
        draw.ellipse((x - 5, 94, x + 5, 106), fill=(60, 90, 140))
    draw.arc((65, 125, 115, 165), 20, 160, fill=(150, 50, 50), width=4)
    draw.polygon([(90, 105), (80, 132), (98, 132)], fill=SKIN[2])
    return picture.filter(ImageFilter.GaussianBlur(1.2))


def blobs() -> Image.Image:
    rng = np.random.default_rng(11)
    picture = Image.new("RGB", (224, 224), (120, 60, 60))
    draw = ImageDraw.Draw(picture)
    for _ in range(24):
        x, y = rng.integers(-40, 224, 2)
        w, h = rng.integers(30, 120, 2)
        tone = SKIN[int(rng.integers(len(SKIN)))]
        draw.ellipse((int(x), int(y), int(x + w), int(y + h)), fill=tone)
    return picture.filter(ImageFilter.GaussianBlur(9))


def desert() -> Image.Image:
    y, x = np.mgrid[0:150, 0:240].astype(float)
    ridge = 60 + 18 * np.sin(x / 40) + 8 * np.sin(x / 13 + 1)
    shade = 0.75 + 0.25 * np.sin((y - ridge) / 9 + x / 30)
    sand = np.stack([226 * shade, 178 * shade, 120 * shade], axis=-1)
    sky = np.stack([150 + y * 0.6, 190 + y * 0.3, 235 - y * 0.1], axis=-1)
    pixels = np.where((y > ridge)[..., None], sand, sky)
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def lettering() -> Image.Image:
    picture = Image.new("RGB", (300, 110), (255, 255, 255))
    draw = ImageDraw.Draw(picture)
    font = ImageFont.load_default(size=24)
    draw.text((12, 12), "The quick brown fox", fill=(0, 0, 0), font=font)
    draw.text((12, 52), "jumps over 13 dogs.", fill=(180, 20, 20), font=font)
    return picture


def cartoon() -> Image.Image:
    picture = Image.new("RGB", (224, 224), (255, 244, 200))
    draw = ImageDraw.Draw(picture)
    draw.ellipse((52, 52, 172, 172), fill=(255, 205, 40), outline=(0, 0, 0), width=5)
    for x in (90, 134):
        draw.ellipse((x - 8, 88, x + 8, 112), fill=(0, 0, 0))
    draw.arc((82, 95, 142, 150), 15, 165, fill=(0, 0, 0), width=5)
    for step in range(12):
        angle = math.tau * step / 12
        ends = [(112 + r * math.cos(angle), 112 + r * math.sin(angle)) for r in (75, 98)]
        draw.line(ends, fill=(240, 120, 20), width=6)
    return picture.quantize(32)


def bands(width: int, height: int) -> Image.Image:
    y, x = np.mgrid[0:height, 0:width]
    return Image.fromarray(
        np.stack([(x * 37) % 256, (y * 53 + x) % 256, (x + y) * 3 % 256], axis=-1).astype(np.uint8)
    )


def pictures() -> dict[str, Image.Image]:
    """File name to picture."""
    return {
        "gradient.png": gradient(),
        "pixel.png": Image.new("RGB", (1, 1), (224, 172, 105)),
        "wide.png": bands(700, 3),
        "tall.png": bands(2, 500),
        "landscape.png": landscape(),
        "face.png": face(),
        "blobs.png": blobs(),
        "desert.png": desert(),
        "noise.png": noise(),
        "lettering.png": lettering(),
        "checker-299.png": checker(299, 13),
        "cartoon-224.png": cartoon(),
        "grey.png": landscape().resize((150, 94)).convert("L"),
    }


def main() -> int:
    TARGET.mkdir(parents=True, exist_ok=True)
    for name, picture in pictures().items():
        partial = TARGET / (name + ".partial")
        picture.save(partial, format="PNG", optimize=True)
        partial.replace(TARGET / name)
        print(f"{name}: {picture.width}x{picture.height}, {(TARGET / name).stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
