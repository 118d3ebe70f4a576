"""Bits per byte of the right answer: a smooth second metric of every result whose answers have log-likelihoods.

Accuracy asks which choice is the likeliest, and stays at the level of guessing until a model knows enough. The bits
that a model needs for the right answer fall from the first training step on. They are divided by the bytes of the
answer's text, so that answers of any length and models of any tokenizer can be compared::

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
_SEPARATOR = " | "  # between the right answers of an example that has several


@dataclass(frozen=True, slots=True)
class AnswerBits:
    """What the right answer of one example costs."""

    bits_per_byte: float
    margin: float | None  # to the cheapest wrong answer; None if there is none

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
    texts: Sequence[str], logprobs: Sequence[float], right_positions: Sequence[int]
) -> AnswerBits | None:
    """Return the bits of the right answer among the answers to one example, each with its log-likelihood.

    None if no answer is right, or if a log-likelihood is not a finite number.
    """
    if not right_positions or not all(math.isfinite(logprob) for logprob in logprobs):
        return None
    bits = [
        compute_bits_per_byte(logprob, text) for logprob, text in zip(logprobs, texts, strict=True)
    ]
    right_bits = min(bits[position] for position in right_positions)
    wrong_bits = [value for position, value in enumerate(bits) if position not in right_positions]
    margin = min(wrong_bits) - right_bits if wrong_bits else None
    return AnswerBits(right_bits, margin)


def read_answer_bits(gold: str, detail: Mapping[str, Any]) -> AnswerBits | None:
    """Return the bits of the right answer of a stored example: those in its metrics, else of its log-likelihoods.

    Stores of earlier versions have only the log-likelihoods. None for an example without any, such as one whose answer
    is generated, and for one whose choices are contexts.
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
    right_positions = _find_right_choices(choices, gold)
    return compute_answer_bits(choices, logprobs[: len(choices)], right_positions)


def _find_right_choices(choices: Sequence[str], gold: str) -> list[int]:
    """Return the positions of the right choices; ``gold`` is their text, or their texts joined by " | "."""
    right_texts = {gold} if gold in choices else set(gold.split(_SEPARATOR))
    return [position for position, choice in enumerate(choices) if choice in right_texts]


def _are_contexts(choices: Sequence[str], prompt: str) -> bool:
    """Whether the choices are contexts after each of which one common ending was scored (Winogrande).

    The stored prompt of such an example has one text per choice, which ends in the choice. The ending is not stored.
    """
    return len(choices) > 1 and prompt.endswith(choices[-1]) and f"{choices[0]}\n" in f"{prompt}\n"
