"""Intervals of shares at their ends, against scipy and statsmodels."""

from __future__ import annotations

import math

import pytest
from scipy.stats import binomtest

from potentia.analysis.stats.intervals import (
    exact_lower_bound,
    exact_upper_bound,
    interval_of_score,
    score_interval,
    wilson_interval,
)
from potentia.values.metric import Metric
from potentia.values.scores import Score


@pytest.mark.parametrize(("hits", "trials"), [(0, 200), (1, 200), (100, 200), (200, 200)])
def test_wilson_is_scipys(hits: int, trials: int) -> None:
    interval = wilson_interval(hits / trials, trials)
    reference = binomtest(hits, trials).proportion_ci(method="wilson")
    assert (interval.low, interval.high) == pytest.approx((reference.low, reference.high))


@pytest.mark.parametrize(("hits", "trials"), [(0, 40), (3, 40), (40, 40)])
def test_exact_bounds_are_clopper_and_pearsons(hits: int, trials: int) -> None:
    reference = binomtest(hits, trials).proportion_ci(method="exact")
    assert exact_upper_bound(hits, trials) == pytest.approx(reference.high)
    assert exact_lower_bound(hits, trials) == pytest.approx(reference.low)


def test_a_score_of_zero_has_an_interval() -> None:
    interval = score_interval(0.0, 0.0, examples=200, is_share=True)
    assert interval.low == 0.0
    assert interval.high == pytest.approx(0.0188, abs=1e-4)


def test_inside_the_interval_is_nearly_the_normal_one() -> None:
    stderr = math.sqrt(0.6 * 0.4 / 999)
    interval = score_interval(0.6, stderr, examples=1000, is_share=True)
    assert interval.high - interval.low == pytest.approx(2 * 1.96 * stderr, rel=0.01)


def test_clusters_widen_the_interval_through_the_error() -> None:
    stderr = math.sqrt(0.6 * 0.4 / 999)
    plain = score_interval(0.6, stderr, examples=1000, is_share=True)
    clustered = score_interval(0.6, 2 * stderr, examples=1000, is_share=True)
    assert clustered.high - clustered.low == pytest.approx(2 * (plain.high - plain.low), rel=0.02)


def test_scores_that_are_no_shares_keep_the_normal_interval() -> None:
    score = Score(0.8, 0.1, 100, Metric.of("bits_per_byte"))
    interval = interval_of_score(score)
    assert interval.high == pytest.approx(0.8 + 1.96 * 0.1, abs=1e-3)
    unknown = interval_of_score(Score(0.8, math.nan, 100, Metric.of("acc")))
    assert math.isnan(unknown.low)
