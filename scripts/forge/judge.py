"""Builds a judge of answers: an encoder's weights and a trained delta, as one ONNX graph.

The encoder is one of forge.encoder's, the delta of its form, with two heads: `verdict.weight` [6, 2 * width] and
`verdict.bias`, over the mean and the highest of the last layer's states, and that of a classifier for what has nothing to
express, which a delta may be without. A sequence is `cls`, a text, `sep`, an answer to it, `sep`, or ends behind the text.
The graph takes `input_ids` and `lengths` as that of a classifier does, and gives `verdict`, raw logits in the order of
VERDICTS: how right the answer is as an expression in either light or as a reply, each alone; of a text without an answer
its mood, the three together. Where it has the second head, it gives `expressibility` of a text without an answer, too: the
logits of a classifier, special where those of a statement hold less than half.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnx
from safetensors.numpy import load_file

from . import encoder, graph_file

VERDICTS = ["positive", "negative", "reply", "good", "bad", "plain"]
HEADS = {
    "verdict": encoder.Head("both", len(VERDICTS)),
    "expressibility": encoder.Head("embedding", len(encoder.EXPRESSIBILITY), optional=True),
}
# Tokens of each part: together with the control tokens all that the encoder has places for.
TEXT_TOKENS, ANSWER_TOKENS = 120, 133


def build(source: dict[str, Path], recipe: dict, model_dir: Path, out: Path) -> dict:
    """Write model.onnx and tokenizer.json into `out`; return the manifest's part."""
    kind = encoder.backbone(recipe)
    tensors = encoder.merge(encoder.load_base(source[kind.weights]), load_file(model_dir / recipe["delta"]), HEADS)
    return written(encoder.graph(tensors, kind, heads=HEADS), kind, source, out)


def written(model: onnx.ModelProto, kind: encoder.Backbone, source: Mapping[str, Path], out: Path) -> dict:
    """Writes a judge's graph and its tokenizer into `out`; returns the manifest's part."""
    onnx.checker.check_model(model)
    graph_file.write(model, out / "model.onnx")
    encoder.write(out / "tokenizer.json", encoder.tokenizer(kind, source))
    return {
        **kind.special_ids, "text_tokens": TEXT_TOKENS, "answer_tokens": ANSWER_TOKENS, "verdicts": VERDICTS,
    }
