"""The crates of the server: everything that is linked into the binary or runs
to build it, as cargo resolves it for this machine, with the texts that lie in
the packages' folders.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from forge.errors import SetupError
from forge.places import Places

from .parts import Part, kept_texts, purl, standard_texts, texts_in

# It packs a web page that the binary serves, as the archive of its release.
_SWAGGER = "utoipa-swagger-ui-vendored"


def server(places: Places) -> tuple[Part, list[Part]]:
    """The server itself, and what it is built of."""
    host = re.search(r"^host: (\S+)$", _run(places, ["rustc", "-vV"]), re.MULTILINE)
    if host is None:
        raise SetupError("rustc does not say for which machine it builds: install Rust with rustup, then run again.")
    # Without default features, as the Makefile builds what it bundles.
    told = ["cargo", "metadata", "--format-version", "1", "--locked", "--no-default-features"]
    told += ["--filter-platform", host[1]]
    metadata = json.loads(_run(places, told))
    packages = {package["id"]: package for package in metadata["packages"]}
    needed = _needed(metadata["resolve"])
    checksums = _checksums(places.root / "Cargo.lock")
    # A folder on one machine is part of an id: names and versions order them alike everywhere.
    ordered = sorted(needed, key=lambda id_: (packages[id_]["name"], packages[id_]["version"]))
    parts = {id_: _part(places, packages[id_], [packages[need] for need in needed[id_]], checksums) for id_ in ordered}
    root = parts.pop(metadata["resolve"]["root"])
    others = [*parts.values(), _standard_library(places)]
    others += [_swagger(_folder(packages[id_])) for id_ in parts if packages[id_]["name"] == _SWAGGER]
    return replace(root, kind="application", texts={"LICENSE": root.texts["LICENSE"]}), others


def _needed(resolve: dict[str, Any]) -> dict[str, list[str]]:
    """The ids of the binary's tree, each with those it needs. What only tests need is left out."""
    nodes = {node["id"]: node for node in resolve["nodes"]}
    found: dict[str, list[str]] = {}
    waiting = [resolve["root"]]
    while waiting:
        id_ = waiting.pop()
        if id_ in found:
            continue
        links = nodes[id_]["deps"]
        found[id_] = sorted({link["pkg"] for link in links if any(kind["kind"] != "dev" for kind in link["dep_kinds"])})
        waiting += found[id_]
    return found


def _part(
    places: Places, package: dict[str, Any], needs: list[dict[str, Any]], checksums: dict[tuple[str, str], str]
) -> Part:
    name, version = package["name"], package["version"]
    licence = re.sub(r"\s*/\s*", " OR ", package["license"] or "")
    folder = _folder(package)
    texts = texts_in(folder)
    if package["license_file"]:
        texts[Path(package["license_file"]).name] = (folder / package["license_file"]).read_bytes()
    texts = texts or kept_texts(places, name)
    texts = texts or standard_texts(places, name, licence, ", ".join(package["authors"]))
    # It lies beside the data that it is about, wherever those are.
    texts = {**{path.name: path.read_bytes() for path in folder.rglob("LICENSE-UNICODE")}, **texts}
    about: dict[str, Any] = {"purl": purl("cargo", name, version)}
    checksum = checksums.get((name, version))
    if checksum:
        about["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    refs = [purl("cargo", need["name"], need["version"]) for need in needs]
    refs += [_swagger_ref(folder)] if name == _SWAGGER else []
    folder_name = f"crates/{name}-{version}"
    return Part(about["purl"], name, version, licence, folder_name, texts, about=about, needs=tuple(sorted(refs)))


def _folder(package: dict[str, Any]) -> Path:
    return Path(package["manifest_path"]).parent


def _checksums(lock: Path) -> dict[tuple[str, str], str]:
    """SHA-256 of each crate's package, by name and version."""
    entry = re.compile(r'\nname = "([^"]+)"\nversion = "([^"]+)"\nsource = "[^"]+"\nchecksum = "([0-9a-f]{64})"')
    return {(name, version): checksum for name, version, checksum in entry.findall(lock.read_text(encoding="utf-8"))}


# --- what is in the binary and is no crate -----------------------------------


def _swagger_archive(folder: Path) -> tuple[Path, str]:
    archives = sorted(folder.glob("res/v*.zip"))
    if len(archives) != 1:
        raise SetupError(f"{_SWAGGER} does not hold one archive of Swagger UI: mend scripts/bundling/crates.py.")
    return archives[0], archives[0].stem.removeprefix("v")


def _swagger_ref(folder: Path) -> str:
    return purl("npm", "swagger-ui", _swagger_archive(folder)[1])


def _swagger(folder: Path) -> Part:
    """Swagger UI, which `/docs` serves; its texts are in its archive."""
    path, version = _swagger_archive(folder)
    with zipfile.ZipFile(path) as archive:
        texts = {
            name.split("/")[1]: archive.read(name)
            for name in archive.namelist()
            if re.fullmatch(r"[^/]+/(LICENSE|NOTICE)", name)
        }
    if "LICENSE" not in texts:
        raise SetupError(f"The archive of Swagger UI {version} holds no LICENSE: mend scripts/bundling/crates.py.")
    ref = _swagger_ref(folder)
    about = {"purl": ref}
    return Part(ref, "swagger-ui", version, "Apache-2.0", f"crates/swagger-ui-{version}", texts, about=about)


def _standard_library(places: Places) -> Part:
    """Rust's own library, linked like a crate. The toolchain brings its notices."""
    sysroot = Path(_run(places, ["rustc", "--print", "sysroot"]).strip())
    version = _run(places, ["rustc", "--version"]).split()[1]
    name, licence = "rust-std", "MIT OR Apache-2.0"
    notices = sysroot / "share/doc/rust/COPYRIGHT-library.html"
    texts = {notices.name: notices.read_bytes()} if notices.is_file() else standard_texts(places, name, licence)
    return Part(f"{name}@{version}", name, version, licence, f"crates/{name}-{version}", texts)


def _run(places: Places, command: list[str]) -> str:
    try:
        done = subprocess.run(
            command, cwd=places.root, env=dict(os.environ, LC_ALL="C"), capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise SetupError(f"{command[0]} cannot be started ({error.strerror}): install Rust with rustup.") from error
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["it said nothing"]
        raise SetupError(f"{' '.join(command[:2])} failed ({lines[-1]}): mend that, then run again.")
    return done.stdout
