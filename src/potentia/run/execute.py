"""Running a study from start to end: plan, execute the rows that are not done, and say how it went.

The local executor runs rows in this process, or in several worker processes that share the store. A worker that dies
(killed, out of memory) costs its row alone: the row's missing cells are recorded as failed and the rows that wait go to
a new worker. Ctrl-C lets every worker finish its step and save.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from multiprocessing.synchronize import Event
from typing import TYPE_CHECKING, Any, Literal

from potentia.errors import InputError
from potentia.parent import leave_with_parent
from potentia.protocols import Stopped
from potentia.run.before import check_machine
from potentia.run.plan import LoadedTasks, RowPlan, StudyPlan, load_tasks, plan_study, seen, take_over
from potentia.run.row import RowOutcome, RowRun
from potentia.run.sweep import sweep

if TYPE_CHECKING:
    from potentia.study import Study

Executor = Literal["local", "ray"]
Stop = Callable[[], bool]


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
    executor: Executor = "local",
    watch: Callable[[StudyPlan], Any] | None = None,
) -> RunResult:
    """Run what is not done yet of a study, or of a plan just made of it.

    ``watch`` gives a context manager that shows progress while the rows run.
    """
    plan = study if isinstance(study, StudyPlan) else plan_study(study)
    check_machine(plan.study, executor)
    _register(plan)
    todo = [row for row in plan.rows if row.pending]
    outcomes: dict[str, RowOutcome] = {}
    interrupted = False
    if todo:
        with _stoppable() as stop, watch(plan) if watch else nullcontext():
            try:
                outcomes = _execute(plan, todo, workers, executor, stop)
            except Stopped:
                interrupted = True
    _sweep(plan)
    return RunResult(
        study=plan.key,
        reused=sum(cell.done for cell in plan.cells()) + sum(o.found for o in outcomes.values()),
        computed=sum(o.done for o in outcomes.values()),
        failed=sum(o.failed for o in outcomes.values()),
        interrupted=interrupted,
        reasons=[in_one(name, cells, reason) for name, o in outcomes.items() for reason, cells in o.reasons.items()],
    )


def in_one(model: str, cells: Sequence[str], reason: str) -> str:
    """Say once why cells of a model failed, however many they are."""
    return f"{model} × {cells[0]}: {reason}" if len(cells) == 1 else f"{model}, {len(cells)} cells: {reason}"


def _register(plan: StudyPlan) -> None:
    """Make the study known to its store, which is created where there is none, with the cells that are done."""
    from potentia.store import Store, without_password

    spec = plan.study.model_dump(mode="json") | {"store": without_password(plan.study.store)}
    with Store.open(plan.study.store) as store:
        store.study(plan.study.name, plan.key, spec)
        if plan.outdated:
            store.release(plan.key, plan.outdated)
        for row in plan.rows:
            take_over(row, store)


def _sweep(plan: StudyPlan) -> None:
    from potentia.store import Store

    with Store.open(plan.study.store) as store:
        sweep(plan, store)


def _execute(
    plan: StudyPlan, rows: list[RowPlan], workers: int, executor: Executor, stop: Callable[[], bool]
) -> dict[str, RowOutcome]:
    if executor == "local":
        return run_rows(rows, plan.tasks, workers=workers, stop=stop)
    if executor == "ray":
        from potentia.run.on_ray import run_rows_on_ray

        return run_rows_on_ray(rows, plan.tasks, stop=stop)
    raise InputError(f"no executor {executor!r}", hint="use local or ray")


@contextmanager
def _stoppable() -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C (or SIGTERM) into a polite stop, and the second into the usual interrupt."""
    flag = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield flag.is_set
        return

    def ask(number: int, frame: Any) -> None:
        if flag.is_set():
            raise KeyboardInterrupt
        flag.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield flag.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# --- the local executor ----------------------------------------------------------------------------------------------


def run_rows(rows: Sequence[RowPlan], tasks: LoadedTasks, *, workers: int, stop: Stop) -> dict[str, RowOutcome]:
    """Run these rows of a study, whose tasks are loaded here, and return how each ended."""
    if workers <= 1:
        return {row.model.name: work_row(row, stop, tasks=tasks) for row in rows}
    return _Pool(min(workers, len(rows)), tasks).run(rows, stop)


