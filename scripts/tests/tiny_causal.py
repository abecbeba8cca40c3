"""Writes tiny causal language models in the layout of Hugging Face's Optimum, for tests and fixtures.

Owns: the graph of a Llama as their exporter lays it, from the seeded weights of a
GGUF checkpoint of `tiny_checkpoint`, and the files that lie beside it. Plain
operators only, and nothing of the project's own graph builder.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Sequence

import gguf
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from forge import gguf_tokenizer

# In the manner of ChatML.
TEMPLATE = (
    "{% for message in messages %}\n"
    "    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] | trim + '<|im_end|>' + '\\n' }}\n"
    "{% endfor %}\n"
    "{% if add_generation_prompt %}\n"
    "    {{- '<|im_start|>assistant\\n' }}\n"
    "{% endif %}\n"
)
WINDOW = 4096


class Graph:
    """Lays a graph, node by node."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}

    def node(self, kind: str, inputs: Sequence[str], output: str = "", **attributes: Any) -> str:
        output = output or f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [output], **attributes))
        return output

    def constant(self, value: Any, kind: Any = np.int64) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants[name] = np.array(value, dtype=kind)
        return name

    def number(self, value: float) -> str:
        return self.constant(value, np.float32)

    def finished(
        self, inputs: list[onnx.ValueInfoProto], outputs: list[onnx.ValueInfoProto], opset: int = 18
    ) -> onnx.ModelProto:
        constants = [numpy_helper.from_array(value, name) for name, value in self.constants.items()]
        model = helper.make_model(
            helper.make_graph(self.nodes, "main_graph", inputs, outputs, constants),
            opset_imports=[helper.make_opsetid("", opset)],
            ir_version=9,
            producer_name="dichroic",
        )
        onnx.checker.check_model(model)
        return model


