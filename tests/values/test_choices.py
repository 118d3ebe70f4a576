"""What a metric compares choices by gives the order of the metric, and probabilities that agree with it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from potentia.tasks import choose_answer
from potentia.values.choices import compute_choice_logits, soften_logits

CHOICES = st.lists(
    st.tuples(st.text(min_size=1, max_size=30), st.floats(min_value=-200.0, max_value=-0.01)),
    min_size=2,
    max_size=6,
)


@pytest.mark.parametrize("metric", ["acc", "acc_norm"])
@given(CHOICES, st.floats(min_value=0.1, max_value=10.0))
def test_the_chosen_answer_is_the_most_probable(
    metric: str, pairs: list[tuple[str, float]], temperature: float
) -> None:
    choices = [choice for choice, _ in pairs]
    logprobs = [logprob for _, logprob in pairs]
    logits = compute_choice_logits(metric, choices, logprobs)
    probabilities = soften_logits(logits, temperature)
    chosen = choose_answer(metric, choices, [(logprob, False) for logprob in logprobs])
    assert probabilities[chosen] == pytest.approx(max(probabilities))
    assert sum(probabilities) == pytest.approx(1.0)


def test_choices_of_one_length_keep_their_log_likelihoods() -> None:
    assert compute_choice_logits("acc_norm", ["ab", "cd"], [-1.0, -3.0]) == [-1.0, -3.0]
    assert compute_choice_logits("acc", ["a", "long"], [-1.0, -3.0]) == [-1.0, -3.0]
