"""Written answers are judged beside what needs no model, as labels are."""

from __future__ import annotations

import pytest

from potentia.analysis.benchmark import BaselineVerdict, WrittenAnswers, WrittenTest
from potentia.values.baselines import Baseline


def make_finding(value: float, cheap: float, examples: int = 80) -> WrittenAnswers:
    tests = (WrittenTest("org/m", value, 0.02, unknown=0.4), WrittenTest("org/n", 0.01, 0.01, 0.0))
    baselines = {
        Baseline.FREQUENT_ANSWER: {"value": 0.05, "stderr": 0.01},
        Baseline.NEAREST_ANSWER: {"value": cheap, "stderr": 0.02},
    }
    return WrittenAnswers("faq", "token_f1", tests, baselines, examples)


@pytest.mark.parametrize(
    ("value", "verdict", "start"),
    [
        (0.088, BaselineVerdict.LOSES, "No candidate is of use yet: m scores 0.088 token_f1, the"),
        (0.33, BaselineVerdict.TIES, "No candidate is shown to be of use yet: m is not signif"),
        (0.60, BaselineVerdict.BEATS, "m beats the answer of the most similar question (0.600"),
    ],
)
def test_a_model_is_of_use_where_it_beats_both(
    value: float, verdict: BaselineVerdict, start: str
) -> None:
    finding = make_finding(value, 0.31)
    assert finding.verdict is verdict
    sentence, words = finding.sentences()
    assert sentence.startswith(start)
    assert words == "m reads 40% of the tokens of faq as unknown."
    assert [row[0] for table in finding.tables() for row in table.rows][2:] == [
        "always writing the most frequent answer",
        "the answer of the most similar question",
    ]


def test_a_handful_says_nothing() -> None:
    finding = make_finding(0.5, 0.1, examples=6)
    assert finding.verdict is BaselineVerdict.UNKNOWN
    assert "6 tested examples are too few" in finding.verdict_sentence()
