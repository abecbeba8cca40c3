"""Writes a text the way it reads, as src/runtime/normalise.rs does before the tokenizer.

The classifiers are trained on such texts and on raw ones; the server scores both
and takes the higher. `tests/fixtures/normalise.json` holds both programs to the
same answers: change one, change the other, and add a case.
"""

from __future__ import annotations

import re
import unicodedata

# Signs that end a line, and controls that show nothing.
ENDS = re.compile("\r\n|[\x0b\x0c\x85\u2028\u2029]")
CONTROL = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f]")

# What is shown from right to left, up to its end or that of the line.
TURNED = re.compile("\u202e([^\u202c\n]*)")

# Soft hyphen, joiners, bidirectional marks, variation selectors, tags;
# skin tones, which only colour the sign before them; and lines under or through
# a sign, which strike out a whole text with its gaps and digits.
INVISIBLE = re.compile(
    "[\u00ad\u0332-\u0338\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    "\ufe00-\ufe0f\ufeff\U0001f3fb-\U0001f3ff\U000e0000-\U000e0fff]"
)

# Alphabets in boxes: parenthesised, squared, negative circled, negative
# squared, regional indicators. A flag is two of the last and reads as its country's code, `fr`:
# nothing tells it from letters that spell a word.
BOXED = {
    first + at: letter
    for first in (0x249C, 0x1F130, 0x1F150, 0x1F170, 0x1F1E6)
    for at, letter in enumerate("abcdefghijklmnopqrstuvwxyz")
}

# What looks like a space and counts as a letter or a sign: the empty Braille
# cell, the fillers of Korean.
BLANK = {0x2800: " ", 0x3164: " ", 0xFFA0: " "}

# Signs that say nothing and are no punctuation to a tokenizer, which takes the
# words on either side for one: arrows, operators, frames, blocks, shapes, Braille.
PATTERN = re.compile("[¦©¬®°±×÷\u2190-\u25ff\u27c0-\u2aff\ufffc\ufffd]")

# Letters that pass for a Latin one once NFKC has folded the mathematical and wide
# ones, in small. Unicode Technical Standard 39 lists far more; these are the
# alphabets that a keyboard or a web page of "fancy text" offers: Greek, Cyrillic,
# Armenian, Latin in another dress, Cherokee, Lisu, syllabics, a rune. Some languages
# spell with the hooked ones: they lose the hooks here, and are read as they were
# written as well.
CONFUSABLE = {
    other: latin
    for latin, others in {
        "a": "аαաɑᴀꭺꓮᗩɐ",
        "b": "бвьβʙᏼꓐᗷƀɓ",
        "c": "сᴄꮯꓚᑕƈȼ",
        "d": "ԁᴅꭰꓓᗪɗɖ",
        "e": "еёεєᴇꭼꓰᗴɇɘ",
        "f": "ƒꜰꓝᖴ",
        "g": "ɡɢꮐꓖǥɠ",
        "h": "нһհʜꮋꓧᕼɦ",
        "i": "іїιıɩɪꭵꓲɨ",
        "j": "јᴊꭻꓙᒍɉʝ",
        "k": "кκᴋꮶꓗᛕƙʞ",
        "l": "ӏʟꮮꓡᒪƚɫɭ",
        "m": "мᴍꮇꓟᗰɱ",
        "n": "ηոɴꓠᑎɲɳ",
        "o": "оοσօᴏꓳɵ",
        "p": "рρᴘꮲꓑᑭƥ",
        "q": "ԛǫᑫ",
        "r": "гяʀꮢꓣᖇɾɍɼ",
        "s": "ѕꜱꮪꓢᔕʂ",
        "t": "тτᴛꭲꓔŧƭʈ",
        "u": "υսᴜꓴᑌʉ",
        "v": "νᴠꮩꓦᐯʋ",
        "w": "ԝωѡᴡꮃꓪᗯ",
        "x": "хχꓫ",
        "y": "уγүʏꭹꓬɏƴ",
        "z": "зᴢꮓꓜƶʐ",
    }.items()
    for other in others
}

# Letters of the alphabets that look-alikes are taken from and texts are written in: Greek, Cyrillic, Armenian.
FOREIGN = re.compile("[\u0386-\u0481\u048a-\u052f\u0531-\u0556\u0561-\u0587\u1f00-\u1fff]")

# Words in Latin letters from which a text may be in them although it holds others.
FEW_WORDS = 3

