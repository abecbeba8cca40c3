#!/usr/bin/env python3
"""Trains and judges heads for violence and hate symbols on an image classifier's features.

Owns `models/<id>/heads.safetensors` (the heads that ship), `heads.json` (how
every head was judged) and the block about them in `image-card.md`. A head is a
logistic regression on the pooled features of image_features.py; the recipe
(scripts/forge/tfjs.py) folds it into the graph.

A head is judged on whole sources that it never saw. A fold keeps some sources
aside, of both labels, from the training, from the choice of its strength and
from the placing of its operating point. A head scores only what at least two
sources show, so that it can be judged on one and have learnt from another:
nothing can be said of how fights or knives would be found elsewhere, as each
has one source, and so they are neither trained on nor scored. A head ships when
in every fold the area under the precision-recall curve is at least 0.85 and at most 3 % of the harmless
pictures reach the operating point, of all pictures and as the mean over the
sources, both of the pictures as they are and altered. Otherwise it is left
out, the category is scored by the text that is read alone, and the card says so.

Trained is on altered pictures only (image_features.py says why), each label
weighing half and each source of a label the same. The final head is trained
on every source but those that are only for judging; its operating point lies
where predictions for left-out sources keep to `AIM`, and becomes 0.5.

Whether a head knows a source by its looks (the sources of firearms are of one
repository), folds over that repository cannot tell. `--classes` can: the
classes rifle, assault rifle and revolver of the network's own ImageNet output,
which has seen none of these pictures, are judged on the same ones.

    .venv/bin/python scripts/train/image_heads.py --model alpha-4o-mini --classes CHECKPOINT.pth -- FEATURES.npz [...]

Runs in the build environment, with numpy alone; about half an hour on two cores.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from draw_symbols import PHOTOGRAPHS, PHOTOGRAPHS_APART  # noqa: E402
from forge import efficientnet  # noqa: E402
from measure.card import replace_block, write  # noqa: E402

ROOT = HERE.parents[1]
LEAST_AUPRC, MOST_FALSE = 0.85, 0.03
# Harmless pictures of left-out sources that may reach the operating point: half of what is asked for, as the next
# source is never like the last.
AIM = 0.015
STRENGTHS = (1e-3, 1e-2, 1e-1, 1.0)
# Groups of sources that are left out in turn to choose the strength within a fold.
INNER = 4
MARKS = ("<!-- heads:begin -->", "<!-- heads:end -->")

# --- which source is what ----------------------------------------------------

FIREARMS = ("pistols-in-hand", "rifles-and-robbery")
# Violence of other kinds, of one source each: none could be kept aside from a head that had learnt its kind.
OTHER_VIOLENCE = ("knives-in-hand", "cctv-fights", "selfdefence-frames", "movie-fights", "web-clips")
# Never trained on: sources kept for judging, where there are features of them.
UNSEEN_FIREARMS = ("room-scenes",)
UNSEEN_CALM = ("tools-on-ground", "imagenet-samples")
CALM_NEAR_FIGHTS = ("cctv-calm", "sports-contact", "kitchen-hands", "coco-photos", "grocery", "azure-samples")
CALM_NEAR_WEAPONS = ("sports-other", "voc-photos", "clothing", "playing-cards", "screens-and-documents")
CALM = CALM_NEAR_FIGHTS + CALM_NEAR_WEAPONS
# Photographs apart from those that lie under the symbols of the main set.
PHOTOGRAPHS_UNSEEN = (*PHOTOGRAPHS_APART, "playing-cards", "screens-and-documents", *UNSEEN_CALM)
Choice = Callable[[str], bool]


def among(names: Iterable[str]) -> Choice:
    chosen = frozenset(names)
    return lambda source: source in chosen


@dataclass(frozen=True)
class Plan:
    """What a head learns, and the sources that each fold keeps aside."""

    category: str
    title: str
    harmful: Choice
    harmless: Choice
    folds: dict[str, Choice]
    # A fold of sources that are only for judging: judged where there are features of them.
    also: dict[str, Choice]
    only_judged: Choice
    # Harmful in the category, yet neither trained on nor counted: how much of it the head flags is told.
    beside: Choice
    # What is scored, in words of the card.
    seen: str
    # What the figures cannot show.
    doubts: str


PLANS = [
    Plan(
        "violence",
        "Visual violence",
        among((*FIREARMS, *UNSEEN_FIREARMS)),
        among((*CALM, *UNSEEN_CALM)),
        {
            "pistols": among(("pistols-in-hand", *CALM_NEAR_WEAPONS)),
            "rifles": among(("rifles-and-robbery", *CALM_NEAR_FIGHTS)),
        },
        {"sources never trained on": among((*UNSEEN_FIREARMS, *UNSEEN_CALM))},
        among((*UNSEEN_FIREARMS, *UNSEEN_CALM)),
        among(OTHER_VIOLENCE),
        "Firearms that are held, aimed or carried, whoever carries them and for what: soldiers and shooting ranges too."
        " Knives, fights, blood, riots and injuries are not looked for; the last table says how many of them are flagged"
        " by chance.",
        "Both sources of firearms are parts of one repository, a merge of several; pictures with nothing but a gun in them,"
        " toys and drawings were not judged.",
    ),
    Plan(
        "hate",
        "Hate symbols",
        lambda source: source.startswith("symbol-"),
        lambda source: source.startswith("alike-") or source in (*CALM, *UNSEEN_CALM),
        {
            "symbols drawn by other code": lambda source: "-apart-" in source or source in PHOTOGRAPHS_UNSEEN,
            "symbols on photographs": lambda source: source in ("symbol-photograph", "alike-photograph", *PHOTOGRAPHS),
        },
        {},
        among(UNSEEN_CALM),
        among(()),
        "Drawn hate symbols.",
        "Every symbol was drawn by program: no photograph of a real one was judged, so how many of those are found is"
        " unknown. A tilted hooked cross in peaceful use would be flagged.",
    ),
]


# --- features ----------------------------------------------------------------


@dataclass(frozen=True)
class Rows:
    """Pictures and their variants: features [n, width], and of each row its source, picture, variant and label."""

    features: np.ndarray
    sources: np.ndarray
    digests: np.ndarray
    variants: np.ndarray
    harmful: np.ndarray

    def where(self, chosen: np.ndarray) -> Rows:
        return Rows(*(array[chosen] for array in
                      (self.features, self.sources, self.digests, self.variants, self.harmful)))

    def of(self, choice: Choice) -> np.ndarray:
        names = [name for name in np.unique(self.sources) if choice(str(name))]
        return np.isin(self.sources, names)


def load(paths: list[Path]) -> tuple[Rows, list[dict[str, Any]]]:
    parts, settings = [], []
    for path in paths:
        with np.load(path) as file:
            parts.append([file[name] for name in ("features", "sources", "digests", "variants")])
            settings.append(json.loads(str(file["settings"])))
    if len({setting["network"] for setting in settings}) != 1:
        raise SystemExit("the features come from different networks: compute them anew with one")
    features, sources, digests, variants = (np.concatenate(arrays) for arrays in zip(*parts))
    return Rows(features.astype(np.float32), sources, digests, variants, np.zeros(len(sources), bool)), settings


def for_plan(rows: Rows, plan: Plan) -> Rows:
    harmful, harmless = rows.of(plan.harmful), rows.of(plan.harmless)
    labelled = Rows(rows.features, rows.sources, rows.digests, rows.variants, harmful)
    return labelled.where(harmful | harmless)


# --- logistic regression -----------------------------------------------------


@dataclass(frozen=True)
class Head:
    weight: np.ndarray
    bias: float

    def logits(self, features: np.ndarray) -> np.ndarray:
        return features @ self.weight + np.float32(self.bias)

    def scaled(self, slope: float, point: float) -> Head:
        """The same head whose 0 lies at `point`, its logits stretched by `slope`."""
        return Head(self.weight * np.float32(slope), slope * (self.bias - point))


def balance(rows: Rows) -> np.ndarray:
    """Each label weighs half, each source of a label the same, each row of a source the same."""
    weights = np.zeros(len(rows.sources))
    for label in (True, False):
        names = np.unique(rows.sources[rows.harmful == label])
        for name in names:
            place = (rows.sources == name) & (rows.harmful == label)
            weights[place] = 0.5 / len(names) / place.sum()
    return weights.astype(np.float32)


def fit(rows: Rows, strength: float, steps: int = 200) -> Head:
    """Logistic regression with a quadratic penalty, by Nesterov's accelerated descent on standardised features."""
    weights = balance(rows)
    mean = weights @ rows.features
    spread = np.sqrt(np.maximum(weights @ rows.features**2 - mean**2, 1e-8))
    x = np.concatenate([(rows.features - mean) / spread, np.ones((len(weights), 1), np.float32)], axis=1)
    penalty = np.full(x.shape[1], strength, np.float32)
    penalty[-1] = 0
    direction = np.ones(x.shape[1], np.float32) / math.sqrt(x.shape[1])
    for _ in range(12):
        direction = x.T @ (weights * (x @ direction))
        largest = float(np.linalg.norm(direction))
        direction /= max(largest, 1e-12)
    # The curvature of the loss is at most a quarter of this; the power method comes from below.
    rate = np.float32(1 / (0.3 * largest + strength))
    now = ahead = np.zeros(x.shape[1], np.float32)
    momentum = 1.0
    for _ in range(steps):
        gradient = x.T @ (weights * (sigmoid(x @ ahead) - rows.harmful)) + penalty * ahead
        after = ahead - rate * gradient
        if gradient @ (after - now) > 0:
            momentum = 1.0
        following = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
        ahead = after + np.float32((momentum - 1) / following) * (after - now)
        now, momentum = after, following
        if np.abs(gradient).max() < 1e-5:
            break
    weight = now[:-1] / spread
    return Head(weight, float(now[-1] - weight @ mean))


