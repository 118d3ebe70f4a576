"""What all fine-tunings of one row share: the recipe, the data, the styles; the cells that wait; what is reported."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from potentia.errors import ModelError
from potentia.run.ask import Ask, Evaluation, SplitName
from potentia.run.commit import CellResult
from potentia.run.progress import DOCUMENTS
from potentia.study import Tuning, content_key
from potentia.values.fine_tuning import FineTuning, LaneStatus, Style
from potentia.values.protocol import Protocol
from potentia.values.selection import ProbeResult, Selection

if TYPE_CHECKING:
    from potentia.run.commit import CellCommitter
    from potentia.run.plan import CellPlan
    from potentia.run.row_context import RowContext
    from potentia.run.search import LaneSearch
    from potentia.tasks import Task

FINAL_STEP = None  # the step of a cell that is scored at the end of its tuning, not on the way


@dataclass(frozen=True)
class TuningSetup:
    """What all fine-tunings of one row share."""

    context: RowContext
    protocol: Protocol  # train-before-test, or adjust
    recipe: Tuning
    tasks: Mapping[str, Task]  # that lanes are tuned for
    auxiliary: Task | None  # what lanes learn from instead of each task's own documents
    styles: tuple[Style, ...]
    workspace: Path
    at_steps: tuple[int, ...] = ()  # of adjust: when tasks are scored on the way
    tests_every_rate: bool = False  # test every lane at its end, whatever is chosen
    lane_parts: int = 1

    @property
    def trains_all_weights(self) -> bool:
        """Whether all weights are tuned, rather than adapters."""
        return self.recipe.method == "full"

    @property
    def trains_together(self) -> bool:
        """Whether all lanes train in shared passes."""
        return self.auxiliary is None and not self.trains_all_weights

    @cached_property
    def cell_keys(self) -> Mapping[str, str]:
        """The key of every task's cell, finished or not."""
        cells = self.context.row.cells
        return {cell.task: cell.key for cell in cells if cell.protocol == self.protocol}

    def list_seeds(self, training_data: str) -> range:
        """Return the seeds that a task's lanes are tuned with; lanes on auxiliary data have the study's."""
        study = self.context.study
        seeds = study.seeds
        if self.auxiliary is None:
            seeds = study.count_seeds(self.context.row.model.name, training_data)
        return range(study.seed, study.seed + seeds)

    def find_training_task(self, training_data: str) -> Task:
        """Return what a lane learns from."""
        return self.auxiliary or self.tasks[training_data]

    def find_validation_task(self, task_name: str) -> Task:
        """Return the task whose validation examples choose for a task: itself if it has any, else auxiliary data."""
        task = self.tasks[task_name]
        auxiliary = self.auxiliary
        if task.documents("validation") or auxiliary is None:
            return task
        return auxiliary if auxiliary.documents("validation") else task

    def make_ask(self, task: Task, split: SplitName, style: Style, owner: int | None = None) -> Ask:
        """Return a question to a lane, or to the untuned model, with the examples that the task is asked with."""
        study = self.context.study
        task_name = next(
            (task_name for task_name, candidate in self.tasks.items() if candidate is task), None
        )
        shots = 0 if task_name is None else study.count_shots(task_name, self.protocol)
        return Ask(task, split, style, shots=shots, seed=study.seed, owner=owner)

    def make_lane(
        self, training_data: str, style: Style, learning_rate: float, seed: int
    ) -> FineTuning:
        """Plan a lane, named by everything that its adapter depends on."""
        task = self.find_training_task(training_data)
        content = {"task" if self.auxiliary is None else "adjust": task.fingerprint}
        lane_key = content_key(
            model=self.context.loaded.fingerprint,
            form=style,
            rate=learning_rate,
            seed=seed,
            tuning=self.recipe,
            **content,
        )
        return FineTuning(lane_key, training_data, style, learning_rate, seed)

    def begin_phase(self, phase: str, total: int, unit: str = DOCUMENTS) -> None:
        """Begin a phase of the row's progress."""
        self.context.progress.phase(phase, total=total, unit=unit, tokens_per_second=None)


class PendingCells:
    """The cells that a tuning has still to commit, by task and step."""

    def __init__(
        self, context: RowContext, committer: CellCommitter, cells: Sequence[CellPlan]
    ) -> None:
        self._context = context
        self._committer = committer
        self._cells = {(cell.task, cell.protocol.step): cell for cell in cells}
        self._last_commit = time.monotonic()
        self.probes: Mapping[str, ProbeResult] = {}  # by task, where one was made

    def __contains__(self, cell: tuple[str, int | None]) -> bool:
        return cell in self._cells

    def get_key(self, task_name: str) -> str:
        """Return the key of a task's cell."""
        return self._cells[task_name, FINAL_STEP].key

    def list_tasks(self) -> set[str]:
        """Return the tasks that have cells to commit."""
        return {task for task, _ in self._cells}

    def commit(
        self,
        task_name: str,
        step: int | None,
        test_evaluation: Evaluation,
        selection: Selection,
        *,
        direct_value: float | None = None,
    ) -> None:
        """Commit a cell; a score that is no number fails it alone."""
        cell = self._cells.pop((task_name, step))
        now = time.monotonic()
        result = CellResult(
            test=test_evaluation,
            selection=selection,
            seconds=now - self._last_commit,
            direct_value=direct_value,
            probe=self.probes.get(task_name),
        )
        try:
            self._committer.commit(cell, result)
        except ModelError as error:
            self._context.fail_cell(cell, error)
        self._last_commit = now

    def fail(self, task_name: str, error: Exception | str) -> None:
        """Record the missing cells of a task as failed."""
        for task_and_step in [
            task_and_step for task_and_step in self._cells if task_and_step[0] == task_name
        ]:
            self._context.fail_cell(self._cells.pop(task_and_step), error)


@dataclass
class LaneReporter:
    """Writes what lanes are worth to the store, and the best validation so far to the progress."""

    setup: TuningSetup
    best_by_task: dict[str, float] = field(default_factory=dict)

    def report(
        self,
        search: LaneSearch,
        lane: FineTuning,
        task_name: str,
        *,
        status: LaneStatus,
        note: str = "",
        selected: bool = False,
    ) -> None:
        """Report a lane's curve on a task; one lane on auxiliary data has a curve for each."""
        from potentia.store import LaneRecord

        curve = search.curves[lane.key, task_name]
        if all(math.isnan(state.value) for state in curve):
            return
        context = self.setup.context
        lane_key = lane.key
        if self.setup.auxiliary is not None:
            lane_key = content_key(lane=lane.key, task=task_name)
        record = LaneRecord(
            key=lane_key,
            study=context.row.study_key,
            model=context.row.model.name,
            task=task_name,
            learning_rate=lane.learning_rate,
            style=lane.style,
            seed=lane.seed,
            status=status,
            cell=self.setup.cell_keys[task_name],
            epochs=tuple(state.result for state in curve),
            selected=selected,
            note=note,
        )
        context.store.lanes.save(record)
        self._report_best(task_name, [state.value for state in curve])

    def _report_best(self, task_name: str, values: list[float]) -> None:
        choose_better = max if self.setup.tasks[task_name].higher_is_better else min
        if task_name in self.best_by_task:
            values = [*values, self.best_by_task[task_name]]
        self.best_by_task[task_name] = choose_better(values)
        self.setup.context.progress.note(
            validation=f"{task_name} {self.best_by_task[task_name]:.3f}",
            best=dict(self.best_by_task),
        )
