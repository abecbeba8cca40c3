"""Turns the vocabulary inside a GGUF file into a Hugging Face `tokenizer.json`.

Owns: the choice of normaliser, split rule and decoder for each vocabulary
family that the decoders of this project use, and the marking of special tokens.
Refuses: a `tokenizer.ggml.pre` it does not know, since a wrong split rule gives
plausible but wrong token ids.

Three families are known:

- `smollm` and `gpt-2`: byte-level BPE with the GPT-2 split rule; `smollm`
  also cuts every digit apart first.
- `qwen2`: byte-level BPE over NFC text, its own split rule, digits one by one.
- `llama` model (SentencePiece BPE, the Gemma vocabulary): spaces become U+2581,
  unknown characters fall back to bytes. The file holds a score for each piece
  but no merge list: the list is derived from the scores.

Two habits a caller must keep. No post-processor is written, so nothing is added
around a text: a prompt spells out its own `<|im_start|>` or `<bos>`. And a text
that comes from a user must be encoded with `encode_special_tokens` switched on,
otherwise a typed `<|im_end|>` would end the user's turn.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Mapping

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

SPACE_MARK = "\u2581"

# The split rule published with the Qwen2 vocabulary.
QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _byte_level(split_on_gpt2_rule: bool) -> dict[str, Any]:
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": False,
        "use_regex": split_on_gpt2_rule,
    }


def _byte_level_parts(pre: str) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """Normaliser and pre-tokeniser of a byte-level vocabulary."""
    if pre in ("gpt-2", "gpt2"):
        return None, _byte_level(True)
    if pre == "smollm":
        digits = {"type": "Digits", "individual_digits": True}
        return None, {"type": "Sequence", "pretokenizers": [digits, _byte_level(True)]}
    if pre == "qwen2":
        split = {
            "type": "Split",
            "pattern": {"Regex": QWEN2_SPLIT},
            "behavior": "Isolated",
            "invert": False,
        }
        return {"type": "NFC"}, {"type": "Sequence", "pretokenizers": [split, _byte_level(False)]}
    raise ValueError(
        f"the GGUF vocabulary uses the split rule '{pre}', which is not supported; "
        "add it to scripts/forge/gguf_tokenizer.py (known: gpt-2, smollm, qwen2)"
    )


def merges_from_scores(vocab: Mapping[str, int], scores: list[float]) -> list[list[str]]:
    """The merge list of a SentencePiece BPE vocabulary.

    SentencePiece joins the neighbours whose joined piece scores highest. A merge
    list says the same once every way to cut a piece in two known pieces is
    listed at the rank of that piece. Pieces are met best score first; the ways
    to cut one piece are ordered by where the cut falls, which only fixes the
    order of equals.
    """
    merges: list[list[str]] = []
    for piece in sorted(vocab, key=lambda piece: (-scores[vocab[piece]], vocab[piece])):
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in vocab and right in vocab:
                merges.append([left, right])
    return merges


def convert(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The `tokenizer.json` tree for the `tokenizer.ggml.*` keys of a GGUF file."""
    model = metadata["tokenizer.ggml.model"]
    tokens: list[str] = list(metadata["tokenizer.ggml.tokens"])
    kinds: list[int] = list(metadata.get("tokenizer.ggml.token_type") or [NORMAL] * len(tokens))
    # Padding rows of the embedding matrix have no text of their own.
    vocab = {token: index for index, token in enumerate(tokens) if kinds[index] != UNUSED}
    unknown: str | None = None
    bpe: dict[str, Any] = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
    }
    if model == "gpt2":
        normalizer, pre_tokenizer = _byte_level_parts(metadata.get("tokenizer.ggml.pre", "gpt-2"))
        decoder: dict[str, Any] = _byte_level(True)
        merges = [merge.split(" ", 1) for merge in metadata["tokenizer.ggml.merges"]]
        match_after_normalising = False
    elif model == "llama":
        unknown = tokens[int(metadata["tokenizer.ggml.unknown_token_id"])]
        bpe |= {"unk_token": unknown, "fuse_unk": True, "byte_fallback": True}
        replace = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE_MARK}
        steps = [replace]
        strip: list[dict[str, Any]] = []
        if metadata.get("tokenizer.ggml.add_space_prefix", True):
            steps.insert(0, {"type": "Prepend", "prepend": SPACE_MARK})
            strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}]
        normalizer = {"type": "Sequence", "normalizers": steps}
        pre_tokenizer = None
        back = {"type": "Replace", "pattern": {"String": SPACE_MARK}, "content": " "}
        decoder = {
            "type": "Sequence",
            "decoders": [back, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip],
        }
        plain = {token: index for token, index in vocab.items() if kinds[index] == NORMAL}
        plain |= {token: index for token, index in vocab.items() if kinds[index] == USER_DEFINED}
        merges = merges_from_scores(plain, list(metadata["tokenizer.ggml.scores"]))
        # SentencePiece looks for these pieces in the normalised text: two
        # spaces in a row are one such piece once they read U+2581 U+2581.
        match_after_normalising = True
    else:
        raise ValueError(
            f"the GGUF vocabulary is of the kind '{model}', which is not supported; "
            "use a file with a 'gpt2' or 'llama' vocabulary"
        )

    added = []
    for index, token in enumerate(tokens):
        special = kinds[index] == CONTROL or (kinds[index] == UNKNOWN and token == unknown)
        if not special and kinds[index] != USER_DEFINED:
            continue
        added.append(
            {
                "id": index,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": match_after_normalising and not special,
                "special": special,
            }
        )
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": decoder,
        "model": bpe | {"vocab": vocab, "merges": merges},
    }


def write(metadata: Mapping[str, Any], path: Path) -> None:
    """Writes the `tokenizer.json` of a GGUF file to `path`, same bytes each time."""
    tree = convert(metadata)
    path.write_text(json.dumps(tree, ensure_ascii=False, separators=(",", ":")), encoding="utf-8")
