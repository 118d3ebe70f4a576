"""Worker processes of this machine: an assignment goes in through a pipe, its answer comes back.

Processes begin anew, so that nothing of the run is in them by accident, and that takes seconds: libraries, then a
study's tasks. Some are started before it is known what for, while a study is planned.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potentia.processes import exit_with_parent
from potentia.run.gpu_sharing import choose_device, count_gpus
from potentia.run.model_cache import ModelCache

if TYPE_CHECKING:
    from potentia.run.plan import Assignment
    from potentia.study import Study

ROWS_PER_GPU = 6  # at most
CORES_PER_ROW = 2
STOP_SIGNALS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]
# asking for GPUs is not to begin with them: a service that starts later would not be used
ASK_DRIVER = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
StopFlag = ctypes.c_byte


@dataclass(frozen=True)
class WorkerRole:
    """What a worker is told before its first assignment."""

    number: int  # which of the workers
    workers: int
    keeps_models: bool  # from one run to the next
    environment: dict[str, str]


class WorkerProcesses:
    """Worker processes, each with a pipe.

    It knows all that it started: they ignore who asks them to end, so one that nobody knew would never be gone. Those
    that are started in advance load the tasks of a study meanwhile.
    """

    def __init__(self, in_advance: int = 0, study: Study | None = None) -> None:
        self.context = multiprocessing.get_context("spawn")
        # tells all of them to stop; it leaves nothing behind
        self.stop_flag = self.context.RawValue("b", False)
        self._started: list[SpawnProcess] = []
        self._spare: list[tuple[Connection, SpawnProcess]] = []
        self._in_advance = in_advance
        self._study = study

    def __enter__(self) -> WorkerProcesses:
        try:
            for _ in range(self._in_advance):
                pipe, process = self._start()
                self._spare.append((pipe, process))
                pipe.send(self._study)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End everyone who is still here."""
        _kill(self._started)

    def end_spare_workers(self) -> None:
        """End those who were not needed; they have nothing to lose."""
        _kill([process for _, process in self._spare])
        self._spare = []

    def start_worker(
        self, worker_number: int, workers: int, keeps_models: bool
    ) -> tuple[Connection, SpawnProcess]:
        """Return the pipe of a worker who waits for assignments, and its process."""
        self._spare = [worker for worker in self._spare if worker[1].is_alive()]
        pipe, process = self._spare.pop() if self._spare else self._start()
        with contextlib.suppress(ConnectionError):  # it died just now, as it may later
            pipe.send(
                WorkerRole(worker_number, workers, keeps_models, environment=dict(os.environ))
            )
        return pipe, process

    def _start(self) -> tuple[Connection, SpawnProcess]:
        our_end, their_end = self.context.Pipe()
        process = self.context.Process(
            target=_work, args=(their_end, self.stop_flag), daemon=True, name="potentia worker"
        )
        self._started.append(process)
        _start_deaf(resource_tracker.ensure_running)  # Python's own lets INT and TERM in again
        _start_deaf(process.start)
        their_end.close()
        return our_end, process


def estimate_worker_count(study: Study, requested: int | None = None) -> int:
    """Return how many workers to start before it is known what rows need: those that GPUs allow, a core for each.

    Planning keeps a core: sharing it took longer than workers gained, and a study that is done needs none.
    """
    gpus = 0
    if study.device not in ("cpu", "spread"):
        gpus = len(list(Path("/proc/driver/nvidia/gpus").glob("*")))
    cores = os.cpu_count() or 1
    worker_count = requested or min(gpus * ROWS_PER_GPU, cores // CORES_PER_ROW)
    worker_count = min(worker_count, len(study.rows()), cores - 1)
    return worker_count if worker_count > 1 else 0  # one row at a time needs none


def _kill(processes: Sequence[SpawnProcess]) -> None:
    for process in processes:
        if process.pid is not None:
            process.kill()
            process.join()


def _start_deaf(start: Callable[[], Any]) -> None:
    """Start a process that hears no signal, sent to our group perhaps, before it can ignore it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# --- inside a worker -------------------------------------------------------------------------------------------------


def _work(pipe: Connection, stop_flag: StopFlag) -> None:
    """Warm up with the study where one comes first, then serve."""
    for signal_number in STOP_SIGNALS:
        signal.signal(signal_number, signal.SIG_IGN)  # the parent decides, through the flag
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    exit_with_parent()
    _lock_bars_between_threads()
    os.environ |= ASK_DRIVER
    with contextlib.suppress(EOFError, ConnectionError):  # the parent is gone, or needs nobody
        message: Study | WorkerRole = pipe.recv()
        if not isinstance(message, WorkerRole):
            _warm_up(message)
            message = pipe.recv()
        assert isinstance(message, WorkerRole)
        _serve(pipe, stop_flag, message)
    # everything is committed; to take torch and its friends apart would take a second of a processor
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _lock_bars_between_threads() -> None:
    """Give progress bars no lock between processes: it would outlive a worker, and Python warns of that."""
    from tqdm import tqdm

    tqdm.set_lock(threading.RLock())


def _warm_up(study: Study) -> None:
    """Load the libraries that every row needs, and the tasks; what goes wrong here goes wrong, and is told, later."""
    from transformers.models.llama import modeling_llama  # noqa: F401 - what all models' code imports takes seconds

    from potentia.engine.scoring import Scorer  # noqa: F401
    from potentia.engine.training import LaneTrainer  # noqa: F401
    from potentia.run.worker import load_tasks_once

    with contextlib.suppress(BaseException):
        load_tasks_once(study)


def _serve(pipe: Connection, stop_flag: StopFlag, role: WorkerRole) -> None:
    """Take assignment after assignment and answer how each went, until there is nobody to answer."""
    os.environ |= role.environment
    # a fair share of the cores; nothing is forked here
    cores = max(1, (os.cpu_count() or 1) // role.workers)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    os.environ.setdefault("RAYON_NUM_THREADS", str(cores))
    import torch

    from potentia.run.worker import answer_assignment
    from potentia.tasks import reading_data_once

    gpus = count_gpus()
    model_cache = None
    with contextlib.ExitStack() as stack:
        if role.keeps_models:
            model_cache = ModelCache(processes=role.workers)
            stack.enter_context(
                reading_data_once()
            )  # rounds of a selection differ in their caps alone
        while True:
            assignment: Assignment = pipe.recv()
            device = choose_device(assignment.study.device, role.number, gpus)
            if device.startswith("cuda"):
                index = int(device.partition(":")[2] or 0)
                torch.cuda.set_per_process_memory_fraction(assignment.memory_share, index)
            pipe.send(
                answer_assignment(
                    assignment,
                    lambda: bool(stop_flag.value),
                    device=device,
                    model_cache=model_cache,
                )
            )
