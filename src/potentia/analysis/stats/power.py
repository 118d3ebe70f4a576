"""Before a study: how small a difference it can find, and how many examples, tasks and seeds it takes to find one.

Two models answer the same n examples of each of T tasks, after S fine-tunings each. The difference of their mean scores
has the variance (Miller 2024, arXiv 2411.00640, with tasks and seeds added)

    V = (v_example · D / n + 2 v_seed / S + v_task) / T,

where v_example = 2p(1 − p)(1 − ρ) is that of the difference on one example (accuracy p, correlation ρ of two models'
answers), D = 1 + (m − 1)·ICC what clusters of m examples cost, v_seed that of a score over fine-tunings, and
v_task that of the true difference over tasks. A two-sided test at 5 % finds a difference of (1.96 + 0.84)·√V with a
power of 80 %. v_task counts where the answer is to hold for other tasks like these, and not for these alone: V is then
estimated from the T tasks, so the test is Student's t with T − 1 degrees of freedom, as in every ranking, and it takes
5 tasks at least.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from scipy.optimize import brentq
from scipy.stats import nct, norm
from scipy.stats import t as student_t

from potentia.analysis.stats.bootstrap import LEVEL
from potentia.analysis.stats.first_place import ENOUGH_TASKS
from potentia.errors import InputError

POWER = 0.8
# What is assumed of a study that has not run. Accuracy and the spread over tasks are those of the 61 models × 24 tasks
# of the train-before-test paper after tuning (mean 0.66; 0.030 is the median of models next to each other in the
# ranking, test noise taken out). Answers of two models correlate by 0.3 to 0.7 (Miller 2024). Seeds and clusters are
# assumptions: `seed_check` measures the first.
USUAL_ACCURACY = 0.66
USUAL_CORRELATION = 0.5  # of the answers of two fine-tuned models, example by example
USUAL_SEED_DEVIATION = 0.01  # of a score over fine-tunings with other seeds
USUAL_TASK_DEVIATION = 0.03  # of the true difference of two models over tasks
USUAL_CLUSTER_CORRELATION = 0.2  # of the differences within a passage


@dataclass(frozen=True)
class StudyDesign:
    """What decides how small a difference a study finds."""

    examples: float  # test examples of a task
    tasks: int = 1
    seeds: int = 1
    accuracy: float = USUAL_ACCURACY
    correlation: float = USUAL_CORRELATION  # of two models' answers
    seed_deviation: float = USUAL_SEED_DEVIATION
    task_deviation: float = 0.0  # 0: the answer is to hold for these tasks alone
    cluster_size: float = 1.0  # examples that share a passage
    cluster_correlation: float = 0.0  # of the differences within a cluster

    def __post_init__(self) -> None:
        if self.examples < 1 or self.tasks < 1 or self.seeds < 1 or self.cluster_size < 1:
            raise InputError(
                "a design needs at least one example, task and seed, and clusters of one"
            )
        if not 0 < self.accuracy < 1:
            raise InputError(
                f"an accuracy of {self.accuracy:g} leaves no room for a difference",
                hint="between 0 and 1",
            )

    @property
    def design_effect(self) -> float:
        """How many times as many examples clusters make necessary."""
        return 1 + (self.cluster_size - 1) * self.cluster_correlation

    @property
    def example_variance(self) -> float:
        """The variance of the difference of two models on one example."""
        return 2 * self.accuracy * (1 - self.accuracy) * (1 - self.correlation)

    @property
    def variance(self) -> float:
        """The variance of the difference of two models' mean scores."""
        of_examples = self.example_variance * self.design_effect / self.examples
        of_seeds = 2 * self.seed_deviation**2 / self.seeds
        return (of_examples + of_seeds + self.task_deviation**2) / self.tasks

    @property
    def speaks_of_other_tasks(self) -> bool:
        """Whether the answer is to hold for other tasks like these."""
        return self.task_deviation > 0


