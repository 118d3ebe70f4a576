"""Tables of labelled texts say what their numbers are means of."""

from __future__ import annotations

import math

import numpy as np
import pytest

from potentia.analysis.benchmark.classification import Classification, LabelledTest


@pytest.mark.parametrize("folds", [1, 5])
def test_scores_over_folds_are_called_means_over_folds(folds: int) -> None:
    test = LabelledTest(
        model="small",
        scores=(0.95, 0.94, 0.96),
        stderr=0.02,
        direct=math.nan,
        constant=None,
        unknown=0.0,
    )
    classification = Classification(
        task="tickets",
        protocol="train_before_test",
        labels=("billing", "delivery"),
        models=(test,),
        baselines={},
        confusion=np.array([[10.0, 1.0], [0.0, 9.0]]),
        documents=20,
        folds=folds,
    )
    note = classification.tables()[0].note
    assert ("means over 5 folds" in note) == (folds == 5)
