"""Rows in parts: where there are more workers than rows left, the tasks of a long row go to several of them.

A row's tasks are halved by their cost, and halved again, always in the same way: whoever plans the study finds the same
parts. How far to go is this run's choice; a part that was begun is neither divided nor joined, so that a run that goes
on with other workers finds its lanes. A part is leased as a row is, by its cells. Its model is loaded once more, and
its lanes have fewer beside them: a lane is the same alone and in company up to rounding. All that is adjusted belongs
to one tuning and stays together; an exposed copy is made once, and its row stays whole.

Where one task is longer than workers can wait for, the lanes of its grid train in several parts too, and one more, when
these have ended, finds them in their folder, holds the race, searches beyond the grid, chooses and tests.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from potentia.run.cost import (
    SCORING_FLOPS,
    count_exposure_tokens,
    count_work,
    find_parameters,
    find_train_factor,
)
from potentia.run.plan import Assignment, CellPlan, Row, StudyPlan
from potentia.run.progress import name_lanes_folder
from potentia.run.recipe import LanesBeginning
from potentia.values.protocol import TRAIN_BEFORE_TEST

if TYPE_CHECKING:
    from potentia.store import Store

LEAST_SECONDS = 600.0  # of a part's work, beside loading its model
# in a second, of lanes on an H200 and on a thread: only to tell minutes from hours
FLOPS = {"cuda": 2e14, "cpu": 5e10}
STEP_SECONDS = 0.01  # of a lane on a GPU, however small the model
LOAD_SECONDS = 25.0  # to start
LOAD_RATE = 1.5e9  # bytes of weights read in a second
TRIED_LIMITS = 40  # lengths of the longest part that are tried, each four fifths of the one before
# of the time that the study would take otherwise; lanes apart cost emptier passes
WORTHWHILE = 0.98
LANES_WORTHWHILE = 0.9
UNKNOWN_PARAMETERS = 1e9  # are taken for a model of unknown size

MAKING_A_COPY = ""  # stands for a task where the training of an exposed copy is priced

Tasks = tuple[str, ...]


@dataclass(frozen=True)
class TaskSeconds:
    """What is left of a task, in seconds: all, of it the lanes of its grid, and the least that one of them takes."""

    total: float = 0.0
    lanes: float = 0.0
    shortest_lane: float = 0.0


@dataclass(frozen=True)
class RowPart:
    """Some tasks of a row on one worker; or the lanes of one task on several."""

    tasks: Tasks
    lane_parts: int = 1


@dataclass(frozen=True)
class Chain:
    """The seconds of parts that train lanes, and of the one that waits for them."""

    lane_parts: Sequence[float]
    last: float

    @property
    def seconds(self) -> float:
        """The seconds from its begin to its end, where there are enough workers."""
        return max(self.lane_parts, default=0.0) + self.last


def divide_assignments(
    study_plan: StudyPlan,
    assignments: Sequence[Assignment],
    store: Store,
    workers: int,
    *,
    device: str,
    least_seconds: float = LEAST_SECONDS,
) -> list[Assignment]:
    """Return the assignments with pending cells, longest first, long ones in parts that keep ``workers`` busy.

    A row stays whole where parts would save no time. A part takes ``least_seconds`` or more. 0 stands for a user who
    asked for parts: they may be of any length, and loading is not counted. With infinity nothing new is divided: rows
    keep their order, and only the parts that an earlier run has begun are found again.
    """
    may_divide = least_seconds < math.inf
    document_counts = count_train_documents(study_plan)
    seconds: dict[str, dict[str, TaskSeconds]] = {}
    if may_divide:
        seconds = _estimate_seconds(study_plan, assignments, device)
    trees = []
    for assignment in assignments:
        load_seconds = 0.0
        if least_seconds:
            load_seconds = LOAD_SECONDS + 2 * _guess_parameters(assignment.row) / LOAD_RATE
        task_tree = _TaskTree(
            assignment.row,
            document_counts,
            seconds.get(assignment.model.name, {}),
            store=store,
            load_seconds=load_seconds,
        )
        trees.append(task_tree)
    has_several_workers = may_divide and workers > 1
    best_parts = _choose_parts(trees, workers, least_seconds if has_several_workers else math.inf)
    timed: list[tuple[float, Assignment]] = []
    for assignment, task_tree, parts in zip(assignments, trees, best_parts, strict=True):
        timed += task_tree.iterate_assignments(assignment, parts, divide_lanes=has_several_workers)
    if may_divide:
        timed.sort(key=lambda pair: -pair[0])
    return [assignment for _, assignment in timed if assignment.pending]


def _choose_parts(
    trees: Sequence[_TaskTree], workers: int, least_seconds: float
) -> list[list[RowPart]]:
    """Return the parts of every row that take the least time in all, none shorter than ``least_seconds``."""
    # what an earlier run has begun in parts stays so
    best_parts = [list(tree.find_parts(math.inf)) for tree in trees]
    shortest = _estimate_makespan(trees, best_parts, workers)
    longest = max((tree.sum_seconds(tree.tasks) for tree in trees), default=0.0)
    limits = [longest * 0.8**power for power in range(1, TRIED_LIMITS + 1)]
    limits = [limit for limit in limits if limit >= least_seconds]
    for (divide_lanes, worthwhile), limit in product(
        ((False, WORTHWHILE), (True, LANES_WORTHWHILE)), limits
    ):
        parts = [list(tree.find_parts(limit, divide_lanes=divide_lanes)) for tree in trees]
        makespan = _estimate_makespan(trees, parts, workers)
        if makespan < worthwhile * shortest:
            best_parts = parts
            shortest = makespan
    return best_parts


def count_train_documents(study_plan: StudyPlan) -> dict[str, int]:
    """Return how many training documents every task has; rows are halved by them."""
    return {
        task_name: len(task.documents("train"))
        for task_name, task in study_plan.tasks.by_name.items()
    }


def iterate_parts(row: Row, document_counts: Mapping[str, int]) -> Iterator[Row]:
    """Go through all parts that a row can be divided into, itself first."""
    yield row
    task_tree = _TaskTree(row, document_counts)
    if task_tree.tasks:
        for tasks in task_tree.iterate_below(task_tree.tasks):
            yield make_part(row, tasks)


def make_part(row: Row, tasks: Tasks, *, with_adjusted: bool = False) -> Row:
    """Return the cells of some tasks of a row; on demand also those that no part divides."""
    cells = []
    for cell in row.cells:
        belongs = with_adjusted if _is_adjusted(cell) else cell.task in tasks
        if belongs:
            cells.append(cell)
    return replace(row, cells=tuple(cells))


def _is_adjusted(cell: CellPlan) -> bool:
    return cell.protocol.kind == "adjust"


class _TaskTree:
    """The tasks of a row, halved and halved again."""

    def __init__(
        self,
        row: Row,
        document_counts: Mapping[str, int],
        seconds: Mapping[str, TaskSeconds] | None = None,
        *,
        store: Store | None = None,
        load_seconds: float = 0.0,
    ) -> None:
        self.row = row
        self.document_counts = document_counts
        self.seconds = seconds or {}
        self.store = store
        self.load_seconds = load_seconds
        self.tasks = self._list_tasks()
        self._read_begun = cache(self._read_begun_uncached)

    def _list_tasks(self) -> Tasks:
        """Return the tasks that can be divided, those to tune on first; none where the row stays whole."""
        stays_whole = self.row.model.copy_of is not None or self.row.problem
        tuned = [cell.task for cell in self.row.cells if cell.protocol == TRAIN_BEFORE_TEST]
        if stays_whole or not tuned:
            return ()
        all_tasks = [cell.task for cell in self.row.cells if not _is_adjusted(cell)]
        return tuple(dict.fromkeys([*tuned, *all_tasks]))

    def sum_seconds(self, tasks: Tasks) -> float:
        """Return the seconds of what is left of some tasks; without tasks, of all."""
        return sum(
            self.seconds[task].total for task in tasks or self.seconds if task in self.seconds
        )

    def estimate_chain(self, row_part: RowPart) -> Chain:
        """Return the seconds of a part of the row, each with its loading."""
        total = self.load_seconds + self.sum_seconds(row_part.tasks)
        if row_part.lane_parts == 1:
            return Chain((), total)
        seconds = self.seconds.get(row_part.tasks[0], TaskSeconds())
        lanes = self.row.study.lanes_per_task
        longest = seconds.lanes * math.ceil(lanes / row_part.lane_parts) / lanes
        lane_seconds = self.load_seconds + max(longest, seconds.shortest_lane)
        return Chain([lane_seconds] * row_part.lane_parts, total - seconds.lanes)

    def iterate_assignments(
        self, assignment: Assignment, parts: Sequence[RowPart], *, divide_lanes: bool
    ) -> Iterator[tuple[float, Assignment]]:
        """Go through the row in parts, each with the seconds until what it belongs to is done."""
        for index, row_part in enumerate(parts):
            divided = replace(assignment, lane_parts=row_part.lane_parts)
            if len(parts) > 1:
                row = make_part(self.row, row_part.tasks, with_adjusted=index == 0)
                divided = replace(divided, row=row, part=(index + 1, len(parts)))
            chain = self.estimate_chain(row_part)
            if chain.lane_parts and divide_lanes:
                tuned = [cell for cell in divided.cells if cell.protocol == TRAIN_BEFORE_TEST]
                lanes_row = replace(divided.row, cells=tuple(tuned))
                for lane_part in range(row_part.lane_parts):
                    yield chain.seconds, replace(divided, row=lanes_row, lane_part=lane_part)
            yield chain.seconds, divided

    def find_parts(self, limit: float, *, divide_lanes: bool = False) -> Iterator[RowPart]:
        """Go through the parts that take no longer than ``limit``; those that were begun stay as they are."""
        if self.tasks:
            yield from self._find_parts_below(self.tasks, limit, divide_lanes)
        else:
            yield RowPart(())

    def _find_parts_below(
        self, tasks: Tasks, limit: float, divide_lanes: bool
    ) -> Iterator[RowPart]:
        begun = self._read_begun(tasks)
        is_long = self.sum_seconds(tasks) > limit
        if begun is not None:
            yield RowPart(tasks, begun.lane_parts)
        elif len(tasks) > 1 and (is_long or any(map(self._read_begun, self.iterate_below(tasks)))):
            for half_of_tasks in self.halve(tasks):
                yield from self._find_parts_below(half_of_tasks, limit, divide_lanes)
        elif len(tasks) == 1 and divide_lanes and is_long:
            lanes = self.row.study.lanes_per_task
            lanes_at_once = int(lanes * limit / max(self.seconds[tasks[0]].lanes, limit))
            yield RowPart(tasks, math.ceil(lanes / max(1, lanes_at_once)))
        else:
            yield RowPart(tasks)

    def iterate_below(self, tasks: Tasks) -> Iterator[Tasks]:
        """Go through all parts of some tasks."""
        if len(tasks) > 1:
            for half_of_tasks in self.halve(tasks):
                yield half_of_tasks
                yield from self.iterate_below(half_of_tasks)

    def halve(self, tasks: Tasks) -> tuple[Tasks, Tasks]:
        """Deal tasks out to two, largest training split first; by sizes that no run changes."""
        halves: tuple[list[str], list[str]] = ([], [])
        loads = [0.0, 0.0]
        for task in sorted(tasks, key=lambda task: (-self.document_counts[task], task)):
            lighter = int(loads[1] < loads[0])
            halves[lighter].append(task)
            loads[lighter] += self.document_counts[task] + 1
        return tuple(halves[0]), tuple(halves[1])

    def _read_begun_uncached(self, tasks: Tasks) -> LanesBeginning | None:
        """Return how an earlier run, or another, has begun with just these tasks."""
        if self.store is None:
            return None
        folder_name = name_lanes_folder(make_part(self.row, tasks), TRAIN_BEFORE_TEST)
        folder = self.store.lanes_folder / folder_name
        begun = LanesBeginning.read(folder)
        if begun is None and folder.is_dir():
            return LanesBeginning(list(tasks), threads=0, lane_parts=1)
        return begun


def _estimate_seconds(
    study_plan: StudyPlan, assignments: Sequence[Assignment], device: str
) -> dict[str, dict[str, TaskSeconds]]:
    """Estimate the seconds of what is left, by row and task."""
    tuning = study_plan.study.tuning
    flops_per_second = FLOPS["cuda"]
    if device == "cpu":
        flops_per_second = FLOPS["cpu"] * max(1, assignments[0].threads)
    grid_share = len(tuning.learning_rates) / tuning.expected_lanes
    parameters = {
        assignment.model.name: _guess_parameters(assignment.row) for assignment in assignments
    }
    by_row: dict[str, dict[str, TaskSeconds]] = {model_name: {} for model_name in parameters}
    for cell_work in count_work(study_plan):
        if cell_work.finished or cell_work.model not in by_row:
            continue
        flops_of_cell = (
            SCORING_FLOPS * parameters[cell_work.model] * cell_work.work_in_scored_tokens
        )
        seconds = flops_of_cell / flops_per_second
        before = by_row[cell_work.model].get(cell_work.task, TaskSeconds())
        task_seconds = replace(before, total=before.total + seconds)
        if cell_work.protocol == TRAIN_BEFORE_TEST:
            updates = tuning.count_updates(
                len(study_plan.tasks.by_name[cell_work.task].documents("train"))
            )
            task_seconds = replace(
                task_seconds,
                lanes=grid_share * seconds,
                shortest_lane=0.0 if device == "cpu" else STEP_SECONDS * updates,
            )
        by_row[cell_work.model][cell_work.task] = task_seconds
    exposure = study_plan.study.treat
    flops_per_exposure_parameter = 0.0
    if exposure is not None:
        train_factor = find_train_factor(exposure.make_tuning(tuning).method)
        flops_per_exposure_parameter = (
            SCORING_FLOPS * train_factor * count_exposure_tokens(study_plan)
        )
    for assignment in assignments:
        model_name = assignment.model.name
        if assignment.model.copy_of is not None:  # it is made first
            flops_of_copy = flops_per_exposure_parameter * parameters[model_name]
            by_row[model_name][MAKING_A_COPY] = TaskSeconds(flops_of_copy / flops_per_second)
    return by_row


def _guess_parameters(row: Row) -> float:
    parameters = find_parameters(row.model)
    return parameters if np.isfinite(parameters) else UNKNOWN_PARAMETERS


def _estimate_makespan(
    trees: Sequence[_TaskTree], parts_by_tree: Sequence[Sequence[RowPart]], workers: int
) -> float:
    chains = []
    for tree, parts in zip(trees, parts_by_tree, strict=True):
        chains += [tree.estimate_chain(row_part) for row_part in parts]
    return simulate_makespan(chains, workers)


def simulate_makespan(chains: Sequence[Chain], workers: int) -> float:
    """Return how long all parts take, handed out longest first; the last of a chain as soon as it need not wait."""
    free_at = [0.0] * max(workers, 1)  # when each worker is free
    waiting = []
    for index, chain in enumerate(chains):
        for seconds in chain.lane_parts or [chain.last]:
            waiting.append((chain.seconds, index, seconds))
    waiting.sort()
    unfinished_lane_parts = [len(chain.lane_parts) for chain in chains]
    last_parts: list[tuple[float, float]] = []  # from when, and how long
    while waiting or last_parts:
        if last_parts and (last_parts[0][0] <= free_at[0] or not waiting):
            ready_at, seconds = heapq.heappop(last_parts)
            heapq.heapreplace(free_at, max(ready_at, free_at[0]) + seconds)
            continue
        _, index, seconds = waiting.pop()
        end_time = free_at[0] + seconds
        heapq.heapreplace(free_at, end_time)
        unfinished_lane_parts[index] -= 1
        # those of a chain are as long as each other: the last to begin ends last
        if unfinished_lane_parts[index] == 0:
            heapq.heappush(last_parts, (end_time, chains[index].last))
    return max(free_at)
