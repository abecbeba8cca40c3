"""Chooses the tokens that a generator's answers may hold, and writes them beside the model.

Most of a vocabulary is program code and other scripts, which no answer needs,
and every step pays for it in the output head. Kept are the tokens of our lines,
those that occur a few times in the public texts, single ASCII characters and all
parts of other characters: so any text can still be written, if in smaller
pieces. A small model spells badly, though: where it writes other languages than
those texts are in, `--words` keeps all their words too. What a text that is read
may hold is not touched.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import text_data  # noqa: E402
from forge import gguf_tokenizer  # noqa: E402
from forge.decoder import Checkpoint  # noqa: E402

FIELDS = ("text", "positive", "negative", "reply")
# Of a longer text only the head is counted.
MOST_CHARACTERS = 2000
# Every text is counted twice, as it is and with a space before it.
OFTEN = 4
# Words or parts of them in the letters of English, German, French, Spanish and Portuguese, and runs of Chinese, Japanese
# and Korean signs, with the space that some vocabularies put before a word.
WORDS = re.compile(
    r" ?[A-ZÀ-ÖØ-Þ]?[a-zß-öø-ÿœ]+| ?[\u3000-\u303f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uff00-\uffef]+"
)


def texts(items: Iterable[dict]) -> Iterator[str]:
    for item in items:
        for field in FIELDS:
            if isinstance(item.get(field), str):
                yield item[field][:MOST_CHARACTERS]


def written(folder: Path) -> Iterator[dict]:
    """The lines of all files of ours."""
    for name in sorted({path.name.partition(".")[0] for path in folder.glob("*.jsonl*")}):
        yield from text_data.authored_lines(folder, name)


def published(paths: list[Path]) -> Iterator[dict]:
    for path in paths:
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            yield from map(json.loads, lines)


def counted(tokenizer: Tokenizer, found: Iterator[str]) -> Counter[int]:
    total: Counter[int] = Counter()
    part: list[str] = []
    for text in found:
        # With the space that it has inside a sentence, too.
        part += [text, f" {text}"]
        if len(part) >= 4000:
            total.update(token for row in tokenizer.encode_batch_fast(part, add_special_tokens=False) for token in row.ids)
            part = []
    total.update(token for row in tokenizer.encode_batch_fast(part, add_special_tokens=False) for token in row.ids)
    return total


def kept(tokenizer: Tokenizer, ours: Counter[int], public: Counter[int], stop: list[str], words: bool) -> np.ndarray:
    """One truth value a token of the vocabulary."""
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    out = np.zeros(size, dtype=bool)
    out[list(ours)] = True
    out[[token for token, count in public.items() if count >= OFTEN]] = True
    out[[tokenizer.token_to_id(token) for token in stop]] = True
    for token in range(size):
        text = tokenizer.decode([token], skip_special_tokens=True)
        # A part of a character is told by the sign that stands for it.
        out[token] |= (len(text) == 1 and text.isascii()) or "\ufffd" in text
        out[token] |= words and WORDS.fullmatch(text) is not None
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder that holds moderation/train/, expression/train/ and reply/train/")
    parser.add_argument("--gguf", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True, help="the model's folder: its prompts.json is read, vocabulary.safetensors written")
    parser.add_argument("--words", action="store_true", help="keep all words of the eight languages")
    args = parser.parse_args()

    public = sorted(args.data.glob("*/train/*.jsonl.gz"))
    if not public:
        raise SystemExit(f"No texts in {args.data}: give the data folder with --data.")
    checkpoint = Checkpoint(args.gguf)
    path = args.model / "tokenizer.json.partial"
    gguf_tokenizer.write(checkpoint.metadata, path)
    tokenizer = Tokenizer.from_file(str(path))
    path.unlink()
    # What looks like a control token in a text is text.
    tokenizer.encode_special_tokens = True
    stop = json.loads((args.model / "prompts.json").read_text(encoding="utf-8"))["stop"]
    ours = counted(tokenizer, texts(written(text_data.AUTHORED)))
    found = kept(tokenizer, ours, counted(tokenizer, texts(published(public))), stop, args.words)
    whole = np.zeros(checkpoint.shape.vocab, dtype=bool)
    whole[: len(found)] = found[: len(whole)]
    text_data.write(args.model / "vocabulary.safetensors", lambda p: save_file({"kept": np.packbits(whole)}, str(p)))
    print(f"{whole.sum():,} of {len(whole):,} tokens kept")


if __name__ == "__main__":
    main()
