"""Builds a text classifier: an encoder's weights and a trained delta, as one ONNX graph.

Three published encoders serve as base (BACKBONES), read into the tensor names
of BERT by `load_base`; a recipe may keep a few of the layers only. The delta, a
safetensors file, changes the base by name:

- `<weight>.lora_a` [rank, in] and `<weight>.lora_b` [out, rank]: the weight
  gains `lora_b @ lora_a`; either may be int8, with `.scale` [rows] beside it;
- `<tensor>.delta`, of the tensor's shape: the tensor gains it;
- `encoder.layer.{layer}.inner.kept` [n] (optional): the channels inside the feed-forward part that the layer keeps of its
  base, ascending; all else in the delta is of a layer so narrowed;
- `harm.weight` [5, 2 * width] and `harm.bias` [5]: the head over the mean and
  the highest of the last layer's states; `expressibility.weight` [5, width] and
  `expressibility.bias`, and optionally `sentiment.weight` [1, width] and
  `sentiment.bias`: heads over their mean alone;
- `activation.{layer}.{attention|context|inner|gelu}.range` [2]: what the 8-bit
  input of each of the four matrix products of a layer covers. Channels of a
  wide range would cost all others their precision; two ways are open to them.
  `.spread` and `.middle` [in] (optional): the range is that of (input -
  middle) / spread, channel by channel, and the weights take the spread.
  `.exact` [n] (optional): channels that are multiplied in full precision.
  The first costs less, the second loses less.

Activations are quantised by those fixed ranges, not by the range of whatever
batch a text comes in: a text then scores the same alone and in company.
Weights keep to 7 bits, because processors without VNNI add pairs of products
in 16 bits, which 8-bit weights overflow.

The graph takes `input_ids` int64 [batch, tokens], padded on the right, and
`lengths` int32 [batch]; it gives `harm`, `expressibility` and, where the delta
has that head, `sentiment` [batch, 1], raw logits.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import load, load_file

from . import e5s1, graph_file, low_rank

Tensors = dict[str, np.ndarray]

WEIGHT_LIMIT = 64
PLACES = 256
CATEGORIES = ["sexual", "hate", "self_harm", "violence", "defamation"]
EXPRESSIBILITY = ["statement", "acknowledgement", "agreement", "meaningless", "formula"]
SENTIMENT = "sentiment"
SITES = ("attention", "context", "inner", "gelu")
KEPT = "encoder.layer.{}.inner.kept"


@dataclass(frozen=True)
class Head:
    """A linear layer on the encoder: what it reads (`both`, or `embedding`, the mean alone), and its logits, as many as the
    delta has where none are said.
    """

    state: str
    outputs: int | None
    # Whether a delta may be without it.
    optional: bool = False


# What stands on the encoder of a text classifier.
HEADS = {"harm": Head("both", 5), "expressibility": Head("embedding", 5), SENTIMENT: Head("embedding", 1, optional=True)}


@dataclass(frozen=True)
class Backbone:
    """What the tensors of a base do not say themselves."""

    heads: int
    epsilon: float
    cls_id: int
    sep_id: int
    pad_id: int
    weights: str = "model.safetensors"

    @property
    def special_ids(self) -> dict[str, int]:
        return {"cls_id": self.cls_id, "sep_id": self.sep_id, "pad_id": self.pad_id}


BACKBONES = {
    "minilm": Backbone(12, 1e-12, 101, 102, 0),
    "mpnet": Backbone(12, 1e-5, 0, 2, 1, "all-mpnet-base-v2.zip"),
    "multilingual-e5": Backbone(12, 1e-12, 0, 2, 1, "e5-small-q4.bin"),
}

# MPNet's attention looks at how far apart two tokens are, in buckets as
# published with T5: half of them a direction, half of those exact.
BUCKETS, FARTHEST = 32, 128


def backbone(recipe: Mapping) -> Backbone:
    found = BACKBONES.get(recipe.get("backbone", "minilm"))
    if found is None:
        raise ValueError(f"The recipe's backbone {recipe['backbone']} is unknown: use one of {', '.join(BACKBONES)}.")
    return found


def build(source: dict[str, Path], recipe: dict, model_dir: Path, out: Path) -> dict:
    """Write model.onnx and tokenizer.json into `out`; return the manifest's part.

    `recipe["backbone"]` is one of BACKBONES, `recipe["layers"]` (optional) the
    layers of it that are kept, `recipe["precision"]` `int8` (the default) or
    `float32`.
    """
    kind = backbone(recipe)
    base = load_base(source[kind.weights], recipe.get("layers"))
    tensors = merge(base, load_file(model_dir / recipe["delta"]))
    model = graph(tensors, kind, recipe.get("precision", "int8"))
    onnx.checker.check_model(model)
    graph_file.write(model, out / "model.onnx")
    write(out / "tokenizer.json", tokenizer(kind, source))
    return {"text_classifier": part(recipe, model_dir)}


def tokenizer(kind: Backbone, source: Mapping[str, Path]) -> bytes:
    """The tokenizer.json that belongs to a base."""
    weights = source[kind.weights]
    if weights.suffix == ".bin":
        return e5s1.tokenizer(weights)
    return plain_tokenizer(_member(weights, "tokenizer.json") if weights.suffix == ".zip" else source["tokenizer.json"].read_bytes())


def _member(archive: Path, name: str) -> bytes:
    """A file of the one folder in an archive."""
    with zipfile.ZipFile(archive) as found:
        (member,) = (path for path in found.namelist() if path.endswith(f"/{name}"))
        return found.read(member)


def load_base(path: Path, layers: Sequence[int] | None = None) -> Tensors:
    """The base under the names of BERT, float32; of its layers only those asked for, renumbered."""
    if path.suffix == ".bin":
        base = e5s1.tensors(path)
    else:
        read = load(_member(path, "model.safetensors")) if path.suffix == ".zip" else load_file(path)
        base = {name: np.asarray(value, np.float32) for name, value in read.items() if value.dtype.kind == "f"}
    if "encoder.relative_attention_bias.weight" in base:
        base = _from_mpnet(base)
    if "embeddings.word_embeddings.weight" not in base or "encoder.layer.0.output.dense.weight" not in base:
        raise ValueError(f"{path.name} is no encoder of a known kind: use the pinned base weights.")
    return base if layers is None else of_layers(base, layers)


def of_layers(tensors: Mapping[str, np.ndarray], layers: Sequence[int]) -> Tensors:
    """The tensors with these layers only, numbered from 0."""
    kept = {name: value for name, value in tensors.items() if not name.startswith("encoder.layer.")}
    for new, old in enumerate(layers):
        start = f"encoder.layer.{old}."
        own = {name: value for name, value in tensors.items() if name.startswith(start)}
        if not own:
            raise ValueError(f"The encoder has no layer {old}: correct the recipe.")
        kept |= {f"encoder.layer.{new}.{name.removeprefix(start)}": value for name, value in own.items()}
    return kept


def of_inner(base: Mapping[str, np.ndarray], delta: Mapping[str, np.ndarray]) -> Tensors:
    """The base narrowed to the inner channels that the delta keeps, and which those are, by the delta's names."""
    out = dict(base)
    for i in range(layer_count(base)):
        at = f"encoder.layer.{i}"
        if KEPT.format(i) not in delta:
            continue
        kept = np.asarray(delta[KEPT.format(i)]).astype(np.int64)
        up, bias, down = (f"{at}.{part}" for part in ("intermediate.dense.weight", "intermediate.dense.bias", "output.dense.weight"))
        if not kept.size or (np.diff(kept) <= 0).any() or kept[0] < 0 or kept[-1] >= len(base[up]):
            raise ValueError(f"The delta's {KEPT.format(i)} does not fit the base weights: use the base it was trained on.")
        out |= {up: base[up][kept], bias: base[bias][kept], down: np.ascontiguousarray(base[down][:, kept]), KEPT.format(i): kept}
    return out


