"""From the rounds' raw seconds to medians, ratios and verdicts. Pure.

A side that failed is never compared: its rows say why instead. A round in which
time ran out before all sides of a row were asked does not count for that row.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Union

from .rows import PAIR_TOKENS, Row


@dataclass(frozen=True)
class Failed:
    """Why a side has no figures in a round."""

    reason: str


# What one side answered in one round: figures by name, or why there are none.
Outcome = Union[Mapping[str, float], Failed]
# `group/side` → outcome.
Round = Mapping[str, Outcome]


@dataclass(frozen=True)
class Spread:
    """Median, lowest and highest of the rounds."""

    median: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(median(values), min(values), max(values))


@dataclass(frozen=True)
class Compared:
    """A row with its figures."""

    row: Row
    ours: Spread
    theirs: Spread
    # The side that was theirs at its best, most often.
    peer: str
    ratio: Spread
    rounds: int

    @property
    def met(self) -> bool:
        return self.row.met(self.ratio.median)


@dataclass(frozen=True)
class Refused:
    """A row that cannot be judged."""

    row: Row
    reason: str


def judge(row: Row, rounds: Sequence[Round]) -> Compared | Refused:
    """Compares within each round, then takes the median of the ratios."""
    ours: list[float] = []
    theirs: list[float] = []
    peers: list[str] = []
    for number, found in enumerate(rounds, 1):
        outcomes = {side: found.get(side) for side in row.sides}
        for side, outcome in sorted(outcomes.items()):
            if isinstance(outcome, Failed):
                return Refused(row, f"{side} failed in round {number}: {outcome.reason}")
        if any(outcome is None for outcome in outcomes.values()):
            continue
        values = {}
        for quantity in row.quantities:
            side, _, what = quantity.rpartition("/")
            value = outcomes[side].get(what)  # type: ignore[union-attr]
            if value is None or not 0 < value < float("inf"):
                return Refused(row, f"{side} gave no {what} in round {number}")
            values[quantity] = value
        best = (max if row.more_is_better else min)(row.theirs, key=values.__getitem__)
        ours.append(values[row.ours])
        theirs.append(values[best])
        peers.append(best.rpartition("/")[0].partition("/")[2])
    if not ours:
        return Refused(row, "not measured")
    ratio = Spread.of([mine / yours for mine, yours in zip(ours, theirs)])
    peer = max(dict.fromkeys(peers), key=peers.count)
    return Compared(row, Spread.of(ours), Spread.of(theirs), peer, ratio, len(ours))


def generation(raw: Mapping[str, Any], tokens: int) -> dict[str, float]:
    """Figures of a generator from its raw answer; each side's has this one form.

    `decode` leaves the first token out, and so the prompt: what N tokens take
    longer than one. `together` counts everything, prompts included.
    """
    figures: dict[str, float] = {}
    if raw.get("first"):
        figures["first"] = median(raw["first"]) * 1000
    if raw.get("whole"):
        for one in raw["whole"]:
            _expect(one["tokens"], tokens)
        rates = [(tokens - 1) / (one["all"] - one["first"]) for one in raw["whole"] if one["all"] > one["first"]]
        if len(rates) != len(raw["whole"]):
            raise ValueError("a whole answer took no longer than its first token")
        figures["decode"] = median(rates)
        figures["spoken"] = PAIR_TOKENS / figures["decode"] * 1000
    if raw.get("together"):
        for answer in raw["together"]["tokens"]:
            _expect(answer, tokens)
        figures["together"] = len(raw["together"]["tokens"]) * tokens / raw["together"]["all"]
    return figures


def _expect(answer: Sequence[int], tokens: int) -> None:
    if len(answer) != tokens:
        raise ValueError(f"{len(answer)} tokens were generated instead of {tokens}")


def best_pass(ways: Sequence[Sequence[Mapping[str, float]]]) -> dict[str, float]:
    """Milliseconds of a photograph's passes the way that is faster, in the median: of all parts, and of each."""
    if not ways or not all(ways):
        raise ValueError("a way has no passes")
    best = min(ways, key=lambda passes: median(sum(one.values()) for one in passes))
    parts = {part: median(one[part] for one in best) * 1000 for part in best[0]}
    return {"alpha": median(sum(one.values()) for one in best) * 1000, **parts}


def passes(metrics: str) -> Counter[str]:
    """How many passes each kind of model has made, over all models, by the server's metrics."""
    found: Counter[str] = Counter()
    pattern = r"^dichroic_inference_duration_seconds_count\{([^}]*)\} (\d+)$"
    for labels, count in re.findall(pattern, metrics, re.MULTILINE):
        component = re.search(r'component="([^"]*)"', labels)
        if component:
            found[component[1]] += int(count)
    if not found:
        raise ValueError("the metrics tell of no passes")
    return found


@dataclass(frozen=True)
class Agreement:
    """How far greedy answers of two sides are the same."""

    # Tokens before the first that differs, for each text, and how many there were to compare.
    same: tuple[int, ...]
    compared: tuple[int, ...]

    @property
    def whole(self) -> bool:
        return self.same == self.compared


def agreement(ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]], stop: Sequence[int]) -> Agreement:
    """Compares up to our first stop token: what follows the end of an answer means nothing.

    Of an empty answer the stop token itself is compared: an untuned model may say nothing to a tuned one's prompt.
    """
    if len(ours) != len(theirs):
        raise ValueError(f"{len(theirs)} answers came instead of {len(ours)}")
    same, compared = [], []
    for mine, yours in zip(ours, theirs):
        end = next((place for place, token in enumerate(mine) if token in stop and place), len(mine))
        differs = (place for place in range(end) if place >= len(yours) or mine[place] != yours[place])
        same.append(next(differs, end))
        compared.append(end)
    return Agreement(tuple(same), tuple(compared))


def one_model(found: Agreement, least: int) -> bool:
    """Whether two sides can be the same model: half of the answers begin alike.

    Weights rounded to different grids lead greedy answers apart sooner or later,
    a wrong model or prompt at once.
    """
    begun = [mine >= min(least, there) for mine, there in zip(found.same, found.compared) if there]
    return bool(begun) and 2 * sum(begun) >= len(begun)


def scores_agree(
    ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]], threshold: float = 0.5
) -> tuple[float, float]:
    """The share of verdicts that are the same, and how far scores are apart in the mean."""
    pairs = [(mine, yours) for a, b in zip(ours, theirs, strict=True) for mine, yours in zip(a, b, strict=True)]
    if not pairs:
        raise ValueError("there are no scores to compare")
    same = sum((mine >= threshold) == (yours >= threshold) for mine, yours in pairs) / len(pairs)
    return same, sum(abs(mine - yours) for mine, yours in pairs) / len(pairs)
