"""Which cells of a study to run under a budget; and adaptive runs, wave after wave of those that are worth the most.

First come the direct scores of every row, then waves of tuned cells, each chosen from all that was measured before. A
wave is written to the store's log before it runs, with what its cells cost by the estimate of the first day: killed and
started again, the run goes on with the same wave, and the next ones follow from the same numbers. The budget counts
estimated seconds, so that what is chosen does not depend on how busy the machine was. A cell of a wave is the cell
of the whole study: the same key, the same lanes, the same score. Tasks are read once, workers and, while there is
memory for them, models stay from wave to wave.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from potentia.analysis.completion import Completion, StudyGrid, complete_grid
from potentia.analysis.planning import CellCosts, NextCells, choose_cells
from potentia.errors import InputError
from potentia.run.calibration import estimate_cost
from potentia.run.cost import StudyCost, parse_budget
from potentia.run.execute import RunResult, run_study
from potentia.run.executors.local import ModelSession
from potentia.run.plan import CellPlan, StudyPlan, mark_finished_cells
from potentia.run.progress import find_store, open_store, read_events
from potentia.study import Study, Wanted
from potentia.values.failure import CellFailure
from potentia.values.protocol import ADJUST, TRAIN_BEFORE_TEST, Protocol, TaskName

if TYPE_CHECKING:
    from potentia.evidence import Evidence
    from potentia.store import Store

SHARED_LOAD = (
    4.0  # cells among which a row's loading is shared out: it is loaded anew in every wave
)


def make_grid(plan: StudyPlan) -> StudyGrid:
    """Return the tuned cells that a study is ranked by: folds of a task joined, texts to predict left out."""
    protocol = next((p for p in (TRAIN_BEFORE_TEST, ADJUST) if p in plan.study.protocols), None)
    if protocol is None:
        raise InputError(
            "there is nothing to choose: the study tunes nothing",
            hint="add the protocol train_before_test, or run it whole: scores without tuning are cheap",
        )
    tasks = {
        TaskName(name).whole: task
        for name, task in plan.tasks.by_name.items()
        if task.kind != "corpus"
    }
    if not tasks:
        raise InputError(
            "there is nothing to choose: the study has texts to predict and no task",
            hint="models are ranked by their tasks; run the study whole",
        )
    return StudyGrid(
        models=tuple(row.model.name for row in plan.rows if not row.problem),
        tasks=tuple(tasks),
        metrics=tuple(task.metric_named(task.metric) for task in tasks.values()),
        protocol=Protocol(protocol),
    )


def price_grid(grid: StudyGrid, cost: StudyCost) -> CellCosts:
    """Return the price of every tuned cell: seconds where they are known, else FLOPs."""
    timed = all(np.isfinite(cell.seconds) for cell in cost.cells)
    values = np.full((len(grid.models), len(grid.tasks)), np.nan)
    for cell in cost.cells:
        task = TaskName(cell.task).whole
        if cell.protocol == grid.protocol and cell.model in grid.models and task in grid.tasks:
            place = grid.models.index(cell.model), grid.tasks.index(task)
            load = (
                cost.loads[cell.model] / SHARED_LOAD if np.isnan(values[place]) else 0.0
            )  # once for all its folds
            values[place] = np.nan_to_num(values[place]) + (
                cell.seconds + load if timed else cell.flops
            )
    if not np.isfinite(values).any():
        values = np.ones_like(values)
        return CellCosts(grid.models, grid.tasks, values, "cells")
    return CellCosts(grid.models, grid.tasks, values, "seconds" if timed else "FLOPs")


def convert_budget(budget: str | None, costs: CellCosts, hint: str) -> float | None:
    """Return a budget in the unit of the costs; None where there is none."""
    room = None if budget is None else parse_budget(budget, float(np.nansum(costs.values)))
    if budget is not None and costs.unit != "seconds" and not budget.rstrip().endswith("%"):
        raise InputError("no times are known, so a budget in time says nothing", hint=hint)
    return room


def _known_so_far(plan: StudyPlan) -> Evidence | None:
    """Return what the store has of this study; None where that is nothing."""
    from potentia.evidence import read

    store = find_store(plan.study.store)
    if store is None:
        return None
    with store:
        known = any(record.key == plan.key for record in store.studies.read())
        done = known and store.cells.count(study=plan.key) > 0
    return read(plan.study.store, study=plan.key) if done else None


def make_proposed_study(study: Study, cells: Sequence[tuple[str, str]], *, name: str) -> Study:
    """Return the study that tunes these cells alone (and those that ``only`` names already)."""
    wanted: dict[str, list[str]] = {w.model: list(w.tasks) for w in study.only or ()}
    folds = {
        whole: [t.name for t in study.benchmarks() if TaskName(t.name).whole == whole]
        for _, whole in cells
    }
    for model, task in cells:
        known = wanted.setdefault(model, [])
        known += [name for name in folds[task] if name not in known]
    only = tuple(Wanted(model=model, tasks=tuple(tasks)) for model, tasks in wanted.items())
    return study.model_copy(update={"only": only, "name": name})


def render_study(study: Study, first_line: str) -> str:
    """Return a study as the text of a file."""
    import yaml

    said: Mapping[str, Any] = study.model_dump(mode="json", exclude_defaults=True)
    ordered = {"name": study.name, **{k: v for k, v in said.items() if k not in ("name", "only")}}
    ordered["only"] = [dict(w) for w in said.get("only") or ()]
    return f"# {first_line}\n" + yaml.safe_dump(
        ordered, sort_keys=False, allow_unicode=True, width=120
    )


def complete_study(
    plan: StudyPlan,
    *,
    history: Evidence | None = None,
    measured: npt.NDArray[np.bool_] | None = None,
) -> Completion:
    """Complete the study's tuned cells from its store, history and facts."""
    from potentia.evidence import facts_of_study

    how: dict[str, Any] = {"history": history, "facts": facts_of_study(plan.study)}
    if measured is not None:
        how["measured"] = measured.astype(np.float64)
    return complete_grid(make_grid(plan), _known_so_far(plan), **how)


