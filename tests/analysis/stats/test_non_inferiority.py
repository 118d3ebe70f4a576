"""Non-inferiority: what an interval says beside a margin, and how often it says so wrongly."""

from __future__ import annotations

import math

import numpy as np
import pytest

from potentia.analysis.stats.non_inferiority import MarginVerdict, are_equivalent, judge_margin
from potentia.errors import InputError
from potentia.values.findings import Interval


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.001, 0.03, MarginVerdict.BETTER),
        (-0.005, 0.03, MarginVerdict.NOT_WORSE),
        (-0.02, 0.03, MarginVerdict.UNDECIDED),
        (-0.05, -0.02, MarginVerdict.WORSE),
        (math.nan, math.nan, MarginVerdict.UNKNOWN),
    ],
)
def test_verdicts(low: float, high: float, verdict: MarginVerdict) -> None:
    assert judge_margin(Interval((low + high) / 2, low, high), 0.01) is verdict


def test_a_wide_interval_is_no_equivalence() -> None:
    assert are_equivalent(Interval(0.0, -0.008, 0.008), 0.01)
    assert not are_equivalent(Interval(0.0, -0.2, 0.2), 0.01)
    assert not are_equivalent(Interval(0.0, math.nan, math.nan), 0.01)


def test_a_model_that_is_worse_by_the_margin_is_seldom_called_as_good() -> None:
    rng = np.random.default_rng(0)
    margin, error = 0.02, 0.01
    measured = rng.normal(-margin, error, 4_000)
    verdicts = [judge_margin(Interval.around(d, 1.96 * error), margin) for d in measured]
    claimed = [v in (MarginVerdict.NOT_WORSE, MarginVerdict.BETTER) for v in verdicts]
    assert np.mean(claimed) < 0.035


def test_a_margin_must_be_positive() -> None:
    with pytest.raises(InputError, match="margin of 0"):
        judge_margin(Interval(0.0, -1.0, 1.0), 0.0)
