"""What differences a study can find before it has run, and what it takes to find smaller ones.

The answer rests on assumptions (``stats.power``), which the table names: nobody knows the scores yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from potentia.analysis.stats.power import (
    POWER,
    USUAL_CLUSTER_CORRELATION,
    USUAL_TASK_DEVIATION,
    StudyDesign,
    count_examples_needed,
    count_seeds_needed,
    count_tasks_needed,
    find_detectable_difference,
)
from potentia.analysis.wording import format_count
from potentia.errors import InputError
from potentia.values.findings import Cell, Finding, Table

DIFFERENCES = (0.005, 0.01, 0.02, 0.05)  # that people ask about
MOST_SEEDS = 99
BEYOND_REACH = "none suffices"


@dataclass(frozen=True)
class TestSize:
    """The test of one task: its examples, and how many of them share a passage."""

    __test__ = False  # no test of pytest's

    examples: int
    cluster_size: float = 1.0  # of the cluster of an example drawn at random


@dataclass(frozen=True)
class StudyPower(Finding):
    """How small a difference of two models a study finds."""

    design: StudyDesign  # of the mean over these tasks
    differences: tuple[float, ...] = DIFFERENCES

    @property
    def design_beyond(self) -> StudyDesign:
        """The same where the answer is to hold for other tasks like these."""
        return replace(self.design, task_deviation=USUAL_TASK_DEVIATION)

    @property
    def detectable(self) -> float:
        """The smallest difference over these tasks that is found with 80 % power."""
        return find_detectable_difference(self.design)

    @property
    def detectable_beyond(self) -> float:
        """The smallest difference over tasks like these that is found with 80 % power."""
        return find_detectable_difference(self.design_beyond)

    def tables(self) -> Sequence[Table]:
        """Return what the study finds, and what it takes to find given differences."""
        return [self._tabulate_detectable(), self._tabulate_needs()]

    def _tabulate_detectable(self) -> Table:
        one_task = replace(self.design, tasks=1)
        rows: list[tuple[Cell, ...]] = [("one task", find_detectable_difference(one_task))]
        if self.design.tasks > 1:
            tasks = format_count(self.design.tasks, "task")
            rows.append((f"the mean over these {tasks}", self.detectable))
            rows.append(("tasks like these", self.detectable_beyond))
        title = f"The smallest difference of two models found with {100 * POWER:.0f} % power"
        return Table(title, ("on", "difference"), rows, self._describe_assumptions())

    def _tabulate_needs(self) -> Table:
        rows = []
        for difference in self.differences:
            rows.append(
                (
                    f"{difference:g}",
                    _format_need(count_examples_needed(self.design, difference)),
                    _format_seeds(count_seeds_needed(self.design, difference)),
                    _format_need(count_tasks_needed(self.design_beyond, difference)),
                )
            )
        examples = f"{self.design.examples:,.0f} examples"
        columns = (
            "difference",
            "examples a task",
            f"or seeds, with {examples}",
            f"tasks like these, with {examples}",
        )
        title = f"What it takes to find a difference with {100 * POWER:.0f} % power"
        return Table(title, columns, rows)

    def _describe_assumptions(self) -> str:
        """Say what is assumed of scores that nobody has seen."""
        design = self.design
        parts = [
            f"{design.examples:,.0f} test examples a task",
            format_count(design.seeds, "fine-tuning seed"),
            f"scores near {design.accuracy:g}",
            f"answers of two models that correlate by {design.correlation:g}",
            f"seeds that move a score by {design.seed_deviation:g}",
            f"true differences that vary by {USUAL_TASK_DEVIATION:g} over tasks",
        ]
        if design.cluster_size > 1.05:
            parts.append(
                f"clusters of {design.cluster_size:.1f} examples that correlate by "
                f"{design.cluster_correlation:g}"
            )
        return f"Assumed: {', '.join(parts)}. A two-sided paired test at 5 %."


def _format_need(count: int | None) -> str:
    return BEYOND_REACH if count is None else f"{count:,}"


def _format_seeds(count: int | None) -> str:
    if count is None or count > MOST_SEEDS:
        return BEYOND_REACH
    return str(count)


def estimate_study_power(tests: Mapping[str, TestSize], *, seeds: int = 1) -> StudyPower:
    """Return what differences a study with these tests and seeds can find."""
    sizes = [test for test in tests.values() if test.examples > 0]
    if not sizes:
        raise InputError("no task of the study has test examples")
    # The error of a mean over tasks has the harmonic mean of their examples in it.
    examples = len(sizes) / sum(1 / test.examples for test in sizes)
    cluster_size = sum(test.cluster_size for test in sizes) / len(sizes)
    has_clusters = cluster_size > 1
    return StudyPower(
        StudyDesign(
            examples=examples,
            tasks=len(sizes),
            seeds=seeds,
            cluster_size=cluster_size,
            cluster_correlation=USUAL_CLUSTER_CORRELATION if has_clusters else 0.0,
        )
    )
