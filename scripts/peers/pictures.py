"""How each side of the group of pictures is measured in a round."""

from __future__ import annotations

from . import figures
from .bench import Bench, Measure, Raw, load
from .figures import Outcome
from .material import CLASSIFIER
from .processes import SideFailed, read
from .rows import PICTURE_CONNECTIONS

PATH = "/v1/guardians/image"


def _classifier(bench: Bench, raw: Raw) -> Outcome:
    found = bench.ours(
        {
            "job": "classify",
            "library": str(bench.library),
            "threads": bench.threads,
            "bundle": str(bench.pictures.bundle),
            "picture": str(bench.pictures.one),
            "batches": [1, 4, 8],
            "seconds": bench.seconds / 3,
        }
    )
    return {"rate": max(one["pictures"] / one["seconds"] for one in found)}


def _load(bench: Bench, name: str, parts: list[str]) -> Outcome:
    with bench.server(bench.material.served(name, parts), [CLASSIFIER]) as server:
        ask_ = (bench, server.port, server.key, PATH, bench.pictures.bodies, PICTURE_CONNECTIONS)
        load(*ask_, 0.5)
        found = load(*ask_, bench.seconds)
    return {"rate": found["answers"] / found["seconds"]}


def _http(bench: Bench, raw: Raw) -> Outcome:
    return _load(bench, "image", ["image"])


def _reading(bench: Bench, raw: Raw) -> Outcome:
    return _load(bench, "reading", ["image", "text", "ocr"])


def _alone(bench: Bench, raw: Raw) -> Outcome:
    """One client with a photograph, which is looked at and searched for text, by one identifier after the other."""
    models = list(bench.photograph.bodies)
    found = {}
    with bench.server(bench.material.served("photograph", ["image", "text", "ocr"], models), models) as server:
        for model, bodies in bench.photograph.bodies.items():
            asked = (bench, server.port, server.key, PATH, bodies, 1)
            load(*asked, 0.5)
            before = figures.passes(read(server.port, "/metrics"))
            answer = load(*asked, bench.seconds * 2)
            after = figures.passes(read(server.port, "/metrics"))
            made = {part: after[part] - before[part] for part in ("image", "detector", "recogniser")}
            if made["recogniser"]:
                raise SideFailed("text was found in the photograph, which has none")
            if made["image"] < answer["answers"] or made["detector"] < answer["answers"]:
                raise SideFailed(f"{answer['answers']} pictures took {made['image']} and {made['detector']} passes")
            found[model.partition("-")[0]] = answer["p50"] * 1000
    return found


def _plain(bench: Bench, raw: Raw) -> Outcome:
    given = bench.photograph
    job = {
        "picture": str(given.one),
        "vision": str(given.vision),
        "side": given.side,
        "detector": str(given.detector),
        "page": given.page,
        "threads": bench.threads,
        "seconds": bench.seconds,
    }
    return figures.best_pass(bench.theirs("plain_pictures.py", job))


SIDES: dict[str, Measure] = {
    "image/classifier": _classifier,
    "image/http": _http,
    "image/alone": _alone,
    "image/plain": _plain,
    "image/reading": _reading,
}
