"""Finishes the trained text classifier: ranges, calibration, figures, card.

Works on the graph that the server will run, built by scripts/forge/encoder.py:
first measures the activation ranges and puts them into the delta, then finds
the operating point of every category and the slopes around it on the
calibration slice of the data, then judges the result on validation texts that neither training nor calibration
has seen. Writes text.safetensors, text.json and text-card.md.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
import onnxruntime
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import text_data  # noqa: E402
from forge import encoder, low_rank  # noqa: E402
from measure import metrics  # noqa: E402
from normalise import normalise  # noqa: E402
from text_data import CATEGORIES, EXPRESSIBILITY, Row  # noqa: E402

# One bad sentence is thinned out in a wide window; narrower ones also raise alarms, of a model that raises many.
WINDOW, STRIDE = 64, 48
# The inputs whose channels of wide range are evened out, as SmoothQuant does it (https://arxiv.org/abs/2211.10438), with a
# shift besides (Outlier Suppression+, https://arxiv.org/abs/2304.09145): those behind a norm, of which some channels lie
# far out in every text. Exact instead are the widest behind the activation, where a channel is wide in a few texts.
SPREAD = ("attention", "inner")
EXACT = {"gelu": 8}
# Points of F1 that one point of our look-alikes flagged may cost: they are harder than what users write, and a
# false alarm costs trust.
LOOK_ALIKE_PRICE = 5.0
# Expressions that the sentiment head is fitted to: more change nothing that a line through the states can show.
LEARNED_EXPRESSIONS = 12_000
# Harmless words, names and codes that are made up, to place the operating points by and to measure on.
MADE_WORDS = 600
# What a public pair says of sentiment, against one of ours.
OTHERS_SENTIMENT = 0.3
SPECIAL_WANTED, LOST_STATEMENTS_LIMIT = 0.97, 0.03
# Sources whose defamation labels are insults, or made from templates.
STAND_INS = ("civil-spans", "jigsaw-sample", "diasafety", "convabuse", "synthetic-defamation")
UNREAD_BY_ENGLISH = ("cold-zh", "authored/east_asian", "authored/languages_more", "authored/edges_languages")
# Languages of which an English vocabulary knows letters and hardly a word (of the Western ones it knows more).
UNREADABLE = {"minilm": UNREAD_BY_ENGLISH, "mpnet": UNREAD_BY_ENGLISH, "multilingual-e5": ()}
MAIN_SOURCES = {
    "sexual": ["automod-nsfw", "profanity-list", "ailuminate"],
    "hate": ["davidson", "stormfront", "hatexplain", "hatemoji-build", "civil-spans", "diasafety", "cold-zh", "ailuminate"],
    "self_harm": ["suicide-reddit", "suicide-reddit-sentences", "ailuminate"],
    "violence": ["civil-spans", "edos", "aart", "ailuminate"],
    "defamation": ["ailuminate", "synthetic-defamation", "civil-spans", "jigsaw-sample", "diasafety"],
}


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
        return [window for i, ids in enumerate(own) if i == 0 or ids != own[0] for window in self._cut(ids)]

    def _cut(self, ids: list[int]) -> list[list[int]]:
        room = WINDOW - 2
        starts = [0]
        while starts[-1] + room < len(ids):
            starts.append(starts[-1] + STRIDE)
        return [[self.ids["cls_id"], *ids[s : s + room], self.ids["sep_id"]] for s in starts]

    def run(self, rows: list[list[int]], outputs: list[str] | None = None) -> list[np.ndarray]:
        ids = np.full((len(rows), max(map(len, rows))), self.ids["pad_id"], np.int64)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = row
        return self.session.run(outputs, {"input_ids": ids, "lengths": np.array([len(r) for r in rows], np.int32)})

    def first(self, texts: list[str], output: str) -> np.ndarray:
        """`[texts, n]`: that output for each text's first window, as it was written."""
        rows = [self._cut(self.tokenizer.encode(text, add_special_tokens=False).ids)[0] for text in texts]
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


# Tokens that the activation ranges are measured on.
RANGED_TOKENS = 30_000


