"""Builds the ONNX graph of a decoder from a GGUF file, without PyTorch.

Owns: the graph, the block quantisation of its weights, and the generator's part
of the manifest. Architectures: `llama`, `qwen2`, `gemma3`. Refuses what it
cannot reproduce exactly (another architecture, scaled rotary positions).

## The graph

Inputs: `input_ids` int64 [batch, sequence]; `seqlens_k` int32 [batch];
`total_sequence_length` int32 []; for each layer `past.{i}.key` and
`past.{i}.value` float32 [batch, kv_heads, window, head_dim]; and, may be left
out, `logits_at` int64 [places], which positions of the pass have their logits
told: by default [-1], the last. Outputs: `logits` float32 [batch * places,
answer tokens], row by row; `present.{i}.key|value`, shaped as the past.

## How to call it

Past and present of a layer are one buffer: bind the same memory as input and as
output. The node then writes only the new positions and copies nothing. It
detects sharing by the address, so it must hold for every layer. The buffer need
not be cleared: positions at and after a row's length are never read.

Let `n[b]` be the number of positions of row `b` that are valid *after* the pass
(cached ones plus the new ones). Always:

    seqlens_k[b]          = n[b] - 1
    total_sequence_length = max over b of n[b]

1. First prefill (nothing cached): batch 1, sequence = n, so that
   `total_sequence_length == sequence`. Position 0 is the first token.
2. Prefill after a cached prefix of `p` positions: batch 1, sequence = s > 1,
   n = p + s. `total_sequence_length != sequence` is what makes the node look at
   the cache, and it then allows batch 1 only. The new keys are written at
   p .. p + s. A chunk of one token is case 3.
3. Decode: any batch, sequence = 1, rows of different lengths. A row's new key is
   written at n[b] - 1.
4. Verifying guessed tokens: as case 2, with `logits_at` = [0, 1 .. s - 1]. What
   was guessed wrongly is forgotten by a smaller n in the next pass, which writes
   over it.

Traps. With sequence > 1 no row may be padded: there is no mask, and `logits`
come from the last column. Passes of two and more tokens give the same bits
however a prompt is cut into them (with int8 activations), passes of one token
others: attention has a path of its own for them. So a prompt is better not cut
so that one token is left over. A row of a decode batch cannot be left out: give an
idle row n = 1 and let it write position 0 of a buffer nobody reads. In a decode
batch where every row has n = 1 the pass counts as a first prefill, which is the
same thing. `window` is the length of the buffer and also the length of the
rotary tables: n must never exceed it, and a buffer may be shorter than the
recipe's window but not longer. Attention scratch memory grows with
heads x sequence x window: prefill long prompts in chunks (case 2) of 128 to 256.

## Weights

Linear layers are `MatMulNBits`: blocks of 32 along the input, 4 or 8 bits, one
float32 scale and one integer zero point a block (float zero points fall on a
slow path of the runtime). The same 8-bit table serves as embedding
(`GatherBlockQuantized`) and as output head where the checkpoint ties them.

A recipe may ask for a second graph of the same inputs and outputs for prompts
(`"prefill": ["attention", "gate_up", "down"]`, or some of these), which are bound
by arithmetic and not by reading weights. Its layers of those kinds have one scale an output, of the values that the blocks stand
for, and keep to 7 bits, because processors without VNNI add pairs of products in
16 bits, which 8-bit weights overflow. Activations are rounded to 8 bits with one
scale a token, so that no token depends on its company in a pass and the bits are
still those of any cut.
Embedding and head it takes from the first graph's file. It is for passes of two
tokens and more.

A recipe may ask for a graph for the server's own products, where the processor
has what they need, instead of both (`"products": ["attention", "gate_up", "down"]`, or
some of these). Its layers of those kinds keep the 4-bit codes and the steps of the
GGUF file; where it has a part of one otherwise, the layer is of 8 bits. The offsets of its blocks are no whole numbers of steps: what they are
in sixteenths lies beside the zero points (`FINE` after their name, uint8
[out, blocks]) in a constant that no node reads; with the zero points alone half a
step of every offset would be left to chance. What the adapter changes is a
product beside (`beside.py`): inner values, made of the layer's input by 8-bit
rows, follow that input as one more block of it. So nothing that the source says is
rounded twice, at little more than half of what 8 bits read. Embedding and head
it takes from the first graph's file.

A recipe may name the tokens that answers can hold (`vocabulary`, a safetensors
file with the bits `kept`). The head then has their rows only, in a table of its
own. Logits are told of these alone: which token each of them is of, says
`ANSWER_TOKENS` beside the graph, ids as little-endian uint32, ascending.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Iterator, Mapping, Sequence

import gguf
import numpy as np
import onnx
from onnx import TensorProto, helper
from safetensors.numpy import load_file

from . import beside, gguf_tokenizer, graph_file, low_rank

BLOCK = 32
MICROSOFT = "com.microsoft"
TASKS = ("positive", "negative", "reply")
LOGITS_AT = "logits_at"
PREFILL = "prefill.onnx"
WEIGHT_LIMIT = 64
ANSWER_TOKENS = "answer_tokens.bin"
PRODUCTS = "products.onnx"
# The constants of a block-quantised matrix.
TABLE = ("codes", "scales", "zeros")
FINE = ".fine"
SIXTEENTHS = 16
# Of linear layers.
KINDS = ("attention", "gate_up", "down")


@dataclass(frozen=True)
class Shape:
    """The hyperparameters of a checkpoint, as its GGUF metadata states them."""

    architecture: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    vocab: int
    epsilon: float
    rope_base: float
    # Gemma 3 only: most layers see `sliding_window` positions and use a
    # rotary base of their own; every `global_every`-th layer sees all.
    sliding_window: int
    local_rope_base: float
    global_every: int

    @property
    def gemma(self) -> bool:
        return self.architecture == "gemma3"

    def is_local(self, layer: int) -> bool:
        return self.gemma and self.sliding_window > 0 and (layer + 1) % self.global_every != 0


class Checkpoint:
    """A GGUF file opened for reading: metadata, and tensors as float32 on demand.

    An adapter (low-rank factors by tensor, as `low_rank.unpacked` gives them) is
    added to the tensors that it names.
    """

    def __init__(self, path: Path, adapter: Mapping[str, np.ndarray] | None = None) -> None:
        reader = gguf.GGUFReader(str(path))
        self.metadata: dict[str, Any] = {
            key: field.contents() for key, field in reader.fields.items()
        }
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        self.shape = self._read_shape()
        self._adapter = dict(adapter or {})
        for name in self._adapter:
            if name.rpartition(".")[0] not in self._tensors:
                raise ValueError(f"the adapter has {name}, but the GGUF file has no such tensor: use the base it was tuned on")

    def _read_shape(self) -> Shape:
        architecture = self.metadata["general.architecture"]
        if architecture not in ("llama", "qwen2", "gemma3"):
            raise ValueError(
                f"the GGUF file holds a '{architecture}' model; "
                "only llama, qwen2 and gemma3 can be built"
            )
        meta = {
            key.split(".", 1)[1]: value
            for key, value in self.metadata.items()
            if key.startswith(architecture + ".")
        }
        if meta.get("rope.scaling.type", "none") != "none":
            raise ValueError("the GGUF file scales its rotary positions; such a model cannot be built")
        heads, width = meta["attention.head_count"], meta["embedding_length"]
        return Shape(
            architecture=architecture,
            layers=meta["block_count"],
            width=width,
            heads=heads,
            kv_heads=meta.get("attention.head_count_kv", heads),
            head_dim=meta.get("attention.key_length", width // heads),
            hidden=meta["feed_forward_length"],
            vocab=int(self._tensors["token_embd.weight"].shape[1]),
            epsilon=meta["attention.layer_norm_rms_epsilon"],
            rope_base=meta.get("rope.freq_base", 10000.0),
            sliding_window=meta.get("attention.sliding_window", 0),
            local_rope_base=meta.get("rope.freq_base_swa", 10000.0),
            global_every=6,
        )

    def has(self, name: str) -> bool:
        return name in self._tensors

    def tensor(self, name: str) -> np.ndarray:
        """The tensor as float32, rows first: a linear layer is [out, in]."""
        tensor = self._tensors[name]
        values = np.ascontiguousarray(gguf.quants.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        change = self.change(name)
        return values if change is None else values + change

    def change(self, name: str) -> np.ndarray | None:
        """What the adapter adds to a tensor; None where it has nothing for it."""
        change = low_rank.change(self._adapter, name)
        if change is not None and change.shape != tuple(reversed(self._tensors[name].shape)):
            raise ValueError(f"the adapter's {name} does not fit the GGUF file: use the base it was tuned on")
        return change

    def rows(self, name: str) -> int:
        return int(self._tensors[name].shape[1])

    def as_kept(self, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """Codes [out, blocks, 32] of 4 bits as the file has them, scales [out, blocks], and zero points in sixteenths.

        None where the file has it in other bits.
        """
        tensor = self._tensors[name]
        grid = self._grid(name)
        if grid is None:
            return None
        step, offset = grid
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(*step.shape, BLOCK)
        # A block of one value may have no step.
        with np.errstate(divide="ignore", invalid="ignore"):
            codes = np.rint((values - offset[..., None]) / step[..., None])
            # Those that count to either side of zero count from the lowest.
            lowest = np.minimum(codes.min(axis=-1), 0)
            codes -= lowest[..., None]
            fine = np.rint((-offset / step - lowest) * SIXTEENTHS)
        known = step > 0
        if (codes[known] > 15).any():
            return None
        # The few whose offset is out of reach are rounded anew.
        anew = ~(known & (fine >= 0) & (fine <= 255))
        codes[anew], step[anew], zero = _search(values[anew].astype(np.float32), 4)
        fine[anew] = zero * SIXTEENTHS
        return codes.astype(np.uint8), step, fine.astype(np.uint8)

    def grid(self, name: str) -> tuple[np.ndarray, np.ndarray] | None:
        """Step and offset [rows, blocks of 32] of the grid that a tensor's values lie on.

        Every value of a block is the offset plus a whole number of steps. None
        for the types that have no single grid over 32 values, and for a tensor
        that the adapter moves off it.
        """
        return None if f"{name}.lora_a" in self._adapter else self._grid(name)

    def _grid(self, name: str) -> tuple[np.ndarray, np.ndarray] | None:
        tensor = self._tensors[name]
        kind = gguf.GGMLQuantizationType
        block_bytes = gguf.GGML_QUANT_SIZES.get(tensor.tensor_type, (0, 0))[1]
        raw = np.ascontiguousarray(tensor.data).view(np.uint8)

        def halves(blocks: np.ndarray, at: int) -> np.ndarray:
            return np.ascontiguousarray(blocks[..., at : at + 2]).view(np.float16).astype(np.float32)

        rows = int(tensor.shape[1]) if len(tensor.shape) > 1 else 1
        if tensor.tensor_type in (kind.Q4_0, kind.Q5_0, kind.Q8_0):
            step = np.abs(halves(raw.reshape(rows, -1, block_bytes), 0)[..., 0])
            return step, np.zeros_like(step)
        if tensor.tensor_type in (kind.Q4_1, kind.Q5_1):
            blocks = raw.reshape(rows, -1, block_bytes)
            return halves(blocks, 0)[..., 0], halves(blocks, 2)[..., 0]
        if tensor.tensor_type == kind.Q4_K:
            blocks = raw.reshape(rows, -1, block_bytes)
            scales, minima = gguf.quants.Q4_K.get_scale_min(blocks[..., 4:16].reshape(-1, 12))
            step = halves(blocks, 0) * scales.reshape(*blocks.shape[:2], 8).astype(np.float32)
            offset = -halves(blocks, 2) * minima.reshape(*blocks.shape[:2], 8).astype(np.float32)
            return step.reshape(rows, -1), offset.reshape(rows, -1)
        return None


def _pack_nibbles(values: np.ndarray) -> np.ndarray:
    """Two 4-bit values a byte along the last axis, the first in the low half."""
    if values.shape[-1] % 2:
        values = np.concatenate([values, np.zeros_like(values[..., :1])], axis=-1)
    return (values[..., 0::2] | (values[..., 1::2] << 4)).astype(np.uint8)


def _fit(blocks: np.ndarray, bits: int, shrink: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes, scales and zero points of [n, 32] blocks with the range shrunk by a factor.

    The range always holds zero, so that the zero point is a code.
    """
    top = float(2**bits - 1)
    low = np.minimum(blocks.min(axis=1), 0.0) * np.float32(shrink)
    high = np.maximum(blocks.max(axis=1), 0.0) * np.float32(shrink)
    scale = (high - low) / np.float32(top)
    scale = np.where(scale > 0, scale, np.float32(1.0)).astype(np.float32)
    zero = np.clip(np.rint(-low / scale), 0, top).astype(np.float32)
    codes = np.clip(np.rint(blocks / scale[:, None]) + zero[:, None], 0, top)
    return codes, scale, zero


