import numpy as np
import pytest

from potentia.errors import InputError
from potentia.papers.base_models.consistency import measure_consistency
from potentia.values.scores import ScoreMatrix

BASE = [f"b{i}" for i in range(8)]
PAIRS = {b: f"i{b[1:]}" for b in BASE}


def matrix(columns, protocol="direct", stderr=0.005):
    tasks = list(columns)
    values = np.column_stack([np.concatenate([b, i]) for b, i in columns.values()])
    return ScoreMatrix.build(
        [*BASE, *PAIRS.values()],
        tasks,
        values,
        stderr=np.full_like(values, stderr),
        protocol=protocol,
    )


GOOD = np.linspace(0.2, 0.9, 8)
SHUFFLED = GOOD[[3, 6, 1, 7, 0, 5, 2, 4]]


def test_same_order_gives_one_and_the_reverse_minus_one():
    consistency = measure_consistency(
        {"direct": matrix({"a": (GOOD, GOOD + 0.05), "z": (GOOD[::-1], GOOD)})}, PAIRS
    )
    assert {k.task: k.tau.value for k in consistency.links} == {"a": 1.0, "z": -1.0}
    assert {k.task: pytest.approx(k.gain) for k in consistency.links} == {"a": 0.05, "z": 0.0}


def test_instruct_models_are_scored_by_their_common_prompt():
    scores = {
        "direct": matrix(
            {
                "gsm8k": (SHUFFLED, SHUFFLED),
                "gsm8k:instruct": (SHUFFLED, GOOD),
                "gsm8k:iclip": (GOOD, SHUFFLED),
            }
        )
    }
    links = {k.method: k for k in measure_consistency(scores, PAIRS).links}
    assert {k.reference for k in links.values()} == {"instruct"}
    assert links["iclip"].tau.value == 1.0
    same = {k.method: k for k in measure_consistency(scores, PAIRS, reference="same").links}
    assert same["iclip"].reference == "iclip"
    assert same["iclip"].tau.value < 1.0
    named = {k.method: k for k in measure_consistency(scores, PAIRS, reference="direct").links}
    assert named["iclip"].tau.value == pytest.approx(same["iclip"].tau.value)


def test_improvement_is_the_difference_and_is_real_where_it_is_large():
    scores = {"direct": matrix({"t:instruct": (SHUFFLED, GOOD), "t:iclip": (GOOD, GOOD)})}
    consistency = measure_consistency(scores, PAIRS, baseline="instruct")
    (improvement,) = consistency.improvements
    taus = {k.method: k.tau.value for k in consistency.links}
    assert improvement.difference.value == pytest.approx(taus["iclip"] - taus["instruct"])
    assert improvement.real


def test_intervals_hold_the_value_and_widen_with_fewer_pairs():
    noisy = GOOD + np.array([0.1, -0.15, 0.1, -0.1, 0.15, -0.1, 0.1, -0.1])
    scores = {"direct": matrix({"t": (noisy, GOOD)})}
    many = measure_consistency(scores, PAIRS).links[0].tau
    few = measure_consistency(scores, dict(list(PAIRS.items())[:4])).links[0].tau
    assert many.low <= many.value <= many.high
    assert many.high - many.low < few.high - few.low


def test_pairs_without_both_scores_are_left_out():
    gap = GOOD.copy()
    gap[2] = np.nan
    link = measure_consistency({"direct": matrix({"t": (gap, GOOD)})}, PAIRS).links[0]
    assert len(link.pairs) == 7
    assert "b2" not in dict(link.pairs)
    assert np.isfinite([link.tau.low, link.tau.high]).all()


def test_too_few_pairs_are_refused():
    scores = {"direct": matrix({"t": (GOOD, GOOD)})}
    with pytest.raises(InputError, match="tau needs three"):
        measure_consistency(scores, dict(list(PAIRS.items())[:2]))
    with pytest.raises(InputError, match="no benchmark has scores"):
        measure_consistency(scores, {"x": "y", "v": "w", "u": "t"})
