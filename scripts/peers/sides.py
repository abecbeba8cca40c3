"""How each side of each group is measured in a round. A side is alone while it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from demo_support import DemoError
from measure.texts import CATEGORIES

from . import PeersError, figures, machine, pictures
from .bench import HERE, SIDE_SECONDS, Bench, Measure, Raw, load
from .figures import Failed, Outcome
from .material import CLASSIFIER, Generator
from .processes import SideFailed, post, serving
from .rows import CONNECTIONS, GENERATORS, LOAD_SHARE, STREAMS

BATCHES = [1, 4, 8, 16, 32, 64]
# Answers that begin with fewer equal tokens come of another model or prompt.
LIKE_WEIGHTS = 4
# Of the verdicts on the golden texts; the stock export loses some to its rounding.
LIKE_VERDICTS = 0.9


def sides() -> dict[str, Measure]:
    """`group/side` → how it is measured, in the order of an odd round."""
    found: dict[str, Measure] = {}
    for model in GENERATORS:
        for side, measure in _GENERATOR_SIDES.items():
            found[f"{model}/{side}"] = lambda bench, raw, model=model, measure=measure: measure(bench, model, raw)
    found[f"{CLASSIFIER}/pair"] = _pair
    found |= {"text/engine": _engine, "text/products": _products, "text/stock": _stock, "text/http": _http}
    return found | {"text/fastapi": _fastapi, **pictures.SIDES, **machine.SIDES, **machine.ONCE}


def measured(bench: Bench, measure: Measure, raw: Raw) -> Outcome:
    """The figures, or why there are none."""
    try:
        return measure(bench, raw)
    except (SideFailed, DemoError, PeersError) as error:
        return Failed(str(error))
    except (KeyError, TypeError, ValueError) as error:
        return Failed(f"its answer is not of the agreed form ({error!r})")


# --- generation --------------------------------------------------------------


def _ours(bench: Bench, model: str, raw: Raw) -> Outcome:
    given = bench.generator(model)
    raw.update(
        bench.ours(
            {
                "job": "generate",
                "library": str(bench.library),
                "threads": bench.threads,
                "bundle": str(given.bundle),
                "prefix": given.prefix,
                "first": given.first,
                "whole": given.whole,
                "together": given.together,
                "tokens": bench.tokens,
            }
        )
    )
    return figures.generation(raw, bench.tokens)


def _llama_cpp_python(bench: Bench, model: str, raw: Raw) -> Outcome:
    given = bench.generator(model)
    job = {
        "gguf": str(given.gguf),
        "threads": bench.threads,
        "tokens": bench.tokens,
        "first": given.prompts(given.first),
        "whole": given.prompts(given.whole),
    }
    raw.update(bench.theirs("llama.py", job))
    return figures.generation(raw, bench.tokens)


def _genai(bench: Bench, model: str, raw: Raw) -> Outcome:
    given = bench.generator(model)
    folder = given.genai
    _set_threads(folder / "genai_config.json", bench.threads)
    job = {
        "folder": str(folder),
        "tokens": bench.tokens,
        "first": given.prompts(given.first),
        "whole": given.prompts(given.whole),
        "together": given.prompts(given.together),
    }
    raw.update(bench.theirs("genai.py", job))
    return figures.generation(raw, bench.tokens)


def _set_threads(config: Path, threads: int) -> None:
    from forge.manifest import read_json, write_json

    found = read_json(config)
    found["model"]["decoder"]["session_options"]["intra_op_num_threads"] = threads
    write_json(config, found)


@contextmanager
def _llama_server(
    bench: Bench, given: Generator, slots: int
) -> Iterator[Callable[[list[int], int], tuple[float, list[int]]]]:
    """llama.cpp's own server; gives a function that generates and says how long it took."""
    threads = str(bench.threads)

    def command(port: int) -> list[str | Path]:
        return [
            bench.peers.llama_server,
            "--model",
            given.gguf,
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--offline",
            "--threads",
            threads,
            "--threads-batch",
            threads,
            "--parallel",
            str(slots),
            "--ctx-size",
            str(512 * slots),
            "--no-slots",
            "--cache-ram",
            "0",
            "--threads-http",
            str(slots + 2),
        ]

    with serving(command, "/health", bench.clock, SIDE_SECONDS, bench.root, bench.peers.environment) as port:

        def generate(prompt: list[int], count: int) -> tuple[float, list[int]]:
            body = {
                "prompt": prompt,
                "n_predict": count,
                "temperature": 0,
                "top_k": 1,
                "samplers": ["top_k"],
                "ignore_eos": True,
                "cache_prompt": False,
                "return_tokens": True,
            }
            limit = bench.clock.limit(SIDE_SECONDS)
            start = time.perf_counter()
            answer = post(port, "/completion", body, "none", limit)
            return time.perf_counter() - start, answer["tokens"]

        generate(given.prompts(given.whole)[0], 4)
        yield generate


