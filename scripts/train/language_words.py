"""Writes the words by which the server tells short English texts from those in other languages.

A library tells the language of a text by its letters, and takes a fifth of short English ones for foreign. Words that are far
more frequent in our English lines than in those of any other language it reads, and the other way round, settle it
(`src/service/language`). Only lines of 24 characters and more are counted, so that the shorter ones are evidence.
"""

from __future__ import annotations

import re
import sys
from collections import Counter, defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import text_data  # noqa: E402

OUT = Path(__file__).resolve().parents[2] / "src" / "service" / "language"
OTHERS = ("de", "es", "fr", "pt")
SHORT = 24
# Lines that must have a word, and how many times as frequent it must be.
LEAST_ENGLISH, LEAST_OTHER, TIMES = 30, 40, 4


def main() -> None:
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for line in text_data.all_authored_lines():
        if len(line.get("text", "")) < SHORT:
            continue
        for part in ("text", "positive", "negative", "reply"):
            said = line.get(part)
            if isinstance(said, str) and said != "false":
                counts[line.get("lang", "en")].update(set(re.findall(r"[^\W\d_]+", said.lower())))

    totals = {lang: sum(counts[lang].values()) + 1 for lang in ("en", *OTHERS)}
    english, others = [], []
    for word in sorted({word for lang in totals for word in counts[lang]}):
        here = (counts["en"][word] + 0.05) / totals["en"]
        there = max((counts[lang][word] + 0.05) / totals[lang] for lang in OTHERS)
        if counts["en"][word] >= LEAST_ENGLISH and here > TIMES * there:
            english.append(word)
        if max(counts[lang][word] for lang in OTHERS) >= LEAST_OTHER and there > TIMES * here:
            others.append(word)
    for name, words in (("english.txt", english), ("others.txt", others)):
        (OUT / name).write_text("\n".join(words) + "\n", encoding="utf-8")
        print(f"{name}: {len(words)} words")


if __name__ == "__main__":
    main()
