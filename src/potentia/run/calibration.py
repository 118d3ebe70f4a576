"""A short calibration of the real engine: the study itself, made small, on a few of its models.

The smallest, the middle and the largest model run every task with the study's own lanes and one epoch: on a few
documents, once more on the same, and on several times as many; on a GPU then for more epochs. The model stays loaded
meanwhile. What a run takes beyond the one before is the pace. What the very first run takes beyond its pace is the
start: loading, checks, first passes. Tasks keep their proportions, so that lanes end at different times as they will in
the run. So padding, shared passes, generation and the device are in the figures as they will be in the run.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from potentia.engine import pick_device
from potentia.run.cost import (
    CellWork,
    Pace,
    StudyCost,
    count_work,
    find_parameters,
    price_work,
    read_paces,
)
from potentia.run.execute import run_study
from potentia.run.executors.local import ModelSession
from potentia.run.memory import list_shortages
from potentia.run.plan import Row, StudyPlan, plan_study
from potentia.run.progress import find_store, open_store
from potentia.study import Caps, Study, Tuning
from potentia.timing import ONE_TIME_WORK
from potentia.values.protocol import DIRECT

if TYPE_CHECKING:
    from potentia.run.ask import SplitName

FIRST = 16  # documents of the largest task in the first run
LEAST = 8  # documents of any task, at least
GROWTH = {"cpu": 3, "cuda": 9}  # how much larger the next run is
LONGER = 4  # epochs of the last run on a GPU, where small runs are mostly start-up
PATIENCE = 10.0  # seconds: a first run that takes longer is not repeated


def estimate_cost(
    study_plan: StudyPlan, *, calibrate: bool = True, report: Callable[[str], Any] = lambda _: None
) -> StudyCost:
    """Price a study by the rows in its store, else by a short calibration; without either, seconds are NaN.

    Models whose memory may not suffice are named, and not calibrated on.
    """
    device = str(pick_device(study_plan.study.device)).partition(":")[0]
    store = find_store(study_plan.study.store)
    paces: list[Pace] = []
    if store is not None:
        with store:
            paces = read_paces(study_plan, store, device)
    pending_rows = [row for row in study_plan.rows if row.pending and not row.problem]
    shortages: dict[str, str] = {}
    if study_plan.study.device != "spread":
        shortages = list_shortages(pending_rows, device)
    rows_that_fit = [row for row in pending_rows if row.model.name not in shortages]
    start = 0.0
    source = ""
    if any(pace.train is not None for pace in paces) or (paces and not calibrate):
        source = f"{len(paces)} measured models in the store"
    elif calibrate and rows_that_fit:
        measured_paces, start = measure_paces(study_plan, rows_that_fit, device, report)
        paces += measured_paces
        source = f"a calibration on {len(measured_paces)} of its models"
    cost = price_work(study_plan, paces, source, device, start=start)
    return replace(cost, shortages=shortages)


def measure_paces(
    study_plan: StudyPlan, pending_rows: Sequence[Row], device: str, report: Callable[[str], Any]
) -> tuple[list[Pace], float]:
    """Run the study in small on a few of its models; return their paces, and the seconds that a new process needs."""
    paces: list[Pace] = []
    with tempfile.TemporaryDirectory(prefix="potentia-pace-") as folder, ModelSession() as session:
        for row in _pick_rows(pending_rows):
            report(f"calibrating on {row.model.name}")
            calibration = _ModelCalibration(
                plan=study_plan, model=row.model.name, folder=Path(folder), session=session
            )
            pace = calibration.measure_pace(find_parameters(row.model), device)
            if pace is not None:
                paces.append(pace)
    if len(paces) < 2:
        return paces, 0.0
    # The first model's seconds also hold the import of libraries: what it took more than the second is the start.
    first_load = paces[0].load or 0.0
    second_load = paces[1].load or 0.0
    start = max(first_load - second_load, 0.0)
    return [replace(paces[0], load=first_load - start), *paces[1:]], start


def _pick_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of the smallest, the middle and the largest model; unknown sizes count as the largest."""
    by_size = sorted(rows, key=lambda row: np.nan_to_num(find_parameters(row.model), nan=np.inf))
    positions = sorted({0, len(by_size) // 2, len(by_size) - 1})
    return [by_size[position] for position in positions]


@dataclass
class _ModelCalibration:
    """The small runs of one model, each with a store of its own in the folder."""

    plan: StudyPlan
    model: str
    folder: Path
    session: ModelSession

    def measure_pace(self, parameters: float, device: str) -> Pace | None:
        """Return the model's pace on the device; None where no task could be scored."""
        documents = FIRST * GROWTH.get(device, GROWTH["cpu"])
        is_gpu = device != "cpu"
        cold_run = self._run(FIRST)
        small_run = cold_run
        if cold_run.total_seconds < PATIENCE or is_gpu:
            small_run = self._run(FIRST)
        large_run = self._run(documents)
        longer = None
        if is_gpu and large_run.trained:
            longer = self._run(documents, epochs=LONGER)
        return _PaceFromRuns(
            cold=cold_run, small_run=small_run, large_run=large_run, longer=longer
        ).measure(parameters)

    def _run(self, documents: int, *, epochs: int = 1) -> Timed:
        tasks = self.plan.tasks.by_name.values()
        largest = max(len(task.documents("train")) for task in tasks)
        earlier_runs = len(list(self.folder.glob("*.db")))
        small_study = _shrink_study(
            self.plan,
            self.model,
            min(documents, largest),
            store=str(self.folder / f"{earlier_runs}.db"),
            epochs=epochs,
        )
        return _time_run(small_study, self.session)


def _shrink_study(
    study_plan: StudyPlan, model_name: str, documents: int, *, store: str, epochs: int
) -> Study:
    """Return the study with one model, a few epochs, and so many documents of its largest task."""
    study = study_plan.study
    model_specs = {row.name: row for row in study.rows()}
    tasks = []
    for task in study.list_task_specs():
        caps = _cap_in_proportion(study_plan, task.name, documents)
        tasks.append(task.model_copy(update={"caps": caps}))
    adjust = study.adjust
    if adjust is not None:
        adjust = adjust.model_copy(
            update={
                "at_steps": (),
                "tuning": adjust.tuning and _shorten_tuning(adjust.tuning),
                "cap": min(adjust.cap or documents, documents),
            }
        )
    # An exposed copy is as fast as its original, which is run in its place.
    original = model_specs[model_name].model_copy(update={"copy_of": None})
    return study.model_copy(
        update={
            "models": (original,),
            "protocols": tuple(dict.fromkeys((DIRECT, *study.protocols))),
            "tasks": tuple(tasks),
            "tuning": _shorten_tuning(study.tuning, epochs),
            "adjust": adjust,
            "treat": None,
            "only": None,
            "store": store,
            "keep_adapters": False,
        }
    )


def _shorten_tuning(tuning: Tuning, epochs: int = 1) -> Tuning:
    """Return a recipe that does as much as is counted: its grid, for so many epochs, without a race."""
    return tuning.model_copy(
        update={"epochs": epochs, "least_updates": 0, "rate_bounds": None, "race": False}
    )


def _cap_in_proportion(study_plan: StudyPlan, task_name: str, documents: int) -> Caps:
    """Return caps by which all splits of a task keep their share of the largest task's training documents."""
    task = study_plan.tasks.by_name[task_name]
    largest = max(len(task.documents("train")) for task in study_plan.tasks.by_name.values())
    most_shots = max(
        study_plan.study.count_shots(task_name, protocol) for protocol in study_plan.study.protocols
    )
    least = max(LEAST, 1 + most_shots)

    def cap(split: SplitName) -> int:
        available = len(task.documents(split))
        proportional = math.ceil(documents * available / max(largest, 1))
        return max(min(max(proportional, least), available), 1)

    return Caps(train=cap("train"), validation=cap("validation"), test=cap("test"))


@dataclass(frozen=True)
class Timed:
    """A small run: its cells with their seconds, the row's seconds by kind of work, and the seconds of all of it."""

    cells: list[tuple[CellWork, float]]
    tally: Mapping[str, float]
    total_seconds: float

    @property
    def trained(self) -> float:
        """Tokens trained on."""
        return sum(cell_work.train_tokens for cell_work, _ in self.cells)

    @property
    def train_seconds(self) -> float:
        """Seconds of training."""
        return self.tally.get("train", 0.0)

    @property
    def tuned_score_seconds(self) -> float:
        """Seconds that the scoring of the tuned cells took."""
        untuned_seconds = sum(
            seconds for cell_work, seconds in self.cells if not cell_work.protocol.tuned
        )
        score_seconds = self.tally.get("validate", 0.0) + self.tally.get("test", 0.0)
        return max(score_seconds - untuned_seconds, 0.0)

    @property
    def beside_checks(self) -> float:
        """Seconds without checks, compiling and loading, which are done once."""
        return self.total_seconds - sum(self.tally.get(kind, 0.0) for kind in ONE_TIME_WORK)

    @property
    def direct_cells(self) -> dict[str, tuple[CellWork, float]]:
        """The direct cells with their seconds, by task."""
        cells_by_task = {}
        for cell_work, seconds in self.cells:
            if cell_work.protocol == DIRECT:
                cells_by_task[cell_work.task] = (cell_work, seconds)
        return cells_by_task


def _time_run(study: Study, session: ModelSession) -> Timed:
    """Run a small study and return how long its parts took."""
    study_plan = plan_study(study)
    began = time.monotonic()
    result = run_study(study_plan, session=session)
    run_seconds = time.monotonic() - began
    with open_store(study.store, readonly=True) as store:
        seconds_by_cell = {
            (cell.task, str(cell.protocol)): cell.seconds for cell in store.cells.read()
        }
        events = store.events.read(result.study)
    tally: dict[str, float] = {}
    for event in events:
        if event.kind == "row":
            tally = dict(event.payload["tally"])
    cells = []
    for cell_work in count_work(study_plan):
        seconds = seconds_by_cell.get((cell_work.task, str(cell_work.protocol)))
        if seconds is not None:
            cells.append((cell_work, seconds))
    return Timed(cells=cells, tally=tally, total_seconds=run_seconds)


@dataclass(frozen=True)
class _PaceFromRuns:
    """The pace between the small runs of a model; a share of the plain ratio at least, for clocks are noisy."""

    cold: Timed  # the very first run
    small_run: Timed  # the same again
    large_run: Timed  # with more documents
    # `large_run` with further epochs: on a GPU only their difference is free of start-up
    longer: Timed | None

    def measure(self, parameters: float) -> Pace | None:
        """Return the pace; None where no task was scored in two runs.

        What the very first run took beyond its pace is what loading and starting a row take.
        """
        score = self._measure_score()
        if not score:
            return None
        few_shot = self._measure_few_shot()
        train = None
        tuned_slowdown = 1.0
        epoch_end = 0.0
        if self.large_run.trained:
            train = self._measure_train()
            tuned_slowdown = self._measure_tuned_slowdown(score)
            epoch_end = self._measure_epoch_end(score, train, tuned_slowdown)
        direct_cells = [
            cell_work for cell_work, _ in self.cold.cells if cell_work.protocol == DIRECT
        ]
        seconds = sum(
            cell_work.score_tokens * score.get(cell_work.task, 0.0) for cell_work in direct_cells
        )
        seconds += sum(
            cell_work.score_tokens * few_shot.get((cell_work.task, str(cell_work.protocol)), 0.0)
            for cell_work, _ in self.cold.cells
        )
        tuned_seconds = tuned_slowdown * _expect_tuned_score_seconds(self.cold, score)
        seconds += (train or 0.0) * self.cold.trained + tuned_seconds + epoch_end
        return Pace(
            parameters=parameters,
            load=max(self.cold.total_seconds - seconds, 0.0),
            score=score,
            train=train,
            tuned_slowdown=tuned_slowdown,
            epoch_end=epoch_end,
            few_shot=few_shot,
        )

    def _measure_score(self) -> dict[str, float]:
        """Return the seconds per token of the direct cells, by task."""
        few_cells = self.small_run.direct_cells
        last_run = self.longer or self.large_run
        score = {}
        for task, (cell_work, seconds) in last_run.direct_cells.items():
            if task in few_cells:
                few_work, few_seconds = few_cells[task]
                score[task] = _bounded_rate(
                    tokens=cell_work.score_tokens - few_work.score_tokens,
                    seconds=seconds - few_seconds,
                    all_tokens=cell_work.score_tokens,
                    all_seconds=seconds,
                )
        return score

    def _measure_few_shot(self) -> dict[tuple[str, str], float]:
        """Return the seconds per token of the few-shot cells, by task and protocol."""
        few_shot = {}
        for cell_work, seconds in self.large_run.cells:
            if cell_work.protocol.kind == "few_shot":
                seconds_per_token = seconds / max(cell_work.score_tokens, 1e-9)
                few_shot[cell_work.task, str(cell_work.protocol)] = seconds_per_token
        return few_shot

    def _measure_train(self) -> float:
        """Return the seconds per token trained."""
        shorter_run = self.small_run
        longer_run = self.large_run
        if self.longer is not None:
            shorter_run = self.large_run
            longer_run = self.longer
        return _bounded_rate(
            tokens=longer_run.trained - shorter_run.trained,
            seconds=longer_run.train_seconds - shorter_run.train_seconds,
            all_tokens=longer_run.trained,
            all_seconds=longer_run.train_seconds,
        )

    def _measure_tuned_slowdown(self, score: Mapping[str, float]) -> float:
        """Return how much slower tuned models are scored than untuned ones."""
        expected_few = _expect_tuned_score_seconds(self.small_run, score)
        expected_more = _expect_tuned_score_seconds(self.large_run, score)
        return _bounded_rate(
            tokens=expected_more - expected_few,
            seconds=self.large_run.tuned_score_seconds - self.small_run.tuned_score_seconds,
            all_tokens=expected_more,
            all_seconds=self.large_run.tuned_score_seconds,
        )

    def _measure_epoch_end(
        self, score: Mapping[str, float], train: float, tuned_slowdown: float
    ) -> float:
        """Return the fixed seconds of an epoch's end, for all lanes together."""
        expected_more = _expect_tuned_score_seconds(self.large_run, score)
        if self.longer is None:  # one validation of all lanes
            return max(self.large_run.tuned_score_seconds - tuned_slowdown * expected_more, 0.0)
        expected_longer = _expect_tuned_score_seconds(self.longer, score)
        seconds = self.longer.beside_checks - self.large_run.beside_checks
        train_seconds = train * (self.longer.trained - self.large_run.trained)
        score_seconds = tuned_slowdown * (expected_longer - expected_more)
        seconds -= train_seconds + score_seconds
        return max(seconds, 0.0) / (LONGER - 1)  # saving is part of it


def _expect_tuned_score_seconds(timed_run: Timed, score: Mapping[str, float]) -> float:
    """Return the seconds that the scoring of the tuned cells would take at the pace of the direct cells."""
    tuned_cells = [cell_work for cell_work, _ in timed_run.cells if cell_work.protocol.tuned]
    return sum(cell_work.score_tokens * score.get(cell_work.task, 0.0) for cell_work in tuned_cells)


def _bounded_rate(*, tokens: float, seconds: float, all_tokens: float, all_seconds: float) -> float:
    """Return the seconds per token between two runs, between a fifth and the whole of the longer run's rate."""
    whole_rate = all_seconds / max(all_tokens, 1e-9)  # with the fixed part in it: no pace is slower
    if tokens > 0:
        return min(max(seconds / tokens, 0.2 * whole_rate), whole_rate)
    return whole_rate
