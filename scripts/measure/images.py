"""Owns the measuring of image moderation: which source is harmful in what, the
asking for each picture, the figures and their Markdown.

A source is harmful in the categories that scripts/train/image_heads.py states of
the sources that we know, whether or not a head is trained to find it, and in those
that a run names; in every other it counts as harmless. A picture that the
server does not take is counted by the error's code, and counts nowhere else.
"""

from __future__ import annotations

import base64
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from . import MeasureError, metrics
from .asking import IMAGE, Course, Server, Talk, refusal, scores_of, spread
from .figures import THRESHOLD, number, plain
from .texts import CATEGORIES

# The sources belong to the training, whose scripts are no package.
sys.path.append(str(Path(__file__).resolve().parents[1] / "train"))

from image_heads import PLANS  # noqa: E402

# As `MAX_BYTES` in src/domain/image.rs. Of a far larger body the server hangs up before all of it is sent.
MOST_BYTES = 10 * 2**20
# The highest scores of harmless pictures that are told of a category.
HIGHEST = 3


@dataclass(frozen=True)
class Answer:
    """The five scores of a picture, or the code of the error where it was not taken."""

    source: str
    scores: tuple[float, ...] | None
    code: str | None
    seconds: float


@dataclass(frozen=True)
class Run:
    """All that a report tells of."""

    model: str
    digest: str | None
    # What was measured, and how it was chosen.
    data: str
    harmful: Mapping[str, Collection[str]]
    connections: int
    answers: list[Answer]
    course: Course

    @property
    def taken(self) -> list[Answer]:
        return [answer for answer in self.answers if answer.scores is not None]


def harms(source: str, named: Mapping[str, Collection[str]]) -> set[str]:
    """The categories that a source is harmful in."""
    known = {plan.category for plan in PLANS if plan.harmful(source) or plan.beside(source)}
    return known | {category for category, sources in named.items() if source in sources}


def label(sources: Iterable[str], named: Mapping[str, Collection[str]]) -> dict[str, set[str]]:
    """What each source is harmful in; a name that no source has is refused."""
    found = {source: harms(source, named) for source in sources}
    for category, names in named.items():
        for name in names:
            if name not in found:
                raise MeasureError(f"--harmful {category}={name} names no source of these pictures: {', '.join(found)}")
    return found


def ask_all(
    server: Server,
    pictures: Iterator[tuple[str, str, bytes]],
    count: int,
    connections: int,
    say: Callable[[str], None] = lambda line: None,
) -> tuple[list[Answer], Course]:
    """The answers to `count` pictures, each of them a source, a place and bytes, in their order."""
    answers: dict[int, Answer] = {}
    numbered = enumerate(pictures)
    # A generator has one caller at a time; so each connection holds one picture, and no more are read.
    taking = threading.Lock()

    def work(talk: Talk, _: int) -> None:
        with taking:
            one = next(numbered, None)
        # None only after reading failed, which ends the run.
        if one is not None:
            answers[one[0]] = _answer(talk, *one[1])

    course = spread(server, count, connections, work, say, "pictures")
    return [answers[i] for i in range(count)], course


def _answer(talk: Talk, source: str, place: str, data: bytes) -> Answer:
    if len(data) > MOST_BYTES:
        return Answer(source, None, "image_too_large", 0.0)
    reply = talk.ask(IMAGE, image=base64.b64encode(data).decode())
    if reply.status == 400 and reply.code != "unknown_model":
        return Answer(source, None, reply.code, reply.seconds)
    if reply.status != 200:
        raise refusal(reply, IMAGE, talk.server, place)
    return Answer(source, tuple(scores_of(reply, place)), None, reply.seconds)


# --- the report ----------------------------------------------------------------


def report(run: Run, level: int = 1, sheet: str | None = None) -> str:
    """The whole report in Markdown; `sheet` is the contact sheet, as a link sees it."""
    if not run.taken:
        raise MeasureError("the server took none of the pictures: they must be JPEG, PNG, WebP, GIF, BMP or TIFF")
    mark = "#" * level
    out = [f"{mark} Image moderation of {run.model}, measured through the running server", "", *_about(run), ""]
    out += [f"{mark}# By category", "", *by_category(run), "", f"{mark}# By source", "", *by_source(run)]
    if sheet is not None:
        out += [
            "",
            f"{mark}# Samples",
            "",
            "Drawn pictures, none of them harmful but for what some say in words; scores from 0.5 are red.",
            "",
            f"![Drawn pictures with their five scores]({sheet})",
        ]
    return "\n".join([*out, "", _this_run(run)]) + "\n"