def fitted_range(values: np.ndarray) -> tuple[float, float]:
    """The 8-bit range that loses least, but that clips no value far."""
    low, high = min(float(values.min()), 0.0), max(float(values.max()), 1e-3)
    best, least = (low, high), np.inf
    for bottom in (1.0, 0.9, 0.8) if low < -0.3 else (1.0,):
        for top in np.linspace(1.0, 0.6, 17):
            step = (high * top - low * bottom) / 255
            zero = np.rint(-low * bottom / step)
            rounded = (np.clip(np.rint(values / step) + zero, 0, 255) - zero) * step
            loss = float(np.square(rounded - values).mean())
            if loss < least:
                best, least = (low * bottom, high * top), loss
    return best


def evened(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """By what the channels of `values` [tokens, n] are divided, and what is taken off before: the middle of their range."""
    low, high = values.min(axis=0), values.max(axis=0)
    # Half of the way, by ratio: what a channel gives up in range, its weights take on.
    spread = np.sqrt(np.maximum((high - low) / max(float(np.median(high - low)), 1e-3), 1.0))
    return spread.astype(np.float16), ((low + high) / 2).astype(np.float16)


def activation_ranges(
    merged: dict[str, np.ndarray], kind: encoder.Backbone, tokenizer: Tokenizer, texts: list[str], threads: int
) -> dict:
    """The `activation.*` tensors of the delta, measured in full precision."""
    shown = Classifier(encoder.graph(merged, kind, "float32", show=True), kind.special_ids, tokenizer, threads)
    names = [o.name for o in shown.session.get_outputs() if o.name not in (*encoder.HEAD_NAMES, encoder.SENTIMENT)]
    seen: dict[str, list[np.ndarray]] = {name: [] for name in names}
    windows = [window for text in texts for window in shown.windows(text)]
    # What every layer says to every token is kept: of a wide encoder a quarter of a megabyte a token.
    random.Random(3).shuffle(windows)
    ends = np.cumsum([len(window) for window in windows])
    rows = sorted(windows[: int(np.searchsorted(ends, RANGED_TOKENS)) + 1], key=len)
    for start in range(0, len(rows), 16):
        batch = rows[start : start + 16]
        inside = np.arange(len(batch[-1]))[None, :] < np.array([len(r) for r in batch])[:, None]
        for name, value in zip(names, shown.run(batch, names)):
            seen[name].append(value[inside])
    out: dict[str, np.ndarray] = {}
    sampler = np.random.default_rng(0)
    for n, name in enumerate(names):
        layer, site = divmod(n, len(encoder.SITES))
        values, key = np.concatenate(seen.pop(name)), f"activation.{layer}.{encoder.SITES[site]}"
        if encoder.SITES[site] in SPREAD:
            spread, middle = evened(values)
            out[f"{key}.spread"], out[f"{key}.middle"] = spread, middle
            values = (values - middle.astype(np.float32)) / spread.astype(np.float32)
        exact = EXACT.get(encoder.SITES[site], 0)
        if exact:
            chosen = np.sort(np.argsort(-np.abs(values).max(axis=0), kind="stable")[:exact])
            out[f"{key}.exact"] = chosen.astype(np.int32)
            values = np.delete(values, chosen, axis=1)
        flat = values.ravel()
        if flat.size > 300_000:
            # The extremes must stay in the sample: they are what clips.
            extremes = np.array([flat.min(), flat.max()], np.float32)
            flat = np.concatenate([extremes, flat[sampler.integers(0, flat.size, 300_000)]])
        out[f"{key}.range"] = np.array(fitted_range(flat), np.float32)
    return out


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-np.clip(x, -60, 60)))


def slopes(logits: np.ndarray, labels: np.ndarray, weights: np.ndarray, point: float) -> tuple[float, float]:
    """The slopes below and above `point`, where the probability is a half, that are most likely.

    A temperature for each side: 0.5 stays the operating point, and the scores
    on either side become probabilities.
    """
    out = []
    for side in (logits < point, logits >= point):
        x, y, w = logits[side] - point, labels[side], weights[side]
        tried = np.geomspace(0.05, 8, 200)
        # A weak pull to a slope of 1 keeps thin slices from extremes.
        loss = [w @ (np.logaddexp(0, s * x) - y * s * x) + 2 * np.log(s) ** 2 for s in tried]
        out.append(float(tried[int(np.argmin(loss))]))
    return out[0], out[1]


