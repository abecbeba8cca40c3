"""Builds the text classifier: MiniLM weights and a trained delta, as one ONNX graph.

The base is all-MiniLM-L6-v2 as published (BERT tensor names). The delta, a
safetensors file, changes it by name:

- `<weight>.lora_a` [rank, in] and `<weight>.lora_b` [out, rank]: the weight
  gains `lora_b @ lora_a`;
- `<tensor>.delta`, of the tensor's shape: the tensor gains it;
- `harm.weight` [5, 384], `harm.bias` [5], `expressibility.weight` and
  `expressibility.bias`: the heads over the mean of the last layer's states;
- `activation.{layer}.{attention|context|inner|gelu}.range` [2]: what the 8-bit
  input of each of the four matrix products of a layer covers, and `.exact` [n]
  (optional): channels of it that are multiplied in full precision instead,
  because their wide range would cost all others their precision.

Activations are quantised by those fixed ranges, not by the range of whatever
batch a text comes in: a text then scores the same alone and in company.
Weights keep to 7 bits, because processors without VNNI add pairs of products
in 16 bits, which 8-bit weights overflow.

The graph takes `input_ids` int64 [batch, tokens], padded on the right, and
`lengths` int32 [batch]; it gives `harm` and `expressibility`, raw logits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import load_file

Tensors = dict[str, np.ndarray]

LAYERS, WIDTH, HEADS, INNER = 6, 384, 12, 1536
EPSILON = 1e-12
WEIGHT_LIMIT = 64
CATEGORIES = ["sexual", "hate", "self_harm", "violence", "defamation"]
EXPRESSIBILITY = ["statement", "acknowledgement", "agreement", "meaningless", "formula"]
SPECIAL_IDS = {"cls_id": 101, "sep_id": 102, "pad_id": 0}
HEAD_NAMES = ("harm", "expressibility")
SITES = ("attention", "context", "inner", "gelu")


def build(source: dict[str, Path], recipe: dict, model_dir: Path, out: Path) -> dict:
    """Write model.onnx and tokenizer.json into `out`; return the manifest's part.

    `recipe["precision"]` is `int8` (the default) or `float32`.
    """
    tensors = merge(load_base(source["model.safetensors"]), load_file(model_dir / recipe["delta"]))
    model = graph(tensors, recipe.get("precision", "int8"))
    onnx.checker.check_model(model)
    _write(out / "model.onnx", model.SerializeToString(deterministic=True))
    _write(out / "tokenizer.json", plain_tokenizer(source["tokenizer.json"]))
    return {"text_classifier": calibration(model_dir / recipe["calibration"])}


def load_base(path: Path) -> Tensors:
    base = {name: np.asarray(value, np.float32) for name, value in load_file(path).items()
            if value.dtype.kind == "f"}
    found = base.get("embeddings.word_embeddings.weight")
    if found is None or found.shape[1] != WIDTH or f"encoder.layer.{LAYERS - 1}.output.dense.weight" not in base:
        raise ValueError(f"{path.name} is not a MiniLM-L6 encoder of width {WIDTH}: use the pinned base weights.")
    return base


def merge(base: Mapping[str, np.ndarray], delta: Mapping[str, np.ndarray]) -> Tensors:
    """The base with the delta added, plus the delta's heads and ranges."""
    out = dict(base)
    for name, value in delta.items():
        value = np.asarray(value, np.float32)
        stem, _, kind = name.rpartition(".")
        if kind == "lora_a":
            other = delta.get(f"{stem}.lora_b")
            if other is None or other.shape[1:] != value.shape[:1]:
                raise ValueError(f"The delta has {name} without its lora_b, or of another rank: export it again.")
            # Half-precision factors have exact sums of products in double
            # precision, so the order in which a machine adds does not show.
            change = (other.astype(np.float64) @ value.astype(np.float64)).astype(np.float32)
        elif kind == "lora_b":
            if f"{stem}.lora_a" not in delta:
                raise ValueError(f"The delta has {name} without its lora_a: export it again.")
            continue
        elif kind == "delta":
            change = value
        elif name.startswith(("harm.", "expressibility.", "activation.")):
            out[name] = value
            continue
        else:
            raise ValueError(f"The delta has a tensor {name} of no known meaning: export it again.")
        if stem not in base or base[stem].shape != change.shape:
            raise ValueError(f"The delta's {name} does not fit the base weights: use the base it was trained on.")
        out[stem] = base[stem] + change
    for head in HEAD_NAMES:
        if out.get(f"{head}.weight", np.empty(0)).shape != (5, WIDTH):
            raise ValueError(f"The delta has no {head} head of shape 5 x {WIDTH}: export it again.")
    return out


