"""A generator of anybody's, from a GGUF file to a folder that `dichroic models add` takes.

Owns: what of the GGUF metadata the folder says, in the files and words of
Hugging Face's libraries, and the precision of the graph. The graph is the one of
`decoder`, so the architectures are its. Refuses files in several parts, and
what `decoder` and `gguf_tokenizer` refuse.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Mapping

from . import decoder, gguf_tokenizer
from .manifest import write_json
from .places import remove

# What the libraries call a causal language model of each architecture.
ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "gemma3": "Gemma3ForCausalLM"}
# The server makes use of no more, and its tables of positions grow with it.
MOST_WINDOW = 4096
# Where the metadata names no other end of a turn, these are one.
TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>")


def convert(gguf: Path, out: Path, linear_bits: int = 8, window: int = MOST_WINDOW) -> dict[str, Any]:
    """Writes the folder `out`, which must not be there; returns its configuration."""
    with gguf.open("rb") as stream:
        if stream.read(4) != b"GGUF":
            raise ValueError("it is no GGUF file; give one of a llama, qwen2 or gemma3 model")
    try:
        checkpoint = decoder.Checkpoint(gguf)
    except IndexError:
        raise ValueError("it ends before its header does; copy the file again") from None
    metadata = checkpoint.metadata
    if int(metadata.get("split.count", 1)) > 1:
        raise ValueError("the GGUF file is one of several parts; join them first with llama.cpp's gguf-split --merge")
    kind = checkpoint.shape.architecture
    # llama.cpp's own default, for a file that does not say.
    config = _config(metadata, kind, min(window, int(metadata.get(f"{kind}.context_length", 2048))))
    partial = out.with_name(f".{out.name}.partial")
    remove(partial)
    partial.mkdir(parents=True)
    try:
        gguf_tokenizer.write(metadata, partial / "tokenizer.json")
        write_json(partial / "tokenizer_config.json", _tokenizer_config(metadata))
        precision = {"linear": linear_bits, "head": 8, "embedding": 8}
        decoder.write_graph(checkpoint, config["max_position_embeddings"], precision, partial / "model.onnx")
        write_json(partial / "config.json", config | {"vocab_size": checkpoint.shape.vocab})
        partial.rename(out)
    finally:
        remove(partial)
    return config


def _config(metadata: Mapping[str, Any], kind: str, window: int) -> dict[str, Any]:
    ends = [metadata[f"tokenizer.ggml.{name}_token_id"] for name in ("eos", "eot") if _names(metadata, name)]
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    kinds = metadata.get("tokenizer.ggml.token_type") or [gguf_tokenizer.NORMAL] * len(tokens)
    ends += [
        index
        for index, token in enumerate(tokens)
        if token in TURN_ENDS and kinds[index] in (gguf_tokenizer.CONTROL, gguf_tokenizer.USER_DEFINED)
    ]
    if not ends:
        raise ValueError("the GGUF file names no token that ends a text (tokenizer.ggml.eos_token_id)")
    return {
        "architectures": [ARCHITECTURES[kind]],
        "model_type": kind,
        "max_position_embeddings": window,
        "eos_token_id": sorted({int(end) for end in ends}),
    }


def _tokenizer_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    tokens = metadata["tokenizer.ggml.tokens"]
    config: dict[str, Any] = {}
    for name in ("bos", "eos"):
        if _names(metadata, name):
            config[f"{name}_token"] = tokens[int(metadata[f"tokenizer.ggml.{name}_token_id"])]
    # SentencePiece models begin with their first token unless told otherwise, the others do not.
    begins = metadata.get("tokenizer.ggml.add_bos_token", metadata["tokenizer.ggml.model"] == "llama")
    config["add_bos_token"] = bool(begins)
    if metadata.get("tokenizer.chat_template"):
        config["chat_template"] = metadata["tokenizer.chat_template"]
    return config


def _names(metadata: Mapping[str, Any], token: str) -> bool:
    return f"tokenizer.ggml.{token}_token_id" in metadata
