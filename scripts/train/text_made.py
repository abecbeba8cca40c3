"""Owns the texts made by program, of which no source has enough: nonsense and formulas, scraps of words and codes.

All of them are harmless, and all that is random comes from the generator that
is handed in.
"""

from __future__ import annotations

import random
import re
import string
from collections import defaultdict

from text_data import Row, split_of


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
