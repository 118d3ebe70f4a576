"""Temperature and threshold find what was planted, and are measured on rows that they were not fitted on."""

from __future__ import annotations

import numpy as np
import pytest

from potentia.analysis.planning import measure_trust
from potentia.analysis.planning.trust import (
    TestedAnswer,
    choose_threshold,
    fit_temperature,
    soften,
)


def draw_answers(n: int, temperature: float, seed: int = 0) -> list[TestedAnswer]:
    """Rows whose labels are drawn from the probabilities at a temperature: a model that is too sure by that much."""
    rng = np.random.default_rng(seed)
    answers = []
    for row in range(n):
        logits = rng.normal(size=4) * 3
        right = int(rng.choice(4, p=soften(logits, temperature)))
        answers.append(TestedAnswer(tuple(logits.tolist()), right, fold=row % 5))
    return answers


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.5])
def test_the_planted_temperature_is_found(temperature: float) -> None:
    assert fit_temperature(draw_answers(3000, temperature)) == pytest.approx(temperature, rel=0.12)


def test_a_model_that_is_too_sure_is_calibrated() -> None:
    trust = measure_trust(draw_answers(1500, 2.5))
    assert trust is not None
    assert trust.error_before > 0.15
    assert trust.error_after < 0.06


def test_the_unsure_rows_go_to_a_person() -> None:
    trust = measure_trust(draw_answers(1500, 1.0))
    assert trust is not None
    assert trust.threshold is not None
    assert 0.05 < trust.sent < 0.5
    assert 1 - trust.accuracy_above.value == pytest.approx(0.5 * (1 - trust.accuracy), abs=0.03)
    assert f"Send the unsure {100 * trust.sent:.0f} % to a person" in trust.sentence()


def test_probabilities_that_say_nothing_give_no_threshold() -> None:
    rng = np.random.default_rng(1)
    answers = [
        TestedAnswer((0.0, float(rng.random() * 0.2)), int(rng.integers(2)), row % 5)
        for row in range(400)
    ]
    trust = measure_trust(answers)
    assert trust is not None
    assert trust.threshold is None
    assert "do not tell right answers from wrong ones" in trust.sentence()


def test_few_rows_say_nothing_and_all_right_needs_nobody() -> None:
    assert measure_trust(draw_answers(10, 1.0)) is None
    right = [TestedAnswer((0.0, -3.0), 0, row % 5) for row in range(40)]
    trust = measure_trust(right)
    assert trust is not None
    assert trust.temperature == 1.0
    assert "no need" in trust.sentence()


def test_the_threshold_halves_the_errors() -> None:
    probabilities = np.array([0.9, 0.8, 0.7, 0.6, 0.55, 0.5])
    right = np.array([True, True, True, True, False, False])
    assert choose_threshold(probabilities, right) == pytest.approx(0.575)
