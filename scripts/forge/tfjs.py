"""TensorFlow.js image classifiers → ONNX.

Owns the reading of tf.js model files (a Keras layers-model or a graph-model,
as JSON and binary shards or wrapped in the `.min.js` files that nsfwjs ships)
and the graph written from them: input `pixels` [batch, size, size, 3] in 0..1,
outputs `probabilities` [batch, classes] and `features` [batch, width], the
pooled vector that the first dense layer takes. Where a recipe names another
source as its `features`, an EfficientNet-Lite looks at the same pixels
(efficientnet.py), and the features are what its last pooling gives: nsfwjs
learnt nudity, and tells little else apart. A recipe may name `heads`, a
safetensors file of scripts/train/image_heads.py with `<category>.weight`
[width] and `<category>.bias` [1]: the graph then has a third output,
`scores_extra` [batch, heads], sigmoid(features · weight + bias), whose order
the manifest states. It may name a `glance`, which is for the server: the share
of its size at which a picture is first looked at for text. The files are
parsed as data; no JavaScript is run.

Kernels keep the 8 bits they are published in. Each is stored as uint8 with a
scale and an offset per output channel, into which the batch norm behind it is
folded exactly, and is expanded by Cast, Mul and Add on constants: ONNX Runtime
folds these when it loads the graph, so the file is a quarter of the size and
inference runs on plain fp32 kernels. DequantizeLinear would not do: the
runtime leaves it unfolded by default and the convolutions would lose their
fast layout.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from safetensors import SafetensorError
from safetensors.numpy import load_file

from . import efficientnet, graph_file

CLASSES = ["Drawing", "Hentai", "Neutral", "Porn", "Sexy"]
# What a head may be for: the categories of the interface, less the one that the classes give.
CATEGORIES = ["hate", "self_harm", "violence", "defamation"]
OPSET = 17
IR_VERSION = 8
# Kernels below this many values are stored as fp32: the three extra nodes
# would cost more than they save.
SMALL = 2048


# --- reading -----------------------------------------------------------------


class _Literal:
    """Reads one JavaScript literal: what a minifier makes of JSON."""

    _space = re.compile(r"\s*")
    _number = re.compile(r"-?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
    _word = re.compile(r"[A-Za-z_$][\w$]*")
    _words = {"true": True, "false": False, "null": None, "undefined": None}
    _escapes = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "0": "\0"}

    def __init__(self, text: str, start: int) -> None:
        self._text = text
        self._at = start

    def read(self) -> Any:
        char = self._peek()
        if char == "{":
            return self._object()
        if char == "[":
            return self._array()
        if char in "\"'":
            return self._string()
        if self._text.startswith(("!0", "!1"), self._at):
            self._at += 2
            return self._text[self._at - 1] == "0"
        if self._text.startswith("void 0", self._at):
            self._at += 6
            return None
        number = self._number.match(self._text, self._at)
        if number:
            self._at = number.end()
            digits = number.group()
            return int(digits) if re.fullmatch(r"-?\d+", digits) else float(digits)
        word = self._word.match(self._text, self._at)
        if word and word.group() in self._words:
            self._at = word.end()
            return self._words[word.group()]
        raise ValueError(f"the model file holds something that is not plain data at character {self._at}")

    def _peek(self) -> str:
        space = self._space.match(self._text, self._at)
        self._at = space.end() if space else self._at
        if self._at >= len(self._text):
            raise ValueError("the model file ends inside a value; fetch it again")
        return self._text[self._at]

    def _take(self, char: str) -> bool:
        if self._peek() == char:
            self._at += 1
            return True
        return False

    def _object(self) -> dict[str, Any]:
        self._at += 1
        out: dict[str, Any] = {}
        while not self._take("}"):
            if self._peek() in "\"'":
                key = self._string()
            else:
                word = self._word.match(self._text, self._at) or self._number.match(self._text, self._at)
                if not word:
                    raise ValueError(f"the model file has an unreadable key at character {self._at}")
                key, self._at = word.group(), word.end()
            if not self._take(":"):
                raise ValueError(f"the model file lacks a colon at character {self._at}")
            out[key] = self.read()
            if not self._take(",") and self._peek() != "}":
                raise ValueError(f"the model file lacks a comma at character {self._at}")
        return out

    def _array(self) -> list[Any]:
        self._at += 1
        out: list[Any] = []
        while not self._take("]"):
            out.append(self.read())
            if not self._take(",") and self._peek() != "]":
                raise ValueError(f"the model file lacks a comma at character {self._at}")
        return out

    def _string(self) -> str:
        quote, start = self._text[self._at], self._at + 1
        end = self._text.find(quote, start)
        while end > 0 and (end - len(self._text[start:end].rstrip("\\")) - start) % 2:
            end = self._text.find(quote, end + 1)
        if end < 0:
            raise ValueError("the model file ends inside a text; fetch it again")
        self._at = end + 1
        body = self._text[start:end]
        if "\\" not in body:
            return body
        return re.sub(
            r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|(.))",
            lambda m: chr(int(m[1] or m[2], 16)) if m[1] or m[2] else self._escapes.get(m[3], m[3]),
            body,
        )


def read_bundle(path: Path) -> Any:
    """The value that a JSON file, or the one module of a bundled `.js` file, holds."""
    text = path.read_text(encoding="utf-8")
    if text.lstrip()[:1] in "{[":
        return json.loads(text)
    # The bundler's preamble also assigns to `module.exports`, but a call, never a literal.
    found = re.search(r"\.exports\s*=\s*(?=[\"'{\[])", text)
    if not found:
        raise ValueError(f"{path.name} holds no exported value; fetch it again")
    return _Literal(text, found.end()).read()


def _stem(role: str) -> str:
    """`models/x/group1-shard1of2.min.js` → `group1-shard1of2`."""
    name = Path(role).name
    for suffix in (".js", ".min", ".json", ".bin"):
        name = name.removesuffix(suffix)
    return name


def _shard(path: Path) -> bytes:
    raw = path.read_bytes()
    if path.suffix == ".bin" or not raw[:4096].lstrip().startswith((b"!function", b"(function")):
        return raw
    value = read_bundle(path)
    if not isinstance(value, str):
        raise ValueError(f"{path.name} holds no weights; fetch it again")
    return base64.b64decode(value)


@dataclass(frozen=True)
class Weight:
    """A tensor as stored: `codes * scale + offset` (scale 1, offset 0 for floats)."""

    codes: np.ndarray
    scale: float = 1.0
    offset: float = 0.0

    def dense(self) -> np.ndarray:
        if self.codes.dtype == np.float32:
            return self.codes
        return (self.codes.astype(np.float64) * self.scale + self.offset).astype(np.float32)


def read_model(source: dict[str, Path]) -> tuple[dict[str, Any], dict[str, Weight]]:
    """The topology and the named weights of one tf.js model."""
    files = {_stem(role): path for role, path in source.items()}
    if "model" not in files:
        raise ValueError("the source has no model.json (or model.min.js); check scripts/sources.json")
    model = read_bundle(files["model"])
    weights: dict[str, Weight] = {}
    for group in model["weightsManifest"]:
        missing = [path for path in group["paths"] if _stem(path) not in files]
        if missing:
            raise ValueError(f"the source lacks the weight file {missing[0]}; check scripts/sources.json")
        data = b"".join(_shard(files[_stem(path)]) for path in group["paths"])
        at = 0
        for spec in group["weights"]:
            quantisation = spec.get("quantization") or {}
            kind = np.dtype(quantisation.get("dtype", spec["dtype"])).newbyteorder("<")
            count = math.prod(spec["shape"])
            end = at + count * kind.itemsize
            if end > len(data):
                raise ValueError(f"the weights end before {spec['name']}; fetch the model again")
            codes = np.frombuffer(data[at:end], dtype=kind).reshape(spec["shape"])
            at = end
            if kind.kind == "u" and "scale" in quantisation:
                weights[spec["name"]] = Weight(codes, quantisation["scale"], quantisation["min"])
            else:
                weights[spec["name"]] = Weight(codes.astype(np.float32))
        if at != len(data):
            raise ValueError(f"{len(data) - at} bytes of weights are left over; fetch the model again")
    return model, weights


# --- writing -----------------------------------------------------------------


@dataclass(frozen=True)
class Value:
    """An ONNX value: `[batch, *shape]`, pictures as channels, height, width.

    `pad` is a zero border (top, left, bottom, right) promised but not yet laid:
    a convolution takes it into its own padding.
    """

    name: str
    shape: tuple[int, ...]
    pad: tuple[int, int, int, int] = (0, 0, 0, 0)


def _window(
    size: tuple[int, int], kernel: tuple[int, int], stride: tuple[int, int], dilation: tuple[int, int], same: bool
) -> tuple[tuple[int, int], list[int]]:
    """TensorFlow's output size and padding, as ONNX `pads` (odd padding goes behind)."""
    out, before, after = [], [], []
    for length, k, s, d in zip(size, kernel, stride, dilation):
        reach = (k - 1) * d + 1
        if same:
            steps = -(-length // s)
            total = max((steps - 1) * s + reach - length, 0)
        else:
            steps = (length - reach) // s + 1
            total = 0
        out.append(steps)
        before.append(total // 2)
        after.append(total - total // 2)
    return (out[0], out[1]), before + after


class Writer:
    """Lays ONNX nodes and keeps the shapes that TensorFlow's padding rules need."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self._names: Counter[str] = Counter()
        self._features: Value | None = None

    def node(self, kind: str, inputs: list[str], shape: tuple[int, ...], **attributes: Any) -> Value:
        self._names[kind] += 1
        name = f"{kind.lower()}_{self._names[kind]}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name=name, **attributes))
        return Value(name, shape)

    def constant(self, array: np.ndarray) -> str:
        self._names["constant"] += 1
        name = f"constant_{self._names['constant']}"
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def _weight(self, codes: np.ndarray, scale: np.ndarray, offset: np.ndarray) -> str:
        """A constant equal to `codes * scale + offset`, small on disk."""
        if codes.dtype != np.uint8 or codes.size < SMALL:
            return self.constant((codes.astype(np.float64) * scale + offset).astype(np.float32))
        cast = self.node("Cast", [self.constant(codes)], (), to=TensorProto.FLOAT)
        scaled = self.node("Mul", [cast.name, self.constant(scale.astype(np.float32))], ())
        return self.node("Add", [scaled.name, self.constant(offset.astype(np.float32))], ()).name

    def padded(self, value: Value) -> Value:
        """The value with its promised border laid."""
        if not any(value.pad):
            return value
        top, left, bottom, right = value.pad
        channels, height, width = value.shape
        pads = self.constant(np.array([0, 0, top, left, 0, 0, bottom, right], np.int64))
        return self.node("Pad", [value.name, pads], (channels, height + top + bottom, width + left + right))

    def convolution(
        self,
        value: Value,
        kernel: Weight,
        *,
        depthwise: bool,
        stride: tuple[int, int],
        dilation: tuple[int, int],
        same: bool,
        bias: np.ndarray | None,
        gain: np.ndarray | None = None,
    ) -> Value:
        """Conv; `gain` (one factor an output channel) is folded into the kernel."""
        if same:
            value = self.padded(value)
        channels, height, width = value.shape
        rows, columns, inner, outer = kernel.codes.shape
        if inner != channels:
            raise ValueError(f"a kernel for {inner} channels meets a picture of {channels}")
        if depthwise:
            out, group = inner * outer, channels
            codes = kernel.codes.transpose(2, 3, 0, 1).reshape(out, 1, rows, columns)
        else:
            out, group = outer, 1
            codes = kernel.codes.transpose(3, 2, 0, 1)
        factor = (np.ones(out) if gain is None else gain.astype(np.float64)).reshape(out, 1, 1, 1)
        weight = self._weight(codes, factor * kernel.scale, factor * kernel.offset)
        top, left, bottom, right = value.pad
        size, pads = _window((height + top + bottom, width + left + right), (rows, columns), stride, dilation, same)
        inputs = [value.name, weight]
        if bias is not None:
            inputs.append(self.constant(bias.astype(np.float32)))
        return self.node(
            "Conv",
            inputs,
            (out, *size),
            kernel_shape=[rows, columns],
            strides=list(stride),
            dilations=list(dilation),
            pads=[a + b for a, b in zip(pads, (top, left, bottom, right))],
            group=group,
        )

    def pool(self, kind: str, value: Value, kernel: tuple[int, int], stride: tuple[int, int], same: bool) -> Value:
        value = self.padded(value)
        channels, height, width = value.shape
        size, pads = _window((height, width), kernel, stride, (1, 1), same)
        # Both libraries leave the border out of an average.
        return self.node(
            kind, [value.name], (channels, *size), kernel_shape=list(kernel), strides=list(stride), pads=pads
        )

    def activation(self, value: Value, kind: str) -> Value:
        kind = kind.lower()
        if kind == "linear":
            return value
        value = self.padded(value)
        if kind == "relu":
            return self.node("Relu", [value.name], value.shape)
        if kind == "relu6":
            limits = [self.constant(np.float32(0.0)), self.constant(np.float32(6.0))]
            return self.node("Clip", [value.name, *limits], value.shape)
        if kind == "softmax" and len(value.shape) == 1:
            return self.node("Softmax", [value.name], value.shape, axis=-1)
        if kind == "sigmoid":
            return self.node("Sigmoid", [value.name], value.shape)
        raise ValueError(f"the activation {kind} is not known to this converter")

    def affine(self, value: Value, gain: np.ndarray, shift: np.ndarray) -> Value:
        """A factor and a summand a channel, for a batch norm that no convolution takes in."""
        value = self.padded(value)
        shape = (-1, *([1] * (len(value.shape) - 1)))
        scaled = self.node("Mul", [value.name, self.constant(gain.astype(np.float32).reshape(shape))], value.shape)
        return self.node("Add", [scaled.name, self.constant(shift.astype(np.float32).reshape(shape))], value.shape)

    def concatenate(self, values: list[Value]) -> Value:
        values = [self.padded(value) for value in values]
        shape = (sum(value.shape[0] for value in values), *values[0].shape[1:])
        return self.node("Concat", [value.name for value in values], shape, axis=1)

    def add(self, values: list[Value]) -> Value:
        values = [self.padded(value) for value in values]
        total = values[0]
        for value in values[1:]:
            if value.shape != total.shape:
                raise ValueError(f"an addition of unlike shapes {total.shape} and {value.shape}")
            total = self.node("Add", [total.name, value.name], total.shape)
        return total

    def mean(self, value: Value) -> Value:
        """Global average: `[channels]`."""
        value = self.padded(value)
        pooled = self.node("GlobalAveragePool", [value.name], (value.shape[0], 1, 1))
        return self.flatten(pooled)

    def flatten(self, value: Value) -> Value:
        value = self.padded(value)
        if len(value.shape) == 1:
            return value
        channels, height, width = value.shape
        if (height, width) != (1, 1):
            # TensorFlow flattens with the channel innermost.
            value = self.node("Transpose", [value.name], (height, width, channels), perm=[0, 2, 3, 1])
        return self.node("Flatten", [value.name], (channels * height * width,), axis=1)

    def dense(self, value: Value, kernel: Weight, bias: np.ndarray | None) -> Value:
        rows, columns = kernel.codes.shape
        if value.shape != (rows,):
            raise ValueError(f"a dense layer for {rows} values meets {value.shape}")
        if self._features is None:
            self._features = value
        weight = self._weight(kernel.codes, np.array(kernel.scale), np.array(kernel.offset))
        inputs = [value.name, weight]
        if bias is not None:
            inputs.append(self.constant(bias.astype(np.float32)))
        return self.node("Gemm", inputs, (columns,))

    def finish(self, result: Value, size: int, classes: int) -> onnx.ModelProto:
        if result.shape != (classes,):
            raise ValueError(f"the model answers {result.shape}, not {classes} classes")
        if self._features is None:
            raise ValueError("the model has no dense layer whose input could be its features")
        self.nodes.append(helper.make_node("Identity", [result.name], ["probabilities"], name="answer"))
        self.nodes.append(helper.make_node("Identity", [self._features.name], ["features"], name="pooled"))
        graph = helper.make_graph(
            self.nodes,
            "image_classifier",
            [helper.make_tensor_value_info("pixels", TensorProto.FLOAT, ["batch", size, size, 3])],
            [
                helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["batch", classes]),
                helper.make_tensor_value_info("features", TensorProto.FLOAT, ["batch", self._features.shape[0]]),
            ],
            self.constants,
        )
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="dichroic"
        )
        onnx.checker.check_model(model)
        return model


def _pair(values: Any) -> tuple[int, int]:
    return (int(values), int(values)) if isinstance(values, int) else (int(values[0]), int(values[1]))


def _square(shape: list[Any]) -> int:
    if len(shape) != 4 or shape[1] != shape[2] or shape[3] != 3:
        raise ValueError(f"the model takes {shape}, not square RGB pictures")
    return int(shape[1])


# --- a Keras layers-model ----------------------------------------------------


class _Layers:
    """Walks a functional Keras model in the order its layers are listed."""

    def __init__(self, topology: dict[str, Any], weights: dict[str, Weight]) -> None:
        config = topology["model_config"]
        if config["class_name"] not in ("Model", "Functional"):
            raise ValueError(f"a {config['class_name']} model is not known to this converter")
        self._config = config["config"]
        self._weights = weights
        self._writer = Writer()
        self._values: dict[str, Value] = {}
        self._consumers: dict[str, list[dict[str, Any]]] = {}
        for layer in self._config["layers"]:
            for name in self._inputs(layer):
                self._consumers.setdefault(name, []).append(layer)

    @staticmethod
    def _inputs(layer: dict[str, Any]) -> list[str]:
        return [edge[0] for edge in layer["inbound_nodes"][0]] if layer["inbound_nodes"] else []

    def _weight(self, layer: str, name: str) -> Weight:
        try:
            return self._weights[f"{layer}/{name}"]
        except KeyError:
            raise ValueError(f"the model has no weight {layer}/{name}; fetch it again") from None

    def _norm(self, layer: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        """A batch norm as gain and shift a channel."""
        config, name = layer["config"], layer["name"]
        variance = self._weight(name, "moving_variance").dense().astype(np.float64)
        gain = 1.0 / np.sqrt(variance + config["epsilon"])
        if config.get("scale", True):
            gain = gain * self._weight(name, "gamma").dense()
        shift = -self._weight(name, "moving_mean").dense() * gain
        if config.get("center", True):
            shift = shift + self._weight(name, "beta").dense()
        return gain, shift

    def convert(self) -> tuple[onnx.ModelProto, int]:
        size = 0
        for layer in self._config["layers"]:
            if layer["class_name"] == "InputLayer":
                size = _square(layer["config"]["batch_input_shape"])
                self._values[layer["name"]] = self._writer.node(
                    "Transpose", ["pixels"], (3, size, size), perm=[0, 3, 1, 2]
                )
            elif layer["name"] not in self._values:
                values = [self._values[name] for name in self._inputs(layer)]
                self._values[layer["name"]] = self._layer(layer, values)
        (result,) = self._config["output_layers"]
        return self._writer.finish(self._values[result[0]], size, len(CLASSES)), size

    def _layer(self, layer: dict[str, Any], values: list[Value]) -> Value:
        kind, config, name, writer = layer["class_name"], layer["config"], layer["name"], self._writer
        if config.get("data_format", "channels_last") != "channels_last":
            raise ValueError(f"the layer {name} is not channels_last")
        same = config.get("padding") == "same"
        if kind in ("Conv2D", "DepthwiseConv2D"):
            return self._convolution(layer, values[0])
        if kind == "BatchNormalization":
            return writer.affine(values[0], *self._norm(layer))
        if kind == "Activation":
            return writer.activation(values[0], config["activation"])
        if kind == "ReLU":
            if config.get("negative_slope") or config.get("threshold"):
                raise ValueError(f"the layer {name} is a leaky or shifted ReLU")
            limit = config.get("max_value")
            if limit not in (None, 6):
                raise ValueError(f"the layer {name} is limited at {limit}, not 6")
            return writer.activation(values[0], "relu" if limit is None else "relu6")
        if kind == "ZeroPadding2D":
            (top, bottom), (left, right) = config["padding"]
            laid = writer.padded(values[0])
            return Value(laid.name, laid.shape, (top, left, bottom, right))
        if kind in ("MaxPooling2D", "AveragePooling2D"):
            pool = "MaxPool" if kind == "MaxPooling2D" else "AveragePool"
            stride = _pair(config["strides"] or config["pool_size"])
            return writer.pool(pool, values[0], _pair(config["pool_size"]), stride, same)
        if kind == "GlobalAveragePooling2D":
            return writer.mean(values[0])
        if kind == "Concatenate":
            if config["axis"] not in (3, -1):
                raise ValueError(f"the layer {name} does not join channels")
            return writer.concatenate(values)
        if kind == "Add":
            return writer.add(values)
        if kind == "Flatten":
            return writer.flatten(values[0])
        if kind == "Dropout":
            return values[0]
        if kind == "Dense":
            bias = self._weight(name, "bias").dense() if config["use_bias"] else None
            return writer.activation(
                writer.dense(values[0], self._weight(name, "kernel"), bias), config["activation"]
            )
        raise ValueError(f"the layer kind {kind} ({name}) is not known to this converter")

    def _convolution(self, layer: dict[str, Any], value: Value) -> Value:
        config, name = layer["config"], layer["name"]
        depthwise = layer["class_name"] == "DepthwiseConv2D"
        kernel = self._weight(name, "depthwise_kernel" if depthwise else "kernel")
        bias = self._weight(name, "bias").dense().astype(np.float64) if config["use_bias"] else None
        gain = None
        consumers = self._consumers.get(name, [])
        norm = consumers[0] if len(consumers) == 1 else None
        if norm is not None and (norm["class_name"] != "BatchNormalization" or config["activation"] != "linear"):
            norm = None
        if norm is not None:
            gain, shift = self._norm(norm)
            bias = shift if bias is None else bias * gain + shift
        out = self._writer.convolution(
            value,
            kernel,
            depthwise=depthwise,
            stride=_pair(config["strides"]),
            dilation=_pair(config.get("dilation_rate", 1)),
            same=config["padding"] == "same",
            bias=bias,
            gain=gain,
        )
        if norm is not None:
            self._values[norm["name"]] = out
        return self._writer.activation(out, config["activation"])


# --- a TensorFlow graph-model ------------------------------------------------


class _Graph:
    """Walks a frozen TensorFlow graph back from its output."""

    _ELEMENTWISE = {"Mul": "Mul", "Sub": "Sub", "Add": "Add", "AddV2": "Add"}
    _ACTIVATIONS = {"Relu": "relu", "Relu6": "relu6", "Sigmoid": "sigmoid", "Softmax": "softmax"}

    def __init__(self, topology: dict[str, Any], weights: dict[str, Weight]) -> None:
        self._nodes = {node["name"]: node for node in topology["node"]}
        self._weights = weights
        self._writer = Writer()
        self._values: dict[str, Value] = {}
        self._size = 0

    @staticmethod
    def _text(value: Any) -> str:
        return bytes(value).decode() if isinstance(value, list) else base64.b64decode(value).decode()

    def _ints(self, node: dict[str, Any], name: str) -> list[int]:
        return [int(value) for value in node["attr"].get(name, {}).get("list", {}).get("i", [])]

    @staticmethod
    def _inputs(node: dict[str, Any]) -> list[str]:
        return [name.split(":")[0] for name in node.get("input", []) if not name.startswith("^")]

    def _constant(self, name: str) -> Weight | None:
        while self._nodes[name]["op"] == "Identity":
            name = self._inputs(self._nodes[name])[0]
        return self._weights[name] if self._nodes[name]["op"] == "Const" else None

    def convert(self) -> tuple[onnx.ModelProto, int]:
        used = {name for node in self._nodes.values() for name in self._inputs(node)}
        ends = [name for name, node in self._nodes.items() if name not in used and node["op"] != "Const"]
        if len(ends) != 1:
            raise ValueError(f"the graph has {len(ends)} outputs, not one")
        # Depth first without recursion: a deep graph must not meet Python's limit.
        pending = [ends[0]]
        while pending:
            name = pending[-1]
            waiting = [
                one
                for one in self._inputs(self._nodes[name])
                if one not in self._values and self._constant(one) is None
            ]
            if waiting:
                pending.extend(waiting)
                continue
            pending.pop()
            if name not in self._values:
                self._values[name] = self._node(self._nodes[name])
        return self._writer.finish(self._values[ends[0]], self._size, len(CLASSES)), self._size

    def _node(self, node: dict[str, Any]) -> Value:
        kind, inputs, writer = node["op"], self._inputs(node), self._writer
        layout = node.get("attr", {}).get("data_format", {}).get("s")
        if layout is not None and self._text(layout) != "NHWC":
            raise ValueError(f"the node {node['name']} is not NHWC")
        if kind == "Placeholder":
            dims = [int(dim["size"]) for dim in node["attr"]["shape"]["shape"]["dim"]]
            self._size = _square(dims)
            return writer.node("Transpose", ["pixels"], (3, self._size, self._size), perm=[0, 3, 1, 2])
        if kind in self._ELEMENTWISE:
            return self._elementwise(self._ELEMENTWISE[kind], inputs)
        if kind in ("_FusedConv2D", "Conv2D", "FusedDepthwiseConv2dNative", "DepthwiseConv2dNative"):
            return self._convolution(node, inputs)
        if kind in ("_FusedMatMul", "MatMul"):
            if any(node["attr"].get(flag, {}).get("b") for flag in ("transpose_a", "transpose_b")):
                raise ValueError(f"the node {node['name']} multiplies a transposed matrix")
            bias, activation = self._fused(node, inputs)
            dense = writer.dense(self._values[inputs[0]], self._given(inputs[1]), bias)
            return writer.activation(dense, activation)
        value = self._values[inputs[0]]
        if kind == "Identity":
            return value
        if kind in self._ACTIVATIONS:
            return writer.activation(value, self._ACTIVATIONS[kind])
        if kind in ("AvgPool", "MaxPool"):
            same = self._text(node["attr"]["padding"]["s"]) == "SAME"
            kernel, stride = self._ints(node, "ksize")[1:3], self._ints(node, "strides")[1:3]
            return writer.pool(
                "MaxPool" if kind == "MaxPool" else "AveragePool", value, _pair(kernel), _pair(stride), same
            )
        if kind == "Mean" and sorted(int(axis) for axis in self._given(inputs[1]).codes) == [1, 2]:
            return writer.mean(value)
        if kind == "Squeeze" and value.shape[1:] in ((), (1, 1)):
            return writer.flatten(value)
        raise ValueError(f"the operation {kind} ({node['name']}) is not known to this converter")

    def _given(self, name: str) -> Weight:
        weight = self._constant(name)
        if weight is None:
            raise ValueError(f"{name} is computed where a constant was expected")
        return weight

    def _elementwise(self, kind: str, inputs: list[str]) -> Value:
        shape: tuple[int, ...] = ()
        names = []
        for name in inputs:
            weight = self._constant(name)
            if weight is None:
                value = self._writer.padded(self._values[name])
                shape = value.shape
                names.append(value.name)
            elif weight.codes.size == 1:
                names.append(self._writer.constant(weight.dense().reshape(())))
            else:
                raise ValueError(f"{name} is not a single number")
        return self._writer.node(kind, names, shape)

    def _fused(self, node: dict[str, Any], inputs: list[str]) -> tuple[np.ndarray | None, str]:
        steps = [self._text(step) for step in node["attr"].get("fused_ops", {}).get("list", {}).get("s", [])]
        bias = None
        if steps[:1] == ["BiasAdd"]:
            bias = self._given(inputs[2]).dense()
            steps = steps[1:]
        if len(steps) > 1 or any(step not in self._ACTIVATIONS for step in steps):
            raise ValueError(f"the node {node['name']} fuses {steps}, which this converter does not know")
        return bias, self._ACTIVATIONS[steps[0]] if steps else "linear"

    def _convolution(self, node: dict[str, Any], inputs: list[str]) -> Value:
        padding = self._text(node["attr"]["padding"]["s"])
        if padding not in ("SAME", "VALID"):
            raise ValueError(f"the node {node['name']} pads by {padding}")
        bias, activation = self._fused(node, inputs)
        dilation = self._ints(node, "dilations")[1:3] or [1, 1]
        out = self._writer.convolution(
            self._values[inputs[0]],
            self._given(inputs[1]),
            depthwise="Depthwise" in node["op"],
            stride=_pair(self._ints(node, "strides")[1:3]),
            dilation=_pair(dilation),
            same=padding == "SAME",
            bias=bias,
        )
        return self._writer.activation(out, activation)


# --- the recipe --------------------------------------------------------------


def convert(source: dict[str, Path]) -> tuple[onnx.ModelProto, int]:
    """The ONNX model of one tf.js model's files, and the side of its input in pixels."""
    model, weights = read_model(source)
    topology = model["modelTopology"]
    return (_Graph if "node" in topology else _Layers)(topology, weights).convert()


def read_calibration(path: Path) -> dict[str, Any]:
    """The `sexual` part of a calibration file, checked."""
    try:
        sexual = json.loads(path.read_text(encoding="utf-8"))["sexual"]
        weights = {name: float(weight) for name, weight in sexual["weights"].items()}
        scale, bias = float(sexual["scale"]), float(sexual["bias"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as cause:
        raise ValueError(f"{path.name} is not an image calibration; restore it from git") from cause
    unknown = sorted(set(weights) - set(CLASSES))
    if unknown or scale <= 0 or not math.isfinite(scale) or not math.isfinite(bias):
        raise ValueError(f"{path.name} has an unknown class or an unusable scale; restore it from git")
    return {"weights": weights, "scale": scale, "bias": bias}


@dataclass(frozen=True)
class Heads:
    """Further categories, seen in the features: weights [heads, width], biases [heads]."""

    categories: list[str]
    weights: np.ndarray
    biases: np.ndarray


def read_heads(path: Path) -> Heads:
    """The heads of a safetensors file, checked, in the order of the interface."""
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as cause:
        raise ValueError(f"{path.name} holds no image heads; restore it from git") from cause
    categories = [name for name in CATEGORIES if f"{name}.weight" in tensors]
    expected = {f"{name}.{part}" for name in categories for part in ("weight", "bias")}
    if not categories or set(tensors) != expected:
        raise ValueError(f"{path.name} holds {sorted(tensors)}, not image heads; restore it from git")
    weights = [tensors[f"{name}.weight"] for name in categories]
    biases = [tensors[f"{name}.bias"] for name in categories]
    if len({weight.shape for weight in weights}) != 1 or weights[0].ndim != 1 or any(b.shape != (1,) for b in biases):
        raise ValueError(f"{path.name} holds heads of unlike shapes; restore it from git")
    heads = Heads(categories, np.stack(weights).astype(np.float32), np.concatenate(biases).astype(np.float32))
    if not (np.isfinite(heads.weights).all() and np.isfinite(heads.biases).all()):
        raise ValueError(f"{path.name} holds a value that is not a number; restore it from git")
    return heads


def add_heads(model: onnx.ModelProto, heads: Heads) -> onnx.ModelProto:
    """The model with `scores_extra` [batch, heads] behind its features."""
    (features,) = (output for output in model.graph.output if output.name == "features")
    width = features.type.tensor_type.shape.dim[1].dim_value
    if heads.weights.shape[1] != width:
        raise ValueError(f"the heads take {heads.weights.shape[1]} features, the model has {width}: train them anew")
    made = onnx.ModelProto()
    made.CopyFrom(model)
    made.graph.initializer.extend(
        [
            numpy_helper.from_array(np.ascontiguousarray(heads.weights.T), "heads_weight"),
            numpy_helper.from_array(heads.biases, "heads_bias"),
        ]
    )
    made.graph.node.extend(
        [
            helper.make_node("Gemm", ["features", "heads_weight", "heads_bias"], ["heads_logits"], name="heads"),
            helper.make_node("Sigmoid", ["heads_logits"], ["scores_extra"], name="heads_scores"),
        ]
    )
    shape = ["batch", len(heads.categories)]
    made.graph.output.append(helper.make_tensor_value_info("scores_extra", TensorProto.FLOAT, shape))
    onnx.checker.check_model(made)
    return made


def see_more(model: onnx.ModelProto, size: int, checkpoint: Path) -> onnx.ModelProto:
    """The model with the features of another network that looks at the same pixels."""
    branch = efficientnet.Branch(efficientnet.read(checkpoint))
    pooled = branch.features("pixels", size)
    made = onnx.ModelProto()
    made.CopyFrom(model)
    kept = [node for node in made.graph.node if "features" not in node.output]
    del made.graph.node[:]
    made.graph.node.extend([*kept, *branch.nodes, helper.make_node("Identity", [pooled], ["features"], name="pooled")])
    made.graph.initializer.extend(branch.constants)
    (output,) = (output for output in made.graph.output if output.name == "features")
    output.type.tensor_type.shape.dim[1].dim_value = efficientnet.WIDTH
    onnx.checker.check_model(made)
    return made


def build(source: dict[str, Path], recipe: dict[str, Any], model_dir: Path, out: Path) -> dict[str, Any]:
    """Writes `model.onnx` into `out`; returns the manifest's kind and its part."""
    part: dict[str, Any] = {"sexual": read_calibration(model_dir / recipe["calibration"])}
    files = dict(source)
    checkpoint = files.pop("checkpoint.pth", None)
    model, size = convert(files)
    if checkpoint is not None:
        model = see_more(model, size, checkpoint)
    if "heads" in recipe:
        heads = read_heads(model_dir / recipe["heads"])
        model, part["heads"] = add_heads(model, heads), heads.categories
    if "glance" in recipe:
        part["glance"] = recipe["glance"]
    graph_file.write(model, out / "model.onnx")
    return {"kind": "image_classifier", "image_classifier": {"size": size, "classes": CLASSES, **part}}
