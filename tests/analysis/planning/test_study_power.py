"""Before a study: what differences it can find, and what it takes to find smaller ones."""

from __future__ import annotations

import pytest

from potentia.analysis.planning import TestSize, estimate_study_power
from potentia.analysis.stats.power import find_power
from potentia.errors import InputError


def test_tasks_of_unequal_size_count_by_their_errors() -> None:
    power = estimate_study_power({"a": TestSize(100), "b": TestSize(10_000)})
    assert power.design.examples == pytest.approx(2 / (1 / 100 + 1 / 10_000))
    assert find_power(power.design, power.detectable) == pytest.approx(0.8, abs=1e-4)
    assert power.detectable_beyond > power.detectable


def test_shared_passages_and_one_seed_are_told_and_cost() -> None:
    plain = estimate_study_power({"a": TestSize(1000)})
    clustered = estimate_study_power({"a": TestSize(1000, cluster_size=10)})
    assert clustered.detectable > 1.3 * plain.detectable
    table, needs = clustered.tables()
    assert "clusters of 10.0 examples" in (table.note or "")
    assert "1 fine-tuning seed" in (table.note or "")
    rows = {str(row[0]): list(row) for row in needs.rows}
    # Two seeds of 0.01 each are 0.014 of a difference: no test is large enough for 0.01.
    assert rows["0.01"][1] == "none suffices"
    # 0.2244 · (1 + 9 · 0.2) / ((0.05 / 2.8016)² − 2 · 0.01²) = 5301.6
    assert rows["0.05"][1] == "5,302"


def test_more_seeds_find_smaller_differences() -> None:
    tests = {name: TestSize(1000) for name in "abcd"}
    once = estimate_study_power(tests)
    twice = estimate_study_power(tests, seeds=2)
    assert twice.detectable < once.detectable


def test_a_study_without_tests_is_refused() -> None:
    with pytest.raises(InputError, match="no task"):
        estimate_study_power({})
