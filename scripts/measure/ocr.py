"""Owns the measuring of a text reader: what it reads of drawn pictures against
what is written on them, and the verdicts on the pictures against those on the
texts.

The operations do not tell what is read, so the error rate comes from `dichroic
read`, the same reader in the same binary; the verdicts come from the running
server.
"""

from __future__ import annotations

import base64
import json
import subprocess
import tempfile
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import MeasureError
from .asking import Server, post
from .pages import Drawn
from .texts import CATEGORIES, MOST_CHARACTERS

CLEAN_RATE, MEME_RATE, AGREEMENT = 0.05, 0.15, 0.95


@dataclass(frozen=True)
class Result:
    """A picture, the errors in what was read of it, and the verdicts; None where its text is too long for one request."""

    drawn: Drawn
    characters: int
    errors: int
    verdicts: Verdicts | None

    @property
    def agrees(self) -> bool | None:
        return None if self.verdicts is None else self.verdicts.of_text == self.verdicts.of_picture

    @property
    def is_flagged(self) -> bool:
        """Whether the text alone is flagged: of calm ones a blind reader would have equal verdicts too."""
        return self.verdicts is not None and any(self.verdicts.of_text)


@dataclass(frozen=True)
class Verdicts:
    """Which categories were found, in the text by itself and in its picture."""

    of_text: list[bool]
    of_picture: list[bool]


@dataclass(frozen=True)
class Run:
    """What was measured: the identifier, the digests of its reader and its text classifier, how the pages were drawn."""

    model: str
    reader: str | None
    classifier: str | None
    seed: int
    cjk: str | None


def plain(text: str) -> str:
    """Text as it is compared: white space is one blank, wide and narrow forms are the same."""
    return " ".join(unicodedata.normalize("NFKC", text).split())


def distance(one: str, other: str) -> int:
    """Characters to insert, delete or replace (Levenshtein)."""
    row = list(range(len(other) + 1))
    for number, character in enumerate(one, 1):
        corner, row[0] = row[0], number
        for at, wanted in enumerate(other, 1):
            corner, row[at] = row[at], min(row[at] + 1, row[at - 1] + 1, corner + (character != wanted))
    return row[-1]


def read(binary: str, root: Path, model: str, pictures: list[Drawn]) -> list[str]:
    """What the reader of a model reads of each picture."""
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for number, picture in enumerate(pictures):
            paths.append(Path(folder) / f"{number}.png")
            paths[-1].write_bytes(picture.png)
        command = [binary, "read", "--model", model, *map(str, paths)]
        try:
            done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
        except OSError as error:
            raise MeasureError(f"{binary} cannot be started ({error.strerror}): run make build first") from None
    if done.returncode != 0:
        told = done.stderr.strip().splitlines() or ["it said nothing"]
        raise MeasureError(f"dichroic read failed: {told[-1]}")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    if len(found) != len(pictures) or any("text" not in line for line in found):
        raise MeasureError("dichroic read did not read every picture: look at what it prints for one")
    return [line["text"] for line in found]


def verdict(server: Server, path: str, body: dict[str, Any], what: str) -> list[bool]:
    """Which categories are found, at the default threshold."""
    answer = post(server, path, {**body, "model": server.model}, what)
    try:
        return [answer["categories"][category] for category in CATEGORIES]
    except (KeyError, TypeError):
        raise MeasureError(f"the answer for {what} has no booleans of the five categories") from None


def verdicts(server: Server, drawn: Drawn, number: int) -> Verdicts | None:
    """What the server says of a text and of its picture; None for a text that is too long for one request."""
    if len(drawn.text) > MOST_CHARACTERS:
        return None
    of_text = verdict(server, "/v1/guardians/text", {"text": drawn.text}, f"the text of picture {number}")
    image = base64.b64encode(drawn.png).decode()
    of_picture = verdict(server, "/v1/guardians/image", {"image": image}, f"picture {number}")
    return Verdicts(of_text, of_picture)


