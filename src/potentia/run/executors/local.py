"""The local executor: rows in this process one after the other, or in several worker processes that share the store.

A worker that dies (killed, out of memory) costs its row alone: the row's missing cells are recorded as failed and the
rows that wait go to a new worker. Ctrl-C lets every worker finish its step and save.
"""

from __future__ import annotations

import math
import os
import signal
import tempfile
import time
from collections.abc import Collection, Hashable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

from potentia.engine import PROOF_FOLDER_VARIABLE, pick_device
from potentia.run.cost import estimate_gpu_bytes, estimate_weight_bytes
from potentia.run.executors.base import ExecutionRequest, Executor, QueueExecutor
from potentia.run.executors.worker_processes import WorkerProcesses
from potentia.run.gpu_sharing import GpuSharing, count_gpus
from potentia.run.model_cache import ModelCache
from potentia.run.plan import Assignment, LoadedTasks
from potentia.run.progress import RunLog, open_store
from potentia.run.row_context import RowOutcome
from potentia.run.worker import Answer, StopRequested, compute_assignment

FULL_SHARE = 0.9  # of a GPU's memory: weights beyond this do not fit it
SHARED_MEMORY = 0.97  # of a GPU's memory, for rows that share it: each process has a context too
SMALLEST_GPU = 4 << 30  # bytes; smaller weights fit any GPU
LEAVE_SECONDS = 60.0  # that workers get to leave


class ModelSession:
    """What stays from one run to the next of the same tasks: models in this process, or workers with theirs."""

    def __init__(self) -> None:
        self.model_cache = ModelCache()
        self._pool: WorkerPool | None = None

    def __enter__(self) -> ModelSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.model_cache.clear()
        if self._pool is not None:
            self._pool.close(graceful=True)

    def get_pool(self, workers: int) -> WorkerPool:
        """Return the workers, who are there from the first time they are asked for."""
        if self._pool is None:
            self._pool = WorkerPool(workers, WorkerProcesses(), keeps_models=True)
        return self._pool


class LocalExecutor(Executor):
    """Rows on this machine; models too large for one GPU run alone, after the others, with all GPUs to themselves."""

    def __init__(
        self, session: ModelSession | None = None, processes: WorkerProcesses | None = None
    ) -> None:
        self._session = session
        self._processes = processes

    def run(self, request: ExecutionRequest) -> dict[str, RowOutcome]:
        """Run all assignments and return how each row ended, by the model's name."""
        device = pick_device(request.assignments[0].study.device).type
        assignments = request.divide(request.workers, device)
        outcomes: dict[str, RowOutcome] = {}
        if request.workers > 1:
            oversized = find_oversized(assignments)
            small = [assignment for assignment in assignments if assignment not in oversized]
            if small:
                pool = self._make_pool(request.workers, len(small))
                outcomes = pool.run(replace(request, assignments=small))
            assignments = oversized
        if self._processes is not None:
            self._processes.end_spare_workers()
        model_cache = self._session.model_cache if self._session is not None else None
        return outcomes | ThisProcess(model_cache).run(replace(request, assignments=assignments))

    def _make_pool(self, workers: int, assignments: int) -> WorkerPool:
        if self._session is not None:
            return self._session.get_pool(workers)
        return WorkerPool(min(workers, assignments), self._processes or WorkerProcesses())


class ThisProcess(QueueExecutor):
    """One assignment after the other, computed here."""

    def __init__(self, model_cache: ModelCache | None = None) -> None:
        super().__init__()
        self._model_cache = model_cache
        self._stop_requested: StopRequested = lambda: False
        self._tasks: LoadedTasks | None = None
        self._answers: dict[Hashable, Answer] = {}

    def start(self, request: ExecutionRequest) -> Sequence[Assignment]:
        """Return the assignments as they are."""
        self._stop_requested = request.stop_requested
        self._tasks = request.tasks
        return request.assignments

    def has_free_worker(self) -> bool:
        """Whether nothing is under way."""
        return not self.running

    def submit(self, assignment: Assignment) -> Hashable:
        """Compute the assignment."""
        self._answers[assignment.label] = compute_assignment(
            assignment, self._stop_requested, tasks=self._tasks, model_cache=self._model_cache
        )
        return assignment.label

    def collect_answers(self) -> Iterable[tuple[Hashable, Answer]]:
        """Return how it ended."""
        answers = list(self._answers.items())
        self._answers.clear()
        return answers

    def request_stop(self) -> None:
        """Do nothing: what computes here looks for itself."""

    def close(self, *, graceful: bool) -> None:
        """Do nothing: there is nobody to let go."""


