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
from potentia.run.plan import Row, StudyPlan, plan_study
from potentia.run.progress import find_store, open_store
from potentia.study import Caps, Study, Tuning
from potentia.values.protocol import DIRECT

if TYPE_CHECKING:
    from potentia.run.ask import SplitName

FIRST = 16  # documents of the largest task in the first run
LEAST = 8  # documents of any task, at least
GROWTH = {"cpu": 3, "cuda": 9}  # how much larger the next run is
LONGER = 4  # epochs of the last run on a GPU, where small runs are mostly start-up
PATIENCE = 10.0  # seconds: a first run that takes longer is not repeated
ONE_TIME_WORK = ("check", "compile", "load")  # kinds of work that a row does once


def estimate_cost(
    plan: StudyPlan, *, calibrate: bool = True, tell: Callable[[str], Any] = lambda _: None
) -> StudyCost:
    """Price a study by the rows in its store, else by a short calibration; without either, seconds are NaN."""
    device = str(pick_device(plan.study.device)).partition(":")[0]
    store = find_store(plan.study.store)
    paces: list[Pace] = []
    if store is not None:
        with store:
            paces = read_paces(plan, store, device)
    if any(pace.train is not None for pace in paces) or (paces and not calibrate):
        return price_work(plan, paces, f"{len(paces)} measured rows in the store", device)
    pending_rows = [row for row in plan.rows if row.pending and not row.problem]
    if not calibrate or not pending_rows:
        return price_work(plan, paces, "", device)
    measured_paces, start = measure_paces(plan, pending_rows, device, tell)
    source = f"a calibration on {len(measured_paces)} of its models"
    return price_work(plan, [*paces, *measured_paces], source, device, start=start)


