"""Which models of unknown family are relatives, by their names: acme-7b and acme-7b-chat are not two witnesses.

Models of one family resemble each other, so an analysis that counts models counts families. Where no fact names the
family of a model, its name may. The family is the first of these that there is:

- the known family that one word of the name, or several in a row, name ("OpenHermes-2.5-Mistral-7B" is a Mistral,
  "gpt-neo-125m-chat" a GPT-Neo); the last such words count, as a name says last what a model was made of
  ("DeepSeek-R1-Distill-Qwen-7B");
- the first word of its name, sizes, versions and words such as "chat" left out, where the name of another model of
  unknown family begins with the same word.

Names such as m1 and m2, or model-a and model-b, say nothing. A word that all names begin with says nothing either,
unless models of other families stand beside them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

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
    words_by_family = {family: re.split(r"[-_ ]+", family.casefold()) for family in known_families}
    families: dict[str, str] = {}
    stem_by_model: dict[str, str] = {}
    for model in models:
        words = _split_into_words(model)
        named_family = _find_named_family(words, words_by_family)
        if named_family is not None:
            families[model] = named_family
        else:
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
    forms: list[str] = []
    for word in _split_into_words(model):
        forms += word.forms
    return forms


@dataclass(frozen=True)
class _Word:
    """A word of a model's name: as it stands there, and without a version at its end."""

    full: str
    bare: str

    @property
    def forms(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.full, self.bare)))


def _split_into_words(model: str) -> list[_Word]:
    """Return the words of a model's name that may name its family."""
    last_part = model.strip().rstrip("/").rpartition("/")[2].partition("@")[0].casefold()
    last_part = last_part.removesuffix(".gguf")
    words: list[_Word] = []
    for full in re.split(r"[^a-z0-9.]+", last_part):
        bare = full.rstrip("0123456789.")
        if _SIZE.fullmatch(full) or _VERSION.fullmatch(full) or not bare:
            continue
        if VARIANT_WORDS.isdisjoint((full, bare)):
            words.append(_Word(full, bare))
    return words


def _find_named_family(
    words: Sequence[_Word], words_by_family: Mapping[str, Sequence[str]]
) -> str | None:
    """Return the known family that the last words of a name name, of several the one with most words; else None."""
    for end in range(len(words), 0, -1):
        named_families = []
        for family, family_words in words_by_family.items():
            start = end - len(family_words)
            if start >= 0 and _are_words_of(family_words, words[start:end]):
                named_families.append(family)
        if named_families:
            # Of as many words the last in the alphabet is taken: gpt2 rather than gpt, for a model called gpt2.
            return max(named_families, key=lambda family: (len(words_by_family[family]), family))
    return None


def _are_words_of(family_words: Sequence[str], words: Sequence[_Word]) -> bool:
    """Whether words of a name are those of a family, one by one, with or without their versions."""
    return all(
        family_word in word.forms for family_word, word in zip(family_words, words, strict=True)
    )


def _find_stem(words: Sequence[_Word]) -> str:
    """Return the first word of a name without its version; empty where it is too short or too common for a family."""
    if not words:
        return ""
    stem = words[0].bare
    letters = sum(character.isalpha() for character in stem)
    if letters < MIN_FAMILY_LETTERS or stem in GENERIC_WORDS:
        return ""
    return stem
