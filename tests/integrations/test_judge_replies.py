"""A judge's reply: correct, incorrect, or unclear."""

from __future__ import annotations

import pytest

from potentia.integrations.verdict import parse_verdict

CORRECT = (
    "correct",
    "Correct",
    "Correct.",
    "CORRECT!",
    "**Correct**",
    '"correct"',
    "\\boxed{correct}",
    "Yes",
    "Yes.",
    "Yes, the answer is correct.",
    "The answer is correct.",
    "The answer to judge is correct.",
    "It is right.",
    "That's right",
    "This is true.",
    "Verdict: correct",
    "The answer gives the right answer.",
    "It matches the right answer.",
    "The answer equals the correct answer, so it is correct.",
    "Correct, the answer to judge is 5.",
    "The answer is not incorrect.",
    "It isn't wrong.",
    "✅",
    "The correct answer is 5, so the answer to judge is correct.",
    "正确",
)
INCORRECT = (
    "incorrect",
    "Incorrect.",
    "**Incorrect**",
    "No",
    "No.",
    "No, it is not.",
    "Not correct.",
    "not correct",
    "The answer is not correct",
    "The answer is not correct.",
    "It isn't correct",
    "It isn’t correct.",
    "It is not at all correct.",
    "The answer is not quite right.",
    "The answer is wrong.",
    "This is false.",
    "That is never correct.",
    "The answer is far from correct.",
    "Incorrect. The correct answer is 5.",
    "Incorrect; the right answer is 12",
    "The correct answer is 5, so the answer to judge is incorrect.",
    "The answer does not give the right answer.",
    "It doesn't match the right answer.",
    "No, the correct answer is 7.",
    "The answer to judge is incorrect because the right answer is 3.",
    "Neither correct.",
    "❌",
    "不正确",
)
UNCLEAR = (
    "",
    "5",
    "The correct answer is 5.",
    "The right answer is 12",
    "correct or incorrect",
    "Correct/Incorrect",
    "I cannot tell whether it is correct.",
    "It might be correct.",
    "Partially correct.",
    "Is the answer correct?",
    "If the unit is metres, it is correct.",
    "I am not sure.",
    "The answer is correct. No, it is wrong.",
    "Let me think step by step",
    "It is unclear.",
)


def test_the_table_has_sixty_phrasings_and_more() -> None:
    assert len({*CORRECT, *INCORRECT, *UNCLEAR}) >= 60


@pytest.mark.parametrize("reply", CORRECT)
def test_correct(reply: str) -> None:
    assert parse_verdict(reply) is True


@pytest.mark.parametrize("reply", INCORRECT)
def test_incorrect(reply: str) -> None:
    assert parse_verdict(reply) is False


@pytest.mark.parametrize("reply", UNCLEAR)
def test_unclear(reply: str) -> None:
    assert parse_verdict(reply) is None
