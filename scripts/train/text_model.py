"""Owns the trainable form of the text classifier: MiniLM with low-rank deltas.

The base weights stay frozen. Every linear layer gets a low-rank delta, its bias
and the layer normalisations a plain one; `delta_tensors` writes them under the
names that scripts/forge/encoder.py reads.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

LAYERS, WIDTH, HEADS, INNER, EPSILON = 6, 384, 12, 1536, 1e-12


class Linear(nn.Module):
    """A frozen linear layer, its low-rank delta and its trainable bias."""

    def __init__(self, name: str, base: dict[str, Tensor], rank: int) -> None:
        super().__init__()
        self.name = name
        weight = base[f"{name}.weight"]
        self.register_buffer("weight", weight, persistent=False)
        self.register_buffer("base_bias", base[f"{name}.bias"].clone(), persistent=False)
        self.bias = nn.Parameter(base[f"{name}.bias"].clone())
        self.lora_a = nn.Parameter(torch.empty(rank, weight.shape[1]))
        self.lora_b = nn.Parameter(torch.zeros(weight.shape[0], rank))
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        out = F.linear(x, self.weight, self.bias)
        return out + F.linear(F.linear(x, self.lora_a), self.lora_b) * 2.0

    def delta(self) -> dict[str, Tensor]:
        return {
            f"{self.name}.weight.lora_a": self.lora_a.detach().half(),
            f"{self.name}.weight.lora_b": (self.lora_b.detach() * 2.0).half(),
            f"{self.name}.bias.delta": (self.bias.detach() - self.base_bias).half(),
        }


class Norm(nn.Module):
    """A layer normalisation whose scale and shift are trained."""

    def __init__(self, name: str, base: dict[str, Tensor]) -> None:
        super().__init__()
        self.name = name
        for part in ("weight", "bias"):
            value = base[f"{name}.{part}"]
            self.register_buffer(f"base_{part}", value.clone(), persistent=False)
            setattr(self, part, nn.Parameter(value.clone()))

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, (WIDTH,), self.weight, self.bias, EPSILON)

    def delta(self) -> dict[str, Tensor]:
        return {
            f"{self.name}.weight.delta": (self.weight.detach() - self.base_weight).half(),
            f"{self.name}.bias.delta": (self.bias.detach() - self.base_bias).half(),
        }


class Layer(nn.Module):
    def __init__(self, index: int, base: dict[str, Tensor], rank: int) -> None:
        super().__init__()
        at = f"encoder.layer.{index}"
        self.query = Linear(f"{at}.attention.self.query", base, rank)
        self.key = Linear(f"{at}.attention.self.key", base, rank)
        self.value = Linear(f"{at}.attention.self.value", base, rank)
        self.attended = Linear(f"{at}.attention.output.dense", base, rank)
        self.norm_1 = Norm(f"{at}.attention.output.LayerNorm", base)
        self.up = Linear(f"{at}.intermediate.dense", base, rank)
        self.down = Linear(f"{at}.output.dense", base, rank)
        self.norm_2 = Norm(f"{at}.output.LayerNorm", base)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        batch, tokens, _ = x.shape

        def split(y: Tensor) -> Tensor:
            return y.view(batch, tokens, HEADS, WIDTH // HEADS).transpose(1, 2)

        y = F.scaled_dot_product_attention(
            split(self.query(x)), split(self.key(x)), split(self.value(x)), attn_mask=mask
        )
        y = y.transpose(1, 2).reshape(batch, tokens, WIDTH)
        x = self.norm_1(x + F.dropout(self.attended(y), 0.1, self.training))
        return self.norm_2(x + F.dropout(self.down(F.gelu(self.up(x))), 0.1, self.training))


class TextClassifier(nn.Module):
    """MiniLM, mean pooling, five harm logits and five expressibility logits."""

    def __init__(self, base: dict[str, Tensor], rank: int) -> None:
        super().__init__()
        self.register_buffer("words", base["embeddings.word_embeddings.weight"], persistent=False)
        self.register_buffer(
            "places",
            base["embeddings.position_embeddings.weight"]
            + base["embeddings.token_type_embeddings.weight"][0],
            persistent=False,
        )
        self.norm_0 = Norm("embeddings.LayerNorm", base)
        self.layers = nn.ModuleList(Layer(i, base, rank) for i in range(LAYERS))
        self.harm = nn.Linear(WIDTH, 5)
        self.expressibility = nn.Linear(WIDTH, 5)

    def pooled(self, ids: Tensor, lengths: Tensor) -> Tensor:
        tokens = ids.shape[1]
        inside = torch.arange(tokens)[None, :] < lengths[:, None]
        x = self.norm_0(self.words[ids] + self.places[:tokens])
        mask = inside[:, None, None, :]
        for layer in self.layers:
            x = layer(x, mask)
        return (x * inside[..., None]).sum(1) / lengths[:, None]

    def heads(self, pooled: Tensor) -> tuple[Tensor, Tensor]:
        return self.harm(pooled), self.expressibility(pooled)

    def forward(self, ids: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        return self.heads(F.dropout(self.pooled(ids, lengths), 0.1, self.training))

    def delta_tensors(self, with_encoder: bool = True) -> dict[str, Tensor]:
        """What text.safetensors holds; without the encoder only the heads."""
        out: dict[str, Tensor] = {}
        if with_encoder:
            for module in self.modules():
                if isinstance(module, (Linear, Norm)):
                    out |= module.delta()
        for name in ("harm", "expressibility"):
            head = getattr(self, name)
            out[f"{name}.weight"] = head.weight.detach().clone()
            out[f"{name}.bias"] = head.bias.detach().clone()
        return out


def load_base(path: Path) -> dict[str, Tensor]:
    base = load_file(str(path))
    if "embeddings.word_embeddings.weight" not in base:
        raise SystemExit(f"{path} is not all-MiniLM-L6-v2: it has no word embeddings.")
    return base
