"""Tiny random models of five architectures, and tokenizers trained on the spot: no downloads."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers.models.auto import CONFIG_MAPPING

from potentia.engine import LoadedModel

CORPUS = [
    "Question: Which gas do plants take in from the air? Answer: carbon dioxide. Oxygen is what they give back.",
    "Sarah was a much better surgeon than Maria so she always got the easier cases. Passage: the river is long.",
    "def add(a, b):\n    return a + b\n\n# 12 + 30 = 42 and 7 * 6 = 42; yes no true false A B C D",
    "Der Fluß ist breit; l'été est chaud; 東京は大きい。 Ελλάδα — naïve façade… 🙂🙃",
] * 4

SIZES: dict[str, dict[str, Any]] = {
    "llama": {"num_key_value_heads": 2, "intermediate_size": 64},
    "gpt2": {},
    "gpt_neox": {"intermediate_size": 64, "rotary_pct": 0.25},
    "gemma2": {
        "num_key_value_heads": 2,
        "intermediate_size": 64,
        "head_dim": 8,
        "sliding_window": 16,
    },
    "gemma3_text": {
        "num_key_value_heads": 2,
        "intermediate_size": 64,
        "head_dim": 8,
        "sliding_window": 16,
    },
    "qwen2": {"num_key_value_heads": 2, "intermediate_size": 64},
    "bloom": {},
}
ARCHITECTURES = ("llama", "gpt2", "gpt_neox", "gemma2", "gemma3_text", "qwen2")
NEEDS_BOS = frozenset({"llama", "gemma2", "gemma3_text"})


@cache
def tokenizer(kind: str = "gpt2") -> PreTrainedTokenizerFast:
    """A byte-level BPE with the special tokens of its family: adds BOS, has none, or has only an end token."""
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<bos>", "<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator(CORPUS, trainer)
    special: dict[str, Any] = {"eos_token": "<eos>"}
    if kind in NEEDS_BOS:
        special["bos_token"] = "<bos>"
        raw.post_processor = processors.TemplateProcessing(
            single="<bos> $A", special_tokens=[("<bos>", raw.token_to_id("<bos>"))]
        )
    elif kind in ("gpt2", "gpt_neox", "bloom"):
        special["bos_token"] = "<eos>"
    return PreTrainedTokenizerFast(tokenizer_object=raw, **special)


def tiny(kind: str, *, positions: int = 64, layers: int = 2, seed: int = 0) -> LoadedModel:
    """A random model of this architecture, sharp enough that its predictions differ from each other."""
    words = tokenizer(kind)
    common = {
        "vocab_size": len(words),
        "hidden_size": 32,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "bos_token_id": words.bos_token_id,
        "eos_token_id": words.eos_token_id,
        "pad_token_id": None,
    }
    if kind == "gpt2":
        common |= {"n_positions": positions}
    elif kind != "bloom":
        common |= {"max_position_embeddings": positions}
    config = CONFIG_MAPPING[kind](**(common | SIZES[kind]))
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1:
                weight.normal_(0, 0.6 if "embed" in name or "wte" in name else 0.25)
    return LoadedModel.of(model, words)
