"""Owns the disguises: how the same text is written by a typist in a hurry, or by someone who evades a filter.

All that is random comes from the generator that is handed in.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable

LEET = {"a": "@4", "e": "3", "i": "1!", "o": "0", "s": "$5", "t": "7", "l": "1", "u": "v", "c": "(", "b": "8", "g": "9"}
LOOK_ALIKE = {"a": "аα", "e": "еε", "o": "оο", "c": "с", "p": "рρ", "x": "х", "i": "іι", "y": "у", "k": "к", "h": "һ", "s": "ѕ"}
FANCY = (0x1D400, 0x1D434, 0x1D468, 0x1D4D0, 0x1D5A0, 0x1D5D4, 0x1D608, 0x1D670)
HIDDEN = "\u200b\u200c\u200d\u2060\ufeff\u00ad\u202a\u2066"
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