def measure_paces(
    plan: StudyPlan, pending_rows: Sequence[Row], device: str, tell: Callable[[str], Any]
) -> tuple[list[Pace], float]:
    """Run the study in small on a few of its models; return their paces, and the seconds that a new process needs."""
    paces: list[Pace] = []
    with tempfile.TemporaryDirectory(prefix="potentia-pace-") as folder, ModelSession() as session:
        for row in _pick_rows(pending_rows):
            tell(f"calibrating on {row.model.name}")
            calibration = _ModelCalibration(
                plan=plan, model=row.model.name, folder=Path(folder), session=session
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
        cold = self._run(FIRST)
        few = cold
        if cold.whole < PATIENCE or is_gpu:
            few = self._run(FIRST)
        more = self._run(documents)
        longer = None
        if is_gpu and more.trained:
            longer = self._run(documents, epochs=LONGER)
        return _PaceFromRuns(cold=cold, few=few, more=more, longer=longer).measure(parameters)

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


def _shrink_study(plan: StudyPlan, model: str, documents: int, *, store: str, epochs: int) -> Study:
    """Return the study with one model, a few epochs, and so many documents of its largest task."""
    study = plan.study
    model_specs = {row.name: row for row in study.rows()}
    tasks = []
    for task in study.benchmarks():
        caps = _cap_in_proportion(plan, task.name, documents)
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
    original = model_specs[model].model_copy(update={"copy_of": None})
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


def _cap_in_proportion(plan: StudyPlan, name: str, documents: int) -> Caps:
    """Return caps by which all splits of a task keep their share of the largest task's training documents."""
    task = plan.tasks.by_name[name]
    largest = max(len(task.documents("train")) for task in plan.tasks.by_name.values())
    most_shots = max(plan.study.shots_for(name, protocol) for protocol in plan.study.protocols)
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
    whole: float

    @property
    def trained(self) -> float:
        """Tokens trained on."""
        return sum(work.train_tokens for work, _ in self.cells)

    @property
    def train_seconds(self) -> float:
        """Seconds of training."""
        return self.tally.get("train", 0.0)

    @property
    def tuned_score_seconds(self) -> float:
        """Seconds that the scoring of the tuned cells took."""
        untuned_seconds = sum(seconds for work, seconds in self.cells if not work.protocol.tuned)
        score_seconds = self.tally.get("validate", 0.0) + self.tally.get("test", 0.0)
        return max(score_seconds - untuned_seconds, 0.0)

    @property
    def beside_checks(self) -> float:
        """Seconds without checks, compiling and loading, which are done once."""
        return self.whole - sum(self.tally.get(kind, 0.0) for kind in ONE_TIME_WORK)

    @property
    def direct_cells(self) -> dict[str, tuple[CellWork, float]]:
        """The direct cells with their seconds, by task."""
        cells_by_task = {}
        for work, seconds in self.cells:
            if work.protocol == DIRECT:
                cells_by_task[work.task] = (work, seconds)
        return cells_by_task


def _time_run(study: Study, session: ModelSession) -> Timed:
    """Run a small study and return how long its parts took."""
    plan = plan_study(study)
    began = time.monotonic()
    result = run_study(plan, session=session)
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
    for work in count_work(plan):
        seconds = seconds_by_cell.get((work.task, str(work.protocol)))
        if seconds is not None:
            cells.append((work, seconds))
    return Timed(cells=cells, tally=tally, whole=run_seconds)


@dataclass(frozen=True)
class _PaceFromRuns:
    """The pace between the small runs of a model; a share of the plain ratio at least, for clocks are noisy."""

    cold: Timed  # the very first run
    few: Timed  # the same again
    more: Timed  # with more documents
    longer: (
        Timed | None
    )  # ``more`` with further epochs: on a GPU only their difference is free of start-up

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
        if self.more.trained:
            train = self._measure_train()
            tuned_slowdown = self._measure_tuned_slowdown(score)
            epoch_end = self._measure_epoch_end(score, train, tuned_slowdown)
        direct_cells = [work for work, _ in self.cold.cells if work.protocol == DIRECT]
        seconds = sum(work.score_tokens * score.get(work.task, 0.0) for work in direct_cells)
        seconds += sum(
            work.score_tokens * few_shot.get((work.task, str(work.protocol)), 0.0)
            for work, _ in self.cold.cells
        )
        tuned_seconds = tuned_slowdown * _expect_tuned_score_seconds(self.cold, score)
        seconds += (train or 0.0) * self.cold.trained + tuned_seconds + epoch_end
        return Pace(
            parameters=parameters,
            load=max(self.cold.whole - seconds, 0.0),
            score=score,
            train=train,
            tuned_slowdown=tuned_slowdown,
            epoch_end=epoch_end,
            few_shot=few_shot,
        )

    def _measure_score(self) -> dict[str, float]:
        """Return the seconds per token of the direct cells, by task."""
        few_cells = self.few.direct_cells
        last_run = self.longer or self.more
        score = {}
        for task, (work, seconds) in last_run.direct_cells.items():
            if task in few_cells:
                few_work, few_seconds = few_cells[task]
                score[task] = _bounded_rate(
                    tokens=work.score_tokens - few_work.score_tokens,
                    seconds=seconds - few_seconds,
                    all_tokens=work.score_tokens,
                    all_seconds=seconds,
                )
        return score

    def _measure_few_shot(self) -> dict[tuple[str, str], float]:
        """Return the seconds per token of the few-shot cells, by task and protocol."""
        few_shot = {}
        for work, seconds in self.more.cells:
            if work.protocol.kind == "few_shot":
                rate = seconds / max(work.score_tokens, 1e-9)
                few_shot[work.task, str(work.protocol)] = rate
        return few_shot

    def _measure_train(self) -> float:
        """Return the seconds per token trained."""
        shorter_run = self.few
        longer_run = self.more
        if self.longer is not None:
            shorter_run = self.more
            longer_run = self.longer
        return _bounded_rate(
            tokens=longer_run.trained - shorter_run.trained,
            seconds=longer_run.train_seconds - shorter_run.train_seconds,
            all_tokens=longer_run.trained,
            all_seconds=longer_run.train_seconds,
        )

    def _measure_tuned_slowdown(self, score: Mapping[str, float]) -> float:
        """Return how much slower tuned models are scored than untuned ones."""
        expected_few = _expect_tuned_score_seconds(self.few, score)
        expected_more = _expect_tuned_score_seconds(self.more, score)
        return _bounded_rate(
            tokens=expected_more - expected_few,
            seconds=self.more.tuned_score_seconds - self.few.tuned_score_seconds,
            all_tokens=expected_more,
            all_seconds=self.more.tuned_score_seconds,
        )

    def _measure_epoch_end(
        self, score: Mapping[str, float], train: float, tuned_slowdown: float
    ) -> float:
        """Return the fixed seconds of an epoch's end, for all lanes together."""
        expected_more = _expect_tuned_score_seconds(self.more, score)
        if self.longer is None:  # one validation of all lanes
            return max(self.more.tuned_score_seconds - tuned_slowdown * expected_more, 0.0)
        expected_longer = _expect_tuned_score_seconds(self.longer, score)
        seconds = self.longer.beside_checks - self.more.beside_checks
        train_seconds = train * (self.longer.trained - self.more.trained)
        score_seconds = tuned_slowdown * (expected_longer - expected_more)
        seconds -= train_seconds + score_seconds
        return max(seconds, 0.0) / (LONGER - 1)  # saving is part of it


def _expect_tuned_score_seconds(run: Timed, score: Mapping[str, float]) -> float:
    """Return the seconds that the scoring of the tuned cells would take at the pace of the direct cells."""
    tuned_cells = [work for work, _ in run.cells if work.protocol.tuned]
    return sum(work.score_tokens * score.get(work.task, 0.0) for work in tuned_cells)


def _bounded_rate(*, tokens: float, seconds: float, all_tokens: float, all_seconds: float) -> float:
    """Return the seconds per token between two runs, between a fifth and the whole of the longer run's rate."""
    whole_rate = all_seconds / max(all_tokens, 1e-9)  # with the fixed part in it: no pace is slower
    if tokens > 0:
        return min(max(seconds / tokens, 0.2 * whole_rate), whole_rate)
    return whole_rate
