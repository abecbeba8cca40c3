"""Owns the text classifier's rows: what is read, how far its labels are trusted, and which side it falls on.

A row keeps a target and a weight for each of the five harm categories (weight
0 where a source did not judge the category) and, where the text was written
for it, an expressibility class. Splits are drawn by a hash of the normalised
text, so the same text always falls on the same side whatever else changes.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import json
import lzma
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]

from forge import encoder  # noqa: E402

CATEGORIES = ("sexual", "hate", "self_harm", "violence", "defamation")
EXPRESSIBILITY = ("statement", "acknowledgement", "agreement", "meaningless", "formula")

# Never trained on, so that they judge how far the model carries. Between them
# they hold positives of all five categories.
HELD_OUT_SOURCES = ("convabuse", "catqa")

# Cut from the texts of another source, or made from templates: what would be kept aside has its like in what is trained
# on, and would be no evidence.
DERIVED_SOURCES = ("suicide-reddit-sentences", "synthetic-defamation")

# The lines written for this project lie beside this file.
AUTHORED = Path(__file__).resolve().parent / "authored"
PACKED = (".bz2", ".xz")

SPLIT_KEY = "dichroic-text-split-1"
VALIDATION_SHARE = 0.10
CALIBRATION_SHARE = 0.05

# Where insults stand in for defamation.
INSULTS = ("civil-spans", "jigsaw-sample", "diasafety")

# Files written for one category, in which the other four were not looked for.
HARM_FILES = ("defamation", "violence", "self_harm", "sexual", "benign_lookalikes")
# Files in which every line was judged for all five.
JUDGED_FILES = (
    "hate",
    "threats",
    "intimacy",
    "despair",
    "prompts",
    "chatbot",
    "passages",
    "emoji",
    "subtle",
    "contrasts",
    "alarms",
    "stories",
    "edges_hate",
    "edges_intimate",
    "edges_public",
    "edges_languages",
    "east_asian",
    "european",
    "languages_more",
    "borders",
    "borders_languages",
    "crises_languages",
    "hints",
    "neighbours",
    "neighbours_languages",
    "wounds_languages",
    "groups",
    "direct",
    "dangers",
    "dangers_languages",
    "unnamed",
    "unnamed_languages",
    "abuse",
    "pressed",
    "advances",
    "abuse_languages",
    "posts",
    "chats",
    "dangers_short",
)
# Written to set operating points by, and never trained on: judged for all five.
CALIBRATION_FILE = "calibration"
# Where harm of a category stands beside its look-alikes.
WRITTEN_FOR = {
    "sexual": ("sexual", "intimacy", "edges_intimate", "advances"),
    "hate": ("hate", "contrasts", "edges_hate", "groups", "unnamed"),
    "self_harm": ("self_harm", "despair", "edges_intimate", "hints", "direct", "dangers", "pressed"),
    "violence": ("violence", "threats", "edges_public", "direct", "advances"),
    "defamation": ("defamation", "edges_public", "abuse"),
}
STATEMENT_FILES = (
    "en_daily",
    "en_feelings",
    "en_hard",
    "en_opinions",
    "near_miss",
    "multilingual",
)
# What has nothing to express, and its near misses.
SPECIAL_FILES = ("special", "special_more", "special_borders", "special_edges", "special_far", "special_daily")
# Where a line says its text in a positive and in a negative light.
EXPRESSED_FILES = (*STATEMENT_FILES, "pairs_daily", "pairs_work", "pairs_difficult", "pairs_east_asian", "pairs_european",
                   "pairs_languages")
# Where the light of an expression is learned: those, and what generators learn whole.
LIGHT_FILES = (*EXPRESSED_FILES, "pairs_short", "pairs_close", "pairs_close_languages", "preferred", "plain", "plain_languages", "sampled", "sampled_more",
               "answered", "answered_languages")
# Texts of the generators' lines without harm to others: what people type all day.
EVERYDAY_FILES = ("pairs_daily", "pairs_work", "pairs_east_asian", "pairs_european", "pairs_languages", "pairs_short", "pairs_close",
                  "pairs_close_languages", "preferred", "plain", "plain_languages", "sampled", "sampled_more", "answered", "answered_languages")
# Share of the public pairs that is read for it.
SENTIMENT_SHARE = 0.3
# Ordinary writing may speak of despair; it was never read for self-harm.
SELF_HARM_UNREAD = ("en_feelings", "en_hard", "pairs_east_asian", "pairs_european", "pairs_languages", "pairs_short", "pairs_close",
                    "pairs_close_languages")

# Public texts that were read once more, for all five categories: by their digest, as the texts are other people's.
READINGS = "readings"
# The same of a sample of what is kept aside, by chance from each source; for measuring alone.
READINGS_ASIDE = "readings_eval"

# What an authored file says of the four categories it was not written for.
WEAK_ZERO = 0.3

# Trust in a source's judgement of a category, where it is below 1. Insults and
# templates only stand in for defamation, and must not outweigh the real thing.
TRUST: dict[tuple[str, str], float] = {
    ("civil-spans", "defamation"): 0.35,
    ("jigsaw-sample", "defamation"): 0.4,
    ("diasafety", "defamation"): 0.1,
    ("diasafety", "hate"): 0.3,
    ("synthetic-defamation", "defamation"): 0.3,
    ("cold-zh", "hate"): 0.5,
    ("davidson", "hate"): 0.7,
    ("suicide-reddit", "self_harm"): 0.5,
    ("suicide-reddit-sentences", "self_harm"): 0.8,
    ("pheme", "violence"): 0.8,
    ("aart", "violence"): 0.8,
    ("goemotions", "self_harm"): 0.5,
}


@dataclass(frozen=True)
class Row:
    """One text with what its source says of it."""

    text: str
    source: str
    targets: tuple[float, ...]
    weights: tuple[float, ...]
    # Index into EXPRESSIBILITY, or -1 where nothing is known.
    kind: int = -1
    lang: str = "en"
    # What a teacher holds of the five categories, where one was asked.
    soft: tuple[float, ...] | None = None
    # 1 where the text is said in a positive light, 0 in a negative one, -1 unknown.
    sentiment: int = -1
    # The text that this one says anew: both fall on the same side.
    origin: str = ""
    # Whether a reader of ours judged it, for all five categories, in place of its source.
    read: bool = False

    def side(self) -> str:
        """As split_of: `train`, `calibration`, `validation` or `held_out`."""
        return split_of(self.origin or self.text, self.source)

    def harms(self) -> list[int]:
        """The categories that the source calls harmful here; a doubted label does not count."""
        return [c for c in range(5) if self.targets[c] > 0.5 and self.weights[c] > 0.02]

    def positive(self) -> bool:
        return bool(self.harms())

    def pool(self) -> str:
        """What of MIXTURE it is drawn under."""
        return "read" if self.read else self.source


def split_of(text: str, source: str) -> str:
    """Side a text falls on: `train`, `calibration`, `validation` or `held_out`."""
    if source in HELD_OUT_SOURCES:
        return "held_out"
    if source in DERIVED_SOURCES:
        return "train"
    if source == f"authored/{CALIBRATION_FILE}":
        return "calibration"
    # Special texts may be nothing but signs: fall back on the raw text there.
    plain = re.sub(r"\W+", " ", text.casefold()).strip() or text.strip()
    digest = hashlib.sha256(f"{SPLIT_KEY}\0{plain}".encode()).digest()
    share = int.from_bytes(digest[:8], "big") / 2**64
    if share < VALIDATION_SHARE:
        return "validation"
    if share < VALIDATION_SHARE + CALIBRATION_SHARE:
        return "calibration"
    return "train"


def share_of(text: str) -> float:
    """A fixed number in 0..1 for a text, to thin a sample the same way each run."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") / 2**32


