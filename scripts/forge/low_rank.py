"""Low-rank deltas as they are kept: factors of eight, six or five bits with a float16 scale a row."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

Tensors = dict[str, np.ndarray]

# What says of how many bits packed codes are; six where nothing does.
BITS = "bits"
# Of a generator's. On 60 texts kept aside alpha-4o-mini's loss was 0.446 a token with six bits, 0.448 with five, 0.444 with four.
OF_GENERATORS = 5


def packed(delta: Mapping[str, np.ndarray], bits: int = 8) -> Tensors:
    """The delta with its low-rank factors in so few bits.

    Eight bits are int8. Fewer are uint8, one code after another, the lowest
    bit of the first lowest; what they lose is far below what a weight of four
    bits does.
    """
    out: Tensors = {}
    top = 2 ** (bits - 1) - 1
    for name, value in delta.items():
        if name.endswith((".lora_a", ".lora_b")) and value.dtype not in (np.int8, np.uint8):
            value = np.asarray(value, np.float32)
            scale = (np.maximum(np.abs(value).max(axis=1), 1e-6) / top).astype(np.float16)
            out[f"{name}.scale"] = scale
            value = np.clip(np.rint(value / scale.astype(np.float32)[:, None]), -top, top).astype(np.int8)
            value = value if bits == 8 else _joined(value, bits)
            if bits not in (8, 6):
                out[BITS] = np.array([bits], np.uint8)
        out[name] = value
    return out


def unpacked(delta: Mapping[str, np.ndarray]) -> Tensors:
    """The delta with every tensor as float32."""
    out: Tensors = {}
    bits = int(delta[BITS][0]) if BITS in delta else 6
    for name, value in delta.items():
        if not name.endswith(".scale") and name != BITS:
            out[name] = np.asarray(_parted(value, bits) if value.dtype == np.uint8 else value, np.float32)
    for name, value in delta.items():
        if name.endswith(".scale"):
            out[name.removesuffix(".scale")] *= np.asarray(value, np.float32)[:, None]
    return out


def _joined(codes: np.ndarray, bits: int) -> np.ndarray:
    if codes.shape[1] * bits % 8:
        raise ValueError(
            f"a factor has {codes.shape[1]} columns, and {bits} bits are kept by {8 // math.gcd(8, bits)}s: keep it in eight"
        )
    each = np.unpackbits((codes + 2 ** (bits - 1)).astype(np.uint8)[..., None], axis=-1, count=bits, bitorder="little")
    return np.packbits(each.reshape(len(codes), -1), axis=1, bitorder="little")


def _parted(kept: np.ndarray, bits: int) -> np.ndarray:
    each = np.unpackbits(kept, axis=1, bitorder="little").reshape(len(kept), -1, bits)
    return np.packbits(each, axis=-1, bitorder="little")[..., 0].astype(np.int32) - 2 ** (bits - 1)


def least_for(weight: np.ndarray, states: np.ndarray, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Factors of this rank, lora_a and lora_b, whose products with such states [rows, width] are nearest to those of `weight`."""
    spread = np.cov(states.astype(np.float64), rowvar=False)
    # Directions that these states hardly take must not get weights without bound.
    values, vectors = np.linalg.eigh(spread + 1e-4 * np.trace(spread) / len(spread) * np.eye(len(spread)))
    half = vectors * np.sqrt(values) @ vectors.T
    left, strength, right = np.linalg.svd(weight @ half, full_matrices=False)
    a = right[:rank] @ (vectors / np.sqrt(values) @ vectors.T)
    return a.astype(np.float32), (left[:, :rank] * strength[:rank]).astype(np.float32)


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
