"""Owns the trainable form of a generator: a GGUF checkpoint with low-rank deltas.

The weights of the checkpoint, dequantised, stay frozen; every linear layer
gets a low-rank delta. `adapter` writes them under the names that
scripts/forge/decoder.py merges: `<tensor>.lora_a` [rank, in] and
`<tensor>.lora_b` [out, rank]. Architectures `llama`, `qwen2` and `gemma3`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from forge.decoder import BLOCK, Checkpoint, Shape, bits_of  # noqa: E402


# Keys and values of the places that a layer has seen, each [rows, heads, places, head_dim].
Memory = tuple[Tensor, Tensor]


def settled(weights: Tensor, bits: int) -> Tensor:
    """The matrix as a build of so many bits holds it: forge.decoder.settled, on the device that the weights are on.

    Of a billion weights it takes two cores minutes.
    """
    blocks, top = weights.reshape(-1, BLOCK), float(2**bits - 1)
    below, above = blocks.amin(dim=1).clamp(max=0), blocks.amax(dim=1).clamp(min=0)
    best, least = torch.empty_like(blocks), torch.full_like(below, math.inf)
    for shrink in (1.0, 0.94, 0.88, 0.82, 0.76) if bits == 4 else (1.0,):
        low, high = below * shrink, above * shrink
        scale = (high - low) / top
        scale = torch.where(scale > 0, scale, 1.0)
        zero = (-low / scale).round().clamp(0, top)[:, None]
        centred = ((blocks / scale[:, None]).round() + zero).clamp(0, top) - zero
        if bits == 4:
            refit = (centred * blocks).sum(dim=1) / (centred * centred).sum(dim=1).clamp(min=1e-12)
            scale = torch.where(refit > 0, refit, scale)
        held = centred * scale[:, None]
        error = (held - blocks).square().sum(dim=1)
        better = error < least
        least = torch.where(better, error, least)
        best = torch.where(better[:, None], held, best)
    return best.reshape(weights.shape)


class Linear(nn.Module):
    """A frozen linear layer with its low-rank delta."""

    def __init__(self, checkpoint: Checkpoint, name: str, rank: int, weight: Tensor) -> None:
        super().__init__()
        self.name = f"{name}.weight"
        bias = f"{name}.bias"
        self.register_buffer("weight", weight, persistent=False)
        self.register_buffer(
            "bias", torch.from_numpy(checkpoint.tensor(bias)) if checkpoint.has(bias) else None, persistent=False
        )
        self.lora_a = nn.Parameter(torch.empty(rank, weight.shape[1]))
        self.lora_b = nn.Parameter(torch.zeros(weight.shape[0], rank))
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))

    @torch.no_grad()
    def settle(self, plain: np.ndarray, bits: int) -> None:
        """Moves the frozen weight so that its sum with the delta is what a build of so many bits holds.

        `plain` is the checkpoint's weight. The delta goes on learning, now with
        the error of the quantisation in view.
        """
        change = self.lora_b @ self.lora_a
        self.weight.copy_(settled(torch.from_numpy(plain).to(change.device) + change, bits) - change)

    @torch.no_grad()
    def merge(self) -> None:
        """Adds the delta to the frozen weight and drops it: for answering alone."""
        # Not in place: a checkpoint's own numbers may be mapped for reading alone.
        self.weight = self.weight + (self.lora_b @ self.lora_a).to(self.weight.dtype)
        self.lora_a = self.lora_b = None

    def forward(self, x: Tensor) -> Tensor:
        x = x.to(self.weight.dtype)
        plain = F.linear(x, self.weight, None if self.bias is None else self.bias.to(x.dtype))
        if self.lora_a is None:
            return plain
        return plain + F.linear(F.linear(x, self.lora_a.to(x.dtype)), self.lora_b.to(x.dtype))


class Layer(nn.Module):
    PARTS = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")

    def __init__(self, checkpoint: Checkpoint, index: int, rank: int, weights: Sequence[Tensor]) -> None:
        super().__init__()
        at = f"blk.{index}."
        self.shape, self.local = checkpoint.shape, checkpoint.shape.is_local(index)
        self.query, self.key, self.value, self.output, self.gate, self.up, self.down = (
            Linear(checkpoint, f"{at}{part}", rank, weight) for part, weight in zip(self.PARTS, weights, strict=True)
        )
        for name in ("attn_norm", "ffn_norm", "attn_q_norm", "attn_k_norm", "post_attention_norm", "post_ffw_norm"):
            full = f"{at}{name}.weight"
            gain = torch.from_numpy(checkpoint.tensor(full)) if checkpoint.has(full) else None
            self.register_buffer(name, gain, persistent=False)

    def _norm(self, x: Tensor, gain: Tensor | None) -> Tensor:
        return x if gain is None else F.rms_norm(x.float(), x.shape[-1:], gain, self.shape.epsilon)

    def _turned(self, x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        """Rotary positions: neighbours in llama's files, halves in the others."""
        cos, sin = turn
        if self.shape.architecture == "llama":
            a, b = x[..., 0::2], x[..., 1::2]
            return torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2)
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)

    def forward(
        self, x: Tensor, mask: Tensor, turns: dict[bool, tuple[Tensor, Tensor]], memory: Memory | None = None, at: int = 0
    ) -> Tensor:
        shape = self.shape
        batch, tokens, _ = x.shape

        def heads(y: Tensor, count: int) -> Tensor:
            return y.view(batch, tokens, count, shape.head_dim).transpose(1, 2)

        h = self._norm(x, self.attn_norm)
        query = self._turned(self._norm(heads(self.query(h), shape.heads), self.attn_q_norm), turns[self.local])
        key = self._turned(self._norm(heads(self.key(h), shape.kv_heads), self.attn_k_norm), turns[self.local])
        value = heads(self.value(h), shape.kv_heads)
        query, key = query.to(value.dtype), key.to(value.dtype)
        if memory is not None:
            for kept, new in zip(memory, (key, value)):
                kept[:, :, at : at + tokens] = new
            key, value = (kept[:, :, : at + tokens] for kept in memory)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)
        mixed = mixed.transpose(1, 2).reshape(batch, tokens, -1)
        x = x + self._norm(self.output(mixed), self.post_attention_norm)
        h = self._norm(x, self.ffn_norm)
        gate = self.gate(h)
        gate = F.gelu(gate, approximate="tanh") if shape.gemma else F.silu(gate)
        return x + self._norm(self.down(gate * self.up(h)), self.post_ffw_norm)


