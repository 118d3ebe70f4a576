"""Intervals stay where values can be, and none is given where resampling can only raise the value."""

import math

import numpy as np
import pytest

from potentia.analysis.rankings.agreement import compare_agreement, measure_agreement
from potentia.analysis.rankings.components import ENOUGH_UNITS, compute_components
from potentia.analysis.stats.bootstrap import ResamplingUnits, Sampling
from potentia.values.scores import ScoreMatrix


def make_matrix(models, tasks=5, protocol="direct", seed=0, own=0.02):
    rng = np.random.default_rng(seed)
    values = 0.3 + 0.4 * np.linspace(0, 1, models)[:, None] + own * rng.normal(size=(models, tasks))
    names = [f"m{row}" for row in range(models)]
    return ScoreMatrix.build(
        names,
        [f"t{column}" for column in range(tasks)],
        values,
        stderr=np.full(values.shape, 0.05),
        protocol=protocol,
    )


@pytest.mark.parametrize("seed", range(3))
def test_no_interval_of_tau_lies_beyond_one(seed):
    """The page of a demo said "over noise 1.000 / 0.893 / 1.173"."""
    sampling = Sampling(resamples=200)
    direct = make_matrix(6, seed=seed)
    agreement = measure_agreement(direct, sampling=sampling)
    for interval in agreement.intervals.values():
        assert -1 <= interval.low <= interval.high <= 1
    tuned = make_matrix(6, protocol="train_before_test", seed=seed + 9, own=0.001)
    change = compare_agreement(direct, tuned, sampling=sampling)
    for interval in change.difference.values():
        assert -2 <= interval.low <= interval.high <= 2


def test_few_models_give_no_interval_of_their_first_component():
    """Of four families "42 % (42–97)" was said: a resample has fewer different models, which PC1 explains better."""
    families = {f"m{row}": f"f{row // 2}" for row in range(ENOUGH_UNITS)}
    sampling = Sampling(units=ResamplingUnits("families", families), resamples=50)
    few = compute_components(make_matrix(ENOUGH_UNITS), sampling=sampling).explained[0]
    assert math.isfinite(few.value)
    assert math.isnan(few.low)
    many = compute_components(make_matrix(ENOUGH_UNITS), sampling=Sampling(resamples=50))
    assert many.explained[0].low < many.explained[0].high
