"""Signal-to-noise and decision accuracy of a task: by checkpoints, by test noise, and of small models about large."""

from __future__ import annotations

import math

import numpy as np
import pytest

from potentia.analysis.benchmark import find_benchmark, measure_task_signal
from potentia.evidence import Evidence
from potentia.values.scores import ScoreMatrix


def build_matrix(scores: dict[str, float], *, stderr: float = 0.01) -> ScoreMatrix:
    values = np.array(list(scores.values()))[:, None] * np.array([[1.0, 0.9, 1.1]])
    return ScoreMatrix.build(
        list(scores),
        ["task", "second", "third"],
        values,
        stderr=np.full(values.shape, stderr),
        metrics=["acc"] * 3,
    )


def test_noise_is_of_the_last_checkpoints_where_there_are_some() -> None:
    scores = {"a@1": 0.1, "a@2": 0.58, "a@3": 0.62, "a@4": 0.60, "b@3": 0.38, "b@4": 0.40}
    signal = measure_task_signal(build_matrix(scores), "task", {}, {})
    assert signal.by_checkpoints
    run = np.array([0.1, 0.58, 0.62, 0.60])
    assert signal.ratio == pytest.approx((0.2 / 0.5) / (run.std() / run.mean()))


def test_without_checkpoints_it_is_test_noise_and_says_so() -> None:
    signal = measure_task_signal(build_matrix({"a": 0.4, "b": 0.6}), "task", {}, {})
    assert not signal.by_checkpoints
    assert signal.ratio == pytest.approx(0.2 / 0.01)
    assert "test noise" in signal.ratio_label
    assert math.isnan(signal.decision_accuracy)


def test_small_models_of_families_order_the_large_ones() -> None:
    scores = {"a-1": 0.3, "a-8": 0.7, "b-1": 0.4, "b-8": 0.6, "c-1": 0.2, "c-8": 0.5}
    families = {model: model[0] for model in scores}
    sizes = {model: float(model[-1]) for model in scores}
    signal = measure_task_signal(build_matrix(scores), "task", families, sizes)
    # small: b > a > c; large: a > b > c. Two of three pairs agree.
    assert signal.decision_accuracy == pytest.approx(2 / 3)
    assert signal.families == 3


def test_the_page_of_a_benchmark_shows_what_is_known() -> None:
    scores = {f"m{k}": 0.3 + 0.05 * k for k in range(6)}
    verdict = find_benchmark(Evidence.of(build_matrix(scores)), "task")
    names = [str(row[0]) for row in verdict.tables()[1].rows]
    assert any(name.startswith("signal-to-noise") for name in names)
    assert not any(name.startswith("decision accuracy") for name in names)  # of no families
