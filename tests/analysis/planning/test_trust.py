"""Temperature and threshold find what was planted, and are measured on rows that they were not fitted on."""

from __future__ import annotations

import numpy as np
import pytest

from potentia.analysis.planning import answers_from_items, measure_trust
from potentia.analysis.planning.trust import (
    TestedAnswer,
    choose_threshold,
    explain_no_trust,
    fit_temperature,
    hold_out_groups,
)
from potentia.values.choices import soften_logits
from potentia.values.scores import ItemOutcome


def draw_answers(n: int, temperature: float, seed: int = 0) -> list[TestedAnswer]:
    """Rows whose labels are drawn from the probabilities at a temperature: a model that is too sure by that much."""
    rng = np.random.default_rng(seed)
    answers = []
    for row in range(n):
        logits = rng.normal(size=4) * 3
        right = int(rng.choice(4, p=soften_logits(logits, temperature)))
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
    assert f" to a person ({100 * trust.sent:.0f} % of the rows): " in trust.sentence()


def test_too_few_rows_are_told() -> None:
    answers = draw_answers(12, 1.0)
    assert measure_trust(answers) is None
    assert explain_no_trust(answers) == (
        "12 tested rows are too few to say which predictions a person should check."
    )
    assert explain_no_trust(draw_answers(60, 1.0)) == explain_no_trust([]) == ""


def test_the_classifier_is_named_whose_predictions_are_to_be_checked() -> None:
    trust = measure_trust(draw_answers(1500, 1.0))
    assert trust is not None
    assert trust.sentence("TF-IDF").startswith("Send predictions of TF-IDF with a probability")


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


def draw_passages(rng: np.random.Generator, *, clustered: bool) -> list[TestedAnswer]:
    """Sixty passages with ten rows each: a model understands a passage or not, and is surer where it does."""
    answers = []
    for passage in range(60):
        understands = rng.random() < 0.7
        for _ in range(10):
            sureness = rng.normal(3.0 if understands else 1.5, 1.0)
            logprobs = (0.0, -abs(float(sureness)))
            right = 0 if rng.random() < (0.95 if understands else 0.35) else 1
            label = f"passage {passage}" if clustered else ""
            answers.append(TestedAnswer(logprobs, right, cluster=label))
    return answers


def test_rows_that_share_a_passage_are_no_independent_rows() -> None:
    widths = []
    for clustered in (False, True):
        trust = measure_trust(draw_passages(np.random.default_rng(3), clustered=clustered))
        assert trust is not None
        assert trust.threshold is not None
        widths.append(trust.accuracy_above.high - trust.accuracy_above.low)
    assert widths[1] > 1.3 * widths[0]


def test_rows_of_a_passage_are_held_out_together() -> None:
    answers = draw_passages(np.random.default_rng(4), clustered=True)
    groups = hold_out_groups(answers)
    for passage in range(60):
        assert len(set(groups[10 * passage : 10 * passage + 10])) == 1
    assert len(set(groups)) == 5


def test_nothing_is_said_of_rows_of_one_passage() -> None:
    answers = [TestedAnswer((0.0, -1.0), row % 2, cluster="the one") for row in range(40)]
    assert measure_trust(answers) is None


def test_answers_are_those_that_the_metric_counts() -> None:
    choices = ["no", "certainly not in this case"]
    detail = {"choices": choices, "logprobs": [-4.0, -13.0]}  # -2 and -0.5 a character
    item = ItemOutcome(0, 1.0, choices[1], choices[1], detail)
    (by_likelihood,) = answers_from_items([item], "acc")
    assert by_likelihood.logits == (-4.0, -13.0)
    (by_character,) = answers_from_items([item], "acc_norm")
    assert by_character.logits == pytest.approx((-28.0, -7.0))  # times the mean of 14 characters
    assert int(np.argmax(by_character.logits)) == by_character.right


def test_a_temperature_that_does_not_help_on_held_back_rows_is_not_used() -> None:
    helped = 0
    for seed in range(20):
        trust = measure_trust(draw_answers(60, 1.0, seed))  # calibrated already
        assert trust is not None
        assert trust.error_after <= trust.error_before
        helped += trust.temperature != 1.0
        if trust.temperature == 1.0:
            assert trust.error_after == trust.error_before
    assert helped < 10
