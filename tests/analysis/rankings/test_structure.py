"""Components against scikit-learn, aggregate rankings, rank intervals, perplexity and screening."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import kendalltau, rankdata
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler

from potentia.analysis.rankings.aggregate import aggregate_ranks, borda, negative_mean_rank
from potentia.analysis.rankings.components import compute_components, explained_variance
from potentia.analysis.rankings.compute import fit_compute
from potentia.analysis.rankings.perplexity import compare_perplexity
from potentia.analysis.rankings.rank_intervals import rank_intervals, simultaneous_threshold
from potentia.analysis.rankings.screening import screen_tasks
from potentia.analysis.stats.bootstrap import Sampling
from potentia.analysis.stats.standardize import mean_z_scores
from potentia.errors import InputError
from potentia.values.scores import ScoreMatrix


def matrix(values, **more):
    values = np.asarray(values, dtype=float)
    models, tasks = values.shape
    return ScoreMatrix.build(
        [f"m{i}" for i in range(models)], [f"t{j}" for j in range(tasks)], values, **more
    )


def ability(models=15, tasks=6, seed=0, noise=0.3):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(models, 1)) + noise * rng.normal(size=(models, tasks))


# --- components ----------------------------------------------------------------------------------------------------


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_components_equal_scikit_learn(data):
    shape = data.draw(st.tuples(st.integers(3, 10), st.integers(2, 6)))
    values = data.draw(arrays(np.float64, shape, elements=st.integers(0, 20).map(lambda k: k / 20)))
    z = StandardScaler().fit_transform(values)
    found = compute_components(matrix(values), sampling=Sampling(resamples=20))
    if np.allclose(z, 0):
        assert np.isnan(found.explained[0].value)
        return
    fit = PCA().fit(z)
    np.testing.assert_allclose(
        [i.value for i in found.explained], fit.explained_variance_ratio_, atol=1e-9
    )
    first = fit.transform(z)[:, 0]
    share = fit.explained_variance_ratio_
    if len(share) < 2 or share[0] - share[1] > 1e-6:
        np.testing.assert_allclose(np.abs(found.scores[:, 0]), np.abs(first), atol=1e-6)


@given(st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_weights_equal_repeated_models(seed):
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(6, 4))
    draw = rng.multinomial(6, [1 / 6] * 6)
    rows = values[np.repeat(np.arange(6), draw)]
    z = StandardScaler().fit_transform(rows)
    expected = (np.linalg.svd(z, compute_uv=False) ** 2) / (z**2).sum()
    found = explained_variance(values, draw[None].astype(float))[0]
    size = min(len(expected), len(found))
    np.testing.assert_allclose(found[:size], expected[:size], atol=1e-9)


def test_higher_pc1_is_better_also_where_lower_scores_are():
    values = ability()
    found = compute_components(
        matrix(-values, higher_is_better=False), sampling=Sampling(resamples=20)
    )
    assert kendalltau(found.scores[:, 0], values.mean(axis=1)).statistic > 0.8
    assert found.loadings[0].sum() > 0


def test_gaps_are_treated_as_asked():
    values = ability()
    values[0, 0] = np.nan
    gapped = matrix(values)
    assert len(compute_components(gapped, sampling=Sampling(resamples=20)).models) == 14
    assert compute_components(gapped, gaps="tasks", sampling=Sampling(resamples=20)).tasks == (
        "t1",
        "t2",
        "t3",
        "t4",
        "t5",
    )
    filled = compute_components(gapped, gaps="mean", sampling=Sampling(resamples=20))
    assert (len(filled.models), len(filled.tasks)) == (15, 6)
    with pytest.raises(InputError, match="gaps"):
        compute_components(gapped, gaps="magic")
    with pytest.raises(InputError, match="two models"):
        compute_components(matrix([[1.0, np.nan], [0.5, 0.2]]))


def test_compute_fit_finds_the_slope():
    values = np.linspace(-1, 1, 12)[:, None] + np.zeros((12, 3))
    found = compute_components(matrix(values), sampling=Sampling(resamples=20))
    flops = {f"m{i}": 10.0 ** (20 + 0.25 * i) for i in range(12)}
    fit = fit_compute(found, flops, sampling=Sampling(resamples=50))
    per_model = found.pc1["m1"] - found.pc1["m0"]
    assert fit.slope.value == pytest.approx(per_model / 0.25)
    assert fit.r_squared == pytest.approx(1.0)
    assert fit.tau.value == pytest.approx(1.0)
    with pytest.raises(InputError, match="three"):
        fit_compute(found, {"m0": 1e20, "m1": 1e21})


# --- aggregate -----------------------------------------------------------------------------------------------------


def test_aggregates_are_what_they_say():
    values = ability()
    z = StandardScaler().fit_transform(values)
    np.testing.assert_allclose(mean_z_scores(values), z.mean(axis=1))
    np.testing.assert_allclose(-negative_mean_rank(values), rankdata(-values, axis=0).mean(axis=1))
    wins = (values[:, None] > values[None]).sum(axis=(1, 2)) / (14 * 6)
    np.testing.assert_allclose(borda(values), wins)


def test_borda_counts_only_the_models_met():
    values = np.array([[3.0, np.nan], [2.0, 2.0], [np.nan, 1.0]])
    np.testing.assert_allclose(borda(values), [1.0, 0.5, 0.0])


def test_aggregate_ranks():
    found = aggregate_ranks(matrix(ability()))
    assert found.methods == ("PC1", "mean z", "Borda", "mean rank")
    best = ability().mean(axis=1).argmax()
    assert found.models_by("mean z")[0] == f"m{best}"


def test_dropping_a_task_that_decides_changes_the_winner():
    values = np.array([[0.9, 0.50, 0.50], [0.1, 0.52, 0.52], [0.1, 0.40, 0.40]])
    found = aggregate_ranks(matrix(values))
    z = found.methods.index("mean z")
    assert found.models_by("mean z")[0] == "m0"
    assert found.winners[z] == ("m1", "m0", "m0")


def test_aggregate_with_gaps_ranks_everyone_it_can():
    values = ability()
    values[3, 2] = np.nan
    found = aggregate_ranks(matrix(values))
    assert np.isnan(found.ranks[3, 0])
    assert np.isfinite(found.ranks[3, 1:]).all()
    json.dumps(found.to_dict(), allow_nan=False)
    assert aggregate_ranks(matrix([[1.0], [2.0]])).models_by("Borda") == ["m1", "m0"]


# --- rank intervals ------------------------------------------------------------------------------------------------


def test_rank_intervals_count_who_beats_whom():
    found = rank_intervals(matrix([[0.9], [0.52], [0.50], [0.1]], stderr=np.full((4, 1), 0.02)))
    np.testing.assert_array_equal(found.best[:, 0], [1, 2, 2, 4])
    np.testing.assert_array_equal(found.worst[:, 0], [1, 3, 3, 4])


def test_simultaneous_intervals_are_wider_and_hold_together():
    rng = np.random.default_rng(0)
    truth = np.linspace(0.4, 0.6, 8)
    stderr = np.full((8, 1), 0.03)
    true_rank = rankdata(-truth)
    apart = together = 0
    for seed in range(120):
        scores = matrix(rng.normal(truth, 0.03)[:, None], stderr=stderr)
        one, all_ = (rank_intervals(scores, simultaneous=s, seed=seed) for s in (False, True))
        assert (all_.best <= one.best).all()
        assert (all_.worst >= one.worst).all()
        apart += ((one.best[:, 0] <= true_rank) & (true_rank <= one.worst[:, 0])).all()
        together += ((all_.best[:, 0] <= true_rank) & (true_rank <= all_.worst[:, 0])).all()
    assert together >= 110
    assert together >= apart


def test_the_simultaneous_threshold_is_the_studentised_range():
    from scipy.stats import studentized_range

    found = simultaneous_threshold(
        np.diag(np.full(6, 0.01)), 0.95, np.random.default_rng(0), simulations=40_000
    )
    assert found == pytest.approx(studentized_range.ppf(0.95, 6, np.inf) / np.sqrt(2), abs=0.02)


def test_shared_documents_make_rank_intervals_narrower():
    hard = (np.arange(400) + 0.5) / 400
    right = {
        f"m{k}": (hard < p).astype(float) for k, p in enumerate((0.64, 0.60, 0.56))
    }  # the same documents fall
    values = np.array([[v.mean()] for v in right.values()])
    given = matrix(values, stderr=np.sqrt(values * (1 - values) / 399))
    items = {"t0": {m: dict(enumerate(v.tolist())) for m, v in right.items()}}
    apart, paired = (rank_intervals(given, i, simultaneous=True) for i in (None, items))
    assert (apart.worst - apart.best).sum() > 0
    np.testing.assert_array_equal(paired.best[:, 0], [1, 2, 3])
    np.testing.assert_array_equal(paired.worst[:, 0], [1, 2, 3])


def test_rank_intervals_need_errors_and_skip_gaps():
    with pytest.raises(InputError, match="standard errors"):
        rank_intervals(matrix([[0.5], [0.6]]))
    gapped = rank_intervals(matrix([[0.5], [np.nan], [0.9]], stderr=np.full((3, 1), 0.01)))
    np.testing.assert_array_equal(gapped.rank[:, 0], [2, np.nan, 1])


# --- perplexity ----------------------------------------------------------------------------------------------------


def test_perplexity_agreement_is_signed_so_that_one_means_alike():
    level = np.linspace(0, 1, 10)
    bits = ScoreMatrix.build(
        [f"m{i}" for i in range(10)],
        ["wiki", "arxiv"],
        np.stack([2 - level, 3 - level], 1),
        higher_is_better=False,
    )
    found = compare_perplexity(
        bits, matrix(np.stack([level, level**2], 1)), sampling=Sampling(resamples=20)
    )
    np.testing.assert_allclose(found.matrix, 1.0)
    assert (found.mean.value, found.corpora_mean.value, found.averages.value) == pytest.approx(
        (1.0, 1.0, 1.0)
    )


def test_perplexity_of_a_group_and_of_partly_scored_models():
    rng = np.random.default_rng(0)
    bits = rng.random((10, 2))
    bits[0] = np.nan
    bits[1, 0] = np.nan
    names = [f"m{i}" for i in range(10)]
    corpora = ScoreMatrix.build(names, ["wiki", "arxiv"], bits, higher_is_better=False)
    tasks = matrix(rng.random((10, 3)))
    found = compare_perplexity(corpora, tasks, sampling=Sampling(resamples=20))
    assert found.models == 9
    assert found.matrix[0, 0] == pytest.approx(
        kendalltau(-bits[2:, 0], tasks.values[2:, 0]).statistic
    )
    averages = kendalltau(-bits[2:].mean(axis=1), tasks.values[2:].mean(axis=1)).statistic
    assert found.averages.value == pytest.approx(averages)
    assert (
        compare_perplexity(
            corpora, tasks, models={"m3", "m4", "m5"}, group="base", sampling=Sampling(resamples=20)
        ).models
        == 3
    )
    with pytest.raises(InputError, match="both a perplexity and a score"):
        compare_perplexity(corpora, tasks, models={"m0"})


# --- screening -----------------------------------------------------------------------------------------------------


def screened(direct, tuned, **more):
    errors = np.full(np.shape(direct), 0.01)
    return screen_tasks(
        matrix(direct, stderr=errors),
        matrix(tuned, stderr=errors, protocol="train_before_test"),
        **more,
    )


def reasons(screening, task):
    return {f.reason for f in screening.flags if f.task == task}


def test_each_flag_has_its_evidence():
    level = np.linspace(0.2, 0.8, 12)
    direct = np.stack([level, level + 0.01, 1 - level, level, np.full(12, 0.4), level], axis=1)
    tuned = direct + 0.05
    tuned[:4, 3] = direct[:4, 3]  # a third of the models no better
    tuned[:, 4] = 0.5 + level / 1000  # nothing to tell apart
    tuned[:, 5] = 0.98 + level / 100
    found = screened(direct, tuned, train_examples={"t0": 500, "t1": 5000})
    assert reasons(found, "t0") == {"few training examples"}
    assert reasons(found, "t1") == set()
    assert "ranks against the others" in reasons(found, "t2")
    assert reasons(found, "t3") == {"no improvement after tuning"}
    assert "models hardly differ" in reasons(found, "t4")
    assert "ceiling" in reasons(found, "t5")
    assert all(f.evidence and f.suggestion for f in found.flags)
    assert found.flagged_tasks == ("t0", "t2", "t3", "t4", "t5")


@pytest.mark.parametrize("seed", range(3))
def test_a_task_of_pure_noise_is_flagged(seed):
    rng = np.random.default_rng(seed)
    values = np.linspace(0.3, 0.8, 20)[:, None] + 0.05 * rng.normal(size=(20, 6))
    values[:, 2] = rng.uniform(0.3, 0.8, 20)
    flags = [
        f.task
        for f in screen_tasks(matrix(values, stderr=np.full(values.shape, 0.01))).flags
        if f.reason == "does not rank as the others"
    ]
    assert flags == ["t2"]


def test_floor_is_chance_or_nothing_right():
    direct = np.full((6, 2), 0.25)
    direct[:, 1] = np.linspace(0.3, 0.9, 6)
    found = screened(direct, direct + 0.001, chance={"t0": 0.25, "t1": 0.25})
    assert "floor" in reasons(found, "t0")
    assert "floor" not in reasons(found, "t1")
    hard = np.array([[0.0, 0.5], [0.001, 0.6], [0.002, 0.7], [0.3, 0.8]])
    assert "floor" in reasons(screened(hard, hard + 0.001), "t0")


def test_screening_without_tuned_scores_or_errors():
    found = screen_tasks(matrix(ability()))
    assert np.isnan(found.not_improved).all()
    assert np.isnan(found.resolved).all()
    assert found.tables()


def test_many_tasks_are_screened():
    """Answers of many tasks are kept for all who ask, and nobody may write on them."""
    values = np.random.default_rng(0).random((90, 95))
    matrix = ScoreMatrix.build(
        [f"m{k}" for k in range(90)], [f"t{k}" for k in range(95)], values, protocol="direct"
    )
    assert len(screen_tasks(matrix).tables()) > 0
    assert screen_tasks(matrix).to_dict() == screen_tasks(matrix).to_dict()
