"""EfficientNet-Lite: the checkpoint read as data, and the graph compared with plain arithmetic."""

import io
import math
import pickle
import struct
import sys
from collections import OrderedDict
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

SCRIPTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(SCRIPTS))

from forge import efficientnet, tfjs  # noqa: E402


# --- a checkpoint as PyTorch wrote it before version 1.6 ----------------------


class Named:
    """Pickled as a global of another module, without that module."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name


class Storage:
    def __init__(self, key: str, values: np.ndarray) -> None:
        self.key, self.values = key, values


class Writer(pickle._Pickler):
    dispatch = dict(pickle._Pickler.dispatch)

    def persistent_id(self, value: object) -> object:
        if isinstance(value, Storage):
            return ("storage", Named("torch", "FloatStorage"), value.key, "cpu", value.values.size, None)
        return None

    def save_named(self, value: Named) -> None:
        self.write(pickle.GLOBAL + f"{value.module}\n{value.name}\n".encode())

    dispatch[Named] = save_named


class Tensor:
    """Rebuilt by a call of `torch._utils._rebuild_tensor_v2`."""

    def __init__(self, storage: Storage, offset: int, shape: tuple[int, ...]) -> None:
        strides = tuple(math.prod(shape[n + 1 :]) for n in range(len(shape)))
        self.arguments = (storage, offset, shape, strides, False, OrderedDict())


def save_tensor(writer: Writer, value: Tensor) -> None:
    writer.save(Named("torch._utils", "_rebuild_tensor_v2"))
    writer.save(value.arguments)
    writer.write(pickle.REDUCE)


Writer.dispatch[Tensor] = save_tensor


def checkpoint(tensors: dict[str, np.ndarray], shared: Storage | None = None, body: object = None) -> bytes:
    out = io.BytesIO()
    for head in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}):
        Writer(out, 2).dump(head)
    storages = {name: Storage(str(n), value.astype(np.float32).ravel()) for n, (name, value) in enumerate(tensors.items())}
    found = OrderedDict((name, Tensor(storages[name], 0, value.shape)) for name, value in tensors.items())
    if shared is not None:
        storages["shared"] = shared
        found["part"] = Tensor(shared, 2, (2, 3))
    Writer(out, 2).dump(found if body is None else body)
    Writer(out, 2).dump([storage.key for storage in storages.values()])
    for storage in storages.values():
        out.write(struct.pack("<q", storage.values.size) + storage.values.astype("<f4").tobytes())
    return out.getvalue()


def test_a_checkpoint_is_read_with_parts_of_storages(tmp_path: Path) -> None:
    values = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    path = tmp_path / "c.pth"
    path.write_bytes(checkpoint({"a": values, "b": values[0] - 7}, Storage("9", np.arange(10, dtype=np.float32))))
    found = efficientnet.read(path)
    assert np.array_equal(found["a"], values) and np.array_equal(found["b"], values[0] - 7)
    assert np.array_equal(found["part"], [[2, 3, 4], [5, 6, 7]])


def test_a_checkpoint_that_would_run_something_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.pth"
    path.write_bytes(checkpoint({}, body=Named("os", "system")))
    with pytest.raises(ValueError, match="os.system"):
        efficientnet.read(path)


def test_a_checkpoint_that_ends_early_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.pth"
    path.write_bytes(checkpoint({"a": np.zeros((3, 3))})[:-4])
    with pytest.raises(ValueError, match="ends within"):
        efficientnet.read(path)


# --- the graph -----------------------------------------------------------------


def lite0() -> dict[str, np.ndarray]:
    """Weights of Lite0's shapes, by chance."""
    rng = np.random.default_rng(5)
    tensors: dict[str, np.ndarray] = {}

    def convolution(name: str, norm: str, outer: int, inner: int, reach: int) -> None:
        tensors[f"{name}.weight"] = rng.normal(0, 1 / math.sqrt(inner * reach**2), (outer, inner, reach, reach))
        for part, low, high in (("weight", 0.5, 1.5), ("bias", -0.5, 1), ("running_mean", -0.2, 0.2), ("running_var", 0.5, 2)):
            tensors[f"{norm}.{part}"] = rng.uniform(low, high, outer)

    convolution("_conv_stem", "_bn0", 32, 3, 3)
    width, number = 32, 0
    for stage in efficientnet.STAGES:
        for _ in range(stage.blocks):
            at, inner = f"_blocks.{number}", width * stage.expansion
            if stage.expansion != 1:
                convolution(f"{at}._expand_conv", f"{at}._bn0", inner, width, 1)
            convolution(f"{at}._depthwise_conv", f"{at}._bn1", inner, 1, stage.kernel)
            convolution(f"{at}._project_conv", f"{at}._bn2", stage.channels, inner, 1)
            width, number = stage.channels, number + 1
    convolution("_conv_head", "_bn1", efficientnet.WIDTH, width, 1)
    return {name: value.astype(np.float32) for name, value in tensors.items()}


