"""Which cells of a study to run under a budget: its cost, what is known, and the choice, joined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from potentia.analysis.planning import Costs, Grid, find_completion
from potentia.errors import InputError
from potentia.run.cost import StudyCost
from potentia.run.plan import StudyPlan
from potentia.run.progress import find_store
from potentia.study import Study, Wanted
from potentia.values.protocol import ADJUST, TRAIN_BEFORE_TEST, Protocol, TaskName

if TYPE_CHECKING:
    from potentia.analysis.planning import Completion
    from potentia.evidence import Evidence

SHARED_LOAD = 4.0  # cells among which a row's loading is shared out: it is loaded anew in every wave


def grid_of(plan: StudyPlan) -> Grid:
    """Return the tuned cells that a study is ranked by: folds of a task joined, texts to predict left out."""
    protocol = next((p for p in (TRAIN_BEFORE_TEST, ADJUST) if p in plan.study.protocols), None)
    if protocol is None:
        raise InputError(
            "there is nothing to choose: the study tunes nothing",
            hint="add the protocol train_before_test, or run it whole: scores without tuning are cheap",
        )
    tasks = {TaskName(name).whole: task for name, task in plan.tasks.benchmarks.items() if task.kind != "corpus"}
    if not tasks:
        raise InputError(
            "there is nothing to choose: the study has texts to predict and no task",
            hint="models are ranked by their tasks; run the study whole",
        )
    return Grid(
        models=tuple(row.model.name for row in plan.rows if not row.problem),
        tasks=tuple(tasks),
        metrics=tuple(task.metric_of(task.metric) for task in tasks.values()),
        protocol=Protocol(protocol),
    )


def costs_of(grid: Grid, cost: StudyCost) -> Costs:
    """Return the price of every tuned cell: seconds where they are known, else FLOPs."""
    timed = all(np.isfinite(cell.seconds) for cell in cost.cells)
    values = np.full((len(grid.models), len(grid.tasks)), np.nan)
    for cell in cost.cells:
        task = TaskName(cell.task).whole
        if cell.protocol == grid.protocol and cell.model in grid.models and task in grid.tasks:
            place = grid.models.index(cell.model), grid.tasks.index(task)
            load = cost.loads[cell.model] / SHARED_LOAD if np.isnan(values[place]) else 0.0  # once for all its folds
            values[place] = np.nan_to_num(values[place]) + (cell.seconds + load if timed else cell.flops)
    if not np.isfinite(values).any():
        values = np.ones_like(values)
        return Costs(grid.models, grid.tasks, values, "cells")
    return Costs(grid.models, grid.tasks, values, "seconds" if timed else "FLOPs")


def known_so_far(plan: StudyPlan) -> Evidence | None:
    """Return what the store has of this study; None where that is nothing."""
    from potentia.evidence import read

    store = find_store(plan.study.store)
    if store is None:
        return None
    with store:
        known = any(record.key == plan.key for record in store.studies())
        done = known and store.count(study=plan.key) > 0
    return read(plan.study.store, study=plan.key) if done else None


def proposed_study(study: Study, cells: Sequence[tuple[str, str]], *, name: str) -> Study:
    """Return the study that tunes these cells alone (and those that ``only`` names already)."""
    wanted: dict[str, list[str]] = {w.model: list(w.tasks) for w in study.only or ()}
    folds = {whole: [t.name for t in study.benchmarks() if TaskName(t.name).whole == whole] for _, whole in cells}
    for model, task in cells:
        known = wanted.setdefault(model, [])
        known += [name for name in folds[task] if name not in known]
    only = tuple(Wanted(model=model, tasks=tuple(tasks)) for model, tasks in wanted.items())
    return study.model_copy(update={"only": only, "name": name})


def study_text(study: Study, first_line: str) -> str:
    """Return a study as the text of a file."""
    import yaml

    said: Mapping[str, Any] = study.model_dump(mode="json", exclude_defaults=True)
    ordered = {"name": study.name, **{k: v for k, v in said.items() if k not in ("name", "only")}}
    ordered["only"] = [dict(w) for w in said.get("only") or ()]
    return f"# {first_line}\n" + yaml.safe_dump(ordered, sort_keys=False, allow_unicode=True, width=120)


def complete_study(plan: StudyPlan, *, history: Evidence | None = None) -> Completion:
    """Complete the study's tuned cells from its store, history and facts."""
    from potentia.evidence import study_facts

    return find_completion(grid_of(plan), known_so_far(plan), history=history, facts=study_facts(plan.study))