def _llama_alone(bench: Bench, model: str, raw: Raw) -> Outcome:
    given = bench.generator(model)
    with _llama_server(bench, given, 1) as generate:
        raw["first"] = [generate(prompt, 1)[0] for prompt in given.prompts(given.first)]
        raw["whole"] = []
        for prompt in given.prompts(given.whole):
            one, _ = generate(prompt, 1)
            seconds, tokens = generate(prompt, bench.tokens)
            raw["whole"].append({"first": one, "all": seconds, "tokens": tokens})
    return figures.generation(raw, bench.tokens)


def _llama_slots(bench: Bench, model: str, raw: Raw) -> Outcome:
    given = bench.generator(model)
    prompts = given.prompts(given.together)
    with _llama_server(bench, given, STREAMS) as generate, ThreadPoolExecutor(STREAMS) as pool:
        list(pool.map(lambda prompt: generate(prompt, 4), prompts))
        start = time.perf_counter()
        answers = list(pool.map(lambda prompt: generate(prompt, bench.tokens)[1], prompts))
        raw["together"] = {"all": time.perf_counter() - start, "tokens": answers}
    return figures.generation(raw, bench.tokens)


def _pair(bench: Bench, raw: Raw) -> Outcome:
    """The server as it is set up: with every check of what is written, and what is written anew after one failed."""
    served = bench.material.served("pair", ["generator", "text", "judge"])
    with bench.server(served, [CLASSIFIER]) as server:
        path, bodies = "/v1/prisms/text", bench.material.spoken()
        load(bench, server.port, server.key, path, bodies, 1, bench.seconds / 2)
        found = load(bench, server.port, server.key, path, bodies, 1, bench.seconds * 2)
    return {"alone": found["p50"] * 1000}


_GENERATOR_SIDES: dict[str, Callable[[Bench, str, Raw], Outcome]] = {
    "ours": _ours,
    "llama-server": _llama_alone,
    "llama-cpp-python": _llama_cpp_python,
    f"llama-server-{STREAMS}": _llama_slots,
    "onnxruntime-genai": _genai,
}


# --- moderation --------------------------------------------------------------


def _engine(bench: Bench, raw: Raw) -> Outcome:
    found = bench.ours(
        {
            "job": "moderate",
            "library": str(bench.library),
            "threads": bench.threads,
            "bundle": str(bench.text.bundle),
            "windows": bench.text.windows,
            "seconds": bench.seconds,
        }
    )
    return {"rate": found["texts"] / found["seconds"]}


def _plain(bench: Bench, kind: str, graph: Path, layers: int) -> Outcome:
    job = {
        "kind": kind,
        "graph": str(graph),
        "threads": bench.threads,
        "batches": BATCHES,
        "layers": layers,
        "tokens": len(bench.text.windows[0]),
        "seconds": bench.seconds / len(BATCHES),
    }
    return {"rate": max(one["texts"] / one["seconds"] for one in bench.theirs("plain_onnx.py", job))}


def _products(bench: Bench, raw: Raw) -> Outcome:
    return _plain(bench, "products", bench.text.products, bench.text.layers)


def _stock(bench: Bench, raw: Raw) -> Outcome:
    return _plain(bench, "stock", bench.text.stock, 1)