def plainly(tensors: dict[str, np.ndarray], pixels: np.ndarray) -> np.ndarray:
    """The pooled features of one picture [size, size, 3] in 0..1, in double precision and without any folding."""
    t = {name: value.astype(np.float64) for name, value in tensors.items()}

    def convolution(x: np.ndarray, name: str, norm: str, stride: int = 1, clipped: bool = False) -> np.ndarray:
        kernel = t[f"{name}.weight"]
        outer, inner, reach, _ = kernel.shape
        side = math.ceil(x.shape[1] / stride)
        total = max((side - 1) * stride + reach - x.shape[1], 0)
        x = np.pad(x, ((0, 0), (total // 2, total - total // 2), (total // 2, total - total // 2)))
        patches = np.lib.stride_tricks.sliding_window_view(x, (reach, reach), axis=(1, 2))[:, ::stride, ::stride]
        y = np.einsum("chwij,cij->chw" if inner == 1 and outer == len(x) else "chwij,ocij->ohw", patches,
                      kernel[:, 0] if inner == 1 and outer == len(x) else kernel)
        scale, shift, mean, variance = (t[f"{norm}.{part}"][:, None, None] for part in
                                        ("weight", "bias", "running_mean", "running_var"))
        y = (y - mean) / np.sqrt(variance + 1e-3) * scale + shift
        return np.clip(y, 0, 6) if clipped else y

    x = (255 * pixels.transpose(2, 0, 1).astype(np.float64) - 127) / 128
    x = convolution(x, "_conv_stem", "_bn0", 2, True)
    number = 0
    for stage in efficientnet.STAGES:
        for n in range(stage.blocks):
            at, y = f"_blocks.{number}", x
            if stage.expansion != 1:
                y = convolution(y, f"{at}._expand_conv", f"{at}._bn0", clipped=True)
            y = convolution(y, f"{at}._depthwise_conv", f"{at}._bn1", stage.stride if n == 0 else 1, True)
            y = convolution(y, f"{at}._project_conv", f"{at}._bn2")
            x = x + y if x.shape == y.shape else y
            number += 1
    return convolution(x, "_conv_head", "_bn1", clipped=True).mean(axis=(1, 2))


def test_the_graph_is_the_network(tmp_path: Path) -> None:
    # An odd side, so that padding is uneven.
    size, tensors = 37, lite0()
    branch = efficientnet.Branch(tensors)
    branch.nodes.append(helper.make_node("Identity", [branch.features("pixels", size)], ["features"]))
    graph = helper.make_graph(
        branch.nodes, "test",
        [helper.make_tensor_value_info("pixels", TensorProto.FLOAT, ["batch", size, size, 3])],
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["batch", efficientnet.WIDTH])],
        branch.constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    pixels = np.random.default_rng(1).random((2, size, size, 3)).astype(np.float32)
    seen = session.run(["features"], {"pixels": pixels})[0]
    for row, picture in zip(seen, pixels):
        expected = plainly(tensors, picture)
        assert expected.std() > 0.01
        assert np.abs(row - expected).max() < 1e-4


def test_a_classifier_takes_its_features_from_it_and_keeps_its_answers(tmp_path: Path) -> None:
    size, tensors = 33, lite0()
    (tmp_path / "c.pth").write_bytes(checkpoint(tensors))
    graph = helper.make_graph(
        [helper.make_node("ReduceMean", ["pixels"], ["mean"], axes=[1, 2], keepdims=0),
         helper.make_node("Softmax", ["mean"], ["probabilities"]), helper.make_node("Identity", ["mean"], ["features"])],
        "test",
        [helper.make_tensor_value_info("pixels", TensorProto.FLOAT, ["batch", size, size, 3])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 3]) for name in ("probabilities", "features")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    pixels = np.random.default_rng(3).random((1, size, size, 3)).astype(np.float32)

    def answers(model: onnx.ModelProto) -> list[np.ndarray]:
        session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        return session.run(["probabilities", "features"], {"pixels": pixels})

    before, (probabilities, features) = answers(model), answers(tfjs.see_more(model, size, tmp_path / "c.pth"))
    assert np.array_equal(probabilities, before[0])
    assert features.shape == (1, efficientnet.WIDTH)
    assert np.abs(features[0] - plainly(tensors, pixels[0])).max() < 1e-4


def test_a_checkpoint_of_another_network_is_refused() -> None:
    tensors = lite0()
    del tensors["_blocks.3._bn1.bias"]
    with pytest.raises(ValueError, match="_blocks.3._bn1.bias"):
        efficientnet.Branch(tensors).features("pixels", 32)
    deeper = {**lite0(), "_blocks.40._project_conv.weight": np.zeros(1)}
    with pytest.raises(ValueError, match="41 blocks"):
        efficientnet.Branch(deeper).features("pixels", 32)
