"""What differences a study can find before it has run, and what it takes to find smaller ones.

The answer rests on assumptions (``stats.power``), which the table names: nobody knows the scores yet. Tasks of one
benchmark count as one, as in every ranking: their examples are those of one test.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from potentia.analysis.stats.first_place import ENOUGH_TASKS
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
from potentia.errors import InputError
from potentia.facts import find_task_groups
from potentia.values.findings import Finding, Table, TableValue, ValuedText
from potentia.values.wording import format_count

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

    design: StudyDesign  # of the mean over these tasks, or over the benchmarks that they are of
    tasks: int  # of which several may be of one benchmark
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
        """The smallest difference over tasks like these found with 80 % power; infinite below five tasks."""
        return find_detectable_difference(self.design_beyond)

    def tables(self) -> Sequence[Table]:
        """Return what the study finds, and what it takes to find given differences."""
        return [self._tabulate_detectable(), self._tabulate_needs()]

    def _tabulate_detectable(self) -> Table:
        one_task = replace(self.design, tasks=1)
        smallest = find_detectable_difference(one_task)
        table_rows: list[tuple[TableValue, ...]] = [(f"one {self._unit}", smallest)]
        if self.design.tasks > 1:
            tasks = format_count(self.tasks, "task")
            if self._has_groups:
                tasks += f" in {format_count(self.design.tasks, 'group')}"
            table_rows.append((f"the mean over these {tasks}", self.detectable))
            beyond: TableValue = self.detectable_beyond
            if math.isinf(self.detectable_beyond):
                beyond = f"it takes {ENOUGH_TASKS} tasks or more"
            table_rows.append(("tasks like these", beyond))
        title = f"The smallest difference of two models found with {100 * POWER:.0f} % power"
        return Table(title, ("on", "difference"), table_rows, self._describe_assumptions())

    def _tabulate_needs(self) -> Table:
        table_rows = []
        for difference in self.differences:
            table_rows.append(
                (
                    ValuedText(f"{difference:g}", value=difference),
                    _format_need(count_examples_needed(self.design, difference)),
                    _format_seeds(count_seeds_needed(self.design, difference)),
                    _format_need(count_tasks_needed(self.design_beyond, difference)),
                )
            )
        examples = f"{self.design.examples:,.0f} examples"
        column_names = (
            "difference",
            f"examples per {self._unit}",
            f"or seeds, with {examples}",
            f"tasks like these, with {examples}",
        )
        title = f"What it takes to find a difference with {100 * POWER:.0f} % power"
        return Table(title, column_names, table_rows)

    @property
    def _has_groups(self) -> bool:
        """Whether several tasks are of one benchmark."""
        return self.design.tasks < self.tasks

    @property
    def _unit(self) -> str:
        """What is counted."""
        return "benchmark" if self._has_groups else "task"

    def _describe_assumptions(self) -> str:
        """Say what is assumed of scores that nobody has seen."""
        design = self.design
        parts = [
            f"{design.examples:,.0f} test examples per {self._unit}",
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
    return BEYOND_REACH if count is None else ValuedText(f"{count:,}", value=count)


def _format_seeds(count: int | None) -> str:
    if count is None or count > MOST_SEEDS:
        return BEYOND_REACH
    return ValuedText(str(count), value=count)


def estimate_study_power(tests: Mapping[str, TestSize], *, seeds: int = 1) -> StudyPower:
    """Return what differences a study with these tests and seeds can find."""
    sizes = [test_size for test_size in tests.values() if test_size.examples > 0]
    if not sizes:
        raise InputError("no task of the study has test examples")
    tested_tasks = [task for task, test_size in tests.items() if test_size.examples > 0]
    sizes_by_group: dict[str, list[TestSize]] = {}
    for task, group in find_task_groups(tested_tasks).items():
        sizes_by_group.setdefault(group, []).append(tests[task])
    # The error of a mean over tasks has the harmonic mean of their examples in it; that of a mean within a benchmark
    # is of all its examples.
    inverse_sizes = [
        sum(1 / test_size.examples for test_size in members) / len(members) ** 2
        for members in sizes_by_group.values()
    ]
    examples = len(inverse_sizes) / sum(inverse_sizes)
    cluster_size = sum(test_size.cluster_size for test_size in sizes) / len(sizes)
    has_clusters = cluster_size > 1
    return StudyPower(
        StudyDesign(
            examples=examples,
            tasks=len(sizes_by_group),
            seeds=seeds,
            cluster_size=cluster_size,
            cluster_correlation=USUAL_CLUSTER_CORRELATION if has_clusters else 0.0,
        ),
        tasks=len(sizes),
    )
