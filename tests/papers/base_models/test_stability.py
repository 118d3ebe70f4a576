import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kendalltau

from potentia.analysis.checkpoints import Checkpoint
from potentia.analysis.stats.bootstrap import (
    add_score_noise,
    kendall_between,
    kendall_by_row,
    noise_interval,
)
from potentia.errors import InputError
from potentia.papers.base_models.stability import measure_resolvable_gap, measure_stability
from potentia.values.scores import ScoreMatrix

STEPS = (1000.0, 2000.0, 4000.0, 8000.0, 16000.0)


def series(values, *, tasks=("arc_easy",), stderr=0.01, protocol="direct", steps=STEPS):
    models = [f"run@{int(s)}" for s in steps]
    array = np.asarray(values, dtype=float).reshape(len(models), len(tasks))
    errors = None if stderr is None else np.full_like(array, stderr)
    matrix = ScoreMatrix.build(models, tasks, array, stderr=errors, protocol=protocol)
    return matrix, {m: Checkpoint("run", s) for m, s in zip(models, steps, strict=True)}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=2, max_size=12))
def test_tau_equals_scipys_with_ties(pairs):
    x, y = (np.array(side, dtype=float) for side in zip(*pairs, strict=True))
    expected = kendalltau(x, y).statistic
    ours = float(kendall_by_row(x, y))
    assert (np.isnan(ours) and np.isnan(expected)) or ours == pytest.approx(expected, abs=1e-12)


def test_tau_of_many_rows_is_tau_of_each():
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=7), rng.normal(size=(5, 7))
    assert kendall_by_row(x, y) == pytest.approx([kendalltau(x, row).statistic for row in y])


def test_tau_of_all_rows_with_all_others_is_tau_of_each_two():
    rng = np.random.default_rng(4)
    x, y = rng.integers(0, 4, (6, 7)).astype(float), rng.integers(0, 4, (5, 7)).astype(float)
    x[1, 2] = y[0, 2:4] = np.nan
    y[4] = 1.0  # a constant row has no tau
    expected = [kendall_by_row(row, y) for row in x]
    np.testing.assert_array_equal(kendall_between(x, y), expected)
    assert np.isnan(expected).any(axis=0).tolist() == [False, False, False, False, True]


def test_a_rising_curve_is_stable_and_a_falling_one_is_not():
    matrix, checkpoints = series(
        np.column_stack([[0.3, 0.4, 0.5, 0.6, 0.7], [0.7, 0.6, 0.5, 0.4, 0.3]]),
        tasks=("up", "down"),
    )
    stability = measure_stability({"direct": matrix}, checkpoints)
    assert [(c.task, c.tau.value) for c in stability.curves] == [("down", -1.0), ("up", 1.0)]


def test_lower_is_better_is_turned_round():
    matrix, checkpoints = series([5.0, 4.0, 3.0, 2.0, 1.0], tasks=("corpus",))
    flipped = ScoreMatrix.build(matrix.models, matrix.tasks, matrix.values, higher_is_better=False)
    assert measure_stability({"direct": flipped}, checkpoints).curves[0].tau.value == 1.0


def test_noise_widens_the_interval_and_unknown_noise_leaves_it_unknown():
    values = [0.30, 0.32, 0.34, 0.36, 0.38]
    wide, checkpoints = series(values, stderr=0.05)
    narrow, _ = series(values, stderr=0.001)
    blank, _ = series(values, stderr=None)
    taus = [
        measure_stability({"direct": m}, checkpoints).curves[0].tau for m in (wide, narrow, blank)
    ]
    assert taus[0].low < 0.8
    assert (taus[1].low, taus[1].high) == (1.0, 1.0)
    assert np.isnan(taus[2].low)
    assert all(t.value == 1.0 for t in taus)


def test_the_interval_covers_the_expected_tau_of_a_fresh_measurement():
    rng = np.random.default_rng(1)
    steps, truth, error = np.arange(12.0), np.linspace(0.3, 0.4, 12), np.full(12, 0.03)
    expected = kendall_by_row(steps, add_score_noise(truth, error, 20_000, rng)).mean()
    hits = 0
    for _ in range(300):
        seen = truth + rng.standard_normal(12) * error
        spread = kendall_by_row(steps, add_score_noise(seen, error, 400, rng))
        interval = noise_interval(float(kendall_by_row(steps, seen)), spread, bounds=(-1.0, 1.0))
        hits += interval.low <= expected <= interval.high
    assert hits / 300 >= 0.93


