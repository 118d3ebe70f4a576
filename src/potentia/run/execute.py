"""Running a study from start to end: plan, execute the rows that are not done, and say how it went."""

from __future__ import annotations

import _thread
import contextlib
import logging
import math
import os
import signal
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from potentia.engine import pick_device
from potentia.errors import InputError, StoreError
from potentia.run.cost import estimate_gpu_bytes
from potentia.run.local import ModelSession, Stop, run_rows
from potentia.run.machine import CORES_PER_ROW, MOST_PER_GPU, POLITE, WorkerProcesses
from potentia.run.plan import (
    LoadedTasks,
    Row,
    StudyPlan,
    adopt_finished_cells,
    mark_finished_cells,
    plan_study,
)
from potentia.run.progress import (
    RunLog,
    Stopped,
    name_lanes_folder,
    open_store,
    remove_lanes_folder,
)
from potentia.run.row import RowOutcome, versions
from potentia.run.row_parts import LEAST_SECONDS, count_train_documents, divide_rows, iterate_parts
from potentia.values.protocol import ADJUST, TRAIN_BEFORE_TEST

if TYPE_CHECKING:
    from potentia.store import Store
    from potentia.study import Study


class Elsewhere(Protocol):
    """An executor, ``run_elsewhere`` of ``run/on_NAME.py``: hand each row to ``answer_assignment`` on another machine.

    ``divide`` gives rows in parts, for so many workers of a kind of device. ``AssignmentQueue`` says who is next and
    hears the answers; a row that is lost goes to ``give_up_assignment``.
    """

    def __call__(
        self,
        rows: Sequence[Row],
        tasks: LoadedTasks,
        *,
        stop: Stop,
        divide: Callable[[int, str], Sequence[Row]],
    ) -> dict[str, RowOutcome]:
        """Return how each row ended, by the model's name."""


@dataclass(frozen=True)
class RunResult:
    """How a run ended: cells found finished, computed now, failed, and still missing."""

    study: str
    reused: int
    computed: int
    failed: int
    interrupted: bool
    reasons: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """0 all is well, 1 some cells failed, 130 interrupted."""
        return 130 if self.interrupted else int(self.failed > 0)


def run_study(
    study: Study | StudyPlan,
    *,
    workers: int = 1,
    executor: str = "local",
    threads: int = 0,
    watch: Callable[[StudyPlan], Any] | None = None,
    split: bool | None = None,
    stay: ModelSession | None = None,
    crew: WorkerProcesses | None = None,
) -> RunResult:
    """Run what is not done yet of a study, or of a plan just made of it.

    ``threads`` are those of a row on a CPU, by default an even share of the machine: the last bits of a score follow
    from them. ``watch`` gives a context manager that shows progress while the rows run. ``split`` lets the tasks of a
    long row go to several workers: by default on GPUs. ``stay`` keeps models and workers for the next call; ``crew``
    are workers who are there already.
    """
    plan = study if isinstance(study, StudyPlan) else plan_study(study)
    check_executor(executor)
    if any(row.pending for row in plan.rows):  # a study that is done loads no torch
        if executor == "local":
            check_device(plan.study)
        plan = _under_way(plan, workers, threads)
    todo = [row for row in plan.rows if row.pending]
    log = _register(plan)
    facts = {
        "study": plan.study.name,
        "key": plan.key,
        "run": plan.run,
        "workers": workers,
        "executor": executor,
    }
    facts |= {
        "threads": plan.rows[0].threads if plan.rows else 0,
        "versions": versions() if todo else {},
    }
    log.write("begin", **facts, rows={row.model.name: len(row.pending) for row in todo})
    outcomes: dict[str, RowOutcome] | None = {}
    with stop_on_signals() as stop, watch(plan) if watch and todo else nullcontext():
        try:
            outcomes = (
                _execute(plan, todo, workers, executor, stop, split, stay, crew) if todo else {}
            )
        except (Stopped, KeyboardInterrupt):
            outcomes = None
        except BaseException as error:
            log.write(
                "error",
                error=type(error).__name__,
                message=str(error),
                trace=traceback.format_exc(),
            )
            raise
    result = _result(plan, outcomes)
    _settle(plan, result.reused + result.computed)
    log.write("end", **{name: value for name, value in vars(result).items() if name != "reasons"})
    return result


