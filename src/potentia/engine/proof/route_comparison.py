"""How far log-probabilities of a scoring route are from the reference's, in float32 and in 16 bits.

In float32 a wrong mask moves them a thousand times as far as rounding does. In 16 bits a route may be three times as
far from float32's numbers as the reference in 16 bits is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from potentia.engine.layers.network import Network
from potentia.engine.layers.prefix_tree import ScoredSequence
from potentia.engine.proof.refusal import Refusal
from potentia.engine.proof.route_trial import MeasuredSequences, TrialNetwork
from potentia.engine.proof.scoring_tolerance import (
    SMALL_ROUNDING,
    UNNOTICED,
    is_close,
    root_mean_square,
)
from potentia.engine.proof.tolerance import ROUNDING_FACTOR, is_full_precision
from potentia.values.engine_records import RouteRecord


@dataclass(frozen=True)
class RouteComparison:
    """The result of comparing a route with the reference: why it is refused, or None, and what results record."""

    refusal: Refusal | None
    record: RouteRecord


def compare_in_one_dtype(
    measured: MeasuredSequences | Refusal,
    trial_network: TrialNetwork,
    record: RouteRecord,
    *,
    is_float32_copy: bool,
) -> RouteComparison:
    """Compare a route with the reference on the same network.

    ``is_float32_copy`` says that the network is the float32 copy of a model in 16 bits. Differences beyond the usual
    tolerance are allowed where the model itself rounds so much.
    """
    if isinstance(measured, Refusal):
        return RouteComparison(measured, record)
    dtype = trial_network.network.dtype
    is_precise = is_full_precision(dtype)
    largest_allowed = SMALL_ROUNDING if is_precise else math.inf
    largest_difference = 0.0
    for sequence, logprobs in measured:
        expected = trial_network.reference_logprobs(sequence)
        differences = _differences(logprobs, expected)
        largest_difference = max(largest_difference, *map(abs, differences))
        agrees = is_close(logprobs, expected, dtype)
        if agrees and not is_precise:
            agrees = root_mean_square(differences) <= 5 * SMALL_ROUNDING
        if agrees:
            continue
        rounding = _measure_rounding(trial_network.network, sequence, expected)
        allowed = ROUNDING_FACTOR * rounding
        if is_float32_copy:
            allowed = max(allowed, UNNOTICED)
        if not root_mean_square(differences) <= min(allowed, largest_allowed):
            reason = (
                f"log-likelihood {sum(logprobs):.4f} where the model's own forward gives "
                f"{sum(expected):.4f}"
            )
            return RouteComparison(Refusal(reason), record)
    off_by = _round_to_two_digits(largest_difference)
    record = replace(record, dtype=str(dtype).removeprefix("torch."))
    if is_precise:
        return RouteComparison(None, replace(record, off_by=off_by))
    return RouteComparison(None, replace(record, off_by_in_16_bits=off_by))


def compare_with_float32(
    measured: MeasuredSequences | Refusal,
    float32: TrialNetwork,
    half: TrialNetwork,
    record: RouteRecord,
) -> RouteComparison:
    """Compare a route in 16 bits with float32's numbers: it may be three times as far off as the reference."""
    if isinstance(measured, Refusal):
        return RouteComparison(measured, record)
    differences: list[float] = []
    reference_differences: list[float] = []
    for sequence, logprobs in _choose_for_16_bits(measured, few_rows=half.few_rows):
        expected = float32.reference_logprobs(sequence)
        differences += _differences(logprobs, expected)
        reference_differences += _differences(half.reference_logprobs(sequence), expected)
    off_by = root_mean_square(differences)
    reference_off_by = root_mean_square(reference_differences)
    record = replace(
        record,
        off_by_in_16_bits=_round_to_two_digits(off_by),
        reference_off_by=_round_to_two_digits(reference_off_by),
    )
    if off_by <= ROUNDING_FACTOR * reference_off_by + SMALL_ROUNDING:
        return RouteComparison(None, record)
    return RouteComparison(_make_refusal_in_16_bits(off_by, reference_off_by), record)


def compare_in_16_bits(
    measured: MeasuredSequences | Refusal,
    half: TrialNetwork,
    record: RouteRecord,
    *,
    rounding: float,
) -> RouteComparison:
    """Compare a route in 16 bits with the reference in 16 bits.

    ``rounding`` is how far the reference of such a model is from float32. Two numbers that are each off by so much, in
    no relation to each other, differ by √2 times as much.
    """
    if isinstance(measured, Refusal):
        return RouteComparison(measured, record)
    differences: list[float] = []
    for sequence, logprobs in _choose_for_16_bits(measured, few_rows=half.few_rows):
        differences += _differences(logprobs, half.reference_logprobs(sequence))
    off_by = root_mean_square(differences)
    record = replace(record, off_by_in_16_bits=_round_to_two_digits(off_by))
    if off_by <= max(5 * SMALL_ROUNDING, math.sqrt(2) * ROUNDING_FACTOR * rounding):
        return RouteComparison(None, record)
    return RouteComparison(_make_refusal_in_16_bits(off_by, 0.0), record)


def _differences(values: Sequence[float], references: Sequence[float]) -> list[float]:
    return [value - reference for value, reference in zip(values, references, strict=True)]


def _measure_rounding(
    network: Network, sequence: ScoredSequence, expected: Sequence[float]
) -> float:
    """Measure how far the reference's numbers move when the same text stands in a batch of three.

    Large logits and long texts round by more than a constant tolerance allows.
    """
    logprobs, _ = network.reference_logprobs(sequence, copies=3)
    return root_mean_square(_differences(logprobs.tolist(), expected))


def _choose_for_16_bits(measured: MeasuredSequences, *, few_rows: bool) -> MeasuredSequences:
    """Choose the sequences that are compared in 16 bits: every second one of every route; all of a few rows."""
    in_order = sorted(measured, key=lambda entry: entry[0].index)
    return in_order if few_rows else in_order[::2]


def _make_refusal_in_16_bits(off_by: float, reference_off_by: float) -> Refusal:
    return Refusal(
        f"in 16 bits log-probabilities are off by {off_by:.3f}, "
        f"where the reference's are by {reference_off_by:.3f}"
    )


def _round_to_two_digits(value: float) -> float:
    """Return a number with two significant digits, for the record."""
    return float(f"{value:.1e}")
