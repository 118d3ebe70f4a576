"""Base or instruct: decided by what is known of a model, then by its name, then by its tokenizer.

A chat template alone does not make an instruct model: base models of some families carry one, and would be asked,
tuned and chosen in twice as many ways as others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from potentia.facts.models import ModelTable

INSTRUCT_WORDS = frozenset({"instruct", "instruction", "chat", "it", "sft", "dpo", "ppo", "rlhf", "rlvr", "assistant"})
BASE_WORDS = frozenset({"base", "pt", "pretrain", "pretrained", "foundation"})


@dataclass(frozen=True)
class Kind:
    """What a model is, and what decided it."""

    value: Literal["base", "instruct"]
    by: Literal["the study", "the facts", "its name", "its tokenizer"]


def decide_kind(
    stated: str,
    names: Iterable[str],
    facts: ModelTable,
    *,
    instruct_of: str | None = None,
    template: bool | None = None,
) -> Kind | None:
    """Decide what a model is; None where only its tokenizer can tell and ``template`` is not known yet."""
    if stated == "instruct" or (stated != "base" and instruct_of):
        return Kind("instruct", "the study")
    if stated == "base":
        return Kind("base", "the study")
    names = list(names)
    known = next((found for name in names if (found := facts.find(name)) is not None and found.kind_stated), None)
    if known is not None:
        return Kind("instruct" if known.kind == "instruct" else "base", "the facts")
    for name in names:
        words = set(re.split(r"[^a-z0-9]+", name.rstrip("/").rpartition("/")[2].casefold()))
        instruct, base = bool(words & INSTRUCT_WORDS), bool(words & BASE_WORDS)
        if instruct != base:
            return Kind("instruct" if instruct else "base", "its name")
    if template is None:
        return None
    return Kind("instruct" if template else "base", "its tokenizer")
