"""Rows in parts: where there are more workers than rows left, the tasks of a long row go to several of them.

A row's tasks are halved by their cost, and halved again, always in the same way: whoever plans the study finds the same
parts. How far to go is this run's choice; a part that was begun is neither divided nor joined, so that a run that goes
on with other workers finds its lanes. A part is leased as a row is, by its cells. Its model is loaded once more, and
its lanes have fewer beside them: a lane is the same alone and in company up to rounding. All that is adjusted belongs
to one tuning and stays together; a treated copy is made once, and its row stays whole.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from potentia.run.cost import parameters_of, tokens_shown, work_of
from potentia.run.plan import CellPlan, RowPlan, StudyPlan
from potentia.run.progress import lanes_name
from potentia.values.protocol import TRAIN_BEFORE_TEST

if TYPE_CHECKING:
    from potentia.store import Store

LEAST_SECONDS = 600.0  # of a part's work, beside loading its model
FLOPS = {"cuda": 2e14, "cpu": 5e10}  # in a second, of lanes on an H200 and on a thread: only to tell minutes from hours
LOAD_SECONDS, LOAD_RATE = 25.0, 1.5e9  # to start, and bytes of weights read in a second
CUTS = 40  # lengths of the longest part that are tried, each four fifths of the one before
WORTH = 0.98  # of the time that the study would take otherwise

MAKING = ""  # stands for a task where a copy's treatment is priced

Tasks = tuple[str, ...]
Prices = Mapping[str, float]  # seconds by task


def in_parts(
    plan: StudyPlan, rows: Sequence[RowPlan], store: Store, workers: int, *, device: str, least: float = LEAST_SECONDS
) -> list[RowPlan]:
    """Return the rows, longest first, those in parts that keep workers busy; as they are where nothing is gained.

    A part takes ``least`` seconds or more; with 0 loading is not counted either, and with infinity nothing is divided.
    What an earlier run has begun in parts is found in any case.
    """
    asked = least < float("inf")
    prices = _prices(plan, rows, device) if asked else {row.model.name: {} for row in rows}
    sizes = train_sizes(plan)
    trees = {row.model.name: _Tree(row, sizes, prices[row.model.name], store) for row in rows}
    loads = {row.model.name: LOAD_SECONDS + 2 * _size(row) / LOAD_RATE if least > 0 else 0.0 for row in rows}

    def divided(limit: float) -> dict[str, list[Tasks]]:
        return {name: list(tree.leaves(limit)) for name, tree in trees.items()}

    def span(cut: Mapping[str, list[Tasks]]) -> float:
        return _span([loads[n] + trees[n].price(leaf) for n, leaves in cut.items() for leaf in leaves], workers)

    best = divided(float("inf"))  # what an earlier run has begun in parts stays so
    shortest = span(best)
    limit = 0.8 * max((tree.price(tree.tasks) for tree in trees.values()), default=0.0)
    for _ in range(CUTS if asked else 0):
        if limit < least:
            break
        cut = divided(limit)
        if span(cut) < WORTH * shortest:
            best, shortest = cut, span(cut)
        limit *= 0.8
    made = [
        (loads[row.model.name] + trees[row.model.name].price(leaf), part)
        for row in rows
        for leaf, part in zip(best[row.model.name], _parts(row, best[row.model.name]), strict=True)
    ]
    if asked:
        made.sort(key=lambda pair: -pair[0])
    return [part for _, part in made if part.pending]


def train_sizes(plan: StudyPlan) -> dict[str, int]:
    """Return the training documents of every task, by which rows are halved."""
    return {name: len(task.documents("train")) for name, task in plan.tasks.benchmarks.items()}


def every_part(row: RowPlan, sizes: Mapping[str, int]) -> Iterator[RowPlan]:
    """Go through all parts that a row can be divided into, itself first."""
    yield row
    tree = _Tree(row, sizes, {}, None)
    for tasks in tree.below(tree.tasks) if tree.tasks else ():
        yield part_of(row, tasks)


def part_of(row: RowPlan, tasks: Tasks, *, rest: bool = False, number: tuple[int, int] | None = None) -> RowPlan:
    """Return the cells of some tasks of a row; with ``rest``, also those that no part divides."""
    cells = tuple(c for c in row.cells if (rest if _together(c) else c.task in tasks))
    return replace(row, cells=cells, part=number)


def _parts(row: RowPlan, leaves: Sequence[Tasks]) -> list[RowPlan]:
    if len(leaves) == 1:
        return [row]
    return [part_of(row, leaf, rest=k == 0, number=(k + 1, len(leaves))) for k, leaf in enumerate(leaves)]


def _together(cell: CellPlan) -> bool:
    return cell.protocol.kind == "adjust"


class _Tree:
    """The tasks of a row, halved and halved again."""

    def __init__(self, row: RowPlan, sizes: Mapping[str, int], prices: Prices, store: Store | None) -> None:
        self.row, self.sizes, self.prices, self.store = row, sizes, prices, store
        whole = row.model.copy_of is not None or row.problem
        tuned = [cell.task for cell in row.cells if cell.protocol == TRAIN_BEFORE_TEST]
        others = [cell.task for cell in row.cells if not _together(cell)]
        self.tasks: Tasks = () if whole or not tuned else tuple(dict.fromkeys([*tuned, *others]))

    def price(self, tasks: Tasks) -> float:
        """Return the seconds of what is left of some tasks."""
        return sum(self.prices.get(task, 0.0) for task in tasks or self.prices)

    def leaves(self, limit: float) -> Iterator[Tasks]:
        """Go through the parts that take no longer than ``limit``; those begun as they were begun."""
        yield from self._leaves(self.tasks, limit) if self.tasks else [()]

    def _leaves(self, tasks: Tasks, limit: float) -> Iterator[Tasks]:
        if len(tasks) < 2 or self._begun(tasks):
            yield tasks
        elif self.price(tasks) > limit or any(self._begun(part) for part in self.below(tasks)):
            for half in self.halves(tasks):
                yield from self._leaves(half, limit)
        else:
            yield tasks

    def below(self, tasks: Tasks) -> Iterator[Tasks]:
        """Go through all parts of some tasks."""
        for half in self.halves(tasks) if len(tasks) > 1 else ():
            yield half
            yield from self.below(half)

    def halves(self, tasks: Tasks) -> tuple[Tasks, Tasks]:
        """Deal tasks out to two, largest training split first; by sizes that no run changes."""
        dealt: tuple[list[str], list[str]] = ([], [])
        loads = [0.0, 0.0]
        for task in sorted(tasks, key=lambda task: (-self.sizes[task], task)):
            k = int(loads[1] < loads[0])
            dealt[k].append(task)
            loads[k] += self.sizes[task] + 1
        return tuple(dealt[0]), tuple(dealt[1])

    def _begun(self, tasks: Tasks) -> bool:
        if self.store is None:
            return False
        return (self.store.lanes_folder / lanes_name(part_of(self.row, tasks), TRAIN_BEFORE_TEST)).is_dir()


def _prices(plan: StudyPlan, rows: Sequence[RowPlan], device: str) -> dict[str, dict[str, float]]:
    """Estimate the seconds of what is left, by row and task."""
    rate = FLOPS["cuda" if device != "cpu" else "cpu"] * (1 if device != "cpu" else max(1, rows[0].threads))
    found: dict[str, dict[str, float]] = {row.model.name: {} for row in rows}
    sizes = {row.model.name: _size(row) for row in rows}
    for work in work_of(plan):
        if not work.done and work.model in found:
            flops = sizes[work.model] * (4 * work.train_tokens + 2 * work.score_tokens)
            tasks = found[work.model]
            tasks[work.task] = tasks.get(work.task, 0.0) + flops / rate
    for row in rows:
        if row.model.copy_of is not None:  # it is made first
            found[row.model.name][MAKING] = 4 * sizes[row.model.name] * tokens_shown(plan) / rate
    return found


def _size(row: RowPlan) -> float:
    size = parameters_of(row.model)
    return size if np.isfinite(size) else 1e9


def _span(seconds: Sequence[float], workers: int) -> float:
    """Return how long all parts take, handed out longest first."""
    free = [0.0] * max(workers, 1)
    for one in sorted(seconds, reverse=True):
        heapq.heapreplace(free, free[0] + one)
    return max(free)
