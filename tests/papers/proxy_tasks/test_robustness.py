import numpy as np
import pytest

from potentia.errors import InputError
from potentia.papers.proxy_tasks.proxies import measure_robustness, variance_ratio
from potentia.values.scores import ScoreMatrix


def test_the_ratio_is_of_sample_variances():
    ratio = variance_ratio([1.0, 2.0, 3.0, 6.0], [1.0, 1.5, 2.0])
    assert ratio.ratio.value == pytest.approx(
        np.var([1, 2, 3, 6], ddof=1) / np.var([1, 1.5, 2], ddof=1)
    )


def test_the_interval_covers_the_true_ratio_as_often_as_it_says():
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(600):
        ratio = variance_ratio(rng.normal(0, 3, size=5), rng.normal(0, 1, size=3)).ratio
        hits += ratio.low <= 9.0 <= ratio.high
    assert 0.92 <= hits / 600 <= 0.98


def test_verdicts_follow_the_interval():
    assert variance_ratio([0, 10, 20, 30, 40], [1.0, 1.1, 1.2]).verdict == "robust"
    assert variance_ratio([1.0, 1.1, 1.2], [0, 10, 20, 30, 40]).verdict == "noise"
    assert variance_ratio([1.0, 2.0, 3.0], [1.0, 2.0, 3.5]).verdict == "cannot tell"


@pytest.mark.parametrize(
    ("data", "seeds", "why"), [([1.0], [1, 2], "two models"), ([1, 2], [3, 3], "score the same")]
)
def test_what_cannot_be_known_is_said_not_guessed(data, seeds, why):
    ratio = variance_ratio(data, seeds)
    assert np.isnan(ratio.ratio.value)
    assert why in ratio.verdict


def test_small_groups_are_called_small():
    values = np.random.default_rng(1).normal(size=(8, 2))
    scores = ScoreMatrix.build(list("ABCDEFGH"), ["x", "y"], values)
    robustness = measure_robustness(scores, list("DEFGH"), list("ABC"))
    assert "5 and 3 models: the interval spans a factor of 418" in robustness.tables()[0].note
    with pytest.raises(InputError, match="in both groups: C"):
        measure_robustness(scores, list("CDE"), list("ABC"))