def operating_point(scores: np.ndarray, labels: np.ndarray, weights: np.ndarray, alike: np.ndarray) -> float:
    """The logit of the best F1, less the price of the share of `alike`, scores of look-alikes, that lies above it."""
    order = np.argsort(-scores, kind="stable")
    sorted_scores = scores[order]
    true = np.cumsum((weights * labels)[order])
    false = np.cumsum((weights * (1 - labels))[order])
    f1 = 2 * true / (true + false + (weights * labels).sum())
    # Neighbouring thresholds differ by chance on a thin slice: average them.
    width = max(1, len(f1) // 200)
    smooth = np.convolve(f1, np.ones(width) / width, mode="same")
    flagged = 1 - np.searchsorted(np.sort(alike), sorted_scores) / max(len(alike), 1)
    best = int(np.argmax(smooth - LOOK_ALIKE_PRICE * flagged))
    following = sorted_scores[best + 1] if best + 1 < len(scores) else sorted_scores[best] - 1
    return float((sorted_scores[best] + following) / 2)


def even_weights(rows: list[Row], c: int) -> np.ndarray:
    """Weights of calibration rows: trusted, and no source by its bulk alone."""
    counts: dict[tuple[str, bool], int] = {}
    for row in rows:
        counts[row.source, row.targets[c] > 0.5] = counts.get((row.source, row.targets[c] > 0.5), 0) + 1
    out = np.array([row.weights[c] / counts[row.source, row.targets[c] > 0.5] ** 0.5 for row in rows])
    return out / out.mean()


def pick(rows: list[Row], c: int, keep: Callable[[Row], bool] = lambda row: True) -> np.ndarray:
    return np.array([i for i, row in enumerate(rows) if row.weights[c] > 0 and keep(row)], dtype=int)


def written_for(row: Row, c: int) -> bool:
    return row.source.removeprefix("authored/") in text_data.WRITTEN_FOR[CATEGORIES[c]]


def is_look_alike(row: Row) -> bool:
    """A harmless text that stands beside harm, written to be mistaken for it."""
    files = (*text_data.HARM_FILES, *text_data.JUDGED_FILES, text_data.CALIBRATION_FILE)
    return row.source.removeprefix("authored/") in files and not row.positive()


def calibrate(rows: list[Row], logits: np.ndarray, unread: tuple[str, ...]) -> list[dict[str, float]]:
    """Operating point and slopes of every category; `unread` names sources whose language the model does not read."""
    out = []
    for c in range(5):
        at = pick(rows, c, lambda row: row.source not in unread)
        labels = np.array([rows[i].targets[c] for i in at])
        alike = logits[pick(rows, c, lambda row: (is_look_alike(row) or row.source == "made/words") and row.source not in unread), c]
        point = operating_point(logits[at, c], labels, even_weights([rows[i] for i in at], c), alike)
        # Probabilities are of the sources as they come, those that were read with their share.
        below, above = slopes(logits[at, c], labels, np.array([rows[i].weights[c] for i in at]), point)
        out.append({"point": round(point, 4), "below": round(below, 4), "above": round(above, 4)})
    return out


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def logistic(x: np.ndarray, labels: np.ndarray, weights: np.ndarray, strength: float) -> tuple[np.ndarray, float]:
    """Weights and bias of the logistic regression of `labels` on x [rows, n], held back by `strength`."""
    mean, spread = x.mean(axis=0), x.std(axis=0) + 1e-6
    z = np.c_[(x - mean) / spread, np.ones(len(x))]
    held = np.r_[np.full(x.shape[1], strength), 1e-6]
    at = np.zeros(z.shape[1])
    for _ in range(20):
        p = sigmoid(z @ at)
        slope = z.T @ (weights * (p - labels)) + held * at
        curve = (z * (weights * p * (1 - p))[:, None]).T @ z + np.diag(held)
        step = np.linalg.solve(curve, slope)
        at = at - step
        if np.abs(step).max() < 1e-6:
            break
    weight = at[:-1] / spread
    return weight, float(at[-1] - weight @ mean)


def sentiment_head(model: Classifier, rows: list[Row], judged: list[Row]) -> dict[str, np.ndarray]:
    """The sentiment head that tells `rows` best, held back as far as `judged` asks for."""
    x, y = (model.first([r.text for r in side], "embedding").astype(np.float64) for side in (rows, judged))
    labels, wanted = (np.array([float(r.sentiment) for r in side]) for side in (rows, judged))
    weights = np.array([1.0 if r.source.startswith("authored/") else OTHERS_SENTIMENT for r in rows])
    tried = [logistic(x, labels, weights, strength) for strength in np.geomspace(1, 1000, 10)]
    losses = [float(np.mean(np.logaddexp(0, np.where(wanted > 0.5, -1, 1) * (y @ w + b)))) for w, b in tried]
    weight, bias = tried[int(np.argmin(losses))]
    return {"sentiment.weight": weight[None].astype(np.float32), "sentiment.bias": np.array([bias], np.float32)}


def special_threshold(rows: list[Row], logits: np.ndarray) -> float:
    """Least 1 - p(statement) of a special text.

    Where the wanted recognition and loss can be had together, that nearest to
    a half; where not, a half: on a slice of a few hundred lines the smallest
    sum of errors is anywhere between 0.1 and 0.8.
    """
    share = 1 - softmax(logits)[:, 0]
    special = share[[i for i, r in enumerate(rows) if r.source == "authored/special"]]
    near = share[[i for i, r in enumerate(rows) if r.source == "authored/near_miss"]]
    both = [
        float(threshold) for threshold in np.linspace(0.05, 0.95, 181)
        if (special >= threshold).mean() >= SPECIAL_WANTED and (near >= threshold).mean() <= LOST_STATEMENTS_LIMIT
    ]
    return round(min(both, key=lambda threshold: abs(threshold - 0.5), default=0.5), 3)


def number(value: float, places: int = 3) -> str:
    return "–" if np.isnan(value) else f"{value:.{places}f}"


def line(name: str, labels: np.ndarray, scores: np.ndarray) -> str:
    point = metrics.at_threshold(labels, scores)
    cells = [
        metrics.auprc(labels, scores),
        metrics.roc_auc(labels, scores),
        point["f1"],
        point["recall"],
        point["fpr"],
        metrics.calibration_error(labels, scores),
    ]
    return f"| {name} | {int(labels.sum())}/{int((1 - labels).sum())} | " + " | ".join(map(number, cells)) + " |"


HEADER = "| {} | 1/0 | AUPRC | ROC-AUC | F1 at 0.5 | recall | FPR | ECE |\n| --- | --- | --- | --- | --- | --- | --- | --- |"


def judged(rows: list[Row], scores: np.ndarray, c: int, keep: Callable[[Row], bool]) -> tuple[np.ndarray, np.ndarray]:
    at = pick(rows, c, keep)
    return np.array([rows[i].targets[c] for i in at]), scores[at, c]


def tables(rows: list[Row], scores: np.ndarray, unread: tuple[str, ...]) -> Iterable[str]:
    """Figures by category, by source, on held-out sources and on look-alikes."""
    seen = [r.source not in text_data.HELD_OUT_SOURCES for r in rows]
    inside = [r for r, s in zip(rows, seen) if s]
    p = scores[seen]
    yield "### All sources, held-out tenth\n"
    yield HEADER.format("category")
    ranks = []
    for c, category in enumerate(CATEGORIES):
        labels, found = judged(inside, p, c, lambda r: True)
        ranks.append(metrics.auprc(labels, found))
        yield line(category, labels, found)
    labels, found = judged(inside, p, 4, lambda r: r.source not in STAND_INS)
    yield line("defamation without stand-ins", labels, found)
    if unread:
        ranks = []
        for c, category in enumerate(CATEGORIES):
            labels, found = judged(inside, p, c, lambda r: r.source not in unread)
            ranks.append(metrics.auprc(labels, found))
            yield line(f"{category} without unread languages", labels, found)
    yield f"\nMacro AUPRC{' without unread languages' if unread else ''} {np.mean(ranks):.3f}.\n"
    yield "### By source (authored, and the main others)\n"
    yield HEADER.format("category, source")
    for c, category in enumerate(CATEGORIES):
        names = [f"authored/{name}" for name in (*text_data.WRITTEN_FOR[category], "prompts", "chatbot", "passages", "stories", "alarms", "emoji", "subtle", "european", "languages_more", "edges_languages", "east_asian")]
        for source in names + MAIN_SOURCES[category]:
            labels, found = judged(inside, p, c, lambda r, s=source: r.source == s)
            if len(labels) >= 20:
                yield line(f"{category}, {source}", labels, found)
    yield "\n### Whole sources never trained on\n"
    yield HEADER.format("category, source")
    held = [r for r, s in zip(rows, seen) if not s]
    q = scores[[not s for s in seen]]
    for c, category in enumerate(CATEGORIES):
        for name, keep in (
            ("convabuse", lambda r: r.source == "convabuse"),
            ("catqa", lambda r: r.source == "catqa"),
            ("catqa, English only", lambda r: r.source == "catqa" and r.text.isascii()),
        ):
            labels, found = judged(held, q, c, keep)
            if labels.sum() >= 5:
                yield line(f"{category}, {name}", labels, found)
    yield "\n### Benign look-alikes (validation share of the authored ones): flagged at 0.5\n"
    yield "| category | own look-alikes | those of all categories | ordinary authored texts | pheme (news) |\n| --- | --- | --- | --- | --- |"
    for c, category in enumerate(CATEGORIES):
        cells = []
        for keep in (
            lambda r, c=c: written_for(r, c) and not r.positive(),
            is_look_alike,
            lambda r: r.source.removeprefix("authored/") in text_data.STATEMENT_FILES,
            lambda r: r.source == "pheme",
        ):
            # Unjudged here means unread, not harmful: count these as benign.
            at = [i for i, r in enumerate(inside) if keep(r)]
            flagged = int((p[at, c] >= 0.5).sum())
            cells.append(f"{flagged}/{len(at)} ({flagged / len(at):.1%})" if at else "–")
        yield f"| {category} | " + " | ".join(cells) + " |"
    for name, keep in (
        ("any category, benign_lookalikes", lambda r: r.source == "authored/benign_lookalikes"),
        ("any category, harmless prompts, news and rants", lambda r: r.source == "authored/prompts" and not r.positive()),
        ("any category, all English authored look-alikes", lambda r: is_look_alike(r) and r.lang == "en"),
        ("any category, everyday texts in English", lambda r: r.source == "authored/everyday" and r.lang == "en"),
        ("any category, benign in other languages", lambda r: r.lang != "en" and not r.positive()),
    ):
        at = [i for i, r in enumerate(inside) if keep(r)]
        flagged = int((p[at] >= 0.5).any(axis=1).sum())
        yield f"\n{name}: {flagged}/{len(at)} ({flagged / max(len(at), 1):.1%}) flagged."


def disguise_lines(model: Classifier, rows: list[Row], places: list[dict[str, float]], each: int) -> Iterable[str]:
    """Recall on English authored harm and its look-alikes, plain and in each disguise."""
    names = {f"authored/{name}" for name in (*text_data.HARM_FILES, *text_data.JUDGED_FILES)}
    english = [r for r in sample(rows, len(rows)) if r.source in names and r.lang == "en"]
    harm = [r for r in english if r.positive()][:each]
    calm = [r for r in english if not r.positive()][:each]
    yield f"| disguise | {len(harm)} harmful texts flagged in their category | {len(calm)} look-alikes flagged |\n| --- | --- | --- |"
    total = []
    for name, change in (("none", lambda text, rng: text), *text_data.DISGUISES.items()):
        rng = random.Random(1)
        caught, wrong = (probabilities(model.scores([change(r.text, rng) for r in group])[0], places) >= 0.5 for group in (harm, calm))
        shares = np.mean([found[r.harms()].any() for found, r in zip(caught, harm)]), wrong.any(axis=1).mean()
        if name != "none":
            total.append(shares)
        yield f"| {name} | {shares[0]:.1%} | {shares[1]:.1%} |"
    recall, false = np.mean(total, axis=0)
    yield f"| all disguises | {recall:.1%} | {false:.1%} |"


def aside_lines(model: Classifier, places: list[dict[str, float]], name: str) -> Iterable[str]:
    """Each language of a set that was written for this alone, and is never trained on."""
    items = text_data.authored_lines(text_data.AUTHORED, name)
    p = probabilities(model.scores([item["text"] for item in items])[0], places)
    labels = np.array([[item["labels"][c] for c in CATEGORIES] for item in items]).astype(bool)
    yield "| language | harmful | flagged in their category | flagged at all | harmless | flagged | any-harm AUPRC |\n| --- | --- | --- | --- | --- | --- | --- |"
    for lang in dict.fromkeys(item["lang"] for item in items):
        own = np.array([item["lang"] == lang for item in items])
        harm, calm = own & labels.any(axis=1), own & ~labels.any(axis=1)
        found = p >= 0.5
        rank = metrics.auprc(labels[own].any(axis=1), p[own].max(axis=1))
        shares = (found & labels)[harm].any(axis=1).mean(), found[harm].any(axis=1).mean(), found[calm].any(axis=1).mean()
        yield f"| {lang} | {harm.sum()} | {shares[0]:.1%} | {shares[1]:.1%} | {calm.sum()} | {shares[2]:.1%} | {rank:.3f} |"


def read_lines(
    model: Classifier, places: list[dict[str, float]], rows: list[Row], authored: Path = text_data.AUTHORED
) -> Iterable[str]:
    """Public texts that are kept aside, by what a reader found in them."""
    readings = {item["digest"]: item for item in text_data.authored_lines(authored, text_data.READINGS_ASIDE)}
    aside = {text_data.name_of(row.text): row for row in rows if row.side() in ("validation", "held_out")}
    sure = {name: aside[name] for name, item in readings.items() if not item["doubtful"] and name in aside}
    yield f"{len(sure)} texts, by chance from each of {len({row.source for row in sure.values()})} sources; of {len(readings) - len(sure)} more two careful readers could differ. The last two columns are of the texts that their source judged.\n"
    yield "| category | harmful | AUPRC | recall | flagged of the harmless | judged by both | AUPRC there, read | AUPRC there, the source's labels |\n| --- | --- | --- | --- | --- | --- | --- | --- |"
    p = probabilities(model.scores([row.text for row in sure.values()])[0], places)
    found = np.array([text_data.as_read(row, readings[name]).targets for name, row in sure.items()]) > 0.5
    stated = np.array([row.targets for row in sure.values()])
    both = np.array([row.weights for row in sure.values()]) > 0
    highest = np.c_[p, p.max(axis=1)]

    def share(flagged: np.ndarray) -> float:
        return float(flagged.mean()) if flagged.size else float("nan")

    for c, category in enumerate((*CATEGORIES, "any")):
        own = found[:, c] if c < 5 else found.any(axis=1)
        flagged = highest[:, c] >= 0.5
        line = f"| {category} | {own.sum()} | {number(metrics.auprc(own, highest[:, c]))} | {number(share(flagged[own]))} | {number(share(flagged[~own]))} |"
        if c < 5:
            at = both[:, c]
            line += f" {at.sum()} | {number(metrics.auprc(own[at], p[at, c]))} | {number(metrics.auprc(stated[at, c], p[at, c]))} |"
        yield line + ("" if c < 5 else " | | |")


def rounding_lines(model: Classifier, full: Classifier, rows: list[Row]) -> Iterable[str]:
    """What 8 bits cost."""
    rounded, exact = (own.scores([r.text for r in rows])[0] for own in (model, full))
    yield "| category | 1/0 | AUPRC float32 | AUPRC int8 | loss | mean difference of logits |\n| --- | --- | --- | --- | --- | --- |"
    for c, category in enumerate(CATEGORIES):
        at = pick(rows, c)
        labels = np.array([rows[i].targets[c] for i in at])
        best, own = metrics.auprc(labels, exact[at, c]), metrics.auprc(labels, rounded[at, c])
        gap = np.abs(exact[at, c] - rounded[at, c]).mean()
        yield f"| {category} | {int(labels.sum())}/{int((1 - labels).sum())} | {best:.4f} | {own:.4f} | {best - own:+.4f} | {gap:.3f} |"


def sample(rows: list[Row], count: int) -> list[Row]:
    """Some of the rows, the same ones each time."""
    return sorted(rows, key=lambda row: text_data.share_of(row.text))[:count]


def special_lines(rows: list[Row], logits: np.ndarray, threshold: float) -> Iterable[str]:
    p = softmax(logits)
    special = 1 - p[:, 0] >= threshold
    said = np.where(special, p[:, 1:].argmax(axis=1) + 1, 0)
    yield "| written as | " + " | ".join(EXPRESSIBILITY) + " |\n| --- |" + " --- |" * 5
    own = lambda r: r.source in ("authored/special", "authored/near_miss")  # noqa: E731
    for k, kind in enumerate(EXPRESSIBILITY):
        at = [i for i, r in enumerate(rows) if r.kind == k and own(r)]
        name = "statement (near_miss)" if k == 0 else kind
        yield f"| {name} | " + " | ".join(str(int((said[at] == j).sum())) for j in range(5)) + " |"
    at = [i for i, r in enumerate(rows) if r.source.removeprefix("authored/") in text_data.STATEMENT_FILES and not own(r)]
    yield "| statement (other authored) | " + " | ".join(str(int((said[at] == j).sum())) for j in range(5)) + " |"
    at = [i for i, r in enumerate(rows) if r.source in ("goemotions", "ud-ewt", "clinc150", "banking77") and r.kind == 0]
    yield "| statement (other sources, 6 words and more) | " + " | ".join(str(int((said[at] == j).sum())) for j in range(5)) + " |"
    yield f"\nThreshold {threshold}."
    for name, keep in (("English", lambda r: r.lang == "en"), ("other languages", lambda r: r.lang != "en")):
        found = [i for i, r in enumerate(rows) if r.source == "authored/special" and keep(r)]
        near = [i for i, r in enumerate(rows) if r.source == "authored/near_miss" and keep(r)]
        if found and near:
            yield (
                f"\n{name}: {special[found].mean():.1%} of {len(found)} special texts recognised, "
                f"{special[near].mean():.1%} of {len(near)} near misses lost."
            )


def sentiment_lines(model: Classifier, rows: list[Row]) -> Iterable[str]:
    """How often an expression is told for what it was written as."""
    yield "| source | positive taken for positive | negative taken for negative | ROC-AUC |\n| --- | --- | --- | --- |"
    known = [r for r in rows if r.sentiment >= 0]
    said = model.first([r.text for r in known], encoder.SENTIMENT)[:, 0]
    groups = {f"{r.source}, {r.lang}" for r in known}
    for group in sorted(groups):
        at = [i for i, r in enumerate(known) if f"{r.source}, {r.lang}" == group]
        labels, found = np.array([known[i].sentiment for i in at]), said[at]
        shares = [f"{(found[labels == v] > 0).mean() if v else (found[labels == v] <= 0).mean():.1%} of {(labels == v).sum()}" for v in (1, 0)]
        yield f"| {group} | {shares[0]} | {shares[1]} | {number(metrics.roc_auc(labels, found))} |"


def probabilities(logits: np.ndarray, places: list[dict[str, float]]) -> np.ndarray:
    off = logits - np.array([p["point"] for p in places])
    below, above = (np.array([p[side] for p in places]) for side in ("below", "above"))
    return sigmoid(off * np.where(off < 0, below, above))


def fitted(
    base: dict[str, np.ndarray],
    delta: dict[str, np.ndarray],
    kind: encoder.Backbone,
    tokenizer: Tokenizer,
    rows: list[Row],
    expressed: list[Row],
    unread: tuple[str, ...],
    threads: int,
) -> tuple[dict[str, np.ndarray], dict]:
    """The delta with its ranges and sentiment head, and the settings of text.json.

    Ranges, operating points and slopes come from `rows`, the calibration slice; the head from `expressed`, all texts
    with a known sentiment.
    """
    authored = [r.text for r in rows if r.source.startswith("authored/")]
    public = [r for r in rows if not r.source.startswith("authored/")]
    others = [r.text for r in public if r.read][::4] + [r.text for r in public if not r.read][::40]
    delta = delta | activation_ranges(encoder.merge(base, delta), kind, tokenizer, authored + others, threads)
    model = Classifier(encoder.graph(encoder.merge(base, delta), kind), kind.special_ids, tokenizer, threads)
    print("ranges measured", flush=True)
    harm, special = model.scores([r.text for r in rows])
    read = [i for i, row in enumerate(rows) if row.lang == "en" or not unread]
    places, threshold = calibrate(rows, harm, unread), special_threshold([rows[i] for i in read], special[read])
    print("calibrated", places, threshold, flush=True)
    if "sentiment.bias" in delta:
        read = [r for r in expressed if r.lang == "en" or not unread]
        wide = Classifier(encoder.graph(encoder.merge(base, delta), kind, embedding=True), kind.special_ids, tokenizer, threads)
        learned = sorted((r for r in read if r.side() == "train"), key=lambda row: text_data.share_of(row.text))[:LEARNED_EXPRESSIONS]
        judged = [r for r in read if r.side() == "calibration" and r.source.startswith("authored/")]
        delta |= sentiment_head(wide, learned, judged)
        print(f"sentiment from {len(learned)} expressions", flush=True)
    return delta, {
        "categories": list(CATEGORIES),
        "calibration": places,
        "window": WINDOW,
        "stride": STRIDE,
        "expressibility": {"classes": list(EXPRESSIBILITY), "threshold": threshold},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder that holds moderation/train/")
    parser.add_argument("--base", type=Path, required=True, help="folder with the base weights and tokenizer.json")
    parser.add_argument("--backbone", choices=list(encoder.BACKBONES), default="minilm")
    parser.add_argument("--layers", type=int, nargs="*", help="layers of the base that are kept (all)")
    parser.add_argument("--delta", type=Path, required=True, help="text.safetensors as text_classifier.py wrote it")
    parser.add_argument("--out", type=Path, required=True, help="model folder, e.g. models/alpha-4o-mini")
    parser.add_argument("--card-only", action="store_true", help="the delta is finished, with text.json beside it: write the card alone")
    parser.add_argument("--notes", type=Path, help="Markdown put at the head of the card")
    parser.add_argument("--share", type=float, default=1.0, help="share of the validation rows that are not authored")
    parser.add_argument("--disguised", type=int, default=250, help="texts of either kind that are disguised")
    parser.add_argument("--compared", type=int, default=3000, help="texts that full precision is asked for")
    parser.add_argument("--skip-full-precision", action="store_true", help="leave out the comparison with float32")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()

    kind, unread = encoder.BACKBONES[args.backbone], UNREADABLE[args.backbone]
    tokenizer = text_data.plain_tokenizer(kind, args.base)
    base, delta = encoder.load_base(args.base / kind.weights, args.layers), load_file(args.delta)
    delta = low_rank.packed({k: v for k, v in delta.items() if not k.startswith("activation.")}, bits=6)
    rows = text_data.load(args.data)
    slices: dict[str, list[Row]] = {"calibration": [], "validation": []}
    for row in rows:
        side = row.side()
        if side in ("validation", "held_out"):
            # The whole of what is scarce; of the bulky sources a fixed share.
            scarce = row.source.startswith("authored/") or row.source in text_data.HELD_OUT_SOURCES
            if scarce or text_data.share_of(row.text) < args.share:
                slices["validation"].append(row)
    slices["calibration"] += text_data.for_points(rows)
    words = text_data.Words(rows)
    slices["calibration"] += words.made(MADE_WORDS, random.Random(1), "calibration")
    scraps = words.made(MADE_WORDS, random.Random(2), "validation")

    if args.card_only:
        delta = load_file(args.delta)
        settings = json.loads(args.delta.with_name("text.json").read_text(encoding="utf-8"))
    else:
        expressed = [row for row in rows if row.sentiment >= 0]
        delta, settings = fitted(base, delta, kind, tokenizer, slices["calibration"], expressed, unread, args.threads)
        args.out.mkdir(parents=True, exist_ok=True)
        text_data.write(args.out / "text.safetensors", lambda p: save_file(delta, str(p)))
        text_data.write(args.out / "text.json", lambda p: p.write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8"))
    places, threshold = settings["calibration"], settings["expressibility"]["threshold"]
    merged = encoder.merge(base, delta)
    model = Classifier(encoder.graph(merged, kind), kind.special_ids, tokenizer, args.threads)

    validation = slices["validation"]
    texts = [r.text for r in validation]
    began = time.monotonic()
    harm, special = model.scores(texts)
    took = time.monotonic() - began
    card = [args.notes.read_text(encoding="utf-8")] if args.notes else []
    card += tables(validation, probabilities(harm, places), unread)
    flagged = (probabilities(model.scores([r.text for r in scraps])[0], places) >= 0.5).any(axis=1)
    card += [f"\nany category, single words, names and codes without context (made by program): {flagged.sum()}/{len(scraps)} ({flagged.mean():.1%}) flagged."]
    card += ["\n### Disguises\n"]
    card += disguise_lines(model, validation, places, args.disguised)
    card += ["\n### Languages (48 texts each, written for this and never trained on; no native review)\n"]
    card += aside_lines(model, places, "languages_eval")
    card += ["\n### Other places (clinics, courts, police, offices; written for this and never trained on)\n"]
    card += aside_lines(model, places, "borders_eval")
    card += ["\n### Public texts kept aside, by what a reader of ours found in them\n"]
    card += read_lines(model, places, rows)
    card += ["\n### Expressibility (validation share of the authored texts)\n"]
    card += special_lines(validation, special, threshold)
    if "sentiment.weight" in merged:
        card += ["\n### Sentiment (expressions kept aside)\n", *sentiment_lines(model, validation)]
    if not args.skip_full_precision:
        full = Classifier(encoder.graph(merged, kind, "float32"), kind.special_ids, tokenizer, args.threads)
        card += ["\n### int8 against float32 (same texts)\n", *rounding_lines(model, full, sample(validation, args.compared))]
    print(f"{len(texts)} texts in {took:.0f} s", flush=True)
    text_data.write(args.out / "text-card.md", lambda p: p.write_text("\n".join(card) + "\n", encoding="utf-8"))


if __name__ == "__main__":
    main()
