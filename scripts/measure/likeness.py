"""Owns what an expression must keep of its text, and must not: facts stay, wording changes.

The rules are those of `src/domain/likeness.rs`, by which the server picks among
its candidates, and the tests have the same cases. Where the two read characters
differently (letters that are marks by their category, such as the vowel signs
of Indic scripts), none of the languages of the interface is concerned.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

# Tenths of an answer's words, and of the text's, that stand in the other in the same order where it is a copy.
COPIED_TENTHS = 9

# Numbers that English often writes as words.
NUMBER_WORDS = {
    **{word: str(n) for n, word in enumerate(
        "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
        " seventeen eighteen nineteen".split()
    )},
    **{word: str(10 * n) for n, word in enumerate("twenty thirty forty fifty sixty seventy eighty ninety".split(), 2)},
}

# Unicode's White_Space: str.split would also part words at the control signs 1C to 1F.
_SPACES = re.compile("[\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")
_WIDE = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
_APOSTROPHES = "'’"


def facts(text: str, lang: str = "en") -> set[str]:
    """The numbers and names of a text.

    A number is a run of digits with what joins them ("7:42", "1,200"), however
    it is written; a name is a word with a capital that does not open a sentence.
    German gives every noun one: there, names are not told.
    """
    return {*numbers(text), *(names(text) if lang != "de" else ())}


def kept(text: str, answer: str, lang: str = "en") -> int:
    """How many of the text's facts the answer names too."""
    said = {*numbers(answer), *_spelled_numbers(answer), *words(answer)}
    # "On Saturdays" is kept by "next Saturday".
    said |= {f"{word}s" for word in said} | {word.removesuffix("s") for word in said}
    return len(facts(text, lang) & said)


def facts_kept(text: str, answer: str) -> float:
    """The same as a share from 0 to 1; 1 where the text has none."""
    wanted = len(facts(text))
    return kept(text, answer) / wanted if wanted else 1.0


def repeats(text: str, answer: str) -> bool:
    """Whether the answer says the text over again: hardly a word of it is new, and hardly one left out."""
    before, after = units(text), units(answer)
    if before == after:
        return True
    return 10 * in_common(before, after) >= COPIED_TENTHS * max(len(before), len(after))


def is_wide(text: str) -> bool:
    """Whether a text is in a script whose characters stand for words: Japanese, Chinese, Korean."""
    return _WIDE.search(text) is not None


def units(text: str) -> list[str]:
    """Words; in scripts without spaces, characters."""
    return list(filter(_is_alphanumeric, text)) if is_wide(text) else words(text)


def numbers(text: str) -> list[str]:
    """Digits with the signs between them, without any that end a sentence."""
    runs = (_trimmed(run, _is_numeric) for run in _split(text, lambda c: _is_numeric(c) or c in ".,:/"))
    return [run.replace(",", "") for run in runs if run]


def _spelled_numbers(text: str) -> list[str]:
    return [NUMBER_WORDS[word] for word in words(text) if word in NUMBER_WORDS]


def words(text: str) -> list[str]:
    """Words in lower case, without a possessive ending."""
    return list(filter(None, map(_plain, _split(text, lambda c: _is_alphanumeric(c) or c in _APOSTROPHES))))


def _plain(word: str) -> str:
    word = word.strip(_APOSTROPHES).lower()
    return word[:-2] if word.endswith(("'s", "’s")) else word


def names(text: str) -> list[str]:
    """Words with a capital inside a sentence. A text in capitals throughout has no names to tell."""
    if not any(map(str.islower, text)):
        return []
    found: list[str] = []
    opens = True
    for token in filter(None, _SPACES.split(text)):
        word = _trimmed(token, _is_alphanumeric)
        alone = word == "I" or word.startswith(("I'", "I’"))
        if word[:1].isupper() and not opens and not alone and any(map(str.islower, word)):
            found += words(word)
        opens = not word or token.rstrip("\"”’')").endswith((".", "!", "?", ":", "…", "-", "–", "—"))
    return found


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
