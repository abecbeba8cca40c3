"""Owns how a text classifier is asked: windows, logits, probabilities, and which rows count for a category.

Runs the graph that the server will run, or the same in full precision, with the server's windows. text_calibrate.py
fits what turns logits into probabilities; text_card.py measures them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

import text_data
from forge import built_graph
from normalise import normalise
from text_data import Row

# What a sentence means, those around it tell: narrower windows raise alarms at what a long text quotes, tells or overcomes. In a
# wider one a single bad sentence is thinned out, against which trainings read joined texts (so far one, of alpha's).
WINDOW, STRIDE = 128, 96
# Keeps one classifier that is all too sure from outvoting the others.
SUREST = 1e-4


def cut(ids: list[int], special: Mapping[str, int]) -> list[list[int]]:
    """The windows of a text's ids; `special` holds `cls_id` and `sep_id`."""
    room = WINDOW - 2
    starts = [0]
    while starts[-1] + room < len(ids):
        starts.append(starts[-1] + STRIDE)
    return [[special["cls_id"], *ids[s : s + room], special["sep_id"]] for s in starts]


class Classifier:
    """A built graph with the server's windows, scored in batches of like length."""

    def __init__(self, model, ids: Mapping[str, int], tokenizer: Tokenizer, threads: int) -> None:
        """`ids` holds `cls_id`, `sep_id` and `pad_id`."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        self.ids, self.tokenizer = ids, tokenizer

    def windows(self, text: str) -> list[list[int]]:
        """The text's windows, and those of its normalised form where that reads otherwise."""
        forms = dict.fromkeys((text, normalise(text) or text))
        own = [self.tokenizer.encode(form, add_special_tokens=False).ids for form in forms]
        return [window for i, ids in enumerate(own) if i == 0 or ids != own[0] for window in cut(ids, self.ids)]

    def run(self, rows: list[list[int]], outputs: list[str] | None = None) -> list[np.ndarray]:
        ids = np.full((len(rows), max(map(len, rows))), self.ids["pad_id"], np.int64)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = row
        return self.session.run(outputs, {"input_ids": ids, "lengths": np.array([len(r) for r in rows], np.int32)})

    def first(self, texts: list[str], output: str) -> np.ndarray:
        """`[texts, n]`: that output for each text's first window, as it was written."""
        return self.each([cut(self.tokenizer.encode(text, add_special_tokens=False).ids, self.ids)[0] for text in texts], output)

    def each(self, rows: list[list[int]], output: str) -> np.ndarray:
        """`[rows, n]`: that output for each row, in batches of like length."""
        order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
        parts = [self.run([rows[i] for i in order[start : start + 32]], [output])[0] for start in range(0, len(order), 32)]
        return np.concatenate(parts)[np.argsort(order)]

    def scores(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Harm logits, the highest of a text's windows, and expressibility of the first."""
        pieces = [(i, piece) for i, text in enumerate(texts) for piece in self.windows(text)]
        order = sorted(range(len(pieces)), key=lambda p: len(pieces[p][1]))
        harm = np.full((len(texts), 5), -np.inf)
        special = np.zeros((len(texts), 5))
        first: dict[int, int] = {}
        for p, (i, _) in enumerate(pieces):
            first.setdefault(i, p)
        for start in range(0, len(order), 32):
            at = order[start : start + 32]
            a, b = self.run([pieces[p][1] for p in at], ["harm", "expressibility"])
            for p, x, y in zip(at, a, b):
                i = pieces[p][0]
                harm[i] = np.maximum(harm[i], x)
                if first[i] == p:
                    special[i] = y
        return harm, special


class Ensemble:
    """Several classifiers that answer as one, as the server has them: the weighted mean of their log-odds."""

    def __init__(self, members: list[tuple[Classifier, list[dict[str, float]]]], weights: list[float] | None = None) -> None:
        """Each with its calibration, and with how much it counts."""
        self.members, self.weights = members, weights

    def scores(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """As Classifier.scores; the logits are mean log-odds, to be calibrated anew."""
        said = [(model.scores(texts), places) for model, places in self.members]
        return mean_odds([probabilities(harm, places) for (harm, _), places in said], self.weights), said[0][0][1]


class InTurn:
    """The first of several classifiers alone, but where it finds a trace of harm all of them, as the server asks them."""

    def __init__(self, all_of_them: Ensemble, places: list[dict[str, float]], start: float) -> None:
        """With how the mean of all is calibrated, and the probability from which the others are asked."""
        self.ensemble, self.places, self.start = all_of_them, places, start

    def scores(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """As Ensemble.scores; of what the first judged alone, the logits that mean its probabilities."""
        model, calibration = self.ensemble.members[0]
        logits, special = model.scores(texts)
        found = probabilities(logits, calibration)
        harm = logits_of(found, self.places)
        again = np.flatnonzero((found >= self.start).any(axis=1))
        if len(again):
            harm[again], _ = self.ensemble.scores([texts[i] for i in again])
        return harm, special


def built(folder: Path, threads: int) -> tuple[Classifier, list[dict[str, float]]]:
    """A built text component, and its calibration."""
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["text_classifier"]
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    # What a text spells like a control token is text.
    tokenizer.encode_special_tokens = True
    return Classifier(built_graph.load(folder / "model.onnx"), manifest, tokenizer, threads), manifest["calibration"]


def mean_odds(said: list[np.ndarray], weights: list[float] | None = None) -> np.ndarray:
    """The mean of several classifiers' log-odds, weighted if they do not count equally."""
    held = [np.clip(p, SUREST, 1 - SUREST) for p in said]
    return np.average([np.log(p / (1 - p)) for p in held], axis=0, weights=weights)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-np.clip(x, -60, 60)))


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def probabilities(logits: np.ndarray, places: list[dict[str, float]]) -> np.ndarray:
    off = logits - np.array([p["point"] for p in places])
    below, above = (np.array([p[side] for p in places]) for side in ("below", "above"))
    return sigmoid(off * np.where(off < 0, below, above))


def logits_of(found: np.ndarray, places: list[dict[str, float]]) -> np.ndarray:
    """The logits that `probabilities` makes these of."""
    odds = np.log(np.clip(found, 1e-9, 1 - 1e-9)) - np.log(1 - np.clip(found, 1e-9, 1 - 1e-9))
    below, above, points = (np.array([p[side] for p in places]) for side in ("below", "above", "point"))
    return points + odds / np.where(odds < 0, below, above)


def pick(rows: list[Row], c: int, keep: Callable[[Row], bool] = lambda row: True) -> np.ndarray:
    return np.array([i for i, row in enumerate(rows) if row.weights[c] > 0 and keep(row)], dtype=int)


def is_look_alike(row: Row) -> bool:
    """A harmless text that stands beside harm, written to be mistaken for it."""
    files = (*text_data.HARM_FILES, *text_data.JUDGED_FILES, text_data.CALIBRATION_FILE)
    return row.source.removeprefix("authored/") in files and not row.positive()