def _scores(port: int, key: str, texts: list[str]) -> list[list[float]]:
    answers = [post(port, "/v1/guardians/text", {"text": text}, key, 30)["category_scores"] for text in texts]
    return [[answer[name] for name in CATEGORIES] for answer in answers]


def _http(bench: Bench, raw: Raw) -> Outcome:
    path, bodies = "/v1/guardians/text", bench.text.bodies
    served = bench.material.served("text", ["text"])
    # One classifier on either side, of the same weights.
    with bench.server(served, [CLASSIFIER], DICHROIC_SECOND_READING="false") as server:
        raw["scores"] = _scores(server.port, server.key, bench.text.known)
        alone = load(bench, server.port, server.key, path, bodies, 1, bench.seconds / 2)
        full = load(bench, server.port, server.key, path, bodies, CONNECTIONS, bench.seconds)
        rate = full["answers"] / full["seconds"]
        paced = load(bench, server.port, server.key, path, bodies, CONNECTIONS, bench.seconds, LOAD_SHARE * rate)
    return {"rate": rate, "alone": alone["p50"] * 1000, "p99": paced["p99"] * 1000}


def _fastapi(bench: Bench, raw: Raw) -> Outcome:
    import json

    text = bench.text

    def command(port: int) -> list[str | Path]:
        settings = {
            "port": port,
            "threads": bench.threads,
            "graph": str(text.served),
            "tokenizer": str(text.bundle / "tokenizer.json"),
            "categories": text.manifest["categories"],
            "calibration": text.manifest["calibration"],
        }
        return [bench.peers.python, HERE / "fastapi_app.py", json.dumps(settings)]

    with serving(command, "/health", bench.clock, SIDE_SECONDS, bench.root, bench.peers.environment) as port:
        raw["scores"] = _scores(port, "none", text.known)
        found = load(bench, port, "none", "/v1/guardians/text", text.bodies, CONNECTIONS, bench.seconds)
    return {"rate": found["answers"] / found["seconds"]}


# --- what the outputs say ----------------------------------------------------


def check(raws: Mapping[str, Raw], stops: Mapping[str, list[int]]) -> tuple[dict[str, str], dict[str, Failed]]:
    """Sentences about outputs that were compared, and the sides that did other work."""
    said: dict[str, str] = {}
    failed: dict[str, Failed] = {}
    for model, stop in stops.items():
        ours = raws.get(f"{model}/ours", {})
        for side in _GENERATOR_SIDES:
            theirs = raws.get(f"{model}/{side}", {})
            for part in ("whole", "together"):
                if side == "ours" or part not in ours or part not in theirs:
                    continue
                mine, yours = (_answers(raw[part]) for raw in (ours, theirs))
                found = figures.agreement(mine, yours, stop)
                name = f"{model}/{side}"
                kind = f"{STREAMS} streams" if part == "together" else "one stream"
                said[f"{name}/{part}"] = (
                    f"{model}, {kind}, beside {side}: of {sum(found.compared)} tokens, {sum(found.same)} come before"
                    f" the first that differs{'; all are equal' if found.whole else ''}."
                )
                if not figures.one_model(found, LIKE_WEIGHTS):
                    failed[name] = Failed(
                        f"its tokens differ from ours at once ({sum(found.same)} of {sum(found.compared)} equal)"
                    )
    http, fastapi = (raws.get(f"text/{side}", {}).get("scores") for side in ("http", "fastapi"))
    if http and fastapi:
        same, apart = figures.scores_agree(http, fastapi)
        said["text/fastapi"] = (
            f"Text moderation, {len(http)} golden texts: {same:.1%} of the verdicts of FastAPI's stock export are those"
            f" of our server; scores are {apart:.3f} apart in the mean."
        )
        if same < LIKE_VERDICTS:
            failed["text/fastapi"] = Failed(f"only {same:.1%} of its verdicts are ours")
    return said, failed


def _answers(part: Any) -> list[list[int]]:
    return part["tokens"] if isinstance(part, dict) else [one["tokens"] for one in part]