def sigmoid(z: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-np.clip(z, -60, 60)))


# --- judging -----------------------------------------------------------------


def auprc(scores: np.ndarray, harmful: np.ndarray) -> float:
    """Average precision; equal scores count as one threshold."""
    order = np.argsort(-scores, kind="stable")
    hits = np.cumsum(harmful[order])
    last = np.append(np.diff(scores[order]) != 0, True)
    precision = hits[last] / (np.flatnonzero(last) + 1)
    recall = hits[last] / max(hits[-1], 1)
    return float(np.sum(np.diff(recall, prepend=0) * precision))


def false_rates(logits: np.ndarray, rows: Rows, point: float) -> dict[str, float]:
    """Of the harmless pictures, the share at or above a point: of each source."""
    calm = ~rows.harmful
    return {str(name): float((logits[calm & (rows.sources == name)] >= point).mean())
            for name in np.unique(rows.sources[calm])}


def false_rate(logits: np.ndarray, rows: Rows, point: float) -> float:
    """The higher of the share of all harmless pictures and the mean over their sources."""
    calm = ~rows.harmful
    return max(float((logits[calm] >= point).mean()), float(np.mean(list(false_rates(logits, rows, point).values()))))


def views(rows: Rows) -> dict[str, np.ndarray]:
    """The pictures as they are, and altered."""
    return {name: chosen for name, chosen in (("plain", rows.variants == 0), ("altered", rows.variants > 0))}


