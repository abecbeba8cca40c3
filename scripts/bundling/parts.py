"""The parts of a bundle that others made, each with its licence texts and what
the bill of materials says of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from forge.errors import SetupError
from forge.places import Places

_TEXT = re.compile(r"(?i)(licen[sc]es?|copying|copyright|notice|unlicense|patents|authors|thirdparty)")
_MIT_HOLDERS = "Copyright (c) <year> <copyright holders>"


@dataclass(frozen=True)
class Part:
    """A crate, a model, a library, or what one of them carries."""

    ref: str
    name: str
    version: str
    licence: str
    # The folder of its texts below licences/, and each by its name.
    folder: str
    texts: dict[str, bytes]
    # CycloneDX: the kind of component, and what is known beside the above.
    kind: str = "library"
    about: dict[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()


def purl(kind: str, name: str, version: str) -> str:
    """A package URL; an npm scope keeps its slash."""
    return f"pkg:{kind}/{quote(name, safe='/')}@{quote(version, safe='')}"


def texts_in(folder: Path) -> dict[str, bytes]:
    """The licence files of a package's folder, one level of folders below it included."""
    found = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if not _TEXT.match(path.name):
            continue
        inner = sorted(path.iterdir()) if path.is_dir() else [path]
        found.update({file.relative_to(folder).as_posix(): file.read_bytes() for file in inner if file.is_file()})
    return found


def kept_texts(places: Places, *names: str) -> dict[str, bytes]:
    """What licences/ of the checkout keeps for these sources or packages."""
    folders = [places.root / "licences" / name for name in names]
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for folder in folders
        if folder.is_dir()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def standard_texts(places: Places, name: str, licence: str, authors: str = "") -> dict[str, bytes]:
    """The text of a licence that somebody declares without bringing it along. Of
    several to choose from, Apache-2.0 is chosen before MIT.
    """
    # Several at once need several texts.
    offered = [] if " AND " in licence else [word.strip(" ()") for word in licence.split(" OR ")]
    if "Apache-2.0" in offered:
        return {"Apache-2.0.txt": (places.root / "LICENSE").read_bytes()}
    if "MIT" in offered:
        text = (places.root / "licences" / "MIT.txt").read_text(encoding="utf-8")
        if _MIT_HOLDERS not in text:
            raise SetupError("licences/MIT.txt is not the licence's text: restore it from the repository.")
        holders = authors or f"the authors of {name}"
        return {"MIT.txt": text.replace(_MIT_HOLDERS, f"Copyright (c) {holders}").encode()}
    raise SetupError(
        f"{name}, under {licence or 'a licence that it does not name'}, carries no licence text: put it into"
        f" licences/{name}, then run again."
    )
