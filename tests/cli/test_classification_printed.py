"""What the terminal says of labelled texts: the verdict can be left out, the warnings never are."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest

from potentia.analysis.benchmark.classification import Classification, LabelledTest
from potentia.cli.output import print_classification
from potentia.values.baselines import Baseline

WARNING = "small answers 'billing' to nearly every example of tickets."


def make_classification(
    baselines: Mapping[Baseline, Mapping[str, float]],
) -> Classification:
    """A model that answers nearly always the same."""
    test = LabelledTest(
        model="small",
        scores=(0.6, 0.6, 0.6),
        stderr=0.02,
        direct=math.nan,
        constant="billing",
        unknown=0.0,
    )
    return Classification(
        task="tickets",
        protocol="train_before_test",
        labels=("billing", "delivery"),
        models=(test,),
        baselines=baselines,
        confusion=np.array([[90.0, 10.0], [70.0, 30.0]]),
        documents=200,
    )


@pytest.mark.parametrize("baselines", [{}, {Baseline.TFIDF: {"acc": 0.5, "stderr": 0.02}}])
def test_without_the_verdict_every_warning_is_printed(
    baselines: Mapping[Baseline, Mapping[str, float]], capsys: pytest.CaptureFixture[str]
) -> None:
    classification = make_classification(baselines)
    print_classification(classification, with_verdict=False)
    printed = capsys.readouterr().out
    assert WARNING in printed
    assert classification.verdict is None or classification.verdict_sentence() not in printed


def test_the_verdict_is_printed_first(capsys: pytest.CaptureFixture[str]) -> None:
    classification = make_classification({Baseline.TFIDF: {"acc": 0.5, "stderr": 0.02}})
    print_classification(classification)
    printed = capsys.readouterr().out
    assert printed.index(classification.verdict_sentence()[:20]) < printed.index(WARNING)
