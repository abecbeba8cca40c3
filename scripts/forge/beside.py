"""An adapter's change of a layer as a product of its own, beside weights that stay as their source has them.

The change, of low rank, is brought to `SLOTS` inner values: 8-bit rows that make
them of the layer's input, and 4-bit codes, one more block of each output, that
make the output of them. Both are rounded with the other in view: of our adapters
that leaves 3 to 8 % of a change, a thirtieth and less of what 4 bits for the whole
layer would lose. What is found may differ in its last bits from processor to
processor, as the sums of matrices do, and so may the bytes of what is built.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

# Inner values: the values of a block.
SLOTS = 32
TOP = 15
ROUNDS = 3
# Of the range of an output's codes, what is tried.
RANGES = (1.0, 0.85, 0.7)


def _directions(change: np.ndarray) -> np.ndarray:
    """What the inner values are at first [SLOTS, in]: the strongest directions, then the strongest again, for what rounding leaves."""
    left = change if change.shape[0] > change.shape[1] else change.T
    energies, vectors = np.linalg.eigh(left.T @ left)
    strongest = np.argsort(-energies)[:SLOTS]
    vectors = vectors[:, strongest[energies[strongest] > 1e-10 * energies.max()]]
    rows = vectors.T if left is change else vectors.T @ change
    # Codes are of one size in all slots where the rows have the sizes.
    norms = np.linalg.norm(change @ rows.T, axis=0) / np.linalg.norm(rows, axis=1)
    rows *= (norms / np.linalg.norm(rows, axis=1) / np.sqrt(len(change)))[:, None]
    again = np.resize(rows, (SLOTS - len(rows), rows.shape[1])) / TOP
    return np.concatenate([rows, again])


def _codes(change: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes [out, SLOTS], scales and zero points [out] that make the most of given rows.

    Slots are rounded one after the other, the strongest first, and what each
    loses is made up by those that are still to come.
    """
    gram = rows @ rows.T
    gram += np.eye(SLOTS) * 1e-7 * np.trace(gram)
    exact = np.linalg.solve(gram, rows @ change.T).T
    low, high = np.minimum(exact.min(axis=1), 0.0), np.maximum(exact.max(axis=1), 0.0)
    least = np.full(len(change), np.inf)
    codes, scale, zero = np.zeros_like(exact), np.ones(len(change)), np.zeros(len(change))
    for part in RANGES:
        # As they are kept, in single precision.
        step = ((high - low) * part / TOP).astype(np.float32).astype(np.float64)
        step = np.where(step > 0, step, 1.0)
        middle = np.clip(np.rint(-low * part / step), 0, TOP)
        wanted, inverse = exact.copy(), np.linalg.inv(gram)
        trial = np.zeros_like(exact)
        for slot in np.argsort(-np.diag(gram)):
            trial[:, slot] = np.clip(np.rint(wanted[:, slot] / step) + middle, 0, TOP)
            lost = wanted[:, slot] - (trial[:, slot] - middle) * step
            weights = inverse[slot] / inverse[slot, slot]
            wanted -= lost[:, None] * weights
            inverse -= np.outer(inverse[:, slot], weights)
        error = ((change - ((trial - middle[:, None]) * step[:, None]) @ rows) ** 2).sum(axis=1)
        better = error < least
        least = np.where(better, error, least)
        codes = np.where(better[:, None], trial, codes)
        scale, zero = np.where(better, step, scale), np.where(better, middle, zero)
    return codes, scale, zero


def fitted(change: np.ndarray, kept: Callable[[np.ndarray], np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Rows [SLOTS, in] of single precision, and codes [out, SLOTS], scales and zero points [out] of a change [out, in].

    `kept(rows)` is what becomes of rows when they are rounded.
    """
    change = np.asarray(change, np.float64)
    rows = _directions(change)
    for _ in range(ROUNDS):
        codes, scale, zero = _codes(change, rows)
        outer = (codes - zero[:, None]) * scale[:, None]
        rows = np.linalg.lstsq(outer, change, rcond=None)[0]
    single = rows.astype(np.float32)
    codes, scale, zero = _codes(change, np.asarray(kept(single), np.float64))
    return single, codes.astype(np.uint8), scale.astype(np.float32), zero.astype(np.uint8)
