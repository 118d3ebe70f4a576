"""Fewer tasks: the curve of agreement with the whole ranking; cells that kept the untuned model."""

from __future__ import annotations

import numpy as np
import pytest

from potentia.analysis.rankings.fewer import measure_fewer
from potentia.analysis.rankings.find import Options, rank_scores
from potentia.facts import Background
from potentia.values.scores import ScoreMatrix


def matrix(values, **more):
    values = np.asarray(values, dtype=float)
    names = [f"m{k}" for k in range(len(values))], [f"t{k}" for k in range(values.shape[1])]
    return ScoreMatrix.build(*names, values, **more)


def test_tasks_that_agree_need_one_and_noise_needs_all():
    rng = np.random.default_rng(0)
    skill = np.linspace(0, 1, 20)[:, None]
    alike = measure_fewer(matrix(skill * np.ones((1, 6)) + rng.normal(size=(20, 6)) * 1e-6))
    assert alike.enough == 1
    assert all(i.value == pytest.approx(1.0) for i in alike.random)
    noise = measure_fewer(matrix(rng.normal(size=(20, 6))))
    assert noise.enough > 3
    assert noise.random[-1].value == noise.best[-1] == 1.0, "all tasks are the whole ranking"
    assert all(b >= i.value for b, i in zip(noise.best, noise.random, strict=True))
    assert abs(np.nanmean(noise.left_out)) < 0.25, "a subset says nothing of the rest, though much of the whole"
    assert np.isnan(noise.left_out[-1])


def test_the_best_task_is_the_one_like_the_whole():
    skill = np.arange(12.0)
    other = np.random.default_rng(1).permutation(12).astype(float)
    found = measure_fewer(matrix(np.stack([other, skill, skill**2, skill**3], axis=1)))
    assert found.order[0] != "t0"
    assert found.order[-1] == "t0" or found.best[1] >= found.random[1].value
    assert measure_fewer(matrix(np.ones((5, 4)))) is None, "nobody differs"
    assert measure_fewer(matrix(np.random.default_rng(2).random((2, 4)))) is None


def test_heat_maps_go_by_train_size_where_asked():
    background = Background(train_examples={"t0": 10, "t1": 500, "t2": 90})
    scores = {"direct": matrix(np.random.default_rng(0).random((6, 3)), stderr=np.full((6, 3), 0.01))}
    found = rank_scores(scores, background, Options(resamples=20, order="train-size"))
    (heat, *_) = found.agreement["direct"].charts()
    assert heat.rows == ("t1", "t2", "t0")
    assert rank_scores(scores, background, Options(resamples=20)).agreement["direct"].tasks == ("t0", "t1", "t2")


def test_a_floor_is_seen_where_chance_is_known():
    values = np.column_stack([np.linspace(0.24, 0.27, 6), np.linspace(0.5, 0.9, 6)])
    scores = {"direct": matrix(values, stderr=np.full((6, 2), 0.02), metrics=("acc", "acc"))}
    told = rank_scores(scores, Background(chance={"t0": 0.25, "t1": 0.25}), Options(resamples=20)).screening
    assert [flag.task for flag in told.flags if flag.reason == "floor"] == ["t0"]
    blind = rank_scores(scores, Background(), Options(resamples=20)).screening
    assert not [flag for flag in blind.flags if flag.reason == "floor"]