def _under_way(plan: StudyPlan, workers: int, threads: int) -> StudyPlan:
    """Name the run, and give its rows their threads: an even share by the workers asked for, not by the rows left."""
    import torch

    run = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{uuid.uuid4().hex[:6]}"  # sorts by time
    each = threads or max(1, torch.get_num_threads() // max(workers, 1))
    return replace(
        plan, run=run, rows=tuple(replace(row, run=run, threads=each) for row in plan.rows)
    )


def _result(plan: StudyPlan, outcomes: Mapping[str, RowOutcome] | None) -> RunResult:
    """Sum up how the rows ended; None where the run was stopped."""
    rows = outcomes or {}
    found, done, failed = (
        sum(getattr(row, what) for row in rows.values()) for what in ("found", "done", "failed")
    )
    reasons = [
        f"{name} × {cells[0]}: {why}" if len(cells) == 1 else f"{name}, {len(cells)} cells: {why}"
        for name, row in rows.items()
        for why, cells in row.reasons.items()
    ]
    before = sum(cell.finished for cell in plan.iterate_cells())
    return RunResult(plan.key, before + found, done, failed, outcomes is None, reasons)


def check_executor(name: str) -> None:
    """Refuse an executor that is not there."""
    if name != "local" and (
        not name.isidentifier() or find_spec(f"potentia.run.on_{name}") is None
    ):
        raise InputError(f"no executor {name!r}", hint="use local or ray")
    if name == "ray" and find_spec("ray") is None:
        raise InputError(
            "Ray is not installed", hint="pip install 'potentia[ray]', or drop --executor ray"
        )


def check_device(study: Study) -> None:
    """Refuse a device that this machine does not have."""
    device = pick_device(study.device)
    if device.type == "cuda" and device.index is not None:
        import torch

        count = torch.cuda.device_count()
        if device.index >= count:
            raise InputError(
                f"there is no {study.device}: this machine has {count} CUDA devices",
                hint=f"use {', '.join(f'cuda:{k}' for k in range(count))} or cuda",
            )


def _register(plan: StudyPlan) -> RunLog:
    """Make the study known to its store, made where there is none, with the cells that are done; give the run's log."""
    with open_store(plan.study.store, create=True) as store:
        spec = plan.study.model_dump(mode="json")
        if "://" in plan.study.store:
            spec["store"] = store.where  # without its password
        store.study(plan.study.name, plan.key, spec)
        if plan.outdated:
            store.release(plan.key, plan.outdated)
        for row in plan.rows:
            adopt_finished_cells(row, store)
        return RunLog(store, plan.run)


def choose_worker_count(plan: StudyPlan) -> int:
    """Return how many rows run at once: one on a CPU, which uses all threads; on GPUs as many as fit.

    A small model leaves a GPU idle most of the time, so several share one, as many as have room for what they need
    where the largest come together, each with two of the machine's cores.
    """
    left = [row for row in plan.rows if row.pending and not row.problem]
    if not left or plan.study.device in ("cpu", "spread"):
        return 1
    import torch

    if not torch.cuda.is_available():
        return 1
    gpus = torch.cuda.device_count() if plan.study.device in ("auto", "cuda") else 1
    needs = [estimate_gpu_bytes(row.model) for row in left]
    if math.isnan(sum(needs)):  # a model of unknown size may need all of it
        return gpus
    whole = torch.cuda.get_device_properties(0).total_memory
    room = sum(together <= whole for together in accumulate(sorted(needs, reverse=True)))
    each = min(room, (os.cpu_count() or 1) / CORES_PER_ROW / gpus, len(left) / gpus, MOST_PER_GPU)
    return gpus * max(1, int(each))


def _settle(plan: StudyPlan, finished: int) -> None:
    """Tidy up, and make sure that what this run has finished is in the store."""
    with open_store(plan.study.store) as store:
        found = sum(
            cell.finished for row in mark_finished_cells(plan.rows, store) for cell in row.cells
        )
        if found < finished:
            raise StoreError(
                f"{finished - found} finished cells are not in the store any more",
                where=store.where,
                hint="was it removed or put back while the study ran? The same command computes them anew",
            )
        remove_finished_lanes(plan, store)


def _execute(
    plan: StudyPlan,
    rows: list[Row],
    workers: int,
    executor: str,
    stop: Callable[[], bool],
    split: bool | None,
    stay: ModelSession | None,
    crew: WorkerProcesses | None,
) -> dict[str, RowOutcome]:
    def divide(workers: int, device: str) -> list[Row]:
        wanted = device != "cpu" if split is None else split
        least = LEAST_SECONDS if split is None else 0.0
        with open_store(plan.study.store) as store:
            begun = store.lanes_folder.is_dir() and any(store.lanes_folder.iterdir())
            if not (wanted or begun):
                return rows
            return divide_rows(
                plan, rows, store, workers, device=device, least=least if wanted else math.inf
            )

    if executor == "local":
        device = pick_device(plan.study.device).type
        return run_rows(
            divide(workers, device), plan.tasks, workers=workers, stop=stop, stay=stay, crew=crew
        )
    elsewhere: Elsewhere = import_module(f"potentia.run.on_{executor}").run_elsewhere
    return elsewhere(rows, plan.tasks, stop=stop, divide=divide)


def remove_finished_lanes(plan: StudyPlan, store: Store) -> None:
    """Remove the lanes of every row of the study that is done, and half-written files of its cells."""
    store.sweep()
    folder = store.lanes_folder
    if not folder.is_dir():
        return
    rows = mark_finished_cells([row for row in plan.rows if not row.problem], store)
    for row in rows:
        _remove_done(folder, row)
    sizes = count_train_documents(plan) if folder.is_dir() and any(folder.iterdir()) else {}
    for row in rows if sizes else ():  # a run may have been killed that had them in parts
        for part in iterate_parts(row, sizes):
            _remove_done(folder, part)
    with contextlib.suppress(OSError):  # others have lanes there
        folder.rmdir()


def _remove_done(folder: Path, row: Row) -> None:
    for kind in (TRAIN_BEFORE_TEST, ADJUST):
        own = [cell for cell in row.cells if cell.protocol.kind == kind]
        if own and all(cell.finished for cell in own):
            remove_lanes_folder(folder / name_lanes_folder(row, kind))


@contextmanager
def stop_on_signals() -> Iterator[Callable[[], bool]]:
    """Turn Ctrl-C, SIGTERM and SIGHUP into a polite stop, and a second Ctrl-C into the usual interrupt.

    Schedulers send SIGTERM to all processes of a job, some more than once, and SIGHUP with it: these only ask. An
    interrupt that came while an object was let go, where Python drops what is raised, is raised once more.
    """
    flag = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield flag.is_set
        return

    def ask(number: int, frame: Any) -> None:
        if flag.is_set() and number == signal.SIGINT:
            logging.getLogger(
                "sqlalchemy.pool"
            ).disabled = True  # would print it where a connection is just closed
            raise KeyboardInterrupt
        flag.set()

    def once_more(told: Any) -> None:
        if issubclass(told.exc_type, KeyboardInterrupt):
            threading.Timer(0.01, _thread.interrupt_main).start()
        else:
            hook(told)

    under_nohup = hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    heard = [number for number in POLITE if not (under_nohup and number == signal.SIGHUP)]
    before = {number: signal.signal(number, ask) for number in heard}
    hook, sys.unraisablehook = sys.unraisablehook, once_more
    try:
        yield flag.is_set
    finally:
        sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, handler)
