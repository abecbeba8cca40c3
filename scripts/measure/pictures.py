"""Owns the finding of pictures: tars and folders that hold `<source>/<picture>`,
and of each source some, the same ones for the same seed.

A source is named by the folder that a picture lies in; where it lies in none, by
the tar or the folder that was given. One picture is in memory at a time.
"""

from __future__ import annotations

import itertools
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from . import MeasureError

ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff")


@dataclass(frozen=True)
class Place:
    """Where a picture is: its name in a tar, or below a folder."""

    source: str
    holder: Path
    name: str

    def __str__(self) -> str:
        return f"{self.holder}:{self.name}"


def find(holders: Iterable[Path], most: int | None, seed: int) -> list[Place]:
    """At most `most` pictures of each source, the sources in the order of their names."""
    sources: dict[str, list[Place]] = {}
    for holder in holders:
        for name in _names(holder):
            inner = PurePosixPath(name)
            if inner.suffix.lower() in ENDINGS and not inner.name.startswith("."):
                source = inner.parent.name or holder.name.split(".")[0]
                sources.setdefault(source, []).append(Place(source, holder, name))
    rng = np.random.default_rng(seed)
    return [
        places[index]
        for _, places in sorted(sources.items())
        for index in sorted(rng.permutation(len(places))[:most])
    ]


def read(places: Iterable[Place]) -> Iterator[tuple[Place, bytes]]:
    """Each place with the bytes that are there."""
    for holder, group in itertools.groupby(places, lambda place: place.holder):
        try:
            if holder.is_dir():
                yield from ((place, (holder / place.name).read_bytes()) for place in group)
                continue
            with tarfile.open(holder) as archive:
                for place in group:
                    stream = archive.extractfile(place.name)
                    yield place, stream.read() if stream else b""
        except (OSError, EOFError, tarfile.TarError) as error:
            raise _unreadable(holder, error) from None


def _names(holder: Path) -> list[str]:
    try:
        if holder.is_dir():
            return sorted(path.relative_to(holder).as_posix() for path in holder.rglob("*") if path.is_file())
        with tarfile.open(holder) as archive:
            return [member.name for member in archive if member.isfile()]
    except (OSError, EOFError, tarfile.TarError) as error:
        raise _unreadable(holder, error) from None


def _unreadable(holder: Path, error: Exception) -> MeasureError:
    told = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
    return MeasureError(f"{holder} cannot be read as a tar or a folder of pictures ({told})")
