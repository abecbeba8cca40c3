"""Finishes the trained text classifier: ranges, calibration, figures, card.

Works on the graph that the server will run, built by scripts/forge/encoder.py:
first measures the activation ranges and puts them into the delta, then finds
the operating point of every category and the slopes around it on the
calibration slice of the data, then judges the result on validation texts that neither training nor calibration
has seen, with the tables of text_card.py. Writes text.safetensors, text.json and text-card.md.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Collection
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import text_card  # noqa: E402
import text_data  # noqa: E402
from forge import encoder, low_rank  # noqa: E402
from text_data import CATEGORIES, EXPRESSIBILITY, Row  # noqa: E402
from text_made import Words  # noqa: E402
from text_scores import STRIDE, WINDOW, Classifier, is_look_alike, pick, probabilities, sigmoid, softmax  # noqa: E402

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
UNREAD_BY_ENGLISH = ("cold-zh", "authored/east_asian", "authored/languages_more", "authored/edges_languages",
                     "authored/crises_languages", "authored/neighbours_languages",
                     "authored/wounds_languages", "authored/dangers_languages", "authored/dangers_short", "authored/unnamed_languages",
                     "authored/abuse_languages")
# Languages of which an English vocabulary knows letters and hardly a word (of the Western ones it knows more).
UNREADABLE = {"minilm": UNREAD_BY_ENGLISH, "mpnet": UNREAD_BY_ENGLISH, "multilingual-e5": ()}
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
    return ranges_of(shown, [window for text in texts for window in shown.windows(text)], encoder.HEADS)


def ranges_of(shown: Classifier, windows: list[list[int]], heads: Collection[str]) -> dict:
    """As `activation_ranges`, of a graph that shows what its products take, over some windows; `heads` are its other outputs."""
    names = [o.name for o in shown.session.get_outputs() if o.name not in heads]
    seen: dict[str, list[np.ndarray]] = {name: [] for name in names}
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


def lowered(points: list[dict[str, float]], asked: list[list[str]]) -> list[dict[str, float]]:
    """The operating points, of some categories so many logits lower: where a miss is worse than the rule has it."""
    by = {category: float(logits) for category, logits in asked}
    if unknown := set(by) - set(CATEGORIES):
        raise SystemExit(f"--lower: no category {', '.join(sorted(unknown))}")
    return [point | {"point": round(point["point"] - by.get(category, 0.0), 4)} for category, point in zip(CATEGORIES, points)]


def slices(rows: list[Row], share: float) -> tuple[list[Row], list[Row], list[Row]]:
    """Validation texts, of the bulky sources a share; the calibration slice; and made words to measure on."""
    aside = [row for row in rows if row.side() in ("validation", "held_out")]
    # The whole of what is scarce.
    scarce = [row.source.startswith("authored/") or row.source in text_data.HELD_OUT_SOURCES for row in aside]
    validation = [row for row, all_of_it in zip(aside, scarce) if all_of_it or text_data.share_of(row.text) < share]
    words = Words(rows)
    calibration = text_data.for_points(rows) + words.made(MADE_WORDS, random.Random(1), "calibration")
    return validation, calibration, words.made(MADE_WORDS, random.Random(2), "validation")


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
    parser.add_argument("--lower", nargs=2, action="append", default=[], metavar=("CATEGORY", "LOGITS"), help="an operating point that lies so much lower than the rule puts it")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()

    kind, unread = encoder.BACKBONES[args.backbone], UNREADABLE[args.backbone]
    tokenizer = text_data.plain_tokenizer(kind, args.base)
    base, delta = encoder.load_base(args.base / kind.weights, args.layers), load_file(args.delta)
    delta = low_rank.packed({k: v for k, v in delta.items() if not k.startswith("activation.")}, bits=6)
    rows = text_data.load(args.data)
    validation, calibration, scraps = slices(rows, args.share)

    if args.card_only:
        delta = load_file(args.delta)
        settings = json.loads(args.delta.with_name("text.json").read_text(encoding="utf-8"))
    else:
        expressed = [row for row in rows if row.sentiment >= 0]
        delta, settings = fitted(base, delta, kind, tokenizer, calibration, expressed, unread, args.threads)
        settings["calibration"] = lowered(settings["calibration"], args.lower)
        args.out.mkdir(parents=True, exist_ok=True)
        text_data.write(args.out / "text.safetensors", lambda p: save_file(delta, str(p)))
        text_data.write(args.out / "text.json", lambda p: p.write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8"))
    places, threshold = settings["calibration"], settings["expressibility"]["threshold"]
    merged = encoder.merge(base, delta)
    model = Classifier(encoder.graph(merged, kind), kind.special_ids, tokenizer, args.threads)

    texts = [r.text for r in validation]
    began = time.monotonic()
    harm, special = model.scores(texts)
    took = time.monotonic() - began
    card = [args.notes.read_text(encoding="utf-8")] if args.notes else []
    card += text_card.report(model, places, rows, validation, harm, scraps, unread, args.disguised)
    card += ["\n### Expressibility (validation share of the authored texts)\n"]
    card += text_card.special_lines(validation, special, threshold)
    if "sentiment.weight" in merged:
        card += ["\n### Sentiment (expressions kept aside)\n", *text_card.sentiment_lines(model, validation)]
    if not args.skip_full_precision:
        full = Classifier(encoder.graph(merged, kind, "float32"), kind.special_ids, tokenizer, args.threads)
        card += ["\n### int8 against float32 (same texts)\n", *text_card.rounding_lines(model, full, text_card.sample(validation, args.compared))]
    print(f"{len(texts)} texts in {took:.0f} s", flush=True)
    text_data.write(args.out / "text-card.md", lambda p: p.write_text("\n".join(card) + "\n", encoding="utf-8"))


if __name__ == "__main__":
    main()
