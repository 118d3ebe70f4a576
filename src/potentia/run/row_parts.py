"""Rows in parts: where there are more workers than rows left, the tasks of a long row go to several of them.

A row's tasks are halved by their cost, and halved again, always in the same way: whoever plans the study finds the same
parts. How far to go is this run's choice; a part that was begun is neither divided nor joined, so that a run that goes
on with other workers finds its lanes. A part is leased as a row is, by its cells. Its model is loaded once more, and
its lanes have fewer beside them: a lane is the same alone and in company up to rounding. All that is adjusted belongs
to one tuning and stays together; a treated copy is made once, and its row stays whole.

Where one task is longer than workers can wait for, the lanes of its grid train in several parts too, and one more, when
these have ended, finds them in their folder, holds the race, searches beyond the grid, chooses and tests.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from potentia.run.cost import count_exposure_tokens, count_work, find_parameters
from potentia.run.plan import CellPlan, Row, StudyPlan
from potentia.run.progress import name_lanes_folder
from potentia.run.tuned import Begun
from potentia.values.protocol import TRAIN_BEFORE_TEST

if TYPE_CHECKING:
    from potentia.store import Store

LEAST_SECONDS = 600.0  # of a part's work, beside loading its model
FLOPS = {
    "cuda": 2e14,
    "cpu": 5e10,
}  # in a second, of lanes on an H200 and on a thread: only to tell minutes from hours
STEP_SECONDS = 0.01  # of a lane on a GPU, however small the model
LOAD_SECONDS, LOAD_RATE = 25.0, 1.5e9  # to start, and bytes of weights read in a second
CUTS = 40  # lengths of the longest part that are tried, each four fifths of the one before
WORTH, LANES_WORTH = (
    0.98,
    0.9,
)  # of the time that the study would take otherwise: lanes apart cost emptier passes

MAKING = ""  # stands for a task where a copy's treatment is priced

Tasks = tuple[str, ...]
Chain = tuple[
    Sequence[float], float
]  # the seconds of parts that train lanes, and of the one that waits for them


class Price(NamedTuple):
    """What is left of a task, in seconds: all, of it the lanes of its grid, and the least that one of them takes."""

    whole: float
    lanes: float = 0.0
    least: float = 0.0


class Leaf(NamedTuple):
    """Some tasks of a row on one worker; or the lanes of one task on several."""

    tasks: Tasks
    lane_parts: int = 1


def divide_rows(
    plan: StudyPlan,
    rows: Sequence[Row],
    store: Store,
    workers: int,
    *,
    device: str,
    least: float = LEAST_SECONDS,
) -> list[Row]:
    """Return the rows, longest first, those in parts that keep workers busy; as they are where nothing is gained.

    A part takes ``least`` seconds or more; with 0 loading is not counted either, and with infinity nothing is divided.
    What an earlier run has begun in parts is found in any case.
    """
    asked = least < math.inf
    prices = _prices(plan, rows, device) if asked else {row.model.name: {} for row in rows}
    sizes = count_train_documents(plan)
    trees = [
        _Tree(
            row,
            sizes,
            prices[row.model.name],
            store,
            LOAD_SECONDS + 2 * _size(row) / LOAD_RATE if least else 0.0,
        )
        for row in rows
    ]
    several = asked and workers > 1
    cut = _best_cut(trees, workers, least if several else math.inf)
    made = [
        part
        for tree, leaves in zip(trees, cut, strict=True)
        for part in tree.parts(leaves, several)
    ]
    if asked:
        made.sort(key=lambda pair: -pair[0])
    return [part for _, part in made if part.pending]


def _best_cut(trees: Sequence[_Tree], workers: int, least: float) -> list[list[Leaf]]:
    """Return the parts of every row that take the least time in all, none shorter than ``least`` where that matters."""
    best = [
        list(tree.leaves(math.inf)) for tree in trees
    ]  # what an earlier run has begun in parts stays so
    shortest = _span_of(trees, best, workers)
    longest = max((tree.price(tree.tasks) for tree in trees), default=0.0)
    limits = [limit for k in range(1, CUTS + 1) if (limit := longest * 0.8**k) >= least]
    for (lanes, worth), limit in product(((False, WORTH), (True, LANES_WORTH)), limits):
        cut = [list(tree.leaves(limit, lanes=lanes)) for tree in trees]
        if (span := _span_of(trees, cut, workers)) < worth * shortest:
            best, shortest = cut, span
    return best


def count_train_documents(plan: StudyPlan) -> dict[str, int]:
    """Return the training documents of every task, by which rows are halved."""
    return {name: len(task.documents("train")) for name, task in plan.tasks.by_name.items()}


def iterate_parts(row: Row, sizes: Mapping[str, int]) -> Iterator[Row]:
    """Go through all parts that a row can be divided into, itself first."""
    yield row
    tree = _Tree(row, sizes)
    for tasks in tree.below(tree.tasks) if tree.tasks else ():
        yield make_part(row, tasks)


def make_part(
    row: Row, tasks: Tasks, *, rest: bool = False, number: tuple[int, int] | None = None
) -> Row:
    """Return the cells of some tasks of a row; with ``rest``, also those that no part divides."""
    cells = tuple(c for c in row.cells if (rest if _together(c) else c.task in tasks))
    return replace(row, cells=cells, part=number)


def _together(cell: CellPlan) -> bool:
    return cell.protocol.kind == "adjust"


class _Tree:
    """The tasks of a row, halved and halved again."""

    def __init__(
        self,
        row: Row,
        sizes: Mapping[str, int],
        prices: Mapping[str, Price] | None = None,
        store: Store | None = None,
        load: float = 0.0,
    ) -> None:
        self.row, self.sizes, self.prices, self.store, self.load = (
            row,
            sizes,
            prices or {},
            store,
            load,
        )
        whole = row.model.copy_of is not None or row.problem
        tuned = [cell.task for cell in row.cells if cell.protocol == TRAIN_BEFORE_TEST]
        others = [cell.task for cell in row.cells if not _together(cell)]
        self.tasks: Tasks = () if whole or not tuned else tuple(dict.fromkeys([*tuned, *others]))
        self._begun = cache(self._look)

    def price(self, tasks: Tasks) -> float:
        """Return the seconds of what is left of some tasks."""
        return sum(self.prices[task].whole for task in tasks or self.prices if task in self.prices)

    def chain(self, leaf: Leaf) -> Chain:
        """Return the seconds of the parts of a leaf, each with its loading."""
        whole = self.load + self.price(leaf.tasks)
        if leaf.lane_parts == 1:
            return (), whole
        price, lanes = self.prices.get(leaf.tasks[0], Price(0.0)), self.row.study.grid_lanes
        largest = price.lanes * math.ceil(lanes / leaf.lane_parts) / lanes
        return [self.load + max(largest, price.least)] * leaf.lane_parts, whole - price.lanes

    def parts(self, leaves: Sequence[Leaf], lanes: bool) -> Iterator[tuple[float, Row]]:
        """Go through the row in parts, each with the seconds until what it belongs to is done."""
        for k, leaf in enumerate(leaves):
            number = (k + 1, len(leaves)) if len(leaves) > 1 else None
            part = (
                make_part(self.row, leaf.tasks, rest=k == 0, number=number) if number else self.row
            )
            first, last = self.chain(leaf)
            tuned = tuple(cell for cell in part.cells if cell.protocol == TRAIN_BEFORE_TEST)
            for lane_part in range(leaf.lane_parts if first and lanes else 0):
                yield (
                    max(first) + last,
                    replace(part, cells=tuned, lane_part=lane_part, lane_parts=leaf.lane_parts),
                )
            yield max(first, default=0.0) + last, replace(part, lane_parts=leaf.lane_parts)

    def leaves(self, limit: float, *, lanes: bool = False) -> Iterator[Leaf]:
        """Go through the parts that take no longer than ``limit``, with ``lanes`` also of one task; begun ones stay."""
        yield from self._leaves(self.tasks, limit, lanes) if self.tasks else [Leaf(())]

    def _leaves(self, tasks: Tasks, limit: float, lanes: bool) -> Iterator[Leaf]:
        begun = self._begun(tasks)
        if begun is not None:
            yield Leaf(tasks, begun.lane_parts)
        elif len(tasks) > 1 and (
            self.price(tasks) > limit or any(map(self._begun, self.below(tasks)))
        ):
            for half in self.halves(tasks):
                yield from self._leaves(half, limit, lanes)
        elif len(tasks) == 1 and lanes and self.price(tasks) > limit:
            lanes_of, price = self.row.study.grid_lanes, self.prices[tasks[0]]
            each = max(1, int(lanes_of * limit / max(price.lanes, limit)))
            yield Leaf(tasks, math.ceil(lanes_of / each))
        else:
            yield Leaf(tasks)

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

    def _look(self, tasks: Tasks) -> Begun | None:
        """Return how an earlier run, or another, has begun with just these tasks."""
        if self.store is None:
            return None
        folder = self.store.lanes_folder / name_lanes_folder(
            make_part(self.row, tasks), TRAIN_BEFORE_TEST
        )
        return Begun.read(folder) or (Begun(list(tasks), 0, 1) if folder.is_dir() else None)


def _prices(plan: StudyPlan, rows: Sequence[Row], device: str) -> dict[str, dict[str, Price]]:
    """Estimate the seconds of what is left, by row and task."""
    on_cpu, tuning = device == "cpu", plan.study.tuning
    rate = FLOPS["cpu"] * max(1, rows[0].threads) if on_cpu else FLOPS["cuda"]
    grid = len(tuning.learning_rates) / tuning.expected_lanes
    found: dict[str, dict[str, Price]] = {row.model.name: {} for row in rows}
    sizes = {row.model.name: _size(row) for row in rows}
    for work in count_work(plan):
        if work.finished or work.model not in found:
            continue
        seconds = sizes[work.model] * (4 * work.train_tokens + 2 * work.score_tokens) / rate
        price = found[work.model].get(work.task, Price(0.0))
        price = price._replace(whole=price.whole + seconds)
        if work.protocol == TRAIN_BEFORE_TEST:
            updates = tuning.updates(len(plan.tasks.by_name[work.task].documents("train")))
            price = price._replace(
                lanes=grid * seconds, least=0.0 if on_cpu else STEP_SECONDS * updates
            )
        found[work.model][work.task] = price
    for row in rows:
        if row.model.copy_of is not None:  # it is made first
            found[row.model.name][MAKING] = Price(
                4 * sizes[row.model.name] * count_exposure_tokens(plan) / rate
            )
    return found


def _size(row: Row) -> float:
    size = find_parameters(row.model)
    return size if np.isfinite(size) else 1e9


def _span_of(trees: Sequence[_Tree], cut: Sequence[Sequence[Leaf]], workers: int) -> float:
    return simulate_makespan(
        [tree.chain(leaf) for tree, leaves in zip(trees, cut, strict=True) for leaf in leaves],
        workers,
    )


def simulate_makespan(chains: Sequence[Chain], workers: int) -> float:
    """Return how long all parts take, handed out longest first; the last of a chain as soon as it need not wait."""
    free = [0.0] * max(workers, 1)  # when each worker is
    waiting = sorted(
        (max(first, default=0.0) + last, k, one)
        for k, (first, last) in enumerate(chains)
        for one in first or [last]
    )
    left = [len(first) for first, _ in chains]
    later: list[tuple[float, float]] = []  # from when, and how long
    while waiting or later:
        if later and (later[0][0] <= free[0] or not waiting):
            begin, seconds = heapq.heappop(later)
            heapq.heapreplace(free, max(begin, free[0]) + seconds)
            continue
        _, k, seconds = waiting.pop()
        end = free[0] + seconds
        heapq.heapreplace(free, end)
        left[k] -= 1
        if left[k] == 0:  # those of a chain are as long as each other: the last to begin ends last
            heapq.heappush(later, (end, chains[k][1]))
    return max(free)
