"""Reads the ONNX graphs that graph_file.py writes.

Apart from the writing, because every module that a recipe imports decides a
build's fingerprint.
"""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import TensorProto

from .graph_file import data_path


def load(path: Path) -> onnx.ModelProto:
    """The model in `path` with its weights.

    `onnx.load` reads no weights from a file with several hard links, by which
    the cache and its checkouts share a build.
    """
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        place = {entry.key: entry.value for entry in tensor.external_data}
        if place:
            if place["location"] != data_path(path).name:
                raise ValueError(f"{path} has weights in {place['location']}: only {data_path(path).name} is read")
            with data_path(path).open("rb") as data:
                data.seek(int(place["offset"]))
                tensor.raw_data = data.read(int(place["length"]))
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
    return model
