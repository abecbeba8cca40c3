"""From a list of contents to a tar: hashes, signatures, and an archive that the
same contents always make alike, byte for byte.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from forge.manifest import sha256_file

SUMS = "SHA256SUMS"
SIGNATURE = f"{SUMS}.minisig"


@dataclass(frozen=True)
class Item:
    """A file of the bundle: bytes, or a file of the checkout."""

    content: bytes | Path
    runs: bool = False

    @cached_property
    def sha256(self) -> str:
        if isinstance(self.content, bytes):
            return hashlib.sha256(self.content).hexdigest()
        return sha256_file(self.content)


Contents = dict[str, Item]


def seal(contents: Contents, sign: Callable[[bytes], bytes] | None) -> Contents:
    """The contents with their list of hashes and, with a key, its signature."""
    hashes = {name: item.sha256 for name, item in contents.items()}
    sums = "".join(f"{hashes[name]}  {name}\n" for name in sorted(hashes)).encode()
    sealed = {**contents, SUMS: Item(sums)}
    return {**sealed, SIGNATURE: Item(sign(sums))} if sign else sealed


def write(target: Path, top: str, contents: Contents, moment: int, level: int) -> None:
    """Writes the archive under a temporary name, then renames it. Equal files
    are stored once: the later are hard links to the first.
    """
    partial = target.with_name(target.name + ".partial")
    try:
        with partial.open("wb") as raw, gzip.GzipFile("", "wb", level, raw, moment) as packed:
            with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
                _fill(tar, top, contents, moment)
        partial.rename(target)
    finally:
        partial.unlink(missing_ok=True)


def _fill(tar: tarfile.TarFile, top: str, contents: Contents, moment: int) -> None:
    folders = {str(parent) for name in contents for parent in Path(top, name).parents if parent != Path(".")}
    first: dict[tuple[int, str], str] = {}
    for name in sorted(folders | {f"{top}/{name}" for name in contents}):
        entry = tarfile.TarInfo(name)
        entry.mtime = moment
        if name in folders:
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
            continue
        item = contents[name.removeprefix(f"{top}/")]
        entry.mode = 0o755 if item.runs else 0o644
        if isinstance(item.content, bytes):
            entry.size = len(item.content)
            tar.addfile(entry, io.BytesIO(item.content))
            continue
        same = first.setdefault((entry.mode, item.sha256), name)
        if same != name:
            entry.type, entry.linkname = tarfile.LNKTYPE, same
            tar.addfile(entry)
            continue
        entry.size = item.content.stat().st_size
        with item.content.open("rb") as stream:
            tar.addfile(entry, stream)