def _from_mpnet(base: Tensors) -> Tensors:
    """MPNet's tensors under the names that BERT has for them."""
    names = {
        ".attention.attn.q.": ".attention.self.query.",
        ".attention.attn.k.": ".attention.self.key.",
        ".attention.attn.v.": ".attention.self.value.",
        ".attention.attn.o.": ".attention.output.dense.",
        ".attention.LayerNorm.": ".attention.output.LayerNorm.",
    }
    out: Tensors = {}
    for name, value in base.items():
        for theirs, ours in names.items():
            name = name.replace(theirs, ours)
        out[name] = value
    # Its places are counted from behind the padding's.
    out["embeddings.position_embeddings.weight"] = out["embeddings.position_embeddings.weight"][2:]
    out["embeddings.token_type_embeddings.weight"] = np.zeros((1, out["embeddings.LayerNorm.bias"].size), np.float32)
    return out


def layer_count(tensors: Mapping[str, object]) -> int:
    return sum(name.endswith(".intermediate.dense.weight") for name in tensors)


def distance_buckets(tokens: int) -> np.ndarray:
    """The bucket of each pair of places [tokens, tokens], as MPNet counts them."""
    distance = np.arange(tokens)[None, :] - np.arange(tokens)[:, None]
    half, exact = BUCKETS // 2, BUCKETS // 4
    far = np.abs(distance)
    with np.errstate(divide="ignore"):
        log = exact + np.floor(np.log(far.astype(np.float32) / exact) / np.log(FARTHEST / exact) * (half - exact))
    return np.where(distance > 0, half, 0) + np.where(far < exact, far, np.minimum(log, half - 1)).astype(np.int64)