class WorkerPool(QueueExecutor):
    """Worker processes of this machine, which may share its GPUs."""

    drain_seconds = math.inf

    def __init__(
        self, workers: int, processes: WorkerProcesses, *, keeps_models: bool = False
    ) -> None:
        super().__init__()
        self.workers = workers
        self.processes = processes
        self.keeps_models = keeps_models  # models and workers stay for the next run
        self.pipes: dict[Connection, SpawnProcess] = {}
        self.worker_numbers: dict[Connection, int] = {}
        # that each worker has loaded: they may still be in its cache
        self.models: dict[Connection, set[str]] = {}
        self.gpu_sharing = GpuSharing()
        self.gpus = 0
        self.rows_per_gpu = 1
        # the results of fast-path checks, so that workers check each model once
        self.proof_folder = tempfile.TemporaryDirectory(
            prefix="potentia-", ignore_cleanup_errors=True
        )
        os.environ[PROOF_FOLDER_VARIABLE] = self.proof_folder.name

    def start(self, request: ExecutionRequest) -> Sequence[Assignment]:
        """Start the workers that are not there yet."""
        self._share_gpus(request.assignments)
        self._start_missing_workers()
        self.processes.end_spare_workers()
        return request.assignments

    def _share_gpus(self, assignments: Sequence[Assignment]) -> None:
        """Let workers that share a GPU compute side by side, where that works; the run's log says whether."""
        first_assignment = assignments[0]
        device = first_assignment.study.device
        gpus = 0 if device in ("cpu", "spread") else count_gpus()
        self.gpus = gpus if device in ("auto", "cuda") else min(gpus, 1)
        self.rows_per_gpu = math.ceil(self.workers / self.gpus) if gpus else 1
        if self.rows_per_gpu > 1 and not self.pipes:
            self.gpu_sharing.start(self.rows_per_gpu)
            with open_store(first_assignment.study.store) as store:
                RunLog(store, first_assignment.run).write(
                    "sharing",
                    rows_per_gpu=self.rows_per_gpu,
                    mps=self.gpu_sharing.is_on,
                    why_not=self.gpu_sharing.why_not,
                )

    def _start_missing_workers(self) -> None:
        for number in sorted(set(range(self.workers)) - set(self.worker_numbers.values())):
            pipe, process = self.processes.start_worker(number, self.workers, self.keeps_models)
            self.pipes[pipe] = process
            self.worker_numbers[pipe] = number
            self.models[pipe] = set()

    def _find_free_worker(self) -> Connection | None:
        return next((pipe for pipe in self.pipes if pipe not in self.running), None)

    def has_free_worker(self) -> bool:
        """Whether a worker waits for an assignment, or a dead one can be replaced."""
        self._start_missing_workers()
        return self._find_free_worker() is not None

    def list_loaded_models(self) -> Collection[str]:
        """Return the models that the next free worker has loaded: they may still be in its cache."""
        pipe = self._find_free_worker()
        return self.models[pipe] if pipe is not None else ()

    def prepare(self, assignment: Assignment, waiting: Sequence[Assignment]) -> Assignment:
        """Give an assignment its share of the memory of the GPU that the next free worker has."""
        if self.rows_per_gpu == 1:
            return assignment
        pipe = self._find_free_worker()
        assert pipe is not None
        neighbours = self._find_neighbours(pipe)
        share = choose_memory_share(assignment, neighbours, waiting, self.rows_per_gpu)
        return replace(assignment, memory_share=share)

    def submit(self, assignment: Assignment) -> Hashable:
        """Send an assignment to a free worker."""
        pipe = self._find_free_worker()
        assert pipe is not None
        self.models[pipe].add(assignment.model.name)
        with suppress(ConnectionError):  # one that died idle is found out when its answer is read
            pipe.send(assignment)
        return pipe

    def _find_neighbours(self, pipe: Connection) -> list[Assignment]:
        """Return what runs on the GPU of a worker."""
        gpu = self.worker_numbers[pipe] % self.gpus
        neighbours = []
        for worker, assignment in self.running.items():
            assert isinstance(worker, Connection)
            if self.worker_numbers[worker] % self.gpus == gpu:
                neighbours.append(assignment)
        return neighbours

    def collect_answers(self) -> Iterable[tuple[Hashable, Answer]]:
        """Read what workers answer; a worker that has died answers by its death."""
        pipes = [pipe for pipe in self.running if isinstance(pipe, Connection)]
        for pipe in wait(pipes, timeout=0.2):
            assert isinstance(pipe, Connection)
            try:
                yield pipe, pipe.recv()
            except (EOFError, ConnectionResetError):
                yield pipe, self._bury(pipe)

    def _bury(self, pipe: Connection) -> Answer:
        """Give up what a dead worker computed; its successor has the same number, and so the same GPU."""
        process = self.pipes.pop(pipe)
        del self.worker_numbers[pipe], self.models[pipe]
        process.join()
        self.gpu_sharing.stop_for_new_workers()
        return self.give_up(self.running[pipe], _describe_death(process.exitcode))

    def request_stop(self) -> None:
        """Tell all workers to stop."""
        self.processes.stop_flag.value = True

    def finish(self) -> None:
        """Let the workers go, unless they stay for the next run."""
        if not self.keeps_models:
            self.close(graceful=True)

    def close(self, *, graceful: bool) -> None:
        """Let the workers go; those that have not left in time are ended."""
        deadline = time.monotonic() + (LEAVE_SECONDS if graceful else 0.0)
        try:
            for pipe in self.pipes:
                pipe.close()
            for process in self.pipes.values():
                process.join(timeout=max(0.0, deadline - time.monotonic()))
        finally:
            self.processes.close()
            self.gpu_sharing.end()


