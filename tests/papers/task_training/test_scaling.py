"""The hinge of equation 1: the exact search, its standard errors, and coverage on data with known truth."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from potentia.errors import InputError
from potentia.papers.task_training import hinge_search as hinge_fit
from potentia.papers.task_training.scaling import clustered_stderr, fit_hinge, fit_log_linear
from potentia.values.findings import to_json_values

X = np.linspace(20.0, 24.0, 50)
TRUTH = {"slope": 0.2, "emergence": 22.0, "effect": 0.07}


def _curve(x: np.ndarray, group: np.ndarray) -> np.ndarray:
    rise = TRUTH["slope"] * np.maximum(0, x - TRUTH["emergence"])
    return 0.25 + rise + TRUTH["effect"] * group


def test_noiseless_truth_is_found_exactly() -> None:
    group = np.arange(len(X)) % 2 == 0
    fit = fit_hinge(X, _curve(X, group), chance=0.25, group=group)
    assert fit.effect is not None
    assert fit.slope.value == pytest.approx(0.2, abs=1e-9)
    assert fit.emergence.value == pytest.approx(22.0, abs=1e-9)
    assert fit.effect.value == pytest.approx(0.07, abs=1e-9)
    assert fit.r2 == pytest.approx(1.0)
    assert fit.predict([23.0], member=True)[0] == pytest.approx(0.25 + 0.2 + 0.07)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), n=st.integers(8, 40), grouped=st.booleans())
def test_no_grid_of_points_of_emergence_does_better(seed: int, n: int, grouped: bool) -> None:
    rng = np.random.default_rng(seed)
    x = np.round(rng.uniform(19, 24, n), 1)  # rounding makes ties
    group = (rng.random(n) < 0.5).astype(float) if grouped else None
    if (group is not None and len(set(group)) == 1) or len(np.unique(x)) < 5:
        return
    y = rng.normal(size=n) + 0.5 * np.maximum(0, x - 22)
    best = hinge_fit.search_hinges(x, y[None, :], group)
    far = x.min() - np.ptp(x) * np.geomspace(0.1, 1e4, 500)
    grid = np.concatenate([far, np.linspace(x.min(), np.unique(x)[-hinge_fit.MIN_ABOVE], 2000)])
    g = np.zeros(n) if group is None else group
    at_points = hinge_fit._fit_at_points(x, y[None, :], g, grid)
    slope, rss = at_points.slope, at_points.rss
    rising = slope[0] >= 0
    lowest = rss[0][rising].min() if rising.any() else np.inf
    assert best.rss[0] <= lowest + 1e-9 * max(1.0, abs(lowest))
    residuals = y - hinge_fit.predict_above_chance(x, best, group)[0]
    assert float(residuals @ residuals) == pytest.approx(best.rss[0], abs=1e-8)


def test_batches_equal_single_fits() -> None:
    rng = np.random.default_rng(1)
    group = (np.arange(50) % 3 == 0).astype(float)
    Y = _curve(X, group) - 0.25 + rng.normal(scale=0.05, size=(20, 50))
    together = hinge_fit.search_hinges(X, Y, group)
    for i in range(20):
        alone = hinge_fit.search_hinges(X, Y[i : i + 1], group)
        assert together.emergence[i] == pytest.approx(alone.emergence[0])
        assert together.effect[i] == pytest.approx(alone.effect[0])


def test_clustered_errors_are_those_of_statsmodels() -> None:
    rng = np.random.default_rng(2)
    group = np.arange(50) % 2 == 0
    families = [f"f{i % 9}" for i in range(50)]
    y = _curve(X, group) + rng.normal(scale=0.03, size=50)
    fit = fit_hinge(X, y, chance=0.25, group=group, families=families)
    g = group.astype(float)
    hinge = hinge_fit.search_hinges(X, (y - 0.25)[None, :], g)
    J = hinge_fit.linear_basis(X, hinge.emergence, g)
    clusters = np.array([[float(name == f"f{k}") for name in families] for k in range(9)])
    ours = clustered_stderr(
        J, (y - 0.25)[None, :] - hinge_fit.predict_above_chance(X, hinge, g), clusters
    )[0]
    assert fit.effect is not None
    assert ours[[0, 2]] == pytest.approx(
        [fit.slope.clustered_stderr, fit.effect.clustered_stderr], rel=1e-6
    )


def test_a_line_has_the_clustered_errors_of_statsmodels() -> None:
    import statsmodels.api as sm

    rng = np.random.default_rng(11)
    x = np.linspace(22, 24, 36)
    group = (np.arange(36) % 2).astype(float)
    families = rng.integers(0, 7, 36)
    y = 0.5 + 0.1 * (x - 22) + 0.02 * group + rng.normal(scale=0.01, size=7)[families]
    y += rng.normal(scale=0.003, size=36)
    fit = fit_hinge(x, y, chance=0.25, group=group, families=[f"f{code}" for code in families])
    line = sm.OLS(y - 0.25, np.column_stack([np.ones(36), x, group])).fit()
    robust = line.get_robustcov_results("cluster", groups=families, use_t=True)
    assert fit.effect is not None
    assert fit.slope.clustered_stderr == pytest.approx(robust.bse[1])
    assert fit.effect.clustered_stderr == pytest.approx(robust.bse[2])
    assert fit.effect.clustered_p == pytest.approx(robust.pvalues[2])


@pytest.mark.parametrize("decades", [0.5, 1.0, 2.0])
def test_a_cohort_far_above_chance_is_a_plain_line_with_errors_and_p_of_that_line(
    decades: float,
) -> None:
    import statsmodels.api as sm

    rng = np.random.default_rng(7)
    x = np.linspace(22, 22 + decades, 24)
    group = (np.arange(24) % 2).astype(float)
    y = 0.6 + 0.3 * (x - 22) / decades * 0.3 + 0.02 * group + rng.normal(scale=0.003, size=24)
    fit = fit_hinge(x, y, chance=0.25, group=group)
    line = sm.OLS(y - 0.25, np.column_stack([np.ones(24), x, group])).fit()
    assert fit.effect is not None
    assert fit.slope.value == pytest.approx(line.params[1])
    assert fit.effect.value == pytest.approx(line.params[2])
    assert [fit.effect.stderr, fit.effect.p] == pytest.approx([line.bse[2], line.pvalues[2]])
    assert fit.r2 == pytest.approx(line.rsquared)
    assert fit.emergence.value == pytest.approx(-line.params[0] / line.params[1])
    assert fit.emergence.value < 22 - 2 * decades, "the line leaves chance long before the cohort"


def test_scores_equally_far_above_chance_are_level_and_theta_is_a_difference_of_means() -> None:
    rng = np.random.default_rng(8)
    group = (np.arange(50) % 2).astype(float)
    y = 0.7 - 0.01 * (X - 22) + 0.05 * group + rng.normal(scale=0.01, size=50)
    fit = fit_hinge(X, y, chance=0.25, group=group)
    assert fit.effect is not None
    assert fit.slope.value == 0.0
    assert fit.emergence.value == -np.inf
    assert fit.effect.value == pytest.approx(y[group == 1].mean() - y[group == 0].mean())
    assert fit.effect.stderr > 0
    assert fit.predict([20.0])[0] == pytest.approx(y[group == 0].mean())


def test_one_family_has_no_errors_by_family_and_still_a_fit() -> None:
    group = (np.arange(50) % 2).astype(float)
    fit = fit_hinge(
        X, _curve(X, group), chance=0.25, group=group, families=["Llama"] * 50, draws=99
    )
    assert np.isnan(fit.wild_p)
    assert fit.effect is not None
    assert np.isnan(fit.effect.clustered_stderr)
    assert fit.effect.value == pytest.approx(TRUTH["effect"])


def test_the_interval_of_emergence_covers_where_models_of_a_family_resemble_each_other() -> None:
    rng = np.random.default_rng(9)
    families = np.repeat(np.arange(12), 4)
    hits = 0
    for _ in range(200):
        x = rng.uniform(20, 24, 48)
        y = 0.25 + 0.2 * np.maximum(0, x - 22) + rng.normal(scale=0.03, size=12)[families]
        y += rng.normal(scale=0.02, size=48)
        point = fit_hinge(x, y, chance=0.25, families=[str(f) for f in families]).emergence_interval
        hits += point.low <= TRUTH["emergence"] <= point.high
    assert hits / 200 > 0.92


def test_intervals_cover_the_truth_at_the_nominal_rate() -> None:
    rng = np.random.default_rng(3)
    draws, hits = 400, np.zeros(3)
    for _ in range(draws):
        x = rng.uniform(20, 24, 50)
        group = rng.random(50) < 0.4
        fit = fit_hinge(
            x, _curve(x, group) + rng.normal(scale=0.03, size=50), chance=0.25, group=group
        )
        assert fit.effect is not None
        point, reach = fit.emergence_interval, 2.012  # Student's t with 47 degrees of freedom
        hits += [
            abs(fit.slope.value - TRUTH["slope"]) <= reach * fit.slope.stderr,
            abs(fit.effect.value - TRUTH["effect"]) <= reach * fit.effect.stderr,
            point.low <= TRUTH["emergence"] <= point.high,
        ]
    # 95 % nominal; four binomial standard deviations at 400 draws are 4.4 points
    assert np.all(hits / draws > 0.906), hits / draws
    assert np.all(hits / draws < 0.994), hits / draws


def test_wild_bootstrap_keeps_its_level_where_plain_errors_do_not() -> None:
    rng = np.random.default_rng(4)
    families = np.repeat(np.arange(12), 4)
    group = families % 2 == 0
    draws, plain, wild = 150, 0, 0
    for _ in range(draws):
        x = rng.uniform(20, 24, 48)
        shared = rng.normal(scale=0.05, size=12)[families]  # models of a family resemble each other
        y = 0.25 + 0.2 * np.maximum(0, x - 22) + shared + rng.normal(scale=0.02, size=48)
        names = [str(f) for f in families]
        fit = fit_hinge(x, y, chance=0.25, group=group, families=names, draws=199)
        assert fit.effect is not None
        plain += fit.effect.p < 0.05
        wild += fit.wild_p < 0.05
    assert plain / draws > 0.12  # far too often significant: no group effect was planted
    assert wild / draws < 0.12


def test_lower_is_better_mirrors_higher_is_better() -> None:
    rng = np.random.default_rng(5)
    group = np.arange(50) % 2 == 0
    y = _curve(X, group) + rng.normal(scale=0.02, size=50)
    up = fit_hinge(X, y, chance=0.25, group=group)
    down = fit_hinge(X, 1 - y, chance=0.75, group=group, higher_is_better=False)
    assert up.effect is not None
    assert down.effect is not None
    assert down.emergence.value == pytest.approx(up.emergence.value)
    assert down.effect.value == pytest.approx(-up.effect.value)
    assert down.slope.value == pytest.approx(-up.slope.value)
    assert down.predict(X) == pytest.approx(1 - up.predict(X))


def test_scores_that_never_rise_have_no_point_of_emergence() -> None:
    fit = fit_hinge(X, 0.5 - 0.1 * (X - 20), chance=0.5)
    assert fit.slope.value == 0.0
    assert np.isnan(fit.emergence.value)
    assert to_json_values(fit)["emergence"]["value"] is None


@pytest.mark.parametrize(
    ("y", "group", "message"),
    [
        (np.full(50, np.nan), None, "missing"),
        (X[:10], None, "one value per model"),
        (X, np.ones(50), "one side"),
    ],
)
def test_unusable_data_are_named(y: np.ndarray, group: np.ndarray | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        fit_hinge(X, y, group=group)


def test_too_few_models_are_refused() -> None:
    with pytest.raises(InputError, match="too few"):
        fit_hinge([20.0, 21.0, 22.0], [0.1, 0.2, 0.3])


def test_log_linear_fit_is_least_squares() -> None:
    rng = np.random.default_rng(6)
    y = 0.1 + 0.05 * X + rng.normal(scale=0.01, size=50)
    fit = fit_log_linear(X, y)
    slope, intercept = np.polyfit(X, y, 1)
    assert fit.slope.value == pytest.approx(slope)
    assert fit.intercept.value == pytest.approx(intercept)
    assert fit.r2 == pytest.approx(np.corrcoef(X, y)[0, 1] ** 2)