def name_of(text: str) -> str:
    """Names a text without showing it."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def is_english(row: Row) -> bool:
    """Whether a teacher that knows English alone can judge it; public sources name no language."""
    return row.lang == "en" and sum(map(str.isascii, row.text)) >= 0.9 * len(row.text)


def as_read(row: Row, read: dict) -> Row:
    """The row with what a reader found in it, of all five categories, instead of what its source says."""
    found = tuple(float(c in read["found"]) for c in CATEGORIES)
    sure = 0.5 if read["doubtful"] else 1.0
    # Asked for false claims, readers passed over insults: of what its source calls one they do not say that nobody is degraded.
    insult = CATEGORIES.index("defamation") if row.source in INSULTS else -1
    weights = tuple(0.0 if c == insult and row.targets[c] > found[c] else sure for c in range(5))
    return replace(row, targets=found, weights=weights, read=True)


def for_points(rows: list[Row]) -> list[Row]:
    """What sets operating points: where a part of a source was read, that part alone."""
    ours = [row for row in rows if row.side() == "calibration"]
    read = {row.source for row in ours if row.read}
    return [row for row in ours if row.read or row.source not in read]


def said_of(rows: list[Row], path: Path) -> np.ndarray:
    """What a model holds of these rows [rows, 5], as text_teach.py wrote it."""
    with np.load(path) as said:
        if str(said["data"]) != digest(rows):
            raise SystemExit(f"{path} is of other data: run text_teach.py again.")
        return said["probabilities"]


def digest(rows: list[Row]) -> str:
    """Hex SHA-256 of the texts in their order: what was said of rows holds for these rows only."""
    total = hashlib.sha256()
    for row in rows:
        total.update(row.text.encode() + b"\0")
    return total.hexdigest()


def plain_tokenizer(kind: encoder.Backbone, base: Path) -> Tokenizer:
    """The tokenizer of a base folder, as the server has it."""
    source = {path.name: path for path in base.iterdir()}
    tokenizer = Tokenizer.from_str(encoder.tokenizer(kind, source).decode())
    # A typed `</s>` is four characters, not the end.
    tokenizer.encode_special_tokens = True
    return tokenizer


def write(path: Path, save: Callable[[Path], object]) -> None:
    """Write through a temporary name, so that no reader meets half a file."""
    partial = path.with_name(path.name + ".partial")
    save(partial)
    partial.chmod(0o644)
    os.replace(partial, path)


def _lines(path: Path) -> list[dict]:
    opener = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}.get(path.suffix, open)
    with opener(path, "rt", encoding="utf-8") as handle:
        return [json.loads(line) for line in handle if line.strip()]


def authored_lines(folder: Path, name: str) -> list[dict]:
    """The lines of one file of ours, packed by what makes it smallest, as the whole repository has a bound."""
    plain = folder / f"{name}.jsonl"
    packed = (folder / f"{name}.jsonl{suffix}" for suffix in PACKED)
    # Unpacked to be worked on, a file is read as it is then.
    return _lines(next((path for path in packed if path.exists() and not plain.exists()), plain))


def all_authored_lines(folder: Path = AUTHORED) -> Iterator[dict]:
    """The lines of all packed files of ours."""
    for name in sorted({path.name.partition(".")[0] for suffix in PACKED for path in folder.glob(f"*.jsonl{suffix}")}):
        yield from authored_lines(folder, name)


def _judged(labels: dict, source: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    targets, weights = [], []
    for category in CATEGORIES:
        value = labels.get(category)
        targets.append(float(value or 0))
        weights.append(0.0 if value is None else TRUST.get((source, category), 1.0))
    return tuple(targets), tuple(weights)


def load(data: Path, authored: Path = AUTHORED) -> list[Row]:
    """Read every public source below the data folder, then the authored lines, in a fixed order."""
    rows: list[Row] = []
    files = sorted((data / "moderation" / "train").glob("*.jsonl.gz"))
    if not files:
        raise SystemExit(
            f"No moderation sources in {data}/moderation/train: "
            "give the data folder with --data."
        )
    readings = {item["digest"]: item for item in authored_lines(authored, READINGS)}
    for path in files:
        source = path.name.removesuffix(".jsonl.gz")
        for item in _lines(path):
            targets, weights = _judged(item["labels"], source)
            # A source's own place-holders would tell it apart from the others.
            text = re.sub(r"<(user|number|url|censored)>", r"@\1", item["text"])
            # Long enough prose is a statement; short lines may be anything.
            kind = 0 if len(text.split()) >= 6 else -1
            row = Row(text, source, targets, weights, kind)
            # What is measured on keeps the labels of its source.
            if (read := readings.get(name_of(text))) and row.side() in ("train", "calibration"):
                row = as_read(row, read)
            rows.append(row)
    for name in HARM_FILES:
        for item in authored_lines(authored, name):
            labels = item["labels"]
            targets = tuple(float(labels[c]) for c in CATEGORIES)
            weights = tuple(
                1.0 if name in (c, "benign_lookalikes") else WEAK_ZERO
                for c in CATEGORIES
            )
            kind = 0 if len(item["text"].split()) >= 5 else -1
            rows.append(
                Row(item["text"], f"authored/{name}", targets, weights, kind, item["lang"])
            )
    for name in (*JUDGED_FILES, CALIBRATION_FILE):
        for item in authored_lines(authored, name):
            targets = tuple(float(item["labels"][c]) for c in CATEGORIES)
            kind = 0 if len(item["text"].split()) >= 5 else -1
            rows.append(Row(item["text"], f"authored/{name}", targets, (1.0,) * 5, kind, item["lang"]))
    zeros, everyday = (0.0,) * 5, set[str]()
    for name in (*STATEMENT_FILES, *SPECIAL_FILES, *EVERYDAY_FILES):
        weights = tuple(0.0 if c == "self_harm" and name in SELF_HARM_UNREAD else 0.5 for c in CATEGORIES)
        for item in authored_lines(authored, name):
            kind = EXPRESSIBILITY.index(item["kind"])
            if name in SPECIAL_FILES:
                source = "authored/special" if kind else "authored/near_miss"
            elif name in EVERYDAY_FILES:
                # Some were given answers twice.
                if item["text"] in everyday:
                    continue
                everyday.add(item["text"])
                source = "authored/everyday"
            else:
                source = f"authored/{name}"
            rows.append(Row(item["text"], source, zeros, weights, kind, item["lang"]))
    return rows + sentiments(data, authored)


def sentiments(data: Path, authored: Path) -> list[Row]:
    """Texts said in a positive and in a negative light, not judged for harm.

    Ours, and of the public pairs a part; of film reviews the text itself is the
    opposite of what was made of it.
    """
    rows: list[Row] = []
    unknown = (0.0,) * 5

    def add(item: dict, source: str, reverse: bool) -> None:
        for light, value in (("negative", 0), ("positive", 1)):
            said = item.get(light)
            if said and said != "false":
                kind = 0 if len(said.split()) >= 5 else -1
                rows.append(Row(said, source, unknown, unknown, kind, item.get("lang", "en"), sentiment=value, origin=item["text"]))
                if reverse:
                    rows.append(Row(item["text"], source, unknown, unknown, kind, sentiment=1 - value))

    for name in LIGHT_FILES:
        for item in authored_lines(authored, name):
            add(item, "authored/expressions", False)
    for path in sorted((data / "expression" / "train").glob("*.jsonl.gz")):
        source = path.name.removesuffix(".jsonl.gz")
        for item in _lines(path):
            if share_of(item["text"]) < SENTIMENT_SHARE:
                add(item, source, source == "imdb-counterfactual")
    return rows


def doubted(rows: list[Row], probabilities: np.ndarray, share: float = 0.1) -> list[Row]:
    """The rows, with labels of public sources weighed down where a trained model is sure of the opposite.

    `probabilities` is [rows, 5]. Our own lines were read by their writers: a
    model that contradicts them is what they were written for. What a reader of
    ours judged is as sure. So is rare harm
    that a model overlooks; only of hate, which some sources see in any rudeness,
    a label of harm is doubted too.
    """
    out = []
    for row, p in zip(rows, probabilities):
        if not row.source.startswith("authored/") and not row.read:
            # Nothing said (NaN) compares as no contradiction.
            weights = tuple(
                w * share if q - t > 0.93 or (c == "hate" and t - q > 0.93) else w
                for c, w, t, q in zip(CATEGORIES, row.weights, row.targets, p)
            )
            row = replace(row, weights=weights)
        out.append(row)
    return out
