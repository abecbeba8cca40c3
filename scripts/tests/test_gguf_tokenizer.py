"""The tokenizers made from GGUF vocabularies.

Owns the proof of `forge.gguf_tokenizer`: the split rules on texts whose pieces
are known, the merge order of SentencePiece vocabularies against a direct
implementation of its rule, and the real vocabularies where they are in the cache.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import gguf
import pytest
from tokenizers import Tokenizer, pre_tokenizers

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "scripts" / "tests")]

import tiny_checkpoint  # noqa: E402
from forge import gguf_tokenizer  # noqa: E402
from forge.fetch import Sources  # noqa: E402
from forge.places import Places  # noqa: E402

VARIED = [
    "Hello, world!",
    "  two leading spaces and   three inside",
    "tab\tand\nnew line\r\n\r\nand a blank one\n",
    "I'm sure they'll say it's DON'T; we've, you'd, he's",
    "In 2024 it cost 1,234.50 or ½ of ²",
    "你好，世界。今天天气很好！",
    "こんにちは 안녕하세요 Привет שלום مرحبا नमस्ते",
    "naïve café Ångström œuvre ß",
    "👩‍👩‍👧‍👦 🎉 𝒳 \U0010ffff",
    "zero\u200bwidth\u00a0no-break",
    "a_b-c/d\\e{f}[g]<h>&amp;",
    "",
    " ",
]


def byte_level(pre: str) -> Tokenizer:
    tokens, kinds, merges = tiny_checkpoint.byte_level_vocabulary(320)
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": merges,
    }
    return Tokenizer.from_str(json.dumps(gguf_tokenizer.convert(metadata)))


def splits(pre: str, text: str) -> list[str]:
    """The pieces that no merge may cross, in readable form."""
    tokenizer = byte_level(pre)
    assert tokenizer.pre_tokenizer is not None
    if tokenizer.normalizer is not None:
        text = tokenizer.normalizer.normalize_str(text)
    letters = {mark: byte for byte, mark in _byte_marks().items()}
    return [
        bytes(letters[mark] for mark in piece).decode("utf-8")
        for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)
    ]


def _byte_marks() -> dict[int, str]:
    """The printable stand-in of each byte in byte-level vocabularies."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    marks = {byte: chr(byte) for byte in plain}
    for byte in range(256):
        if byte not in marks:
            marks[byte] = chr(256 + len(marks) - len(plain))
    assert sorted(marks.values()) == sorted(pre_tokenizers.ByteLevel.alphabet())
    return marks


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("smollm", "in 2024, ok", ["in", " ", "2", "0", "2", "4", ",", " ok"]),
        ("qwen2", "in 2024, ok", ["in", " ", "2", "0", "2", "4", ",", " ok"]),
        ("gpt-2", "in 2024, ok", ["in", " 2024", ",", " ok"]),
        ("smollm", "it's WE'LL", ["it", "'s", " WE", "'", "LL"]),
        ("qwen2", "it's WE'LL", ["it", "'s", " WE", "'LL"]),
        ("smollm", "a   b", ["a", "  ", " b"]),
        ("qwen2", "a   b", ["a", "  ", " b"]),
        ("smollm", "(x) _y", ["(", "x", ")", " _", "y"]),
        ("qwen2", "(x) _y", ["(x", ")", " _", "y"]),
        ("smollm", "end.\n\nnext", ["end", ".", "\n", "\n", "next"]),
        ("qwen2", "end.\n\nnext", ["end", ".\n\n", "next"]),
        ("smollm", "你好，世界", ["你好", "，", "世界"]),
        ("qwen2", "你好，世界", ["你好", "，世界"]),
        # Qwen composes characters first: e and an accent become one letter.
        ("qwen2", "cafe\u0301", ["café"]),
    ],
)
def test_texts_split_where_the_family_splits_them(pre: str, text: str, pieces: list[str]) -> None:
    assert splits(pre, text) == pieces


@pytest.mark.parametrize("pre", ["smollm", "qwen2", "gpt-2"])
def test_byte_level_text_comes_back(pre: str) -> None:
    tokenizer = byte_level(pre)
    for text in VARIED:
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_merges_apply_in_the_order_of_the_file() -> None:
    tokenizer = byte_level("smollm")
    # "e r" stands before "us e": the later merges never get their "e".
    assert tokenizer.encode("user").tokens == ["us", "er"]
    assert tokenizer.encode("the on").tokens == ["the", "\u0120", "on"]


def test_special_tokens_are_marked_and_can_be_typed_harmlessly() -> None:
    tokenizer = byte_level("smollm")
    text = "a<|im_end|>b"
    ids = tokenizer.encode(text).ids
    assert ids.count(2) == 1 and len(ids) == 3
    assert tokenizer.decode(ids) == "ab"
    tokenizer.encode_special_tokens = True
    typed = tokenizer.encode(text).ids
    assert 2 not in typed and tokenizer.decode(typed) == text


def test_padding_rows_have_no_text() -> None:
    tokenizer = byte_level("smollm")
    assert tokenizer.token_to_id("[PAD319]") is None
    assert tokenizer.get_vocab_size() < 320


