"""Low-rank deltas as they are kept: int8 factors with a float16 scale a row."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

Tensors = dict[str, np.ndarray]


def packed(delta: Mapping[str, np.ndarray]) -> Tensors:
    """The delta with its low-rank factors as int8, half the size to keep."""
    out: Tensors = {}
    for name, value in delta.items():
        if name.endswith((".lora_a", ".lora_b")) and value.dtype != np.int8:
            value = np.asarray(value, np.float32)
            scale = (np.maximum(np.abs(value).max(axis=1), 1e-6) / 127).astype(np.float16)
            out[f"{name}.scale"] = scale
            value = np.clip(np.rint(value / scale.astype(np.float32)[:, None]), -127, 127).astype(np.int8)
        out[name] = value
    return out


def unpacked(delta: Mapping[str, np.ndarray]) -> Tensors:
    """The delta with every tensor as float32."""
    out = {name: np.asarray(value, np.float32) for name, value in delta.items() if not name.endswith(".scale")}
    for name, value in delta.items():
        if name.endswith(".scale"):
            out[name.removesuffix(".scale")] *= np.asarray(value, np.float32)[:, None]
    return out


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
