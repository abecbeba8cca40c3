#!/usr/bin/env python3
"""Measures what a first look at a reduced picture misses of the text in it.

Owns two counts, on everyday photographs of a megapixel: how many without more
ado show the detector a sign of text at a share of their size, and on how many
of the others a short line of text, drawn in letters of five sizes, shows none
there though it does at full size.

    .venv/bin/python scripts/train/first_look.py models/alpha-4o-mini/build/ocr photographs.tar

Runs in the build environment. Equal seeds, pictures and fonts give equal lines.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime
from PIL import Image, ImageDraw, UnidentifiedImageError

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from measure import pages, pictures  # noqa: E402

# A page of this size is shown to the detector as it is.
LONG, SHORT = 1152, 864
# Left, top, right, bottom.
Box = tuple[int, int, int, int]
# What is a sign, as `shows_signs` of src/imaging/reading/regions.rs has it, but for a region's sides: they are taken
# level here.
SIGN_MEAN, SIGN_SIDE, SIGN_LENGTH = 0.4, 64, 2
SIZES = (12, 14, 16, 20, 24)
COLOURS = ("black", "white", "gold", "firebrick")
WORDS = (
    "you are worthless",
    "I will kill you",
    "nobody wants you here",
    "go back",
    "die",
    "Monday at ten",
    "free coffee",
    "call me later",
)


class Detector:
    """The text reader's detector, and the probability above which it says text."""

    def __init__(self, folder: Path) -> None:
        spec = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["text_reader"]["detector"]
        self._multiple, self._threshold = spec["multiple"], spec["threshold"]
        self._session = onnxruntime.InferenceSession(folder / "detector.onnx")

    def finds(self, picture: Image.Image, within: Box) -> bool:
        """Whether any pixel in a box counts as text at full size."""
        left, top, right, bottom = within
        return bool((self._map(picture, 1.0)[top:bottom, left:right] > self._threshold).any())

    def shows_signs(self, picture: Image.Image, share: float) -> bool:
        found = self._map(picture, share)
        for pixels in regions(found > self._threshold):
            rows, columns = np.array(pixels).T
            short, long = sorted((int(np.ptp(rows)) + 1, int(np.ptp(columns)) + 1))
            if (short <= SIGN_SIDE or long >= short * SIGN_LENGTH) and found[rows, columns].mean() >= SIGN_MEAN:
                return True
        return False

    def _map(self, picture: Image.Image, share: float) -> np.ndarray:
        width, height = (round(side * share) for side in picture.size)
        pixels = np.asarray(picture.resize((width, height), Image.Resampling.BOX))
        rim = ((0, -height % self._multiple), (0, -width % self._multiple), (0, 0))
        (found,) = self._session.run(None, {"pixels": np.pad(pixels, rim, mode="edge")[None]})
        return np.asarray(found[0, 0])


def regions(inside: np.ndarray) -> Iterator[list[tuple[int, int]]]:
    """The pixels of each region that holds together, corners included."""
    left = {(int(row), int(column)) for row, column in zip(*np.nonzero(inside), strict=True)}
    while left:
        found = [left.pop()]
        for row, column in found:
            for near in itertools.product((row - 1, row, row + 1), (column - 1, column, column + 1)):
                if near in left:
                    left.remove(near)
                    found.append(near)
        yield found


def photograph(data: bytes) -> Image.Image | None:
    try:
        picture = Image.open(io.BytesIO(data)).convert("RGB")
    except (UnidentifiedImageError, OSError):
        return None
    return picture.resize((LONG, SHORT) if picture.width >= picture.height else (SHORT, LONG))


def written(picture: Image.Image, size: int, choose: random.Random) -> tuple[Image.Image, Box]:
    """The picture with a line of text, outlined as on memes or in one colour; and where it stands."""
    picture = picture.copy()
    at = choose.randint(10, picture.width - 310), choose.randint(10, picture.height - 40)
    words, letters = choose.choice(WORDS), pages.font(pages.LATIN_FONTS, size, choose)
    outlined = choose.random() < 0.5
    canvas = ImageDraw.Draw(picture)
    canvas.text(
        at,
        words,
        font=letters,
        fill="white" if outlined else choose.choice(COLOURS),
        stroke_width=int(outlined),
        stroke_fill="black",
    )
    left, top, right, bottom = canvas.textbbox(at, words, font=letters)
    return picture, (int(left), int(top), int(right), int(bottom))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("reader", type=Path, help="folder of a built text reader")
    parser.add_argument("pictures", type=Path, nargs="+", help="tars or folders of photographs")
    parser.add_argument("--share", type=float, default=0.55, help="of the page's size, at the first look")
    parser.add_argument("--most", type=int, default=20, help="pictures of each source")
    parser.add_argument("--seed", type=int, default=15)
    args = parser.parse_args()

    detector, choose = Detector(args.reader), random.Random(args.seed)
    shown, bare = 0, 0
    drawn, missed = dict.fromkeys(SIZES, 0), dict.fromkeys(SIZES, 0)
    for _, data in pictures.read(pictures.find(args.pictures, args.most, args.seed)):
        picture = photograph(data)
        if picture is None:
            continue
        shown += 1
        # What already shows a sign is searched in full, whatever is drawn on it.
        if detector.shows_signs(picture, args.share):
            continue
        bare += 1
        for size in SIZES:
            line, box = written(picture, size, choose)
            if detector.finds(line, box):
                drawn[size] += 1
                missed[size] += not detector.shows_signs(line, args.share)
    print(f"{shown} photographs; without a sign of text at {args.share:g} of their size: {bare}")
    print("| Letters | Lines found at full size | Without a sign at the first look |\n| --- | --- | --- |")
    for size in SIZES:
        print(f"| {size} pixels | {drawn[size]} | {missed[size]} |")


if __name__ == "__main__":
    main()
