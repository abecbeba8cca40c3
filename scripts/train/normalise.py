"""Writes a text the way it reads, as src/runtime/normalise.rs does before the tokenizer.

The classifiers are trained on such texts and on raw ones; the server scores both
and takes the higher. `tests/fixtures/normalise.json` holds both programs to the
same answers: change one, change the other, and add a case.
"""

from __future__ import annotations

import re
import unicodedata

# Soft hyphen, joiners, bidirectional marks, fillers, variation selectors, tags;
# and skin tones, which only colour the sign before them.
INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\U0001f3fb-\U0001f3ff\U000e0000-\U000e0fff]"
)

# Letters that pass for a Latin one once NFKC has folded the mathematical and
# wide ones. Unicode Technical Standard 39 lists far more; these are the
# alphabets that a keyboard or a web page of "fancy text" offers.
CONFUSABLE = {
    other: latin
    for latin, others in {
        "a": "аαաɑᴀ", "b": "бвьβʙ", "c": "сᴄ", "d": "ԁᴅ", "e": "еёεᴇ", "g": "ɡɢ", "h": "нһհʜ",
        "i": "іїιıɩɪ", "j": "јᴊ", "k": "кκᴋ", "l": "ӏʟ", "m": "мᴍ", "n": "ηոɴ", "o": "оοσօᴏ",
        "p": "рρᴘ", "q": "ԛ", "r": "гʀ", "s": "ѕ", "t": "тτᴛ", "u": "υսᴜ", "v": "νᴠ", "w": "ԝωѡᴡ",
        "x": "хχ", "y": "уγү", "z": "зᴢ",
    }.items()
    for other in others
}

# Of those, the Latin letters in another dress, which no language writes whole words in.
STYLED = frozenset("ɑᴀʙᴄᴅᴇɡɢʜıɩɪᴊᴋʟᴍɴᴏᴘʀᴛᴜᴠᴡᴢ")

# Digits and signs that stand for a letter inside a word.
LEET = {"0": "o", "1": "i", "3": "e", "4": "a", "5": "s", "7": "t", "8": "b", "@": "a", "$": "s", "!": "i", "|": "i", "€": "e", "+": "t"}

# Wide forms become ordinary ones, but lone Korean letters stay: NFKC would tear
# them from the alphabet that people type.
FOLDED = re.compile("[^\u3131-\u318e]+")
EMOJI = re.compile("[\u2600-\u27bf\u2b00-\u2bff\U0001f000-\U0001faff]")
SAME_EMOJI = re.compile(rf"({EMOJI.pattern})\1{{2,}}")
# A name may take a dozen tokens: of a text full of emoji this many say enough.
NAMED = 64
# Of an outlined or a filled sign only the shape matters.
OUTLINE = re.compile(r"\b(black|white|heavy) ")
NUMBER = re.compile(r"[$€]?\d[\d.,:]*[a-z]{0,2}[$€]?", re.IGNORECASE)
# `mp3`, `covid19`
NUMBERED = re.compile(r"[a-z]+\d+", re.IGNORECASE)
LETTER = r"[^\W_]"
SPACED = re.compile(rf"(?<!{LETTER}){LETTER}([ .\-*_·•,/|~]){LETTER}(?:\1{LETTER})+(?!{LETTER})")
REPEATED = re.compile(r"([^\W\d_])\1{2,}")


def normalise(text: str) -> str:
    """The text without invisible signs and disguises, emoji by their names."""
    text = FOLDED.sub(lambda found: unicodedata.normalize("NFKC", found[0]), INVISIBLE.sub("", text))
    text = INVISIBLE.sub("", text)
    text = EMOJI.sub(_name, SAME_EMOJI.sub(r"\1\1", text), count=NAMED)
    text = _fold(text)
    text = re.sub(r"\S+", lambda found: _plain(found[0]), text)
    text = SPACED.sub(lambda found: found[0].replace(found[1], ""), text)
    return REPEATED.sub(r"\1\1", text)


def _name(found: re.Match) -> str:
    # Unicode calls the knife by its Japanese name.
    return f" {OUTLINE.sub('', unicodedata.name(found[0], '').lower()).replace('hocho', 'knife')} "


def _latin(c: str) -> bool:
    return c.isascii() and c.isalpha()


def _fold(text: str) -> str:
    """Confusable letters as Latin ones, unless the text is truly written in their alphabet."""
    foreign = {c.lower() for c in text if c.isalpha() and not c.isascii()}
    everywhere = foreign <= CONFUSABLE.keys() and any(map(_latin, text))

    def word(found: re.Match) -> str:
        letters = found[0]
        if not everywhere and not any(_latin(c) or c in STYLED for c in letters):
            return letters
        return "".join(CONFUSABLE.get(c.lower(), c) for c in letters)

    return re.sub(r"[^\W\d_]+", word, text)


def _plain(word: str) -> str:
    """A word with its leet signs as letters; numbers, prices and handles as they are."""
    core = word.rstrip("!?.,;:|+")
    letters = sum(map(_latin, core))
    signs = sum(c in LEET for c in core)
    handle = core.startswith("@") and letters > 3 and signs == 1
    if not 0 < signs <= 2 * letters or handle or NUMBER.fullmatch(core) or NUMBERED.fullmatch(core):
        return word
    return "".join(LEET.get(c, c) for c in core) + word[len(core) :]
