"""docs/benchmarks.md out of judged rows. Pure: what was not measured is called so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .figures import Compared, Refused, Spread
from .rows import GENERATORS, TOGETHER, Row

HEAD = """\
# Beside other servers and runtimes

A whole `make bench-peers` writes this page; with `--quick` or `--only` it goes to `target/peers/benchmarks.md`. It
installs the peers into an environment of their own, gives both sides the same work on the same cores with the same
number of threads, one side at a time, in rounds that go through all sides, every other round backwards, and compares
within a round; what takes minutes and differs little is measured once. A ratio is ours divided by theirs; it and the
figures are medians of the rounds, with the lowest and the highest in brackets. A bar is met when the median ratio meets
it. A side that failed, or whose output shows that it did other work, is not compared: its row says why.
"""

HOW = """\
## What is compared

- **Generation.** The weights are the untuned GGUF file of the model. llama.cpp reads it as it is; our graph is built
  from it by the same script as the server's, without the adapter and with the whole head, its linear layers rounded to
  the grid that `models/<identifier>/model.json` asks for, or as the file has them. The server's `alpha-4o-mini` is faster than that, as its head
  has rows for 69,998 of 151,936 tokens, and its `beta-3-haiku` slower by what the adapter beside its weights takes.
  onnxruntime-genai runs that same graph with its own inputs in front, also over prompts. Of `beta-3-haiku` it runs the
  one of 8 bits, which reads twice as much: with the one of 4 bits, of whose zero points ONNX Runtime takes the whole
  parts alone, it says other things. All sides get the same token ids, decode greedily and generate equally many tokens,
  past the end of an answer too.
- **One stream** leaves the first token and the prompt out: tokens after the first, by the time that all take longer
  than the first alone. **Eight streams** count everything, prompts included; ours are eight sequences given to the
  scheduler at once. Where a row names llama.cpp, the faster of its own server with one slot and llama-cpp-python
  counts. It is built here for this processor, from the sources inside the llama-cpp-python package.
- **Both expressions.** A request to `/v1/prisms/text` with a text of fifteen words, from one client that waits for each
  answer, to the server as it is set up: the median, with all that is checked and written anew. llama.cpp only decodes.
- **First token.** Fifteen words inside the task's prompt. Our prompt prefix is in its cache, as it always is in the
  server; llama.cpp's cache is off.
