"""What more labels would change, checked against power laws that are known."""

from __future__ import annotations

import numpy as np
import pytest

from potentia.analysis.planning import CurvePoint, measure_learning_curve
from potentia.analysis.planning.learning_curve import extrapolate


def make_points(laws: dict[str, tuple[float, float]], sizes: tuple[int, int]) -> list[CurvePoint]:
    """Errors c · N^-a at two sizes."""
    return [
        CurvePoint(model, size, scale * size**-power)
        for model, (scale, power) in laws.items()
        for size in sizes
    ]


def test_a_line_on_log_scales_finds_a_power_law() -> None:
    small, large = (0.8 * size**-0.3 * np.ones(2) for size in (100, 400))
    assert extrapolate(small, large, 4.0) == pytest.approx(0.8 * 1600**-0.3)


def test_a_model_that_learns_faster_wins_later_and_that_is_told() -> None:
    points = make_points({"now": (0.5, 0.10), "later": (1.55, 0.28)}, (100, 400))
    curve = measure_learning_curve(points, {}, higher_is_better=True)
    assert curve is not None
    assert (curve.best_now, curve.best_later) == ("now", "later")
    assert "later may be ahead then" in curve.sentence("now")
    same = measure_learning_curve(
        make_points({"a": (0.5, 0.2), "b": (0.9, 0.2)}, (100, 400)), {}, higher_is_better=True
    )
    assert same is not None
    assert "same winner (over 99 %)" in same.sentence("a")
    assert "With 4 times the training examples (1,600): about +" in same.sentence("a")


def test_little_evidence_gives_little_certainty() -> None:
    """With the outcomes of few examples the same errors say less of the winner."""
    rng = np.random.default_rng(0)
    points = make_points({"a": (1.0, 0.2), "b": (1.1, 0.2)}, (100, 400))
    chances = []
    for examples in (20, 20_000):
        outcomes = {}
        for point in points:
            draws = rng.random(examples) >= point.error
            outcomes[point.model, point.examples] = dict(enumerate(draws.astype(float)))
        curve = measure_learning_curve(points, outcomes, higher_is_better=True)
        assert curve is not None
        assert curve.tested == examples
        (table,) = curve.tables()
        if examples < 50:
            assert "20 test examples are too few to say" in curve.sentence("a")
            assert "P(best there)" not in table.columns
        else:
            assert "points (95 % interval +" in curve.sentence("a")
            assert "by 20,000 test examples)" in curve.sentence("a")
        chances.append(float(curve.p_best[0]))
    assert 0.4 < chances[0] < 0.8
    assert chances[1] > 0.9


def test_examples_that_share_a_passage_say_less_of_the_winner() -> None:
    """Twenty passages of fifty examples each are not a thousand examples."""
    rng = np.random.default_rng(0)
    points = make_points({"a": (1.0, 0.2), "b": (1.1, 0.2)}, (100, 400))
    cluster_by_example = {example: f"p{example // 50}" for example in range(1_000)}
    outcomes = {}
    for point in points:
        passages = np.clip(1 - point.error + 0.2 * rng.normal(size=20), 0.02, 0.98)
        draws = rng.random(1_000) < np.repeat(passages, 50)
        outcomes[point.model, point.examples] = dict(enumerate(draws.astype(float)))
    alone = measure_learning_curve(points, outcomes, higher_is_better=True)
    together = measure_learning_curve(
        points, outcomes, higher_is_better=True, cluster_by_example=cluster_by_example
    )
    assert alone is not None
    assert together is not None
    assert abs(together.p_best[0] - 0.5) < abs(alone.p_best[0] - 0.5) - 0.1


def test_one_size_is_no_curve() -> None:
    points = [CurvePoint("a", 100, 0.3), CurvePoint("b", 100, 0.4)]
    assert measure_learning_curve(points, {}, higher_is_better=True) is None


def test_errors_do_not_rise_with_more_labels() -> None:
    points = [CurvePoint("a", 100, 0.3), CurvePoint("a", 400, 0.4)]
    curve = measure_learning_curve(points, {}, higher_is_better=True)
    assert curve is not None
    assert curve.expected[0] == pytest.approx(0.4)
    assert "hardly any gain" in curve.sentence("a")