def detectable_z(*, level: float = LEVEL, power: float = POWER) -> float:
    """Return how many standard errors a difference must have to be found with this power by a two-sided test."""
    return float(norm.ppf(0.5 + level / 2) + norm.ppf(power))


def detectable_errors(design: StudyDesign, *, level: float = LEVEL, power: float = POWER) -> float:
    """Return the same for the test of a design; infinite where too few tasks say nothing of others."""
    if not design.speaks_of_other_tasks:
        return detectable_z(level=level, power=power)
    if design.tasks < ENOUGH_TASKS:
        return math.inf
    threshold = float(student_t.ppf(0.5 + level / 2, design.tasks - 1))

    def excess_power(errors: float) -> float:
        return float(nct.sf(threshold, design.tasks - 1, errors)) - power

    return float(brentq(excess_power, 0.0, 2 * threshold + 10))


def find_detectable_difference(
    design: StudyDesign, *, level: float = LEVEL, power: float = POWER
) -> float:
    """Return the smallest true difference of two models that a study finds with this power."""
    return detectable_errors(design, level=level, power=power) * math.sqrt(design.variance)


def find_power(design: StudyDesign, difference: float, *, level: float = LEVEL) -> float:
    """Return how likely a study finds a true difference."""
    if design.speaks_of_other_tasks:
        return _find_power_over_tasks(design, difference, level)
    threshold = float(norm.ppf(0.5 + level / 2))
    z = abs(difference) / math.sqrt(design.variance)
    return float(norm.sf(threshold - z) + norm.cdf(-threshold - z))


def _find_power_over_tasks(design: StudyDesign, difference: float, level: float) -> float:
    """Return how likely Student's t over tasks finds a true difference; 0 where too few tasks say nothing of others."""
    if design.tasks < ENOUGH_TASKS:
        return 0.0
    freedom = design.tasks - 1
    threshold = float(student_t.ppf(0.5 + level / 2, freedom))
    errors = abs(difference) / math.sqrt(design.variance)
    return float(nct.sf(threshold, freedom, errors) + nct.cdf(-threshold, freedom, errors))


def count_examples_needed(
    design: StudyDesign, difference: float, *, level: float = LEVEL, power: float = POWER
) -> int | None:
    """Return how many examples a task needs to find a difference; None where no number of examples would do."""
    errors = detectable_errors(design, level=level, power=power)
    allowed = design.tasks * (difference / errors) ** 2
    allowed -= 2 * design.seed_deviation**2 / design.seeds + design.task_deviation**2
    if allowed <= 0:
        return None
    return math.ceil(design.example_variance * design.design_effect / allowed)


def count_tasks_needed(
    design: StudyDesign, difference: float, *, level: float = LEVEL, power: float = POWER
) -> int:
    """Return how many tasks with so many examples each find a difference."""
    per_task = replace(design, tasks=1).variance
    tasks = math.ceil(per_task * (detectable_z(level=level, power=power) / difference) ** 2)
    if not design.speaks_of_other_tasks:
        return tasks
    # The errors of Student's t depend on the number of tasks; it takes a few more than the normal law says.
    tasks = max(tasks, ENOUGH_TASKS)
    while (
        find_detectable_difference(replace(design, tasks=tasks), level=level, power=power)
        > difference
    ):
        tasks += 1
    return tasks


def count_seeds_needed(
    design: StudyDesign, difference: float, *, level: float = LEVEL, power: float = POWER
) -> int | None:
    """Return how many fine-tunings of each model find a difference; None where no number of them would do."""
    errors = detectable_errors(design, level=level, power=power)
    allowed = design.tasks * (difference / errors) ** 2
    allowed -= design.example_variance * design.design_effect / design.examples
    allowed -= design.task_deviation**2
    if allowed <= 0:
        return None
    return max(1, math.ceil(2 * design.seed_deviation**2 / allowed))