def merge(base: Mapping[str, np.ndarray], delta: Mapping[str, np.ndarray], heads: Mapping[str, Head] = HEADS) -> Tensors:
    """The base with the delta added, plus the delta's heads and ranges."""
    delta = low_rank.unpacked(delta)
    base = of_inner(base, delta)
    out = dict(base)
    for name, value in delta.items():
        stem, _, kind = name.rpartition(".")
        if kind == "kept" and name in base:
            continue
        if kind == "lora_b" and f"{stem}.lora_a" in delta:
            continue
        if kind in ("lora_a", "lora_b"):
            change = low_rank.change(delta, stem)
            # A wide head, kept as factors.
            if stem.removesuffix(".weight") in heads:
                out[stem] = change
                continue
        elif kind == "delta":
            change = value
        elif stem in heads or name.startswith("activation."):
            out[name] = value
            continue
        else:
            raise ValueError(f"The delta has a tensor {name} of no known meaning: export it again.")
        if stem not in base or base[stem].shape != change.shape:
            raise ValueError(f"The delta's {name} does not fit the base weights: use the base it was trained on.")
        out[stem] = base[stem] + change
    width = base["embeddings.LayerNorm.bias"].size
    for name, head in heads.items():
        found = out.get(f"{name}.weight", np.empty(0))
        shape = (head.outputs or len(found), 2 * width if head.state == "both" else width)
        if not (head.optional and f"{name}.weight" not in out) and found.shape != shape:
            raise ValueError(f"The delta has no {name} head of shape {shape[0]} x {shape[1]}: export it again.")
    return out


def part(recipe: Mapping, model_dir: Path) -> dict:
    """The manifest's part, from the calibration file beside the delta."""
    path = model_dir / recipe["calibration"]
    found = json.loads(path.read_text(encoding="utf-8"))
    if found["categories"] != CATEGORIES or found["expressibility"]["classes"] != EXPRESSIBILITY:
        raise ValueError(f"{path.name} is not of this model's categories: write it again with the training scripts.")
    return {
        "window": found["window"],
        "stride": found["stride"],
        **backbone(recipe).special_ids,
        "categories": CATEGORIES,
        "calibration": _places(found["calibration"]),
        "expressibility": {"classes": EXPRESSIBILITY, "threshold": float(found["expressibility"]["threshold"])},
        "languages": recipe.get("languages", "any"),
    }


