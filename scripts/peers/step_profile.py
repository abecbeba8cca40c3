#!/usr/bin/env python3
"""Measures where the time of a pass and of a request goes, and writes the tables
into docs/performance.md.

A pass is profiled by ONNX Runtime itself, node by node, in the engine that
serves, once with the nodes of the graph as they are and once with operators of
ours in their place: `make bench-profile`, on a quiet machine. A request is split
by the server's own histograms while examples/gauge.rs asks it.
Needs set-up, the release binary and the gauge.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "performance.md"
WARM, RUNS = 5, 30
PAST = 96
# As `TextClassifier::WORKERS` in src/runtime/classifier.rs: each has its share of the threads.
CLASSIFIER_WORKERS = 2
# Parts of a request, as the server's histograms name them, in its order.
REQUEST = {
    "tokenising": "dichroic_tokenization_duration_seconds",
    "waiting for a batch": "dichroic_queue_duration_seconds",
    "the pass of the batch": "dichroic_inference_duration_seconds",
    "all of it": "dichroic_request_duration_seconds",
}


def main() -> None:
    # As a program this file's own folder comes first, where modules of the comparison have common names.
    sys.path[0] = str(ROOT / "scripts")
    sys.dont_write_bytecode = True
    from demo_support import end_in_order

    end_in_order("step_profile")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="alpha-4o-mini,beta-3-haiku", help="identifiers whose passes are profiled")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--print", action="store_true", help="print the tables and leave the page alone")
    options = parser.parse_args()
    tables = [request_table(options.threads)]
    for model in options.models.split(","):
        tables += pass_tables(model, options.threads)
    text = "\n".join([about(options.threads), *tables])
    if options.print:
        print(text)
    else:
        PAGE.write_text(between(PAGE.read_text(encoding="utf-8"), "profile", text), encoding="utf-8")
        print(f"written to {PAGE}")


def about(threads: int) -> str:
    from peers import procfs

    cpu = procfs.processor(Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return f"Measured at commit {done.stdout.strip() or 'unknown'}: {cpu}, {threads} threads.\n"


# --- passes ------------------------------------------------------------------


def pass_tables(model: str, threads: int) -> list[str]:
    """Each pass with ONNX Runtime's nodes alone, and with operators of ours in their place."""
    from tokenizers import Tokenizer

    build = ROOT / "models" / model / "build"
    spec = json.loads((build / "generator" / "manifest.json").read_text(encoding="utf-8"))["generator"]
    answers = spec.get("answer_tokens")
    width = (build / "generator" / answers).stat().st_size // 4 if answers else spec["vocab"]
    names = {width: "product of the output head"}
    tables = []
    for title, what in (
        ("a step of 1 row", {"step": {"rows": 1}}),
        ("a step of 8 rows", {"step": {"rows": 8}}),
        ("a prefill of 32 tokens", "prefill"),
        (f"16 texts of 16 tokens, one of {CLASSIFIER_WORKERS} workers alone", {"texts": {"count": 16}}),
    ):
        component = "text" if "texts" in what else "generator"
        tokenizer = Tokenizer.from_file(str(build / component / "tokenizer.json"))
        told = "" if component == "text" else spec["tasks"]["positive"]
        tokens = said(tokenizer, told, PAST + 1 if "step" in what else 32 if what == "prefill" else 16)
        sides = [
            by_part(*profiled(build / component, threads, what, tokens, ours), {} if component == "text" else names)
            for ours in (False, True)
        ]
        tables.append(both(f"{model}: {title}", *sides))
    return tables


def said(tokenizer: Any, prompt: Mapping[str, str] | str, count: int) -> list[int]:
    """So many tokens of sentences, inside a prompt where there is one: how sure a model is decides what its head takes."""
    from peers.material import sentences

    text = tokenizer.encode(" ".join(sentences(8)), add_special_tokens=False).ids
    if isinstance(prompt, str):
        return text[:count]
    before, after = (tokenizer.encode(prompt[part], add_special_tokens=False).ids for part in ("prefix", "suffix"))
    return [*before, *text[: count - len(before) - len(after)], *after]