def place(logits: np.ndarray, rows: Rows) -> float:
    """The lowest point at which harmless pictures keep to `AIM`, in either view."""
    points = []
    for chosen in views(rows).values():
        seen, some = logits[chosen], rows.where(chosen)
        candidates = np.unique(seen[~some.harmful])
        low, high = 0, len(candidates)
        # Rates fall as the point rises.
        while low < high:
            middle = (low + high) // 2
            if false_rate(seen, some, candidates[middle]) <= AIM:
                high = middle
            else:
                low = middle + 1
        points.append(float(candidates[low]) if low < len(candidates) else float(candidates[-1]) + 1e-3)
    return max(points)


def groups(rows: Rows, count: int | None) -> np.ndarray:
    """Which group a row is left out with: whole sources, dealt out by label; of a label's only source, parts of it.

    Without a count each source is a group of its own.
    """
    group, first = np.zeros(len(rows.sources), int), 0
    for label in (True, False):
        names = np.unique(rows.sources[rows.harmful == label])
        for n, name in enumerate(names):
            group[rows.sources == name] = n % count if count else first + n
        if len(names) == 1 and count:
            alone = rows.sources == names[0]
            group[alone] = [int(str(digest)[:8], 16) % count for digest in rows.digests[alone]]
        first += len(names)
    return group


