"""The train-before-test paper's numbers, typed from its text and tables, from the scores published with it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from potentia.errors import InputError
from potentia.papers.train_before_test.reproduction import reproduce_train_before_test
from score_files import read_scores

# Table 5: zero-shot direct evaluation, train-before-test.
TABLE_5 = {
    "nq_open": (0.23, 0.74),
    "mrpc": (0.34, 0.71),
    "wic": (0.39, 0.75),
    "qnli": (0.43, 0.74),
    "qqp": (0.43, 0.77),
    "cola": (0.45, 0.73),
    "sciq": (0.47, 0.71),
    "sst2": (0.50, 0.65),
    "gsm8k": (0.51, 0.70),
    "anli_r1": (0.54, 0.78),
    "medmcqa": (0.55, 0.75),
    "rte": (0.55, 0.74),
    "headqa_en": (0.55, 0.77),
    "arc_easy": (0.55, 0.80),
    "mnli": (0.56, 0.80),
    "piqa": (0.56, 0.78),
    "winogrande": (0.58, 0.80),
    "commonsense_qa": (0.58, 0.72),
    "social_iqa": (0.60, 0.73),
    "arc_challenge": (0.61, 0.81),
    "hellaswag": (0.61, 0.81),
    "mathqa": (0.61, 0.76),
    "openbookqa": (0.61, 0.78),
    "boolq": (0.61, 0.80),
}
TABLE_6 = {
    "[0, 1)": (0.38, 0.65),
    "[1, 2)": (0.53, 0.56),
    "[2, 3)": (0.45, 0.70),
    "[6, 7)": (0.34, 0.42),
    "[7, 8)": (0.19, 0.28),
    "[9, 10)": (0.15, 0.43),
    "all": (0.52, 0.76),
}
TABLE_8 = {
    " llama": ((69, 21, 4, 3, 2), (90, 4, 3, 1, 1)),
    " pythia": ((61, 12, 9, 8, 6), (89, 8, 2, 1, 1)),
    " qwen": ((74, 9, 5, 3, 3), (93, 2, 1, 1, 1)),
    " gemma": ((58, 27, 6, 4, 2), (92, 3, 2, 2, 1)),
    " yi": ((48, 21, 12, 10, 6), (67, 17, 7, 5, 3)),
    "": ((70, 13, 4, 3, 2), (86, 7, 2, 1, 1)),
}
SIDES = ("direct", "train_before_test")


@pytest.fixture(scope="module")
def scores(shared_data):
    return read_scores(shared_data / "published" / "train_before_test_scores.csv")


@pytest.fixture(scope="module")
def reproduction(scores):
    return reproduce_train_before_test(scores, resamples=50)


@pytest.fixture(scope="module")
def findings(reproduction):
    return reproduction.findings


def test_mean_agreement_and_improved_pairs(findings):
    change = findings["change"]
    assert (round(change.mean_before, 2), round(change.mean_after, 2)) == (0.52, 0.76)
    assert (change.pairs_improved, change.pairs) == (274, 276)


@pytest.mark.parametrize("task", TABLE_5)
def test_table_5(findings, task):
    for protocol, expected in zip(SIDES, TABLE_5[task], strict=True):
        finding = findings[f"agreement {protocol}"]
        assert round(finding.per_task[finding.tasks.index(task)].value, 2) == expected


@pytest.mark.parametrize("size", TABLE_6)
def test_table_6(findings, size):
    grouped = findings["by size"]
    means = grouped.means[grouped.groups.index(size)]
    assert tuple(round(m.value, 2) for m in means) == TABLE_6[size]


def test_table_6_has_the_same_bins(findings):
    assert findings["by size"].groups == tuple(TABLE_6)


@pytest.mark.parametrize("family", TABLE_8)
def test_table_8(findings, family):
    for protocol, expected in zip(SIDES, TABLE_8[family], strict=True):
        explained = findings[f"components {protocol}{family}"].explained
        assert tuple(round(100 * i.value) for i in explained[:5]) == expected


def test_figure_3_within_categories(findings):
    for category, expected in {"LU": (0.54, 0.75), "Math": (0.55, 0.84)}.items():
        for protocol, value in zip(SIDES, expected, strict=True):
            finding = findings[f"agreement {protocol}"]
            k = finding.categories.index(category)
            assert round(float(finding.by_category[k, k]), 2) == value


def test_figure_3_improves_in_all_instances(findings):
    before, after = (findings[f"agreement {p}"].by_category for p in SIDES)
    assert before.shape == (6, 6)
    assert (after > before).all()


def test_perplexity(findings):
    both = [findings[f"perplexity {p}"] for p in SIDES]
    assert [round(f.corpora_mean.value, 2) for f in both] == [0.76, 0.78]
    assert [round(f.mean.value, 2) for f in both] == [0.48, 0.74]
    assert [round(f.averages.value, 2) for f in both] == [0.55, 0.84]
    assert [f.models for f in both] == [53, 53]


def test_perplexity_before_tuning_against_tasks_after(findings):
    assert round(findings["perplexity base"].mean.value, 2) == 0.78
    assert round(findings["perplexity instruct"].mean.value, 2) == 0.51


def test_first_five_components(findings):
    sums = [sum(i.value for i in findings[f"components {p}"].explained[:5]) for p in SIDES]
    assert [round(s, 2) for s in sums] == [0.91, 0.97]


def test_large_test_sets(findings):
    grouped = findings["large tests"]
    direct, tuned = (m.value for m in grouped.means[0])
    assert grouped.task_counts[0] == 10
    assert round(tuned, 2) == 0.80
    # The paper prints 0.51. Its published scores give 0.5047, three units short in the fourth digit.
    assert direct == pytest.approx(0.51, abs=0.0055)


def test_tau_b_is_the_papers_definition_and_not_its_number(findings, reproduction):
    # The paper prints 0.58 and 0.77; its definition on its published scores gives these.
    means = [findings[f"tau-b {p}"].mean for p in SIDES]
    assert [round(m, 2) for m in means] == [0.57, 0.80]
    printed = [(c.paper, round(c.ours, 2)) for c in reproduction.checks if "mean τ-b" in c.what]
    assert printed == [(0.58, 0.57), (0.77, 0.80)]


def test_one_variant_of_tau_b_gives_both_printed_numbers(reproduction):
    """Models tie whose 95 % intervals overlap, and the mean counts the diagonal: 24 times 1 of 576 entries."""
    notes = [check.note for check in reproduction.checks if "mean τ-b" in check.what]
    assert ["0.582" in notes[0], "0.771" in notes[1]] == [True, True]
    assert all("which is not said" in note for note in notes)


def test_table_4_compute_and_table_3(reproduction):
    checks = [c for c in reproduction.checks if c.where.startswith("Table 4")]
    assert len(checks) == 37
    assert all(c.same for c in checks)
    assert all(
        c.same
        for c in reproduction.checks
        if "pythia-410m" in c.what and c.where.startswith("Table 3")
    )


def test_exactly_three_numbers_differ_and_each_says_its_definition(reproduction):
    assert {c.what for c in reproduction.differing} == {
        "mean τ, direct",
        "mean τ-b, direct",
        "mean τ-b, train-before-test",
    }
    assert all(c.note for c in reproduction.differing)
    assert sum(c.same is True for c in reproduction.checks) > 160


def test_every_claim_that_all_improve_is_counted(reproduction):
    counts = {c.what: (c.ours, c.same) for c in reproduction.checks if "improve" in c.what}
    assert counts["sizes that improve, of 6"] == (6, True)
    cells = [
        c for c in reproduction.checks if c.what.startswith("pairs of categories that improve")
    ]
    assert [(c.where[:9], c.ours, c.paper) for c in cells] == [
        ("Figure 3:", 21, 21),
        ("Figure 13", 21, 21),
    ]


def test_results_of_models_that_tuning_does_not_improve(reproduction):
    """Appendix A.2: rare, and mostly of small models; no tuned score lies below the one before tuning."""
    (check,) = [c for c in reproduction.checks if c.where.startswith("Appendix A.2")]
    assert (check.ours, check.same) == (48, None)
    assert (
        check.note
        == "27 of them of models below 500M parameters; tuned scores below the direct one: 0"
    )


def test_pc1_follows_compute(findings):
    assert findings["compute"].tau.value > 0.8


def test_the_published_benchmarks_are_sound(scores):
    from potentia.analysis.rankings.screening import screen_tasks
    from potentia.papers.train_before_test.reproduction import _select_benchmarks

    screening = screen_tasks(
        _select_benchmarks(scores["direct"]), _select_benchmarks(scores["train_before_test"])
    )
    assert {f.reason for f in screening.flags} <= {"ceiling"}


def test_figures_12_and_13_tau_b_by_task_and_by_category(findings):
    """Figure 13: tuning improves agreement within and between categories in all instances, with ties too."""
    direct, tuned = (findings[f"tau-b {side}"] for side in SIDES)
    assert direct.categories == tuned.categories
    assert len(direct.categories) == 6
    assert (tuned.by_category > direct.by_category)[np.isfinite(direct.by_category)].all()
    change = findings["tau-b change"]
    assert change.mean_before == pytest.approx(direct.mean)
    assert all(i.value > 0 for i in change.per_task_difference)


def test_families_widen_the_intervals_of_the_published_scores(scores):
    """61 models of a few families are not independent: the interval by model is about half as wide."""
    from potentia.analysis.rankings import RankingOptions
    from potentia.analysis.rankings.findings import analyze_scores

    options = RankingOptions(resamples=200)
    change = analyze_scores({p: scores[p] for p in SIDES}, options=options).changes[SIDES]
    assert change.resampled_unit == "families"
    assert change.interval.low > 0
    by_family, by_model = (i.high - i.low for i in (change.interval, change.difference["models"]))
    assert by_family > 1.4 * by_model
    assert (
        analyze_scores(
            {p: scores[p] for p in SIDES}, options=RankingOptions(resamples=20, resample="lineages")
        )
        .changes[SIDES]
        .resampled_unit
        == "lineages"
    )


def test_fewer_benchmarks_suffice_after_tuning(scores):
    """Section 4: rankings from a few benchmarks transfer; four tuned tasks rank as well as ten direct ones."""
    from potentia.analysis.rankings.task_curve import measure_task_curve

    direct, tuned = (
        measure_task_curve(scores[p].benchmarks(), splits=100).any_subset for p in SIDES
    )
    enough = [next(k + 1 for k, tau in enumerate(curve) if tau >= 0.9) for curve in (direct, tuned)]
    assert enough[1] <= 5
    assert enough[0] >= 2 * enough[1]
    assert tuned[0] > direct[0] + 0.1


def test_scores_without_standard_errors_give_all_that_needs_none(scores):
    without_errors = {
        protocol: replace(matrix, stderr=np.full_like(matrix.values, np.nan))
        for protocol, matrix in scores.items()
    }
    paper = reproduce_train_before_test(without_errors, resamples=20)
    agreeing = [line for line in paper.lines() if line.agrees]
    assert len(agreeing) == 185
    assert not any("figure 12" in line.place and line.agrees is not None for line in paper.lines())


def test_one_model_has_no_ranking(scores):
    one_model = {
        protocol: matrix.select(models=matrix.models[:1]) for protocol, matrix in scores.items()
    }
    with pytest.raises(InputError, match="fewer than two models have scores before fine-tuning"):
        reproduce_train_before_test(one_model)
