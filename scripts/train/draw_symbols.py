#!/usr/bin/env python3
"""Draws hate symbols, and as many look-alikes, to train and judge their detection.

Owns two sets, written as tar files that are never committed:

- the set itself: signs of symbol_shapes.py on walls, flags, cloth, paper,
  skin and noise, and on photographs when `--photographs` gives some; sources
  `symbol-<ground>` and `alike-<ground>`.
- the set apart (symbols_apart.py): other geometry, strokes and grounds by
  other code, as the source that a head has never seen; `symbol-apart-…` and
  `alike-apart-…`. Photographs under it come from other sources.

The n-th symbol and the n-th look-alike of a ground share the ground, the turn
(as far as the sign may be turned), the light and what hides a part, so that
nothing but the sign tells them apart. Equal seeds give equal files.

    .venv/bin/python scripts/train/draw_symbols.py --out FOLDER [--photographs benign-train.tar]

Runs in the build environment (Pillow, numpy).
"""

from __future__ import annotations

import argparse
import io
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parent))

import symbols_apart  # noqa: E402
from drawing import GROUNDS, Tile, any_colour, hide, lay, lit, size_of, write_tar  # noqa: E402
from symbol_shapes import ALIKES, SYMBOLS  # noqa: E402

SETS = {"symbol": SYMBOLS, "alike": ALIKES}
# Grounds of the set, and of the set apart: image_heads.py keeps the latter's whole sources aside with it.
PHOTOGRAPHS = ("voc-photos", "coco-photos", "sports-other", "azure-samples")
PHOTOGRAPHS_APART = ("clothing", "grocery", "kitchen-hands")


def draw(label: str, ground: str, n: int, seed: int, photograph: np.ndarray | None = None) -> Image.Image:
    """The n-th picture of a label on a ground."""
    kinds = sorted(SETS[label])
    # Each ground has all kinds in turn; neighbouring grounds begin elsewhere.
    places = [*GROUNDS, "photograph"]
    name = kinds[(n + 5 * places.index(ground)) % len(kinds)]
    scene = np.random.default_rng([seed, places.index(ground), n])
    sign = np.random.default_rng([seed, places.index(ground), n, 1 + list(SETS).index(label)])
    if photograph is None:
        picture = GROUNDS[ground](scene, *size_of(scene))
    else:
        picture = photograph / 255
    form, turn = SETS[label][name]
    tile = Tile()
    dark = picture.mean() < 0.45
    # Seen against its ground: light on dark, dark on light.
    form(tile, sign, any_colour(scene, 170, 256) if dark else any_colour(scene, 0, 110))
    picture = lay(picture, tile, scene, turn, ground)
    if scene.random() < 0.4:
        picture = hide(picture, scene)
    return lit(picture, scene)


def photographs(path: Path, sources: tuple[str, ...]) -> list[np.ndarray]:
    """At most 150 of each named source, in the order of the file."""
    found: list[np.ndarray] = []
    counts = dict.fromkeys(sources, 0)
    with tarfile.open(path) as archive:
        for member in archive:
            source = Path(member.name).parent.name
            stream = archive.extractfile(member) if counts.get(source, 150) < 150 else None
            if stream is not None:
                counts[source] += 1
                with Image.open(io.BytesIO(stream.read())) as image:
                    found.append(np.asarray(image.convert("RGB")))
    if not all(counts.values()):
        raise SystemExit(f"{path.name} lacks photographs of {[name for name, count in counts.items() if not count]}")
    return found


def main_set(each: int, seed: int, grounds: list[np.ndarray]) -> Iterator[tuple[str, Image.Image]]:
    """`each` symbols and as many look-alikes on every ground."""
    for ground in [*GROUNDS, *(["photograph"] if grounds else [])]:
        for n in range(each):
            under = grounds[(n * 7919) % len(grounds)] if ground == "photograph" else None
            for label in SETS:
                yield f"{label}-{ground}/{n:04d}", draw(label, ground, n, seed, under)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for symbols.tar and symbols-apart.tar")
    parser.add_argument("--each", type=int, default=120, help="symbols a ground, and as many look-alikes")
    parser.add_argument("--apart", type=int, default=60, help="the same of the set apart")
    parser.add_argument("--photographs", type=Path, help="tar of harmless photographs, as grounds besides the drawn ones")
    parser.add_argument("--seed", type=int, default=31)
    options = parser.parse_args()

    ours, others = (
        (photographs(options.photographs, PHOTOGRAPHS), photographs(options.photographs, PHOTOGRAPHS_APART))
        if options.photographs
        else ([], [])
    )
    count = write_tar(options.out / "symbols.tar", main_set(options.each, options.seed, ours))
    apart = write_tar(options.out / "symbols-apart.tar", symbols_apart.pictures(options.apart, options.seed, others))
    print(f"symbols.tar: {count} pictures; symbols-apart.tar: {apart}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