def compare(
    pictures: list[Drawn], texts: list[str], server: Server, say: Callable[[str], None] = lambda line: None
) -> list[Result]:
    """Holds what was read against what is written, and asks the server for the verdicts."""
    results = []
    for number, (drawn, found) in enumerate(zip(pictures, texts, strict=True), 1):
        wanted = plain(drawn.text)
        results.append(Result(drawn, len(wanted), distance(plain(found), wanted), verdicts(server, drawn, number)))
        if number % 50 == 0:
            say(f"{number:,} of {len(pictures):,} pictures")
    return results


def rate(results: list[Result]) -> float:
    """Errors for each character; 0 without any."""
    return sum(result.errors for result in results) / max(1, sum(result.characters for result in results))


def agreement(results: list[Result]) -> float:
    """Share of the judged pictures whose verdict is that of their text; 1 without any."""
    judged = [result.agrees for result in results if result.agrees is not None]
    return sum(judged) / len(judged) if judged else 1.0


def report(results: list[Result], run: Run, level: int = 1) -> str:
    """The whole report in Markdown."""
    mark = "#" * level
    clean = [result for result in results if result.drawn.is_clean]
    memes = [result for result in results if result.drawn.kind == "meme"]
    judged = [result for result in results if result.agrees is not None]
    flagged = [result for result in judged if result.is_flagged]
    fonts = (
        f"Chinese and Japanese were drawn with `{Path(run.cjk).name}`."
        if run.cjk
        else "No font with Chinese and Japanese letters was found, so neither was measured (`--cjk-font FILE`)."
    )
    out = [
        f"{mark} Text reader of {run.model}, on {len(results):,} drawn pictures",
        "",
        f"- Drawn by `scripts/measure/pages.py`, seed {run.seed}, letters of 12 to 48 pixels. {fonts} A page is as large as"
        " its letters ask for, so that the detector sees it enlarged where they are small; a screen has 1920 × 1080 pixels,"
        " a large one 2560 × 1440, with one text of 12 to 20 pixels on it, and is searched by parts.",
        "- An error is a character to insert, delete or replace; a run of white space is one blank, and the width of"
        " forms does not count.",
        "- Verdicts: the five booleans for the picture against those for its text, asked of the running server."
        f" Pictures with more than {MOST_CHARACTERS} characters are not asked about, and in no share of equal"
        " verdicts.",
        *([f"- Reader: manifest SHA-256 `{run.reader}`; text classifier: `{run.classifier}`."] if run.reader else []),
        "",
        "| | Pictures | Asked for | Measured |",
        "| --- | --- | --- | --- |",
        f"| error rate, clean, 16 pixels and more | {len(clean)} | at most {CLEAN_RATE:.0%} | {rate(clean):.2%} |",
        f"| error rate, memes | {len(memes)} | at most {MEME_RATE:.0%} | {rate(memes):.2%} |",
        f"| equal verdicts | {len(judged)} | at least {AGREEMENT:.0%} | {agreement(results):.1%} |",
        f"| equal verdicts, of texts that are flagged | {len(flagged)} | |"
        f" {f'{agreement(flagged):.1%}' if flagged else '–'} |",
        "",
        "| Kind | Size | Pictures | Error rate | Read without error | Equal verdicts |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for kind in dict.fromkeys(result.drawn.kind for result in results):
        of_kind = [result for result in results if result.drawn.kind == kind]
        for low, high in ((12, 15), (16, 23), (24, 31), (32, 48)):
            rows = [result for result in of_kind if low <= result.drawn.size <= high]
            if rows:
                whole = sum(result.errors == 0 for result in rows)
                out.append(
                    f"| {kind} | {low} to {high} | {len(rows)} | {rate(rows):.2%} | {whole} | {agreement(rows):.1%} |"
                )
    return "\n".join(out) + "\n"
