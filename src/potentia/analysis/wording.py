"""Numbers and names as people write them: what the sentences of every analysis are made of."""

from __future__ import annotations

import math
from collections.abc import Sequence

from potentia.values.findings import ValuedText


def format_percent(probability: float) -> str:
    """Write a probability in per cent; nothing is certain, so the ends are "over 99 %" and "under 1 %"."""
    text = "under 1 %"
    if probability > 0.995:
        text = "over 99 %"
    elif probability >= 0.01:
        text = f"{100 * probability:.0f} %"
    return ValuedText(text, value=probability)


def format_level(level: float) -> str:
    """Write a confidence level or a significance level: 95 %, 99.9 %."""
    return f"{100 * level:.4g} %"


def format_p_value(p_value: float, *, least: float = 0.0) -> str:
    """Write a p value: p = 0.012, or p < 0.001; ``least`` is the smallest that the test can give: p ≤ 0.002."""
    if 0.001 <= p_value <= least * (1 + 1e-9):
        return f"p ≤ {_round_up(least)}"
    if p_value < 0.001:
        return "p < 0.001"
    return f"p = {p_value:.2g}" if p_value >= 0.01 else f"p = {p_value:.3f}"


def _round_up(p_value: float) -> str:
    """Write a bound with three decimals, no smaller than it is."""
    return f"{math.ceil(1000 * p_value - 1e-9) / 1000:.3f}"


def format_plus_minus(value: float, half_width: float, *, sign: bool = False) -> str | None:
    """Write a score with the half-width of its interval where it is known: 0.612 ± 0.021."""
    if not math.isfinite(value):
        return None
    number = f"{value:+.3f}" if sign else f"{value:.3f}"
    if not math.isfinite(half_width):
        return ValuedText(number, value=value)
    return ValuedText(
        f"{number} ± {half_width:.3f}", value=value, low=value - half_width, high=value + half_width
    )


def format_difference(difference: float, *, in_points: bool, sign: bool = False) -> str:
    """Write a difference of scores: 1.4 points where scores are shares of 1, else 0.014."""
    plus_sign = "+" if sign else ""
    if in_points:
        return f"{100 * difference:{plus_sign}.1f} points"
    return f"{difference:{plus_sign}.3f}"


def format_range(low: float, high: float, *, in_points: bool, sign: bool = False) -> str:
    """Write the ends of an interval of a difference in the same unit: −0.6 to 2.1, or −0.006 to 0.021.

    Shares differ by no more than 100 points, wherever a normal interval ends.
    """
    plus_sign = "+" if sign else ""
    if in_points:
        low = max(low, -1.0)
        high = min(high, 1.0)
        return f"{100 * low:{plus_sign}.1f} to {100 * high:{plus_sign}.1f}"
    return f"{low:{plus_sign}.3f} to {high:{plus_sign}.3f}"


def join_names(names: Sequence[str], max_names: int = 4) -> str:
    """Join names as people do: "A, B and C", or "A, B and 7 others"."""
    if len(names) > max_names:
        listed = names[: max_names - 1]
        return f"{', '.join(listed)} and {len(names) - len(listed)} others"
    if len(names) > 1:
        return f"{', '.join(names[:-1])} and {names[-1]}"
    return "".join(names)


def capitalize_first(text: str) -> str:
    """Write the first letter of a sentence large and leave the others as they are."""
    return text[:1].upper() + text[1:]
