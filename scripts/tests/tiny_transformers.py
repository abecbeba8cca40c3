"""Tiny models of Hugging Face's transformers with seeded random weights, and
tokenizers trained on a few sentences, saved as anybody saves a model. Nothing
comes from a hub.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Sequence

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

CORPUS = [
    "it rained all day and the train was late",
    "we won the match and sang all the way home",
    "my sister anna has a job in leeds",
    "the weather is fine today and you are nice",
] * 3
# In the manner of ChatML.
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
# Weights large enough that what is said of one text is far from what is said of another.
SHAPE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "initializer_range": 0.3,
}

# How the configuration of an architecture differs from SHAPE.
CLASSIFIERS: dict[str, dict[str, Any]] = {
    "Albert": {"embedding_size": 32},
    "Bert": {},
    "DebertaV2": {
        "relative_attention": True,
        "pos_att_type": "p2c|c2p",
        "position_buckets": 256,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "position_biased_input": False,
        "type_vocab_size": 0,
    },
    "DistilBert": {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64},
    "Electra": {"embedding_size": 32},
    "MPNet": {},
    "ModernBert": {"cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3},
    "Roberta": {"type_vocab_size": 1, "max_position_embeddings": 514},
    "XLMRoberta": {"type_vocab_size": 1, "max_position_embeddings": 514},
}
GENERATORS: dict[str, dict[str, Any]] = {
    "GPT2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 4096},
    "Gemma3": {"head_dim": 8, "tie_word_embeddings": False},
    "Llama": {},
    "Mistral": {},
    "Phi3": {},
    "Qwen2": {},
    "Qwen3": {"head_dim": 8},
    "SmolLM3": {},
}
# Their texts begin with <s> and end with </s>.
BYTES = {"MPNet", "Roberta", "XLMRoberta"}
# Their tokenizers tell a first text from a second.
TYPED = {"Albert", "Bert", "DebertaV2", "Electra"}


def _word_pieces(more_inputs: list[str]) -> transformers.PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=300, special_tokens=special))
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    return _whole(tokenizer, more_inputs, **dict(zip(names, special)))


def _bytes(special: list[str], **tokens: str) -> transformers.PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(CORPUS, trainer)
    if "cls_token" in tokens:
        tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    return _whole(tokenizer, [], **tokens)


def _whole(tokenizer: Tokenizer, more_inputs: list[str], **tokens: str) -> transformers.PreTrainedTokenizerFast:
    inputs = ["input_ids", "attention_mask", *more_inputs]
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_input_names=inputs, **tokens)


def classifier(folder: Path, architecture: str, labels: Sequence[str], problem: str | None = None) -> Path:
    """Saves a sequence classifier into `folder`; returns it."""
    if architecture in BYTES:
        special = ["<s>", "<pad>", "</s>", "<unk>"]
        tokenizer = _bytes(special, cls_token="<s>", sep_token="</s>", pad_token="<pad>", unk_token="<unk>")
    else:
        tokenizer = _word_pieces(["token_type_ids"] if architecture in TYPED else [])
    config = {
        **SHAPE,
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "id2label": dict(enumerate(labels)),
        "label2id": {label: number for number, label in enumerate(labels)},
        **({"problem_type": problem} if problem else {}),
        **CLASSIFIERS[architecture],
    }
    return _save(folder, f"{architecture}ForSequenceClassification", f"{architecture}Config", config, tokenizer)


def generator(folder: Path, architecture: str) -> Path:
    """Saves a causal language model with a chat template into `folder`; returns it."""
    tokenizer = _bytes(["<|endoftext|>", "<|im_start|>", "<|im_end|>"], eos_token="<|im_end|>")
    tokenizer.chat_template = TEMPLATE
    config = {
        **SHAPE,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "vocab_size": len(tokenizer),
        "bos_token_id": 0,
        "eos_token_id": 2,
        "pad_token_id": 0,
        **GENERATORS[architecture],
    }
    kind = {"GPT2": "LMHeadModel"}.get(architecture, "ForCausalLM")
    configuration = {"Gemma3": "Gemma3TextConfig"}.get(architecture, f"{architecture}Config")
    return _save(folder, architecture + kind, configuration, config, tokenizer)


def _save(folder: Path, model: str, configuration: str, config: dict[str, Any], tokenizer: Any) -> Path:
    torch.manual_seed(7)
    made = getattr(transformers, model)(getattr(transformers, configuration)(**config)).eval()
    made.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
