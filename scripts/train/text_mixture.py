"""Owns what a training draws: the share of every source, what a run may draw more of, and the drawing.

The order of the rows and all that is done to them follow from the rows, the
seed and the emphasis alone.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace

from normalise import normalise
from text_data import CATEGORIES, Row
from text_disguise import disguise
from text_made import Words, made_special

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
    "authored/hints": (5.0, 0.50),
    "authored/neighbours": (24.0, 0.44),
    "authored/neighbours_languages": (1.5, 0.50),
    "authored/wounds_languages": (0.7, 0.50),
    "authored/groups": (20.0, 0.50),
    "authored/direct": (4.0, 0.50),
    "authored/dangers": (2.0, 0.50),
    "authored/dangers_languages": (2.0, 0.50),
    "authored/unnamed": (6.0, 0.50),
    "authored/unnamed_languages": (1.5, 0.50),
    "authored/abuse": (6.0, 0.50),
    "authored/pressed": (3.5, 0.50),
    "authored/advances": (3.5, 0.47),
    "authored/abuse_languages": (1.5, 0.50),
    "authored/posts": (3.0, 0.30),
    "authored/chats": (6.0, 0.46),
    "authored/dangers_short": (0.8, 0.50),
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
        "authored/neighbours_languages": 9.0,
        "authored/wounds_languages": 9.0,
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
        "authored/neighbours_languages": 8.0,
        "authored/wounds_languages": 40.0,
        "authored/dangers_languages": 50.0,
        "authored/dangers": 10.0,
        "authored/everyday": 3.0,
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
    # To go on from a model that has read, and still takes some everyday texts for harm.
    "ordinary": {
        "read": 3.0, "authored/everyday": 5.0, "authored/expressions": 1.5, "authored/borders": 1.3, "goemotions": 1.5,
    },
    # To go on from a model that misses hate in plain words, and takes a group's mere name for it.
    "groups": {"authored/groups": 3.0, "authored/direct": 3.0, "read": 2.0, "madlibs-identity": 1.5, "hatemoji-build": 1.5, "authored/wounds_languages": 3.0},
    # To go on from a model that misses people in danger who say so in everyday words.
    "dangers": {
        "authored/dangers": 10.0, "authored/hints": 4.0, "authored/direct": 2.0, "authored/self_harm": 2.0, "authored/despair": 2.0,
        "authored/groups": 2.0, "authored/everyday": 4.0, "read": 2.0,
    },
    # To go on from a model that misses hate of a group that is not named ("people like you").
    "unnamed": {
        "authored/unnamed": 10.0, "authored/groups": 3.0, "authored/direct": 2.0, "read": 2.0, "madlibs-identity": 1.5,
        "hatemoji-build": 1.5, "authored/everyday": 2.0, "authored/borders": 1.5,
    },
    # To go on from a model that has learned none of the harm that is said directly, in everyday or in veiled words.
    "direct": {
        "authored/groups": 2.0, "authored/unnamed": 6.0, "authored/direct": 4.0, "authored/dangers": 8.0, "authored/hints": 2.0,
        "authored/self_harm": 1.5, "authored/everyday": 3.0, "authored/borders": 1.3, "authored/neighbours": 1.3, "read": 3.0,
        "madlibs-identity": 1.5,
    },
    # To go on from a model that passes over abuse of a person, and harm that one person presses on another.
    "abuse": {
        "authored/abuse": 8.0, "authored/pressed": 7.0, "authored/advances": 6.0, "authored/unnamed": 3.0, "authored/dangers": 5.0,
        "authored/direct": 2.0, "authored/groups": 1.5, "authored/everyday": 4.0, "authored/borders": 1.3, "authored/neighbours": 1.3,
        "read": 3.0,
    },
    # To go on from a model that takes long posts in which harm is told, quoted or overcome, and the call-outs of games, for harm,
    # and passes over contempt in few words.
    "posts": {
        "authored/posts": 9.0, "authored/chats": 5.0, "authored/stories": 3.0, "authored/passages": 3.0, "authored/abuse": 3.0,
        "authored/pressed": 2.0, "authored/advances": 2.0, "authored/dangers": 4.0, "authored/unnamed": 2.0, "authored/direct": 1.5,
        "authored/everyday": 4.0, "authored/borders": 1.3, "authored/neighbours": 1.3, "read": 3.0,
    },
    # The same as "abuse" for a multilingual one.
    "abuse_languages": {
        "authored/abuse_languages": 30.0, "authored/abuse": 4.0, "authored/pressed": 4.0, "authored/advances": 3.0,
        "authored/unnamed_languages": 15.0, "authored/unnamed": 2.0, "authored/crises_languages": 30.0,
        "authored/dangers_languages": 25.0, "authored/wounds_languages": 15.0, "authored/dangers": 5.0,
        "authored/edges_languages": 10.0, "authored/east_asian": 8.0, "authored/european": 6.0, "authored/languages_more": 8.0,
        "authored/borders_languages": 9.0, "authored/neighbours_languages": 9.0, "authored/multilingual": 3.0,
        "authored/everyday": 3.0, "read": 2.0, "made/words": 2.0, "cold-zh": 4.0,
    },
    # The same as "posts" for a multilingual one.
    "posts_languages": {
        "authored/posts": 8.0, "authored/chats": 3.0, "authored/stories": 3.0, "authored/passages": 3.0, "authored/abuse": 2.0,
        "authored/abuse_languages": 20.0, "authored/unnamed_languages": 12.0, "authored/crises_languages": 30.0,
        "authored/dangers_languages": 25.0, "authored/dangers_short": 40.0, "authored/wounds_languages": 15.0,
        "authored/dangers": 4.0, "authored/edges_languages": 10.0, "authored/east_asian": 8.0, "authored/european": 6.0,
        "authored/languages_more": 8.0, "authored/borders_languages": 9.0, "authored/neighbours_languages": 9.0,
        "authored/multilingual": 3.0, "authored/everyday": 4.0, "read": 2.0, "made/words": 2.0, "cold-zh": 4.0,
    },
    # To go on from a multilingual model that takes short statements for replies and replies for statements, and misses hate of a
    # group that is not named.
    "replies": {
        "authored/special": 6.0, "authored/near_miss": 8.0, "authored/unnamed_languages": 25.0, "authored/unnamed": 3.0,
        "authored/crises_languages": 20.0, "authored/dangers_languages": 20.0, "authored/wounds_languages": 15.0,
        "authored/dangers": 4.0, "authored/edges_languages": 10.0, "authored/east_asian": 8.0, "authored/european": 6.0,
        "authored/languages_more": 8.0, "authored/borders_languages": 9.0, "authored/neighbours_languages": 9.0,
        "authored/multilingual": 3.0, "authored/everyday": 3.0, "made/words": 2.0, "cold-zh": 4.0,
    },
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

# Characters of texts put together, so that a window of 128 tokens holds most of them whole.
JOINED_LIMIT = 560


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


class Pools:
    """The rows that are trained on, by source and by whether they are harmful, ready to be drawn from."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows: dict[tuple[str, bool], list[Row]] = defaultdict(list)
        for row in rows:
            if row.side() == "train":
                self.rows[row.pool(), row.positive()].append(row)
        self.words = Words(rows)
        missing = sorted({source for source, _ in self.rows} - MIXTURE.keys())
        if missing:
            raise SystemExit(f"No mixture share for source {missing[0]}: add it to MIXTURE.")

    def draw(self, count: int, seed: int, emphasis: str = "even") -> list[Row]:
        """Draw the training order: by source share, then by label, then disguised.

        `emphasis` weighs the sources by one of EMPHASIS besides. A draw goes round each
        pool in shuffled order before any row comes again; the next draw shuffles anew. Two thirds of the texts
        are normalised, as the server has them.
        """
        factors = EMPHASIS[emphasis]
        rng = random.Random(seed)
        made: dict[tuple[str, bool], list[Row]] = defaultdict(list)
        for row in made_special(4000, rng) + self.words.made(6000, rng):
            made[row.source, False].append(row)
        mixture = {
            source: (share * factors.get(source, 1.0), part)
            for source, (share, part) in MIXTURE.items()
        }
        total = sum(share for share, _ in mixture.values())
        order: list[Row] = []
        for source, (share, positive_part) in mixture.items():
            for positive, part in ((True, positive_part), (False, 1.0 - positive_part)):
                pool = self.rows.get((source, positive)) or made.get((source, positive))
                if not pool:
                    continue
                for_one_category = _by_rarest_positive(pool) if positive else {"": list(pool)}
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
        return [_as_met(row, order, rng) for row in order]


def _as_met(row: Row, order: list[Row], rng: random.Random) -> Row:
    """A row as a step meets it: some beside others, some disguised, most normalised."""
    special = row.kind > 0
    if not special and rng.random() < 0.18:
        for _ in range(rng.choice((1, 1, 2, 2, 6))):
            other = rng.choice(order)
            if other.kind <= 0 and len(row.text) + len(other.text) < JOINED_LIMIT:
                row = joined(row, other) if rng.random() < 0.5 else joined(other, row)
    if rng.random() < (0.10 if special else 0.22):
        row = replace(row, text=disguise(row.text, rng))
    if rng.random() < 0.67:
        row = replace(row, text=normalise(row.text).strip() or row.text)
    return row


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
