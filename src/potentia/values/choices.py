"""How a metric compares the choices of a question, and the probability of each choice that follows from it.

Accuracy takes the likeliest choice; ``acc_norm`` takes the likeliest per character, since a long choice is less likely
than a short one whatever it says. Probabilities are made of the same numbers, so that the chosen answer is always the
most probable one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

PER_CHARACTER = "acc_norm"  # the metric that divides log-likelihoods by the length of the choice


def compute_choice_logits(
    metric: str, choices: Sequence[str], logprobs: Sequence[float]
) -> list[float]:
    """Return the numbers that a metric compares choices by, on the scale of log-probabilities.

    Log-likelihoods per character are multiplied by the mean length of the choices: the order stays, and choices of one
    length have their log-likelihoods again.
    """
    lengths = [len(choice) for choice in choices]
    if metric != PER_CHARACTER or not all(lengths):
        return list(logprobs)
    mean_length = sum(lengths) / len(lengths)
    return [
        logprob * mean_length / length for logprob, length in zip(logprobs, lengths, strict=True)
    ]


def soften_logits(logits: Sequence[float], temperature: float = 1.0) -> list[float]:
    """Return probabilities from logits that are divided by a temperature (softmax)."""
    highest = max(logits)
    weights = [math.exp((logit - highest) / temperature) for logit in logits]
    total = sum(weights)
    return [weight / total for weight in weights]
