"""Writes a text the way it reads, as src/runtime/normalise.rs does before the tokenizer.

The classifiers are trained on such texts and on raw ones; the server scores both
and takes the higher. `tests/fixtures/normalise.json` holds both programs to the
same answers: change one, change the other, and add a case.
"""

from __future__ import annotations

import re
import unicodedata

# Soft hyphen, joiners, bidirectional marks, fillers, variation selectors, tags;
# skin tones, which only colour the sign before them; and lines under or through
# a sign, which strike out a whole text with its gaps and digits.
INVISIBLE = re.compile(
    "[\u00ad\u0332-\u0338\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\U0001f3fb-\U0001f3ff\U000e0000-\U000e0fff]"
)

# Alphabets in boxes: parenthesised, squared, negative circled, negative
# squared, regional indicators. A flag is two of the last and reads as its country's code, `fr`:
# nothing tells it from letters that spell a word.
BOXED = {
    first + at: letter
    for first in (0x249C, 0x1F130, 0x1F150, 0x1F170, 0x1F1E6)
    for at, letter in enumerate("abcdefghijklmnopqrstuvwxyz")
}

# Letters that pass for a Latin one once NFKC has folded the mathematical and
# wide ones. Unicode Technical Standard 39 lists far more; these are the
# alphabets that a keyboard or a web page of "fancy text" offers.
CONFUSABLE = {
    other: latin
    for latin, others in {
        "a": "аαաɑᴀ", "b": "бвьβʙ", "c": "сᴄ", "d": "ԁᴅ", "e": "еёεєᴇ", "f": "ƒꜰ", "g": "ɡɢ", "h": "нһհʜ",
        "i": "іїιıɩɪ", "j": "јᴊ", "k": "кκᴋ", "l": "ӏʟ", "m": "мᴍ", "n": "ηոɴ", "o": "оοσօᴏ",
        "p": "рρᴘ", "q": "ԛǫ", "r": "гяʀ", "s": "ѕꜱ", "t": "тτᴛ", "u": "υսᴜ", "v": "νᴠ", "w": "ԝωѡᴡ",
        "x": "хχ", "y": "уγүʏ", "z": "зᴢ",
    }.items()
    for other in others
}

# Of those, the Latin letters in another dress, which no language writes whole words in.
STYLED = frozenset("ɑᴀʙᴄᴅᴇꜰɡɢʜıɩɪᴊᴋʟᴍɴᴏᴘʀꜱᴛᴜᴠᴡʏᴢ")

# Letters of the alphabets that look-alikes are taken from: Greek, Cyrillic, Armenian.
FOREIGN = re.compile("[\u0386-\u0481\u048a-\u052f\u0531-\u0556\u0561-\u0587\u1f00-\u1fff]")

# Marks of no script, directly behind a visible ASCII sign. NFKC has composed
# those that make a letter; marks on other letters may be how a language is written.
DECORATION = re.compile("(?<=[!-~])[\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]+")

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
# One letter, a unit of two or the end of an ordinal: `2pm`, `1er`, not `4ss`.
UNITS = "am|pm|st|nd|rd|th|kg|mg|km|cm|mm|nm|ft|yd|mi|ml|cl|dl|oz|lb|ha|hr|mo|wk|yr|ms|kw|mw|hz|kb|mb|gb|tb|px|pt|pp|pc|bc|ad|yo|in|er|re|ra|ro|to"
NUMBER = re.compile(rf"[$€]?\d[\d.,:]*([a-z]|{UNITS})?[$€]?", re.ASCII | re.IGNORECASE)
# `covid19` and `covid-19`, `b4`, `size8`, `ps5`, `4x4`: one last digit may be a
# letter instead (`rap3`), but not behind a single letter, an `e` or initials,
# which have no vowel. normalise.rs says why.
NUMBERED = re.compile(r"[a-z]+-?\d{2,}|[a-z]\d|[a-z]*e\d|[b-df-hj-np-tv-xz]+\d|\d+[dehpvx]\d+", re.ASCII | re.IGNORECASE)
# Vowel signs and other marks belong to the letter before them. Beyond this range all marks are invisible.
MARKS = "".join(c for c in map(chr, range(0x300, 0x1F000)) if unicodedata.category(c).startswith("M"))
LETTER = rf"(?!_)[\w{MARKS}]"
# Of a word, where a digit is none.
WORD_LETTER = rf"(?![\d_])[\w{MARKS}]"
# Up to three signs of one kind stand between letters.
SPACED = re.compile(rf"(?<!{LETTER}){LETTER}(([ .\-*_·•,/|~:\n])\2{{0,2}}){LETTER}(?:\1{LETTER})+(?!{LETTER})")
WORD = re.compile(rf"(?:{WORD_LETTER})+")
REPEATED = re.compile(rf"({WORD_LETTER})\1{{2,}}")
# Letters that no English word has twice in a row, or hardly one.
SINGLE = frozenset("ahijkquvyAHIJKQUVY")
# A word of these is a number, or says `xxx`.
ROMAN = frozenset("ivx")


