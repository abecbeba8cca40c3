"""Hashes, manifests, and how finished files get to their place.

A folder of built files has a `manifest.json` that lists every other file with
its size and SHA-256; the server loads nothing that differs from it. Files are
shared between the cache and checkouts by hard links and are therefore
read-only.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .places import remove

MANIFEST = "manifest.json"
# Remembers which bytes were hashed already, so that an unchanged gigabyte is
# not read again by every run. The server does not use it.
_CHECKED = ".checked.json"


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of a file, read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while piece := stream.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def write_json(path: Path, value: Any) -> None:
    """Writes JSON under a temporary name, then renames it."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    partial.replace(path)


def read_json(path: Path) -> Any:
    """The JSON in a file, or None where there is no such readable file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def listed(folder: Path) -> list[dict[str, Any]]:
    """Path, size and hash of each file in a folder and those below it, its own manifest left out."""
    return [
        {"path": path.relative_to(folder).as_posix(), "bytes": path.stat().st_size, "sha256": sha256_file(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path != folder / MANIFEST and path.name != _CHECKED
    ]


def intact(folder: Path, files: list[dict[str, Any]]) -> bool:
    """Whether each listed file is there with its size and hash.

    A file that has kept its identity, size and times since it was last hashed
    here is taken as unchanged.
    """
    remembered = read_json(folder / _CHECKED) or {}
    seen: dict[str, list[Any]] = {}
    for entry in files:
        path = folder / entry["path"]
        try:
            status = path.stat()
        except OSError:
            return False
        if status.st_size != entry["bytes"]:
            return False
        mark = [status.st_ino, status.st_size, status.st_mtime_ns, entry["sha256"]]
        if remembered.get(entry["path"]) != mark and sha256_file(path) != entry["sha256"]:
            return False
        seen[entry["path"]] = mark
    if seen != remembered:
        try:
            write_json(folder / _CHECKED, seen)
        except OSError:
            pass  # A read-only cache serves as well; it is only hashed each time.
    return True


def read_intact(folder: Path) -> dict[str, Any] | None:
    """The manifest of a folder, or None unless all of its files are intact."""
    found = read_json(folder / MANIFEST)
    if not isinstance(found, dict) or not intact(folder, found.get("files", [])):
        return None
    return found


def place(source: Path, target: Path) -> None:
    """Puts a copy of the folder `source` at `target`, by hard links where the
    file system allows, and swaps it in whole.
    """
    with replacing(target) as partial:
        for path in sorted(source.rglob("*")):
            if not path.is_dir() and path.name != _CHECKED:
                link(path, partial / path.relative_to(source))


def link(path: Path, copy: Path) -> None:
    """One file of `place`."""
    copy.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(path, copy)
    except OSError:
        shutil.copy2(path, copy)


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """A new folder beside `target`, which takes its place once the block has filled it."""
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    stale = target.with_name(f".{target.name}.{os.getpid()}.stale")
    # Those of a process that was killed, too: whoever writes here holds the lock.
    for left in [*target.parent.glob(f".{target.name}.*.partial"), *target.parent.glob(f".{target.name}.*.stale")]:
        remove(left)
    partial.mkdir(parents=True)
    try:
        yield partial
        if target.exists():
            target.rename(stale)
        partial.rename(target)
    finally:
        remove(partial)
        remove(stale)
