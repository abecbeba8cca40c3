"""EfficientNet-Lite, pretrained on ImageNet, as nodes of an ONNX graph.

Owns the reading of the published checkpoint and the part of an image
classifier's graph that is made of it: pixels [batch, size, size, 3] in 0..1 →
the pooled vector [batch, 1280]. A checkpoint is a pickle; here it is read as
data: only tensors and the ordered dictionary that holds them are accepted, and
a name that is anything else stops the build. Batch norms are folded into the
convolutions before them.

Sources: M. Tan and Q. Le, "EfficientNet" (2019); the Lite variants without
squeeze-and-excitation and with ReLU6 are TensorFlow's, and so is the padding,
odd pixels of which go behind.
"""

from __future__ import annotations

import math
import pickle
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

Tensors = dict[str, np.ndarray]

WIDTH = 1280
EPSILON = 1e-3
# What the published networks subtract from bytes and divide them by.
MEAN, SPREAD = 127.0, 128.0


@dataclass(frozen=True)
class Stage:
    """Blocks alike: how many, kernel, stride of the first, expansion, channels out."""

    blocks: int
    kernel: int
    stride: int
    expansion: int
    channels: int


# Lite0; the others stretch width and depth.
STAGES = (
    Stage(1, 3, 1, 1, 16),
    Stage(2, 3, 2, 6, 24),
    Stage(2, 5, 2, 6, 40),
    Stage(3, 3, 2, 6, 80),
    Stage(3, 5, 1, 6, 112),
    Stage(4, 5, 2, 6, 192),
    Stage(1, 3, 1, 6, 320),
)


# --- reading -----------------------------------------------------------------


class _Storage:
    """A storage that the pickle names, filled when its bytes come."""

    def __init__(self, kind: str, count: int) -> None:
        self.kind, self.count = kind, count
        self.values: np.ndarray | None = None


@dataclass(frozen=True)
class _View:
    """A tensor: a part of a storage."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class _Data(pickle.Unpickler):
    """Accepts tensors and the dictionary around them, nothing that could run."""

    _known = {
        ("collections", "OrderedDict"): OrderedDict,
        ("torch._utils", "_rebuild_tensor_v2"): lambda storage, offset, shape, stride, *_: _View(
            storage, offset, shape, stride
        ),
        ("torch", "FloatStorage"): "float32",
        ("torch", "LongStorage"): "int64",
    }

    def __init__(self, file: Any) -> None:
        super().__init__(file)
        self.storages: dict[str, _Storage] = {}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._known:
            raise ValueError(f"the checkpoint names {module}.{name}, which is no tensor; fetch it again")
        return self._known[module, name]

    def persistent_load(self, told: Any) -> _Storage:
        _, kind, key, _, count, *_ = told
        return self.storages.setdefault(key, _Storage(kind, count))


def read(path: Path) -> Tensors:
    """The tensors of a checkpoint in PyTorch's format before version 1.6."""
    with path.open("rb") as file:
        for _ in range(3):  # the magic number, the protocol, the machine
            _Data(file).load()
        body = _Data(file)
        views = body.load()
        for key in _Data(file).load():
            storage = body.storages[key]
            (count,) = np.frombuffer(file.read(8), "<i8")
            kind = np.dtype(storage.kind).newbyteorder("<")
            storage.values = np.frombuffer(file.read(int(count) * kind.itemsize), kind)
            if count != storage.count or len(storage.values) != count:
                raise ValueError(f"{path.name} ends within its weights; fetch it again")
    found: Tensors = {}
    for name, view in views.items():
        values = view.storage.values
        if values is None:
            raise ValueError(f"{path.name} lacks the weights of {name}; fetch it again")
        steps = [step * values.itemsize for step in view.stride]
        found[name] = np.lib.stride_tricks.as_strided(values[view.offset :], view.shape, steps).copy()
    return found


# --- writing -----------------------------------------------------------------


@dataclass(frozen=True)
class Value:
    """An ONNX value `[batch, channels, side, side]`."""

    name: str
    channels: int
    side: int