def left_out(rows: Rows, strength: float, count: int | None) -> np.ndarray:
    """Each row's logit by a head that was trained without its group of sources."""
    logits, group = np.zeros(len(rows.sources), np.float32), groups(rows, count)
    for number in np.unique(group):
        out = group == number
        logits[out] = fit(rows.where(~out & (rows.variants > 0)), strength).logits(rows.features[out])
    return logits


def choose(rows: Rows) -> tuple[float, np.ndarray]:
    """The strength whose left-out predictions are best, and those predictions."""
    tried = []
    for strength in STRENGTHS:
        logits = left_out(rows, strength, INNER)
        tried.append((auprc(logits, rows.harmful), strength, logits))
    _, strength, logits = max(tried, key=lambda one: one[0])
    return strength, logits


def measured(logits: np.ndarray, rows: Rows, point: float) -> dict[str, Any]:
    """Figures of one fold, by view."""
    found: dict[str, Any] = {}
    for name, chosen in views(rows).items():
        some, seen = rows.where(chosen), logits[chosen]
        found[name] = {
            "harmful": int(some.harmful.sum()),
            "harmless": int((~some.harmful).sum()),
            "auprc": round(auprc(seen, some.harmful), 4),
            "recall": round(float((seen[some.harmful] >= point).mean()), 4),
            "false_positive_rate": round(float((seen[~some.harmful] >= point).mean()), 4),
            "mean_over_sources": round(float(np.mean(list(false_rates(seen, some, point).values()))), 4),
        }
    plain = rows.where(rows.variants == 0)
    at = logits[rows.variants == 0]
    found["by_source"] = {
        str(name): {
            "pictures": int((plain.sources == name).sum()),
            "label": "harmful" if plain.harmful[plain.sources == name][0] else "harmless",
            "flagged": round(float((at[plain.sources == name] >= point).mean()), 4),
        }
        for name in np.unique(plain.sources)
    }
    return found


def reasons(folds: dict[str, Any]) -> list[str]:
    """Why a head does not ship; nothing where it does."""
    found = []
    for name, fold in folds.items():
        for view in ("plain", "altered"):
            figures = fold[view]
            if not figures["auprc"] >= LEAST_AUPRC:
                found.append(f"{name}, {view}: AUPRC {figures['auprc']:.3f} is below {LEAST_AUPRC}")
            worst = max(figures["false_positive_rate"], figures["mean_over_sources"])
            if not worst <= MOST_FALSE:
                found.append(f"{name}, {view}: {100 * worst:.1f} % false positives are above {100 * MOST_FALSE:.0f} %")
    return found


def slope_of(logits: np.ndarray, rows: Rows) -> float:
    """How far logits about the operating point are stretched to be probabilities, labels weighing the same."""
    weights, signs = balance(rows), np.where(rows.harmful, 1.0, -1.0)
    slopes = np.exp(np.linspace(math.log(0.02), math.log(20), 60))
    losses = [float(weights @ np.logaddexp(0, -signs * slope * logits)) for slope in slopes]
    return round(float(slopes[int(np.argmin(losses))]), 4)


# --- a head ------------------------------------------------------------------


def missing(rows: Rows, plan: Plan) -> list[str]:
    """Why there is too little to train and judge on."""
    found = []
    trained = rows.where(~rows.of(plan.only_judged))
    for label, word in ((True, "harmful"), (False, "harmless")):
        if len(np.unique(trained.sources[trained.harmful == label])) < 2:
            found.append(f"fewer than two {word} sources")
    if not ((rows.variants > 0).any() and (rows.variants == 0).any()):
        found.append("not both of plain and altered variants")
    return found


