"""Components: what each model identifier is made of, whether it is built, and
the building.

A component is one converted model (`generator`, `text`, `image`, `ocr` or `judge`) of
one identifier. Its fingerprint covers everything that decides its bytes: the
recipe, the files beside it that the recipe names, the hashes of the base
weights, and the code that converts them. A finished build is kept in the cache
under its fingerprint and shared with checkouts by hard links.

A recipe names a module of this package with

    build(source: dict[str, Path], recipe: dict, model_dir: Path, out: Path) -> dict

which writes files into `out` and returns the part of the manifest that is of
its kind. A recipe whose module has another beside it, named like it with `_half`
at its end, is also built for GPUs, from the same words of the recipe, into
`build-cuda` beside `build`. Components without one serve GPUs as they are.

A recipe may give its component company: identifiers whose same component judges
beside it (`ensemble`, a list; with `weights`, how much its own opinion and each of
theirs counts; with `from`, only what it scores so high itself) or
what it does not read (`elsewhere`). Their
builds, without company of their own, go whole into folders of the build, whose
manifest lists their files and says what the recipe's module says of them:

    company(recipe: dict, model_dir: Path) -> dict
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import json
import os
import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from .errors import SetupError, human_size
from .fetch import Source, Sources
from .manifest import MANIFEST, listed, place, read_intact, read_json, write_json
from .places import Places, remove
from .progress import Progress

KINDS = {"generator": "generator", "text": "text_classifier", "image": "image_classifier", "ocr": "text_reader",
         "judge": "answer_judge"}
COMPANY = ("ensemble", "weights", "from", "elsewhere")
# Raised when the wrapper itself changes what a build consists of.
FORMAT = 1


@dataclass(frozen=True)
class Component:
    """One component of one identifier, `same_as` already followed."""

    model: str
    name: str
    recipe: dict[str, Any]
    folder: Path
    target: Path
    sources: Sources
    device: str = "cpu"
    # Its company.
    others: tuple[Component, ...] = ()

    @property
    def title(self) -> str:
        return f"{self.model}/{self.name}" + (" for CUDA" if self.device == "cuda" else "")

    @property
    def source(self) -> Source:
        return self.sources.get(self.recipe["source"])

    def alone(self) -> Component:
        """The same without company."""
        recipe = {key: value for key, value in self.recipe.items() if key not in COMPANY}
        return replace(self, recipe=recipe, others=())

    @property
    def own_sources(self) -> list[Source]:
        """The base, and the network whose features further heads take, where the recipe names one."""
        return [self.source, *([self.sources.get(self.recipe["features"])] if "features" in self.recipe else [])]

    @property
    def all_sources(self) -> list[Source]:
        """Its own, and those of its company."""
        found = [*self.own_sources, *(source for other in self.others for source in other.all_sources)]
        return list({source.name: source for source in found}.values())

    @property
    def any_source(self) -> bool:
        return bool(self.recipe.get("any_source"))

    def located(self) -> dict[str, Path]:
        """Role → path of the files of all its sources."""
        found = self.sources.locate(self.source.name, self.any_source)
        for source in self.own_sources[1:]:
            found |= self.sources.locate(source.name)
        return found

    @cached_property
    def fingerprint(self) -> str:
        """Hex SHA-256 of all that decides the built bytes."""
        hashes = {role: digest for source in self.own_sources for role, digest in source.hashes.items()}
        if self.any_source and os.environ.get(self.source.variable):
            hashes = {role: _sha256(path) for role, path in self.located().items()}
        decisive = {
            "format": FORMAT,
            "component": self.name,
            "recipe": self.recipe,
            "files": {path.name: _sha256(path) for path in self._beside()},
            "source": hashes,
            "code": {path.name: _sha256(path) for path in _modules(self.sources.places, self.recipe["recipe"])},
        }
        if self.others:
            decisive["company"] = [other.fingerprint for other in self.others]
        return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()

    def _beside(self) -> list[Path]:
        """The committed files that the recipe names."""
        paths = []
        for word in _strings(self.recipe):
            path = self.folder / word
            if re.fullmatch(r"[\w.-]+\.(json|safetensors|txt|toml|xz)", word):
                if not path.is_file():
                    raise SetupError(
                        f"The recipe of {self.title} names {word}, which is not in models/{self.folder.name}:"
                        " restore it from the repository."
                    )
                paths.append(path)
        return sorted(set(paths))

    def kept(self) -> Path:
        """Where the cache keeps this build."""
        return self.sources.places.built / self.fingerprint

    def is_current(self) -> bool:
        """Whether the checkout has this very build, whole."""
        found = read_json(self.target / MANIFEST)
        if not isinstance(found, dict) or found.get("fingerprint") != self.fingerprint:
            return False
        return read_intact(self.target) is not None

    def is_kept(self) -> bool:
        return read_intact(self.kept()) is not None


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)


def _modules(places: Places, recipe: str) -> list[Path]:
    """The recipe's module and those of this package that it imports, in turn."""
    folder = places.scripts / "forge"
    start = folder / f"{recipe}.py"
    if not re.fullmatch(r"[a-z_][a-z0-9_]*", recipe) or not start.is_file():
        raise SetupError(f"There is no recipe named {recipe} in scripts/forge: correct the model.json that names it.")
    found: dict[Path, None] = {}
    waiting = [start]
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found[path] = None
        for node in ast.walk(ast.parse(path.read_bytes())):
            names: list[str] = []
            if isinstance(node, ast.ImportFrom):
                base = (node.module or "").removeprefix("forge").lstrip(".")
                if node.level == 1 or (node.module or "").split(".")[0] == "forge":
                    names = [base.split(".")[0]] if base else [alias.name for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [alias.name.split(".")[1] for alias in node.names if alias.name.startswith("forge.")]
            waiting += [folder / f"{name}.py" for name in names if (folder / f"{name}.py").is_file()]
    return sorted(found)


# --- the catalogue -----------------------------------------------------------


class Catalogue:
    """The identifiers of `models/catalog.json` and their recipes."""

    def __init__(self, places: Places, sources: Sources) -> None:
        self._places = places
        self._sources = sources
        document = _read(places.models / "catalog.json")
        self.models: list[str] = document["models"]

    def choose(self, words: str) -> list[str]:
        """The identifiers in a list split by commas or spaces; all for none."""
        chosen = [word for word in re.split(r"[,\s]+", words) if word]
        for word in chosen:
            if word not in self.models:
                raise SetupError(f"MODELS names {word}, which is not a model: choose from {', '.join(self.models)}.")
        return [model for model in self.models if model in chosen] if chosen else list(self.models)

    def components(self, models: list[str], device: str = "cpu") -> list[Component]:
        """Every component of the given identifiers, in the catalogue's order; for
        CUDA also what is built for it, as those for the CPU stay in reserve.
        """
        found = [
            self._component(model, name)
            for model in models
            for name in KINDS
            if name in self._recipes(model)
        ]
        return found + ([half for item in found if (half := self._for_cuda(item))] if device == "cuda" else [])

    def _for_cuda(self, component: Component) -> Component | None:
        recipe = f"{component.recipe['recipe']}_half"
        if not (self._places.scripts / "forge" / f"{recipe}.py").is_file():
            return None
        target = self._places.models / component.model / "build-cuda" / component.name
        others = tuple(self._for_cuda(other) or other for other in component.others)
        recipe = {**component.recipe, "recipe": recipe}
        return replace(component, recipe=recipe, target=target, device="cuda", others=others)

    def _recipes(self, model: str) -> dict[str, Any]:
        recipes: dict[str, Any] = _read(self._places.models / model / "model.json")["components"]
        for name in recipes:
            if name not in KINDS:
                raise SetupError(f"models/{model}/model.json has a component {name}: use {', '.join(KINDS)}.")
        return recipes

    def _alone(self, model: str, name: str) -> Component:
        recipe = {key: value for key, value in self._recipes(model)[name].items() if key not in COMPANY}
        folder = self._places.models / model
        return Component(model, name, recipe, folder, folder / "build" / name, self._sources)

    def _component(self, model: str, name: str) -> Component:
        owner = model
        recipe = self._recipes(model)[name]
        if "same_as" in recipe:
            owner = recipe["same_as"]
            recipe = self._recipes(owner).get(name, {}) if owner in self.models else {}
        if "recipe" not in recipe or "source" not in recipe:
            raise SetupError(
                f"The {name} component of models/{owner}/model.json has no recipe and source of its own: add them,"
                " or correct the same_as that leads there."
            )
        folder = self._places.models
        elsewhere = [recipe["elsewhere"]] if "elsewhere" in recipe else []
        names = list(dict.fromkeys([*recipe.get("ensemble", []), *elsewhere]))

        def builds(other: str) -> bool:
            return other != owner and other in self.models and "recipe" in self._recipes(other).get(name, {})

        if not all(map(builds, names)):
            raise SetupError(
                f"The {name} component of models/{owner}/model.json has company that no other model builds: correct it."
            )
        others = tuple(self._alone(other, name) for other in names)
        target = folder / model / "build" / name
        return Component(model, name, recipe, folder / owner, target, self._sources, others=others)


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise SetupError(f"{path} is missing: restore it from the repository.") from error
    except ValueError as error:
        raise SetupError(f"{path} is not valid JSON ({error}): correct it.") from error


# --- building ----------------------------------------------------------------


def install(component: Component, progress: Progress, force: bool = False) -> None:
    """Brings the checkout's copy of a component up to date. The caller holds
    the lock.
    """
    started = time.monotonic()
    how = "up to date"
    if force:
        parts = (component, component.alone(), *component.others)
        # What is needed to build anew must be there before the kept build goes.
        for part in parts:
            part.located()
        for part in parts:
            remove(part.kept())
    if force or not component.is_current():
        how = "from the cache"
        if not component.is_kept():
            progress.say(f"{component.title}: building from {' and '.join(s.name for s in component.all_sources)}")
            _build(component)
            how = "built"
        before = read_json(component.target / MANIFEST)
        place(component.kept(), component.target)
        _forget(component, before)
    manifest = read_json(component.target / MANIFEST)
    size = sum(file["bytes"] for file in manifest["files"])
    seconds = time.monotonic() - started
    progress.say(f"{component.title}: {how}, {human_size(size)}, {seconds:.1f} s ({manifest['name']})")


def built_alone(component: Component) -> Path:
    """The component without its company, in the cache, where it is built if it is not there. The caller holds the lock."""
    alone = component.alone()
    if not alone.is_kept():
        _build(alone)
    return alone.kept()


def _build(component: Component) -> None:
    """Converts into a folder of the cache that gets its name when it is whole."""
    final = component.kept()
    out = final.with_name(final.name + ".partial")
    remove(out)
    remove(final)
    out.mkdir(parents=True)
    try:
        manifest = _with_company(component, out) if component.others else _converted(component, out)
        for path in out.rglob("*"):
            if path.is_file():
                path.chmod(0o444)
        write_json(out / MANIFEST, {**manifest, "fingerprint": component.fingerprint, "files": listed(out)})
        out.rename(final)
    finally:
        remove(out)


def _converted(component: Component, out: Path) -> dict[str, Any]:
    """The manifest of what the recipe's module writes into `out`."""
    kind = KINDS[component.name]
    source = component.located()
    try:
        returned = _module(component).build(source, component.recipe, component.folder, out)
    except ValueError as error:
        raise SetupError(f"{component.title} cannot be built: {error}") from error
    return {
        "format": 1,
        "kind": kind,
        "name": component.recipe["name"],
        "source": component.recipe["source"],
        "licence": component.recipe["licence"],
        # In this order for people; both are set when all files are there.
        "fingerprint": None,
        "files": [],
        kind: returned.get(kind, returned),
    }


def _with_company(component: Component, out: Path) -> dict[str, Any]:
    """Puts the component and its company, each as it is built alone, into `out`; answers the manifest of all."""
    own = component.alone()
    for part in (own, *component.others):
        if not part.is_kept():
            _build(part)
    place(own.kept(), out)
    for other in component.others:
        place(other.kept(), out / other.model)
    kind = KINDS[component.name]
    manifest = read_json(out / MANIFEST)
    # One of a hard link's two names: the other stays as it is.
    (out / MANIFEST).unlink()
    try:
        told = _module(component).company(component.recipe, component.folder)
    except ValueError as error:
        raise SetupError(f"{component.title} cannot be built: {error}") from error
    licences = dict.fromkeys([manifest["licence"], *(other.recipe["licence"] for other in component.others)])
    return {**manifest, "licence": " AND ".join(licences), kind: {**manifest[kind], **told}}


def _module(component: Component) -> Any:
    return importlib.import_module(f"forge.{component.recipe['recipe']}")


def _forget(component: Component, before: Any) -> None:
    """Drops the build that was just replaced from the cache, unless another
    checkout or identifier still shares its files.
    """
    old = before.get("fingerprint") if isinstance(before, dict) else None
    if not isinstance(old, str) or not re.fullmatch(r"[0-9a-f]{64}", old):
        return
    if old in (component.fingerprint, component.alone().fingerprint):
        return
    built = component.sources.places.built
    folder = built / old
    # A cache that is read-only keeps what it has.
    if not folder.is_dir() or _is_placed(folder) or not os.access(built, os.W_OK):
        return
    replaced = {path.stat().st_ino for path in folder.rglob("*.onnx")}
    remove(folder)
    # Also the networks that it was put together from, unless something else stands on them.
    needed = {component.alone().fingerprint, *(other.fingerprint for other in component.others)}
    names = Counter(path.stat().st_ino for path in built.rglob("*.onnx"))
    for part in filter(Path.is_dir, list(built.iterdir())):
        if part.name in needed or any(map(Path.is_dir, part.iterdir())):
            continue
        files = [path.stat() for path in part.rglob("*.onnx")]
        if any(file.st_ino in replaced for file in files) and not _is_placed(part):
            if all(file.st_nlink == names[file.st_ino] for file in files):
                remove(part)


def _is_placed(folder: Path) -> bool:
    """Whether something has the very build by hard links."""
    manifest = folder / MANIFEST
    return manifest.is_file() and manifest.stat().st_nlink > 1
