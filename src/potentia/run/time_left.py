"""How long a run has still to go, by the work that is known: results that ended, and what is under way.

A result says nothing until it ends, and the results of a row that train together end together, after most of the row's
time. The steps of their fine-tunings are known before they begin, and the examples of a score as it is computed. Work
is counted in floating-point operations, so that a large model counts for what it costs, and in tokens where the size
of a model is unknown.

The pace is the work done in the time that rows spent on it. Loading a model, checking its fast paths and compiling
kernels are no part of that pace: they take the same time whatever is asked of a model. They are added for each model
that is still to come. If they counted, a run that loads for 38 s and has made two seconds of 146 s of steps would be
said to need most of an hour.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from potentia.run.cost import CellWork, count_work
from potentia.run.progress import CellName, list_ended_cells
from potentia.study import tuning_for_adjust
from potentia.timing import format_duration

if TYPE_CHECKING:
    from potentia.run.plan import StudyPlan
    from potentia.store import EventRecord, Store

LEAST_SHARE = 0.002  # of the work, before which no time is told
MOST_CELLS = 5_000  # whose work is counted; the pace of so many cells is known from the cells

WORK_EVENT = "work"  # of a study's log: what a run has to do


@dataclass(frozen=True)
class RowState:
    """How far a row is, or a part of it, as ``RowProgress`` wrote it to the store."""

    model: str
    seconds: float  # since it began, by the clock of its own machine
    seconds_preparing: float  # of these, spent on loading, checking and compiling
    has_ended: bool
    steps_done: float  # of fine-tunings
    steps_planned: float
    steps_resumed: float  # done by an earlier run
    steps_skipped: float  # of fine-tunings that ended early
    cell: CellName | None  # the untuned cell that is being scored
    share_scored: float  # share of that cell's examples, 0 to 1

    @classmethod
    def from_progress(cls, row_name: str, progress: Mapping[str, Any]) -> RowState:
        """Read the state of a row, or of a part of a row, from its record in the store."""
        model = str(progress.get("model", row_name))
        began = float(progress.get("began") or math.nan)
        latest = float(progress.get("ended") or progress.get("at") or began)
        cell = None
        share_scored = 0.0
        if progress.get("cell"):
            task, protocol = progress["cell"]
            cell = (model, task, protocol)
        if progress.get("total"):
            share_scored = min(progress["done"] / progress["total"], 1.0)
        return cls(
            model=model,
            seconds=latest - began if latest >= began else 0.0,  # NaN before it began
            seconds_preparing=float(progress.get("seconds_preparing") or 0.0),
            has_ended="ended" in progress,
            steps_done=float(progress.get("steps_done") or 0),
            steps_planned=float(progress.get("steps_planned") or 0),
            steps_resumed=float(progress.get("steps_resumed") or 0),
            steps_skipped=float(progress.get("steps_skipped") or 0),
            cell=cell,
            share_scored=share_scored,
        )

    @property
    def seconds_working(self) -> float:
        """Seconds spent on scoring and training, in which work was done."""
        return max(self.seconds - self.seconds_preparing, 0.0)


@dataclass(frozen=True)
class RowWork:
    """The work of a row's pending cells.

    One that is only scored is in ``scoring``, one that is fine-tuned (its validation and test included) in
    ``training``.
    """

    scoring: Mapping[
        CellName, float
    ]  # FLOPs, or scored tokens where the size of a model is unknown
    training: Mapping[CellName, float]  # in the same unit
    steps: float  # of all fine-tunings together

    @property
    def total(self) -> float:
        """The work of all cells."""
        return sum(self.scoring.values()) + sum(self.training.values())

    def count_done(self, ended: Collection[CellName], states: Iterable[RowState]) -> float:
        """Return the work that is done: all of the cells that ended, and what is done of the others."""
        states = list(states)
        done = sum(work for cell, work in self.scoring.items() if cell in ended)
        for state in states:
            if state.cell is not None and state.cell not in ended:
                done += self.scoring.get(state.cell, 0.0) * state.share_scored
        trained = sum(work for cell, work in self.training.items() if cell in ended)
        steps_done = sum(state.steps_done for state in states)
        return done + max(trained, self._work_of_steps(steps_done, states))

    def count_resumed(self, states: Iterable[RowState]) -> float:
        """Return the work of the steps that an earlier run had made."""
        states = list(states)
        return self._work_of_steps(sum(state.steps_resumed for state in states), states)

    def _work_of_steps(self, steps: float, states: Iterable[RowState]) -> float:
        """Return the work of so many steps of the row's fine-tunings.

        A row that began may have planned more steps than were counted (a chat model is fine-tuned in two styles), and
        fine-tunings that fall behind end before their steps are made.
        """
        states = list(states)
        planned = max(self.steps, sum(state.steps_planned for state in states))
        planned -= sum(state.steps_skipped for state in states)
        if not self.steps or planned <= 0:
            return 0.0
        return sum(self.training.values()) * min(steps / planned, 1.0)


class WorkLeft:
    """The work of a run, by row, and how much of it is done."""

    def __init__(self, rows: Mapping[str, RowWork]) -> None:
        self._rows = rows
        self._total = sum(row.total for row in rows.values())

    @classmethod
    def count(cls, study_plan: StudyPlan) -> WorkLeft | None:
        """Count the work of a plan's pending cells; None where there are too many of them, or none."""
        pending = sum(len(row.pending) for row in study_plan.rows)
        if not 0 < pending <= MOST_CELLS:
            return None
        unfinished_work = [cell for cell in count_work(study_plan) if not cell.finished]
        has_sizes = all(math.isfinite(cell.flops) for cell in unfinished_work)
        rows = {}
        for model in dict.fromkeys(cell.model for cell in unfinished_work):
            cells = [cell for cell in unfinished_work if cell.model == model]
            rows[model] = _count_row(study_plan, cells, has_sizes=has_sizes)
        return cls(rows)

    @classmethod
    def from_payload(cls, payload: Mapping[str, Any]) -> WorkLeft:
        """Read the work of a run from the entry that the run wrote into the log of its study."""
        rows = {}
        for model, row in payload["rows"].items():
            scoring = {(model, task, protocol): work for task, protocol, work in row["scoring"]}
            training = {(model, task, protocol): work for task, protocol, work in row["training"]}
            rows[model] = RowWork(scoring, training, row["steps"])
        return cls(rows)

    def to_payload(self) -> dict[str, Any]:
        """Return the work as plain values, for the log of the study."""
        rows = {}
        for model, row in self._rows.items():
            rows[model] = {
                "scoring": [
                    [task, protocol, work] for (_, task, protocol), work in row.scoring.items()
                ],
                "training": [
                    [task, protocol, work] for (_, task, protocol), work in row.training.items()
                ],
                "steps": row.steps,
            }
        return {"rows": rows}

    def estimate_seconds(
        self, ended: Collection[CellName], progress: Mapping[str, Mapping[str, Any]]
    ) -> float | None:
        """Return the seconds to go at the pace so far; None where too little is done to tell.

        Steps that an earlier run had made are done, but took none of this run's time.
        """
        states_by_model = _group_states(progress)
        all_states = [state for states in states_by_model.values() for state in states]
        seconds_working = sum(state.seconds_working for state in all_states)
        work_left_by_model = {}
        work_now = 0.0  # done by this run
        for model, row in self._rows.items():
            states = states_by_model.get(model, [])
            work_done = row.count_done(ended, states)
            work_left_by_model[model] = max(row.total - work_done, 0.0)
            work_now += work_done - row.count_resumed(states)
        if not any(work_left_by_model.values()):
            return 0.0
        if not all_states or work_now < LEAST_SHARE * self._total:
            return None
        seconds_per_work = seconds_working / work_now
        models_to_come = [model for model in self._rows if model not in states_by_model]
        preparing = sum(state.seconds_preparing for state in all_states) / len(all_states)
        seconds_by_model = {}
        for model, work_left in work_left_by_model.items():
            seconds_by_model[model] = work_left * seconds_per_work
            if model in models_to_come:
                seconds_by_model[model] += preparing
        at_once = max(sum(not state.has_ended for state in all_states), 1)
        longest = max(seconds_by_model.values(), default=0.0)
        return max(
            sum(seconds_by_model.values()) / at_once, longest / _count_parts(states_by_model)
        )