def make(rows: Rows, plan: Plan, say: Callable[[str], None]) -> tuple[Head | None, dict[str, Any]]:
    """The head of a plan if it passes, and the report on it; of one that does not pass, on the folds alone."""
    beside = rows.where(rows.of(plan.beside) & (rows.variants == 0))
    rows = for_plan(rows, plan)
    if lacking := missing(rows, plan):
        return None, {"ships": False, "reasons": [f"not trained: {reason}" for reason in lacking], "folds": {}}
    folds: dict[str, Any] = {}
    for name, kept_aside in {**plan.folds, **plan.also}.items():
        aside = rows.of(kept_aside)
        inner, outer = rows.where(~aside & ~rows.of(plan.only_judged)), rows.where(aside)
        if len(np.unique(inner.harmful)) < 2 or len(np.unique(outer.harmful)) < 2:
            say(f"{plan.category}, {name}: features of these sources are missing, not judged")
            continue
        strength, logits = choose(inner)
        point = place(logits, inner)
        head = fit(inner.where(inner.variants > 0), strength)
        folds[name] = {"strength": strength, **measured(head.logits(outer.features), outer, point)}
        say(f"{plan.category}, {name}: {json.dumps({view: folds[name][view] for view in ('plain', 'altered')})}")
    why = reasons(folds)
    why += [f"{name}: not judged, as features are missing" for name in plan.folds if name not in folds]

    if why:
        # Nobody needs the head itself.
        return None, {"ships": False, "reasons": why, "folds": folds}

    trained = rows.where(~rows.of(plan.only_judged))
    strength, _ = choose(trained)
    logits = left_out(trained, strength, None)
    point = place(logits, trained)
    slope = slope_of(logits - np.float32(point), trained)
    head = fit(trained.where(trained.variants > 0), strength).scaled(slope, point)
    report = {
        "ships": True,
        "reasons": [],
        "folds": folds,
        # Each source by a head that saw all the others, at the point that is shipped.
        "one_source_left_out": measured(logits, trained, point)["by_source"],
        # What the head that ships says of violence that it was not made for.
        "beside": {
            str(name): {
                "pictures": int((beside.sources == name).sum()),
                "flagged": round(float((head.logits(beside.features[beside.sources == name]) >= 0).mean()), 4),
            }
            for name in np.unique(beside.sources)
        },
        "strength": strength,
        "slope": slope,
        "rows": len(trained.sources),
    }
    return head, report


# --- without training --------------------------------------------------------

# Of ImageNet's classes in their usual order: assault rifle, revolver, rifle.
GUN_CLASSES = [413, 763, 764]


def by_classes(rows: Rows, plan: Plan, checkpoint: Path) -> dict[str, Any]:
    """How well the pretrained classes of firearms alone tell a plan's pictures apart, each source of it by itself."""
    tensors = efficientnet.read(checkpoint)
    rows = for_plan(rows, plan)
    rows = rows.where(rows.variants == 0)
    logits = rows.features @ tensors["_fc.weight"].T + tensors["_fc.bias"]
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    seen = shares[:, GUN_CLASSES].sum(axis=1) / shares.sum(axis=1)
    highest = float(np.quantile(seen[~rows.harmful], 0.99))
    found: dict[str, Any] = {}
    for name in ("all", *np.unique(rows.sources[rows.harmful])):
        some = ~rows.harmful | (rows.sources == name if name != "all" else rows.harmful)
        found[str(name)] = {
            "auprc": round(auprc(seen[some], rows.harmful[some]), 4),
            "found_at_1_percent": round(float((seen[some & rows.harmful] > highest).mean()), 4),
        }
    return found


# --- what is written ---------------------------------------------------------


def share(value: float) -> str:
    return f"{100 * value:.1f} %"


