"""Agreement, its groups and its intervals."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kendalltau

from potentia.analysis.rankings.agreement import SIGNIFICANT, compare_agreement, measure_agreement
from potentia.analysis.rankings.groups import (
    agreement_by_models,
    agreement_by_tasks,
    name_size_bins,
    sort_size_bins,
)
from potentia.analysis.stats.bootstrap import (
    ResamplingUnits,
    Sampling,
    draw_row_counts,
    mean_over_pairs,
    percentile_interval,
    redraw_scores,
)
from potentia.analysis.stats.correlation import kendall_matrix
from potentia.analysis.stats.significance import estimate_test_sizes, tau_b_matrix
from potentia.errors import InputError
from potentia.values.findings import Interval
from potentia.values.protocol import Protocol
from potentia.values.scores import ScoreMatrix


def scores(models=20, tasks=5, *, signal=1.0, seed=0, stderr=0.02, protocol="direct", **more):
    rng = np.random.default_rng(seed)
    ability = rng.normal(size=(models, 1)) * signal
    values = ability + rng.normal(size=(models, tasks))
    return ScoreMatrix.build(
        [f"m{i}" for i in range(models)],
        [f"t{j}" for j in range(tasks)],
        values,
        stderr=np.full(values.shape, stderr),
        protocol=protocol,
        **more,
    )


def test_means_are_the_plain_means_of_tau():
    matrix = scores()
    agreement = measure_agreement(matrix, sampling=Sampling(resamples=50))
    taus = np.array(
        [[kendalltau(a, b).statistic for b in matrix.values.T] for a in matrix.values.T]
    )
    off = taus[~np.eye(5, dtype=bool)]
    assert agreement.mean == pytest.approx(off.mean())
    for k in range(5):
        assert agreement.per_task[k].value == pytest.approx(np.delete(taus[k], k).mean())


def test_categories_average_distinct_pairs_in_the_order_of_the_mapping():
    matrix = scores(tasks=4)
    agreement = measure_agreement(
        matrix,
        categories={"t3": "B", "t0": "A", "t1": "A", "t9": "C"},
        sampling=Sampling(resamples=20),
    )
    assert agreement.categories == ("B", "A")
    assert np.isnan(agreement.by_category[0, 0])  # a single task has no pair within
    assert agreement.by_category[1, 1] == pytest.approx(agreement.matrix[0, 1])
    assert agreement.by_category[0, 1] == pytest.approx(agreement.matrix[3, [0, 1]].mean())


def test_intervals_hold_the_estimate_and_shrink_with_models():
    of_few_models, of_many_models = (
        measure_agreement(scores(models=n), sampling=Sampling(resamples=300)) for n in (12, 120)
    )
    for agreement in (of_few_models, of_many_models):
        assert set(agreement.intervals) == {"models", "tasks", "noise"}
        for i in agreement.intervals.values():
            assert i.low <= agreement.mean <= i.high
    width = [
        f.intervals["models"].high - f.intervals["models"].low
        for f in (of_few_models, of_many_models)
    ]
    assert width[1] < width[0] / 2


def test_the_interval_over_models_covers_the_true_agreement():
    """Tau of two noisy copies of one ability is known from many models; intervals from 40 must mostly hold it."""
    truth = float(mean_over_pairs(kendall_matrix(scores(models=3000, tasks=3, seed=99).values)))
    hits = 0
    for seed in range(60):
        i = measure_agreement(
            scores(models=40, tasks=3, seed=seed), sampling=Sampling(resamples=200, seed=seed)
        ).intervals["models"]
        hits += i.low <= truth <= i.high
    assert hits >= 51


def test_no_noise_interval_without_standard_errors():
    assert (
        "noise"
        not in measure_agreement(scores(stderr=np.nan), sampling=Sampling(resamples=20)).intervals
    )


def test_the_same_seed_gives_the_same_finding():
    first, second = (
        json.dumps(measure_agreement(scores(), sampling=Sampling(resamples=30, seed=4)).to_dict())
        for _ in range(2)
    )
    assert first == second
    assert (
        json.dumps(measure_agreement(scores(), sampling=Sampling(resamples=30, seed=5)).to_dict())
        != first
    )


def test_change_between_protocols():
    before, after = scores(signal=0.5), scores(signal=3.0, protocol="train_before_test")
    agreement = compare_agreement(before, after, sampling=Sampling(resamples=200))
    assert agreement.mean_after > agreement.mean_before
    assert agreement.difference["models"].low > 0
    assert agreement.pairs == 10
    assert agreement.pairs_improved == 10
    tau = [measure_agreement(m, sampling=Sampling(resamples=20)).matrix for m in (before, after)]
    assert agreement.per_task_difference[0].value == pytest.approx(
        tau[1][0, 1:].mean() - tau[0][0, 1:].mean()
    )


def test_change_uses_only_what_both_have():
    before, after = (
        scores(),
        scores(models=22, tasks=6, protocol="tuned").select(tasks=["t5", "t1", "t0"]),
    )
    agreement = compare_agreement(before, after, sampling=Sampling(resamples=20))
    assert agreement.tasks == ("t0", "t1")
    assert agreement.models == 20
    with pytest.raises(InputError, match="in common"):
        compare_agreement(before, ScoreMatrix.build(["x"], ["y"], [[1.0]]))


@pytest.mark.parametrize(("models", "tasks"), [(2, 1), (2, 2), (1, 3), (3, 1)])
def test_tiny_matrices_do_not_fail(models, tasks):
    agreement = measure_agreement(
        scores(models=models, tasks=tasks), sampling=Sampling(resamples=20)
    )
    json.dumps(agreement.to_dict(), allow_nan=False)
    assert agreement.tables()
    assert agreement.charts()


def test_gaps_are_pairwise():
    matrix = scores()
    matrix.values[0, 0] = np.nan
    tau = measure_agreement(matrix, sampling=Sampling(resamples=20)).matrix
    assert tau[0, 1] == pytest.approx(
        kendalltau(matrix.values[1:, 0], matrix.values[1:, 1]).statistic
    )
    assert tau[1, 2] == pytest.approx(
        kendalltau(matrix.values[:, 1], matrix.values[:, 2]).statistic
    )


def test_unknown_measure():
    with pytest.raises(InputError, match="no correlation"):
        measure_agreement(scores(), method="cosine")


def test_groups_of_models():
    matrix = scores(models=12)
    groups = {f"m{i}": "ab"[i % 2] if i < 10 else "c" for i in range(12)}
    models = agreement_by_models(
        [matrix], groups, grouping="family", at_least=3, sampling=Sampling(resamples=20)
    )
    assert models.groups == ("a", "b", "all")
    assert models.model_counts == (5, 5, 12)
    expected = measure_agreement(
        matrix.select(models=[f"m{i}" for i in range(0, 10, 2)]), sampling=Sampling(resamples=20)
    ).mean
    assert models.means[0][0].value == pytest.approx(expected)


def test_groups_of_tasks():
    matrix = scores()
    tasks = agreement_by_tasks(
        [matrix],
        {"large": ["t0", "t2"], "one": ["t1"]},
        grouping="size",
        sampling=Sampling(resamples=20),
    )
    assert tasks.groups == ("large", "all")
    assert tasks.means[0][0].value == pytest.approx(
        kendalltau(matrix.values[:, 0], matrix.values[:, 2]).statistic
    )


def test_size_bins_are_half_open_and_in_order():
    bins = name_size_bins({"a": 0.5, "b": 1.0, "c": 12.0, "d": float("nan")})
    assert bins == {"a": "[0, 1)", "b": "[1, 2)", "c": "[12, 13)"}
    assert sort_size_bins(bins.values()) == ["[0, 1)", "[1, 2)", "[12, 13)"]


def test_items_per_task_from_errors_or_as_stored():
    rng = np.random.default_rng(0)
    accuracy = rng.uniform(0.3, 0.9, size=(10, 2))
    stderr = np.sqrt(accuracy * (1 - accuracy) / (500 - 1))
    stderr[:, 1] *= rng.uniform(0.5, 1.5, 10)  # no mean of zeros and ones has such errors
    names = [f"m{i}" for i in range(10)]
    assert estimate_test_sizes(
        ScoreMatrix.build(names, ["acc", "mcc"], accuracy, stderr=stderr)
    ) == {"acc": 500.0}
    stored = ScoreMatrix.build(
        names, ["acc", "mcc"], accuracy, stderr=stderr, n=np.full((10, 2), 123)
    )
    assert estimate_test_sizes(stored) == {"acc": 123.0, "mcc": 123.0}


# --- resampling ----------------------------------------------------------------------------------------------------


@given(st.integers(1, 30), st.integers(1, 10))
@settings(max_examples=20, deadline=None)
def test_draws_keep_the_number_of_rows(rows, resamples):
    draws = draw_row_counts(rows, resamples, np.random.default_rng(0))
    assert draws.shape == (resamples, rows)
    assert (draws.sum(axis=1) == rows).all()


def test_pair_mean_under_draws_is_the_mean_of_the_drawn_pairs():
    rng = np.random.default_rng(0)
    tau = rng.normal(size=(4, 4))
    tau = tau + tau.T
    drawn = [0, 0, 2, 3]
    pairs = [tau[a, b] for i, a in enumerate(drawn) for b in drawn[i + 1 :] if a != b]
    assert mean_over_pairs(tau, np.bincount(drawn, minlength=4)[None])[0] == pytest.approx(
        np.mean(pairs)
    )


def test_noise_has_the_size_of_the_errors_and_the_items():
    rng = np.random.default_rng(0)
    items = (rng.random((6, 400)) < 0.7).astype(float)
    stderr = items.std(axis=1, ddof=1) / np.sqrt(400)
    matrix = ScoreMatrix.build(
        [f"m{i}" for i in range(6)], ["t"], items.mean(axis=1), stderr=stderr
    )
    by_error = redraw_scores(matrix, {}, 4000, np.random.default_rng(1))[:, :, 0]
    by_items = redraw_scores(matrix, {"t": items}, 4000, np.random.default_rng(1))[:, :, 0]
    np.testing.assert_allclose(by_error.std(axis=0), stderr, rtol=0.08)
    np.testing.assert_allclose(by_items.std(axis=0), stderr, rtol=0.08)
    np.testing.assert_allclose(by_items.mean(axis=0), matrix.values[:, 0], atol=0.002)
    # The same items are drawn for all models: two equal models stay equal.
    twins = redraw_scores(
        ScoreMatrix.build(["a", "b"], ["t"], [0.7, 0.7]),
        {"t": items[[0, 0]]},
        50,
        np.random.default_rng(2),
    )
    np.testing.assert_allclose(twins[:, 0], twins[:, 1])


def test_centred_intervals_keep_their_width():
    draws = np.linspace(0.0, 1.0, 1001)
    plain, centred = percentile_interval(0.9, draws), percentile_interval(0.9, draws, centred=True)
    assert (plain.low, plain.high) == pytest.approx((0.025, 0.975))
    assert (centred.low, centred.high) == pytest.approx((0.425, 1.375))
    nothing = percentile_interval(0.9, [np.nan])
    assert np.isnan(nothing.low)


def copied(copies, *, families=8, tasks=6, seed=0):
    """Families whose models are alike but for a little: each adds models, and hardly any evidence."""
    rng = np.random.default_rng(seed)
    skill = rng.normal(size=(families, 1)) + rng.normal(size=(families, tasks))
    values = np.repeat(skill, copies, axis=0) + rng.normal(size=(families * copies, tasks)) * 0.01
    names = [f"f{f}-{c}" for f in range(families) for c in range(copies)]
    return ScoreMatrix.build(names, [f"t{j}" for j in range(tasks)], values), {
        n: n.partition("-")[0] for n in names
    }


def test_models_of_one_family_count_as_one_and_the_interval_says_so():
    def width(agreement):
        return agreement.high - agreement.low

    alone = measure_agreement(copied(1)[0], sampling=Sampling(resamples=400)).interval
    matrix, families = copied(6)
    agreement = measure_agreement(
        matrix, sampling=Sampling(units=ResamplingUnits("families", families), resamples=400)
    )
    assert agreement.resampled_unit == "families"
    assert set(agreement.intervals) == {"families", "models", "tasks"}
    assert width(agreement.intervals["models"]) < 0.6 * width(
        agreement.interval
    )  # 48 models feign evidence
    assert width(agreement.interval) == pytest.approx(
        width(alone), rel=0.35
    )  # there are eight independent ones
    assert "bootstrap over families" in str(agreement.tables()[1].note)
    change = compare_agreement(
        matrix, matrix, sampling=Sampling(units=ResamplingUnits("families", families), resamples=20)
    )
    assert change.resampled_unit == "families"
    assert change.interval.value == 0


@pytest.mark.parametrize(
    "families", [{}, {"m0": "a", "m1": "a"}, dict.fromkeys([f"m{i}" for i in range(20)], "a")]
)
def test_where_families_say_nothing_models_are_drawn(families):
    agreement = measure_agreement(
        scores(), sampling=Sampling(units=ResamplingUnits("families", families), resamples=20)
    )
    assert agreement.resampled_unit == ("families" if len(families) == 2 else "models")


def test_tau_b_counts_insignificant_differences_as_ties_by_task_and_category():
    matrix = scores(models=12, tasks=4, stderr=0.6)
    agreement = measure_agreement(
        matrix,
        method=SIGNIFICANT,
        categories={"t0": "A", "t1": "A", "t2": "B"},
        sampling=Sampling(resamples=20),
    )
    whole = tau_b_matrix(matrix)
    assert agreement.mean == pytest.approx(whole[np.triu_indices(4, 1)].mean())
    assert agreement.mean != pytest.approx(
        measure_agreement(matrix, sampling=Sampling(resamples=20)).mean
    )
    assert agreement.per_task[0].value == pytest.approx(np.delete(whole[0], 0).mean())
    assert agreement.by_category[0, 0] == pytest.approx(whole[0, 1])
    assert {c.name for c in agreement.charts()} == {
        "agreement-direct-tau_b",
        "categories-direct-tau_b",
    }


@pytest.mark.parametrize("models", [8, 20])
def test_a_wider_spread_is_not_said_to_be_more_agreement(models: int) -> None:
    """Every task ranks alike before and after; raw τ rises because models are further apart than the noise."""
    from potentia.analysis.rankings.sentences import agreement_sentence

    claims = 0
    rises = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        skill = rng.normal(size=models)
        matrices = []
        for protocol, spread in (("direct", 0.015), ("train_before_test", 0.08)):
            truth = np.clip(0.5 + spread * skill[:, None] + np.zeros((models, 10)), 0.05, 0.95)
            values = rng.binomial(1000, truth) / 1000
            errors = np.sqrt(values * (1 - values) / 999)
            names = [f"m{k}" for k in range(models)]
            tasks = [f"t{k}" for k in range(10)]
            matrices.append(
                ScoreMatrix.build(names, tasks, values, stderr=errors, protocol=protocol)
            )
        change = compare_agreement(*matrices, sampling=Sampling(resamples=200))
        rises += change.interval.low > 0
        claims += "agree more on" in (agreement_sentence(change, None) or "")
    assert rises >= 10
    assert claims <= 2


def test_noise_is_taken_out_of_agreement() -> None:
    """τ of noisy scores, corrected, is that of the scores without noise."""
    from potentia.analysis.stats.reliability import (
        correlate_without_noise,
        measure_reliability,
        tau_of_correlation,
    )

    rng = np.random.default_rng(0)
    truth = 0.9 * rng.normal(size=(4000, 1)) + np.sqrt(1 - 0.81) * rng.normal(size=(4000, 2))
    noisy = truth + rng.normal(size=truth.shape)
    clean_tau = kendalltau(*truth.T).statistic
    tau = kendalltau(*noisy.T).statistic
    reliability = measure_reliability(noisy, np.ones(noisy.shape))
    assert reliability == pytest.approx([0.5, 0.5], abs=0.03)
    corrected = tau_of_correlation(correlate_without_noise(tau, reliability))
    assert corrected == pytest.approx(clean_tau, abs=0.04)
    assert tau < clean_tau - 0.2


@pytest.mark.parametrize(("models", "tasks"), [(8, 6), (20, 12)])
def test_without_noise_tasks_agree_no_less(models: int, tasks: int) -> None:
    """Noise lowers agreement, but "without test noise it would be" less than measured in half of such studies."""
    errors = []
    for seed in range(30):
        rng = np.random.default_rng(seed)
        skill = rng.normal(size=(models, 1))
        own = rng.normal(size=(models, tasks))
        level = rng.uniform(0.4, 0.6, tasks)
        matrices = []
        true_taus = []
        for protocol, loading in (("direct", 0.5), ("train_before_test", 0.85)):
            truth = level + 0.08 * (loading * skill + np.sqrt(1 - loading**2) * own)
            true_scores = ScoreMatrix.build(
                [f"m{k}" for k in range(models)], [f"t{k}" for k in range(tasks)], truth
            )
            true_taus.append(measure_agreement(true_scores, sampling=Sampling(resamples=2)).mean)
            values = rng.binomial(2000, np.clip(truth, 0.03, 0.97)) / 2000
            matrices.append(
                ScoreMatrix.build(
                    true_scores.models,
                    true_scores.tasks,
                    values,
                    stderr=np.sqrt(values * (1 - values) / 1999),
                    metrics=["acc"] * tasks,
                    protocol=protocol,
                )
            )
        change = compare_agreement(*matrices, sampling=Sampling(resamples=50))
        for mean, corrected in (
            (change.mean_before, change.corrected_before),
            (change.mean_after, change.corrected_after),
        ):
            assert corrected >= mean - 1e-9 or mean < 0
        errors.append((change.corrected_before, change.corrected_after) - np.array(true_taus))
    assert np.abs(np.mean(errors, axis=0)).max() < 0.03


def test_errors_that_are_too_small_do_not_make_tasks_agree_more() -> None:
    """With halved errors, models that are merely further apart "agreed more" in nine of ten studies."""
    claims = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        skill = np.linspace(-1.5, 1.5, 12)[:, None]
        matrices = []
        for protocol, spread in (("direct", 0.02), ("train_before_test", 0.08)):
            values = rng.binomial(300, 0.5 + spread * np.tile(skill, 8)) / 300
            matrices.append(
                ScoreMatrix.build(
                    [f"m{k}" for k in range(12)],
                    [f"t{k}" for k in range(8)],
                    values,
                    stderr=np.sqrt(values * (1 - values) / 299) / 2,
                    n=np.full(values.shape, 300),
                    metrics=["acc"] * 8,
                    protocol=protocol,
                )
            )
        claims += compare_agreement(*matrices, sampling=Sampling(resamples=200)).direction != 0
    assert claims <= 2


def test_tasks_of_one_benchmark_are_drawn_together():
    """Twelve subsets agree with each other and three tasks with nothing: that is one benchmark of four."""
    rng = np.random.default_rng(0)
    skill = rng.normal(size=(40, 1))
    subsets = skill + 0.2 * rng.normal(size=(40, 12))
    others = rng.normal(size=(40, 3))
    names = [f"law_{letter}" for letter in "abcdefghijkl"]
    models = [f"m{row}" for row in range(40)]
    matrix = ScoreMatrix.build(models, [*names, "x", "y", "z"], np.hstack([subsets, others]))
    apart = {task: task for task in matrix.tasks}
    together = measure_agreement(matrix).intervals["tasks"]
    alone = measure_agreement(matrix, task_groups=apart).intervals["tasks"]
    assert together.value == alone.value
    assert together.high - together.low > 1.3 * (alone.high - alone.low)
    assert together.low < 0.1 < alone.low


def test_the_interval_over_few_tasks_covers_what_other_tasks_would_have():
    """The percentile bootstrap of four tasks covered it in 52 of these 60 studies where 95 % are said."""
    rng = np.random.default_rng(1)
    models = [f"m{row}" for row in range(25)]
    covered = 0
    studies = 60
    for _ in range(studies):
        loadings = rng.uniform(0.1, 0.9, 4)
        # Over tasks like these the mean correlation of two is 0.25, so mean τ is 2/π · asin(0.25) or near it.
        values = loadings * rng.normal(size=(25, 1))
        values = values + np.sqrt(1 - loadings**2) * rng.normal(size=(25, 4))
        agreement = measure_agreement(
            ScoreMatrix.build(models, ["xxx", "yyy", "zzz", "www"], values),
            sampling=Sampling(resamples=200),
        )
        interval = agreement.intervals["tasks"]
        covered += interval.low <= 0.162 <= interval.high
    assert covered >= 54


def test_a_change_that_is_open_names_the_interval_that_leaves_it_open():
    """ "It is open … 95 % interval over families 0.16 to 0.87" was said of a change whose other interval held zero."""
    from potentia.analysis.rankings.agreement import AgreementChange
    from potentia.analysis.rankings.sentences import agreement_sentence

    def say(models: Interval, corrected: Interval) -> str:
        change = AgreementChange(
            before=Protocol("direct"),
            after=Protocol("train_before_test"),
            method="tau",
            models=8,
            tasks=("a", "b", "c"),
            mean_before=0.19,
            mean_after=0.58,
            difference={"families": Interval(0.39, 0.16, 0.87, 0.95), "models": models},
            pairs_improved=3,
            pairs=3,
            per_task_before=(0.1, 0.2, 0.3),
            per_task_after=(0.5, 0.6, 0.7),
            per_task_difference=(),
            resampled_unit="families",
            corrected_before=0.18,
            corrected_after=0.52,
            corrected_difference=corrected,
        )
        return agreement_sentence(change, None) or ""

    certain = Interval(0.4, 0.2, 0.6, 0.95)
    open_ = Interval(0.4, -0.02, 1.11, 0.95)
    assert say(certain, certain).startswith("The tasks agree more on the ranking")
    assert "that difference is -0.02 to 1.11." in say(certain, open_)
    assert "but over models the interval is -0.02 to 1.11;" in say(open_, certain)


def test_three_models_claim_no_certainty_about_other_models_or_tasks():
    """τ of 1.000 came with the interval 1.000 to 1.000, and "corrected" values lay outside their own interval."""
    ordered = np.linspace(0.3, 0.7, 3)[:, None] + np.zeros((3, 2))

    def build(protocol: str, stderr: float) -> ScoreMatrix:
        errors = np.full(ordered.shape, stderr)
        return ScoreMatrix.build(
            ["a", "b", "c"], ["t", "u"], ordered, stderr=errors, protocol=protocol
        )

    before = build("direct", 0.05)
    after = build("train_before_test", 0.02)
    agreement = measure_agreement(before, sampling=Sampling(resamples=100))
    assert agreement.mean == pytest.approx(1.0)
    for source in ("models", "tasks"):
        assert np.isnan(agreement.intervals[source].low)
        assert np.isnan(agreement.intervals[source].high)
    change = compare_agreement(before, after, sampling=Sampling(resamples=100))
    assert np.isnan(change.difference["tasks"].low)
    assert np.isnan(change.corrected_difference.value)
    assert "Corrected for test noise" not in change.tables()[0].note


def test_many_models_have_their_agreement_corrected_unless_it_is_cut_off():
    sampling = Sampling(resamples=100)
    before = scores(models=30, seed=1, signal=1.0, stderr=0.3)
    after = scores(models=30, seed=2, signal=2.0, stderr=0.3, protocol="train_before_test")
    change = compare_agreement(before, after, sampling=sampling)
    assert "Corrected for test noise" in change.tables()[0].note
    cut = replace(change, corrected_before=1.0, corrected_after=1.0)
    assert "Corrected for test noise" not in cut.tables()[0].note
    outside = replace(change, corrected_difference=Interval(-0.03, 0.0, 0.1))
    assert "Corrected for test noise" not in outside.tables()[0].note
