"""A short calibration of the real engine: the study itself, made small, on a few of its models.

The smallest, the middle and the largest model run every task with the study's own lanes and one epoch, on a few
documents, once more, and on several times as many; on a GPU then for more epochs. The model stays loaded meanwhile.
What a run takes beyond the one before is the pace; what the very first takes beyond its pace are the beginnings:
loading, checks, first passes. Tasks keep their proportions, so that lanes end at different times as they will. So
padding, shared passes, generation and the device are in the figures as they will be in the run.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

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

FIRST, LEAST = 16, 8  # documents of the largest task in the first run, and of any task at least
GROWTH = {"cpu": 3, "cuda": 9}  # how much larger the next run is
LONGER = 4  # epochs of the last run on a GPU, where small runs are all beginnings
PATIENCE = 10.0  # seconds: a first run that takes longer is not made again


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
    left = [row for row in plan.rows if row.pending and not row.problem]
    if not calibrate or not left:
        return price_work(plan, paces, "", device)
    measured, start = measure_paces(plan, left, device, tell)
    return price_work(
        plan,
        [*paces, *measured],
        f"a calibration on {len(measured)} of its models",
        device,
        start=start,
    )


def measure_paces(
    plan: StudyPlan, left: Sequence[Row], device: str, tell: Callable[[str], Any]
) -> tuple[list[Pace], float]:
    """Run the study in small on a few of its models; return their paces, and what a new process takes to begin."""
    rows = sorted(left, key=lambda row: np.nan_to_num(find_parameters(row.model), nan=np.inf))
    picked = [rows[k] for k in sorted({0, len(rows) // 2, len(rows) - 1})]
    whole = max(len(task.documents("train")) for task in plan.tasks.by_name.values())
    paces: list[Pace] = []
    growth = GROWTH.get(device, GROWTH["cpu"])
    with tempfile.TemporaryDirectory(prefix="potentia-pace-") as folder, ModelSession() as session:
        for row in picked:
            tell(f"calibrating on {row.model.name}")

            def timed(documents: int, epochs: int = 1, *, name: str = row.model.name) -> Timed:
                store = str(Path(folder) / f"{len(list(Path(folder).glob('*.db')))}.db")
                return _timed_run(
                    _small(plan, name, min(documents, whole), store, epochs=epochs), session
                )

            cold = timed(FIRST)
            few = timed(FIRST) if cold.whole < PATIENCE or device != "cpu" else cold
            more = timed(FIRST * growth)
            longer = timed(FIRST * growth, LONGER) if device != "cpu" and more.trained else None
            pace = _slope(find_parameters(row.model), cold, few, more, longer)
            if pace is not None:
                paces.append(pace)
    if len(paces) < 2:
        return paces, 0.0
    start = max(
        (paces[0].load or 0.0) - (paces[1].load or 0.0), 0.0
    )  # the first has imported libraries too
    return [replace(paces[0], load=(paces[0].load or 0.0) - start), *paces[1:]], start


def _small(plan: StudyPlan, model: str, documents: int, store: str, *, epochs: int = 1) -> Study:
    """Return the study with one model, one epoch or two, and so many documents of its largest task."""
    study = plan.study
    rows = {row.name: row for row in study.rows()}
    tasks = tuple(
        spec.model_copy(update={"caps": _in_proportion(plan, spec.name, documents)})
        for spec in study.benchmarks()
    )
    adjust = study.adjust
    if adjust is not None:
        own = adjust.tuning and _short(adjust.tuning)
        cap = min(adjust.cap or documents, documents)
        adjust = adjust.model_copy(update={"at_steps": (), "tuning": own, "cap": cap})
    return study.model_copy(
        update={
            "models": (
                rows[model].model_copy(update={"copy_of": None}),
            ),  # a treated copy is as fast as its original
            "protocols": tuple(dict.fromkeys((DIRECT, *study.protocols))),
            "tasks": tasks,
            "tuning": _short(study.tuning, epochs),
            "adjust": adjust,
            "treat": None,
            "only": None,
            "store": store,
            "keep_adapters": False,
        }
    )


def _short(tuning: Tuning, epochs: int = 1) -> Tuning:
    """Return a recipe that does as much as is counted: its grid, for so many epochs, without a race."""
    return tuning.model_copy(
        update={"epochs": epochs, "least_updates": 0, "rate_bounds": None, "race": False}
    )


def _in_proportion(plan: StudyPlan, name: str, documents: int) -> Caps:
    """Return caps of a task that keep its share of the largest one's training documents, validation and test alike."""
    task = plan.tasks.by_name[name]
    largest = max(len(other.documents("train")) for other in plan.tasks.by_name.values())
    have = {split: len(task.documents(split)) for split in ("train", "validation", "test")}
    least = max(
        LEAST, 1 + max(plan.study.shots_for(name, protocol) for protocol in plan.study.protocols)
    )
    wanted = {
        split: max(math.ceil(documents * count / max(largest, 1)), least)
        for split, count in have.items()
    }
    return Caps(**{split: max(min(wanted[split], count), 1) for split, count in have.items()})


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
    def beside_checks(self) -> float:
        """Seconds without checks, compiling and loading, which are done once."""
        return self.whole - sum(self.tally.get(kind, 0.0) for kind in ("check", "compile", "load"))

    @property
    def plain(self) -> dict[str, tuple[CellWork, float]]:
        """The direct cells, by task."""
        return {
            work.task: (work, seconds) for work, seconds in self.cells if work.protocol == DIRECT
        }


