"""Signal, noise and decision accuracy, against the definitions of arXiv 2508.13144 computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from potentia.analysis.stats.signal import measure_decision_accuracy, measure_signal_to_noise
from potentia.errors import InputError


def test_signal_and_noise_by_hand() -> None:
    measured = measure_signal_to_noise([0.4, 0.5, 0.6], [[0.58, 0.60, 0.62]])
    assert measured.signal == pytest.approx(0.2 / 0.5)
    assert measured.noise == pytest.approx(math.sqrt(0.0008 / 3) / 0.6)
    assert measured.ratio == pytest.approx(measured.signal / measured.noise)
    assert (measured.models, measured.checkpoints) == (3, 3)


def test_noise_of_several_runs_is_pooled() -> None:
    quiet = [0.5, 0.5, 0.5]
    loud = [0.4, 0.5, 0.6]
    measured = measure_signal_to_noise([0.4, 0.6], [quiet, loud])
    assert measured.noise == pytest.approx(np.std(loud) / 0.5 / math.sqrt(2))


def test_without_checkpoints_there_is_no_noise_to_speak_of() -> None:
    assert math.isnan(measure_signal_to_noise([0.4, 0.6], [[0.5, 0.6]]).ratio)
    with pytest.raises(InputError, match="two models"):
        measure_signal_to_noise([0.4, math.nan], [])


def test_decision_accuracy_counts_pairs_in_the_same_order() -> None:
    assert measure_decision_accuracy([1, 2, 3], [10, 20, 30]) == 1.0
    assert measure_decision_accuracy([1, 2, 3], [10, 30, 20]) == pytest.approx(2 / 3)
    assert measure_decision_accuracy([3, 2, 1], [10, 20, 30]) == 0.0


def test_a_tie_of_the_small_is_half_right_and_one_of_the_large_does_not_count() -> None:
    assert measure_decision_accuracy([1, 1], [10, 20]) == 0.5
    assert math.isnan(measure_decision_accuracy([1, 2], [10, 10]))
    assert measure_decision_accuracy([1, math.nan, 2], [1, 5, 2]) == 1.0
