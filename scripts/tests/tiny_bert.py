"""Writes tiny BERT classifiers in the layout of Hugging Face's Optimum, for tests.

Owns: the architecture with seeded random weights under the names of their
libraries, as the graph that their exporter lays and once more in numpy, and the
files that lie beside the graph. Nothing of the project's own graph builder.
"""

from __future__ import annotations

import json
import math
import string
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper
from tiny_causal import Graph
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

LAYERS, WIDTH, HEADS, HIDDEN, POSITIONS = 2, 32, 4, 64, 64
EPSILON = 1e-12
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["the", "a", "you", "are", "nice", "day", "hate", "rain", "sister", "won", "i"]
LETTERS = list(string.ascii_lowercase + string.digits)
VOCABULARY = list(dict.fromkeys([*SPECIAL, *WORDS, *LETTERS, *(f"##{letter}" for letter in LETTERS), *".,!?'"]))


class Bert:
    """The weights, and what they say."""

    def __init__(self, seed: int, labels: list[str]) -> None:
        self.labels = labels
        self.weights: dict[str, np.ndarray] = {}
        self._random = np.random.default_rng(seed)
        for name, rows in (("word", len(VOCABULARY)), ("position", POSITIONS), ("token_type", 2)):
            self._table(f"bert.embeddings.{name}_embeddings.weight", rows, WIDTH)
        self._norm("bert.embeddings.LayerNorm")
        for layer in range(LAYERS):
            name = f"bert.encoder.layer.{layer}"
            for part in ("query", "key", "value"):
                # Strong queries and keys make attention care where it looks.
                self._linear(f"{name}.attention.self.{part}", WIDTH, WIDTH, spread=2.0)
            self._linear(f"{name}.attention.output.dense", WIDTH, WIDTH)
            self._norm(f"{name}.attention.output.LayerNorm")
            self._linear(f"{name}.intermediate.dense", HIDDEN, WIDTH)
            self._linear(f"{name}.output.dense", WIDTH, HIDDEN)
            self._norm(f"{name}.output.LayerNorm")
        self._linear("bert.pooler.dense", WIDTH, WIDTH)
        self._linear("classifier", len(labels), WIDTH, spread=3.0)

    def _table(self, name: str, rows: int, columns: int, spread: float = 1.0) -> None:
        self.weights[name] = (spread * self._random.standard_normal((rows, columns))).astype(np.float32)

    def _linear(self, name: str, rows: int, columns: int, spread: float = 1.0) -> None:
        self._table(f"{name}.weight", rows, columns, spread / math.sqrt(columns))
        self.weights[f"{name}.bias"] = (0.2 * self._random.standard_normal(rows)).astype(np.float32)

    def _norm(self, name: str) -> None:
        self.weights[f"{name}.weight"] = (1 + 0.2 * self._random.standard_normal(WIDTH)).astype(np.float32)
        self.weights[f"{name}.bias"] = (0.2 * self._random.standard_normal(WIDTH)).astype(np.float32)

    def logits(self, ids: np.ndarray, mask: np.ndarray, types: np.ndarray) -> np.ndarray:
        """`[batch, labels]`, in double precision."""
        weights = {name: value.astype(np.float64) for name, value in self.weights.items()}

        def linear(x: np.ndarray, name: str) -> np.ndarray:
            return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

        def norm(x: np.ndarray, name: str) -> np.ndarray:
            centred = x - x.mean(-1, keepdims=True)
            scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + EPSILON)
            return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]

        def heads(x: np.ndarray) -> np.ndarray:
            return x.reshape(*ids.shape, HEADS, -1).transpose(0, 2, 1, 3)

        tables = [weights[f"bert.embeddings.{name}_embeddings.weight"] for name in ("word", "token_type", "position")]
        x = norm(tables[0][ids] + tables[1][types] + tables[2][: ids.shape[1]], "bert.embeddings.LayerNorm")
        for layer in range(LAYERS):
            name = f"bert.encoder.layer.{layer}"
            parts = ("query", "key", "value")
            query, key, value = (heads(linear(x, f"{name}.attention.self.{part}")) for part in parts)
            scores = query @ key.swapaxes(2, 3) / math.sqrt(WIDTH // HEADS)
            scores = np.where(mask[:, None, None, :] == 1, scores, -np.inf)
            shares = np.exp(scores - scores.max(-1, keepdims=True))
            mixed = (shares / shares.sum(-1, keepdims=True) @ value).transpose(0, 2, 1, 3).reshape(x.shape)
            x = norm(x + linear(mixed, f"{name}.attention.output.dense"), f"{name}.attention.output.LayerNorm")
            inner = linear(x, f"{name}.intermediate.dense")
            inner = inner * 0.5 * (1 + np.vectorize(math.erf)(inner / math.sqrt(2)))
            x = norm(x + linear(inner, f"{name}.output.dense"), f"{name}.output.LayerNorm")
        return linear(np.tanh(linear(x[:, 0], "bert.pooler.dense")), "classifier")


class _Exported(Graph):
    """The graph as the exporter traces it, with every norm and activation in its parts."""

    def __init__(self, bert: Bert) -> None:
        super().__init__()
        self.bert = bert

    def weight(self, name: str) -> str:
        return self.constant(self.bert.weights[name], np.float32)

    def linear(self, x: str, name: str) -> str:
        product = self.node("MatMul", [x, self.constant(self.bert.weights[f"{name}.weight"].T, np.float32)])
        return self.node("Add", [self.weight(f"{name}.bias"), product])

    def norm(self, x: str, name: str) -> str:
        centred = self.node("Sub", [x, self.node("ReduceMean", [x], axes=[-1])])
        square = self.node("Pow", [centred, self.number(2.0)])
        mean = self.node("ReduceMean", [square], axes=[-1])
        root = self.node("Sqrt", [self.node("Add", [mean, self.number(EPSILON)])])
        scaled = self.node("Mul", [self.node("Div", [centred, root]), self.weight(f"{name}.weight")])
        return self.node("Add", [scaled, self.weight(f"{name}.bias")])

    def heads(self, x: str) -> str:
        apart = self.node("Reshape", [x, self.constant([0, 0, HEADS, WIDTH // HEADS])])
        return self.node("Transpose", [apart], perm=[0, 2, 1, 3])

    def embeddings(self) -> str:
        length = self.node("Gather", [self.node("Shape", ["input_ids"]), self.constant(1)])
        end = self.node("Unsqueeze", [length, self.constant([0])])
        positions = self.constant(np.arange(POSITIONS)[None])
        places = self.node("Slice", [positions, self.constant([0]), end, self.constant([1])])
        found = [
            self.node("Gather", [self.weight(f"bert.embeddings.{name}_embeddings.weight"), rows])
            for name, rows in (("word", "input_ids"), ("token_type", "token_type_ids"), ("position", places))
        ]
        both = self.node("Add", found[:2])
        return self.norm(self.node("Add", [both, found[2]]), "bert.embeddings.LayerNorm")

    def layer(self, x: str, bias: str, name: str) -> str:
        query, key, value = (
            self.heads(self.linear(x, f"{name}.attention.self.{part}")) for part in ("query", "key", "value")
        )
        scores = self.node("MatMul", [query, self.node("Transpose", [key], perm=[0, 1, 3, 2])])
        scores = self.node("Div", [scores, self.number(math.sqrt(WIDTH // HEADS))])
        shares = self.node("Softmax", [self.node("Add", [scores, bias])], axis=-1)
        mixed = self.node("Transpose", [self.node("MatMul", [shares, value])], perm=[0, 2, 1, 3])
        mixed = self.node("Reshape", [mixed, self.constant([0, 0, WIDTH])])
        said = self.linear(mixed, f"{name}.attention.output.dense")
        x = self.norm(self.node("Add", [said, x]), f"{name}.attention.output.LayerNorm")
        inner = self.linear(x, f"{name}.intermediate.dense")
        error = self.node("Erf", [self.node("Div", [inner, self.number(math.sqrt(2))])])
        inner = self.node("Mul", [inner, self.node("Add", [error, self.number(1.0)])])
        said = self.linear(self.node("Mul", [inner, self.number(0.5)]), f"{name}.output.dense")
        return self.norm(self.node("Add", [said, x]), f"{name}.output.LayerNorm")

    def lay(self) -> None:
        mask = self.node("Unsqueeze", ["attention_mask", self.constant([1, 2])])
        mask = self.node("Cast", [mask], to=TensorProto.FLOAT)
        hidden = self.node("Sub", [self.number(1.0), mask])
        bias = self.node("Mul", [hidden, self.number(float(np.finfo(np.float32).min))])
        x = self.embeddings()
        for layer in range(LAYERS):
            x = self.layer(x, bias, f"bert.encoder.layer.{layer}")
        first = self.node("Gather", [x, self.constant(0)], axis=1)
        pooled = [first, self.weight("bert.pooler.dense.weight"), self.weight("bert.pooler.dense.bias")]
        pooled = [self.node("Tanh", [self.node("Gemm", pooled, transB=1)])]
        pooled += [self.weight("classifier.weight"), self.weight("classifier.bias")]
        self.node("Gemm", pooled, "logits", transB=1)

    def serialised(self) -> bytes:
        self.lay()
        inputs = [
            helper.make_tensor_value_info(name, TensorProto.INT64, ["batch_size", "sequence_length"])
            for name in ("input_ids", "attention_mask", "token_type_ids")
        ]
        logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch_size", len(self.bert.labels)])
        return self.finished(inputs, [logits], opset=14).SerializeToString(deterministic=True)


def _tokenizer() -> Tokenizer:
    numbers = {token: number for number, token in enumerate(VOCABULARY)}
    tokenizer = Tokenizer(models.WordPiece(numbers, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(token, numbers[token]) for token in ("[CLS]", "[SEP]")],
    )
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    tokenizer.add_special_tokens(SPECIAL)
    # Many are given out with the bounds that they were last used with.
    tokenizer.enable_truncation(max_length=12)
    tokenizer.enable_padding(length=12)
    return tokenizer


def write(folder: Path, bert: Bert, problem: str | None) -> Path:
    """Writes the classifier into `folder`; returns it. Without a `problem`, its labels exclude one another."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.onnx").write_bytes(_Exported(bert).serialised())
    _tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    config = {
        "architectures": ["BertForSequenceClassification"],
        "model_type": "bert",
        "hidden_act": "gelu",
        "hidden_size": WIDTH,
        "intermediate_size": HIDDEN,
        "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "id2label": {str(number): label for number, label in enumerate(bert.labels)},
        "label2id": {label: number for number, label in enumerate(bert.labels)},
        "layer_norm_eps": EPSILON,
        "max_position_embeddings": POSITIONS,
        "pad_token_id": 0,
        "position_embedding_type": "absolute",
        "type_vocab_size": 2,
        "vocab_size": len(VOCABULARY),
        **({"problem_type": problem} if problem else {}),
    }
    names = ["pad_token", "unk_token", "cls_token", "sep_token", "mask_token"]
    special = dict(zip(names, SPECIAL))
    files = {
        "config.json": config,
        "special_tokens_map.json": special,
        "tokenizer_config.json": {**special, "do_lower_case": True, "tokenizer_class": "BertTokenizer"},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return folder
