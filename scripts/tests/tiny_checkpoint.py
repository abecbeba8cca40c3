"""Writes tiny GGUF checkpoints with seeded random weights, for tests and fixtures.

Owns: one small model of each architecture that the decoder builder knows, with a
small byte-level vocabulary. The weights mean nothing; the shapes are real.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from tokenizers import pre_tokenizers

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
WORDS = ["the", "ing", "er", "on", "user", "system", "assistant"]


@dataclass(frozen=True)
class Tiny:
    """The size of a tiny model; the defaults keep a graph below 200 KB."""

    layers: int = 2
    width: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    hidden: int = 96
    sliding_window: int = 5
    context: int = 512


def byte_level_vocabulary(size: int) -> tuple[list[str], list[int], list[str]]:
    """Tokens, their kinds and the merges of a byte-level vocabulary of `size` tokens."""
    tokens = SPECIAL + sorted(pre_tokenizers.ByteLevel.alphabet())
    kinds = [3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL))
    merges: list[str] = []
    for word in WORDS:
        for start in ("", "\u0120"):
            piece = ""
            for letter in start + word:
                if piece and piece + letter not in tokens:
                    merges.append(f"{piece} {letter}")
                    tokens.append(piece + letter)
                    kinds.append(1)
                piece += letter
    while len(tokens) < size:
        tokens.append(f"[PAD{len(tokens)}]")
        kinds.append(5)
    if len(tokens) > size:
        raise ValueError(f"the vocabulary needs at least {len(tokens)} tokens")
    return tokens, kinds, merges


def write(
    path: Path,
    architecture: str,
    seed: int,
    tiny: Tiny = Tiny(),
    vocab: int = 320,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
) -> Path:
    """Writes a checkpoint of `architecture` with matrices of type `kind`; returns `path`."""
    random = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_block_count(tiny.layers)
    writer.add_context_length(tiny.context)
    writer.add_embedding_length(tiny.width)
    writer.add_feed_forward_length(tiny.hidden)
    writer.add_head_count(tiny.heads)
    writer.add_head_count_kv(tiny.kv_heads)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1000.0)
    if architecture == "gemma3":
        writer.add_key_length(tiny.head_dim)
        writer.add_value_length(tiny.head_dim)
        writer.add_sliding_window(tiny.sliding_window)
    tokens, kinds, merges = byte_level_vocabulary(vocab)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)

    def matrix(name: str, rows: int, columns: int, spread: float = 1.0) -> None:
        values = random.standard_normal((rows, columns)) * spread / np.sqrt(columns)
        data = gguf.quants.quantize(values.astype(np.float32), kind)
        writer.add_tensor(f"{name}.weight", data, raw_dtype=kind)

    def gain(name: str, size: int) -> None:
        values = 1.0 + 0.2 * random.standard_normal(size)
        writer.add_tensor(f"{name}.weight", values.astype(np.float32))

    matrix("token_embd", vocab, tiny.width, spread=4.0)
    queries, keys = tiny.heads * tiny.head_dim, tiny.kv_heads * tiny.head_dim
    for layer in range(tiny.layers):
        name = f"blk.{layer}."
        gain(f"{name}attn_norm", tiny.width)
        gain(f"{name}ffn_norm", tiny.width)
        for part, size in (("q", queries), ("k", keys), ("v", keys)):
            # Strong queries and keys make attention care where it looks.
            matrix(f"{name}attn_{part}", size, tiny.width, spread=2.0)
            if architecture == "qwen2":
                bias = random.standard_normal(size).astype(np.float32)
                writer.add_tensor(f"{name}attn_{part}.bias", bias)
        matrix(f"{name}attn_output", tiny.width, queries)
        matrix(f"{name}ffn_gate", tiny.hidden, tiny.width)
        matrix(f"{name}ffn_up", tiny.hidden, tiny.width)
        matrix(f"{name}ffn_down", tiny.width, tiny.hidden)
        if architecture == "gemma3":
            gain(f"{name}attn_q_norm", tiny.head_dim)
            gain(f"{name}attn_k_norm", tiny.head_dim)
            gain(f"{name}post_attention_norm", tiny.width)
            gain(f"{name}post_ffw_norm", tiny.width)
    gain("output_norm", tiny.width)
    if architecture == "qwen2":
        matrix("output", vocab, tiny.width)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
