"""PP-OCR → the three graphs of a text reader.

Owns what the networks want beside pictures, and moves it into the graphs, so
that the server feeds all three the same way: `pixels` uint8 [batch, height,
width, 3], RGB. Each turns them into the BGR planes in -1..1 that PaddleOCR
trains with. What comes out:

- `detector.onnx`: `probabilities` [batch, 1, height, width], where text is.
- `orientation.onnx`: `probabilities` [batch, 2], upright and upside down.
- `recogniser.onnx`: `classes` int64 and `confidences`, both [batch, steps]:
  the likeliest class of each step and its probability. The whole softmax,
  18,710 numbers a step, stays inside.
- `characters.json`: what the classes from 1 on stand for; class 0 is the blank
  of CTC.

The weights are not touched.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from . import graph_file

# How the networks are driven; what each number is, `registry/manifest.rs` says.
# Thresholds, ratio and sizes of lines are those that PaddleOCR and RapidOCR use
# with these weights, except where noted.
SETTINGS: dict[str, dict[str, Any]] = {
    "detector": {
        "multiple": 32,
        # Ours: by area, because that is what a pass costs. Below the first, a
        # picture is enlarged, at most twice over: 12-pixel letters are then
        # found, and an icon stays cheap.
        "least_pixels": 800_000,
        "most_pixels": 1_600_000,
        "most_side": 4096,
        "threshold": 0.3,
        "box_threshold": 0.5,
        "unclip": 1.6,
    },
    "orientation": {"height": 48, "width": 192},
    "recogniser": {
        "height": 48,
        # Ours: widths go in steps, so that a line is read alike in any company.
        "least_width": 320,
        "width_step": 160,
        "most_width": 4000,
        "threshold": 0.5,
    },
}


def build(source: dict[str, Path], recipe: dict[str, Any], model_dir: Path, out: Path) -> dict[str, Any]:
    """Writes the three graphs and `characters.json` into `out`; returns the manifest's kind and its part."""
    detector, probabilities = adapted(source["detector"])
    rename(detector, probabilities, "probabilities")
    save(detector, [("probabilities", TensorProto.FLOAT, ["batch", 1, "height", "width"])], out / "detector.onnx")

    orientation, probabilities = adapted(source["orientation"])
    rename(orientation, probabilities, "probabilities")
    save(orientation, [("probabilities", TensorProto.FLOAT, ["batch", 2])], out / "orientation.onnx")

    recogniser, probabilities = adapted(source["recogniser"])
    text = json.dumps(characters(recogniser), ensure_ascii=False)
    (out / "characters.json").write_text(text, encoding="utf-8")
    # Carried beside the graph now.
    del recogniser.metadata_props[:]
    recogniser.graph.node.extend(
        [
            helper.make_node("ArgMax", [probabilities], ["classes"], axis=2, keepdims=0),
            helper.make_node("ReduceMax", [probabilities], ["confidences"], axes=[2], keepdims=0),
        ]
    )
    outputs = [
        ("classes", TensorProto.INT64, ["batch", "steps"]),
        ("confidences", TensorProto.FLOAT, ["batch", "steps"]),
    ]
    save(recogniser, outputs, out / "recogniser.onnx")
    return {"kind": "text_reader", "text_reader": SETTINGS}


def characters(recogniser: onnx.ModelProto) -> list[str]:
    """What the classes from 1 on stand for: the list in the model's metadata, and the space that PaddleOCR appends."""
    told = {entry.key: entry.value for entry in recogniser.metadata_props}
    if "character" not in told:
        raise ValueError("the recogniser names no characters; fetch it again")
    # Not splitlines: a character may be a line end of Unicode.
    found = [*told["character"].split("\n"), " "]
    classes = recogniser.graph.output[0].type.tensor_type.shape.dim[-1].dim_value
    if classes != len(found) + 1 or not all(found):
        raise ValueError(f"the recogniser names {len(found)} characters for {classes} classes; fetch it again")
    return found


def adapted(path: Path) -> tuple[onnx.ModelProto, str]:
    """The model with `pixels` for its input, and the name of its one output."""
    model = onnx.load(path)
    graph = model.graph
    constants = {constant.name for constant in graph.initializer}
    inputs = [value.name for value in graph.input if value.name not in constants]
    if len(inputs) != 1 or len(graph.output) != 1:
        raise ValueError(f"{path.name} has {len(inputs)} inputs and {len(graph.output)} outputs, not one of each")
    planes = [
        # While the values are bytes, moving them is cheap.
        helper.make_node("Transpose", ["pixels"], ["pixels.planes"], perm=[0, 3, 1, 2]),
        helper.make_node("Gather", ["pixels.planes", "pixels.order"], ["pixels.bgr"], axis=1),
        helper.make_node("Cast", ["pixels.bgr"], ["pixels.float"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["pixels.float", "pixels.scale"], ["pixels.scaled"]),
        helper.make_node("Sub", ["pixels.scaled", "pixels.shift"], [inputs[0]]),
    ]
    nodes = [*planes, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    graph.initializer.extend(
        [
            numpy_helper.from_array(np.array([2, 1, 0], np.int64), "pixels.order"),
            numpy_helper.from_array(np.array(1 / 127.5, np.float32), "pixels.scale"),
            numpy_helper.from_array(np.array(1, np.float32), "pixels.shift"),
        ]
    )
    del graph.input[:]
    shape = ["batch", "height", "width", 3]
    graph.input.append(helper.make_tensor_value_info("pixels", TensorProto.UINT8, shape))
    return model, graph.output[0].name


def rename(model: onnx.ModelProto, old: str, new: str) -> None:
    """Gives a value another name wherever it is made or used."""
    for node in model.graph.node:
        for names in (node.input, node.output):
            for place, name in enumerate(names):
                if name == old:
                    names[place] = new


def save(model: onnx.ModelProto, outputs: list[tuple[str, int, list[int | str]]], path: Path) -> None:
    """Writes the model with these outputs; shapes noted for values inside are dropped, as they name dimensions anew."""
    del model.graph.output[:]
    model.graph.output.extend(helper.make_tensor_value_info(*output) for output in outputs)
    del model.graph.value_info[:]
    model.producer_name = "dichroic"
    onnx.checker.check_model(model)
    graph_file.write(model, path)
