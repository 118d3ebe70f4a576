"""Rows on this machine: whose turn it is, the lease of a row under way, worker processes that share the store.

A row is leased to the process that runs it; one that another run has is left to it, and asked for again when the other
rows are done. A worker that dies (killed, out of memory) costs its row alone: the row's missing cells are recorded as
failed and the rows that wait go to a new worker. Ctrl-C lets every worker finish its step and save.
"""

from __future__ import annotations

import math
import os
import signal
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import lru_cache
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import TYPE_CHECKING, Any

from potentia.engine import VERDICTS
from potentia.errors import INTERRUPTS, PotentiaError, StoreError
from potentia.run.cost import estimate_gpu_bytes, estimate_weight_bytes
from potentia.run.machine import GpuSharing, ModelCache, WorkerProcesses, count_gpus
from potentia.run.plan import LoadedTasks, Row, load_tasks, mark_finished_cells
from potentia.run.progress import RunLog, Stopped, open_store
from potentia.run.row import RowOutcome, RowRun
from potentia.timing import repeatedly
from potentia.values.protocol import TRAIN_BEFORE_TEST

if TYPE_CHECKING:
    from potentia.store import LeaseRecord, Store
    from potentia.study import Study

Stop = Callable[[], bool]
Answer = (
    RowOutcome | PotentiaError | None
)  # how a row ended, what went wrong, or nothing: it was stopped
FULL = 0.9  # of a GPU's memory: weights beyond this do not fit it
BESIDE = (
    0.97  # of a GPU's memory, for rows that share it: each process has a context of its own besides
)
LEAST_GPU = 4 << 30  # bytes; smaller weights fit any GPU
LEAVE_SECONDS = 60.0  # that workers get to save once they are told to stop
AGAIN_SECONDS = 1.0  # after which a row that another process has is asked for again


class AssignmentQueue:
    """Rows in order, and how they ended; one that another process has comes back at the end, after the others."""

    def __init__(self, rows: Iterable[Row], tasks: LoadedTasks | None = None) -> None:
        self.ended: dict[str, RowOutcome] = {}  # by model
        self._tasks = tasks
        self._ready = deque(rows)
        self._held: deque[tuple[float, Row]] = deque()

    def __len__(self) -> int:
        return len(self._ready) + len(self._held)

    @property
    def waiting(self) -> list[Row]:
        """The rows that are still to come."""
        return [*self._ready, *(row for _, row in self._held)]

    def take(self, busy: Collection[Row] = (), own: Collection[str] = ()) -> Row | None:
        """Return the next row to try, of these models first; None while all wait for others, or for what is busy."""
        free = self._free(busy)
        if not free and self._held and self._held[0][0] <= time.monotonic():
            self._ready.append(self._held.popleft()[1])
            free = self._free(busy)
        row = next((row for row in free if row.model.name in own), free[0] if free else None)
        if row is not None:
            self._ready.remove(row)
        return row

    def _free(self, busy: Collection[Row]) -> list[Row]:
        """Return the rows that choose from no lanes that are still to be trained."""
        open_rows = (*self.waiting, *busy)
        lanes = {(row.model.name, row.cells[0]) for row in open_rows if row.lane_part is not None}
        return [
            row
            for row in self._ready
            if row.lane_part is not None
            or lanes.isdisjoint((row.model.name, cell) for cell in row.cells)
        ]

    def end(self, row: Row, answer: Answer) -> None:
        """Note how a row ended, or a part of it; one that another process has waits, what went wrong is given up."""
        if isinstance(answer, StoreError):
            raise answer
        if isinstance(answer, PotentiaError):
            answer = give_up_assignment(row, self._tasks, answer.message)
        if answer is not None and answer.held:
            self._held.append((time.monotonic() + AGAIN_SECONDS, row))
        elif answer is not None:
            before = self.ended.get(row.model.name)
            self.ended[row.model.name] = answer if before is None else before.join(answer)

    def clear(self) -> None:
        """Forget what waits."""
        self._ready.clear()
        self._held.clear()


