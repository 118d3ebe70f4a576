"""What a selection says beside its answer is about this answer."""

from __future__ import annotations

import pytest

from potentia.run.select import describe_cut_final_round, describe_unequal_training


@pytest.mark.parametrize(
    ("study", "answer"),
    [
        ("select-trial", "the trial"),
        ("select-round-2", "round 2"),
        ("select-direct", "the scores before fine-tuning"),
    ],
)
def test_a_final_round_that_the_budget_cut_names_the_round_of_the_answer(
    study: str, answer: str
) -> None:
    expected = f"The final round did not end within the budget; the answer is that of {answer}."
    assert describe_cut_final_round(study) == expected


def test_a_budget_that_shortened_some_fine_tunings_alone_is_told() -> None:
    assert describe_unequal_training(80, 8) == (
        "Encoders made 80 training steps at each learning rate, the other models 8 at one:"
        " with a larger --budget these may catch up."
    )