def by_category(run: Run) -> list[str]:
    """Recall over the harmful sources, false positives over the others."""
    scores, sources = arrays(run)
    out = [
        "| Category | Harmful | Found | Harmless | Flagged | Mean over sources | Highest source | AUPRC"
        " | Highest harmless scores |",
        "| --- " * 9 + "|",
    ]
    for c, category in enumerate(CATEGORIES):
        harmful = np.array([category in run.harmful[source] for source in sources])
        flagged, calm = scores[:, c] >= THRESHOLD, ~harmful
        rates = {source: flagged[sources == source].mean() for source in dict.fromkeys(sources[calm])}
        worst = max(rates, key=lambda source: rates[source], default=None)
        order = np.argsort(-scores[:, c], kind="stable")
        highest = [f"{scores[i, c]:.2f} {plain(sources[i])}" for i in order if calm[i]][:HIGHEST]
        cells = [
            category,
            f"{harmful.sum():,}",
            share(flagged[harmful]),
            f"{calm.sum():,}",
            share(flagged[calm]),
            share(list(rates.values())),
            f"{rates[worst]:.1%} {plain(worst)}" if worst is not None else "–",
            number(metrics.auprc(harmful, scores[:, c])) if harmful.any() and calm.any() else "–",
            ", ".join(highest) or "–",
        ]
        out.append(f"| {' | '.join(cells)} |")
    return out


def by_source(run: Run) -> list[str]:
    """The share of each source that is flagged: recall where it is harmful, which is bold, else false positives."""
    scores, sources = arrays(run)
    out = [f"| Source | Pictures | {' | '.join(CATEGORIES)} |", "| --- " * (2 + len(CATEGORIES)) + "|"]
    for source in dict.fromkeys(sources):
        own = scores[sources == source] >= THRESHOLD
        shares = [share(own[:, c]) for c in range(len(CATEGORIES))]
        marked = [
            f"**{told}**" if category in run.harmful[source] else told for category, told in zip(CATEGORIES, shares)
        ]
        out.append(f"| {plain(source)} | {len(own):,} | {' | '.join(marked)} |")
    return out


def arrays(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """Scores `[pictures, 5]` and the source of each."""
    return np.array([answer.scores for answer in run.taken]), np.array([answer.source for answer in run.taken])


def share(flags: Collection[float] | np.ndarray) -> str:
    return f"{np.mean(flags):.1%}" if len(flags) else "–"


def _about(run: Run) -> list[str]:
    sources = {answer.source for answer in run.answers}
    out = [f"- {len(run.answers):,} pictures of {len(sources)} sources, asked one by one of `{IMAGE}`: {run.data}."]
    if run.digest:
        out.append(f"- Classifier: manifest SHA-256 `{run.digest}`.")
    codes = Counter(answer.code for answer in run.answers if answer.code is not None)
    if codes:
        told = ", ".join(f"{count:,} `{code}`" for code, count in sorted(codes.items()))
        out.append(f"- Not taken by the server, and in no figure: {told}.")
    out.append(
        f"- Flagged is a score of {THRESHOLD} and above, from what is shown or from the text that is read. A source is"
        " harmful in the categories where its share is bold (recall), and harmless in every other (false positives);"
        " a dash means that no figure exists."
    )
    return out


def _this_run(run: Run) -> str:
    """Speed belongs to one machine at one time, and says so."""
    seconds = np.array([answer.seconds for answer in run.taken])
    p50, p95 = np.percentile(seconds, [50, 95]) * 1000
    return (
        f"Speed of this run only, on its machine and beside whatever else ran there: {len(run.answers):,} pictures in"
        f" {run.course.seconds:.1f} s over {run.connections} connections; latency in ms p50 {p50:.1f}, p95 {p95:.1f},"
        f" longest {seconds.max() * 1000:.1f}; told to come back later (429) {run.course.refusals:,} times."
    )
