"""Everything at once: which findings appear for which evidence, and joining of sources."""

from __future__ import annotations

import json

import numpy as np
import pytest

from potentia.analysis.rankings import RankingOptions, analyze_scores
from potentia.errors import InputError
from potentia.evidence import read
from potentia.facts import Background
from potentia.formats import write_scores
from potentia.values.scores import ScoreMatrix

MODELS = [f"m{i}" for i in range(12)]
TASKS = ["arc_easy", "boolq", "gsm8k", "rte"]
QUICK = RankingOptions(resamples=20)


def scores(protocol="direct", *, seed=0, corpora=False, stderr=0.02, models=MODELS, tasks=TASKS):
    rng = np.random.default_rng(seed)
    level = np.linspace(0.2, 0.8, len(models))[:, None]
    values = level + 0.08 * rng.normal(size=(len(models), len(tasks)))
    names, metrics = list(tasks), ["acc"] * len(tasks)
    if corpora:
        values = np.hstack([values, 2 - level + 0.1 * rng.normal(size=(len(models), 2))])
        names, metrics = [*names, "wiki", "stack"], [*metrics, "bits_per_byte", "bits_per_byte"]
    return ScoreMatrix.build(
        models,
        names,
        values,
        stderr=np.full(values.shape, stderr),
        metrics=metrics,
        protocol=protocol,
    )


BACKGROUND = Background(
    families={m: "ab"[i % 2] for i, m in enumerate(MODELS)},
    kinds={m: ("base", "instruct")[i % 2] for i, m in enumerate(MODELS)},
    billions={m: 0.5 + (i >= 6) for i, m in enumerate(MODELS)},
    flops={m: 10.0 ** (20 + i / 4) for i, m in enumerate(MODELS)},
    categories={"arc_easy": "QA", "boolq": "QA", "gsm8k": "Math", "rte": "LU"},
    train_examples={"arc_easy": 100.0, "boolq": 5000.0},
)


def analyze_rankings(given, background, options):
    return analyze_scores(given, background, options).findings_by_name()


def test_all_findings_from_two_protocols_with_corpora():
    both = {
        p: scores(p, seed=k, corpora=True) for k, p in enumerate(("train_before_test", "direct"))
    }
    rankings = analyze_rankings(both, BACKGROUND, QUICK)
    for name in (
        "screening",
        "agreement direct",
        "agreement train_before_test",
        "measures",
        "change direct train_before_test",
        "by size in billions",
        "by family",
        "by kind",
        "significance direct",
        "ranks train_before_test",
        "components direct",
        "components direct a",
        "compute train_before_test",
        "aggregate direct",
        "perplexity direct",
        "perplexity direct, tuned tasks, base",
        "alignment direct",
    ):
        assert name in rankings
    assert rankings["agreement direct"].tasks == tuple(TASKS)
    for finding in rankings.values():
        json.dumps(finding.to_dict(), allow_nan=False)
        assert finding.tables()
    names = [chart.name for finding in rankings.values() for chart in finding.charts()]
    assert len(names) == len(set(names))


def test_flagged_tasks_can_be_left_out():
    rankings = analyze_rankings(
        {"direct": scores()}, BACKGROUND, RankingOptions(resamples=20, exclude_flagged=True)
    )
    assert "arc_easy" in rankings["screening"].flagged_tasks
    assert "arc_easy" not in rankings["agreement direct"].tasks


def test_one_protocol_without_errors_facts_or_corpora():
    rankings = analyze_rankings({"direct": scores(stderr=np.nan)}, Background(), QUICK)
    assert "agreement direct" in rankings
    assert not any(
        name.startswith(("significance", "ranks", "perplexity", "by", "compute", "change"))
        for name in rankings
    )


@pytest.mark.parametrize(("models", "tasks"), [(2, 1), (2, 4), (3, 1)])
def test_small_studies_are_not_refused(models, tasks):
    rankings = analyze_rankings(
        {"direct": scores(models=MODELS[:models], tasks=TASKS[:tasks])}, BACKGROUND, QUICK
    )
    assert "aggregate direct" in rankings


