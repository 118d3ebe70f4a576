"""Bits per byte of the right answer: a smooth second metric of every result whose answers have log-likelihoods.

Accuracy asks which choice is the likeliest, and stays at the level of a guess until a model knows enough. The bits that
a model needs for the right answer fall from the first training step on. They are divided by the bytes of the answer's
text, so that answers of any length and models of any tokenizer can be compared::

    answer_bpb    = −ln P(right answer | question) / (ln 2 · bytes of the right answer)
    answer_margin = the least bits per byte of a wrong answer − those of the right one

A score is the mean over examples. Where several answers are right, the likeliest per byte counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

ANSWER_BITS = "answer_bpb"
ANSWER_MARGIN = "answer_margin"
ANSWER_METRICS = (ANSWER_BITS, ANSWER_MARGIN)
_SEVERAL = " | "  # between the right answers, where an example has several


@dataclass(frozen=True, slots=True)
class AnswerBits:
    """What one right answer costs; ``margin`` is None where there is no wrong answer to compare it with."""

    bits_per_byte: float
    margin: float | None

    def by_metric(self) -> dict[str, float]:
        """Return the values by the names of their metrics."""
        values = {ANSWER_BITS: self.bits_per_byte}
        if self.margin is not None:
            values[ANSWER_MARGIN] = self.margin
        return values


def compute_bits_per_byte(logprob: float, text: str) -> float:
    """Return the bits per byte of a text with this log-likelihood (in nats)."""
    byte_count = max(1, len(text.encode("utf-8", "surrogatepass")))
    return -logprob / (math.log(2) * byte_count)


def compute_answer_bits(
    texts: Sequence[str], logprobs: Sequence[float], right: Sequence[int]
) -> AnswerBits | None:
    """Return the bits of the right answer among these, ``right`` being the positions of those that count as right.

    None where no answer is right, or where a log-likelihood is not a finite number.
    """
    if not right or not all(math.isfinite(logprob) for logprob in logprobs):
        return None
    bits = [
        compute_bits_per_byte(logprob, text) for logprob, text in zip(logprobs, texts, strict=True)
    ]
    right_bits = min(bits[position] for position in right)
    wrong_bits = [value for position, value in enumerate(bits) if position not in right]
    margin = min(wrong_bits) - right_bits if wrong_bits else None
    return AnswerBits(right_bits, margin)


def read_answer_bits(gold: str, detail: Mapping[str, Any]) -> AnswerBits | None:
    """Return the bits of the right answer of a stored example: as it says them, else from its log-likelihoods.

    Stores of earlier versions hold the log-likelihoods alone. None where an example has none, as a written answer.
    """
    metrics = detail.get("metrics") or {}
    if ANSWER_BITS in metrics:
        return AnswerBits(metrics[ANSWER_BITS], metrics.get(ANSWER_MARGIN))
    logprobs = detail.get("logprobs")
    if not logprobs or not gold:
        return None
    choices = detail.get("choices")
    if choices is None:
        return compute_answer_bits([gold], logprobs[:1], [0])
    if len(choices) > len(logprobs) or _are_contexts(choices, str(detail.get("prompt", ""))):
        return None
    right = _find_right_choices(choices, gold)
    return compute_answer_bits(choices, logprobs[: len(choices)], right)


def _find_right_choices(choices: Sequence[str], gold: str) -> list[int]:
    """Return the positions of the right choices; several are joined in what is stored."""
    right_texts = {gold} if gold in choices else set(gold.split(_SEVERAL))
    return [position for position, choice in enumerate(choices) if choice in right_texts]


def _are_contexts(choices: Sequence[str], prompt: str) -> bool:
    """Whether the choices are beginnings of one sentence, so that the scored end is not among what is stored.

    Such a prompt holds one text per choice, each of which ends in the choice (Winogrande).
    """
    return len(choices) > 1 and prompt.endswith(choices[-1]) and f"{choices[0]}\n" in f"{prompt}\n"