- **Text moderation.** 16 tokens a text. A server is asked 20,000 different texts in turn, then from the first again.
  The engine has more waiting than it can take. The products are the int8 matrix products of the same encoder and
  nothing else, at their best batch. The stock export is a graph of plain nodes with the same tuned weights, quantised
  by onnxruntime's `quantize_dynamic` with its defaults; `STOCK_MINILM` names another for its own row. FastAPI serves
  ours as most people would: uvicorn, one process, a function a request, no batches. The client of all servers is the
  same program and runs on the same cores. Our server remembers nothing, here and below: its cache of moderation scores
  is off (`moderation_cache = false`), so that every answer is computed. How large its batches are it measures for
  itself before it is asked; the engine alone does the same. It judges with one classifier, as the others do: what that
  has doubts about is not read again (`second_reading = false`; [performance.md](performance.md#second-readings) says what
  that costs).
- **Pictures.** A JPEG of 640 × 480. The server has no text reader in `image/http`, because the classifier beside it has
  none. `image/speed-alpha` and `image/speed-beta` are of a photograph of 1152 × 864 with nothing written in it, that the
  server looks at and searches for text; one client waits for each answer. Beside it: one decode by Pillow's libjpeg,
  then a pass of the vision model and one of the text detector, each with a session and threads of its own, spinning or
  sleeping, whichever is faster; resizing does not count. The detector sees the picture in its own size: between 0.8 and
  1.6 megapixels nothing is scaled. The server's metrics must show a pass of both for every picture, and none that reads.
- **The machine.** All identifiers that are set up. *Start*: from starting the program to 200 on `/readyz`, with every
  file's hash checked and an answer of every model, beside `onnxruntime` in a fresh Python process that opens each ONNX
  file once, one after the other, with the server's options: one pool of threads, no memory patterns. Its imports do not
  count, and both find the files in the page cache. *At rest*: time in `/proc/PID/stat` over 30 seconds (10 in a quick
  run), of a server that has worked and is not asked; one tick more is counted than is seen. *Memory*: `VmRSS` in
  `/proc/PID/status`, five seconds after the last answer. Of 100 mixed requests from 8 clients 96 are texts of one to
  five sentences, 3 small pictures, some with writing, and 1 asks for a reply; every kind goes to each identifier in
  turn. A quick run ends after 2,000.
"""


@dataclass(frozen=True)
class Machine:
    """Where and how it was measured."""

    processor: str
    cores: int
    threads: int
    memory_gib: float
    load_before: float
    date: str
    commit: str
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """All that the page tells of."""

    results: Sequence[Compared | Refused]
    machine: Machine | None
    # Sentences about outputs that were compared.
    checks: Sequence[str]
    # Figures without a bar: title, unit, spread.
    beside: Sequence[tuple[str, str, Spread]]
    seconds: float
    quick: bool
    # Resident set in MiB by what was served.
    resident: Mapping[str, float] = field(default_factory=dict)


def page(run: Run) -> str:
    out = [HEAD]
    if run.machine is not None:
        out += [_about(run, run.machine)]
    out += [_section(f"Generation: {name}, {weights}", run.results, name) for name, weights in GENERATORS.items()]
    out += [_section("Text moderation", run.results, "text"), _section("Pictures", run.results, "image")]
    out += [_section("The machine", run.results, "machine")]
    if run.resident:
        out.append("Five seconds after a few requests of every kind:\n\n" + resident_table(run.resident))
    if run.beside:
        lines = ["## Without a bar", "", "| What | Figure |", "| --- | --- |"]
        out.append(
            "\n".join([*lines, *(f"| {title} | {figures(spread, unit)} |" for title, unit, spread in run.beside)])
            + "\n"
        )
    out.append(HOW)
    if run.checks:
        out.append("\n".join(["## Outputs that were compared", "", *(f"- {check}" for check in run.checks)]) + "\n")
    return "\n".join(part for part in out if part)


def _about(run: Run, machine: Machine) -> str:
    met = sum(isinstance(result, Compared) and result.met for result in run.results)
    measured = sum(isinstance(result, Compared) for result in run.results)
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    kind = " A quick run: fewer rounds, shorter, more spread." if run.quick else ""
    busy = (
        f" The machine was busy before it began (load {machine.load_before:.1f}): repeat it on a quiet one."
        if machine.load_before > 0.5
        else ""
    )
    return (
        f"{machine.date}, commit {machine.commit}: {met} of {len(run.results)} bars met,"
        f" {measured - met} missed, {len(run.results) - measured} not measured, in {run.seconds / 60:.0f} minutes."
        f"{kind}{busy} {machine.processor}, {machine.cores} cores used, {machine.threads} threads a side,"
        f" {machine.memory_gib:.0f} GiB. {versions}.\n"
    )


def _section(title: str, results: Sequence[Compared | Refused], group: str) -> str:
    rows = [result for result in results if result.row.group == group]
    if not rows:
        return ""
    lines = [
        f"## {title}",
        "",
        "| Row | What | Ours | Theirs | Ratio | Bar | |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    return "\n".join([*lines, *map(_line, rows)]) + "\n"


def _line(result: Compared | Refused) -> str:
    row = result.row
    head = f"| `{row.name}` | {row.title}"
    if isinstance(result, Refused):
        return f"{head} | – | – | – | {bar(row)} | {plain(result.reason)} |"
    peer = f" {result.peer}" if len(row.theirs) > 1 else ""
    ratio = f"{number(result.ratio.median)} ({number(result.ratio.lowest)}–{number(result.ratio.highest)})"
    verdict = "met" if result.met else "**missed**"
    rounds = f", {result.rounds} round{'s' if result.rounds > 1 else ''}"
    theirs = figures(result.theirs, row.unit) + peer
    return f"{head} | {figures(result.ours, row.unit)} | {theirs} | {ratio} | {bar(row)} | {verdict}{rounds} |"


def bar(row: Row) -> str:
    sign = {">=": "≥", "<=": "≤"}.get(row.sense, row.sense)
    return f"{sign} {row.bound:.3g}"


def number(ratio: float) -> str:
    """Two digits after the point, four where two would leave nothing."""
    return f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.4f}"


def resident_table(resident: Mapping[str, float]) -> str:
    """The resident set of a server with one identifier, and with all."""
    names = {model: "all of them" if model == TOGETHER else f"`{model}` alone" for model in resident}
    rows = (f"| {names[model]} | {mebibytes:,.0f} MiB |" for model, mebibytes in resident.items())
    return "\n".join(["| Served | Resident set |", "| --- | --- |", *rows]) + "\n"


def figures(spread: Spread, unit: str) -> str:
    digits = 1 if spread.median < 100 else 0
    low, middle, high = (f"{value:.{digits}f}" for value in (spread.lowest, spread.median, spread.highest))
    return f"{middle} {unit} ({low}–{high})"


def plain(text: str) -> str:
    """A reason as it may stand in a table: one line, no bars of its own."""
    return " ".join(text.replace("|", "/").replace("<", "‹").replace(">", "›").split())[:300]