class _Llama(Graph):
    def __init__(self, path: Path, past: bool, positions: bool, miscounts: bool) -> None:
        super().__init__()
        reader = gguf.GGUFReader(str(path))
        self.weights = {
            tensor.name: np.array(gguf.quants.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
            for tensor in reader.tensors
        }

        def field(name: str) -> Any:
            return reader.fields[f"llama.{name}"].contents()

        self.layers, self.heads, self.kv_heads = (
            field(name) for name in ("block_count", "attention.head_count", "attention.head_count_kv")
        )
        self.head_dim = field("embedding_length") // self.heads
        self.epsilon, self.base = field("attention.layer_norm_rms_epsilon"), field("rope.freq_base")
        self.past, self.positions, self.miscounts = past, positions, miscounts

    def linear(self, x: str, name: str) -> str:
        return self.node("MatMul", [x, self.constant(self.weights[f"{name}.weight"].T, np.float32)])

    def halves(self, name: str, heads: int) -> None:
        """GGUF files of a llama rotate neighbours; the libraries rotate the halves of a head."""
        rows = self.weights[f"{name}.weight"]
        apart = rows.reshape(heads, self.head_dim // 2, 2, -1).swapaxes(1, 2)
        self.weights[f"{name}.weight"] = apart.reshape(rows.shape)

    def norm(self, x: str, name: str) -> str:
        square = self.node("Mul", [x, x])
        mean = self.node("ReduceMean", [square, self.constant([-1])], keepdims=1)
        root = self.node("Sqrt", [self.node("Add", [mean, self.number(self.epsilon)])])
        gain = self.constant(self.weights[f"{name}.weight"], np.float32)
        return self.node("Mul", [self.node("Div", [x, root]), gain])

    def split_heads(self, x: str, heads: int) -> str:
        apart = self.node("Reshape", [x, self.constant([0, 0, heads, self.head_dim])])
        return self.node("Transpose", [apart], perm=[0, 2, 1, 3])

    def rotated(self, x: str, cos: str, sin: str) -> str:
        half = self.head_dim // 2
        ends = [self.constant([value]) for value in (0, half, self.head_dim)]
        axis = self.constant([3])
        first, second = (self.node("Slice", [x, ends[i], ends[i + 1], axis]) for i in (0, 1))
        turned = self.node("Concat", [self.node("Neg", [second]), first], axis=3)
        return self.node("Add", [self.node("Mul", [x, cos]), self.node("Mul", [turned, sin])])

    def repeated(self, x: str) -> str:
        group = self.heads // self.kv_heads
        wide = self.node("Unsqueeze", [x, self.constant([2])])
        many = self.node("Concat", [wide] * group, axis=2)
        return self.node("Reshape", [many, self.constant([0, self.heads, -1, self.head_dim])])

    def lay(self) -> None:
        zero, one = self.constant(0), self.constant(1)
        total = self.node("Gather", [self.node("Shape", ["attention_mask"]), one])
        new = self.node("Gather", [self.node("Shape", ["input_ids"]), one])
        keys = self.node("Range", [zero, total, one])
        asking = self.node("Range", [self.node("Sub", [total, new]), total, one])
        causal = self.node("LessOrEqual", [keys, self.node("Unsqueeze", [asking, self.constant([1])])])
        there = self.node("Cast", ["attention_mask"], to=TensorProto.BOOL)
        allowed = self.node("And", [causal, self.node("Unsqueeze", [there, self.constant([1, 2])])])
        bias = self.node("Where", [allowed, self.number(0.0), self.number(-1e9)])

        own = self.node("Range", [zero, new, one]) if self.miscounts else asking
        places = "position_ids" if self.positions else self.node("Unsqueeze", [own, self.constant([0])])
        places = self.node("Cast", [self.node("Unsqueeze", [places, self.constant([2])])], to=TensorProto.FLOAT)
        rates = self.base ** (-np.arange(0, self.head_dim, 2) / self.head_dim)
        angles = self.node("Mul", [places, self.constant(np.concatenate([rates, rates]), np.float32)])
        angles = self.node("Unsqueeze", [angles, self.constant([1])])
        cos, sin = self.node("Cos", [angles]), self.node("Sin", [angles])

        x = self.node("Gather", [self.constant(self.weights["token_embd.weight"], np.float32), "input_ids"])
        for layer in range(self.layers):
            name = f"blk.{layer}."
            self.halves(f"{name}attn_q", self.heads)
            self.halves(f"{name}attn_k", self.kv_heads)
            h = self.norm(x, f"{name}attn_norm")
            query = self.rotated(self.split_heads(self.linear(h, f"{name}attn_q"), self.heads), cos, sin)
            key = self.rotated(self.split_heads(self.linear(h, f"{name}attn_k"), self.kv_heads), cos, sin)
            value = self.split_heads(self.linear(h, f"{name}attn_v"), self.kv_heads)
            if self.past:
                key = self.node("Concat", [f"past_key_values.{layer}.key", key], f"present.{layer}.key", axis=2)
                value = self.node("Concat", [f"past_key_values.{layer}.value", value], f"present.{layer}.value", axis=2)
            across = self.node("Transpose", [self.repeated(key)], perm=[0, 1, 3, 2])
            scores = self.node("Mul", [self.node("MatMul", [query, across]), self.number(self.head_dim**-0.5)])
            shares = self.node("Softmax", [self.node("Add", [scores, bias])], axis=-1)
            mixed = self.node("MatMul", [shares, self.repeated(value)])
            mixed = self.node("Transpose", [mixed], perm=[0, 2, 1, 3])
            mixed = self.node("Reshape", [mixed, self.constant([0, 0, self.heads * self.head_dim])])
            x = self.node("Add", [x, self.linear(mixed, f"{name}attn_output")])
            h = self.norm(x, f"{name}ffn_norm")
            gate = self.linear(h, f"{name}ffn_gate")
            gate = self.node("Mul", [gate, self.node("Sigmoid", [gate])])
            product = self.node("Mul", [gate, self.linear(h, f"{name}ffn_up")])
            x = self.node("Add", [x, self.linear(product, f"{name}ffn_down")])
        table = self.constant(self.weights["token_embd.weight"].T, np.float32)
        self.node("MatMul", [self.norm(x, "output_norm"), table], "logits")

    def model(self) -> onnx.ModelProto:
        self.lay()
        whole = "past_sequence_length + sequence_length"
        cache = ["batch_size", self.kv_heads, "past_sequence_length", self.head_dim]
        vocab = self.weights["token_embd.weight"].shape[0]
        integers = [("input_ids", "sequence_length"), ("attention_mask", whole if self.past else "sequence_length")]
        integers += [("position_ids", "sequence_length")] * self.positions
        inputs = [
            helper.make_tensor_value_info(name, TensorProto.INT64, ["batch_size", length]) for name, length in integers
        ]
        outputs = [
            helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch_size", "sequence_length", vocab])
        ]
        for layer in range(self.layers if self.past else 0):
            for half in ("key", "value"):
                grown = [*cache[:2], whole, cache[3]]
                inputs.append(
                    helper.make_tensor_value_info(f"past_key_values.{layer}.{half}", TensorProto.FLOAT, cache)
                )
                outputs.append(helper.make_tensor_value_info(f"present.{layer}.{half}", TensorProto.FLOAT, grown))
        return self.finished(inputs, outputs)


def write(
    folder: Path, checkpoint: Path, *, past: bool = True, positions: bool = True, miscounts: bool = False
) -> Path:
    """Writes the checkpoint, a llama, into `folder`; returns it.

    Without `positions` the graph counts them itself, and wrongly after a past if it `miscounts`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    model = _Llama(checkpoint, past, positions, miscounts).model()
    (folder / "model.onnx").write_bytes(model.SerializeToString(deterministic=True))
    metadata = {key: field.contents() for key, field in gguf.GGUFReader(str(checkpoint)).fields.items()}
    gguf_tokenizer.write(metadata, folder / "tokenizer.json")
    files = {
        "config.json": {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "max_position_embeddings": WINDOW,
            "eos_token_id": 0,
        },
        "generation_config.json": {"eos_token_id": [0, 2]},
        "tokenizer_config.json": {"eos_token": "<|im_end|>", "chat_template": TEMPLATE},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return folder
