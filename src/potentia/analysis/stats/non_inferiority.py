"""Whether one model is as good as another within a margin: a claim that needs evidence of its own.

That two models do not differ significantly says nothing: a small test finds no difference of anything. "B is not worse
than A by more than m" is claimed where the interval of B − A lies above −m: a one-sided test at half of 1 − level,
2.5 % for the usual 95 % interval. Both ways round, the interval within −m to m, it says that the two are equivalent.
"""

from __future__ import annotations

import math
from enum import StrEnum

from potentia.errors import InputError
from potentia.values.findings import Interval


class MarginVerdict(StrEnum):
    """What an interval of a difference says beside a margin."""

    BETTER = "better"  # the whole interval is above 0
    NOT_WORSE = "not worse"  # above −margin
    WORSE = "worse"  # the whole interval is below −margin
    UNDECIDED = "undecided"  # more evidence is needed
    UNKNOWN = "unknown"  # there is no error


def judge_margin(difference: Interval, margin: float) -> MarginVerdict:
    """Say whether the first of two models is not worse than the second by more than a margin.

    ``difference`` is of the first over the second, and more is better.
    """
    check_margin(margin)
    if not math.isfinite(difference.low):
        return MarginVerdict.UNKNOWN
    if difference.low > 0:
        return MarginVerdict.BETTER
    if difference.low > -margin:
        return MarginVerdict.NOT_WORSE
    if difference.high < -margin:
        return MarginVerdict.WORSE
    return MarginVerdict.UNDECIDED


def are_equivalent(difference: Interval, margin: float) -> bool:
    """Whether two models are as good as each other within a margin."""
    check_margin(margin)
    return bool(difference.low > -margin and difference.high < margin)


def check_margin(margin: float) -> None:
    """Refuse a margin that is no positive number."""
    if not (math.isfinite(margin) and margin > 0):
        raise InputError(
            f"a margin of {margin:g} cannot be used",
            hint="give a positive difference of scores that does not matter to you, such as 0.01",
        )