# Marks of no script and signs around numbers of old Cyrillic, directly behind a visible ASCII sign. NFKC has composed
# those that make a letter; marks on other letters may be how a language is written.
DECORATION = re.compile(
    "(?<=[!-~])[\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ua66f-\ua672\ufe20-\ufe2f]+"
)

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
# which have no vowel. leet.rs says why.
NUMBERED = re.compile(r"[a-z]+-?\d{2,}|[a-z]\d|[a-z]*e\d|[b-df-hj-np-tv-xz]+\d|\d+[dehpvx]\d+", re.ASCII | re.IGNORECASE)
# Vowel signs and other marks belong to the letter before them. Beyond this range all marks are invisible.
MARKS = "".join(c for c in map(chr, range(0x300, 0x1F000)) if unicodedata.category(c).startswith("M"))
LETTER = rf"(?!_)[\w{MARKS}]"
# Of a word, where a digit is none, nor another number.
NUMBERS = "".join(c for c in map(chr, range(0x80, 0x20000)) if unicodedata.category(c) == "No")
WORD_LETTER = rf"(?![\d_{NUMBERS}])[\w{MARKS}]"
# Up to three signs of one kind stand between letters.
SPACED = re.compile(rf"(?<!{LETTER}){LETTER}(([ .\-*_·•,/|~:\n\t='–—])\2{{0,2}}){LETTER}(?:\1{LETTER})+(?!{LETTER})")
WORD = re.compile(rf"(?:{WORD_LETTER})+")
# Of more signs in a row, with whatever space between them, the first ones stay.
ROW = re.compile(rf"(?:(?!{LETTER})[\s\S])+")
SIGNS = 8
SIGNS_KEPT = 3
# Letters for every two parts of a word in `CamelCase`, and how often it rises.
HUMPS = 5
RISES = 2
REPEATED = re.compile(rf"({WORD_LETTER})\1{{2,}}")
# Letters that no English word has twice in a row, or hardly one.
SINGLE = frozenset("ahijkquvyAHIJKQUVY")
# A word of these is a number, or says `xxx`.
ROMAN = frozenset("ivx")


def normalise(text: str) -> str:
    """The text without invisible signs and disguises, emoji by their names."""
    # A line ends with one sign, as a gap between letters is of one kind.
    text = CONTROL.sub("", ENDS.sub("\n", text))
    text = TURNED.sub(lambda found: found[1][::-1], text)
    text = INVISIBLE.sub("", text).translate(BLANK | BOXED)
    text = FOLDED.sub(lambda found: unicodedata.normalize("NFKC", found[0]), text)
    text = PATTERN.sub(" ", INVISIBLE.sub("", text))
    text = EMOJI.sub(" ", EMOJI.sub(_name, SAME_EMOJI.sub(r"\1\1", text), count=NAMED))
    text = _words(DECORATION.sub("", _fold(text)))
    # Twice: the gaps of `s.h.!.t` show once its sign is a letter, the word in
    # `k 1 l l` once its gaps are closed.
    text = _words(SPACED.sub(lambda found: found[0].replace(found[1], ""), text))
    text = WORD.sub(lambda found: _apart(found[0]), ROW.sub(_row, text))
    return WORD.sub(lambda found: _cut(_one_case(found[0])), text)


def _row(found: re.Match) -> str:
    signs = "".join(found[0].split())
    return found[0] if len(signs) <= SIGNS else f" {signs[:SIGNS_KEPT]} "


def _apart(word: str) -> str:
    """A word in `CamelCase` as the words that it is made of; `wRiTtEn LiKe ThIs` is none."""
    rises = sum(one.islower() and other.isupper() for one, other in zip(word, word[1:]))
    begins = [
        at for at in range(1, len(word))
        if word[at].isupper() and (word[at - 1].islower() or word[at - 1].isupper() and word[at + 1 : at + 2].islower())
    ]
    if rises < RISES or 2 * len(word) < HUMPS * (len(begins) + 1):
        return word
    return " ".join(word[start:end] for start, end in zip([0, *begins], [*begins, len(word)]))


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


def _styled(word: str) -> bool:
    """Whether a word is of letters that pass for Latin ones, one of them of no alphabet that look-alikes are words in."""
    return any(c.lower() in CONFUSABLE and not FOREIGN.match(c) for c in word) and all(
        c.lower() in CONFUSABLE or unicodedata.category(c).startswith("M") for c in word
    )


def _foreign(word: str) -> bool:
    """Whether a word has a letter of an alphabet that passes for no Latin one."""
    return any(FOREIGN.match(c) and c.lower() not in CONFUSABLE for c in word)


def _fold(text: str) -> str:
    """Confusable letters as Latin ones, unless the text is truly written in their alphabet.

    Words with some other letter of it tell, as long as a text in Latin letters
    does not merely hold a few. Letters of further scripts, accented Latin ones
    among them, say nothing of that.
    """
    if text.isascii():
        return text
    words = WORD.findall(text)
    latin = sum(any(map(_latin, word)) for word in words)
    foreign = sum(map(_foreign, words))
    everywhere = latin > 0 and (foreign == 0 or (latin >= FEW_WORDS and latin > foreign))

    def word(found: re.Match) -> str:
        letters = found[0]
        if any(map(_latin, letters)) or _styled(letters) or (everywhere and not _foreign(letters)):
            return "".join(CONFUSABLE.get(c.lower(), c) for c in letters)
        return letters

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
