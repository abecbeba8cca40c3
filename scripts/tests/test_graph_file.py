"""Large weights lie beside their graph, where the runtime maps them; small graphs stay one file."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from forge import built_graph, graph_file  # noqa: E402


def model(width: int) -> onnx.ModelProto:
    """x @ large + small, with `width` × `width` weights and a vector."""
    random = np.random.default_rng(3)
    constants = {
        "large": random.standard_normal((width, width)).astype(np.float32),
        "small": random.standard_normal(width).astype(np.float32),
    }
    nodes = [helper.make_node("MatMul", ["x", "large"], ["product"]), helper.make_node("Add", ["product", "small"], ["y"])]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", width]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [numpy_helper.from_array(v, k) for k, v in constants.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.mark.parametrize(("width", "aside"), [(256, False), (1024, True)])
def test_weights_lie_aside_where_they_are_large_and_count_the_same(tmp_path: Path, width: int, aside: bool) -> None:
    x = np.random.default_rng(4).standard_normal((3, width)).astype(np.float32)
    inline = ort.InferenceSession(model(width).SerializeToString(), providers=["CPUExecutionProvider"])
    path = tmp_path / "model.onnx"
    graph_file.write(model(width), path)
    data = graph_file.data_path(path)
    assert data.is_file() == aside
    if aside:
        assert path.stat().st_size < 16_000 and data.stat().st_size == 4 * width * width
        (moved,) = [t for t in onnx.load(path, load_external_data=False).graph.initializer if t.external_data]
        assert moved.name == "large"
    # A cache and its checkouts share a build by hard links.
    data.is_file() and (tmp_path / "link").hardlink_to(data)
    assert built_graph.load(path) == model(width)
    found = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    assert np.array_equal(found.run(None, {"x": x})[0], inline.run(None, {"x": x})[0])


def test_each_weight_begins_with_a_page(tmp_path: Path) -> None:
    with (tmp_path / "w").open("wb") as data:
        tensors = [TensorProto(name="one"), TensorProto(name="two")]
        for tensor in tensors:
            graph_file.set_aside(tensor, b"x" * 5000, data)
    places = [{entry.key: entry.value for entry in tensor.external_data} for tensor in tensors]
    assert [place["offset"] for place in places] == ["0", "8192"]
    assert {place["length"] for place in places} == {"5000"} and {place["location"] for place in places} == {"w"}
    assert (tmp_path / "w").read_bytes()[8192:] == b"x" * 5000
