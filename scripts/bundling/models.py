"""The built models and ONNX Runtime, as set-up left them in the checkout."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from forge.components import Catalogue, Component
from forge.environment import runtime_ready, runtime_source
from forge.errors import SetupError
from forge.fetch import Source, Sources
from forge.manifest import MANIFEST, read_json, sha256_file
from forge.places import Places

from .parts import Part, kept_texts, purl, standard_texts, texts_in

_RUNTIME = "libonnxruntime.so"


def installed(places: Places, sources: Sources, models: str) -> list[Component]:
    """The components of the chosen identifiers, each built and whole."""
    catalogue = Catalogue(places, sources)
    found = catalogue.components(catalogue.choose(models))
    for item in found:
        if not item.is_current():
            raise SetupError(f"{item.title} is not built here as its recipe says: run make build, then run again.")
    if not found:
        raise SetupError("There is nothing to serve in a bundle of these MODELS: choose others.")
    return found


def model_parts(places: Places, components: Iterable[Component]) -> list[Part]:
    """One for each built model; identifiers that share it are named in it."""
    shared: dict[str, list[Component]] = {}
    for item in components:
        shared.setdefault(item.fingerprint, []).append(item)
    return [_model(places, items) for items in shared.values()]


def _model(places: Places, items: list[Component]) -> Part:
    first = items[0]
    manifest = read_json(first.target / MANIFEST)
    source, licence, version = first.source, manifest["licence"], first.fingerprint[:12]
    texts: dict[str, bytes] = {}
    for one in first.all_sources:
        own = kept_texts(places, one.name, *one.packages)
        # A package's own licence may be that of its packer alone: the weights' stands beside it.
        if one.licence == "Apache-2.0" or not own:
            own = {**standard_texts(places, one.name, one.licence), **own}
        texts |= own
    about: dict[str, Any] = {
        "description": manifest["name"],
        "hashes": [{"alg": "SHA-256", "content": sha256_file(first.target / MANIFEST)}],
        "components": _files(manifest["files"]),
        "pedigree": {
            "ancestors": [_weights(one, known=not (first.any_source and one == source)) for one in first.all_sources]
        },
        "properties": [{"name": "dichroic:component", "value": item.title} for item in items],
    }
    ref = f"{first.model}/{first.name}@{version}"
    name = f"{first.model}-{first.name}"
    return Part(ref, name, version, licence, f"models/{source.name}", texts, "machine-learning-model", about)


def _weights(source: Source, known: bool) -> dict[str, Any]:
    """What a model was converted from. `known` is false where the recipe takes any file in its place."""
    packages = [purl(_registry(source), name, source.version) for name in source.packages]
    return {
        "type": "machine-learning-model",
        "name": source.name,
        "version": source.version,
        **({"components": _files([file.entry for file in source.files])} if known else {}),
        "properties": [{"name": "dichroic:package", "value": package} for package in packages],
    }


def _registry(source: Source) -> str:
    return "npm" if source.client == "npm" else "pypi"


def _files(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"type": "file", "name": entry["path"], "hashes": [{"alg": "SHA-256", "content": entry["sha256"]}]}
        for entry in entries
    ]


def runtime_part(places: Places, sources: Sources) -> Part:
    """ONNX Runtime, whose texts set-up takes out of its package."""
    source = sources.get(runtime_source(sources))
    if not runtime_ready(places, sources):
        raise SetupError("runtime/ does not hold the pinned ONNX Runtime: run make build, then run again.")
    library = next((file for file in source.files if file.path == _RUNTIME), None)
    if library is None:
        raise SetupError(f"scripts/sources.json pins no {_RUNTIME}: restore it from the repository.")
    texts = texts_in(places.runtime) or standard_texts(places, source.name, source.licence)
    ref = purl(_registry(source), next(iter(source.packages)), source.version)
    about = {"purl": ref, "hashes": [{"alg": "SHA-256", "content": library.sha256}]}
    return Part(ref, "onnxruntime", source.version, source.licence, "onnxruntime", texts, about=about)


def identifiers(components: Iterable[Component]) -> list[str]:
    return list(dict.fromkeys(item.model for item in components))

