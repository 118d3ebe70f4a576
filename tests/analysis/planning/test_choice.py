"""The end of a selection: a smaller model is called as good only where that holds for all that were looked at."""

from __future__ import annotations

import numpy as np

from potentia.analysis.planning import find_smaller_model
from potentia.analysis.rankings import decide_ranking
from potentia.values.scores import ScoreMatrix


def test_one_of_many_smaller_models_is_not_as_good_by_luck() -> None:
    """Sixteen smaller models, each worse by the whole margin: one of them was "as good" in a quarter of studies."""
    names = ["best", *(f"small{k}" for k in range(16))]
    parameters = {"best": 9e9} | {name: 1e8 * (k + 1) for k, name in enumerate(names[1:])}
    claims = 0
    for seed in range(150):
        rng = np.random.default_rng(seed)
        truth = np.array([0.8] + [0.78] * 16)
        values = (rng.binomial(30_000, truth) / 30_000)[:, None]
        matrix = ScoreMatrix.build(
            names,
            ["own"],
            values,
            stderr=np.sqrt(values * (1 - values) / 29_999),
            n=np.full(values.shape, 30_000),
            metrics=["acc"],
            protocol="train_before_test",
        )
        claims += (
            find_smaller_model(decide_ranking(matrix, draw_count=2_000), parameters) is not None
        )
    assert claims <= 15  # 5 % and three standard errors