def profiled(
    bundle: Path, threads: int, what: Mapping[str, Any] | str, tokens: list[int], ours: bool
) -> tuple[list[dict[str, Any]], float]:
    """The profiler's events of RUNS passes, and the seconds that a pass takes without it, both in the engine itself."""
    job = {
        "job": "passes",
        "library": str(ROOT / "runtime/libonnxruntime.so"),
        "threads": threads,
        "bundle": str(bundle),
        "what": what,
        "tokens": tokens,
        "ours": ours,
        "warm": WARM,
        "counted": RUNS,
    }
    seconds = gauged(job)["seconds"]
    with tempfile.TemporaryDirectory() as folder:
        gauged({**job, "profiles": folder})
        files = [json.loads(path.read_text(encoding="utf-8")) for path in Path(folder).iterdir()]
    # Of a generator with a second graph for prompts, the one that these passes went through.
    return max(files, key=passes), seconds


def passes(events: Sequence[Mapping[str, Any]]) -> int:
    return sum(event.get("name") == "model_run" for event in events)


def gauged(job: Mapping[str, Any]) -> Any:
    """What the gauge answers to a job."""
    command = [str(ROOT / "target/release/examples/gauge")]
    done = subprocess.run(command, input=json.dumps(job), capture_output=True, text=True, check=True, timeout=60)
    return json.loads(done.stdout)


def by_part(events: Sequence[Mapping[str, Any]], seconds: float, names: Mapping[int, str]) -> list[tuple[str, float]]:
    """Milliseconds a pass of each kind of node, the largest first; what lies between nodes comes last.

    The profiler slows a pass: shares are its own, the whole is that of a pass
    without it. A product whose last dimension is in `names` is told apart.
    """
    passes = sorted((event for event in events if event.get("name") == "model_run"), key=lambda event: event["ts"])[
        -RUNS:
    ]
    if len(passes) < RUNS:
        raise ValueError(f"the profile holds {len(passes)} passes instead of {RUNS}")
    start = passes[0]["ts"]
    spent: dict[str, float] = {}
    for event in events:
        if event.get("cat") != "Node" or not event["name"].endswith("_kernel_time") or event["ts"] < start:
            continue
        part = event["args"]["op_name"]
        shapes = event["args"].get("output_type_shape") or [{}]
        last = next(iter(shapes[0].values()), [0])
        part = names.get(last[-1] if last else 0, part) if part.startswith("MatMul") else part
        spent[part] = spent.get(part, 0.0) + event["dur"]
    whole = sum(event["dur"] for event in passes)
    found = sorted(spent.items(), key=lambda item: -item[1])
    found.append(("between nodes", max(0.0, whole - sum(spent.values()))))
    return [(part, duration / whole * seconds * 1000) for part, duration in found]


# --- requests ----------------------------------------------------------------


