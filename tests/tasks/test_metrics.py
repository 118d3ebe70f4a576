"""Standard errors: lm-eval's bootstraps in a fraction of a second."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from potentia.tasks import grading
from speed import loop_seconds, processor_seconds


def pairs(n: int, labels: int, seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    gold = rng.integers(labels, size=n)
    guess = np.where(rng.random(n) < 0.6, gold, rng.integers(labels, size=n))
    return [[int(g), int(p)] for g, p in zip(gold, guess, strict=True)]


@pytest.mark.parametrize(
    ("name", "labels"), [("matthews_corrcoef", 2), ("matthews_corrcoef", 4), ("f1_score", 2)]
)
def test_the_bootstrap_of_pairs_is_lm_eval_s(name: str, labels: int) -> None:
    from lm_eval.api import metrics as theirs

    function = getattr(theirs, name)
    items = pairs(400, labels)
    rng = np.random.default_rng(5)
    slow = np.std(
        [function([items[i] for i in rng.integers(400, size=400)]) for _ in range(400)], ddof=1
    )
    value, error = grading.aggregate_items(function, items)
    assert value == function(items)
    assert error == pytest.approx(slow, rel=0.15)
    assert grading.aggregate_items(function, items) == (value, error), "the same in every call"


def test_resampled_statistics_equal_the_functions() -> None:
    from lm_eval.api import metrics as theirs

    items = pairs(60, 3)
    assert grading._compute_from_items(grading._compute_mcc, items) == pytest.approx(
        theirs.matthews_corrcoef(items)
    )
    two = pairs(60, 2)
    assert grading._compute_from_items(grading._compute_f1, two) == pytest.approx(
        theirs.f1_score(two)
    )


def test_bits_per_byte_has_a_standard_error() -> None:
    from lm_eval.api.metrics import bits_per_byte

    rng = np.random.default_rng(0)
    sizes = rng.integers(200, 2_000, size=300)
    items = [[float(-0.7 * size * rng.normal(1, 0.2)), int(size)] for size in sizes]
    value, error = grading.aggregate_items(bits_per_byte, items)
    slow = np.std(
        [bits_per_byte([items[i] for i in rng.integers(300, size=300)]) for _ in range(500)],
        ddof=1,
    )
    assert value == bits_per_byte(items)
    assert error == pytest.approx(slow, rel=0.2)


def test_ten_thousand_items_take_no_time() -> None:
    from lm_eval.api.metrics import bits_per_byte, matthews_corrcoef

    def estimate_both() -> None:
        grading.estimate_stderr(matthews_corrcoef, pairs(10_000, 2))
        grading.estimate_stderr(bits_per_byte, [[-100.0 - i, 200] for i in range(10_000)])

    assert processor_seconds(estimate_both) < 150 * loop_seconds()


@pytest.mark.parametrize(
    ("metric", "value", "reads"),
    [
        ("acc", 1.0, 1.0),
        ("mcc", [1, 1], 1.0),
        ("f1", [0, 1], 0.0),
        ("bits_per_byte", [-8 * math.log(2), 4], 2.0),
        ("exact_match|strict", 0.0, 0.0),
        ("inst_level_strict_acc", [True, False, True], 2 / 3),
    ],
)
def test_one_number_per_item(metric: str, value: Any, reads: float) -> None:
    assert grading.reduce_item_value(metric, value) == pytest.approx(reads)


def test_one_item_has_no_standard_error() -> None:
    from lm_eval.api.metrics import matthews_corrcoef, mean

    assert math.isnan(grading.estimate_stderr(mean, [1.0]))
    assert math.isnan(grading.estimate_stderr(matthews_corrcoef, [[1, 1]]))
    assert math.isnan(grading.aggregate_items(np.mean, [0.5])[1])
