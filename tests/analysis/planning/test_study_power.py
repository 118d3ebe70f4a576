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


def test_of_few_tasks_the_plan_promises_no_difference_on_others() -> None:
    """No ranking speaks of others below five tasks; with five Student's t asks for a third more than a normal law."""
    few = estimate_study_power({task: TestSize(1000) for task in ("piqa", "boolq")})
    assert list(few.tables()[0].rows)[-1] == ("tasks like these", "it takes 5 tasks or more")
    names = ("piqa", "boolq", "sciq", "race", "squad_completion")
    five = estimate_study_power({task: TestSize(1000) for task in names})
    by_normal_law = 2.80 * five.design_beyond.variance**0.5
    assert five.detectable_beyond == pytest.approx(1.33 * by_normal_law, rel=0.02)


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


def test_subsets_of_one_benchmark_are_one_task_of_many_examples() -> None:
    subsets = {f"law_{letter}": TestSize(100) for letter in "abcdefghij"}
    power = estimate_study_power({**subsets, "piqa": TestSize(1_000)})
    assert power.design.tasks == 2
    assert power.design.examples == pytest.approx(1_000)
    two_tasks = estimate_study_power({"arc_easy": TestSize(1_000), "piqa": TestSize(1_000)})
    assert power.detectable_beyond == pytest.approx(two_tasks.detectable_beyond)
    detectable, needs = power.tables()
    names = [str(row[0]) for row in detectable.rows]
    assert names == [
        "one benchmark",
        "the mean over these 11 tasks in 2 groups",
        "tasks like these",
    ]
    assert needs.columns[1] == "examples per benchmark"