def _timed_run(small: Study, session: ModelSession) -> Timed:
    plan = plan_study(small)
    began = time.monotonic()
    result = run_study(plan, session=session)
    whole = time.monotonic() - began
    with open_store(small.store, readonly=True) as store:
        seconds = {(c.task, str(c.protocol)): c.seconds for c in store.cells.read()}
        rows = [event.payload for event in store.events.read(result.study) if event.kind == "row"]
    cells = [
        (work, seconds[work.task, str(work.protocol)])
        for work in count_work(plan)
        if (work.task, str(work.protocol)) in seconds
    ]
    return Timed(cells, dict(rows[-1]["tally"]) if rows else {}, whole)


def _slope(
    parameters: float, cold: Timed, few: Timed, more: Timed, longer: Timed | None
) -> Pace | None:
    """Return the pace between runs; a share of the plain ratio at least, for clocks are noisy.

    ``longer`` is ``more`` with further epochs: on a GPU the difference of these two alone is free of beginnings. What
    the very first run took beyond its pace is what loading and beginning a row take.
    """
    last = (longer or more).plain
    score = {
        task: _rate(
            b.score_tokens - few.plain[task][0].score_tokens,
            s - few.plain[task][1],
            b.score_tokens,
            s,
        )
        for task, (b, s) in last.items()
        if task in few.plain
    }
    if not score:
        return None
    shown = {
        (work.task, str(work.protocol)): seconds / max(work.score_tokens, 1e-9)
        for work, seconds in more.cells
        if work.protocol.kind == "few_shot"
    }

    def asked(run: Timed) -> float:
        """Seconds that the scoring of the tuned cells would take if it went like the direct cells'."""
        return sum(
            work.score_tokens * score.get(work.task, 0.0)
            for work, _ in run.cells
            if work.protocol.tuned
        )

    def scored(run: Timed) -> float:
        """Seconds that it took."""
        plain = sum(seconds for work, seconds in run.cells if not work.protocol.tuned)
        return max(run.tally.get("validate", 0.0) + run.tally.get("test", 0.0) - plain, 0.0)

    train, check, each = None, 1.0, 0.0
    if more.trained:
        a, b = (more, longer) if longer is not None else (few, more)
        spent = [run.tally.get("train", 0.0) for run in (a, b)]
        train = _rate(b.trained - a.trained, spent[1] - spent[0], b.trained, spent[1])
        check = _rate(
            asked(more) - asked(few), scored(more) - scored(few), asked(more), scored(more)
        )
        each = max(
            scored(more) - check * asked(more), 0.0
        )  # of it, the fixed part of one validation of all lanes
        if longer is not None:
            beside = longer.beside_checks - more.beside_checks
            beside -= train * (longer.trained - more.trained) + check * (
                asked(longer) - asked(more)
            )
            each = max(beside, 0.0) / (LONGER - 1)  # saving among it
    work = sum(
        w.score_tokens * score.get(w.task, 0.0) for w, _ in cold.cells if w.protocol == DIRECT
    )
    work += sum(w.score_tokens * shown.get((w.task, str(w.protocol)), 0.0) for w, _ in cold.cells)
    work += (train or 0.0) * cold.trained + check * asked(cold) + each
    return Pace(
        parameters, max(cold.whole - work, 0.0), score, train, check=check, each=each, shown=shown
    )


def _rate(tokens: float, seconds: float, all_tokens: float, all_seconds: float) -> float:
    plain = all_seconds / max(all_tokens, 1e-9)  # with the fixed part in it: no pace is slower
    return min(max(seconds / tokens, 0.2 * plain), plain) if tokens > 0 else plain
