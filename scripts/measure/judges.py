"""Owns the models that judge answers, run here and not through the server: the
sentiment head of a built text classifier, and a base encoder as it was
published, for likeness of content.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime
from forge import encoder
from forge.errors import SetupError
from forge.fetch import Sources
from forge.places import Places
from tokenizers import Tokenizer

from . import MeasureError

BATCH = 32
# The base encoders, by their names in scripts/sources.json.
BASES = {"minilm": "all-minilm-l6-v2", "mpnet": "all-mpnet-base-v2", "multilingual-e5": "multilingual-e5-small"}
# Those that read other languages than English.
MULTILINGUAL = ("multilingual-e5-small",)


class Graph:
    """An encoder's graph with its tokenizer, run over texts in batches of like length."""

    def __init__(self, model: bytes | str, tokenizer: Tokenizer, ids: Mapping[str, int], window: int) -> None:
        """`model` is a graph or the path of one; `ids` holds `cls_id`, `sep_id` and `pad_id`; `window` is the most tokens, both ends counted."""
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self.outputs = [output.name for output in self.session.get_outputs()]
        # A typed `</s>` is four characters, not the end.
        tokenizer.encode_special_tokens = True
        self.tokenizer, self.ids, self.window = tokenizer, ids, window

    def run(self, texts: list[str], output: str) -> np.ndarray:
        """`[texts, n]`: that output for the first window of each text, as it was written."""
        rows = [self._row(text) for text in texts]
        order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
        found: list[np.ndarray] = [np.empty(0)] * len(rows)
        for start in range(0, len(order), BATCH):
            at = order[start : start + BATCH]
            for i, value in zip(at, self._batch([rows[i] for i in at], output), strict=True):
                found[i] = value
        return np.array(found)

    def _row(self, text: str) -> list[int]:
        ids = self.tokenizer.encode(text, add_special_tokens=False).ids[: self.window - 2]
        return [self.ids["cls_id"], *ids, self.ids["sep_id"]]

    def _batch(self, rows: list[list[int]], output: str) -> np.ndarray:
        ids = np.full((len(rows), max(map(len, rows))), self.ids["pad_id"], np.int64)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = row
        lengths = np.array([len(row) for row in rows], np.int32)
        return self.session.run([output], {"input_ids": ids, "lengths": lengths})[0]


@dataclass(frozen=True)
class Judges:
    """Both judges, and what a report says of them."""

    light: Graph
    light_name: str
    light_base: str
    light_digest: str
    content: Graph
    content_base: str

    def positive(self, texts: list[str]) -> np.ndarray:
        """Whether each text is said in a positive light."""
        return self.light.run(texts, encoder.SENTIMENT)[:, 0] > 0

    def vectors(self, texts: list[str]) -> np.ndarray:
        """`[texts, width]` of length 1: the product of two is the cosine of what they say."""
        found = self.content.run(texts, "embedding")
        return found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12)

    def reads(self, lang: str) -> bool:
        return lang == "en" or (self.light_base in MULTILINGUAL and self.content_base in MULTILINGUAL)


def load(folder: Path, base: str) -> Judges:
    """The classifier built in `folder`, and one of BASES."""
    manifest, digest = _manifest(folder)
    light = _light(folder, manifest)
    return Judges(light, manifest["name"], manifest["source"], digest, content(base), BASES[base])


def _manifest(folder: Path) -> tuple[dict, str]:
    try:
        raw = (folder / "manifest.json").read_bytes()
        found = json.loads(raw)
        for key in ("cls_id", "sep_id", "pad_id", "window"):
            found["text_classifier"][key] = int(found["text_classifier"][key])
        found["name"], found["source"] = str(found["name"]), str(found["source"])
    except OSError:
        raise MeasureError(
            f"no text classifier is built in {folder}: run make models, or name the folder of one with --judge"
        ) from None
    except (ValueError, KeyError, TypeError):
        raise MeasureError(
            f"{folder}/manifest.json is not of a text classifier: name the folder of one with --judge"
        ) from None
    return found, hashlib.sha256(raw).hexdigest()


def _light(folder: Path, manifest: dict) -> Graph:
    part = manifest["text_classifier"]
    try:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        graph = Graph(str(folder / "model.onnx"), tokenizer, part, part["window"])
    # The tokenizer and the runtime raise what is not of any narrower kind.
    except Exception as error:
        raise MeasureError(
            f"the text classifier in {folder} cannot be loaded ({type(error).__name__}): run make models again, or name"
            " another with --judge"
        ) from None
    if encoder.SENTIMENT not in graph.outputs:
        raise MeasureError(
            f"the text classifier in {folder} has no {encoder.SENTIMENT} head, so it cannot tell which light a text is"
            " said in: run make models again where its delta has one, or name the folder of another with --judge"
        )
    return graph


def content(base: str) -> Graph:
    """The published weights of a base, in full precision, for its pooled states."""
    try:
        source = Sources(Places.here()).locate(BASES[base])
    except SetupError as error:
        raise MeasureError(str(error)) from None
    return of_base(encoder.BACKBONES[base], source)


def of_base(kind: encoder.Backbone, source: Mapping[str, Path]) -> Graph:
    model = encoder.graph(encoder.load_base(source[kind.weights]), kind, "float32", embedding=True, heads={})
    tokenizer = Tokenizer.from_str(encoder.tokenizer(kind, source).decode())
    return Graph(model.SerializeToString(), tokenizer, kind.special_ids, encoder.PLACES)
