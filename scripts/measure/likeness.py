"""Owns what an expression must keep of its text, and must neither keep nor add: facts stay, wording changes.

The rules are those of `src/domain/likeness.rs`, by which the server picks among
its candidates, and the tests have the same cases. Where the two read characters
differently (letters that are marks by their category, such as the vowel signs
of Indic scripts), none of the languages of the interface is concerned.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable
from itertools import takewhile

# Tenths of an answer's words, and of the text's, that stand in the other in the same order where it is a copy.
COPIED_TENTHS = 9

# Units of a run that is a loop where it stands twice.
LOOPED_WORDS = 3
LOOPED_CHARACTERS = 8

# Numbers that English often writes as words. An ordinal counts as its number: "May 1st" is "1 May" too.
NUMBER_WORDS = {
    **{word: n for n, word in enumerate(
        "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
        " seventeen eighteen nineteen".split()
    )},
    **{word: 10 * n for n, word in enumerate("twenty thirty forty fifty sixty seventy eighty ninety".split(), 2)},
    **{word: n for n, word in enumerate("first second third fourth fifth sixth seventh eighth ninth tenth".split(), 1)},
    "hundred": 100,
    "thousand": 1000,
    "both": 2,
    "twice": 2,
}

# On their own, these often count nothing: "one never knows", "at first", "a second", "a thousand times".
LOOSE = {"zero", "one", "first", "second", "hundred", "thousand", "both", "twice"}

# Neighbours of which one is a number word that counts nothing: "a day or two", "the two of us".
IDIOMS = {
    ("a", "third"),
    ("cloud", "nine"),
    ("high", "five"),
    ("or", "two"),
    ("own", "two"),
    ("seventh", "heaven"),
    ("sixth", "sense"),
    ("the", "two"),
    ("these", "two"),
    ("two", "faced"),
    ("two", "thirds"),
    ("us", "two"),
    ("you", "two"),
}

# Titles that are written short. The full stop of one ends no sentence.
TITLES = {"Mr", "Mrs", "Ms", "Dr", "Prof", "St", "Mme", "Dra", "Sr", "Sra"}

# Words with a capital that name nobody: titles in full, oaths, and "I" without its apostrophe.
NO_NAMES = set("doctor doctora professor mister madame monsieur señor señora god dieu dios deus ok okay im ive".split())

# Words that French joins to the next by an apostrophe.
ELIDED = {"d", "l", "j", "qu", "m", "s", "n", "c", "t"}

# What a sentence inside a sentence opens with, and what may follow the sign that ends one.
OPENING = ('"', "“", "”", "„", "«", "‹", "'", "‘", "’", "‚", "(", "[", "{", "¿", "¡")
CLOSING = "\"”’')]»"

# Unicode's White_Space: str.split would also part words at the control signs 1C to 1F.
_SPACES = re.compile("[\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")
_WIDE = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
_APOSTROPHES = "'’"


def facts(text: str, lang: str = "en") -> set[str]:
    """The numbers and names of a text, each once.

    A number is a run of digits with what joins them ("7:42", "1,200") or, in
    English, words ("twenty-five"), however it is written; a name is a word with
    a capital that does not open a sentence. German gives every noun one: there,
    names are not told.
    """
    found = set(numbers(text))
    # Elsewhere the same letters are other words: the Spanish "ten" is "have".
    if lang == "en":
        found |= {number for number, counts in _spelled_numbers(text) if counts}
    if lang != "de":
        found |= set(names(text))
    return found


def kept(text: str, answer: str, lang: str = "en") -> int:
    """How many of the text's facts the answer names too."""
    return len(facts(text, lang) & _forms(answer))


def facts_kept(text: str, answer: str) -> float:
    """The same as a share from 0 to 1; 1 where the text has none."""
    wanted = len(facts(text))
    return kept(text, answer) / wanted if wanted else 1.0