def company(recipe: Mapping, model_dir: Path) -> dict:
    """What the manifest's part says of the classifiers beside this one, by the names of components.py."""
    told = {"elsewhere": recipe["elsewhere"]} if "elsewhere" in recipe else {}
    members = recipe.get("ensemble", [])
    if members:
        path = model_dir / recipe["calibration"]
        found = json.loads(path.read_text(encoding="utf-8")).get("ensemble", {"members": {}})
        now = {member: trained(model_dir.parent / member) for member in members}
        if found["members"] != now or found.get("weights") != recipe.get("weights"):
            raise ValueError(
                f"the ensemble in {path.name} was calibrated with other classifiers than {' and '.join(members)} have"
                " now, or with other weights: run scripts/train/text_ensemble.py."
            )
        told["ensemble"] = {"members": members, "calibration": _places(found["calibration"])}
        told["ensemble"] |= {key: recipe[key] for key in ("weights", "from") if key in recipe}
    return told


def trained(model_dir: Path) -> str:
    """Hex SHA-256 over all by which a classifier judges harm: its delta and its own calibration."""
    recipe = json.loads((model_dir / "model.json").read_text(encoding="utf-8"))["components"]["text"]
    settings = json.loads((model_dir / recipe["calibration"]).read_text(encoding="utf-8"))
    # What it says together with others is not what it says to others, and what has nothing to express is no harm.
    for other in ("ensemble", "expressibility"):
        settings.pop(other, None)
    delta = {
        name: hashlib.sha256(value.tobytes()).hexdigest()
        for name, value in load_file(model_dir / recipe["delta"]).items() if not name.startswith("expressibility.")
    }
    return hashlib.sha256(json.dumps([delta, settings], sort_keys=True).encode()).hexdigest()


def _places(scales: Sequence[Mapping]) -> list[dict]:
    if len(scales) != len(CATEGORIES):
        raise ValueError("a calibration has not one entry a category: write it again with the training scripts.")
    return [{key: float(s[key]) for key in ("point", "below", "above")} for s in scales]


def plain_tokenizer(published: bytes) -> bytes:
    """The published tokenizer without its fixed length: the server pads and cuts."""
    found = json.loads(published)
    found["truncation"] = None
    found["padding"] = None
    return json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode()


