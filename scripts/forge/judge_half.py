"""Builds a judge of answers in half precision, for GPUs, as forge.encoder_half does it."""

from __future__ import annotations

from pathlib import Path

from safetensors.numpy import load_file

from . import encoder, judge
from .encoder_half import halved


def build(source: dict[str, Path], recipe: dict, model_dir: Path, out: Path) -> dict:
    """As `judge.build`, of the same recipe."""
    kind = encoder.backbone(recipe)
    tensors = encoder.merge(encoder.load_base(source[kind.weights]), load_file(model_dir / recipe["delta"]), judge.HEADS)
    return judge.written(halved(encoder.graph(tensors, kind, "float32", heads=judge.HEADS)), kind, source, out)
