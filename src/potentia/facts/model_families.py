"""Which models of unknown family are relatives, by their names: acme-7b and acme-7b-chat are not two witnesses.

Models of one family resemble each other, so an analysis that counts models counts families. Where no fact names the
family of a model, its name may. The family is the first of these that there is:

- the known family that a word of the name names ("OpenHermes-2.5-Mistral-7B" is a Mistral); the last such word counts,
  as a name says last what a model was made of ("DeepSeek-R1-Distill-Qwen-7B");
- the first word that the names of several models share, sizes, versions and words such as "chat" left out.

Names such as m1 and m2, or model-a and model-b, say nothing, and neither does a word that all models share.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

MIN_FAMILY_LETTERS = 3  # a shorter first word names no family
# Words of names that say how a model was made, tuned or stored, not where it comes from.
VARIANT_WORDS = frozenset(
    {
        "aligned",
        "assistant",
        "awq",
        "base",
        "bf16",
        "chat",
        "checkpoint",
        "ckpt",
        "code",
        "coder",
        "distill",
        "distilled",
        "dpo",
        "epoch",
        "exl2",
        "exposed",
        "final",
        "finetune",
        "finetuned",
        "fp16",
        "fp32",
        "fp8",
        "ft",
        "gguf",
        "gptq",
        "grpo",
        "hf",
        "instruct",
        "instruction",
        "int4",
        "int8",
        "it",
        "iter",
        "kto",
        "large",
        "latest",
        "lora",
        "math",
        "medium",
        "merge",
        "merged",
        "mini",
        "nano",
        "orpo",
        "ppo",
        "pretrain",
        "pretrained",
        "preview",
        "pt",
        "qlora",
        "quantized",
        "reasoning",
        "rl",
        "rlhf",
        "rlvr",
        "seed",
        "sft",
        "small",
        "step",
        "thinking",
        "tiny",
        "tuned",
        "uncensored",
        "xl",
        "xs",
        "xxl",
    }
)
# First words that any two models may have.
GENERIC_WORDS = frozenset(
    {
        "ai",
        "baseline",
        "candidate",
        "exp",
        "experiment",
        "language",
        "llm",
        "lm",
        "model",
        "my",
        "net",
        "new",
        "old",
        "open",
        "our",
        "run",
        "system",
        "test",
        "the",
    }
)
_SIZE = re.compile(r"(\d+x)?a?\d+([.p]\d+)?(b|m|k|t|bn|bit)|q\d\w*")
_VERSION = re.compile(r"[vr]?\d+([.p]\d+)*")


def find_families_by_name(
    models: Sequence[str], other_models: Iterable[str], known_families: Iterable[str]
) -> dict[str, str]:
    """Return the family that names suggest for each of these models; those whose name says nothing are left out.

    ``other_models`` are the models of known family beside them; ``known_families`` the names of all known families.
    """
    family_names = {family.casefold(): family for family in known_families}
    words_by_model = {model: split_model_name(model) for model in models}
    families: dict[str, str] = {}
    for model, words in words_by_model.items():
        named = [family_names[word] for word in words if word in family_names]
        if named:
            families[model] = named[-1]
    stem_by_model = {}
    for model, words in words_by_model.items():
        if model not in families:
            stem_by_model[model] = _find_stem(words)
    uses_of_stem = Counter(stem_by_model.values())
    beside_unrelated_models = bool(families) or any(True for _ in other_models)
    for model, stem in stem_by_model.items():
        is_shared_by_all = uses_of_stem[stem] == len(models) and not beside_unrelated_models
        if stem and uses_of_stem[stem] > 1 and not is_shared_by_all:
            families[model] = stem
    return families


def split_model_name(model: str) -> list[str]:
    """Return the words of a model's name that may name its family, in small letters, with and without their version.

    An organisation, a folder and what follows ``@`` are left out.
    """
    last_part = model.strip().rstrip("/").rpartition("/")[2].partition("@")[0].casefold()
    last_part = last_part.removesuffix(".gguf")
    words: list[str] = []
    for word in re.split(r"[^a-z0-9.]+", last_part):
        bare_word = word.rstrip("0123456789.")
        if _SIZE.fullmatch(word) or _VERSION.fullmatch(word) or not bare_word:
            continue
        if VARIANT_WORDS.isdisjoint((word, bare_word)):
            words += dict.fromkeys((word, bare_word))
    return words


def _find_stem(words: Sequence[str]) -> str:
    """Return the first word of a name without its version; empty where it is too short or too common for a family."""
    if not words:
        return ""
    stem = words[0].rstrip("0123456789.")
    letters = sum(character.isalpha() for character in stem)
    if letters < MIN_FAMILY_LETTERS or stem in GENERIC_WORDS:
        return ""
    return stem