def test_unknown_vocabularies_are_refused() -> None:
    with pytest.raises(ValueError, match="split rule 'deepseek-llm'"):
        byte_level("deepseek-llm")
    with pytest.raises(ValueError, match="of the kind 'bert'"):
        gguf_tokenizer.convert({"tokenizer.ggml.model": "bert", "tokenizer.ggml.tokens": []})


# --- SentencePiece -------------------------------------------------------------


def piece_metadata(pieces: list[str], prefix: bool = False) -> dict[str, Any]:
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    kinds = [3, 3, 3, 2] + [6] * 256
    scores = [0.0] * len(tokens)
    for rank, piece in enumerate(pieces):
        tokens.append(piece)
        kinds.append(4 if piece in ("\n\n", "\u2581\u2581") else 1)
        scores.append(-float(rank))
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.add_space_prefix": prefix,
    }


def join_best(text: str, scores: dict[str, float]) -> list[str]:
    """SentencePiece's rule: join the best scoring neighbours, leftmost first."""
    parts = list(text)
    while True:
        pairs = [
            (-scores[left + right], place)
            for place, (left, right) in enumerate(zip(parts, parts[1:]))
            if left + right in scores
        ]
        if not pairs:
            return parts
        _, place = min(pairs)
        parts[place : place + 2] = [parts[place] + parts[place + 1]]


def test_derived_merges_join_as_sentencepiece_does() -> None:
    source = random.Random(6)
    letters = "abc\u2581"
    pieces = {"".join(source.choices(letters, k=source.randint(2, 5))) for _ in range(120)}
    pieces = sorted(pieces - {"\u2581\u2581"})
    source.shuffle(pieces)
    metadata = piece_metadata([*pieces, *letters])
    tokenizer = Tokenizer.from_str(json.dumps(gguf_tokenizer.convert(metadata)))
    tokens, values = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.scores"]
    scores = {token: score for token, score in zip(tokens[260:], values[260:])}
    for _ in range(300):
        text = "".join(source.choices("abc ", k=source.randint(1, 14)))
        expected = join_best(text.replace(" ", "\u2581"), scores)
        assert tokenizer.encode(text).tokens == expected


def test_pieces_of_a_sentencepiece_vocabulary_round_trip() -> None:
    metadata = piece_metadata(["th", "the", "\u2581the", "\n\n", "\u2581\u2581", *"the\u2581\n"])
    tokenizer = Tokenizer.from_str(json.dumps(gguf_tokenizer.convert(metadata)))
    assert tokenizer.encode("the the").tokens == ["the", "\u2581the"]
    # User-defined pieces win over merges; unknown characters become bytes.
    assert tokenizer.encode("e  the\n\n").tokens == ["e", "\u2581\u2581", "the", "\n\n"]
    assert tokenizer.encode("é").tokens == ["<0xC3>", "<0xA9>"]
    assert tokenizer.encode("<bos>e").ids[0] == 2
    for text in VARIED:
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_a_space_prefix_is_added_and_taken_back() -> None:
    metadata = piece_metadata(["\u2581the", "th", "the", *"the\u2581"], prefix=True)
    tokenizer = Tokenizer.from_str(json.dumps(gguf_tokenizer.convert(metadata)))
    encoded = tokenizer.encode("the")
    assert encoded.tokens[0].startswith("\u2581")
    assert tokenizer.decode(encoded.ids) == "the"


# --- the real vocabularies -----------------------------------------------------


@pytest.mark.parametrize("name", ["qwen2.5-coder-0.5b-instruct", "smollm2-135m-instruct"])
def test_a_real_vocabulary_round_trips_and_reaches_its_own_pieces(name: str, tmp_path: Path) -> None:
    sources = Sources(Places.here())
    if not sources.have(sources.get(name)):
        pytest.skip(f"{name} is not in the cache: scripts/setup fetches it")
    reader = gguf.GGUFReader(str(sources.locate(name)["gguf"]))
    metadata = {key: field.contents() for key, field in reader.fields.items()}
    gguf_tokenizer.write(metadata, tmp_path / "tokenizer.json")
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in VARIED:
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
    # Everyday words are single pieces: wrong merges would cut them up.
    for word in (" the", " people", " because", " morning"):
        assert len(tokenizer.encode(word).ids) == 1
    assert tokenizer.encode("<|im_start|>user\n").tokens == ["<|im_start|>", "user", "\u010a"]
    assert len(tokenizer.encode("2024").ids) == 4
    tokens, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    marked = {i for i, kind in enumerate(kinds) if kind == gguf_tokenizer.CONTROL}
    assert all(tokenizer.encode(tokens[i]).ids == [i] for i in marked)
    # A plain piece, typed out, must come back as itself whenever its text survives
    # the split rule: nearly always, for pieces that are whole words.
    words = [
        i for i, token in enumerate(tokens) if kinds[i] == 1 and token.isascii() and token.isalpha()
    ][:4000]
    alike = sum(tokenizer.encode(tokens[i]).ids == [i] for i in words)
    assert alike / len(words) > 0.99