def facts_invented(text: str, answer: str, lang: str = "en") -> int:
    """How many numbers and names of the answer the text has in no form."""
    return len(facts(answer, lang) - _forms(text))


def _forms(text: str) -> set[str]:
    """All that a fact may be in a text: a number, a number in words, a word in lower case."""
    found = set(words(text))
    found |= set(filter(None, map(_after_elision, found)))
    found |= {*numbers(text), *(number for number, _ in _spelled_numbers(text))}
    # "On Saturdays" is kept by "next Saturday".
    return found | {f"{form}s" for form in found} | {form.removesuffix("s") for form in found}


def repeats(text: str, answer: str) -> bool:
    """Whether the answer says the text over again: hardly a word of it is new, and hardly one left out."""
    before, after = units(text), units(answer)
    if before == after:
        return True
    return 10 * in_common(before, after) >= COPIED_TENTHS * max(len(before), len(after))


def loops(text: str, answer: str) -> bool:
    """Whether the answer runs in a circle: a run of words that its text does not repeat, or a whole sentence, twice."""
    length = LOOPED_CHARACTERS if is_wide(answer) else LOOPED_WORDS
    before = Counter(_runs(units(text), length))
    if any(count > 1 and before[run] < 2 for run, count in Counter(_runs(units(answer), length)).items()):
        return True
    said = _sentences(answer)
    return len(set(said)) < len(said)


def _runs(said: list[str], length: int) -> list[tuple[str, ...]]:
    return [tuple(said[at : at + length]) for at in range(len(said) - length + 1)]


def _sentences(text: str) -> list[tuple[str, ...]]:
    """The units of each sentence."""
    found: list[tuple[str, ...]] = []
    for part in re.split("[。！？\n]", text):
        sentence: list[str] = []
        for token in _tokens(part):
            sentence += units(token)
            if _closes(token):
                found.append(tuple(sentence))
                sentence = []
        found.append(tuple(sentence))
    return list(filter(None, found))


def is_wide(text: str) -> bool:
    """Whether a text is in a script whose characters stand for words: Japanese, Chinese, Korean."""
    return _WIDE.search(text) is not None


def units(text: str) -> list[str]:
    """Words; in scripts without spaces, characters."""
    return list(filter(_is_alphanumeric, text)) if is_wide(text) else words(text)


def numbers(text: str) -> list[str]:
    """Digits with the signs between them, without any that end a sentence.

    A comma before just three digits parts thousands, any other one numbers: "4,5,6".
    """
    found: list[str] = []
    for run in _split(text, lambda c: _is_numeric(c) or c in ".,:/"):
        joins = False
        for part in run.split(","):
            if joins and len(list(takewhile(_is_numeric, part))) == 3:
                found[-1] += part
            else:
                found.append(part)
            joins = part != "" and _is_numeric(part[-1])
    return list(filter(None, (_trimmed(number, _is_numeric) for number in found)))


def _spelled_numbers(text: str) -> list[tuple[str, bool]]:
    """Numbers in words, as digits, each with whether it surely counts something."""
    found: list[tuple[str, bool]] = []
    # A sign parts numbers: "twenty, five" is no 25.
    for clause in _split(text, lambda c: _is_alphanumeric(c) or c in "'’-\u2011" or _SPACES.fullmatch(c) is not None):
        said = words(clause)
        before, at = "", 0
        while at < len(said):
            word = said[at]
            at += 1
            start = NUMBER_WORDS.get(word)
            if start is not None:
                number = start
                while at < len(said) and (more := _joined(number, said[at])) is not None:
                    number = more
                    at += 1
                after = said[at] if at < len(said) else ""
                idle = word in LOOSE or (before, word) in IDIOMS or (word, after) in IDIOMS
                found.append((str(number), number != start or not idle))
            before = word
    return found