def _refine(
    blocks: np.ndarray, bits: int, step: np.ndarray, offset: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Codes, scales and zero points that keep the grid of the source, and where they can.

    A scale of step / k meets every step of the source; only the offset is
    rounded, to a whole number of scales. Of the k for which the block fits in
    `bits`, the one that rounds the offset least is taken.
    """
    top = float(2**bits - 1)
    low = np.minimum(blocks.min(axis=1), 0.0)
    high = np.maximum(blocks.max(axis=1), 0.0)
    best = np.full(len(blocks), np.inf, dtype=np.float32)
    scale, zero = np.ones_like(step), np.zeros_like(step)
    for k in range(1, 18):
        with np.errstate(divide="ignore", invalid="ignore"):
            fine = step / np.float32(k)
            below, above = np.rint(-low / fine), np.rint(high / fine)
            miss = np.abs(offset / fine - np.rint(offset / fine)) * fine
        fits = (step > 0) & (below + above <= top) & (miss <= best)
        best = np.where(fits, miss, best)
        scale, zero = np.where(fits, fine, scale), np.where(fits, below, zero)
    codes = np.rint((blocks - offset[:, None]) / scale[:, None]) + np.rint(offset / scale)[:, None]
    return np.clip(codes + zero[:, None], 0, top), scale, zero, np.isfinite(best)


def _search(blocks: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes, scales and zero points of the shrunken range with the least squared error."""
    codes, scale, zero = _fit(blocks, bits, 1.0)
    least = np.full(len(blocks), np.inf, dtype=np.float32)
    for shrink in (1.0, 0.94, 0.88, 0.82, 0.76):
        trial, trial_scale, trial_zero = _fit(blocks, bits, shrink)
        centred = trial - trial_zero[:, None]
        energy = (centred * centred).sum(axis=1)
        refit = (centred * blocks).sum(axis=1) / np.maximum(energy, 1e-12)
        trial_scale = np.where(refit > 0, refit, trial_scale).astype(np.float32)
        error = ((centred * trial_scale[:, None] - blocks) ** 2).sum(axis=1)
        better = error < least
        least = np.where(better, error, least)
        codes = np.where(better[:, None], trial, codes)
        scale = np.where(better, trial_scale, scale)
        zero = np.where(better, trial_zero, zero)
    return codes, scale, zero


def quantise(
    weights: np.ndarray, bits: int, grid: tuple[np.ndarray, np.ndarray] | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Block-quantises a float32 [out, in] matrix for `MatMulNBits`.

    Returns the packed codes [out, blocks, 32 * bits / 8], the scales
    [out, blocks] and the packed zero points [out, bytes]. Where the grid of the
    source is given and fits the bits, it is kept if that is nearer: exact but
    for the rounding of its offsets.
    """
    rows, columns = weights.shape
    if columns % BLOCK:
        raise ValueError(f"a weight matrix has {columns} columns, not a multiple of {BLOCK}")
    per_row = columns // BLOCK
    codes_out = np.empty((rows, per_row, BLOCK), dtype=np.uint8)
    scales_out = np.empty((rows, per_row), dtype=np.float32)
    zeros_out = np.empty((rows, per_row), dtype=np.uint8)
    # A few million weights at once keep the temporaries small.
    at_once = max(1, (1 << 22) // columns)
    for start in range(0, rows, at_once):
        stop = min(start + at_once, rows)
        blocks = weights[start:stop].reshape(-1, BLOCK)
        codes, scale, zero = _search(blocks, bits) if bits == 4 else _fit(blocks, bits, 1.0)
        if grid is not None:
            step, offset = (side[start:stop].reshape(-1) for side in grid)
            kept, kept_scale, kept_zero, fits = _refine(blocks, bits, step, offset)
            error = (((kept - kept_zero[:, None]) * kept_scale[:, None] - blocks) ** 2).sum(axis=1)
            plain = (((codes - zero[:, None]) * scale[:, None] - blocks) ** 2).sum(axis=1)
            fits &= error <= plain
            codes = np.where(fits[:, None], kept, codes)
            scale, zero = np.where(fits, kept_scale, scale), np.where(fits, kept_zero, zero)
        codes_out[start:stop] = codes.astype(np.uint8).reshape(-1, per_row, BLOCK)
        scales_out[start:stop] = scale.reshape(-1, per_row)
        zeros_out[start:stop] = zero.astype(np.uint8).reshape(-1, per_row)
    if bits == 8:
        return codes_out, scales_out, zeros_out
    return _pack_nibbles(codes_out), scales_out, _pack_nibbles(zeros_out)


def settled(
    weights: np.ndarray, bits: int, grid: tuple[np.ndarray, np.ndarray] | None = None
) -> np.ndarray:
    """The matrix as the graph reads it: quantised and restored."""
    codes, scales, zeros = quantise(weights, bits, grid)
    if bits == 4:
        codes, zeros = ((np.stack([x & 15, x >> 4], axis=-1)).reshape(*x.shape[:-1], -1) for x in (codes, zeros))
    blocks = codes.astype(np.float32) - zeros[:, : scales.shape[1], None]
    return (blocks * scales[..., None]).reshape(weights.shape)


class _Graph:
    """Collects nodes and initializers, writing large ones aside where told to.

    What another graph has `kept_aside` is read from that graph's file.
    """

    def __init__(self, data_path: Path | None, kept_aside: Mapping[str, TensorProto] | None = None) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[TensorProto] = []
        self.kept_aside = dict(kept_aside or {})
        self._data = data_path.open("wb") if data_path else None
        self._count = 0

    def constant(self, name: str, value: np.ndarray) -> str:
        if self.shared([name]):
            return name
        value = np.ascontiguousarray(value)
        kind = helper.np_dtype_to_tensor_dtype(value.dtype)
        tensor = TensorProto(name=name, data_type=kind, dims=value.shape)
        if self._data is not None and value.nbytes >= graph_file.SMALL:
            graph_file.set_aside(tensor, value.tobytes(), self._data)
        else:
            tensor.raw_data = value.tobytes()
        self.initializers.append(tensor)
        return name

    def shared(self, names: Sequence[str]) -> bool:
        """Takes constants from the other graph's file, if it has kept all of them aside there."""
        if not all(name in self.kept_aside for name in names):
            return False
        self.initializers += [self.kept_aside[name] for name in names]
        return True

    def node(
        self,
        kind: str,
        inputs: Sequence[str],
        outputs: str | Sequence[str] | None = None,
        domain: str = "",
        **attributes: Any,
    ) -> str:
        """Adds a node and names its first output, which it returns."""
        self._count += 1
        if outputs is None:
            outputs = f"{kind}_{self._count}"
        names = [outputs] if isinstance(outputs, str) else list(outputs)
        self.nodes.append(
            helper.make_node(
                kind, list(inputs), names, name=f"{kind}_{self._count}", domain=domain, **attributes
            )
        )
        return names[0]

    def close(self) -> None:
        if self._data is not None:
            self._data.close()


class _Builder:
    """Lays the graph of one checkpoint, layer by layer, in the order of the data flow."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        window: int,
        precision: Mapping[str, Any],
        graph: _Graph,
        kept: np.ndarray | None,
        prefill: Sequence[str] = (),
        as_kept: Sequence[str] = (),
    ) -> None:
        self.checkpoint = checkpoint
        self.shape = checkpoint.shape
        self.window = window
        # Some layers lose more by fewer bits than others.
        self.bits = {kind: bits_of(precision, kind) for kind in KINDS}
        self.head_bits = int(precision["head"])
        self.embedding = precision["embedding"]
        # int8 activations are the runtime's fast path (accuracy level 4).
        self.accuracy_level = {"int8": 4, "float": 1}[precision.get("activations", "int8")]
        self.graph = graph
        # Which tokens an answer can hold, by their ids; all where it is None.
        self.kept = kept
        self.told = checkpoint.shape.vocab if kept is None else len(kept)
        # Which kinds of layers have the products for prompts, and which are as the source has them; none in the first graph.
        self.prefill, self.as_kept = prefill, as_kept
        if prefill:
            graph.constant("int8.last", np.array([-1], dtype=np.int64))
            graph.constant("int8.step", np.array(1 / 127, dtype=np.float32))
            # What a token of zeros is divided by.
            graph.constant("int8.least", np.array(1e-12, dtype=np.float32))
            graph.constant("int8.one", np.array(1, dtype=np.float32))
            graph.constant("int8.zero", np.array(128, dtype=np.uint8))

    def table(self, label: str, names: Sequence[str], bits: int, rows: np.ndarray | slice = slice(None)) -> list[str]:
        """Quantises the named tensors, stacked by rows, into three constants; of each tensor only these rows."""
        constants = [f"{label}.{what}" for what in TABLE]
        if self.graph.shared(constants):
            return constants
        parts = []
        for name in names:
            grid = self.checkpoint.grid(name)
            grid = None if grid is None else (grid[0][rows], grid[1][rows])
            parts.append(quantise(self.checkpoint.tensor(name)[rows], bits, grid))
        return [self.graph.constant(name, np.concatenate(arrays)) for name, arrays in zip(constants, zip(*parts))]

    def matmul(
        self, x: str, label: str, kind: str, names: Sequence[str], shape: tuple[int, int], bias: str = ""
    ) -> str:
        """The product with the named layers, their outputs side by side."""
        if kind in self.prefill:
            checkpoint = self.checkpoint
            weights = [settled(checkpoint.tensor(name), self.bits[kind], checkpoint.grid(name)) for name in names]
            return self.int8_product(x, label, np.concatenate(weights), bias)
        if kind in self.as_kept:
            return self.kept_product(x, label, kind, names, shape, bias)
        inputs = [x, *self.table(label, names, self.bits[kind])]
        return self.matmul_node(inputs, shape, self.bits[kind], bias)

    def kept_product(
        self, x: str, label: str, kind: str, names: Sequence[str], shape: tuple[int, int], bias: str
    ) -> str:
        """The product with layers as their source has them, and with what the adapter changes beside them."""
        graph, checkpoint = self.graph, self.checkpoint
        changes = [checkpoint.change(name) for name in names]
        changed = any(change is not None and change.any() for change in changes)
        rows, depth = shape
        kept = [checkpoint.as_kept(name) for name in names]
        if any(part is None for part in kept):
            # It has no codes of 4 bits for a part of it.
            label = label if self.bits[kind] == 8 else f"{label}.finer"
            return self.matmul_node([x, *self.table(label, names, 8)], shape, 8, bias)
        codes, scales, fine = (np.concatenate(arrays) for arrays in zip(*kept))
        if changed:
            sizes = [checkpoint.rows(name) for name in names]
            change = np.concatenate([np.zeros((size, depth)) if each is None else each for size, each in zip(sizes, changes)])
            inner, *block = beside.fitted(change, lambda values: settled(values, 8))
            codes = np.concatenate([codes, block[0][:, None]], axis=1)
            scales = np.concatenate([scales, block[1][:, None]], axis=1)
            fine = np.concatenate([fine, block[2][:, None] * SIXTEENTHS], axis=1)
            made = [graph.constant(f"{label}.beside.{what}", value) for what, value in zip(TABLE, quantise(inner, 8))]
            x = graph.node("Concat", [x, self.matmul_node([x, *made], (beside.SLOTS, depth), 8)], axis=-1)
        zeros = np.minimum((fine.astype(np.uint16) + SIXTEENTHS // 2) // SIXTEENTHS, 15).astype(np.uint8)
        tables = zip(TABLE, (_pack_nibbles(codes), scales, _pack_nibbles(zeros)))
        constants = [graph.constant(f"{label}.kept.{what}", value) for what, value in tables]
        graph.constant(constants[2] + FINE, fine)
        whole = (rows, depth + beside.SLOTS) if changed else shape
        return self.matmul_node([x, *constants], whole, 4, bias)

    def int8_product(self, x: str, label: str, weights: np.ndarray, bias: str) -> str:
        """The product with a matrix [out, in] in int8, of activations that are rounded token by token."""
        graph = self.graph
        scales = np.abs(weights).max(axis=1) / np.float32(WEIGHT_LIMIT)
        scales = np.where(scales > 0, scales, np.float32(1)).astype(np.float32)
        codes = np.rint(weights / scales[:, None]).astype(np.int8)
        largest = graph.node("ReduceMax", [graph.node("Abs", [x]), "int8.last"], keepdims=1)
        step = graph.node("Max", [graph.node("Mul", [largest, "int8.step"]), "int8.least"])
        rounded = graph.node("QuantizeLinear", [graph.node("Div", [x, step]), "int8.one", "int8.zero"])
        sums = graph.node("MatMulInteger", [rounded, graph.constant(f"{label}.int8", codes.T), "int8.zero"])
        out = graph.node("Cast", [sums], to=TensorProto.FLOAT)
        out = graph.node("Mul", [graph.node("Mul", [out, graph.constant(f"{label}.step", scales)]), step])
        return graph.node("Add", [out, bias]) if bias else out

    def matmul_node(
        self, inputs: list[str], shape: tuple[int, int], bits: int, bias: str = ""
    ) -> str:
        return self.graph.node(
            "MatMulNBits",
            inputs + (["", bias] if bias else []),
            domain=MICROSOFT,
            N=shape[0],
            K=shape[1],
            bits=bits,
            block_size=BLOCK,
            accuracy_level=self.accuracy_level,
        )

    def norm(self, x: str, name: str) -> str:
        gain = self.graph.constant(name, self.checkpoint.tensor(name))
        return self.graph.node(
            "SimplifiedLayerNormalization", [x, gain], axis=-1, epsilon=self.shape.epsilon, stash_type=1
        )

    def add_and_norm(self, x: str, residual: str, name: str) -> tuple[str, str]:
        """The normalised sum and the sum itself, which is the next residual."""
        gain = self.graph.constant(name, self.checkpoint.tensor(name))
        total = f"{name}.residual"
        out = self.graph.node(
            "SkipSimplifiedLayerNormalization",
            [x, residual, gain],
            [f"{name}.out", "", "", total],
            domain=MICROSOFT,
            epsilon=self.shape.epsilon,
        )
        return out, total

    def rotary_tables(self, base: float, label: str) -> tuple[str, str]:
        half = self.shape.head_dim // 2
        rates = base ** (-np.arange(half, dtype=np.float64) / half)
        if self.checkpoint.has("rope_freqs.weight"):
            rates = rates / self.checkpoint.tensor("rope_freqs.weight").astype(np.float64)
        angles = np.arange(self.window, dtype=np.float64)[:, None] * rates[None, :]
        return (
            self.graph.constant(f"rotary.{label}.cos", np.cos(angles).astype(np.float32)),
            self.graph.constant(f"rotary.{label}.sin", np.sin(angles).astype(np.float32)),
        )

    def embed(self) -> tuple[str, Callable[[str], str]]:
        """The embedded tokens, and the function that lays the output head."""
        graph, shape, checkpoint = self.graph, self.shape, self.checkpoint
        untied = checkpoint.has("output.weight")
        head_name = "output.weight" if untied else "token_embd.weight"
        head_shape = (self.told, shape.width)
        head = self.table("head", [head_name], self.head_bits, slice(None) if self.kept is None else self.kept)

        def lay_head(x: str) -> str:
            return self.matmul_node([x, *head], head_shape, self.head_bits)

        if self.embedding == "fp16":
            table = graph.constant(
                "embedding", checkpoint.tensor("token_embd.weight").astype(np.float16)
            )
            rows = graph.node("Gather", [table, "input_ids"], axis=0)
            return self.scaled(graph.node("Cast", [rows], to=TensorProto.FLOAT)), lay_head

        # `head` takes the head's table for a checkpoint that ties the two but
        # whose GGUF stores them twice, the embedding more coarsely.
        finest = self.embedding == "head" or not untied
        if finest and self.kept is None:
            if self.head_bits != 8:
                raise ValueError("an embedding shared with the head needs an 8-bit head")
            table = head
        else:
            table = self.table("embedding", [head_name if finest else "token_embd.weight"], 8)
        # The gather keeps the block axis of the table, so that the codes have
        # the very shape that the head's product wants and are stored once.
        cube = graph.constant("cube", np.array([shape.vocab, -1, 1], dtype=np.int64))
        rows = graph.node(
            "GatherBlockQuantized",
            [
                table[0],
                "input_ids",
                graph.node("Reshape", [table[1], cube]),
                graph.node("Reshape", [table[2], cube]),
            ],
            domain=MICROSOFT,
            gather_axis=0,
            quantize_axis=2,
            block_size=BLOCK,
            bits=8,
        )
        flat = graph.constant("flat", np.array([0, 0, shape.width], dtype=np.int64))
        return self.scaled(graph.node("Reshape", [rows, flat])), lay_head

    def scaled(self, x: str) -> str:
        if not self.shape.gemma:
            return x
        factor = np.array(math.sqrt(self.shape.width), dtype=np.float32)
        return self.graph.node("Mul", [x, self.graph.constant("embedding.factor", factor)])

    def attention(self, x: str, layer: int, tables: Mapping[bool, tuple[str, str]]) -> str:
        """Attention of one layer over normalised input, up to its output product."""
        graph, shape, checkpoint = self.graph, self.shape, self.checkpoint
        prefix = f"blk.{layer}."
        parts = [f"{prefix}attn_{part}" for part in "qkv"]
        bias = ""
        if checkpoint.has(f"{parts[0]}.bias"):
            joined = np.concatenate([checkpoint.tensor(f"{part}.bias") for part in parts])
            bias = graph.constant(f"{prefix}qkv.bias", joined)
        size = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
        names = [f"{part}.weight" for part in parts]
        qkv = self.matmul(x, f"{prefix}qkv", "attention", names, (size, shape.width), bias)
        if shape.gemma:
            query, key, value = self.normed_heads(qkv, prefix)
        else:
            query, key, value = qkv, "", ""
        cos, sin = tables[shape.is_local(layer)]
        attended = graph.node(
            "GroupQueryAttention",
            [
                query,
                key,
                value,
                f"past.{layer}.key",
                f"past.{layer}.value",
                "seqlens_k",
                "total_sequence_length",
                cos,
                sin,
            ],
            [f"{prefix}attended", f"present.{layer}.key", f"present.{layer}.value"],
            domain=MICROSOFT,
            num_heads=shape.heads,
            kv_num_heads=shape.kv_heads,
            do_rotary=1,
            # llama files hold the rows of Q and K in the order that rotates
            # neighbours; the others rotate the two halves of a head.
            rotary_interleaved=int(shape.architecture == "llama"),
            local_window_size=shape.sliding_window if shape.is_local(layer) else -1,
        )
        return attended

    def normed_heads(self, qkv: str, prefix: str) -> tuple[str, str, str]:
        """Q and K normalised head by head, as Gemma 3 wants them, and V."""
        graph, shape = self.graph, self.shape
        sizes = [shape.heads * shape.head_dim] + 2 * [shape.kv_heads * shape.head_dim]
        cut = graph.constant(f"{prefix}cut", np.array(sizes, dtype=np.int64))
        names = [f"{prefix}{part}" for part in "qkv"]
        graph.node("Split", [qkv, cut], names, axis=-1)
        out = []
        for name, heads, norm in zip(names, (shape.heads, shape.kv_heads), ("q", "k")):
            split = np.array([0, 0, heads, shape.head_dim], dtype=np.int64)
            join = np.array([0, 0, heads * shape.head_dim], dtype=np.int64)
            apart = graph.node("Reshape", [name, graph.constant(f"{name}.split", split)])
            normed = self.norm(apart, f"{prefix}attn_{norm}_norm.weight")
            out.append(graph.node("Reshape", [normed, graph.constant(f"{name}.join", join)]))
        return out[0], out[1], names[2]

    def feed_forward(self, x: str, layer: int) -> str:
        graph, shape = self.graph, self.shape
        prefix = f"blk.{layer}."
        names = [f"{prefix}ffn_{part}.weight" for part in ("gate", "up")]
        both = self.matmul(x, f"{prefix}gate_up", "gate_up", names, (2 * shape.hidden, shape.width))
        gate, up = f"{prefix}gate", f"{prefix}up"
        graph.node("Split", [both], [gate, up], axis=-1, num_outputs=2)
        if shape.gemma:
            gate = graph.node("FastGelu", [gate], domain=MICROSOFT)
        else:
            gate = graph.node("QuickGelu", [gate], domain=MICROSOFT, alpha=1.0)
        product = graph.node("Mul", [gate, up])
        names = [f"{prefix}ffn_down.weight"]
        return self.matmul(product, f"{prefix}down", "down", names, (shape.width, shape.hidden))

    def lay(self) -> None:
        graph, shape = self.graph, self.shape
        tables = {False: self.rotary_tables(shape.rope_base, "global")}
        if any(shape.is_local(layer) for layer in range(shape.layers)):
            tables[True] = self.rotary_tables(shape.local_rope_base, "local")
        residual, lay_head = self.embed()
        x = self.norm(residual, "blk.0.attn_norm.weight")
        graph.constant(LOGITS_AT, np.array([-1], dtype=np.int64))
        for layer in range(shape.layers):
            prefix = f"blk.{layer}."
            x = self.attention(x, layer, tables)
            if layer == shape.layers - 1:
                # Beyond the last attention only these positions are wanted.
                x = graph.node("Gather", [x, LOGITS_AT], axis=1)
                residual = graph.node("Gather", [residual, LOGITS_AT], axis=1)
            size = (shape.width, shape.heads * shape.head_dim)
            x = self.matmul(x, f"{prefix}output", "attention", [f"{prefix}attn_output.weight"], size)
            if shape.gemma:
                x = self.norm(x, f"{prefix}post_attention_norm.weight")
            x, residual = self.add_and_norm(x, residual, f"{prefix}ffn_norm.weight")
            x = self.feed_forward(x, layer)
            if shape.gemma:
                x = self.norm(x, f"{prefix}post_ffw_norm.weight")
            following = (
                f"blk.{layer + 1}.attn_norm.weight"
                if layer + 1 < shape.layers
                else "output_norm.weight"
            )
            x, residual = self.add_and_norm(x, residual, following)
        logits = lay_head(x)
        rows = graph.constant("logits.rows", np.array([-1, self.told], dtype=np.int64))
        graph.node("Reshape", [logits, rows], "logits")


def bits_of(precision: Mapping[str, Any], kind: str) -> int:
    """The bits of one kind of linear layer: its own, or those of all of them."""
    return int(precision.get(kind, precision["linear"]))


def _estimated_bytes(shape: Shape, precision: Mapping[str, Any], kept: np.ndarray | None) -> int:
    """The size of the graph, near enough to choose between one file and two."""
    per_code = {4: 0.5 + 4.5 / BLOCK, 8: 1 + 5 / BLOCK}
    qkv = (shape.heads + 2 * shape.kv_heads) * shape.head_dim * shape.width
    down = shape.width * shape.hidden
    layer = {"attention": qkv + shape.heads * shape.head_dim * shape.width, "gate_up": 2 * down, "down": down}
    table = shape.vocab * shape.width
    total = shape.layers * sum(size * per_code[bits_of(precision, kind)] for kind, size in layer.items())
    total += (table if kept is None else len(kept) * shape.width) * per_code[int(precision["head"])]
    total += table * {"fp16": 2.0, "head": 0.0 if kept is None else per_code[8]}.get(precision["embedding"], per_code[8])
    return int(total)


def write_graph(
    checkpoint: Checkpoint,
    window: int,
    precision: Mapping[str, Any],
    path: Path,
    kept: np.ndarray | None = None,
) -> None:
    """Writes `path`, and `path` + `.data` with its weights where they are large; where asked for, `PREFILL` and `PRODUCTS` so too.

    `kept` are the ids of the tokens that answers can hold, all if it is None.
    """
    prefill, products = (precision.get(graph, []) for graph in ("prefill", "products"))
    for graph, kinds in (("prefill", prefill), ("products", products)):
        if unknown := set(kinds) - set(KINDS):
            raise ValueError(f"'{graph}' names {sorted(unknown)} in the recipe; it can name {', '.join(KINDS)}")
    # Told beforehand, so that each weight can be written as soon as it is made.
    aside = _estimated_bytes(checkpoint.shape, precision, kept) >= graph_file.INLINE_LIMIT
    constants = _lay(checkpoint, window, precision, path, kept, aside)
    shared = {tensor.name: tensor for tensor in constants if tensor.data_location == TensorProto.EXTERNAL}
    if prefill:
        _lay(checkpoint, window, precision, path.with_name(PREFILL), kept, aside, shared, prefill=prefill)
    if products:
        _lay(checkpoint, window, precision, path.with_name(PRODUCTS), kept, aside, shared, as_kept=products)


def _lay(
    checkpoint: Checkpoint,
    window: int,
    precision: Mapping[str, Any],
    path: Path,
    kept: np.ndarray | None,
    aside: bool,
    shared: Mapping[str, TensorProto] | None = None,
    **kinds: Sequence[str],
) -> list[TensorProto]:
    """Writes the first graph, or beside the constants `shared` of it another; returns its constants."""
    shape = checkpoint.shape
    graph = _Graph(graph_file.data_path(path) if aside else None, shared)
    builder = _Builder(checkpoint, window, precision, graph, kept, **kinds)
    try:
        builder.lay()
    finally:
        graph.close()
    cache = ["batch", shape.kv_heads, "window", shape.head_dim]
    inputs = [
        helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "sequence"]),
        helper.make_tensor_value_info("seqlens_k", TensorProto.INT32, ["batch"]),
        helper.make_tensor_value_info("total_sequence_length", TensorProto.INT32, []),
        # An input that is also an initializer has that as its default.
        helper.make_tensor_value_info(LOGITS_AT, TensorProto.INT64, ["places"]),
    ]
    outputs = [
        helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["rows", builder.told])
    ]
    for name in _cache_names(shape.layers):
        inputs.append(helper.make_tensor_value_info(f"past.{name}", TensorProto.FLOAT, cache))
        outputs.append(helper.make_tensor_value_info(f"present.{name}", TensorProto.FLOAT, cache))
    model = helper.make_model(
        helper.make_graph(graph.nodes, "decoder", inputs, outputs, graph.initializers),
        opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid(MICROSOFT, 1)],
        ir_version=9,
        producer_name="dichroic",
    )
    path.write_bytes(model.SerializeToString(deterministic=True))
    return graph.initializers


def _cache_names(layers: int) -> Iterator[str]:
    for layer in range(layers):
        yield f"{layer}.key"
        yield f"{layer}.value"


def _prompts(path: Path, vocabulary: Sequence[str]) -> tuple[dict[str, Any], list[int]]:
    """The three task prompts of a model, with how much it may doubt an answer where that was measured and which part those have
    that people wrote beforehand, and the ids of its stop tokens."""
    prompts = json.loads(path.read_text(encoding="utf-8"))
    tasks = {}
    for task in TASKS:
        try:
            tasks[task] = {part: prompts["tasks"][task][part] for part in ("prefix", "suffix")}
            for bound in ("most_doubt", "least_right"):
                if bound in prompts["tasks"][task]:
                    tasks[task][bound] = float(prompts["tasks"][task][bound])
            if "beforehand" in prompts["tasks"][task]:
                bounds = prompts["tasks"][task]["beforehand"]
                tasks[task]["beforehand"] = {texts: float(bounds[texts]) for texts in ("english", "others") if texts in bounds}
        except KeyError as missing:
            raise ValueError(f"{path.name} has no {missing} for the task '{task}'; add it") from None
    known = {token: index for index, token in enumerate(vocabulary)}
    for token in prompts["stop"]:
        if token not in known:
            raise ValueError(f"{path.name} stops at '{token}', which the vocabulary does not hold")
    return tasks, [known[token] for token in prompts["stop"]]


def _mood(path: Path, vocabulary: int) -> dict[str, Any]:
    """How the mood of a text is read: what scripts/train/generator_mood.py writes, for the manifest."""
    found = load_file(path)
    tokens, weights, bias = found["tokens"], found["weights"], found["bias"]
    if weights.shape != (3, len(tokens)) or bias.shape != (3,) or not ((tokens >= 0) & (tokens < vocabulary)).all():
        raise ValueError(f"{path.name} does not read three moods from tokens of this vocabulary: write it anew")
    told = [[round(float(weight), 5) for weight in row] for row in weights]
    return {"tokens": tokens.tolist(), "weights": told, "bias": [round(float(value), 5) for value in bias]}


def opened(
    source: Mapping[str, Path], recipe: Mapping[str, Any], model_dir: Path, out: Path
) -> tuple[Checkpoint, dict[str, Any]]:
    """The checkpoint of a recipe with its adapter, and its part of the manifest; writes `tokenizer.json` into `out`.

    `source["gguf"]` is the checkpoint, already verified; `recipe["adapter"]`
    (optional) names a safetensors file of low-rank factors beside the recipe,
    `recipe["mood"]` (optional) one of how moods are read.
    """
    adapter = low_rank.unpacked(load_file(Path(model_dir) / recipe["adapter"])) if "adapter" in recipe else None
    checkpoint = Checkpoint(Path(source["gguf"]), adapter)
    shape = checkpoint.shape
    tokens = checkpoint.metadata["tokenizer.ggml.tokens"]
    tasks, stop_ids = _prompts(Path(model_dir) / recipe["prompts"], tokens)
    gguf_tokenizer.write(checkpoint.metadata, Path(out) / "tokenizer.json")
    mood = {"mood": _mood(Path(model_dir) / recipe["mood"], shape.vocab)} if "mood" in recipe else {}
    return checkpoint, {
        "layers": shape.layers,
        "kv_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab": shape.vocab,
        "window": int(recipe["window"]),
        "stop_ids": stop_ids,
        "tasks": tasks,
        "languages": recipe.get("languages", "any"),
        **mood,
    }


def _kept(path: Path, shape: Shape, stop_ids: Sequence[int]) -> np.ndarray:
    """The ids of the tokens that a vocabulary file keeps."""
    bits = load_file(path)["kept"]
    if bits.size != (shape.vocab + 7) // 8:
        raise ValueError(f"{path.name} is of another vocabulary: write it anew with scripts/train/generator_vocabulary.py")
    kept = np.flatnonzero(np.unpackbits(bits, count=shape.vocab))
    if not np.isin(stop_ids, kept).all():
        raise ValueError(f"{path.name} leaves out a stop token: no answer would end")
    return kept


def build(
    source: Mapping[str, Path], recipe: Mapping[str, Any], model_dir: Path, out: Path
) -> dict[str, Any]:
    """Builds `model.onnx` and `tokenizer.json` into `out`, and what else the recipe asks for; returns the manifest part.

    Besides what `opened` reads, `recipe["vocabulary"]` (optional) names the file
    of the tokens that answers can hold.
    """
    checkpoint, part = opened(source, recipe, model_dir, out)
    kept = _kept(Path(model_dir) / recipe["vocabulary"], checkpoint.shape, part["stop_ids"]) if "vocabulary" in recipe else None
    write_graph(checkpoint, part["window"], recipe["precision"], Path(out) / "model.onnx", kept)
    if kept is not None:
        (Path(out) / ANSWER_TOKENS).write_bytes(kept.astype("<u4").tobytes())
        part["answer_tokens"] = ANSWER_TOKENS
    if recipe["precision"].get("prefill"):
        part["prefill"] = PREFILL
    if recipe["precision"].get("products"):
        part["products"] = PRODUCTS
    return part
