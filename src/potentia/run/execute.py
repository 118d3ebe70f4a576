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
from itertools import accumulate
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from potentia.engine import pick_device
from potentia.errors import InputError, StoreError
from potentia.extras import Extra, require_extra
from potentia.run.commit import versions
from potentia.run.cost import estimate_gpu_bytes
from potentia.run.executors import ExecutionRequest, Executor, find_executor
from potentia.run.executors.local import LocalExecutor, ModelSession
from potentia.run.executors.worker_processes import (
    CORES_PER_ROW,
    ROWS_PER_GPU,
    STOP_SIGNALS,
    WorkerProcesses,
)
from potentia.run.plan import Assignment, Row, StudyPlan, adopt_finished_cells, plan_study
from potentia.run.progress import (
    RunLog,
    Stopped,
    name_lanes_folder,
    open_store,
    remove_lanes_folder,
)
from potentia.run.row_context import RowOutcome
from potentia.run.row_parts import (
    LEAST_SECONDS,
    count_train_documents,
    divide_assignments,
    iterate_parts,
)
from potentia.run.time_left import WORK_EVENT, WorkLeft
from potentia.run.worker import StopRequested, give_up_assignment
from potentia.values.failure import CellFailure
from potentia.values.protocol import ADJUST, TRAIN_BEFORE_TEST

if TYPE_CHECKING:
    from potentia.store import Store
    from potentia.study import Study


@dataclass(frozen=True)
class RunResult:
    """How a run ended: cells found finished, computed now and failed, and why they failed."""

    study: str
    reused: int
    computed: int
    failed: int
    interrupted: bool
    failures: tuple[CellFailure, ...] = field(default=(), repr=False)
    # a stop may be asked for when all cells are just finished: who runs several studies stops then
    stop_requested: bool = False

    @property
    def exit_code(self) -> int:
        """0 all is well, 1 some cells failed, 130 interrupted."""
        return 130 if self.interrupted else int(self.failed > 0)

    def count_cells(self) -> dict[str, Any]:
        """Return the study and how many of its cells ended how."""
        return {
            "study": self.study,
            "reused": self.reused,
            "computed": self.computed,
            "failed": self.failed,
            "interrupted": self.interrupted,
        }

    def to_dict(self) -> dict[str, Any]:
        """Return how the run ended as plain values."""
        return {**self.count_cells(), "reasons": self.reasons}

    @property
    def reasons(self) -> list[str]:
        """Why cells failed, in words: a line for each model and reason."""
        cells_by_reason: dict[tuple[str, str], list[CellFailure]] = {}
        for failure in self.failures:
            cells_by_reason.setdefault((failure.model, failure.reason), []).append(failure)
        reasons = []
        for (model, reason), failures in cells_by_reason.items():
            if len(failures) == 1:
                (failure,) = failures
                reasons.append(f"{model} × {failure.task} × {failure.protocol}: {reason}")
            else:
                reasons.append(f"{model}, {len(failures)} results: {reason}")
        return reasons


def run_study(
    study: Study | StudyPlan,
    *,
    workers: int = 1,
    executor: str = "local",
    threads: int = 0,
    watch: Callable[[StudyPlan], Any] | None = None,
    split: bool | None = None,
    session: ModelSession | None = None,
    processes: WorkerProcesses | None = None,
    stop: StopRequested | None = None,
) -> RunResult:
    """Run what is not done yet of a study, or of a plan just made of it.

    Args:
        study: A study, or a plan that was just made of it.
        workers: Models at once.
        executor: ``local``, ``ray`` or ``slurm``.
        threads: Of a model on a CPU, an even share of the machine where absent: the last bits of a score follow
            from them.
        watch: Gives a context manager that shows progress while models run.
        split: Let the tasks of a long job go to several workers; on GPUs where absent.
        session: Keeps models and workers for the next call.
        processes: Workers that are there already.
        stop: Asked whether to stop, as a signal does.

    Example:
        >>> potentia.run_study(potentia.read_study("study.yaml"))
    """
    require_extra(Extra.RUN, "running a study")
    study_plan = study if isinstance(study, StudyPlan) else plan_study(study)
    executor_class = find_executor(executor)
    assignments: list[Assignment] = []
    if any(row.pending for row in study_plan.rows):  # a study that is done loads no torch
        if executor == "local":
            check_device(study_plan.study)
        study_plan = replace(study_plan, run=_name_run())
        assignments = make_assignments(study_plan, workers, threads)
    run_log = register_study(study_plan)
    run_log.write(
        "begin",
        study=study_plan.study.name,
        key=study_plan.key,
        run=study_plan.run,
        workers=workers,
        executor=executor,
        threads=assignments[0].threads if assignments else 0,
        versions=versions() if assignments else {},
        rows={assignment.model.name: len(assignment.pending) for assignment in assignments},
    )
    outcomes: dict[str, RowOutcome] | None = {}
    progress_view = watch(study_plan) if watch and assignments else nullcontext()
    with stop_on_signals() as stop_requested, progress_view:
        try:
            if assignments:
                request = ExecutionRequest(
                    assignments=assignments,
                    tasks=study_plan.tasks,
                    workers=workers,
                    stop_requested=_stop_on_either(stop_requested, stop),
                    divide=_make_divider(study_plan, assignments, split),
                    give_up=lambda assignment, reason: give_up_assignment(
                        assignment, study_plan.tasks, reason
                    ),
                )
                outcomes = _make_executor(executor_class, session, processes).run(request)
        except (Stopped, KeyboardInterrupt):
            outcomes = None
        except BaseException as error:
            run_log.write(
                "error",
                error=type(error).__name__,
                message=str(error),
                trace=traceback.format_exc(),
            )
            raise
    result = replace(_sum_up(study_plan, outcomes), stop_requested=stop_requested())
    _check_and_tidy_up(study_plan, result.reused + result.computed)
    run_log.write("end", **result.count_cells())
    return result