@contextmanager
def keep_lease(store: Store, lease: LeaseRecord) -> Iterator[Stop]:
    """Say that a row's process is alive while the row runs; gives whether the lease was taken away."""
    from potentia.store import BEAT_SECONDS

    lost, over = threading.Event(), threading.Event()

    def beat() -> None:
        with suppress(StoreError):  # the row hears of it too, and decides
            if not (lost.is_set() or over.is_set()) and not store.beat(lease):
                lost.set()

    try:
        with repeatedly(beat, BEAT_SECONDS):
            try:
                yield lost.is_set
            finally:
                over.set()  # a store that is away is not waited for once more
    finally:
        with suppress(StoreError):  # the store is away: the lease ends with this process
            store.let_go(lease)


class ModelSession:
    """What stays from one run to the next of the same tasks: models in this process, or workers with theirs."""

    def __init__(self) -> None:
        self.shelf = ModelCache()
        self._pool: _Pool | None = None

    def __enter__(self) -> ModelSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.shelf.clear()
        if self._pool is not None:
            self._pool.end(LEAVE_SECONDS)

    def pool(self, workers: int, tasks: LoadedTasks) -> _Pool:
        """Return the workers, who are there from the first time they are asked for."""
        if self._pool is None:
            self._pool = _Pool(workers, tasks, WorkerProcesses(), stays=True)
        return self._pool


def run_rows(
    rows: Sequence[Row],
    tasks: LoadedTasks,
    *,
    workers: int,
    stop: Stop,
    stay: ModelSession | None = None,
    crew: WorkerProcesses | None = None,
) -> dict[str, RowOutcome]:
    """Run these rows of a study, whose tasks are loaded here, and return how each ended."""
    ended = dict[str, RowOutcome]()
    if workers > 1:
        large = find_oversized_rows(rows)
        small = [row for row in rows if row not in large]
        if small:
            few = min(workers, len(small))
            pool = (
                _Pool(few, tasks, crew or WorkerProcesses())
                if stay is None
                else stay.pool(workers, tasks)
            )
            ended = pool.run(small, stop)
        rows = large  # these have all GPUs to themselves, one after the other
    if crew is not None:
        crew.end_waiting_workers()
    turns = AssignmentQueue(rows)
    turns.ended = ended
    while turns:
        row = turns.take()
        if row is not None:
            turns.end(
                row,
                compute_assignment(
                    row, stop, tasks=tasks, shelf=stay.shelf if stay is not None else None
                ),
            )
        elif stop():
            raise Stopped
        else:
            time.sleep(0.1)
    return turns.ended


def find_oversized_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the rows whose models do not fit one of this machine's GPUs."""
    sizes = {
        row.label: estimate_weight_bytes(row) or 0
        for row in rows
        if row.study.device in ("auto", "cuda")
    }
    if max(sizes.values(), default=0) < LEAST_GPU:
        return []  # and no GPU has to be asked
    import torch

    if not torch.cuda.is_available():
        return []
    whole = min(
        torch.cuda.get_device_properties(k).total_memory for k in range(torch.cuda.device_count())
    )
    return [row for row in rows if sizes.get(row.label, 0) > FULL * whole]


def choose_memory_share(
    row: Row, beside: Sequence[Row], waiting: Sequence[Row], each: int
) -> float:
    """Return a row's part of a GPU's memory: by need, of what the rows there leave it and those that may still come.

    So that rows that run last, and are small, have all that the large ones have left.
    """
    own, *needs = (estimate_gpu_bytes(other.model) for other in (row, *waiting))
    if math.isnan(own + sum(needs)):
        own, needs = 1.0, [1.0] * len(needs)
    coming = sorted(needs, reverse=True)[: max(0, each - 1 - len(beside))]
    return (BESIDE - sum(other.memory for other in beside)) * own / (own + sum(coming))