def work_row(row: RowPlan, stop: Stop, *, tasks: LoadedTasks | None = None, device: str | None = None) -> RowOutcome:
    """Run one row, from its plan alone, so that any process or machine can do it."""
    from potentia.store import Store

    tasks = tasks or _tasks(row.study)
    with Store.open(row.study.store) as store:
        return RowRun(row, tasks, store, stop, device or row.study.device).run()


def give_up_row(row: RowPlan, tasks: LoadedTasks, reason: str) -> RowOutcome:
    """Record that a row was lost with the process that ran it."""
    from potentia.store import Store

    with Store.open(row.study.store) as store:
        (left,) = seen([row], store)
        return RowRun(left, tasks, store, lambda: False, row.study.device).give_up(reason)


@lru_cache(maxsize=2)
def _tasks(study: Study) -> LoadedTasks:
    """Load the tasks of a study once for all rows that this process is handed."""
    return load_tasks(study)


class _Pool:
    """Worker processes, each with a pipe: a row's plan goes in, its outcome comes back."""

    def __init__(self, workers: int, tasks: LoadedTasks) -> None:
        self.context = multiprocessing.get_context("spawn")
        self.workers = workers
        self.tasks = tasks
        self.halt: Event = self.context.Event()
        self.pipes: dict[Connection, SpawnProcess] = {}
        self.busy: dict[Connection, RowPlan] = {}

    def run(self, rows: Sequence[RowPlan], stop: Stop) -> dict[str, RowOutcome]:
        waiting, ended = deque(rows), dict[str, RowOutcome]()
        try:
            for number in range(self.workers):
                self._hand_over(self._start(number), waiting)
            while self.busy:
                if stop():
                    self.halt.set()
                    waiting.clear()
                for pipe in wait(list(self.busy), timeout=0.2):
                    assert isinstance(pipe, Connection)
                    self._receive(pipe, waiting, ended)
        finally:
            for pipe in self.pipes:
                pipe.close()
            for process in self.pipes.values():
                process.join(timeout=5)
        if self.halt.is_set():
            raise Stopped
        return ended

    def _start(self, number: int) -> Connection:
        ours, theirs = self.context.Pipe()
        process = self.context.Process(target=_worker, args=(theirs, self.halt, number, self.workers), daemon=True)
        process.start()
        theirs.close()
        self.pipes[ours] = process
        return ours

    def _hand_over(self, pipe: Connection, waiting: deque[RowPlan]) -> None:
        if waiting:
            self.busy[pipe] = waiting.popleft()
            pipe.send(self.busy[pipe])

    def _receive(self, pipe: Connection, waiting: deque[RowPlan], ended: dict[str, RowOutcome]) -> None:
        row = self.busy.pop(pipe)
        try:
            outcome: RowOutcome | None = pipe.recv()
        except (EOFError, ConnectionResetError):
            process = self.pipes.pop(pipe)
            process.join()
            ended[row.model.name] = give_up_row(row, self.tasks, _death(process.exitcode))
            pipe = self._start(len(self.pipes)) if waiting else pipe
        else:
            if outcome is not None:
                ended[row.model.name] = outcome
        self._hand_over(pipe, waiting)


def _death(code: int | None) -> str:
    how = signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"
    return f"the worker of this row died ({how}); if the kernel killed it, memory ran out"


def _worker(pipe: Connection, halt: Event, number: int, workers: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides, through `halt`
    leave_with_parent()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    threads = torch.get_num_threads()
    while True:
        try:
            row: RowPlan = pipe.recv()
        except (EOFError, ConnectionResetError):
            return
        device = row.study.device
        if gpus and device in ("auto", "cuda"):
            device = f"cuda:{number % gpus}"
        else:
            torch.set_num_threads(max(1, threads // workers))
        try:
            pipe.send(work_row(row, halt.is_set, device=device))
        except Stopped:
            pipe.send(None)