def quantised(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A weight [in, out] as int8 within the limit, with one scale per output."""
    # Row by row in memory, sums over axis 0 have one order on every machine.
    weight = np.ascontiguousarray(weight)
    scale = np.maximum(np.abs(weight).max(axis=0), 1e-8) / WEIGHT_LIMIT
    # The largest weight of an output need not survive whole: of a few smaller
    # scales, each output takes the one that loses least.
    best, least = scale, np.full(weight.shape[1], np.inf)
    for part in (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7):
        tried = scale * part
        steps = np.clip(np.rint(weight / tried), -WEIGHT_LIMIT, WEIGHT_LIMIT)
        loss = np.square(steps * tried - weight).sum(axis=0)
        best, least = np.where(loss < least, tried, best), np.minimum(loss, least)
    steps = np.clip(np.rint(weight / best), -WEIGHT_LIMIT, WEIGHT_LIMIT)
    return steps.astype(np.int8), best.astype(np.float32)


def write(path: Path, content: bytes) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(content)
    partial.replace(path)


class _Graph:
    """Nodes and initialisers under construction."""

    def __init__(self, tensors: Tensors, kind: Backbone, precision: str, show: bool) -> None:
        self.tensors, self.kind, self.precision, self.show = tensors, kind, precision, show
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.shown: list[str] = []

    def constant(self, name: str, value: np.ndarray) -> str:
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def node(self, kind: str, inputs: list[str], output: str | list[str], domain: str = "", **attributes) -> str:
        outputs = [output] if isinstance(output, str) else output
        self.nodes.append(helper.make_node(kind, inputs, outputs, name=outputs[0], domain=domain, **attributes))
        return outputs[0]

    def fused(self, kind: str, inputs: list[str], output: str, **attributes) -> str:
        return self.node(kind, inputs, output, domain="com.microsoft", **attributes)

    def product(self, x: str, site: str, weight: np.ndarray, bias: np.ndarray, output: str) -> str:
        """x @ weight, in the graph's precision; `site` names the range of x."""
        if self.show:
            self.shown.append(x)
        if self.precision == "float32":
            kernel = self.constant(f"{output}.weight", weight)
            added = self.node("MatMul", [x, kernel], f"{output}.product")
            return self.node("Add", [added, self.constant(f"{output}.bias", bias)], output)
        if f"{site}.spread" in self.tensors:
            spread, middle = self._spread(site, len(weight))
            self.node("Mul", [x, self.constant(f"{output}.narrowing", 1 / spread)], f"{output}.narrow")
            self.node("Sub", [f"{output}.narrow", self.constant(f"{output}.offset", middle / spread)], f"{output}.even")
            # In double precision, as BLAS adds in an order of the processor's own: one commit, the same bytes everywhere.
            shift = (middle.astype(np.float64) @ weight.astype(np.float64)).astype(np.float32)
            x, weight, bias = f"{output}.even", weight * spread[:, None], bias + shift
        exact = self.tensors.get(f"{site}.exact")
        if exact is None:
            return self._rounded(x, site, weight, bias, output)
        chosen = np.sort(exact.astype(np.int64))
        kernel = self.constant(f"{output}.exact.weight", weight[chosen])
        self.node("Gather", [x, self.constant(f"{output}.chosen", chosen)], f"{output}.exact.in", axis=-1)
        self.node("MatMul", [f"{output}.exact.in", kernel], f"{output}.exact")
        # With their weights zero there, the rounded product may clip the
        # exact channels as it likes.
        rest = weight.copy()
        rest[chosen] = 0
        self._rounded(x, site, rest, bias, f"{output}.rounded")
        return self.node("Add", [f"{output}.rounded", f"{output}.exact"], output)

    def _rounded(self, x: str, site: str, weight: np.ndarray, bias: np.ndarray, output: str) -> str:
        low, high = self._range(f"{site}.range")
        step = np.float32((high - low) / 255)
        scale = self.constant(f"{output}.step", np.array(step))
        point = self.constant(f"{output}.zero", np.array(np.rint(-low / step), np.uint8))
        steps, scales = quantised(weight)
        inputs = [
            self.node("QuantizeLinear", [x, scale, point], f"{output}.in"),
            self.constant(f"{output}.weight", steps),
            scale,
            self.constant(f"{output}.scales", scales),
            point,
            "",
            self.constant(f"{output}.bias", bias),
        ]
        return self.fused("MatMulIntegerToFloat", inputs, output)

    def _range(self, name: str) -> tuple[float, float]:
        if name not in self.tensors:
            raise ValueError(f"The delta has no {name}: measure the activation ranges again.")
        low, high = (float(v) for v in self.tensors[name])
        if not low <= 0.0 < high:
            raise ValueError(f"The delta's {name} does not span zero: measure the activation ranges again.")
        return low, high

    def _spread(self, site: str, channels: int) -> tuple[np.ndarray, np.ndarray]:
        spread, middle = (self.tensors.get(f"{site}.{part}", np.empty(0)).astype(np.float32) for part in ("spread", "middle"))
        if spread.shape != (channels,) or middle.shape != (channels,) or not (spread > 0).all():
            raise ValueError(f"The delta's {site}.spread and .middle do not fit: measure the activation ranges again.")
        return spread, middle

    def skip_norm(self, x: str, skip: str, name: str, output: str) -> str:
        """The layer norm of x + skip.

        ONNX Runtime's fused node for this takes five times as long as the two
        apart, and would be put in for an Add, not for a Sum.
        """
        inputs = [
            self.node("Sum", [x, skip], f"{output}.sum"),
            self.constant(f"{output}.scale", self.tensors[f"{name}.weight"]),
            self.constant(f"{output}.shift", self.tensors[f"{name}.bias"]),
        ]
        return self.node("LayerNormalization", inputs, output, axis=-1, epsilon=self.kind.epsilon)


def graph(
    tensors: Tensors, kind: Backbone, precision: str = "int8", embedding: bool = False, show: bool = False,
    heads: Mapping[str, Head] = HEADS,
) -> onnx.ModelProto:
    """The encoder with these heads as ONNX.

    `embedding` adds the pooled state as an output; `show` adds the input of
    every matrix product, in the order of layers and SITES.
    """
    if precision not in ("int8", "float32"):
        raise ValueError(f"The recipe's precision {precision} is unknown: use int8 or float32.")
    width = tensors["embeddings.LayerNorm.bias"].size
    g = _Graph(tensors, kind, precision, show)
    _embeddings(g)
    distances = _distances(g) if "encoder.relative_attention_bias.weight" in tensors else ""
    x = "layer.0.in"
    for i in range(layer_count(tensors)):
        x = _layer(g, i, x, distances)
    _pool(g, x)
    heads = {name: head for name, head in heads.items() if f"{name}.weight" in tensors}
    for name, head in heads.items():
        weight, bias = (g.constant(f"{name}.{part}", tensors[f"{name}.{part}"]) for part in ("weight", "bias"))
        g.node("Gemm", [head.state, weight, bias], name, transB=1)
    outputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", len(tensors[f"{name}.weight"])]) for name in heads
    ]
    if embedding:
        outputs.append(helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["batch", width]))
    outputs += [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in dict.fromkeys(g.shown)]
    made = helper.make_graph(
        g.nodes,
        "text_classifier",
        [
            helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "tokens"]),
            helper.make_tensor_value_info("lengths", TensorProto.INT32, ["batch"]),
        ],
        outputs,
        g.constants,
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(made, opset_imports=opsets, ir_version=9, producer_name="dichroic")


