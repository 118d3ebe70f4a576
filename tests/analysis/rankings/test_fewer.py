"""Fewer tasks: the curve of agreement with the whole ranking; cells that kept the untuned model."""

from __future__ import annotations

import numpy as np
import pytest

from potentia.analysis.rankings.findings import RankingOptions, analyze_scores
from potentia.analysis.rankings.task_curve import measure_task_curve
from potentia.facts import Background
from potentia.values.scores import ScoreMatrix


def matrix(values, **settings):
    values = np.asarray(values, dtype=float)
    names = [f"m{k}" for k in range(len(values))], [f"t{k}" for k in range(values.shape[1])]
    return ScoreMatrix.build(*names, values, **settings)


def test_tasks_that_agree_need_one_and_noise_needs_all():
    rng = np.random.default_rng(0)
    skill = np.linspace(0, 1, 20)[:, None]
    alike = measure_task_curve(
        matrix(skill * np.ones((1, 6)) + rng.normal(size=(20, 6)) * 1e-6), splits=5
    )
    assert alike.tasks_needed(0.9) == 1
    noise = measure_task_curve(matrix(rng.normal(size=(20, 6))), splits=20)
    assert noise.tasks_needed(0.9) > 3
    assert noise.held_out[-1].value == noise.seen[-1] == noise.any_subset[-1] == 1.0, (
        "all tasks are the whole ranking"
    )
    assert noise.held_out[1].value < noise.seen[1], (
        "chosen on the models that judge, a subset looks too good"
    )


def test_rankings_have_the_curve_where_models_are_enough():
    rng = np.random.default_rng(1)
    scores = {"direct": matrix(rng.random((12, 4)), stderr=np.full((12, 4), 0.01))}
    result = analyze_scores(scores, Background(), RankingOptions(resamples=20))
    assert result.task_curves["direct"].cost[-1] == pytest.approx(1.0)
    assert "fewer tasks direct" in result.findings_by_name()
    few = {"direct": scores["direct"].select(models=scores["direct"].models[:5])}
    assert not analyze_scores(few, Background(), RankingOptions(resamples=20)).task_curves
    one_lineage = Background(lineages={f"m{k}": "m0" for k in range(12)})
    assert analyze_scores(scores, one_lineage, RankingOptions(resamples=20)).task_curves


def test_a_floor_is_seen_where_chance_is_known():
    values = np.column_stack([np.linspace(0.24, 0.27, 6), np.linspace(0.5, 0.9, 6)])
    scores = {"direct": matrix(values, stderr=np.full((6, 2), 0.02), metrics=("acc", "acc"))}
    result = analyze_scores(
        scores, Background(chance={"t0": 0.25, "t1": 0.25}), RankingOptions(resamples=20)
    ).screening
    assert [flag.task for flag in result.flags if flag.reason == "floor"] == ["t0"]
    blind = analyze_scores(scores, Background(), RankingOptions(resamples=20)).screening
    assert not [flag for flag in blind.flags if flag.reason == "floor"]
