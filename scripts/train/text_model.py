"""Owns the trainable form of a text encoder with low-rank deltas, and of the text classifier on it.

The base weights stay frozen. Every linear layer gets a low-rank delta, its bias
and the layer normalisations a plain one; `delta_tensors` writes them under the
names that scripts/forge/encoder.py reads.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from forge import encoder, low_rank  # noqa: E402


HEADS = ("harm", "expressibility", "sentiment")


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
        kind = self.weight.dtype
        x = x.to(kind)
        out = F.linear(x, self.weight, self.bias.to(kind))
        return out + F.linear(F.linear(x, self.lora_a.to(kind)), self.lora_b.to(kind)) * 2.0

    def delta(self) -> dict[str, Tensor]:
        return {
            f"{self.name}.weight.lora_a": self.lora_a.detach().half(),
            f"{self.name}.weight.lora_b": (self.lora_b.detach() * 2.0).half(),
            f"{self.name}.bias.delta": (self.bias.detach() - self.base_bias).half(),
        }


class Norm(nn.Module):
    """A layer normalisation whose scale and shift are trained."""

    def __init__(self, name: str, base: dict[str, Tensor], epsilon: float) -> None:
        super().__init__()
        self.name, self.epsilon = name, epsilon
        for part in ("weight", "bias"):
            value = base[f"{name}.{part}"]
            self.register_buffer(f"base_{part}", value.clone(), persistent=False)
            setattr(self, part, nn.Parameter(value.clone()))

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, (x.shape[-1],), self.weight, self.bias, self.epsilon)

    def delta(self) -> dict[str, Tensor]:
        return {
            f"{self.name}.weight.delta": (self.weight.detach() - self.base_weight).half(),
            f"{self.name}.bias.delta": (self.bias.detach() - self.base_bias).half(),
        }


class Layer(nn.Module):
    def __init__(self, index: int, base: dict[str, Tensor], kind: encoder.Backbone, rank: int) -> None:
        super().__init__()
        at = f"encoder.layer.{index}"
        self.heads = kind.heads
        self.query = Linear(f"{at}.attention.self.query", base, rank)
        self.key = Linear(f"{at}.attention.self.key", base, rank)
        self.value = Linear(f"{at}.attention.self.value", base, rank)
        self.attended = Linear(f"{at}.attention.output.dense", base, rank)
        self.norm_1 = Norm(f"{at}.attention.output.LayerNorm", base, kind.epsilon)
        self.up = Linear(f"{at}.intermediate.dense", base, rank)
        self.down = Linear(f"{at}.output.dense", base, rank)
        self.norm_2 = Norm(f"{at}.output.LayerNorm", base, kind.epsilon)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        batch, tokens, width = x.shape

        def split(y: Tensor) -> Tensor:
            return y.view(batch, tokens, self.heads, width // self.heads).transpose(1, 2)

        y = F.scaled_dot_product_attention(
            split(self.query(x)), split(self.key(x)), split(self.value(x)),
            attn_mask=mask if mask.dtype == torch.bool else mask.to(self.query.weight.dtype),
        )
        y = y.transpose(1, 2).reshape(batch, tokens, width)
        x = self.norm_1(x + F.dropout(self.attended(y), 0.1, self.training))
        return self.norm_2(x + F.dropout(self.down(F.gelu(self.up(x))), 0.1, self.training))


class Encoder(nn.Module):
    """The encoder and its pooling; `head_names` are the linear layers that stand on it."""

    head_names: tuple[str, ...] = ()

    def __init__(self, base: dict[str, Tensor], kind: encoder.Backbone, rank: int) -> None:
        super().__init__()
        self.width = base["embeddings.LayerNorm.bias"].numel()
        self.register_buffer("words", base["embeddings.word_embeddings.weight"], persistent=False)
        self.register_buffer(
            "places",
            base["embeddings.position_embeddings.weight"]
            + base["embeddings.token_type_embeddings.weight"][0],
            persistent=False,
        )
        # MPNet's view of distances stays as published.
        distances = base.get("encoder.relative_attention_bias.weight")
        if distances is not None:
            buckets = torch.from_numpy(encoder.distance_buckets(encoder.PLACES))
            distances = distances[buckets].permute(2, 0, 1)[None].contiguous()
        self.register_buffer("distances", distances, persistent=False)
        # Which inner channels the base was narrowed to, if it was (encoder.of_inner): the delta says so again.
        self.kept = {name: value.to(torch.int16) for name, value in base.items() if name.endswith(".inner.kept")}
        self.norm_0 = Norm("embeddings.LayerNorm", base, kind.epsilon)
        self.layers = nn.ModuleList(Layer(i, base, kind, rank) for i in range(encoder.layer_count(base)))

    def in_bf16(self) -> Self:
        """Multiplies in bfloat16 from now on; states, normalisation and what is trained stay float32."""
        for module in self.modules():
            if isinstance(module, Linear):
                module.weight = module.weight.bfloat16()
        return self

    def pooled(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """Mean and highest state of every text, side by side [batch, 2 * width]."""
        tokens = ids.shape[1]
        inside = torch.arange(tokens, device=ids.device)[None, :] < lengths[:, None]
        x = self.norm_0(self.words[ids] + self.places[:tokens])
        mask = inside[:, None, None, :]
        if self.distances is not None:
            mask = self.distances[..., :tokens, :tokens].masked_fill(~mask, -1e4)
        for layer in self.layers:
            x = layer(x, mask)
        column = inside[..., None]
        mean = (x * column).sum(1) / lengths[:, None]
        return torch.cat([mean, x.masked_fill(~column, -1e4).amax(1)], dim=1)

    def delta_tensors(self) -> dict[str, Tensor]:
        """The delta as it is kept."""
        out: dict[str, Tensor] = dict(self.kept)
        for module in self.modules():
            if isinstance(module, (Linear, Norm)):
                out |= module.delta()
        for name in self.head_names:
            head = getattr(self, name)
            out[f"{name}.weight"] = head.weight.detach().clone()
            out[f"{name}.bias"] = head.bias.detach().clone()
        return {name: value.cpu().contiguous() for name, value in out.items()}

    def load_delta(self, delta: Mapping[str, np.ndarray]) -> None:
        """Goes on from a committed delta; one of a smaller rank, or with a head of fewer outputs, fills the first of its rows."""
        device = self.words.device
        delta = {name: torch.from_numpy(value).to(device) for name, value in low_rank.unpacked(delta).items()}
        for module in self.modules():
            if isinstance(module, Linear):
                a, b = (delta[f"{module.name}.weight.lora_{x}"] for x in "ab")
                module.lora_a.data[: len(a)] = a
                module.lora_b.data[:, : b.shape[1]] = b / 2.0
                module.bias.data = module.base_bias + delta[f"{module.name}.bias.delta"]
            elif isinstance(module, Norm):
                for part in ("weight", "bias"):
                    getattr(module, part).data = getattr(module, f"base_{part}") + delta[f"{module.name}.{part}.delta"]
        for name in self.head_names:
            factors = [delta.get(f"{name}.weight.lora_{x}") for x in "ba"]
            weight = delta.get(f"{name}.weight") if any(one is None for one in factors) else factors[0] @ factors[1]
            if weight is None:
                continue
            head = getattr(self, name)
            rows, columns = weight.shape
            head.weight.data[:rows] = 0
            head.weight.data[:rows, :columns] = weight
            head.bias.data[:rows] = delta[f"{name}.bias"]


class TextClassifier(Encoder):
    """The encoder with five harm logits, five of expressibility and one of sentiment.

    Harm is read from the mean and the highest of the states, so that one bad
    sentence shows among many; the others from their mean alone.
    """

    head_names = HEADS

    def __init__(self, base: dict[str, Tensor], kind: encoder.Backbone, rank: int) -> None:
        super().__init__(base, kind, rank)
        self.harm = nn.Linear(2 * self.width, 5)
        self.expressibility = nn.Linear(self.width, 5)
        self.sentiment = nn.Linear(self.width, 1)

    def heads(self, pooled: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean = pooled[:, : self.width]
        return self.harm(pooled), self.expressibility(mean), self.sentiment(mean)[:, 0]

    def forward(self, ids: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.heads(F.dropout(self.pooled(ids, lengths), 0.1, self.training))


def load_base(
    path: Path, layers: list[int] | None = None, start: Mapping[str, np.ndarray] | None = None
) -> dict[str, Tensor]:
    """The base as tensors, narrowed as the delta is that a run starts from."""
    base = encoder.of_inner(encoder.load_base(path, layers), start or {})
    return {name: torch.from_numpy(np.require(value, requirements=["C", "W"])) for name, value in base.items()}