def _embeddings(g: _Graph) -> None:
    """Word and place embeddings, and `inside`, the mask of valid places [batch, tokens]."""
    t = g.tensors
    # No window is longer, and MPNet's pairs of places grow with its square.
    places = (t["embeddings.position_embeddings.weight"] + t["embeddings.token_type_embeddings.weight"][0])[:PLACES]
    # The largest tensor stays as small as the base has it, or in half
    # precision; rows are widened after the look-up, so only those in use pay.
    codes = t.get("embeddings.word_embeddings.codes")
    if codes is not None:
        words = [g.constant("words", codes), "input_ids", g.constant("words.steps", t["embeddings.word_embeddings.steps"])]
        g.fused("GatherBlockQuantized", words, "words.out", gather_axis=0, quantize_axis=1, block_size=32, bits=4)
    else:
        words = g.constant("words", t["embeddings.word_embeddings.weight"].astype(np.float16))
        g.node("Gather", [words, "input_ids"], "words.half")
        g.node("Cast", ["words.half"], "words.out", to=TensorProto.FLOAT)
    zero, one = g.constant("zero", np.array([0], np.int64)), g.constant("one", np.array([1], np.int64))
    g.node("Shape", ["input_ids"], "tokens", start=1, end=2)
    g.node("Slice", [g.constant("places", places), zero, "tokens", zero], "places.out")
    g.node("Add", ["words.out", "places.out"], "embedded")
    scale = g.constant("embedded.scale", t["embeddings.LayerNorm.weight"])
    shift = g.constant("embedded.shift", t["embeddings.LayerNorm.bias"])
    g.node("LayerNormalization", ["embedded", scale, shift], "layer.0.in", axis=-1, epsilon=g.kind.epsilon)
    numbers = g.constant("numbers", np.arange(places.shape[0], dtype=np.int32))
    g.node("Slice", [numbers, zero, "tokens", zero], "numbers.out")
    g.node("Unsqueeze", ["lengths", one], "lengths.column")
    g.node("Less", ["numbers.out", "lengths.column"], "inside")


