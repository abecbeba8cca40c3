"""Builds the graph of a decoder in half precision, for GPUs.

The graph of `forge.decoder`, called in the same way, with these differences:

- Weights, activations and the cache (`past`, `present`) are float16; `logits`
  stay float32. The attention node has a CUDA kernel for half precision only, and
  the other nodes here have one for it.
- Linear layers are plain products. The 4- and 8-bit products would read fewer
  bytes in a step of one row, and unpack all weights anew in a step of many.
- Gemma's embeddings keep their own scale, and what each layer adds to them is
  divided by the factor that is left out: its sums would pass the largest half,
  65,504. Every norm undoes a common factor, so that the answers are the same.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Mapping, Sequence

import numpy as np
from onnx import TensorProto, helper

from . import decoder, graph_file


def half(name: str, values: np.ndarray) -> np.ndarray:
    """The values in half precision; refuses those that it cannot hold."""
    if np.abs(values).max(initial=0.0) > np.finfo(np.float16).max:
        raise ValueError(f"{name} has a value that half precision cannot hold: build this model for the CPU only")
    return values.astype(np.float16)


class _Graph(decoder._Graph):
    """Keeps every number that is no integer in half precision."""

    def constant(self, name: str, value: np.ndarray) -> str:
        return super().constant(name, half(name, value) if value.dtype == np.float32 else value)


class _Builder(decoder._Builder):
    """Lays the same graph with plain products; `tied` takes the head's table as embedding, `kept` are the head's rows."""

    def __init__(
        self, checkpoint: decoder.Checkpoint, window: int, tied: bool, graph: _Graph, kept: np.ndarray | None
    ) -> None:
        self.checkpoint, self.window, self.tied, self.graph, self.kept = checkpoint, window, tied, graph, kept
        self.told = checkpoint.shape.vocab if kept is None else len(kept)
        # By how much the sums of the layers are smaller here, and with them what their norms add before the root.
        self.factor = math.sqrt(checkpoint.shape.width) if checkpoint.shape.gemma else 1.0
        self.shape = replace(checkpoint.shape, epsilon=checkpoint.shape.epsilon / self.factor**2)

    def product(self, x: str, table: str) -> str:
        """x times a table [out, in], as GGUF has it."""
        return self.graph.node("FusedMatMul", [x, table], domain=decoder.MICROSOFT, transB=1)

    def matmul(
        self, x: str, label: str, kind: str, names: Sequence[str], shape: tuple[int, int], bias: str = ""
    ) -> str:
        rows = np.concatenate([self.checkpoint.tensor(name) for name in names])
        out = self.product(x, self.graph.constant(f"{label}.weight", rows))
        return self.graph.node("Add", [out, bias]) if bias else out

    def norm(self, x: str, name: str) -> str:
        if name == "blk.0.attn_norm.weight":
            return super().norm(x, name)
        # Of a head, or of what a layer adds: neither is of the sums.
        gain = self.checkpoint.tensor(name)
        if ".post_" in name:
            gain = gain / np.float32(self.factor)
        inputs = [x, self.graph.constant(name, gain)]
        epsilon = self.checkpoint.shape.epsilon
        return self.graph.node("SimplifiedLayerNormalization", inputs, axis=-1, epsilon=epsilon, stash_type=1)

    def scaled(self, x: str) -> str:
        return x

    def embed(self) -> tuple[str, Callable[[str], str]]:
        untied = self.checkpoint.has("output.weight")
        head_name = "output.weight" if untied else "token_embd.weight"
        rows = self.checkpoint.tensor(head_name)
        head = self.graph.constant("head", rows if self.kept is None else rows[self.kept])
        table = head
        if untied and not self.tied:
            table = self.graph.constant("embedding", self.checkpoint.tensor("token_embd.weight"))
        elif self.kept is not None:
            table = self.graph.constant("embedding", rows)

        def lay_head(x: str) -> str:
            return self.graph.node("Cast", [self.product(x, head)], to=TensorProto.FLOAT)

        return self.graph.node("Gather", [table, "input_ids"], axis=0), lay_head


def write_graph(
    checkpoint: decoder.Checkpoint, window: int, tied: bool, path: Path, kept: np.ndarray | None = None
) -> None:
    """Writes `path`, and `path` + `.data` with its large weights; logits are told of the tokens `kept`, None for all."""
    shape = checkpoint.shape
    aside = graph_file.data_path(path)
    graph = _Graph(aside)
    try:
        builder = _Builder(checkpoint, window, tied, graph, kept)
        builder.lay()
    finally:
        graph.close()
    if aside.stat().st_size == 0:
        aside.unlink()
    inputs = [
        helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "sequence"]),
        helper.make_tensor_value_info("seqlens_k", TensorProto.INT32, ["batch"]),
        helper.make_tensor_value_info("total_sequence_length", TensorProto.INT32, []),
    ]
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", builder.told])]
    cache = ["batch", shape.kv_heads, "window", shape.head_dim]
    for name in decoder._cache_names(shape.layers):
        inputs.append(helper.make_tensor_value_info(f"past.{name}", TensorProto.FLOAT16, cache))
        outputs.append(helper.make_tensor_value_info(f"present.{name}", TensorProto.FLOAT16, cache))
    model = helper.make_model(
        helper.make_graph(graph.nodes, "decoder", inputs, outputs, graph.initializers),
        opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid(decoder.MICROSOFT, 1)],
        ir_version=9,
        producer_name="dichroic",
    )
    path.write_bytes(model.SerializeToString(deterministic=True))


def build(source: Mapping[str, Path], recipe: Mapping[str, Any], model_dir: Path, out: Path) -> dict[str, Any]:
    """As `decoder.build`, of the same recipe: of its precision counts only whether the embedding is the head's.

    The head has the rows of the answers' tokens alone here too: a GPU multiplies the others for nothing much, but all
    logits of a step go to the host, which chooses among them.
    """
    checkpoint, part = decoder.opened(source, recipe, model_dir, out)
    kept = None
    if "vocabulary" in recipe:
        kept = decoder._kept(Path(model_dir) / recipe["vocabulary"], checkpoint.shape, part["stop_ids"])
        (Path(out) / decoder.ANSWER_TOKENS).write_bytes(kept.astype("<u4").tobytes())
        part["answer_tokens"] = decoder.ANSWER_TOKENS
    write_graph(checkpoint, part["window"], recipe["precision"]["embedding"] == "head", Path(out) / "model.onnx", kept)
    return part