def normalise(text: str) -> str:
    """The text without invisible signs and disguises, emoji by their names."""
    text = INVISIBLE.sub("", text).translate(BOXED)
    text = FOLDED.sub(lambda found: unicodedata.normalize("NFKC", found[0]), text)
    text = INVISIBLE.sub("", text)
    text = EMOJI.sub(_name, SAME_EMOJI.sub(r"\1\1", text), count=NAMED)
    # A line ends with one sign, as a gap between letters is of one kind.
    text = _words(DECORATION.sub("", _fold(text)).replace("\r\n", "\n"))
    # Twice: the gaps of `s.h.!.t` show once its sign is a letter, the word in
    # `k 1 l l` once its gaps are closed.
    text = _words(SPACED.sub(lambda found: found[0].replace(found[1], ""), text))
    return WORD.sub(lambda found: _cut(_one_case(found[0])), text)


def _one_case(word: str) -> str:
    """A word with a capital behind its first letter in small ones: `kIlL`, `KILL`. Some tokenizers tell them apart."""
    return word.lower() if any(map(str.isupper, word[1:])) else word


def _cut(word: str) -> str:
    """A word without letters three times in a row; `VIII` is none that was stretched, and `KKK` hardly."""
    letters = set(word.lower())
    if letters <= ROMAN:
        return word
    single = SINGLE if len(letters) > 1 else ()
    return REPEATED.sub(lambda found: found[1] * (1 if found[1] in single else 2), word)


def _name(found: re.Match) -> str:
    # Unicode calls the knife by its Japanese name.
    return f" {OUTLINE.sub('', unicodedata.name(found[0], '').lower()).replace('hocho', 'knife')} "


def _latin(c: str) -> bool:
    return c.isascii() and c.isalpha()


def _fold(text: str) -> str:
    """Confusable letters as Latin ones, unless the text is truly written in their alphabet.

    Some other letter of it tells. Letters of further scripts, accented Latin ones
    among them, say nothing of that.
    """
    if text.isascii():
        return text
    foreign = {c.lower() for c in FOREIGN.findall(text)}
    everywhere = foreign <= CONFUSABLE.keys() and any(map(_latin, text))

    def word(found: re.Match) -> str:
        letters = found[0]
        if not everywhere and not any(_latin(c) or c in STYLED for c in letters):
            return letters
        return "".join(CONFUSABLE.get(c.lower(), c) for c in letters)

    return WORD.sub(word, text)


def _words(text: str) -> str:
    return re.sub(r"\S+", lambda found: _plain(found[0]), text)


def _plain(word: str) -> str:
    """A word with its leet signs as letters; numbers, prices and handles as they are."""
    core = word.rstrip("!?.,;:|+")
    letters = sum(map(_latin, core))
    read = [LEET.get(c, c) for c in core]
    for at, c in enumerate(core):
        # Only beside a letter: `fa9`, not `.9`.
        if c == "9" and any(map(_latin, core[max(at - 1, 0) : at] + core[at + 1 : at + 2])):
            read[at] = "g"
    signs = sum(a != b for a, b in zip(read, core))
    handle = core.startswith("@") and letters > 3 and signs == 1
    if not 0 < signs <= 2 * letters or handle or NUMBER.fullmatch(core) or NUMBERED.fullmatch(core):
        return word
    return "".join(read) + word[len(core) :]