def compute_assignment(
    row: Row,
    stop: Stop,
    *,
    tasks: LoadedTasks | None = None,
    device: str | None = None,
    shelf: ModelCache | None = None,
) -> RowOutcome:
    """Run one row, from its plan alone, so that any process or machine can do it; or say who else does."""
    import torch

    if row.threads:
        torch.set_num_threads(row.threads)
    with open_store(row.study.store) as store:
        store.stop = stop
        lease = _claim(row, store)
        log = RunLog(store, row.run)
        if not store.mine(lease):
            log.write("held", row=row.label, by=lease.told)
            return RowOutcome(held=lease.told)
        log.write("lease", row=row.label, cells=len(row.pending))
        with keep_lease(store, lease) as lost:
            how = (
                tasks or load_tasks_once(row.study),
                store,
                lambda: stop() or lost(),
                device or row.study.device,
                shelf,
            )
            try:
                return RowRun(row, *how).run()
            except Stopped:
                if (
                    lost() and not stop()
                ):  # this process slept too long, and another has the row now
                    return RowOutcome(held="another process")
                raise


def answer_assignment(row: Row, stop: Stop, **how: Any) -> Answer:
    """Run one row; what went wrong is an answer too, and the other rows go on. None where it was stopped."""
    try:
        return compute_assignment(row, stop, **how)
    except Stopped:
        return None
    except PotentiaError as error:
        return error
    except INTERRUPTS:
        raise
    except BaseException as error:  # a panic of Rust code is no `Exception`
        return PotentiaError(f"{type(error).__name__}: {error}")


def give_up_assignment(row: Row, tasks: LoadedTasks | None, reason: str) -> RowOutcome:
    """Record that a row was lost with the process that ran it; unless another has taken it up."""
    with open_store(row.study.store) as store:
        lease = _claim(row, store)
        if not store.mine(lease):
            return RowOutcome(held=lease.told)
        with keep_lease(store, lease):
            (left,) = mark_finished_cells([row], store)
            return RowRun(
                left, tasks or load_tasks_once(row.study), store, lambda: False, row.study.device
            ).give_up(reason)


def _claim(row: Row, store: Store) -> LeaseRecord:
    """Claim the cells of a row, those that can be divided lane by lane."""
    lanes = [f"/{k}" for k in range(row.study.grid_lanes)]
    mine = lanes if row.lane_part is None else lanes[row.lane_part :: row.lane_parts]
    cells = [cell for cell in row.pending if cell.key]
    keys = [
        cell.key + lane
        for cell in cells
        for lane in (mine if cell.protocol == TRAIN_BEFORE_TEST else [""])
    ]
    return store.claim(row.study_key, row.label, keys, run=row.run)


def load_tasks_once(study: Study) -> LoadedTasks:
    """Load the tasks of a study once for all rows that this process is handed."""
    return _tasks(
        study.model_copy(update={"models": (), "only": None, "dtype": "auto"})
    )  # these change no task


_tasks = lru_cache(maxsize=2)(load_tasks)


