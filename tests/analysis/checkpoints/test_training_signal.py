"""What checkpoints can decide, where the truth is planted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from potentia.analysis.checkpoints import choose_average, find_training_signal
from potentia.errors import InputError
from potentia.evidence import Evidence
from potentia.facts import ModelFacts, ModelTable
from potentia.values.protocol import DIRECT
from potentia.values.scores import ScoreMatrix

STEPS = (100, 200, 300, 400, 500, 600, 700, 800)


def average_of(scores: np.ndarray) -> int:
    return choose_average(DIRECT, "accuracy", "run", scores).best_count


def test_a_run_that_has_stopped_growing_is_averaged_and_a_growing_one_is_not() -> None:
    stream = np.random.default_rng(0)
    flat = [average_of(0.5 + stream.normal(0, 0.02, 8)) for _ in range(200)]
    steep = [average_of(np.linspace(0.2, 0.8, 8) + stream.normal(0, 0.005, 8)) for _ in range(200)]
    assert np.mean(flat) > 3
    assert np.mean(np.array(steep) == 1) > 0.95


@pytest.mark.parametrize("growth", [0.0, 0.002, 0.01, 0.05])
def test_the_chosen_average_is_never_much_worse_than_the_last_checkpoint(growth: float) -> None:
    """The error is measured against the truth at the last step, which the run has without its noise."""
    stream = np.random.default_rng(1)
    truth = 0.3 + growth * np.arange(8)
    last_errors, average_errors = [], []
    for _ in range(600):
        scores = truth + stream.normal(0, 0.02, 8)
        count = average_of(scores)
        last_errors.append(scores[-1] - truth[-1])
        average_errors.append(scores[-count:].mean() - truth[-1])
    last_error = np.sqrt(np.mean(np.square(last_errors)))
    average_error = np.sqrt(np.mean(np.square(average_errors)))
    assert average_error < 1.05 * last_error
    if growth == 0:
        assert average_error < 0.75 * last_error


def runs(*curves: tuple[str, list[float]], noise: float = 0.0) -> Evidence:
    names = [f"{run}@{step}" for run, _ in curves for step in STEPS]
    values = np.concatenate([scores for _, scores in curves])
    stderr = np.full((len(names), 1), 0.01)
    matrix = ScoreMatrix.build(
        names, ["task"], values[:, None], stderr=stderr, n=np.full((len(names), 1), 500)
    )
    return Evidence.of(matrix)


def test_signal_noise_and_the_order_of_runs() -> None:
    first = [0.3, 0.4, 0.5, 0.6, 0.6, 0.62, 0.6, 0.62]
    second = [0.35, 0.45, 0.48, 0.5, 0.5, 0.52, 0.5, 0.52]
    finding = find_training_signal(runs(("a", first), ("b", second)))
    (signal,) = finding.signals
    assert signal.signal == pytest.approx((0.62 - 0.52) / 0.57)
    noises = [np.var(scores[-5:]) / np.mean(scores[-5:]) ** 2 for scores in (first, second)]
    assert signal.noise == pytest.approx(np.sqrt(np.mean(noises)))
    assert signal.ratio == pytest.approx(signal.signal / signal.noise)
    (order,) = finding.orders
    assert order.step == 300, "b leads at 100 and 200, a from 300 on"
    assert "from step 300 on" in " ".join(finding.sentences())
    assert {row.run for row in finding.averages} == {"a", "b"}


def test_a_metric_is_coarse_where_bits_improve_before_accuracy_leaves_guessing() -> None:
    from potentia.analysis.checkpoints.training_signal import LeavingGuess, _find_lasting_step

    holds = [True, False, True, True]
    assert _find_lasting_step(holds, [1.0, 2.0, 3.0, 4.0]) == 3.0, "and stays so to the end"
    assert _find_lasting_step([True, False], [1.0, 2.0]) is None

    def was_coarse(by_main: float | None, by_bits: float | None) -> bool:
        return LeavingGuess(DIRECT, "run", "task", by_main, by_bits).was_coarse

    assert was_coarse(400, 100)
    assert was_coarse(None, 100)
    assert not was_coarse(100, 100)
    assert not was_coarse(100, None)


def family_facts(names: list[tuple[str, str, float]]) -> ModelTable:
    empty = ModelFacts("", "", None, None, None, "base", None, None, None)
    return ModelTable(
        tuple(
            replace(empty, name=name, family=family, parameters=size, size=size)
            for name, family, size in names
        )
    )


def test_small_models_decide_for_large_ones() -> None:
    names = [(f"{family}-{size}", family, size * 1e6) for size in (10, 70) for family in "abcd"]
    small, large = [0.1, 0.2, 0.3, 0.4], [0.5, 0.6, 0.8, 0.7]
    matrix = ScoreMatrix.build(
        [name for name, _, _ in names], ["task"], np.array([*small, *large])[:, None]
    )
    finding = find_training_signal(replace(Evidence.of(matrix), facts=family_facts(names)))
    (decision,) = finding.decisions
    assert (decision.families, decision.accuracy) == (4, pytest.approx(5 / 6))
    assert "10M parameters order 83%" in finding.sentences()[0]


def test_without_runs_or_families_there_is_an_error() -> None:
    matrix = ScoreMatrix.build(["x", "y"], ["task"], [[0.1], [0.2]])
    with pytest.raises(InputError, match="no run of 3 checkpoints"):
        find_training_signal(Evidence.of(matrix))
