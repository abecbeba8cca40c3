"""Builds a judge of answers: an encoder's weights and a trained delta, as one ONNX graph.

The encoder is one of forge.encoder's, the delta of its form, with up to four heads, and the first or the last at
least: `verdict.weight` [6, 2 * width] and `verdict.bias`, over the mean and the highest of the last layer's states; that of
a classifier for what has nothing to express; `situation.weight` [situations, width] and `attitude.weight` [attitudes, width], or
factors of them, with a bias each, over the mean. A
sequence is `cls`, a text, `sep`, an answer to it, `sep`, or ends behind the text. The graph takes `input_ids` and `lengths`
as that of a classifier does, and gives a raw output for each head: `verdict`, logits in the order of VERDICTS, how right the
answer is as an expression in either light or as a reply, each alone, and of a text without an answer its mood, the three
together; `expressibility` of a text without an answer, the logits of a classifier, special where those of a statement hold
less than half; `situation` of such a text, the logits of the everyday situations that it may tell of; `attitude`, for each
sentence that could stand behind it the logit that it fits.

What people wrote, these sentences, how replies among them name what a text speaks of, and replies for some texts of these situations, stands packed beside the delta, in the file that the recipe
calls `situations`.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Mapping
from pathlib import Path

import onnx
from safetensors.numpy import load_file

from . import encoder, graph_file

VERDICTS = ["positive", "negative", "reply", "good", "bad", "plain"]
HEADS = {
    "verdict": encoder.Head("both", len(VERDICTS), optional=True),
    "expressibility": encoder.Head("embedding", len(encoder.EXPRESSIBILITY), optional=True),
    "situation": encoder.Head("embedding", None, optional=True),
    "attitude": encoder.Head("embedding", None, optional=True),
}
# Tokens of each part: together with the control tokens all that the encoder has places for.
TEXT_TOKENS, ANSWER_TOKENS = 120, 133
# The file beside the graph with what people wrote.
SITUATIONS = "situations.json"


def build(source: dict[str, Path], recipe: dict, model_dir: Path, out: Path) -> dict:
    """Write model.onnx and tokenizer.json into `out`, and what was written for situations; return the manifest's part."""
    kind = encoder.backbone(recipe)
    tensors = merged(source, recipe, model_dir)
    return written(encoder.graph(tensors, kind, heads=HEADS), tensors, source, recipe, model_dir, out)


def merged(source: Mapping[str, Path], recipe: Mapping, model_dir: Path) -> encoder.Tensors:
    """The base of a recipe with its delta."""
    kind = encoder.backbone(recipe)
    tensors = encoder.merge(encoder.load_base(source[kind.weights]), load_file(model_dir / recipe["delta"]), HEADS)
    if "verdict.bias" not in tensors and "attitude.bias" not in tensors:
        raise ValueError(f"{recipe['delta']} tells neither verdicts nor what was written beforehand: train it again.")
    return tensors


def written(
    model: onnx.ModelProto, tensors: encoder.Tensors, source: Mapping[str, Path], recipe: Mapping, model_dir: Path, out: Path
) -> dict:
    """Writes a judge's graph and what belongs to it into `out`; returns the manifest's part."""
    kind = encoder.backbone(recipe)
    onnx.checker.check_model(model)
    graph_file.write(model, out / "model.onnx")
    encoder.write(out / "tokenizer.json", encoder.tokenizer(kind, source))
    told = {"verdicts": VERDICTS} if "verdict.bias" in tensors else {}
    if ("situation.bias" in tensors or "attitude.bias" in tensors) and "situations" not in recipe:
        raise ValueError("a judge tells what people wrote where its recipe says what that is: name that file.")
    if "situations" in recipe:
        if "attitude.bias" not in tensors:
            raise ValueError(f"{recipe['delta']} lacks the head for what people wrote: train it with scripts/train/judge_sentences.py, or answer_judge.py and its finish.")
        content = lzma.decompress((model_dir / recipe["situations"]).read_bytes())
        said = json.loads(content)
        if len(tensors.get("situation.bias", ())) != len(said.get("names", ())):
            raise ValueError(f"{recipe['situations']} has not as many situations as the delta's head: fit it again.")
        kinds = said["attitudes"].values()
        if any(len(one) != 3 or sum(map(len, one)) != len(tensors["attitude.bias"]) for one in kinds):
            raise ValueError(f"{recipe['situations']} has not as many attitudes as the delta's head: fit it again.")
        encoder.write(out / SITUATIONS, content)
        told["situations"] = SITUATIONS
    return {
        **kind.special_ids, "text_tokens": TEXT_TOKENS, "answer_tokens": ANSWER_TOKENS,
        "languages": recipe.get("languages", "any"), **told,
    }