def test_a_difference_that_noise_explains_is_not_called_real():
    direct, checkpoints = series([0.30, 0.29, 0.33, 0.37], steps=STEPS[:4])
    other, _ = series([0.30, 0.33, 0.36, 0.42], tasks=("arc_easy:blank_ppl",), steps=STEPS[:4])
    score_matrix = ScoreMatrix.build(
        direct.models,
        direct.tasks + other.tasks,
        np.hstack([direct.values, other.values]),
        stderr=np.hstack([direct.stderr, other.stderr]),
    )
    (stability,) = measure_stability(
        {"direct": score_matrix}, checkpoints, baseline="direct"
    ).improvements
    assert stability.difference.value > 0.3
    assert not stability.real


def test_the_smallest_gap_that_is_resolved():
    steps = np.array([0.0, 1.0, 2.0, 3.0, 4.0])
    rising = (
        0.1 * steps
    )  # two standard errors of a difference are about 0.14: one step is not enough, two are
    assert measure_resolvable_gap(steps, rising, np.full(5, 0.05)) == (2.0, 0.0)
    assert measure_resolvable_gap(steps, rising, np.full(5, 0.001)) == (1.0, 1.0)
    assert measure_resolvable_gap(steps, np.zeros(5), np.full(5, 0.05)) == (None, 0.0)
    assert measure_resolvable_gap(steps, rising, np.full(5, np.nan)) == (None, None)


def test_a_falling_curve_resolves_nothing_however_precise():
    steps = np.arange(5.0)
    assert measure_resolvable_gap(steps, -steps, np.full(5, 1e-6))[0] is None


def test_forms_and_protocols_are_methods_of_one_benchmark_and_improvements_are_paired():
    noisy = [0.30, 0.28, 0.33, 0.29, 0.31]
    rising = [0.30, 0.35, 0.40, 0.45, 0.50]
    direct, checkpoints = series(
        np.column_stack([noisy, rising]), tasks=("arc_easy", "arc_easy:blank_ppl")
    )
    tuned, _ = series(rising, protocol="train_before_test")
    stability = measure_stability(
        {"direct": direct, "train_before_test": tuned}, checkpoints, baseline="direct"
    )
    assert stability.methods == ("direct", "blank_ppl", "train_before_test")
    assert {(i.method, i.baseline) for i in stability.improvements} == {
        ("blank_ppl", "direct"),
        ("train_before_test", "direct"),
    }
    taus = {c.method: c.tau.value for c in stability.curves}
    for i in stability.improvements:
        assert i.difference.value == pytest.approx(taus[i.method] - taus["direct"])
        assert i.difference.low <= i.difference.value <= i.difference.high


def test_missing_checkpoints_are_left_out_not_zero():
    matrix, checkpoints = series([0.3, np.nan, 0.5, 0.6, 0.7])
    curve = measure_stability({"direct": matrix}, checkpoints).curves[0]
    assert curve.tau.value == 1.0
    assert curve.models == ("run@1000", "run@4000", "run@8000", "run@16000")


def test_series_are_kept_apart():
    matrix, checkpoints = series([0.3, 0.4, 0.5, 0.2, 0.1])
    mixed = {m: Checkpoint("a" if c.step < 5000 else "b", c.step) for m, c in checkpoints.items()}
    stability = measure_stability({"direct": matrix}, mixed)
    assert [(c.series, c.tau.value) for c in stability.curves] == [
        ("a", 1.0)
    ]  # b has two checkpoints only


def test_too_few_checkpoints_and_unknown_baselines_are_named():
    matrix, checkpoints = series([0.3, 0.4, 0.5, 0.6, 0.7])
    with pytest.raises(InputError, match="three or more"):
        measure_stability({"direct": matrix}, dict(list(checkpoints.items())[:2]))
    with pytest.raises(InputError, match="no method 'iclip'"):
        measure_stability({"direct": matrix}, checkpoints, baseline="iclip")


def test_finding_speaks_in_tables_charts_and_json():
    import json

    matrix, checkpoints = series([0.3, 0.4, 0.5, 0.6, 0.7], stderr=None)
    stability = measure_stability({"direct": matrix}, checkpoints)
    assert all(len(row) == len(t.columns) for t in stability.tables() for row in t.rows)
    assert json.loads(json.dumps(stability.to_dict()))["curves"][0]["tau"]["low"] is None
    assert {type(c).__name__ for c in stability.charts()} == {"Plot", "Heatmap"}
    far = measure_stability(
        {"direct": matrix}, {m: Checkpoint("org/run", c.step) for m, c in checkpoints.items()}
    )
    assert not any("/" in chart.name for chart in far.charts())