def _stop_on_either(by_signal: StopRequested, by_caller: StopRequested | None) -> StopRequested:
    """Return a question that is answered yes where a signal or the caller asks to stop."""
    if by_caller is None:
        return by_signal
    return lambda: by_signal() or by_caller()


def _name_run() -> str:
    moment = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    return f"{moment}-{uuid.uuid4().hex[:6]}"  # sorts by time


def make_assignments(study_plan: StudyPlan, workers: int, threads: int = 0) -> list[Assignment]:
    """Return an assignment for each row with something to compute.

    They share the threads evenly by the workers asked for, not by the rows that are left.
    """
    import torch

    threads = threads or max(1, torch.get_num_threads() // max(workers, 1))
    return [
        Assignment(row, run=study_plan.run, threads=threads)
        for row in study_plan.rows
        if row.pending
    ]


def _make_executor(
    executor_class: type[Executor],
    session: ModelSession | None,
    processes: WorkerProcesses | None,
) -> Executor:
    if executor_class is LocalExecutor:
        return LocalExecutor(session, processes)
    return executor_class()


def _make_divider(
    study_plan: StudyPlan, assignments: Sequence[Assignment], split: bool | None
) -> Callable[[int, str], Sequence[Assignment]]:
    """Return the function that divides rows among so many workers of a kind of device."""

    def divide(workers: int, device: str) -> Sequence[Assignment]:
        least_seconds = LEAST_SECONDS if split is None else 0.0
        is_wanted = device != "cpu" if split is None else split
        with open_store(study_plan.study.store) as store:
            has_lanes = store.lanes_folder.is_dir() and any(store.lanes_folder.iterdir())
            if not (is_wanted or has_lanes):
                return assignments
            return divide_assignments(
                study_plan,
                assignments,
                store,
                workers,
                device=device,
                least_seconds=least_seconds if is_wanted else math.inf,
            )

    return divide


def _sum_up(study_plan: StudyPlan, outcomes: Mapping[str, RowOutcome] | None) -> RunResult:
    """Sum up how the rows ended; None where the run was stopped."""
    rows = list((outcomes or {}).values())
    failures: list[CellFailure] = []
    reused = study_plan.count_finished_cells()
    computed = 0
    for outcome in rows:
        failures += outcome.failures
        reused += outcome.finished_elsewhere
        computed += outcome.done
    return RunResult(
        study=study_plan.key,
        reused=reused,
        computed=computed,
        failed=len(failures),
        interrupted=outcomes is None,
        failures=tuple(failures),
    )


def check_device(study: Study) -> None:
    """Refuse a device that this machine does not have."""
    device = pick_device(study.device)
    if device.type == "cuda" and device.index is not None:
        import torch

        gpu_count = torch.cuda.device_count()
        if device.index >= gpu_count:
            devices = ", ".join(f"cuda:{index}" for index in range(gpu_count))
            raise InputError(
                f"there is no {study.device}: this machine has {gpu_count} CUDA devices",
                hint=f"use {devices} or cuda",
            )


def register_study(study_plan: StudyPlan) -> RunLog:
    """Make the study known to its store, made where there is none, with the cells that are done; give the run's log."""
    with open_store(study_plan.study.store, create=True) as store:
        study_settings = study_plan.study.model_dump(mode="json")
        if "://" in study_plan.study.store:
            study_settings["store"] = store.where  # without its password
        store.studies.open(study_plan.study.name, study_plan.key, study_settings)
        if study_plan.outdated:
            store.cells.release(study_plan.key, study_plan.outdated)
        for row in study_plan.rows:
            adopt_finished_cells(row, store)
        work_left = WorkLeft.count(study_plan)
        if work_left is not None:  # for those who watch the run from outside
            store.events.append(study_plan.key, WORK_EVENT, work_left.to_payload())
        return RunLog(store, study_plan.run)


def choose_worker_count(study_plan: StudyPlan) -> int:
    """Return how many rows run at once: one on a CPU, which uses all threads; on GPUs as many as fit.

    A small model leaves a GPU idle most of the time, so several share one, as many as have room for what they need
    where the largest come together, each with two of the machine's cores.
    """
    rows = [row for row in study_plan.rows if row.pending and not row.problem]
    if not rows or study_plan.study.device in ("cpu", "spread"):
        return 1
    import torch

    if not torch.cuda.is_available():
        return 1
    gpus = torch.cuda.device_count() if study_plan.study.device in ("auto", "cuda") else 1
    needs = [estimate_gpu_bytes(row.model) for row in rows]
    if math.isnan(sum(needs)):  # a model of unknown size may need all of it
        return gpus
    gpu_bytes = torch.cuda.get_device_properties(0).total_memory
    largest_first = accumulate(sorted(needs, reverse=True))
    fitting = sum(together <= gpu_bytes for together in largest_first)
    cores = os.cpu_count() or 1
    rows_per_gpu = min(fitting, cores / CORES_PER_ROW / gpus, len(rows) / gpus, ROWS_PER_GPU)
    return gpus * max(1, int(rows_per_gpu))


def _check_and_tidy_up(study_plan: StudyPlan, expected: int) -> None:
    """Make sure that what this run has finished is in the store, and remove what is not needed any more."""
    with open_store(study_plan.study.store) as store:
        study_plan = study_plan.refresh(store)
        finished = study_plan.count_finished_cells()
        if finished < expected:
            raise StoreError(
                f"{expected - finished} finished results are no longer in the store",
                where=store.where,
                hint="was it removed or put back while the study ran? The same command computes them again",
            )
        remove_finished_lanes(study_plan, store)


def remove_finished_lanes(study_plan: StudyPlan, store: Store) -> None:
    """Remove the lanes of every row of a refreshed plan that is done, and half-written files of its cells."""
    store.remove_partial_files()
    folder = store.lanes_folder
    if not folder.is_dir():
        return
    rows = [row for row in study_plan.rows if not row.problem]
    for row in rows:
        _remove_lanes_if_finished(folder, row)
    if folder.is_dir() and any(folder.iterdir()):
        document_counts = count_train_documents(study_plan)
        for row in rows:  # a run may have been killed that had them in parts
            for row_part in iterate_parts(row, document_counts):
                _remove_lanes_if_finished(folder, row_part)
    with contextlib.suppress(OSError):  # others have lanes there
        folder.rmdir()


def _remove_lanes_if_finished(folder: Path, row: Row) -> None:
    for protocol_kind in (TRAIN_BEFORE_TEST, ADJUST):
        cells = [cell for cell in row.cells if cell.protocol.kind == protocol_kind]
        if cells and all(cell.finished for cell in cells):
            remove_lanes_folder(folder / name_lanes_folder(row, protocol_kind))


def _interrupt_soon() -> None:
    """Interrupt the main thread in a moment."""
    threading.Timer(0.01, _thread.interrupt_main).start()


def _is_called_by(frame: FrameType | None, function: Callable[..., object]) -> bool:
    """Whether a frame is a function's, or one that it has called."""
    while frame is not None:
        if frame.f_code is function.__code__:
            return True
        frame = frame.f_back
    return False


@contextmanager
def stop_on_signals() -> Iterator[StopRequested]:
    """Turn Ctrl-C, SIGTERM and SIGHUP into a polite stop, and a second Ctrl-C into the usual interrupt.

    Schedulers send SIGTERM to all processes of a job, some more than once, and SIGHUP with it: these only ask. An
    interrupt that came while an object was let go, where Python drops what is raised, is raised once more.
    """
    requested = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield requested.is_set
        return

    def handle_signal(number: int, frame: FrameType | None) -> None:
        if not (requested.is_set() and number == signal.SIGINT):
            requested.set()
        elif _is_called_by(frame, raise_again):  # what is raised there is dropped, too
            _interrupt_soon()
        else:
            # would print it where a connection is just closed
            logging.getLogger("sqlalchemy.pool").disabled = True
            raise KeyboardInterrupt

    def raise_again(unraisable: Any) -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            _interrupt_soon()
        else:
            usual_hook(unraisable)

    is_under_nohup = hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    usual_handlers = {}
    for signal_number in STOP_SIGNALS:
        if not (is_under_nohup and signal_number == signal.SIGHUP):
            usual_handlers[signal_number] = signal.signal(signal_number, handle_signal)
    usual_hook = sys.unraisablehook
    sys.unraisablehook = raise_again
    try:
        yield requested.is_set
    finally:
        sys.unraisablehook = usual_hook
        for signal_number, handler in usual_handlers.items():
            signal.signal(signal_number, handler)
