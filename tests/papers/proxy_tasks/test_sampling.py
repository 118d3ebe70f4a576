import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from potentia.errors import InputError
from potentia.papers.proxy_tasks.proxies import (
    METRICS,
    correlate_target,
    measure_relevance,
    measure_sampling,
    normalise,
    top_share,
)
from potentia.values.scores import ScoreMatrix


def matrix(values):
    values = np.asarray(values, dtype=float)
    return ScoreMatrix.build(
        [f"m{i}" for i in range(values.shape[0])], [f"t{j}" for j in range(values.shape[1])], values
    )


SMALL = st.tuples(st.integers(5, 9), st.integers(4, 7), st.integers(0, 2**32 - 1), st.booleans())


@settings(max_examples=25, deadline=None)
@given(SMALL)
def test_indices_lie_between_zero_and_one_and_are_one_when_all_models_are_sampled(case):
    models, tasks, seed, coarse = case
    values = np.random.default_rng(seed).normal(size=(models, tasks))
    if coarse:  # ties within columns and among relevances
        values = np.round(values)
    sampling = measure_sampling(
        matrix(values),
        "t0",
        top_count=2,
        configurations=((4, 3), (models, 3)),
        repetitions=3,
        normalisation="none",
        seed=seed,
    )
    for index in sampling.indices:
        for value in (index.baseline, index.sampling):
            assert 0.0 <= value.low <= value.value <= value.high <= 1.0
        if index.n == models:
            assert index.baseline.value == pytest.approx(1.0)
            assert index.sampling.value == pytest.approx(1.0)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=3, max_size=8), st.integers(1, 3))
def test_the_top_holds_exactly_its_size_whatever_the_ties(values, top):
    share = top_share(np.array(values, dtype=float), top)
    assert share.sum() == pytest.approx(top)
    assert ((share >= 0) & (share <= 1)).all()
    equal = np.array(values)[:, None] == np.array(values)[None, :]
    assert np.ptp(np.where(equal, share[None, :], share[:, None]), axis=1).max() == pytest.approx(
        0.0
    )  # order-free


def test_algorithm_one_by_hand():
    """The same samples, relevance by scipy one by one, overlap by sets."""
    rng = np.random.default_rng(5)
    values = rng.normal(size=(12, 6))
    top, n, k, repetitions = 2, 6, 4, 3
    sampling = measure_sampling(
        matrix(values),
        "t0",
        top_count=top,
        configurations=((n, k),),
        repetitions=repetitions,
        normalisation="both",
        seed=9,
    )
    vectors = normalise(values, "both")
    draws = np.random.default_rng(9).permuted(np.tile(np.arange(12), (repetitions * k, 1)), axis=1)[
        :, :n
    ]
    one = {
        "pearson": lambda a, b: stats.pearsonr(a, b).statistic,
        "spearman": lambda a, b: stats.spearmanr(a, b).statistic,
        "kendall": lambda a, b: stats.kendalltau(a, b).statistic,
    }
    for metric in METRICS:

        def best(rows, metric=metric):
            c = np.round([one[metric](vectors[rows, 0], vectors[rows, j]) for j in range(1, 6)], 12)
            return top_share(c, top)

        whole, samples = best(np.arange(12)), [best(d) for d in draws]
        s = np.mean([np.minimum(m, whole).sum() / top for m in samples])
        r = np.mean(
            [
                np.minimum(samples[rep * k + a], samples[rep * k + b]).sum() / top
                for rep in range(repetitions)
                for a in range(k)
                for b in range(a + 1, k)
            ]
        )
        (index,) = (i for i in sampling.indices if i.metric == metric)
        assert index.baseline.value == pytest.approx(s)
        assert index.sampling.value == pytest.approx(r)


def test_normalisation_is_by_task_then_by_model():
    values = np.random.default_rng(0).normal(3, 5, size=(9, 4))
    feature = normalise(values, "feature")
    assert feature.mean(axis=0) == pytest.approx(np.zeros(4), abs=1e-12)
    assert feature.std(axis=0) == pytest.approx(np.ones(4))
    both = normalise(values, "both")
    assert both == pytest.approx(stats.zscore(stats.zscore(values, axis=0), axis=1))
    flat = normalise(np.column_stack([values, np.full(9, 0.25)]), "feature")
    assert flat[:, -1] == pytest.approx(np.zeros(9))


def test_relevance_finds_the_twin_and_turns_lower_is_better_round():
    rng = np.random.default_rng(2)
    values = rng.normal(size=(20, 5))
    values[:, 3] = -values[:, 0]
    chosen, by_metric = measure_relevance(
        ScoreMatrix.build(
            [str(i) for i in range(20)],
            list("abcde"),
            values,
            higher_is_better=[True] * 3 + [False, True],
        ),
        "a",
        normalisation="feature",
    )
    for metric in METRICS:
        assert by_metric[metric][chosen.tasks.index("d") - 1] == pytest.approx(1.0)


def test_relevance_is_scipys_and_uses_whole_rows_only():
    rng = np.random.default_rng(4)
    values = rng.normal(size=(10, 3))
    values[4, 2] = np.nan
    chosen, by_metric = measure_relevance(matrix(values), "t0", normalisation="none")
    assert "m4" not in chosen.models
    rows = np.delete(values, 4, axis=0)
    assert by_metric["kendall"][0] == pytest.approx(
        stats.kendalltau(rows[:, 0], rows[:, 1]).statistic
    )
    assert correlate_target(rows, "pearson") == pytest.approx(np.corrcoef(rows.T)[0, 1:])


def test_bad_sizes_are_named():
    values = matrix(np.random.default_rng(0).normal(size=(6, 4)))
    with pytest.raises(InputError, match="top 9 of 3"):
        measure_sampling(values, "t0", top_count=9, configurations=((4, 3),))
    with pytest.raises(InputError, match="samples of 7 models from 6"):
        measure_sampling(values, "t0", top_count=2, configurations=((7, 3),))
    with pytest.raises(InputError, match="no task 'gsm8k'"):
        measure_sampling(values, "gsm8k", top_count=2)