def test_half_finished_studies_are_not_refused():
    partial = scores()
    partial.values[3:, 1] = np.nan
    partial.values[5, :] = np.nan
    partial.values[:, 2] = np.nan
    rankings = analyze_rankings({"direct": partial}, BACKGROUND, QUICK)
    assert rankings["agreement direct"].tasks == ("arc_easy", "boolq", "rte")
    assert "m5" not in rankings["aggregate direct"].models


def test_the_tasks_to_align_can_be_named():
    rankings = analyze_rankings(
        {"direct": scores()}, BACKGROUND, RankingOptions(resamples=20, align=("rte", "boolq"))
    )
    assert rankings["alignment direct"].tasks == ("rte", "boolq")
    with pytest.raises(InputError, match="no task 'nope'"):
        analyze_rankings(
            {"direct": scores()}, BACKGROUND, RankingOptions(resamples=20, align=("rte", "nope"))
        )


def test_nothing_to_rank():
    with pytest.raises(InputError, match="nothing to rank"):
        analyze_rankings({"direct": scores(models=["only"])}, BACKGROUND, QUICK)


@pytest.mark.parametrize(("models", "method"), [(4, "mean score"), (12, "mean z")])
def test_one_rule_ranks_all_protocols(models, method):
    both = {
        p: scores(p, seed=k, models=MODELS[:models])
        for k, p in enumerate(("direct", "train_before_test"))
    }
    result = analyze_scores(both, BACKGROUND, QUICK)
    assert {r.method for r in result.overall.values()} == {method}
    column = result.aggregate["direct"].methods.index("mean z")
    order = np.argsort(result.aggregate["direct"].ranks[:, column], kind="stable")
    if method == "mean z":
        assert list(result.overall["direct"].models) == [MODELS[k] for k in order]


def test_a_brier_score_is_a_task_and_bits_are_a_corpus():
    matrix = scores(corpora=True)
    brier = ScoreMatrix.build(
        matrix.models,
        matrix.tasks,
        matrix.values,
        stderr=matrix.stderr,
        higher_is_better=False,
        metrics=["brier_score"] * 4 + ["bits_per_byte"] * 2,
    )
    result = analyze_scores({"direct": brier}, BACKGROUND, QUICK)
    assert result.agreement["direct"].tasks == tuple(TASKS)
    assert result.perplexity["direct"].corpora == ("wiki", "stack")


def saved(folder, name, *matrices):
    write_scores({m.protocol: m for m in matrices}, folder / name)
    return folder / name


def test_sources_are_joined_and_collisions_refused(tmp_path):
    left = scores(models=MODELS[:6])
    right = scores(models=MODELS[6:], tasks=[*TASKS, "cola"])
    first = saved(tmp_path, "one.csv", left)
    second = saved(tmp_path, "two.csv", right, scores("few_shot:5"))
    joined = read(first, second).scores
    assert joined["direct"].shape == (12, 5)
    assert np.isnan(joined["direct"].values[:6, 4]).all()
    np.testing.assert_array_equal(joined["direct"].values[:6, :4], left.values)
    assert joined["few_shot:5"].shape == (12, 4)
    with pytest.raises(InputError, match="two sources have a direct score of m0 on arc_easy"):
        read(first, first)
    turned = ScoreMatrix.build(["x"], ["rte"], [[1.0]], higher_is_better=False)
    with pytest.raises(InputError, match="higher is better"):
        read(first, saved(tmp_path, "turned.csv", turned))


def test_facts_are_found_for_known_models():
    background = Background.of(["Qwen/Qwen2.5-7B", "my/own"])
    assert background.families == {"Qwen/Qwen2.5-7B": "qwen"}
    assert background.billions == {"Qwen/Qwen2.5-7B": 7.0}
    assert background.categories["gsm8k"] == "Math"