def calibration(path: Path) -> dict:
    """The manifest's part, from the calibration file beside the delta."""
    found = json.loads(path.read_text(encoding="utf-8"))
    scales = found["calibration"]
    if found["categories"] != CATEGORIES or found["expressibility"]["classes"] != EXPRESSIBILITY or len(scales) != 5:
        raise ValueError(f"{path.name} is not of this model's categories: write it again with the training scripts.")
    return {
        "window": found["window"],
        "stride": found["stride"],
        **SPECIAL_IDS,
        "categories": CATEGORIES,
        "calibration": [{"scale": float(s["scale"]), "bias": float(s["bias"])} for s in scales],
        "expressibility": {"classes": EXPRESSIBILITY, "threshold": float(found["expressibility"]["threshold"])},
    }


def plain_tokenizer(path: Path) -> bytes:
    """The published tokenizer without its fixed length: the server pads and cuts."""
    found = json.loads(path.read_text(encoding="utf-8"))
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


def _write(path: Path, content: bytes) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(content)
    partial.replace(path)


class _Graph:
    """Nodes and initialisers under construction."""

    def __init__(self, tensors: Tensors, precision: str, show: bool) -> None:
        self.tensors, self.precision, self.show = tensors, precision, show
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

    def product(self, x: str, site: str, weight: np.ndarray, bias: np.ndarray | None, output: str) -> str:
        """x @ weight, in the graph's precision; `site` names the range of x."""
        if self.show:
            self.shown.append(x)
        if self.precision == "float32":
            kernel = self.constant(f"{output}.weight", weight)
            if bias is None:
                return self.node("MatMul", [x, kernel], output)
            added = self.node("MatMul", [x, kernel], f"{output}.product")
            return self.node("Add", [added, self.constant(f"{output}.bias", bias)], output)
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

    def _rounded(self, x: str, site: str, weight: np.ndarray, bias: np.ndarray | None, output: str) -> str:
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
        ]
        if bias is not None:
            inputs += ["", self.constant(f"{output}.bias", bias)]
        return self.fused("MatMulIntegerToFloat", inputs, output)

    def _range(self, name: str) -> tuple[float, float]:
        if name not in self.tensors:
            raise ValueError(f"The delta has no {name}: measure the activation ranges again.")
        low, high = (float(v) for v in self.tensors[name])
        if not low <= 0.0 < high:
            raise ValueError(f"The delta's {name} does not span zero: measure the activation ranges again.")
        return low, high

    def skip_norm(self, x: str, skip: str, name: str, bias: np.ndarray, output: str) -> str:
        inputs = [
            x,
            skip,
            self.constant(f"{output}.scale", self.tensors[f"{name}.weight"]),
            self.constant(f"{output}.shift", self.tensors[f"{name}.bias"]),
            self.constant(f"{output}.bias", bias),
        ]
        return self.fused("SkipLayerNormalization", inputs, output, epsilon=EPSILON)