class _Pool:
    """Worker processes, each with a pipe: a row's plan goes in, its outcome comes back."""

    def __init__(
        self, workers: int, tasks: LoadedTasks, crew: WorkerProcesses, *, stays: bool = False
    ) -> None:
        self.workers, self.tasks, self.crew, self.halt = workers, tasks, crew, crew.halt
        self.pipes: dict[Connection, SpawnProcess] = {}
        self.numbers: dict[Connection, int] = {}
        self.busy: dict[Connection, Row] = {}
        self.stays = stays  # from one run to the next
        self.sharing = GpuSharing()
        self.gpus, self.each = 0, 1  # rows on each GPU
        self.verdicts = tempfile.TemporaryDirectory(prefix="potentia-", ignore_cleanup_errors=True)
        os.environ[VERDICTS] = (
            self.verdicts.name
        )  # workers are told where they share what checks find
        self.had: dict[
            Connection, set[str]
        ] = {}  # the rows that a worker has had: it may have their models

    def run(self, rows: Sequence[Row], stop: Stop) -> dict[str, RowOutcome]:
        try:
            self._share_gpus(rows)
            turns = AssignmentQueue(rows, self.tasks)
            for number in sorted({*range(self.workers)} - {*self.numbers.values()}):
                self._start(number)
            self.crew.end_waiting_workers()
            while turns or self.busy:
                if stop():
                    self.halt.value = True
                    turns.clear()
                for pipe in [pipe for pipe in self.pipes if pipe not in self.busy]:
                    self._hand_over(pipe, turns)
                if not self.busy:
                    time.sleep(0.1)
                for spoke in wait(list(self.busy), timeout=0.2) if self.busy else ():
                    assert isinstance(spoke, Connection)
                    self._receive(spoke, turns)
        except KeyboardInterrupt:
            self.end(0)  # at once: the second time somebody asks
            raise
        except BaseException:
            self.halt.value = True  # the others save what they have
            self.end(LEAVE_SECONDS)
            raise
        if not self.stays or self.halt.value:
            self.end(LEAVE_SECONDS)
        if self.halt.value:
            raise Stopped
        return turns.ended

    def _share_gpus(self, rows: Sequence[Row]) -> None:
        """Let workers that share a GPU compute side by side, where that works; the run's log says whether."""
        device = rows[0].study.device if rows else "cpu"
        there = 0 if device in ("cpu", "spread") else count_gpus()
        self.gpus = there if device in ("auto", "cuda") else min(there, 1)
        self.each = -(-self.workers // self.gpus) if there else 1
        if self.each > 1 and not self.pipes:
            self.sharing.start(self.each)
            with open_store(rows[0].study.store) as store:
                facts = {
                    "rows_per_gpu": self.each,
                    "mps": self.sharing.on,
                    "why_not": self.sharing.why_not,
                }
                RunLog(store, rows[0].run).write("sharing", **facts)

    def end(self, seconds: float) -> None:
        """Let the workers go; those that have not left after some seconds are ended."""
        end = time.monotonic() + seconds
        try:
            for pipe in self.pipes:
                pipe.close()
            for process in self.pipes.values():
                process.join(timeout=max(0.0, end - time.monotonic()))
        finally:
            self.crew.close()
            self.sharing.end()

    def _start(self, number: int) -> None:
        pipe, process = self.crew.start_worker(number, self.workers, self.stays)
        self.pipes[pipe] = process
        self.numbers[pipe] = number

    def _hand_over(self, pipe: Connection, turns: AssignmentQueue) -> None:
        row = turns.take(self.busy.values(), self.had.setdefault(pipe, set()))
        if row is not None:
            if self.each > 1:
                here = self.numbers[pipe] % self.gpus
                beside = [
                    other for at, other in self.busy.items() if self.numbers[at] % self.gpus == here
                ]
                row = replace(
                    row, memory=choose_memory_share(row, beside, turns.waiting, self.each)
                )
            self.had[pipe].add(row.model.name)
            self.busy[pipe] = row
            with suppress(
                ConnectionError
            ):  # one that died idle is found out when its answer is read
                pipe.send(row)

    def _receive(self, pipe: Connection, turns: AssignmentQueue) -> None:
        row = self.busy.pop(pipe)
        try:
            answer: Answer = pipe.recv()
        except (EOFError, ConnectionResetError):
            process, number = self.pipes.pop(pipe), self.numbers.pop(pipe)
            process.join()
            self.sharing.leave()
            answer = give_up_assignment(row, self.tasks, _death(process.exitcode))
            if turns:
                self._start(number)  # on the GPU of the one that died
        turns.end(row, answer)
        if turns and not self.pipes:
            self._start(0)


def _death(code: int | None) -> str:
    how = signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"
    return f"the worker of this row died ({how}); if the kernel killed it, memory ran out"