WAVE = 8  # cells, or two of every row where there are many rows
Cells = Sequence[tuple[str, str]]


@dataclass
class AdaptiveRun:
    """A study that is run by need."""

    plan: StudyPlan
    budget: str | None = None
    confidence: float | None = None
    top: int | None = None
    history: Evidence | None = None
    wave: int = 0
    workers: int = 1
    watch: Callable[[StudyPlan], Any] | None = None
    tell: Callable[[str], Any] = lambda _: None
    keep: bool = True  # models and workers from wave to wave
    grid: StudyGrid = field(init=False)
    results: list[RunResult] = field(init=False, default_factory=list)
    session: ModelSession = field(init=False, default_factory=ModelSession)

    def __post_init__(self) -> None:
        if self.budget is None and self.confidence is None:
            raise InputError(
                "an adaptive run needs an end", hint="give --budget 30min, or --confidence 0.9"
            )
        if self.budget is not None:
            parse_budget(self.budget, 1.0)  # what cannot be read is said before anything is timed
        self.grid = make_grid(self.plan)
        self.wave = self.wave or max(WAVE, 2 * len(self.grid.models))

    def run(self) -> tuple[RunResult, Completion, NextCells | None]:
        """Run waves to the end; return how it went, what is known then, and what would come next."""
        with self.session:
            return self._run()

    def _run(self) -> tuple[RunResult, Completion, NextCells | None]:
        first = self._only(self.plan, lambda _, cell: not cell.protocol.tuned)
        journal = self._journal()
        # The price of a cell is what was thought on the first day; without times the whole study counts as 100 %.
        costs = self._price(journal)
        room = convert_budget(self.budget, costs, "say a share: --budget 25%")
        self._run_part(first)
        if not journal:
            with open_store(self.plan.study.store) as store:
                values = [[None if v != v else float(v) for v in row] for row in costs.values]
                names = {
                    "models": list(costs.models),
                    "tasks": list(costs.tasks),
                    "unit": costs.unit,
                }
                facts = {**names, "costs": values, "measured": self._measured(store)}
                store.events.append(self.plan.key, "adaptive", facts)
            journal = self._journal()
        measured = np.array(journal[0]["measured"], dtype=bool)
        for wave in journal[1:]:
            cells = [(str(m), str(t)) for m, t in wave["cells"]]
            self._run_cells(cells)
            room = self._count(cells, costs, measured, room)
        while not (self.results and self.results[-1].interrupted):
            done, chosen = self._choose(costs, measured, room)
            if not chosen.cells or chosen.settled:
                return self._sum(), done, chosen
            self.tell(f"wave {len(self._journal())}: {len(chosen.cells)} cells")
            with open_store(self.plan.study.store) as store:
                chances = {
                    model: round(float(p), 4)
                    for model, p in zip(done.models, done.p_best, strict=True)
                }
                told = {"cells": [list(cell) for cell in chosen.cells], "p_best": chances}
                store.events.append(self.plan.key, "wave", told)
            self._run_cells(chosen.cells)
            room = self._count(chosen.cells, costs, measured, room)
        return self._sum(), complete_study(self.plan, history=self.history, measured=measured), None

    # --- choosing ------------------------------------------------------------------------------------------------

    def _choose(
        self, costs: CellCosts, measured: npt.NDArray[np.bool_], room: float | None
    ) -> tuple[Completion, NextCells]:
        done = complete_study(self.plan, history=self.history, measured=measured)
        lost = self._lost()
        away = measured | np.array([[model in lost] for model in self.grid.models])
        tried = replace(costs, values=np.where(away, np.nan, costs.values))
        return done, choose_cells(
            done, tried, budget=room, confidence=self.confidence, top=self.top, most=self.wave
        )

    def _lost(self) -> set[str]:
        """The models that not one direct score could be had of: they do not load, and are not tried wave after wave."""
        asked = {
            row.model.name
            for row in self.plan.rows
            if any(not cell.protocol.tuned for cell in row.cells)
        }
        with open_store(self.plan.study.store, readonly=True) as store:
            return asked - set(store.cells.read_models_by_key(self.plan.key).values())

    def _count(
        self, cells: Cells, costs: CellCosts, measured: npt.NDArray[np.bool_], room: float | None
    ) -> float | None:
        """Take the cells for done, also those that failed: they are not asked again."""
        for model, task in cells:
            place = self.grid.models.index(model), self.grid.tasks.index(task)
            if (
                room is not None and not measured[place]
            ):  # two runs at once may both have asked for it
                room = max(room - float(costs.values[place]), 0.0)
            measured[place] = True
        return room

    def _price(self, journal: Sequence[dict[str, Any]]) -> CellCosts:
        """Price the cells: as on the first day; then by the clock where the budget is a time, else what is known."""
        if journal:
            event = journal[0]
            values = np.array(
                [[np.nan if v is None else v for v in row] for row in event["costs"]],
                dtype=np.float64,
            )
            return CellCosts(
                tuple(event["models"]), tuple(event["tasks"]), values, str(event["unit"])
            )
        self.tell("estimating the cost")
        timed = self.budget is not None and not self.budget.strip().endswith("%")
        return price_grid(self.grid, estimate_cost(self.plan, calibrate=timed))

    def _measured(self, store: Store) -> list[list[bool]]:
        """Which tuned cells were there before the first wave."""
        rows = {row.model.name: row for row in mark_finished_cells(self.plan.rows, store)}

        def there(model: str, task: str) -> bool:
            folds = [
                c
                for c in rows[model].cells
                if TaskName(c.task).whole == task and c.protocol == self.grid.protocol
            ]
            return bool(folds) and all(c.finished for c in folds)

        return [[there(m, t) for t in self.grid.tasks] for m in self.grid.models]

    def _journal(self) -> list[dict[str, Any]]:
        """The events of this adaptive run: the first prices, then the waves, also those of a run beside this one."""
        store = find_store(self.plan.study.store)
        if store is None:
            return []
        with store:
            events = [
                event
                for event in read_events(store, self.plan.key)
                if event.kind in ("adaptive", "wave")
            ]
        prices = [event for event in events if event.kind == "adaptive"]
        waves = [event for event in events if event.kind == "wave"]
        return [dict(event.payload) for event in (*prices[:1], *waves)]

    # --- running -------------------------------------------------------------------------------------------------

    @staticmethod
    def _only(plan: StudyPlan, wanted: Callable[[str, CellPlan], bool]) -> StudyPlan:
        rows = [
            replace(row, cells=tuple(c for c in row.cells if wanted(row.model.name, c)))
            for row in plan.rows
        ]
        return replace(plan, rows=tuple(rows))

    def _run_cells(self, cells: Cells) -> None:
        with open_store(self.plan.study.store, readonly=True) as store:
            plan = replace(
                self.plan,
                rows=tuple(mark_finished_cells(self.plan.rows, store)),
                outdated=(),
                damaged=(),
            )
        tuned, wanted = self.grid.protocol, set(cells)
        plan = self._only(
            plan, lambda m, c: c.protocol.kind == tuned and (m, TaskName(c.task).whole) in wanted
        )
        self._run_part(replace(plan, rows=tuple(row for row in plan.rows if row.cells)))

    def _run_part(self, plan: StudyPlan) -> None:
        if self.results and self.results[-1].interrupted:
            return
        if not self.results or any(row.pending for row in plan.rows):
            session = self.session if self.keep else None
            result = run_study(plan, workers=self.workers, watch=self.watch, session=session)
            self.results.append(result)

    def _sum(self) -> RunResult:
        """All parts as one result."""
        failures: list[CellFailure] = []
        for result in self.results:
            failures += result.failures
        return RunResult(
            study=self.plan.key,
            reused=self.results[0].reused,
            computed=sum(result.computed for result in self.results),
            failed=len(failures),
            interrupted=self.results[-1].interrupted,
            failures=tuple(failures),
        )