class Branch:
    """Lays the nodes; every name begins with `prefix`, so that a graph can take them in."""

    def __init__(self, tensors: Tensors, prefix: str = "lite") -> None:
        self._tensors, self._prefix = tensors, prefix
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []

    def features(self, pixels: str, size: int) -> str:
        """The pooled vector [batch, WIDTH] of `pixels` [batch, size, size, 3] in 0..1."""
        planes = self._node("Transpose", [pixels], perm=[0, 3, 1, 2])
        gain = self._constant("gain", np.array(255 / SPREAD, np.float32))
        shift = self._constant("shift", np.array(MEAN / SPREAD, np.float32))
        even = self._node("Sub", [self._node("Mul", [planes, gain]), shift])
        x = self._convolution(Value(even, 3, size), "_conv_stem", "_bn0", stride=2, clipped=True)
        for number, (stage, first) in enumerate(self._blocks()):
            x = self._block(x, f"_blocks.{number}", stage, stage.stride if first else 1)
        x = self._convolution(x, "_conv_head", "_bn1", clipped=True)
        pooled = self._node("GlobalAveragePool", [x.name])
        return self._node("Flatten", [pooled], axis=1)

    def _blocks(self) -> list[tuple[Stage, bool]]:
        """Each block's stage and whether it is the stage's first, as deep as the checkpoint is."""
        total = 1 + max(int(name.split(".")[1]) for name in self._tensors if name.startswith("_blocks."))
        for depth in (1.0, 1.1, 1.2, 1.4, 1.8):
            counts = [s.blocks if n in (0, len(STAGES) - 1) else math.ceil(s.blocks * depth) for n, s in enumerate(STAGES)]
            if sum(counts) == total:
                return [(stage, n == 0) for stage, count in zip(STAGES, counts) for n in range(count)]
        raise ValueError(f"the checkpoint has {total} blocks, which is no EfficientNet-Lite; fetch it again")

    def _block(self, x: Value, at: str, stage: Stage, stride: int) -> Value:
        y = x
        if stage.expansion != 1:
            y = self._convolution(y, f"{at}._expand_conv", f"{at}._bn0", clipped=True)
        y = self._convolution(y, f"{at}._depthwise_conv", f"{at}._bn1", stride=stride, clipped=True)
        y = self._convolution(y, f"{at}._project_conv", f"{at}._bn2")
        if (x.channels, x.side) == (y.channels, y.side):
            y = Value(self._node("Add", [x.name, y.name]), y.channels, y.side)
        return y

    def _convolution(self, x: Value, name: str, norm: str, stride: int = 1, clipped: bool = False) -> Value:
        kernel, bias = folded(self._tensors, name, norm)
        outer, inner, reach, _ = kernel.shape
        group = x.channels if inner == 1 and x.channels > 1 else 1
        if inner * group != x.channels:
            raise ValueError(f"the checkpoint's {name} is for {inner * group} channels, not {x.channels}; fetch it again")
        side = -(-x.side // stride)
        total = max((side - 1) * stride + reach - x.side, 0)
        pads = [total // 2, total // 2, total - total // 2, total - total // 2]
        y = self._node(
            "Conv",
            [x.name, self._constant(f"{name}.kernel", kernel), self._constant(f"{name}.bias", bias)],
            kernel_shape=[reach, reach],
            strides=[stride, stride],
            pads=pads,
            group=group,
        )
        if clipped:
            limits = [self._constant(f"{name}.{word}", np.array(limit, np.float32)) for word, limit in (("low", 0), ("high", 6))]
            y = self._node("Clip", [y, *limits])
        return Value(y, outer, side)

    def _constant(self, name: str, value: np.ndarray) -> str:
        name = f"{self._prefix}.{name}"
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def _node(self, kind: str, inputs: list[str], **attributes: Any) -> str:
        name = f"{self._prefix}.{kind.lower()}.{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name=name, **attributes))
        return name


def folded(tensors: Tensors, name: str, norm: str) -> tuple[np.ndarray, np.ndarray]:
    """A convolution's kernel and bias with the batch norm behind it folded in."""
    try:
        kernel = tensors[f"{name}.weight"].astype(np.float64)
        scale, shift, mean, variance = (
            tensors[f"{norm}.{part}"].astype(np.float64) for part in ("weight", "bias", "running_mean", "running_var")
        )
    except KeyError as missing:
        raise ValueError(f"the checkpoint has no {missing.args[0]}; fetch it again") from missing
    gain = scale / np.sqrt(variance + EPSILON)
    return (kernel * gain[:, None, None, None]).astype(np.float32), (shift - mean * gain).astype(np.float32)
