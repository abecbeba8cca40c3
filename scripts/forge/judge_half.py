"""Builds a judge of answers in half precision, for GPUs, as forge.encoder_half does it."""

from __future__ import annotations

from pathlib import Path

from . import encoder, judge
from .encoder_half import halved


def build(source: dict[str, Path], recipe: dict, model_dir: Path, out: Path) -> dict:
    """As `judge.build`, of the same recipe."""
    tensors = judge.merged(source, recipe, model_dir)
    model = halved(encoder.graph(tensors, encoder.backbone(recipe), "float32", heads=judge.HEADS))
    return judge.written(model, tensors, source, recipe, model_dir, out)
