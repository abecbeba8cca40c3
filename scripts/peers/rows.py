"""The bars: what is compared, with whom, and what ratio is asked for. Pure.

A quantity is named `group/side/what`. A row compares one of ours with the best
of theirs; the ratio is ours divided by theirs, taken within one round.
"""

from __future__ import annotations

from dataclasses import dataclass

# Identifier and the weights it stands for, as the table calls them.
GENERATORS = {"alpha-4o-mini": "Qwen2.5-Coder-0.5B", "beta-3-haiku": "SmolLM2-135M"}
STREAMS = 8
CONNECTIONS = 32
PICTURE_CONNECTIONS = 16
LOAD_SHARE = 0.7
# Tokens in whose time llama.cpp is to be outrun by both expressions of a text.
PAIR_TOKENS = 45
# What the figures of memory call all identifiers at once.
TOGETHER = "all"
# Identifiers whose image classifiers are compared on a photograph.
PHOTOGRAPHED = ("alpha-4o-mini", "beta-3-haiku")


@dataclass(frozen=True)
class Row:
    """One bar. `sense` is `>=`, `>`, `<=` or `<`; with the latter two less is better."""

    name: str
    title: str
    unit: str
    ours: str
    theirs: tuple[str, ...]
    sense: str
    bound: float

    @property
    def more_is_better(self) -> bool:
        return self.sense.startswith(">")

    @property
    def quantities(self) -> tuple[str, ...]:
        return (self.ours, *self.theirs)

    @property
    def sides(self) -> set[str]:
        """`group/side` of all that it needs."""
        return {quantity.rpartition("/")[0] for quantity in self.quantities}

    @property
    def group(self) -> str:
        return self.ours.partition("/")[0]

    def met(self, ratio: float) -> bool:
        return {
            ">=": ratio >= self.bound,
            ">": ratio > self.bound,
            "<=": ratio <= self.bound,
            "<": ratio < self.bound,
        }[self.sense]


def _generation(model: str) -> list[Row]:
    short = model.partition("-")[0]
    # llama.cpp counts in the way that is faster: its own server, or its Python binding.
    alone = ("llama-server", "llama-cpp-python")

    def row(
        name: str, title: str, what: str, theirs: tuple[str, ...], sense: str, bound: float, their: str = ""
    ) -> Row:
        unit = "ms" if what == "first" else "tokens/s"
        quantities = tuple(f"{model}/{side}/{their or what}" for side in theirs)
        return Row(f"{short}/{name}", title, unit, f"{model}/ours/{what}", quantities, sense, bound)

    genai = ("onnxruntime-genai",)
    return [
        row("stream", "one stream, beside llama.cpp", "decode", alone, ">=", 2.0),
        row("streams", f"{STREAMS} streams, beside one of llama.cpp", "together", alone, ">=", 4.0, "decode"),
        row(
            "slots",
            f"{STREAMS} streams, beside llama.cpp's server with {STREAMS} slots",
            "together",
            (f"llama-server-{STREAMS}",),
            ">=",
            1.5,
        ),
        row("first", "first token of 15 words, beside llama.cpp without its cache", "first", alone, "<=", 0.4),
        row("genai-stream", "one stream, beside onnxruntime-genai", "decode", genai, ">", 1.0),
        row(
            "genai-streams",
            f"{STREAMS} streams, beside onnxruntime-genai with a batch of {STREAMS}",
            "together",
            genai,
            ">",
            1.0,
        ),
        row("genai-first", "first token of 15 words, beside onnxruntime-genai", "first", genai, "<", 1.0),
    ]


ROWS: list[Row] = [
    *(row for model in GENERATORS for row in _generation(model)),
    Row(
        "alpha/pair",
        f"both expressions of 15 words over HTTP, beside the time of {PAIR_TOKENS} tokens of llama.cpp",
        "ms",
        "alpha-4o-mini/pair/alone",
        ("alpha-4o-mini/llama-server/spoken", "alpha-4o-mini/llama-cpp-python/spoken"),
        "<=",
        1.0,
    ),
    Row(
        "beta/alpha",
        "one stream, beside alpha's",
        "tokens/s",
        "beta-3-haiku/ours/decode",
        ("alpha-4o-mini/ours/decode",),
        ">=",
        2.5,
    ),
    Row(
        "text/limit",
        "engine at 16 tokens, beside this machine's int8 products alone",
        "texts/s",
        "text/engine/rate",
        ("text/products/rate",),
        ">=",
        0.6,
    ),
    Row(
        "text/stock",
        "engine at 16 tokens, beside a stock int8 export at its best batch",
        "texts/s",
        "text/engine/rate",
        ("text/stock/rate",),
        ">=",
        2.0,
    ),
    Row(
        "text/http",
        f"over HTTP from {CONNECTIONS} clients, beside the engine",
        "texts/s",
        "text/http/rate",
        ("text/engine/rate",),
        ">=",
        0.9,
    ),
    Row(
        "text/p99",
        f"p99 at {LOAD_SHARE:.0%} of that load, beside the median of one client alone",
        "ms",
        "text/http/p99",
        ("text/http/alone",),
        "<=",
        5.0,
    ),
    Row(
        "text/fastapi",
        "over HTTP, beside FastAPI with ONNX Runtime",
        "texts/s",
        "text/http/rate",
        ("text/fastapi/rate",),
        ">=",
        6.0,
    ),
    Row(
        "image/http",
        f"over HTTP from {PICTURE_CONNECTIONS} clients, beside the classifier alone",
        "pictures/s",
        "image/http/rate",
        ("image/classifier/rate",),
        ">=",
        0.85,
    ),
    Row(
        "image/speed-alpha",
        "a photograph of 1 megapixel over HTTP, alone, beside one decode and plain ONNX Runtime",
        "ms",
        "image/alone/alpha",
        ("image/plain/alpha",),
        "<=",
        1.3,
    ),
    Row(
        "image/speed-beta",
        "that photograph for beta, beside alpha",
        "ms",
        "image/alone/beta",
        ("image/alone/alpha",),
        "<=",
        1 / 3,
    ),
    Row(
        "machine/start",
        "start until `/readyz` with all models, beside ONNX Runtime opening the same files",
        "s",
        "machine/start/ready",
        ("machine/onnxruntime/open",),
        "<=",
        1.5,
    ),
    Row(
        "machine/idle",
        "processor time at rest with all models, beside that of one core",
        "ms",
        "machine/idle/used",
        ("machine/idle/core",),
        "<",
        0.01,
    ),
    Row(
        "machine/memory",
        "resident set after 10,000 mixed requests (a quick run: 2,000), beside that after 1,000",
        "MiB",
        "machine/memory/late",
        ("machine/memory/early",),
        "<=",
        1.1,
    ),
]


def chosen(words: list[str]) -> list[Row]:
    """The rows that the words name, whole or by their part before the slash; all for none."""
    if not words:
        return list(ROWS)
    known = {row.name for row in ROWS} | {row.name.partition("/")[0] for row in ROWS}
    unknown = [word for word in words if word not in known]
    if unknown:
        raise ValueError(f"there is no row {unknown[0]}: choose from {', '.join(row.name for row in ROWS)}")
    return [row for row in ROWS if row.name in words or row.name.partition("/")[0] in words]