class Generator(nn.Module):
    """A decoder over whole trees of tokens: positions and mask are given.

    `kind` is the number format of the frozen weights and of the matrix
    products; states, normalisation, rotary positions and the deltas' own
    weights stay float32.
    """

    def __init__(self, path: Path, rank: int, kind: torch.dtype = torch.float32) -> None:
        super().__init__()
        checkpoint = Checkpoint(path)
        self.shape: Shape = checkpoint.shape
        # A file that stores a tied table twice has the finer one at the head,
        # and the built graph embeds with that.
        head = checkpoint.tensor("output.weight" if checkpoint.has("output.weight") else "token_embd.weight")
        self.register_buffer("words", torch.from_numpy(head).to(kind), persistent=False)
        self.register_buffer("norm", torch.from_numpy(checkpoint.tensor("output_norm.weight")), persistent=False)
        names = [f"blk.{i}.{part}.weight" for i in range(self.shape.layers) for part in Layer.PARTS]
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            weights = list(pool.map(lambda name: torch.from_numpy(checkpoint.tensor(name)).to(kind), names))
        of_layer = zip(*[iter(weights)] * len(Layer.PARTS), strict=True)
        self.layers = nn.ModuleList(Layer(checkpoint, i, rank, found) for i, found in enumerate(of_layer))

    def _turns(self, positions: Tensor) -> dict[bool, tuple[Tensor, Tensor]]:
        half = self.shape.head_dim // 2
        out = {}
        for local, base in ((False, self.shape.rope_base), (True, self.shape.local_rope_base)):
            rates = base ** (-torch.arange(half, device=positions.device, dtype=torch.float64) / half)
            angles = (positions[:, None, :, None].double() * rates).float()
            out[local] = (angles.cos(), angles.sin())
        return out

    def memory(self, rows: int, places: int) -> list[Memory]:
        """Room for the keys and values of so many rows and places, a pair for each layer."""
        size = (rows, self.shape.kv_heads, places, self.shape.head_dim)
        return [tuple(torch.zeros(size, dtype=self.words.dtype, device=self.words.device) for _ in range(2)) for _ in self.layers]

    def merge(self) -> None:
        for module in self.modules():
            if isinstance(module, Linear):
                module.merge()

    def states(
        self, ids: Tensor, positions: Tensor, mask: Tensor, memory: list[Memory] | None = None, at: int = 0
    ) -> Tensor:
        """Last states [batch, tokens, width]; `mask` [batch, tokens, seen] is true where a token may look.

        Seen are the tokens themselves and, with a memory, what it holds before place `at`, where they are put.
        """
        x = self.words[ids].float()
        if self.shape.gemma:
            x = x * math.sqrt(self.shape.width)
        turns = self._turns(positions)
        for layer, kept in zip(self.layers, memory or [None] * len(self.layers)):
            x = layer(x, mask[:, None], turns, kept, at)
        return F.rms_norm(x, x.shape[-1:], self.norm, self.shape.epsilon)

    def logits(self, states: Tensor) -> Tensor:
        return F.linear(states.to(self.words.dtype), self.words).float()

    def settle(self, path: Path, precision: Mapping[str, Any]) -> None:
        """Settles every linear layer at the bits that a recipe's `precision` gives its kind."""
        checkpoint = Checkpoint(path)
        kinds = {"gate": "gate_up", "up": "gate_up", "down": "down"}

        def settle(module: Linear) -> None:
            part = module.name.split(".")[-2].rpartition("_")[2]
            module.settle(checkpoint.tensor(module.name), bits_of(precision, kinds.get(part, "attention")))

        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            list(pool.map(settle, (m for m in self.modules() if isinstance(m, Linear))))

    def adapter(self) -> dict[str, np.ndarray]:
        out = {}
        for module in self.modules():
            # A delta that never learned adds nothing and need not be kept.
            if isinstance(module, Linear) and bool(module.lora_b.any()):
                out[f"{module.name}.lora_a"] = module.lora_a.detach().cpu().numpy()
                out[f"{module.name}.lora_b"] = module.lora_b.detach().cpu().numpy()
        return out

    def load_adapter(self, adapter: dict[str, np.ndarray]) -> None:
        for module in self.modules():
            if isinstance(module, Linear) and f"{module.name}.lora_a" in adapter:
                module.lora_a.data = torch.from_numpy(np.asarray(adapter[f"{module.name}.lora_a"], np.float32)).to(module.weight.device)
                module.lora_b.data = torch.from_numpy(np.asarray(adapter[f"{module.name}.lora_b"], np.float32)).to(module.weight.device)
