"""Sample sizes before a study, against statsmodels and simulated studies."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from potentia.analysis.stats.power import (
    StudyDesign,
    count_examples_needed,
    count_seeds_needed,
    count_tasks_needed,
    find_detectable_difference,
    find_power,
)
from potentia.errors import InputError

PLAIN = StudyDesign(examples=1000, seed_deviation=0.0)


def test_examples_needed_are_millers() -> None:
    """Miller 2024, section 5: n = (z_α/2 + z_β)² ω² / δ²; ω² = 1/9 and δ = 0.03 give 969 examples."""
    design = replace(PLAIN, accuracy=0.5, correlation=1 - 2 / 9)
    assert design.example_variance == pytest.approx(1 / 9)
    assert count_examples_needed(design, 0.03) == 969


def test_examples_needed_are_statsmodels() -> None:
    power = pytest.importorskip("statsmodels.stats.power")
    effect = 0.05 / math.sqrt(PLAIN.example_variance)
    expected = power.NormalIndPower(ddof=0).solve_power(
        effect, power=0.8, alpha=0.05, ratio=0, alternative="two-sided"
    )
    assert count_examples_needed(PLAIN, 0.05) == pytest.approx(expected, abs=1)


def test_the_detectable_difference_is_found_in_80_per_cent() -> None:
    difference = find_detectable_difference(PLAIN)
    assert find_power(PLAIN, difference) == pytest.approx(0.8, abs=1e-4)
    assert count_examples_needed(PLAIN, difference) in (1000, 1001)


def test_power_holds_in_simulated_studies_with_clusters_seeds_and_tasks() -> None:
    design = StudyDesign(
        examples=400,
        tasks=6,
        seeds=2,
        seed_deviation=0.02,
        task_deviation=0.02,
        cluster_size=8,
        cluster_correlation=0.25,
    )
    difference = find_detectable_difference(design)
    rng = np.random.default_rng(0)
    studies = 3_000
    deviation = math.sqrt(design.example_variance)
    shape = (studies, design.tasks, 50)
    shared = rng.standard_normal((*shape, 1)) * math.sqrt(0.25)
    single = rng.standard_normal((*shape, 8)) * math.sqrt(0.75)
    means = deviation * (shared + single).mean(axis=(2, 3))
    seeds = rng.normal(0, 0.02, (studies, design.tasks, 2, 2)).mean(axis=3)
    means += seeds[..., 0] - seeds[..., 1] + rng.normal(difference, 0.02, means.shape)
    z = (means.mean(axis=1) - difference) / math.sqrt(design.variance)
    assert z.std() == pytest.approx(1.0, abs=0.05)
    # The variance over tasks is not known: five tasks of 3.7 standard errors, where 2.8 would do if it were.
    is_found = ttest_1samp(means, 0.0, axis=1).pvalue < 0.05
    assert is_found.mean() == pytest.approx(0.8, abs=0.025)
    assert find_power(design, difference) == pytest.approx(0.8, abs=1e-4)


def test_fewer_than_five_tasks_say_nothing_of_others() -> None:
    design = replace(PLAIN, tasks=4, task_deviation=0.03)
    assert find_detectable_difference(design) == math.inf
    assert find_power(design, 0.5) == 0.0
    assert count_examples_needed(design, 0.5) is None
    assert count_tasks_needed(design, 0.5) == 5


@pytest.mark.parametrize("difference", [0.01, 0.02, 0.05])
def test_so_many_tasks_do_and_one_less_does_not(difference: float) -> None:
    design = replace(PLAIN, task_deviation=0.03)
    tasks = count_tasks_needed(design, difference)
    assert find_detectable_difference(replace(design, tasks=tasks)) <= difference
    assert find_detectable_difference(replace(design, tasks=tasks - 1)) > difference


def test_clusters_need_more_examples() -> None:
    clustered = replace(PLAIN, cluster_size=10, cluster_correlation=0.3)
    assert clustered.design_effect == pytest.approx(3.7)
    plain = count_examples_needed(PLAIN, 0.03)
    needed = count_examples_needed(clustered, 0.03)
    assert plain is not None
    assert needed == pytest.approx(3.7 * plain, rel=0.01)


def test_no_number_of_examples_helps_against_seeds() -> None:
    noisy = StudyDesign(examples=1000, seed_deviation=0.05)
    assert count_examples_needed(noisy, 0.02) is None
    # 2 · 0.05² / ((0.05 / 2.8016)² − 0.2244 / 1000) = 53.1
    assert count_seeds_needed(noisy, 0.05) == 54
    assert count_seeds_needed(noisy, 0.02) is None
    assert count_tasks_needed(noisy, 0.02) > 50


def test_an_impossible_design_is_refused() -> None:
    with pytest.raises(InputError, match="at least one"):
        StudyDesign(examples=0)
    with pytest.raises(InputError, match="accuracy"):
        StudyDesign(examples=10, accuracy=1.0)
