"""Owns the tables of text-card.md: measures a finished classifier, and writes what it finds as lines of Markdown.

Nothing is fitted here, and no file is written: text_calibrate.py gives the model with its operating points and the
texts, which neither training nor calibration has seen, and puts the tables together.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

import text_data
from forge import encoder
from measure import metrics
from text_data import CATEGORIES, EXPRESSIBILITY, Row
from text_disguise import DISGUISES
from text_scores import Classifier, Ensemble, is_look_alike, pick, probabilities, softmax

# Sources whose defamation labels are insults, or made from templates.
STAND_INS = ("civil-spans", "jigsaw-sample", "diasafety", "convabuse", "synthetic-defamation")
MAIN_SOURCES = {
    "sexual": ["automod-nsfw", "profanity-list", "ailuminate"],
    "hate": ["davidson", "stormfront", "hatexplain", "hatemoji-build", "civil-spans", "diasafety", "cold-zh", "ailuminate"],
    "self_harm": ["suicide-reddit", "suicide-reddit-sentences", "ailuminate"],
    "violence": ["civil-spans", "edos", "aart", "ailuminate"],
    "defamation": ["ailuminate", "synthetic-defamation", "civil-spans", "jigsaw-sample", "diasafety"],
}


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


def report(
    model: Classifier | Ensemble,
    places: list[dict[str, float]],
    rows: list[Row],
    validation: list[Row],
    harm: np.ndarray,
    scraps: list[Row],
    unread: tuple[str, ...],
    disguised: int,
) -> Iterable[str]:
    """All tables on harm: `harm` are the model's logits of `validation`, rows of `rows`; `scraps` are made words."""
    yield from tables(validation, probabilities(harm, places), unread)
    everyday = [item["text"] for item in text_data.authored_lines(text_data.AUTHORED, "everyday_eval")]
    for what, said in (
        ("single words, names and codes without context (made by program)", [row.text for row in scraps]),
        ("everyday English texts, written for this and never trained on", everyday),
    ):
        flagged = (probabilities(model.scores(said)[0], places) >= 0.5).any(axis=1)
        yield f"\nany category, {what}: {flagged.sum()}/{len(said)} ({flagged.mean():.1%}) flagged."
    yield "\n### Disguises\n"
    yield from disguise_lines(model, validation, places, disguised)
    if isinstance(model, Classifier):
        # What an ensemble is asked about is in English.
        yield "\n### Languages (48 texts each, written for this and never trained on; no native review)\n"
        yield from aside_lines(model, places, "languages_eval")
    yield "\n### Other places (clinics, courts, police, offices; written for this and never trained on)\n"
    yield from aside_lines(model, places, "borders_eval")
    yield "\n### Public texts kept aside, by what a reader of ours found in them\n"
    yield from read_lines(model, places, rows)


HEADER = "| {} | 1/0 | AUPRC | ROC-AUC | F1 at 0.5 | recall | FPR | ECE |\n| --- | --- | --- | --- | --- | --- | --- | --- |"


def judged(rows: list[Row], scores: np.ndarray, c: int, keep: Callable[[Row], bool]) -> tuple[np.ndarray, np.ndarray]:
    at = pick(rows, c, keep)
    return np.array([rows[i].targets[c] for i in at]), scores[at, c]


def written_for(row: Row, c: int) -> bool:
    return row.source.removeprefix("authored/") in text_data.WRITTEN_FOR[CATEGORIES[c]]


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


def disguise_lines(model: Classifier | Ensemble, rows: list[Row], places: list[dict[str, float]], each: int) -> Iterable[str]:
    """Recall on English authored harm and its look-alikes, plain and in each disguise."""
    names = {f"authored/{name}" for name in (*text_data.HARM_FILES, *text_data.JUDGED_FILES)}
    english = [r for r in sample(rows, len(rows)) if r.source in names and r.lang == "en"]
    harm = [r for r in english if r.positive()][:each]
    calm = [r for r in english if not r.positive()][:each]
    yield f"| disguise | {len(harm)} harmful texts flagged in their category | {len(calm)} look-alikes flagged |\n| --- | --- | --- |"
    total = []
    for name, change in (("none", lambda text, rng: text), *DISGUISES.items()):
        rng = random.Random(1)
        caught, wrong = (probabilities(model.scores([change(r.text, rng) for r in group])[0], places) >= 0.5 for group in (harm, calm))
        shares = np.mean([found[r.harms()].any() for found, r in zip(caught, harm)]), wrong.any(axis=1).mean()
        if name != "none":
            total.append(shares)
        yield f"| {name} | {shares[0]:.1%} | {shares[1]:.1%} |"
    recall, false = np.mean(total, axis=0)
    yield f"| all disguises | {recall:.1%} | {false:.1%} |"


def aside_lines(model: Classifier | Ensemble, places: list[dict[str, float]], name: str) -> Iterable[str]:
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
    model: Classifier | Ensemble, places: list[dict[str, float]], rows: list[Row], authored: Path = text_data.AUTHORED
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
