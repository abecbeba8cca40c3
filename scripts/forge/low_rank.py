"""Low-rank deltas as they are kept: factors of eight or six bits with a float16 scale a row."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

Tensors = dict[str, np.ndarray]


def packed(delta: Mapping[str, np.ndarray], bits: int = 8) -> Tensors:
    """The delta with its low-rank factors in so few bits.

    Eight bits are int8. Six bits are uint8, three bytes for four codes, the
    first code lowest; what they lose is far below what a weight of four bits does.
    """
    out: Tensors = {}
    top = 2 ** (bits - 1) - 1
    for name, value in delta.items():
        if name.endswith((".lora_a", ".lora_b")) and value.dtype not in (np.int8, np.uint8):
            value = np.asarray(value, np.float32)
            scale = (np.maximum(np.abs(value).max(axis=1), 1e-6) / top).astype(np.float16)
            out[f"{name}.scale"] = scale
            value = np.clip(np.rint(value / scale.astype(np.float32)[:, None]), -top, top).astype(np.int8)
            value = value if bits == 8 else _six_bits(value)
        out[name] = value
    return out


def unpacked(delta: Mapping[str, np.ndarray]) -> Tensors:
    """The delta with every tensor as float32."""
    out: Tensors = {}
    for name, value in delta.items():
        if not name.endswith(".scale"):
            out[name] = np.asarray(_from_six_bits(value) if value.dtype == np.uint8 else value, np.float32)
    for name, value in delta.items():
        if name.endswith(".scale"):
            out[name.removesuffix(".scale")] *= np.asarray(value, np.float32)[:, None]
    return out


def _six_bits(codes: np.ndarray) -> np.ndarray:
    if codes.shape[1] % 4:
        raise ValueError(f"a factor has {codes.shape[1]} columns, and six bits are kept by fours: keep it in eight")
    four = (codes.astype(np.int32) + 32).reshape(len(codes), -1, 4) << np.array([0, 6, 12, 18])
    word = four.sum(axis=-1)
    return (np.stack([word, word >> 8, word >> 16], axis=-1) & 255).astype(np.uint8).reshape(len(codes), -1)


def _from_six_bits(kept: np.ndarray) -> np.ndarray:
    three = kept.reshape(len(kept), -1, 3).astype(np.int32) << np.array([0, 8, 16])
    four = (three.sum(axis=-1)[..., None] >> np.array([0, 6, 12, 18])) & 63
    return four.reshape(len(kept), -1) - 32


def change(delta: Mapping[str, np.ndarray], stem: str) -> np.ndarray | None:
    """What the unpacked delta adds to the weight `stem` by its factors; None where it has none."""
    a, b = delta.get(f"{stem}.lora_a"), delta.get(f"{stem}.lora_b")
    if a is None and b is None:
        return None
    if a is None:
        raise ValueError(f"The delta has {stem}.lora_b without its lora_a: export it again.")
    if b is None or b.shape[1:] != a.shape[:1]:
        raise ValueError(f"The delta has {stem}.lora_a without its lora_b, or of another rank: export it again.")
    # Factors of so few bits have exact sums of products in double
    # precision, so the order in which a machine adds does not show.
    return (b.astype(np.float64) @ a.astype(np.float64)).astype(np.float32)
