"""Which cells of a study to run under a budget; and adaptive runs, wave after wave of those that are worth the most.

First come the direct scores of every row, then waves of tuned cells, each chosen from all that was measured before. A
wave is written to the store's log before it runs, and so is what cells cost by the estimate of the first start: killed
and started again, the run goes on with the same wave, and the next ones follow from the same numbers. The budget counts
estimated seconds, so that what is chosen does not depend on how busy the machine was. A cell of a wave is the cell
of the whole study: the same key, the same lanes, the same score. Tasks are read once, workers and, while there is
memory for them, models stay from wave to wave.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from potentia.run.plan import CellPlan, Row, StudyPlan, mark_finished_cells
from potentia.run.progress import find_store, open_store, read_events
from potentia.study import Study, WantedResults
from potentia.values.failure import CellFailure
from potentia.values.protocol import ADJUST, TRAIN_BEFORE_TEST, Protocol, TaskName

if TYPE_CHECKING:
    from potentia.evidence import Evidence
    from potentia.store import Store
    from potentia.tasks import Task

SHARED_LOAD = 4.0  # cells that share the loading of a row: it is loaded anew in every wave


def make_grid(study_plan: StudyPlan) -> StudyGrid:
    """Return the tuned cells that a study is ranked by: folds of a task joined, texts and blind twins left out."""
    protocol = next(
        (
            candidate
            for candidate in (TRAIN_BEFORE_TEST, ADJUST)
            if candidate in study_plan.study.protocols
        ),
        None,
    )
    if protocol is None:
        raise InputError(
            "there is nothing to choose: the study tunes nothing",
            hint="add the protocol train_before_test, or run it whole: scores without tuning are cheap",
        )
    tasks: dict[str, Task] = {}
    for name, task in study_plan.tasks.by_name.items():
        task_name = TaskName(name)
        if task.kind != "corpus" and task_name.sighted is None:
            tasks[task_name.whole] = task
    if not tasks:
        raise InputError(
            "there is nothing to choose: the study has perplexity corpora and no task",
            hint="models are ranked by their tasks; run the study whole",
        )
    return StudyGrid(
        models=tuple(row.model.name for row in study_plan.rows if not row.problem),
        tasks=tuple(tasks),
        metrics=tuple(task.describe_metric(task.metric) for task in tasks.values()),
        protocol=Protocol(protocol),
    )


def estimate_grid_costs(grid: StudyGrid, cost: StudyCost) -> CellCosts:
    """Return the cost of every tuned cell: seconds where they are known, else FLOPs."""
    has_seconds = all(np.isfinite(cell.seconds) for cell in cost.cells)
    values = np.full((len(grid.models), len(grid.tasks)), np.nan)
    for cell in cost.cells:
        task = TaskName(cell.task).whole
        if cell.protocol != grid.protocol or cell.model not in grid.models:
            continue
        if task not in grid.tasks:
            continue
        position = grid.models.index(cell.model), grid.tasks.index(task)
        cell_cost = cell.flops
        if has_seconds:
            is_first_fold = np.isnan(values[position])  # the folds of a task share one loading
            load_cost = cost.loads[cell.model] / SHARED_LOAD if is_first_fold else 0.0
            cell_cost = cell.seconds + load_cost
        values[position] = np.nan_to_num(values[position]) + cell_cost
    cost_unit = "seconds" if has_seconds else "FLOPs"
    if not np.isfinite(values).any():
        values = np.ones_like(values)
        cost_unit = "cells"
    return CellCosts(grid.models, grid.tasks, values=values, unit=cost_unit)


def convert_budget(budget: str | None, costs: CellCosts, hint: str) -> float | None:
    """Return a budget in the unit of the costs; None where there is none."""
    if budget is None:
        return None
    converted = parse_budget(budget, float(np.nansum(costs.values)))
    if costs.unit != "seconds" and not _is_share(budget):
        raise InputError("no times are known, so a budget cannot be a time", hint=hint)
    return converted


def _is_share(budget: str) -> bool:
    return budget.rstrip().endswith("%")


def _read_evidence_so_far(study_plan: StudyPlan) -> Evidence | None:
    """Return what the store has of this study; None where that is nothing."""
    from potentia.evidence import read

    store = find_store(study_plan.study.store)
    if store is None:
        return None
    with store:
        is_stored = any(record.key == study_plan.key for record in store.studies.read())
        has_cells = is_stored and store.cells.count(study=study_plan.key) > 0
    if not has_cells:
        return None
    return read(study_plan.study.store, study=study_plan.key)


def make_proposed_study(
    study: Study, cells: Sequence[tuple[str, str]], *, study_name: str
) -> Study:
    """Return the study that tunes these cells alone (and those that ``only`` names already), with blind twins."""
    tasks_by_model = {selected.model: list(selected.tasks) for selected in study.only or ()}
    for model, task in cells:
        model_tasks = tasks_by_model.setdefault(model, [])
        for fold in study.list_task_specs():
            task_name = TaskName(fold.name)
            if task in (task_name.whole, task_name.sighted) and fold.name not in model_tasks:
                model_tasks.append(fold.name)
    wanted_cells = [
        WantedResults(model=model, tasks=tuple(tasks)) for model, tasks in tasks_by_model.items()
    ]
    return study.model_copy(update={"only": tuple(wanted_cells), "name": study_name})


def render_study(study: Study, first_line: str) -> str:
    """Return a study as the text of a file."""
    import yaml

    settings: dict[str, Any] = study.model_dump(mode="json", exclude_defaults=True)
    wanted_cells = settings.pop("only", None) or ()
    settings.pop("name", None)
    ordered = {
        "name": study.name,
        **settings,
        "only": [dict(selected) for selected in wanted_cells],
    }
    text = yaml.safe_dump(ordered, sort_keys=False, allow_unicode=True, width=120)
    return f"# {first_line}\n{text}"


def complete_study(
    study_plan: StudyPlan,
    *,
    history: Evidence | None = None,
    measured: npt.NDArray[np.bool_] | None = None,
) -> Completion:
    """Complete the study's tuned cells from its store, history and facts."""
    from potentia.evidence import facts_of_study

    return complete_grid(
        make_grid(study_plan),
        _read_evidence_so_far(study_plan),
        history=history,
        facts=facts_of_study(study_plan.study),
        measured=measured,
    )


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
    report: Callable[[str], Any] = lambda _: None
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
        journal = self._read_journal()
        # The cost of a cell is the estimate of the first start; without times the whole study counts as 100 %.
        costs = self._estimate_costs(journal)
        budget_left = convert_budget(self.budget, costs, "give a share: --budget 25%")
        self._run_part(self._keep_cells(self.plan, lambda _, cell: not cell.protocol.tuned))
        if not journal:
            self._log_costs(costs)
            journal = self._read_journal()
        measured = np.array(journal[0]["measured"], dtype=bool)
        for journal_entry in journal[1:]:
            cells = [(str(model), str(task)) for model, task in journal_entry["cells"]]
            self._run_cells(cells)
            budget_left = self._count_cells(cells, costs, measured, budget_left)
        while not self._is_interrupted:
            completion, chosen = self._choose_wave(costs, measured, budget_left)
            if not chosen.cells or chosen.settled:
                return self._sum_results(), completion, chosen
            self.report(f"wave {len(self._read_journal())}: {len(chosen.cells)} results")
            self._log_wave(completion, chosen)
            self._run_cells(chosen.cells)
            budget_left = self._count_cells(chosen.cells, costs, measured, budget_left)
        completion = complete_study(self.plan, history=self.history, measured=measured)
        return self._sum_results(), completion, None

    @property
    def _is_interrupted(self) -> bool:
        return bool(self.results) and self.results[-1].interrupted

    # --- the journal in the store --------------------------------------------------------------------------------

    def _read_journal(self) -> list[dict[str, Any]]:
        """Return the events of this adaptive run: the costs of its first start, then all waves.

        The waves of a run beside this one are among them.
        """
        store = find_store(self.plan.study.store)
        if store is None:
            return []
        costs = []
        waves = []
        with store:
            for event in read_events(store, self.plan.key):
                if event.kind == "adaptive":
                    costs.append(dict(event.payload))
                elif event.kind == "wave":
                    waves.append(dict(event.payload))
        return [*costs[:1], *waves]

    def _log_costs(self, costs: CellCosts) -> None:
        """Write the costs of the first start, and which cells were there before, to the study's log."""
        values = []
        for row in costs.values:
            values.append([_none_if_nan(value) for value in row])
        with open_store(self.plan.study.store) as store:
            payload = {
                "models": list(costs.models),
                "tasks": list(costs.tasks),
                "unit": costs.unit,
                "costs": values,
                "measured": self._find_measured_cells(store),
            }
            store.events.append(self.plan.key, "adaptive", payload)

    def _log_wave(self, completion: Completion, chosen: NextCells) -> None:
        """Write a wave to the study's log before it runs."""
        chances = zip(completion.models, completion.p_best, strict=True)
        payload = {
            "cells": [list(cell) for cell in chosen.cells],
            "p_best": {model: round(float(chance), 4) for model, chance in chances},
        }
        with open_store(self.plan.study.store) as store:
            store.events.append(self.plan.key, "wave", payload)

    # --- choosing ------------------------------------------------------------------------------------------------

    def _choose_wave(
        self, costs: CellCosts, measured: npt.NDArray[np.bool_], budget_left: float | None
    ) -> tuple[Completion, NextCells]:
        """Return what is known of the study, and the cells that are worth the most next."""
        completion = complete_study(self.plan, history=self.history, measured=measured)
        broken_models = self._find_broken_models()
        is_broken = np.array([[model in broken_models] for model in self.grid.models])
        open_costs = np.where(measured | is_broken, np.nan, costs.values)
        chosen = choose_cells(
            completion,
            replace(costs, values=open_costs),
            budget=budget_left,
            confidence=self.confidence,
            top=self.top,
            max_cells=self.wave,
        )
        return completion, chosen

    def _find_broken_models(self) -> set[str]:
        """Return the models that should have direct scores but have no result at all.

        They do not load, and every wave would fail on them again.
        """
        planned_models = set()
        for row in self.plan.rows:
            if any(not cell.protocol.tuned for cell in row.cells):
                planned_models.add(row.model.name)
        with open_store(self.plan.study.store, readonly=True) as store:
            scored_models = set(store.cells.read_models_by_key(self.plan.key).values())
        return planned_models - scored_models

    def _count_cells(
        self,
        cells: Cells,
        costs: CellCosts,
        measured: npt.NDArray[np.bool_],
        budget_left: float | None,
    ) -> float | None:
        """Mark the cells as measured, also those that failed, and return the budget that is left."""
        for model, task in cells:
            position = self.grid.models.index(model), self.grid.tasks.index(task)
            # Two runs at once may both have chosen a cell: it is paid once.
            if budget_left is not None and not measured[position]:
                budget_left = max(budget_left - float(costs.values[position]), 0.0)
            measured[position] = True
        return budget_left

    def _estimate_costs(self, journal: Sequence[dict[str, Any]]) -> CellCosts:
        """Return what the cells cost as the first start estimated it: by the clock where the budget is a time."""
        if journal:
            first_entry = journal[0]
            return CellCosts(
                models=tuple(first_entry["models"]),
                tasks=tuple(first_entry["tasks"]),
                values=np.array(first_entry["costs"], dtype=np.float64),  # None becomes NaN
                unit=str(first_entry["unit"]),
            )
        self.report("estimating the cost")
        needs_seconds = self.budget is not None and not _is_share(self.budget)
        return estimate_grid_costs(self.grid, estimate_cost(self.plan, calibrate=needs_seconds))

    def _find_measured_cells(self, store: Store) -> list[list[bool]]:
        """Return which tuned cells were there before the first wave."""
        rows = {row.model.name: row for row in mark_finished_cells(self.plan.rows, store)}
        measured = []
        for model in self.grid.models:
            measured.append([self._is_measured(rows[model], task) for task in self.grid.tasks])
        return measured

    def _is_measured(self, row: Row, task_name: str) -> bool:
        """Whether all folds of a task are finished."""
        tuned_cells = [cell for cell in row.cells if cell.protocol == self.grid.protocol]
        folds = [cell for cell in tuned_cells if TaskName(cell.task).whole == task_name]
        return bool(folds) and all(cell.finished for cell in folds)

    # --- running -------------------------------------------------------------------------------------------------

    @staticmethod
    def _keep_cells(study_plan: StudyPlan, is_kept: Callable[[str, CellPlan], bool]) -> StudyPlan:
        """Return the plan with some of its cells only."""
        rows = []
        for row in study_plan.rows:
            cells = [cell for cell in row.cells if is_kept(row.model.name, cell)]
            rows.append(replace(row, cells=tuple(cells)))
        return replace(study_plan, rows=tuple(rows))

    def _run_cells(self, cells: Cells) -> None:
        """Run the tuned cells of these models and tasks."""
        with open_store(self.plan.study.store, readonly=True) as store:
            rows = tuple(mark_finished_cells(self.plan.rows, store))
        chosen_cells = set(cells)

        def is_chosen(model_name: str, cell: CellPlan) -> bool:
            is_tuned = cell.protocol.kind == self.grid.protocol
            return is_tuned and (model_name, TaskName(cell.task).whole) in chosen_cells

        study_plan = replace(self.plan, rows=rows, outdated=(), damaged=())
        study_plan = self._keep_cells(study_plan, is_chosen)
        self._run_part(replace(study_plan, rows=tuple(row for row in study_plan.rows if row.cells)))

    def _run_part(self, study_plan: StudyPlan) -> None:
        if self._is_interrupted:
            return
        if not self.results or any(row.pending for row in study_plan.rows):
            session = self.session if self.keep else None
            result = run_study(study_plan, workers=self.workers, watch=self.watch, session=session)
            self.results.append(result)

    def _sum_results(self) -> RunResult:
        """Return all parts as one result."""
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


def _none_if_nan(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
