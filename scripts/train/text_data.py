"""Owns the text classifier's data: reading, splitting, mixing and disguising.

A row keeps a target and a weight for each of the five harm categories (weight
0 where a source did not judge the category) and, where the text was written
for it, an expressibility class. Splits are drawn by a hash of the normalised
text, so the same text always falls on the same side whatever else changes.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import random
import re
import string
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]

from forge import encoder  # noqa: E402
from normalise import normalise  # noqa: E402

CATEGORIES = ("sexual", "hate", "self_harm", "violence", "defamation")
EXPRESSIBILITY = ("statement", "acknowledgement", "agreement", "meaningless", "formula")

# Never trained on, so that they judge how far the model carries. Between them
# they hold positives of all five categories.
HELD_OUT_SOURCES = ("convabuse", "catqa")

# The lines written for this project lie beside this file.
AUTHORED = Path(__file__).resolve().parent / "authored"

SPLIT_KEY = "dichroic-text-split-1"
VALIDATION_SHARE = 0.10
CALIBRATION_SHARE = 0.05

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
)
# Written to set operating points by, and never trained on: judged for all five.
CALIBRATION_FILE = "calibration"
# Where harm of a category stands beside its look-alikes.
WRITTEN_FOR = {
    "sexual": ("sexual", "intimacy", "edges_intimate"),
    "hate": ("hate", "contrasts", "edges_hate"),
    "self_harm": ("self_harm", "despair", "edges_intimate"),
    "violence": ("violence", "threats", "edges_public"),
    "defamation": ("defamation", "edges_public"),
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
SPECIAL_FILES = ("special", "special_more", "special_borders")
# Where a line says its text in a positive and in a negative light.
EXPRESSED_FILES = (*STATEMENT_FILES, "pairs_daily", "pairs_work", "pairs_difficult", "pairs_east_asian", "pairs_european",
                   "pairs_languages")
# Where the light of an expression is learned: those, and what generators learn whole.
LIGHT_FILES = (*EXPRESSED_FILES, "pairs_short", "pairs_close", "pairs_close_languages", "preferred", "plain", "plain_languages")
# Texts of the generators' lines without harm to others: what people type all day.
EVERYDAY_FILES = ("pairs_daily", "pairs_work", "pairs_east_asian", "pairs_european", "pairs_languages", "pairs_short", "pairs_close",
                  "pairs_close_languages", "preferred", "plain", "plain_languages")
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

# Share of the training draws that a source gets (normalised to 1), and the part
# of its draws that should be rows with a positive label.
MIXTURE: dict[str, tuple[float, float]] = {
    "authored/defamation": (8.0, 0.50),
    "authored/violence": (7.5, 0.58),
    "authored/self_harm": (5.0, 0.55),
    "authored/sexual": (5.0, 0.52),
    "authored/benign_lookalikes": (5.0, 0.0),
    "authored/hate": (9.0, 0.48),
    "authored/threats": (7.0, 0.50),
    "authored/intimacy": (5.5, 0.50),
    "authored/despair": (5.0, 0.48),
    "authored/prompts": (8.0, 0.35),
    "authored/chatbot": (7.0, 0.47),
    "authored/passages": (4.5, 0.46),
    "authored/emoji": (4.0, 0.45),
    "authored/subtle": (7.0, 0.47),
    "authored/contrasts": (7.0, 0.50),
    "authored/alarms": (7.0, 0.42),
    "authored/stories": (4.5, 0.50),
    "authored/edges_hate": (7.0, 0.50),
    "authored/edges_intimate": (7.0, 0.50),
    "authored/edges_public": (7.0, 0.50),
    "authored/borders": (36.0, 0.46),
    "read": (20.0, 0.45),
    "authored/borders_languages": (2.0, 0.47),
    "authored/crises_languages": (1.0, 0.60),
    "authored/edges_languages": (1.0, 0.50),
    "authored/east_asian": (1.5, 0.50),
    "authored/european": (2.5, 0.48),
    "authored/languages_more": (2.0, 0.46),
    "authored/special": (4.0, 0.0),
    "authored/near_miss": (3.0, 0.0),
    "authored/en_daily": (1.5, 0.0),
    "authored/en_feelings": (1.5, 0.0),
    "authored/en_hard": (1.2, 0.0),
    "authored/en_opinions": (1.8, 0.0),
    "authored/multilingual": (1.5, 0.0),
    "authored/everyday": (6.0, 0.0),
    "authored/expressions": (9.0, 0.0),
    "made/special": (2.0, 0.0),
    "made/words": (7.0, 0.0),
    "imdb-counterfactual": (2.0, 0.0),
    "positive-frames": (2.0, 0.0),
    "davidson": (2.5, 0.40),
    "stormfront": (3.0, 0.35),
    "hatexplain": (6.0, 0.50),
    "edos": (2.5, 1.0),
    "hatemoji-build": (6.0, 0.50),
    "jigsaw-sample": (1.5, 0.40),
    "civil-spans": (4.5, 0.45),
    "diasafety": (1.2, 0.45),
    "suicide-reddit": (2.5, 0.45),
    "suicide-reddit-sentences": (4.0, 0.55),
    "ailuminate": (4.5, 0.60),
    "aart": (3.5, 0.50),
    "automod-nsfw": (2.5, 0.50),
    "profanity-list": (2.2, 1.0),
    "surge-nontoxic": (0.7, 0.0),
    "cold-zh": (0.8, 0.50),
    "synthetic-defamation": (1.5, 0.55),
    "medquad": (2.2, 0.0),
    "ud-ewt": (4.0, 0.0),
    "clinc150": (1.2, 0.0),
    "banking77": (0.6, 0.0),
    "goemotions": (2.5, 0.0),
    "pheme": (4.0, 0.0),
    "madlibs-identity": (2.0, 0.0),
    "wiki-context": (1.5, 0.0),
}

# What a run may draw more or less of.
EMPHASIS: dict[str, dict[str, float]] = {
    "even": {},
    # For a vocabulary that knows other languages.
    "multilingual": {
        "authored/edges_languages": 12.0,
        "authored/east_asian": 8.0,
        "authored/european": 5.0,
        "authored/languages_more": 6.0,
        "authored/borders_languages": 9.0,
        "authored/multilingual": 3.0,
        "made/words": 2.0,
        "cold-zh": 6.0,
    },
    # To go on from a model that misses people in danger in other languages than English.
    "crises": {
        "authored/crises_languages": 60.0,
        "authored/edges_languages": 10.0,
        "authored/east_asian": 8.0,
        "authored/european": 8.0,
        "authored/languages_more": 8.0,
        "authored/borders_languages": 8.0,
        "authored/multilingual": 3.0,
        "made/words": 2.0,
        "cold-zh": 4.0,
    },
    # To go on from a model that takes names, codes and single words for harm.
    "words": {"made/words": 2.0},
    # To go on from a model that takes ordinary talk of named people, or a sigh, for harm.
    "everyday": {"authored/everyday": 5.0, "authored/borders": 1.5},
    # To go on from a model that has learned the labels of the sources where a reader finds others.
    "read": {"read": 3.0, "authored/everyday": 2.0, "authored/special": 2.0, "authored/near_miss": 4.0},
    # For the last part of a run: what the first leaves weak.
    "fine": {
        "authored/special": 2.0,
        "authored/near_miss": 2.0,
        "authored/benign_lookalikes": 1.5,
        "authored/prompts": 1.5,
        "authored/threats": 1.3,
        "cold-zh": 0.3,
    },
}

# Characters of texts put together, so that a training window holds them whole.
JOINED_LIMIT = 280

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


def as_read(row: Row, read: dict) -> Row:
    """The row with what a reader found in it, of all five categories, instead of what its source says."""
    found = tuple(float(c in read["found"]) for c in CATEGORIES)
    return replace(row, targets=found, weights=(0.5 if read["doubtful"] else 1.0,) * 5, read=True)


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
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as handle:
        return [json.loads(line) for line in handle if line.strip()]


def authored_lines(folder: Path, name: str) -> list[dict]:
    """The lines of one file of ours; the long ones are packed, as the whole repository has a bound."""
    plain, packed = folder / f"{name}.jsonl", folder / f"{name}.jsonl.gz"
    # Unpacked to be worked on, a file is read as it is then.
    return _lines(packed if packed.exists() and not plain.exists() else plain)


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


def made_special(count: int, rng: random.Random) -> list[Row]:
    """Make up nonsense and formulas, of which no finite list can show enough.

    They only widen what was written by hand; nothing made here is measured on.
    """
    keys = ("qwertyuiop", "asdfghjkl", "zxcvbnm", string.ascii_lowercase)
    filler = "the of and to in blue seven is a with under spoon it cloud green or at".split()

    def mash() -> str:
        row = rng.choice(keys)
        words = [
            "".join(rng.choice(row) for _ in range(rng.randint(2, 9)))
            for _ in range(rng.randint(1, 5))
        ]
        return " ".join(words)

    def shuffled() -> str:
        return " ".join(rng.choice(filler) for _ in range(rng.randint(2, 6)))

    def signs() -> str:
        return "".join(rng.choice("!?.,;:#%&*-_/|~^<>@0123456789 ") for _ in range(rng.randint(2, 12)))

    def term() -> str:
        name = rng.choice("xyzabntkmuv")
        number = rng.choice([str(rng.randint(0, 99)), f"{rng.random() * 10:.2f}"])
        return rng.choice(
            [
                number,
                name,
                f"{number}{name}",
                f"{name}^{rng.randint(2, 5)}",
                f"{name}²",
                f"sqrt({name})",
                f"√{number}",
                f"{rng.choice(['sin', 'cos', 'tan', 'log', 'ln', 'exp', 'f', 'g', 'P'])}({name})",
                f"({name} {rng.choice('+-')} {number})",
                f"{name}_{rng.choice('ijn012')}",
                f"{name}/{number}",
            ]
        )

    def formula() -> str:
        gap = rng.choice(["", " ", " "])
        side = lambda: (gap + rng.choice(["+", "-", "*", "/", "×", "·"]) + gap).join(  # noqa: E731
            term() for _ in range(rng.randint(1, 3))
        )
        text = side()
        if rng.random() < 0.75:
            text += f"{gap}{rng.choice(['=', '=', '=', '<', '>', '≤', '≥', '≠', '≈', '→'])}{gap}{side()}"
        elif len(text) < 4:
            text += f"{gap}+{gap}{side()}"
        return text

    rows = []
    for _ in range(count):
        make, kind = rng.choice(
            [(mash, 3), (mash, 3), (shuffled, 3), (signs, 3), (formula, 4), (formula, 4), (formula, 4)]
        )
        text = make().strip() or "..."
        rows.append(Row(text, "made/special", (0.0,) * 5, (0.2,) * 5, kind))
    return rows


class Words:
    """Makes up harmless scraps: words, names, codes and stray signs, as titles, tags and readings of pictures hold them.

    Texts that are one word are nearly all profanity in the sources, so that a
    model comes to take any short unknown text for it.
    """

    WORD = re.compile(r"[^\W\d_]{2,20}")
    # A word is left out where more than this share of the texts with it are harmful.
    HARMFUL = 0.2
    OTHER_SCRIPTS = ((0x4E00, 0x9FA5), (0x3041, 0x3096), (0x30A1, 0x30FA), (0xAC00, 0xD7A3), (0x0430, 0x044F), (0x0621, 0x064A))

    def __init__(self, rows: list[Row]) -> None:
        seen: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        vulgar: set[str] = set()
        for row in rows:
            if row.side() != "train" or not any(row.weights):
                continue
            found = set(self.WORD.findall(row.text.casefold()))
            for word in found:
                seen[word][row.positive()] += 1
            if row.source == "profanity-list":
                vulgar |= found if len(found) < 3 else set()
        self.words = sorted(
            word for word, (good, bad) in seen.items()
            if good >= 2 and bad / (good + bad) <= self.HARMFUL and word not in vulgar
        )

    def _strange(self, rng: random.Random) -> str:
        """A word of no language, a code, or a word with a letter misread."""
        make = rng.randrange(4)
        if make == 0:
            return "".join(rng.choice(string.ascii_lowercase) for _ in range(rng.randint(2, 9)))
        if make == 1:
            parts = (rng.choice("bcdfghjklmnprstvwz") + rng.choice("aeiouy") + rng.choice(("", "", "n", "r", "s", "l", "x")) for _ in range(rng.randint(1, 4)))
            return "".join(parts)
        if make == 2:
            return "".join(rng.choice(string.ascii_uppercase + string.digits) for _ in range(rng.randint(2, 7)))
        word = rng.choice(self.words)
        at = rng.randrange(len(word))
        return word[:at] + rng.choice(string.ascii_lowercase) + word[at + rng.randint(0, 1) :]

    def _scrap(self, rng: random.Random) -> str:
        make = rng.random()
        if make < 0.12:
            first, last = rng.choice(self.OTHER_SCRIPTS[:1] * 3 + self.OTHER_SCRIPTS)
            return "".join(chr(rng.randint(first, last)) for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))))
        if make < 0.40:
            words = [self._strange(rng) for _ in range(rng.choice((1, 1, 1, 2, 3)))]
        else:
            words = [rng.choice(self.words) for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 5)))]
        joint = " " if rng.random() < 0.85 else rng.choice(("", "_", "-", ".", ", "))
        case = rng.choice((str.lower, str.lower, str.title, str.upper, str.capitalize, str))
        text = joint.join(map(case, words))
        if rng.random() < 0.15:
            text += rng.choice(("", " ", "_")) + str(rng.randint(1, 2100))
        return text

    def made(self, count: int, rng: random.Random, side: str = "train") -> list[Row]:
        rows: list[Row] = []
        while len(rows) < count:
            text = self._scrap(rng)
            if split_of(text, "made/words") == side:
                rows.append(Row(text, "made/words", (0.0,) * 5, (1.0,) * 5))
        return rows


# ---- disguises -------------------------------------------------------------

LEET = {"a": "@4", "e": "3", "i": "1!", "o": "0", "s": "$5", "t": "7", "l": "1", "u": "v", "c": "(", "b": "8", "g": "9"}
LOOK_ALIKE = {"a": "аα", "e": "еε", "o": "оο", "c": "с", "p": "рρ", "x": "х", "i": "іι", "y": "у", "k": "к", "h": "һ", "s": "ѕ"}
FANCY = (0x1D400, 0x1D434, 0x1D468, 0x1D4D0, 0x1D5A0, 0x1D5D4, 0x1D608, 0x1D670)
HIDDEN = "\u200b\u200c\u200d\u2060\ufeff\u00ad\u202e\u2066"
EMOJI = "😀😂🤣😊😍😡🤬😭🙏🔥💀👀👍💯🎉❤💔🐒🐍🍆🍑💦🔪🔫🐀🤡😈🥰🙃✨🚀"


def _leet(text: str, rng: random.Random) -> str:
    rate = rng.uniform(0.2, 0.7)
    return "".join(
        rng.choice(LEET[c.lower()]) if c.lower() in LEET and rng.random() < rate else c
        for c in text
    )


def _look_alike(text: str, rng: random.Random) -> str:
    rate = rng.choice((0.15, 0.3, 0.7))
    return "".join(rng.choice(LOOK_ALIKE[c]) if c in LOOK_ALIKE and rng.random() < rate else c for c in text)


def _fancy(text: str, rng: random.Random) -> str:
    if rng.random() < 0.3:
        return "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in text)
    start = rng.choice(FANCY)
    fancy = "".join(
        chr(start + ord(c) - 65) if c.isascii() and c.isupper()
        else chr(start + 26 + ord(c) - 97) if c.isascii() and c.islower() else c
        for c in text
    )
    # The one italic letter that Unicode had given a place before.
    return fancy.replace("\U0001d455", "\u210e")


def _hidden(text: str, rng: random.Random) -> str:
    mark = rng.choice(HIDDEN)
    rate = rng.choice((0.05, 0.2, 1.0))
    return "".join(c + mark if c.isalpha() and rng.random() < rate else c for c in text)


def _some_words(text: str, rng: random.Random, change) -> str:
    words = text.split(" ")
    long = [i for i, w in enumerate(words) if len(w) > 2]
    if not long:
        return change(text)
    for i in rng.sample(long, min(len(long), rng.randint(1, 3))):
        words[i] = change(words[i])
    return " ".join(words)


def _spaced(word: str, rng: random.Random) -> str:
    return rng.choice([" ", ".", "-", "*", "_"]).join(word)


def _elongated(word: str, rng: random.Random) -> str:
    at = rng.randrange(len(word)) if word else 0
    return word[:at] + word[at : at + 1] * rng.randint(3, 6) + word[at + 1 :]


def _typo(word: str, rng: random.Random) -> str:
    if len(word) < 3:
        return word
    at = rng.randrange(len(word) - 1)
    return rng.choice(
        [
            word[:at] + word[at + 1] + word[at] + word[at + 2 :],
            word[:at] + word[at + 1 :],
            word[: at + 1] + word[at] + word[at + 1 :],
        ]
    )


def _emoji(text: str, rng: random.Random) -> str:
    marks = "".join(rng.choice(EMOJI) for _ in range(rng.randint(1, 3)))
    return f"{text} {marks}" if rng.random() < 0.7 else f"{marks} {text}"


DISGUISES: dict[str, Callable[[str, random.Random], str]] = {
    "case": lambda text, rng: rng.choice((str.upper, str.lower, str.title, str.swapcase))(text),
    "leetspeak": _leet,
    "leetspeak in words": lambda text, rng: _some_words(text, rng, lambda w: _leet(w, rng)),
    "spaced letters": lambda text, rng: _some_words(text, rng, lambda w: _spaced(w, rng)),
    "elongation": lambda text, rng: _some_words(text, rng, lambda w: _elongated(w, rng)),
    "typing errors": lambda text, rng: _some_words(text, rng, lambda w: _typo(w, rng)),
    "emoji": _emoji,
    "no punctuation": lambda text, rng: re.sub(r"[.,;:'\"!?]", "", text) or text,
    "more punctuation": lambda text, rng: text.rstrip(".!") + rng.choice(["!!!", "...", "!?", "??", " .", "!!!!!!"]),
    "look-alike letters": _look_alike,
    "fancy letters": _fancy,
    "hidden signs": _hidden,
}


def disguise(text: str, rng: random.Random) -> str:
    """Write a text the way a typist in a hurry or someone evading a filter might."""
    return DISGUISES[rng.choice(list(DISGUISES))](text, rng)


def joined(first: Row, second: Row) -> Row:
    """Two texts in one: harm hides in longer writing, and is harm there too."""
    targets, weights = [], []
    for a, wa, b, wb in zip(first.targets, first.weights, second.targets, second.weights):
        if (a > 0.5 and wa > 0) or (b > 0.5 and wb > 0):
            targets.append(1.0)
            weights.append(max(wa * a, wb * b))
        else:
            targets.append(0.0)
            weights.append(min(wa, wb))
    kind = 0 if 0 in (first.kind, second.kind) else -1
    soft = tuple(map(max, first.soft, second.soft)) if first.soft and second.soft else None
    return Row(f"{first.text} {second.text}", first.source, tuple(targets), tuple(weights), kind, soft=soft)


def draw(rows: list[Row], count: int, seed: int, emphasis: str = "even") -> list[Row]:
    """Draw the training order: by source share, then by label, then disguised.

    `emphasis` weighs the sources by one of EMPHASIS besides. Draws go round each
    pool in shuffled order before any row comes again. Two thirds of the texts
    are normalised, as the server has them.
    """
    factors = EMPHASIS[emphasis]
    rng = random.Random(seed)
    pools: dict[tuple[str, bool], list[Row]] = defaultdict(list)
    for row in rows:
        if row.side() == "train":
            pools[row.pool(), row.positive()].append(row)
    for row in made_special(4000, rng) + Words(rows).made(6000, rng):
        pools[row.source, False].append(row)
    missing = sorted({source for source, _ in pools} - MIXTURE.keys())
    if missing:
        raise SystemExit(f"No mixture share for source {missing[0]}: add it to MIXTURE.")
    mixture = {
        source: (share * factors.get(source, 1.0), part)
        for source, (share, part) in MIXTURE.items()
    }
    total = sum(share for share, _ in mixture.values())
    order: list[Row] = []
    for source, (share, positive_part) in mixture.items():
        for positive, part in ((True, positive_part), (False, 1.0 - positive_part)):
            pool = pools.get((source, positive), [])
            if not pool:
                continue
            for_one_category = _by_rarest_positive(pool) if positive else {"": pool}
            want = round(count * share / total * part)
            # Square roots between fair and proportional: rare categories come
            # often, but not so often that a handful of rows is learnt by heart.
            roots = {k: len(v) ** 0.5 for k, v in for_one_category.items()}
            for key, group in for_one_category.items():
                take = round(want * roots[key] / sum(roots.values()))
                while take > 0:
                    rng.shuffle(group)
                    order.extend(group[:take])
                    take -= len(group)
    rng.shuffle(order)
    out = []
    for row in order:
        special = row.kind > 0
        if not special and rng.random() < 0.13:
            for _ in range(rng.choice((1, 1, 2))):
                other = rng.choice(order)
                if other.kind <= 0 and len(row.text) + len(other.text) < JOINED_LIMIT:
                    row = joined(row, other) if rng.random() < 0.5 else joined(other, row)
        if rng.random() < (0.10 if special else 0.22):
            row = replace(row, text=disguise(row.text, rng))
        if rng.random() < 0.67:
            row = replace(row, text=normalise(row.text).strip() or row.text)
        out.append(row)
    return out


def _by_rarest_positive(pool: list[Row]) -> dict[str, list[Row]]:
    """Group positive rows by the category of theirs that is rarest in the pool."""
    counts = [0] * 5
    for row in pool:
        for i in range(5):
            counts[i] += i in row.harms()
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in pool:
        own = row.harms()
        groups[CATEGORIES[min(own, key=lambda i: counts[i])]].append(row)
    return dict(groups)
