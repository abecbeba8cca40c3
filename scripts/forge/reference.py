"""A full-precision decoder in numpy, to check the built graphs against.

Owns: the forward pass of `llama`, `qwen2` and `gemma3` checkpoints over the
dequantised weights of a GGUF file, in float32. It shares no code with the graph
builder, not even the reading of the metadata, so that one mistake cannot hide
in both. Plain and slow: made to be read. Not used by the server.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np


class Reference:
    """A checkpoint held as float32 arrays, with a key/value cache a row."""

    def __init__(self, path: Path, embedding_from_head: bool = False) -> None:
        """`embedding_from_head` embeds with `output.weight`, for a file that
        stores one tied table twice at two precisions."""
        reader = gguf.GGUFReader(str(path))
        self.kind: str = reader.fields["general.architecture"].contents()
        if self.kind not in ("llama", "qwen2", "gemma3"):
            raise ValueError(f"no reference for the architecture '{self.kind}'")

        def field(name: str, default=None):
            found = reader.fields.get(f"{self.kind}.{name}")
            return default if found is None else found.contents()

        self.weights = {
            tensor.name: np.array(
                gguf.quants.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32
            )
            for tensor in reader.tensors
        }
        if embedding_from_head:
            self.weights["token_embd.weight"] = self.weights["output.weight"]
        self.n_layers: int = field("block_count")
        self.n_heads: int = field("attention.head_count")
        self.n_kv: int = field("attention.head_count_kv", self.n_heads)
        self.width: int = field("embedding_length")
        self.head_size: int = field("attention.key_length", self.width // self.n_heads)
        self.eps: float = field("attention.layer_norm_rms_epsilon")
        self.base: float = field("rope.freq_base", 10000.0)
        self.swa: int = field("attention.sliding_window", 0)
        self.swa_base: float = field("rope.freq_base_swa", 10000.0)

    def new_cache(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """An empty cache for one row: keys and values [kv_heads, length, head_size] a layer."""
        empty = np.zeros((self.n_kv, 0, self.head_size), dtype=np.float32)
        return [(empty, empty) for _ in range(self.n_layers)]

    def _rms(self, x: np.ndarray, name: str) -> np.ndarray:
        mean_square = np.mean(np.square(x), axis=-1, keepdims=True)
        return x / np.sqrt(mean_square + self.eps) * self.weights[name]

    def _linear(self, x: np.ndarray, name: str) -> np.ndarray:
        y = x @ self.weights[f"{name}.weight"].T
        bias = self.weights.get(f"{name}.bias")
        return y if bias is None else y + bias

    def _sees_window_only(self, layer: int) -> bool:
        return self.kind == "gemma3" and self.swa > 0 and layer % 6 != 5

    def _turn(self, positions: np.ndarray, base: float) -> np.ndarray:
        """The rotation of each position and pair, as complex numbers [length, size / 2]."""
        speed = 1.0 / base ** (np.arange(0, self.head_size, 2) / self.head_size)
        return np.exp(1j * (positions[:, None] * speed[None, :])).astype(np.complex64)

    def _rotate(self, x: np.ndarray, turn: np.ndarray) -> np.ndarray:
        """Rotates [heads, length, head_size] by position: pairs of neighbours in
        `llama` files, one from each half of the head in the others."""
        half = self.head_size // 2
        if self.kind == "llama":
            turned = (x[..., 0::2] + 1j * x[..., 1::2]) * turn
            return np.stack([turned.real, turned.imag], axis=-1).reshape(x.shape)
        turned = (x[..., :half] + 1j * x[..., half:]) * turn
        return np.concatenate([turned.real, turned.imag], axis=-1)

    def _attend(
        self, q: np.ndarray, k: np.ndarray, v: np.ndarray, positions: np.ndarray, layer: int
    ) -> np.ndarray:
        """Causal attention of q [heads, new, size] over k, v [kv_heads, all, size]."""
        keys = np.arange(k.shape[1])
        allowed = keys[None, :] <= positions[:, None]
        if self._sees_window_only(layer):
            allowed &= positions[:, None] - keys[None, :] < self.swa
        group = self.n_heads // self.n_kv
        k, v = np.repeat(k, group, axis=0), np.repeat(v, group, axis=0)
        scores = q @ k.transpose(0, 2, 1) / np.sqrt(np.float32(self.head_size))
        scores = np.where(allowed, scores, np.float32(-np.inf))
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        mixed = scores / scores.sum(axis=-1, keepdims=True) @ v
        return mixed.transpose(1, 0, 2).reshape(len(positions), -1)

    def forward(
        self, rows: list[list[int]], caches: list[list[tuple[np.ndarray, np.ndarray]]]
    ) -> np.ndarray:
        """Feeds new tokens to every row, growing its cache in place.

        Rows may differ in length, both of the new tokens and of the cache.
        Returns the logits [rows, vocab] after the last new token of each row.
        """
        ends = np.cumsum([len(row) for row in rows])
        spans = [slice(end - len(row), end) for end, row in zip(ends, rows)]
        # All rows are laid end to end: only attention needs to tell them apart.
        x = self.weights["token_embd.weight"][np.concatenate(rows)]
        if self.kind == "gemma3":
            x = x * np.float32(np.sqrt(self.width))
        lengths = [cache[0][0].shape[1] for cache in caches]
        places = [np.arange(old, old + len(row)) for old, row in zip(lengths, rows)]
        turns = {
            base: [self._turn(positions, base) for positions in places]
            for base in (self.base, self.swa_base)
        }
        for layer in range(self.n_layers):
            name = f"blk.{layer}."
            h = self._rms(x, f"{name}attn_norm.weight")
            q, k, v = (self._linear(h, f"{name}attn_{part}") for part in "qkv")
            base = self.swa_base if self._sees_window_only(layer) else self.base
            mixed = np.empty((len(x), self.n_heads * self.head_size), dtype=np.float32)
            for row, (span, cache) in enumerate(zip(spans, caches)):
                old_k, old_v = cache[layer]

                def heads(values: np.ndarray, count: int) -> np.ndarray:
                    return values[span].reshape(-1, count, self.head_size).transpose(1, 0, 2)

                row_q, row_k = heads(q, self.n_heads), heads(k, self.n_kv)
                if self.kind == "gemma3":
                    row_q = self._rms(row_q, f"{name}attn_q_norm.weight")
                    row_k = self._rms(row_k, f"{name}attn_k_norm.weight")
                row_k = self._rotate(row_k, turns[base][row])
                all_k = np.concatenate([old_k, row_k], axis=1)
                all_v = np.concatenate([old_v, heads(v, self.n_kv)], axis=1)
                cache[layer] = (all_k, all_v)
                row_q = self._rotate(row_q, turns[base][row])
                mixed[span] = self._attend(row_q, all_k, all_v, places[row], layer)
            h = self._linear(mixed, f"{name}attn_output")
            if self.kind == "gemma3":
                h = self._rms(h, f"{name}post_attention_norm.weight")
            x = x + h
            h = self._rms(x, f"{name}ffn_norm.weight")
            gate = self._linear(h, f"{name}ffn_gate")
            if self.kind == "gemma3":
                cubic = gate + np.float32(0.044715) * gate**3
                gate = gate * (1 + np.tanh(np.sqrt(np.float32(2 / np.pi)) * cubic)) / 2
            else:
                gate = gate / (1 + np.exp(-gate))
            h = self._linear(gate * self._linear(h, f"{name}ffn_up"), f"{name}ffn_down")
            if self.kind == "gemma3":
                h = self._rms(h, f"{name}post_ffw_norm.weight")
            x = x + h
        x = self._rms(x[ends - 1], "output_norm.weight")
        head = self.weights.get("output.weight", self.weights["token_embd.weight"])
        return x @ head.T

    def greedy(self, prompts: list[list[int]], count: int) -> tuple[np.ndarray, np.ndarray]:
        """`count` greedy tokens for every prompt, all prompts as one batch.

        Returns the tokens [prompts, count] and the logits [prompts, count, vocab]
        that chose them.
        """
        caches = [self.new_cache() for _ in prompts]
        rows, tokens, logits = prompts, [], []
        for _ in range(count):
            logits.append(self.forward(rows, caches))
            tokens.append(logits[-1].argmax(axis=-1))
            rows = [[int(token)] for token in tokens[-1]]
        return np.stack(tokens, axis=1), np.stack(logits, axis=1)
