"""The reader of E5S1 files, on a file written here by the description of the format."""

from __future__ import annotations

import struct
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from tokenizers import Tokenizer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from forge import e5s1, encoder  # noqa: E402

WIDTH, INNER, PIECES = 32, 64, ["<s>", "<pad>", "</s>", "<unk>", "\u2581", "\u2581you", "\u2581kill", "a", "b"]


def packed(values: np.ndarray) -> bytes:
    """Whole numbers from -8 to 7, times a half, as blocks of 32."""
    out = b""
    for block in values.reshape(-1, 32).astype(int) + 8:
        out += struct.pack("<e", 0.5) + bytes(int(low | high << 4) for low, high in zip(block[:16], block[16:]))
    return out


@pytest.fixture
def model(tmp_path) -> tuple[Path, dict[str, np.ndarray]]:
    random = np.random.default_rng(1)
    shapes = {"emb.word": (len(PIECES), WIDTH), "emb.pos": (16, WIDTH), "emb.type": (2, WIDTH), "emb.ln.w": (WIDTH,), "emb.ln.b": (WIDTH,)}
    for short, rows, columns in (("q", WIDTH, WIDTH), ("k", WIDTH, WIDTH), ("v", WIDTH, WIDTH), ("ao", WIDTH, WIDTH), ("fi", INNER, WIDTH), ("fo", WIDTH, INNER)):
        shapes |= {f"l0.{short}.w": (rows, columns), f"l0.{short}.b": (rows,)}
    for short in ("aln", "oln"):
        shapes |= {f"l0.{short}.w": (WIDTH,), f"l0.{short}.b": (WIDTH,)}
    values = {name: random.integers(-8, 8, shape).astype(np.float32) for name, shape in shapes.items()}
    blob = [piece.encode() for piece in PIECES]
    ends = np.cumsum([0, *map(len, blob)])
    head = b"E5S1" + struct.pack("<I7ifi", 1, WIDTH, 1, 12, INNER, len(PIECES), 16, 2, 1e-12, 32)
    head += struct.pack("<5iQ", len(PIECES), 0, 2, 1, 3, ends[-1]) + ends.astype("<u4").tobytes()
    head += np.array([0, 0, 0, 0, -2, -3, -3, -4, -4], "<f4").tobytes() + b"".join(blob)
    rule = struct.pack("<IB", ord("\u00bd"), 3) + np.array([ord(c) for c in "1\u20442"], "<u4").tobytes()
    head += struct.pack("<iI", 1, len(rule)) + rule + struct.pack("<i", len(values))
    blocky = {name for name, value in values.items() if value.ndim == 2 and name not in ("emb.pos", "emb.type")}
    bodies = {name: packed(value) if name in blocky else value.tobytes() for name, value in values.items()}
    size = sum(2 + len(name) + 1 + 4 + 8 + 8 for name in values)
    at = len(head) + size
    for name, body in bodies.items():
        head += struct.pack("<H", len(name)) + name.encode() + struct.pack("<BIQQ", name in blocky, values[name].size, at, len(body))
        at += len(body)
    path = tmp_path / "e5-small-q4.bin"
    path.write_bytes(head + b"".join(bodies.values()))
    return path, {name: value * 0.5 if name in blocky else value for name, value in values.items()}


def test_tensors_come_out_as_they_went_in_under_the_names_of_bert(model):
    path, values = model
    base = encoder.load_base(path)
    assert encoder.layer_count(base) == 1
    for ours, theirs in (
        ("embeddings.word_embeddings.weight", "emb.word"),
        ("encoder.layer.0.attention.self.key.weight", "l0.k.w"),
        ("encoder.layer.0.output.dense.weight", "l0.fo.w"),
        ("encoder.layer.0.attention.output.LayerNorm.bias", "l0.aln.b"),
    ):
        np.testing.assert_array_equal(base[ours], values[theirs])


def test_the_graph_looks_words_up_in_the_file_s_own_blocks(model):
    base = encoder.load_base(model[0])
    # Four heads of eight: the real twelve do not divide so narrow a model.
    kind = replace(encoder.BACKBONES["multilingual-e5"], heads=4)
    rows = {"input_ids": np.array([[0, 6, 5, 2]]), "lengths": np.array([4], np.int32)}
    plain = {name: value for name, value in base.items() if not name.endswith((".codes", ".steps"))}
    found = [
        ort.InferenceSession(encoder.graph(tensors, kind, "float32", embedding=True, heads={}).SerializeToString()).run(["embedding"], rows)[0]
        for tensors in (base, plain)
    ]
    assert np.abs(found[0]).max() > 0.1
    np.testing.assert_allclose(found[0], found[1], atol=1e-4)


def test_the_vocabulary_splits_texts_and_spells_out_typed_marks(model, tmp_path):
    (tmp_path / "tokenizer.json").write_bytes(e5s1.tokenizer(model[0]))
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    tokenizer.encode_special_tokens = True
    assert tokenizer.encode("kill\n you\u0001", add_special_tokens=False).ids == [6, 5]
    # Full-width letters are the plain ones, and a typed end of text ends nothing.
    assert tokenizer.encode("\uff59\uff4f\uff55", add_special_tokens=False).ids == [5]
    assert 2 not in tokenizer.encode("you </s>", add_special_tokens=False).ids


def test_another_file_is_refused(tmp_path):
    (tmp_path / "x.bin").write_bytes(b"GGUF" + bytes(64))
    with pytest.raises(ValueError, match="no E5S1 model"):
        e5s1.tensors(tmp_path / "x.bin")