def _distances(g: _Graph) -> str:
    """MPNet's attention bias [1, heads, tokens, tokens]."""
    table = g.tensors["encoder.relative_attention_bias.weight"]
    whole = g.constant("distances.whole", table[distance_buckets(PLACES)].transpose(2, 0, 1)[None])
    start, axes = g.constant("distances.start", np.zeros(2, np.int64)), g.constant("distances.axes", np.array([2, 3]))
    g.node("Concat", ["tokens", "tokens"], "tokens.twice", axis=0)
    return g.node("Slice", [whole, start, "tokens.twice", axes], "distances")


def _layer(g: _Graph, i: int, x: str, distances: str) -> str:
    t, at, name = g.tensors, f"encoder.layer.{i}", f"layer.{i}"

    def weight(part: str) -> np.ndarray:
        return t[f"{at}.{part}.weight"].T

    parts = [f"attention.self.{p}" for p in ("query", "key", "value")]
    packed = g.product(
        x,
        f"activation.{i}.attention",
        np.concatenate([weight(p) for p in parts], axis=1),
        np.concatenate([t[f"{at}.{p}.bias"] for p in parts]),
        f"{name}.packed",
    )
    thirds = [f"{name}.{p}" for p in ("query", "key", "value")]
    g.node("Split", [packed], thirds, axis=-1, num_outputs=3)
    inputs = [*thirds, "", "lengths"] + ([distances] if distances else [])
    context = g.fused("MultiHeadAttention", inputs, f"{name}.context", num_heads=g.kind.heads)
    attended = g.product(
        context, f"activation.{i}.context", weight("attention.output.dense"), t[f"{at}.attention.output.dense.bias"],
        f"{name}.attended",
    )
    middle = g.skip_norm(attended, x, f"{at}.attention.output.LayerNorm", f"{name}.middle")
    inner = g.product(
        middle, f"activation.{i}.inner", weight("intermediate.dense"), t[f"{at}.intermediate.dense.bias"],
        f"{name}.inner",
    )
    gelu = g.fused("Gelu", [inner], f"{name}.gelu")
    down = g.product(
        gelu, f"activation.{i}.gelu", weight("output.dense"), t[f"{at}.output.dense.bias"], f"{name}.down"
    )
    return g.skip_norm(down, middle, f"{at}.output.LayerNorm", f"layer.{i + 1}.in")


def _pool(g: _Graph, x: str) -> None:
    """`embedding`, the mean of the states at valid places, and `both`, with their highest behind it."""
    one = "one"
    g.node("Cast", ["inside"], "valid", to=TensorProto.FLOAT)
    g.node("Unsqueeze", ["valid", one], "valid.row")
    g.node("MatMul", ["valid.row", x], "sum.row")
    g.node("Squeeze", ["sum.row", one], "sum")
    g.node("Cast", ["lengths.column"], "lengths.float", to=TensorProto.FLOAT)
    g.node("Div", ["sum", "lengths.float"], "embedding")
    g.node("Unsqueeze", ["inside", g.constant("last", np.array([-1]))], "inside.column")
    g.node("Where", ["inside.column", x, g.constant("lowest", np.array(-1e4, np.float32))], "states")
    g.node("ReduceMax", ["states", one], "highest", keepdims=0)
    g.node("Concat", ["embedding", "highest"], "both", axis=1)
