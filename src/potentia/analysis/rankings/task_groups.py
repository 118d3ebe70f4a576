"""The tasks of a matrix in groups of one benchmark each: scores are averaged within a group, and groups are counted.

Subsets of one benchmark are no independent tasks: a model that is good at one is good at the others, whatever it does
elsewhere. ``potentia.facts.task_groups`` decides which tasks belong together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from potentia.analysis.wording import join_names
from potentia.facts import find_task_groups
from potentia.values.scores import Floats
from potentia.values.wording import format_count

MOST_GROUPS_NAMED = 4


@dataclass(frozen=True)
class TaskGroups:
    """Some tasks, and the group of each."""

    tasks: tuple[str, ...]
    group_of_task: tuple[str, ...]

    @classmethod
    def find(
        cls, tasks: Sequence[str], named_groups: Mapping[str, str] | None = None
    ) -> TaskGroups:
        """Find the groups of these tasks; ``named_groups`` are groups by task that the user names."""
        groups = find_task_groups(tasks, named_groups)
        return cls(tuple(tasks), tuple(groups[task] for task in tasks))

    def select(self, tasks: Sequence[str]) -> TaskGroups:
        """Return the groups of some of the tasks."""
        group_by_task = dict(zip(self.tasks, self.group_of_task, strict=True))
        return TaskGroups(tuple(tasks), tuple(group_by_task[task] for task in tasks))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The groups, in the order of their first task."""
        return tuple(dict.fromkeys(self.group_of_task))

    @cached_property
    def positions(self) -> npt.NDArray[np.intp]:
        """The position of every task's group: (tasks,)."""
        position_of_group = {name: position for position, name in enumerate(self.names)}
        return np.array([position_of_group[group] for group in self.group_of_task], dtype=np.intp)

    @cached_property
    def shares(self) -> Floats:
        """The share of each task in its group: (tasks,)."""
        sizes = np.bincount(self.positions, minlength=len(self.names))
        return np.asarray(1.0 / sizes[self.positions])

    @property
    def weights(self) -> Floats:
        """The weight of each task in a mean over groups: (tasks,)."""
        return self.shares / max(len(self.names), 1)

    def average(self, scores: Floats) -> Floats:
        """Average (…, tasks) within each group: (…, groups)."""
        if not self.has_several_tasks_in_one:
            return scores
        averaging = np.zeros((len(self.tasks), len(self.names)))
        averaging[np.arange(len(self.tasks)), self.positions] = self.shares
        return np.asarray(scores @ averaging)

    @property
    def has_several_tasks_in_one(self) -> bool:
        """Whether a group has more than one task."""
        return len(self.names) < len(self.tasks)

    def count_by_model(self, measured: npt.NDArray[np.bool_]) -> npt.NDArray[np.intp]:
        """Return how many groups each model of (models, tasks) was measured on."""
        groups = np.zeros((len(measured), len(self.names)), dtype=bool)
        for column, position in enumerate(self.positions):
            groups[:, position] |= measured[:, column]
        return np.asarray(groups.sum(axis=1), dtype=np.intp)

    def describe_size(self) -> str:
        """Say how many tasks there are, and in how many groups where that is fewer."""
        tasks = format_count(len(self.tasks), "task")
        if not self.has_several_tasks_in_one:
            return tasks
        return f"{tasks} in {format_count(len(self.names), 'group')}"

    def describe_groups(self) -> str:
        """Say which tasks count as one, and how to change that; nothing where each counts by itself."""
        if not self.has_several_tasks_in_one:
            return ""
        sizes = Counter(self.group_of_task)
        large_groups = [(group, size) for group, size in sizes.most_common() if size > 1]
        named = [f"{group} ({size})" for group, size in large_groups[:MOST_GROUPS_NAMED]]
        if len(large_groups) > MOST_GROUPS_NAMED:
            named.append(f"{len(large_groups) - MOST_GROUPS_NAMED} other groups")
        verb = "count" if len(named) > 1 else "counts"
        return (
            f"Tasks of one benchmark count as one task: {join_names(named)} {verb} once each."
            if len(named) > 1
            else f"Tasks of one benchmark count as one task: {named[0]} {verb} once."
        ) + " Change this with task_groups in --columns FILE."
