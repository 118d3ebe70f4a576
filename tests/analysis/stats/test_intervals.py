"""Intervals of shares at their ends, against scipy and statsmodels."""

from __future__ import annotations

import math
import statistics

import pytest
from scipy.stats import binomtest

from potentia.analysis.rankings import find_rankings
from potentia.analysis.stats.intervals import (
    exact_lower_bound,
    exact_upper_bound,
    interval_of_score,
    score_interval,
    wilson_interval,
)
from potentia.evidence import Evidence
from potentia.values.findings import Interval
from potentia.values.metric import Metric
from potentia.values.scores import Score, ScoreMatrix


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


def test_examples_that_all_have_one_value_have_an_interval() -> None:
    values = [0.1 + 0.2] * 40
    rounding = statistics.fmean((value - statistics.fmean(values)) ** 2 for value in values)
    for error in (0.0, 8e-18, rounding):
        interval = interval_of_score(Score(0.3, error, 40, Metric.of("token_f1")))
        assert interval.low == pytest.approx(0.18, abs=0.02)
        assert interval.high == pytest.approx(0.45, abs=0.02)
        assert Score(0.3, error, 40, Metric.of("token_f1")).stderr == 0.0


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


def test_intervals_are_written_with_two_ends_where_the_sides_differ() -> None:
    assert Interval(0.612, 0.591, 0.633).format() == "0.612 ± 0.021"
    never = score_interval(0.0, 0.0, examples=200, is_share=True)
    assert never.format() == "0.000 (0.000 to 0.019)"
    assert Interval(0.5, math.nan, math.nan).format() == "0.500"
    assert Interval(0.02, 0.01, 0.03).format(sign=True) == "+0.020 ± 0.010"


def test_a_scoreboard_of_a_model_that_is_never_right_shows_what_may_be() -> None:
    matrix = ScoreMatrix.build(
        ["never", "often"],
        ["task"],
        [[0.0], [0.8]],
        stderr=[[0.0], [0.028]],
        n=[[200], [200]],
        metrics=["acc"],
    )
    scoreboard = find_rankings(Evidence.of(matrix)).scoreboard
    assert scoreboard is not None
    cells = str([list(row) for row in scoreboard.tables()[0].rows])
    assert "0.000 ± 0.000" not in cells
    assert "0.000 (0.000 to 0.019)" in cells