def graph(tensors: Tensors, precision: str = "int8", embedding: bool = False, show: bool = False) -> onnx.ModelProto:
    """The classifier as ONNX.

    `embedding` adds the pooled state as an output; `show` adds the input of
    every matrix product, in the order of layers and SITES.
    """
    if precision not in ("int8", "float32"):
        raise ValueError(f"The recipe's precision {precision} is unknown: use int8 or float32.")
    g = _Graph(tensors, precision, show)
    valid = _embeddings(g)
    x = "layer.0.in"
    for i in range(LAYERS):
        x = _layer(g, i, x)
    _pool(g, x, valid)
    heads = np.concatenate([tensors[f"{h}.weight"] for h in HEAD_NAMES])
    shifts = np.concatenate([tensors[f"{h}.bias"] for h in HEAD_NAMES])
    g.node(
        "Gemm",
        ["embedding", g.constant("heads.weight", heads), g.constant("heads.bias", shifts)],
        "logits",
        transB=1,
    )
    g.node("Split", ["logits"], list(HEAD_NAMES), axis=1, num_outputs=2)
    outputs = [helper.make_tensor_value_info(h, TensorProto.FLOAT, ["batch", 5]) for h in HEAD_NAMES]
    if embedding:
        outputs.append(helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["batch", WIDTH]))
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


def _embeddings(g: _Graph) -> str:
    """Word and place embeddings; returns the mask of valid places [batch, tokens]."""
    t = g.tensors
    # Half precision halves the largest tensor; the rows are widened after the
    # look-up, so only the rows in use pay for it.
    words = g.constant("words", t["embeddings.word_embeddings.weight"].astype(np.float16))
    places = t["embeddings.position_embeddings.weight"] + t["embeddings.token_type_embeddings.weight"][0]
    g.node("Gather", [words, "input_ids"], "words.half")
    g.node("Cast", ["words.half"], "words.out", to=TensorProto.FLOAT)
    zero, one = g.constant("zero", np.array([0], np.int64)), g.constant("one", np.array([1], np.int64))
    g.node("Shape", ["input_ids"], "tokens", start=1, end=2)
    g.node("Slice", [g.constant("places", places), zero, "tokens", zero], "places.out")
    g.node("Add", ["words.out", "places.out"], "embedded")
    scale = g.constant("embedded.scale", t["embeddings.LayerNorm.weight"])
    shift = g.constant("embedded.shift", t["embeddings.LayerNorm.bias"])
    g.node("LayerNormalization", ["embedded", scale, shift], "layer.0.in", axis=-1, epsilon=EPSILON)
    numbers = g.constant("numbers", np.arange(places.shape[0], dtype=np.int32))
    g.node("Slice", [numbers, zero, "tokens", zero], "numbers.out")
    g.node("Unsqueeze", ["lengths", one], "lengths.column")
    g.node("Less", ["numbers.out", "lengths.column"], "inside")
    return g.node("Cast", ["inside"], "valid", to=TensorProto.FLOAT)


def _layer(g: _Graph, i: int, x: str) -> str:
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
    context = g.fused("MultiHeadAttention", [*thirds, "", "lengths"], f"{name}.context", num_heads=HEADS)
    attended = g.product(
        context, f"activation.{i}.context", weight("attention.output.dense"), None, f"{name}.attended"
    )
    middle = g.skip_norm(
        attended, x, f"{at}.attention.output.LayerNorm", t[f"{at}.attention.output.dense.bias"], f"{name}.middle"
    )
    inner = g.product(
        middle, f"activation.{i}.inner", weight("intermediate.dense"), t[f"{at}.intermediate.dense.bias"],
        f"{name}.inner",
    )
    gelu = g.fused("Gelu", [inner], f"{name}.gelu")
    down = g.product(gelu, f"activation.{i}.gelu", weight("output.dense"), None, f"{name}.down")
    return g.skip_norm(
        down, middle, f"{at}.output.LayerNorm", t[f"{at}.output.dense.bias"], f"layer.{i + 1}.in"
    )


def _pool(g: _Graph, x: str, valid: str) -> None:
    """Mean of the states at valid places."""
    one = "one"
    g.node("Unsqueeze", [valid, one], "valid.row")
    g.node("MatMul", ["valid.row", x], "sum.row")
    g.node("Squeeze", ["sum.row", one], "sum")
    g.node("Cast", ["lengths.column"], "lengths.float", to=TensorProto.FLOAT)
    g.node("Div", ["sum", "lengths.float"], "embedding")