def card(reports: dict[str, dict[str, Any]]) -> str:
    lines = [
        "## What else is seen",
        "",
        "Heads on the features of the last pooling, trained and judged by `scripts/train/image_heads.py`; a head ships when"
        f" on whole sources that it never saw its AUPRC is at least {LEAST_AUPRC} and at most {100 * MOST_FALSE:.0f} % of the"
        " harmless pictures are flagged, as they are and altered (cropped, squashed, stamped, compressed).",
    ]
    for plan in PLANS:
        report = reports[plan.category]
        lines += ["", f"### {plan.title} (`{plan.category}`)", ""]
        if report["ships"]:
            lines.append(f"Seen. 0.5 is the operating point. {plan.seen}")
        else:
            lines.append(
                f"Not seen: the head did not pass. The score of `{plan.category}` comes from the text in a picture alone;"
                " what a picture only shows is not found."
            )
            lines += ["", *(f"- {reason}" for reason in report["reasons"])]
        lines += ["", plan.doubts]
        if not report["folds"]:
            continue
        lines += ["", "| Kept aside | View | Harmful | Harmless | AUPRC | Found | False positives | Mean over sources |",
                  "| --- | --- | --- | --- | --- | --- | --- | --- |"]
        for name, fold in report["folds"].items():
            for view in ("plain", "altered"):
                f = fold[view]
                lines.append(
                    f"| {name} | {view} | {f['harmful']} | {f['harmless']} | {f['auprc']:.3f} | {share(f['recall'])}"
                    f" | {share(f['false_positive_rate'])} | {share(f['mean_over_sources'])} |"
                )
        if report["ships"]:
            lines += ["", "| Source, left out alone | Pictures | Label | Flagged |", "| --- | --- | --- | --- |"]
            for name, f in report["one_source_left_out"].items():
                lines.append(f"| {name} | {f['pictures']} | {f['label']} | {share(f['flagged'])} |")
        if report.get("classes"):
            lines += ["", "| ImageNet's own classes of firearms, untrained | AUPRC | Found where 1 % of the harmless are flagged |",
                      "| --- | --- | --- |"]
            lines += [f"| {name} | {f['auprc']:.3f} | {share(f['found_at_1_percent'])} |" for name, f in report["classes"].items()]
        if report.get("beside"):
            lines += ["", "| Not looked for | Pictures | Flagged all the same |", "| --- | --- | --- |"]
            for name, f in report["beside"].items():
                lines.append(f"| {name} | {f['pictures']} | {share(f['flagged'])} |")
    return "\n".join(lines)


def publish(folder: Path, heads: dict[str, Head], reports: dict[str, dict[str, Any]], made_from: list[Any]) -> None:
    """Writes the heads that ship, or takes away those that did before; the report and the card in any case."""
    target = folder / "heads.safetensors"
    if heads:
        tensors: dict[str, np.ndarray] = {}
        for category, head in heads.items():
            tensors[f"{category}.weight"] = head.weight.astype(np.float32)
            tensors[f"{category}.bias"] = np.array([head.bias], np.float32)
        partial = target.with_name(target.name + ".partial")
        save_file(tensors, partial)
        partial.replace(target)
    else:
        target.unlink(missing_ok=True)
    document = {"made_by": "scripts/train/image_heads.py", "features": made_from, "heads": reports}
    write(folder / "heads.json", json.dumps(document, indent=1) + "\n")
    replace_block(folder / "image-card.md", f"Image classifier of {folder.name}", card(reports), MARKS)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("features", nargs="+", type=Path, metavar="FEATURES.npz")
    parser.add_argument("--model", nargs="+", required=True, help="identifiers of one network, such as alpha-4o-mini")
    parser.add_argument("--classes", type=Path, metavar="CHECKPOINT.pth", help="the network's own, for its ImageNet classes")
    options = parser.parse_args()
    rows, settings = load(options.features)
    heads, reports = {}, {}
    for plan in PLANS:
        head, reports[plan.category] = make(rows, plan, lambda line: print(line, file=sys.stderr, flush=True))
        if head is not None:
            heads[plan.category] = head
        if options.classes and plan.category == "violence":
            reports[plan.category]["classes"] = by_classes(rows, plan, options.classes)
        print(f"{plan.title}: {'ships' if head is not None else 'stays out: ' + '; '.join(reports[plan.category]['reasons'])}")
    for model in options.model:
        publish(ROOT / "models" / model, heads, reports, settings)
        if heads:
            print(f'Name "heads": "heads.safetensors" in the image recipe of models/{model}/model.json.')
        else:
            print(f'Take "heads" out of the image recipe of models/{model}/model.json if it is there.')
    return 0


if __name__ == "__main__":
    sys.exit(main())
