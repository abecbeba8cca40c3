"""Builds a text classifier in half precision, for GPUs.

The float32 graph of `forge.encoder` with its weights and everything between
them in float16: the 8-bit product of the CPU's graph has no CUDA kernel. Inputs,
outputs and the recipe are the same. Words that the base has in 4 bits are
unpacked: a GPU has the room.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import load_file

from . import encoder, graph_file


def halved(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model, computing in half precision; what it gives stays float32."""
    graph = model.graph
    for number, tensor in enumerate(graph.initializer):
        if tensor.data_type == TensorProto.FLOAT:
            values = numpy_helper.to_array(tensor)
            if np.abs(values).max(initial=0.0) > np.finfo(np.float16).max:
                raise ValueError(f"{tensor.name} has a value that half precision cannot hold")
            graph.initializer[number].CopyFrom(numpy_helper.from_array(values.astype(np.float16), tensor.name))
    given = {output.name for output in graph.output}
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.FLOAT16
        node.output[:] = [f"{name}.half" if name in given else name for name in node.output]
    for name in sorted(given):
        graph.node.append(helper.make_node("Cast", [f"{name}.half"], [name], name=f"{name}.full", to=TensorProto.FLOAT))
    return model


company = encoder.company


def build(source: dict[str, Path], recipe: dict, model_dir: Path, out: Path) -> dict:
    """As `encoder.build`, of the same recipe, whatever its precision."""
    kind = encoder.backbone(recipe)
    base = encoder.load_base(source[kind.weights], recipe.get("layers"))
    packed = ("embeddings.word_embeddings.codes", "embeddings.word_embeddings.steps")
    plain = {name: value for name, value in base.items() if name not in packed}
    tensors = encoder.merge(plain, load_file(model_dir / recipe["delta"]))
    model = halved(encoder.graph(tensors, kind, "float32"))
    onnx.checker.check_model(model)
    graph_file.write(model, out / "model.onnx")
    encoder.write(out / "tokenizer.json", encoder.tokenizer(kind, source))
    return {"text_classifier": encoder.part(recipe, model_dir)}