def request_table(threads: int) -> str:
    """Text moderation from 32 connections, split by the server's own histograms."""
    from demo_support import running
    from forge.places import Places
    from peers.material import CLASSIFIER, Material
    from peers.processes import Clock, read, settled
    from peers.rows import CONNECTIONS
    from peers.served import settings

    material = Material(Places.here(), lambda what: print(what, file=sys.stderr))
    bodies = material.text().bodies
    # As in the comparison, the classifier alone.
    told = settings(material.served("text", ["text"]), [CLASSIFIER], threads) | {"DICHROIC_SECOND_READING": "false"}
    with running(str(ROOT / "target/release/dichroic"), ROOT, **told) as server:
        settled(server.port, Clock(60), 60)

        def sums() -> dict[str, tuple[float, float]]:
            return histograms(read(server.port, "/metrics"))

        def load(seconds: float, skip: int) -> dict[str, Any]:
            job = {
                "job": "load",
                "address": f"127.0.0.1:{server.port}",
                "path": "/v1/guardians/text",
                "key": server.key,
                "bodies": str(bodies),
                "skip": skip,
                "repeat": False,
                "connections": CONNECTIONS,
                "seconds": seconds,
                "rate": None,
            }
            return gauged(job)

        skip = load(1, 0)["answers"] + CONNECTIONS
        before = sums()
        load(5, skip)
        after = sums()
    means = {}
    for part, name in REQUEST.items():
        (old, seen), (new, now) = before.get(name, (0.0, 0.0)), after[name]
        means[part] = (new - old) / (now - seen) * 1000
    rest = means["all of it"] - sum(value for part, value in means.items() if part != "all of it")
    parts = [(part, means[part]) for part in REQUEST if part != "all of it"]
    return table(
        f"A text moderated over HTTP, {CONNECTIONS} connections, mean",
        [*parts, ("everything else on the server", max(0.0, rest))],
    )


def histograms(text: str) -> dict[str, tuple[float, float]]:
    """Sum and count of each histogram, over all its labels."""
    found: dict[str, list[float]] = {}
    for name, kind, value in re.findall(r"^(\w+?)_(sum|count)(?:\{[^}]*\})? (\S+)$", text, re.MULTILINE):
        pair = found.setdefault(name, [0.0, 0.0])
        pair[kind == "count"] += float(value)
    return {name: (pair[0], pair[1]) for name, pair in found.items()}


# --- the page ----------------------------------------------------------------


def both(title: str, before: Sequence[tuple[str, float]], after: Sequence[tuple[str, float]]) -> str:
    """Two profiles of one pass side by side: parts of at least a hundredth of either, the smaller ones together."""
    wholes = [sum(value for _, value in parts) for parts in (before, after)]
    sides = [dict(before), dict(after)]
    large = [
        part
        for part in dict.fromkeys([*sides[0], *sides[1]])
        if any(side.get(part, 0) >= whole / 100 for side, whole in zip(sides, wholes))
    ]
    rest = [whole - sum(side.get(part, 0) for part in large) for side, whole in zip(sides, wholes)]
    rows = [
        *((part, [side.get(part) for side in sides]) for part in large),
        ("smaller ones together", rest),
        ("**whole**", wholes),
    ]

    def cells(values: Sequence[float | None]) -> str:
        return " | ".join(
            "—" if value is None else f"{value:.2f} ms, {value / whole:.0%}" for value, whole in zip(values, wholes)
        )

    lines = [f"| {title} | ONNX Runtime's nodes | operators of ours |", "| --- | --- | --- |"]
    return "\n".join([*lines, *(f"| {part} | {cells(values)} |" for part, values in rows)]) + "\n"


def table(title: str, parts: Sequence[tuple[str, float]]) -> str:
    """Parts of at least a hundredth each, the smaller ones together."""
    whole = sum(value for _, value in parts)
    large = [(part, value) for part, value in parts if value >= whole / 100]
    small = whole - sum(value for _, value in large)
    rows = [*large, *([("smaller ones together", small)] if small > 0 else []), ("**whole**", whole)]
    lines = [f"| {title} | ms | share |", "| --- | --- | --- |"]
    return "\n".join([*lines, *(f"| {part} | {value:.2f} | {value / whole:.0%} |" for part, value in rows)]) + "\n"


def between(page: str, name: str, text: str) -> str:
    """The page with what stands between its two marks replaced."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    if page.count(begin) != 1 or page.count(end) != 1 or page.index(begin) > page.index(end):
        raise ValueError(f"the page has no marks {begin} and {end}: restore them")
    head, tail = page.split(begin)[0], page.split(end)[1]
    return f"{head}{begin}\n{text.strip()}\n{end}{tail}"


if __name__ == "__main__":
    main()