class StudyClock:
    """Tells from the store alone how long a study that runs now has left; for readers beside the run."""

    def __init__(self, store: Store, study_key: str) -> None:
        self._store = store
        self._study_key = study_key
        self._work_event: EventRecord | None = None  # what the latest run wrote before it began
        self._work: WorkLeft | None = None
        self._ended: set[CellName] = set()
        self._last_event = 0

    def estimate_seconds(self) -> float | None:
        """Return the seconds that the latest run has still to go; None where that is not known."""
        self._read_new_events()
        if self._work is None or self._work_event is None:
            return None
        progress = {}
        for row_name, row_progress in self._store.events.read_progress(self._study_key).items():
            if (
                row_progress["updated"] >= self._work_event.created
            ):  # both as ISO times of the store
                progress[row_name] = row_progress
        return self._work.estimate_seconds(self._ended, progress)

    def _read_new_events(self) -> None:
        latest = self._store.events.read_latest(self._study_key, WORK_EVENT)
        if latest is None:
            return
        if self._work_event is None or latest.id != self._work_event.id:
            self._work_event = latest
            self._work = WorkLeft.from_payload(latest.payload)
            self._ended = set()
            self._last_event = latest.id
        while events := self._store.events.read(self._study_key, after_id=self._last_event):
            self._last_event = events[-1].id
            for event in events:
                self._ended |= list_ended_cells(event)