def find_oversized(assignments: Sequence[Assignment]) -> list[Assignment]:
    """Return the assignments whose models do not fit one of this machine's GPUs."""
    sizes = {}
    for assignment in assignments:
        if assignment.study.device in ("auto", "cuda"):
            sizes[assignment.label] = estimate_weight_bytes(assignment.row) or 0
    if max(sizes.values(), default=0) < SMALLEST_GPU:
        return []  # and no GPU has to be asked
    import torch

    if not torch.cuda.is_available():
        return []
    gpus = range(torch.cuda.device_count())
    smallest = min(torch.cuda.get_device_properties(gpu).total_memory for gpu in gpus)
    limit = FULL_SHARE * smallest
    return [assignment for assignment in assignments if sizes.get(assignment.label, 0) > limit]


def choose_memory_share(
    assignment: Assignment,
    neighbours: Sequence[Assignment],
    waiting: Sequence[Assignment],
    rows_per_gpu: int,
) -> float:
    """Return a row's share of a GPU's memory.

    It is a part of what the rows on that GPU leave free, in proportion to its need and the needs of those that may
    still join it. So rows that run last, and are small, have all that the large ones have left.
    """
    own_need = estimate_gpu_bytes(assignment.model)
    needs = [estimate_gpu_bytes(row.model) for row in waiting]
    if math.isnan(own_need + sum(needs)):
        own_need = 1.0
        needs = [1.0] * len(needs)
    coming = sorted(needs, reverse=True)[: max(0, rows_per_gpu - 1 - len(neighbours))]
    unused_share = SHARED_MEMORY - sum(neighbour.memory_share for neighbour in neighbours)
    return unused_share * own_need / (own_need + sum(coming))


def _describe_death(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        cause = signal.Signals(-exit_code).name
    else:
        cause = f"exit code {exit_code}"
    return (
        f"the worker process of this model died ({cause}); if the kernel killed it, memory ran out"
    )
