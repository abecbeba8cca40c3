"""Owns the pictures of our own that image moderation is measured on and shown by:
sets that are drawn for a run, and the samples of the contact sheet.

Nothing here comes from a photograph, so all of it may be shown and passed on.
"""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass, field
from pathlib import Path

from . import pages

ROOT = Path(__file__).resolve().parents[2]
# The drawings belong to the training, whose scripts are no package.
sys.path.append(str(ROOT / "scripts" / "train"))

import draw_skin  # noqa: E402
import draw_symbols  # noqa: E402
import symbols_apart  # noqa: E402
from drawing import write_tar  # noqa: E402

GOLDEN = ROOT / "tests" / "golden" / "images"
# Of each kind of text picture, how many are on the sheet.
TEXTS_EACH = 2
# Harmless and harmful texts are both among those that it draws.
SEED = 5


@dataclass(frozen=True)
class Sample:
    """A picture of the sheet."""

    name: str
    data: bytes = field(repr=False)


def sets(folder: Path, each: int, seed: int) -> list[Path]:
    """Tars of pictures in the colours of skin, and of hate symbols with their look-alikes; `each` of a source."""
    drawn = {
        "skin.tar": draw_skin.pictures(each, seed),
        "symbols.tar": draw_symbols.main_set(each, seed, []),
        "symbols-apart.tar": symbols_apart.pictures(each, seed, []),
    }
    for name, pictures in drawn.items():
        write_tar(folder / name, pictures)
    return [folder / name for name in drawn]


def samples() -> list[Sample]:
    """The golden pictures, one of each kind in the colours of skin, and some with text."""
    found = [Sample(path.stem, path.read_bytes()) for path in sorted(GOLDEN.glob("*.png"))]
    for kind in sorted(draw_skin.KINDS):
        buffer = io.BytesIO()
        draw_skin.draw(kind, 0, SEED).save(buffer, "PNG")
        found.append(Sample(f"skin, {kind}", buffer.getvalue()))
    kinds = len(pages.KINDS) - 2
    for page in pages.draw(TEXTS_EACH * kinds, SEED, None):
        found.append(Sample(f"text, {page.kind}", page.png))
    return found