def _joined(number: int, word: str) -> int | None:
    """The number that a number makes with the next word; none where that is not a part of it."""
    hundreds, tens = number % 1000, number % 100
    if word == "and" and number > 0 and tens == 0:
        return number
    if word == "hundred" and 0 < hundreds < 100:
        return number + 99 * hundreds
    if word == "thousand" and 0 < number < 1000:
        return 1000 * number
    more = NUMBER_WORDS.get(word, 0)
    room = 100 if tens == 0 and number > 0 else 10 if tens >= 20 and tens % 10 == 0 else 0
    return number + more if 0 < more < room else None


def words(text: str) -> list[str]:
    """Words in lower case, without a possessive ending."""
    return list(filter(None, map(_plain, _pieces(text))))


def _pieces(text: str) -> list[str]:
    """Words as they are written, with the apostrophes about them."""
    return _split(text, lambda c: _is_alphanumeric(c) or c in _APOSTROPHES)


def _plain(word: str) -> str:
    word = word.strip(_APOSTROPHES).lower()
    return word[:-2] if word.endswith(("'s", "’s")) else word


def _after_elision(word: str) -> str | None:
    """What follows an elided word: the "Anna" of "d'Anna"."""
    parts = re.fullmatch("([^'’]*)['’](.+)", word, re.DOTALL)
    return parts[2] if parts and parts[1].lower() in ELIDED else None


def names(text: str) -> list[str]:
    """Words with a capital inside a sentence. A text in capitals throughout has no names to tell."""
    if not any(map(str.islower, text)):
        return []
    found: list[str] = []
    opens = True
    for token in _tokens(text):
        opens = opens or token.startswith(OPENING)
        word = _trimmed(token, _is_alphanumeric)
        # Where a word is elided, that one opens the sentence, not the name behind it: "L'Espagne".
        rest = _after_elision(word)
        name = word if rest is None else rest
        if name[:1].isupper() and (rest is not None or not opens):
            found += filter(None, map(_name, _pieces(name)))
        opens = not word or _closes(token) or token.rstrip(CLOSING).endswith((":", "-", "–", "—"))
    return found


def _name(word: str) -> str:
    """A word with a capital as a fact; empty where it names nobody."""
    name = _plain(word)
    idle = word in TITLES or name in NO_NAMES or name.startswith(("i'", "i’"))
    return name if word[:1].isupper() and any(map(str.islower, word)) and not idle else ""


def _tokens(text: str) -> list[str]:
    return list(filter(None, _SPACES.split(text)))


def _closes(token: str) -> bool:
    """Whether a sentence ends with this token: the full stop of a title or an initial ends none."""
    end = token.rstrip(CLOSING)
    word = _trimmed(token, _is_alphanumeric)
    short = word in TITLES or (len(word) == 1 and word.isupper() and word != "I")
    return end.endswith(("!", "?", "…")) or (end.endswith(".") and not short)


def in_common(a: list[str], b: list[str]) -> int:
    """Length of the longest common subsequence. Texts have at most a few hundred words."""
    row = [0] * (len(b) + 1)
    for x in a:
        diagonal = left = 0
        for at, y in enumerate(b, 1):
            above = row[at]
            row[at] = diagonal + 1 if x == y else max(above, left)
            diagonal, left = above, row[at]
    return row[-1]


def _split(text: str, belongs: Callable[[str], bool]) -> list[str]:
    """Runs of characters that belong to a word."""
    return "".join(c if belongs(c) else "\0" for c in text).split("\0")


def _trimmed(word: str, belongs: Callable[[str], bool]) -> str:
    """A word from its first to its last character that belongs."""
    inside = [at for at, c in enumerate(word) if belongs(c)]
    return word[inside[0] : inside[-1] + 1] if inside else ""


def _is_numeric(character: str) -> bool:
    """A number by its category: `str.isnumeric` holds of Chinese words for numbers too."""
    return unicodedata.category(character)[0] == "N"


def _is_alphanumeric(character: str) -> bool:
    return character.isalpha() or _is_numeric(character)