def describe_time_left(seconds_left: float | None, budget_left: float | None = None) -> str:
    """Say how long is left: no longer than the budget, where there is one; nothing where neither is known."""
    if budget_left is not None and budget_left <= 0:
        return "the budget is spent"
    if budget_left is not None and (seconds_left is None or seconds_left > budget_left):
        return f"at most {format_duration(budget_left)} left"
    if seconds_left is None:
        return ""
    return f"about {format_duration(seconds_left)} left"


def _group_states(progress: Mapping[str, Mapping[str, Any]]) -> dict[str, list[RowState]]:
    """Return the states of each model's row; the parts of a divided row have a state each."""
    states_by_model: dict[str, list[RowState]] = {}
    for row_name, row_progress in progress.items():
        state = RowState.from_progress(row_name, row_progress)
        states_by_model.setdefault(state.model, []).append(state)
    return states_by_model


def _count_parts(states_by_model: Mapping[str, list[RowState]]) -> int:
    """Return into how many parts the row with the most parts is divided."""
    return max((len(states) for states in states_by_model.values()), default=1)


def _count_row(study_plan: StudyPlan, cells: Iterable[CellWork], *, has_sizes: bool) -> RowWork:
    """Count the work of a row's cells in FLOPs; in scored tokens where the size of a model is unknown."""
    scoring: dict[CellName, float] = {}
    training: dict[CellName, float] = {}
    steps = 0.0
    for cell in cells:
        cell_name = (cell.model, cell.task, str(cell.protocol))
        work = cell.flops if has_sizes else cell.work_in_scored_tokens
        if not cell.train_tokens:
            scoring[cell_name] = work
            continue
        training[cell_name] = work
        task = study_plan.tasks.by_name[cell.task]
        tuning = study_plan.study.tuning
        if cell.protocol.kind == "adjust" and study_plan.tasks.auxiliary is not None:
            task = study_plan.tasks.auxiliary
            tuning = tuning_for_adjust(study_plan.study)
        steps += cell.lanes * tuning.count_updates(len(task.documents("train")))
    return RowWork(scoring, training, steps)
