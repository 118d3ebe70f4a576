"""The local executor: rows in this process, or in several worker processes that share the store.

A worker that dies (killed, out of memory) costs its row alone: the row's missing cells are recorded as failed and the
rows that wait go to a new worker. Ctrl-C lets every worker finish its step and save.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from multiprocessing.synchronize import Event
from typing import TYPE_CHECKING

from potentia.parent import leave_with_parent
from potentia.run.board import Interrupted
from potentia.run.row import RowOutcome
from potentia.run.session import open_row

if TYPE_CHECKING:
    from potentia.study import Study

Stop = Callable[[], bool]


def run_rows(study: Study, names: Sequence[str], *, workers: int, stop: Stop) -> dict[str, RowOutcome]:
    """Run these rows of the study and return how each ended."""
    if workers <= 1:
        return {name: work_row(study, name, stop) for name in names}
    return _Pool(study, min(workers, len(names))).run(names, stop)


def work_row(study: Study, name: str, stop: Stop) -> RowOutcome:
    """Run one row, from the study and its name alone, so that any process or machine can do it."""
    with open_row(study, name, stop) as row:
        return row.run()


class _Pool:
    """Worker processes, each with a pipe: a row's name goes in, its outcome comes back."""

    def __init__(self, study: Study, workers: int) -> None:
        self.context = multiprocessing.get_context("spawn")
        self.study = study
        self.workers = workers
        self.halt: Event = self.context.Event()
        self.pipes: dict[Connection, SpawnProcess] = {}
        self.busy: dict[Connection, str] = {}

    def run(self, names: Sequence[str], stop: Stop) -> dict[str, RowOutcome]:
        waiting, ended = deque(names), dict[str, RowOutcome]()
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
            raise Interrupted
        return ended

    def _start(self, number: int) -> Connection:
        ours, theirs = self.context.Pipe()
        process = self.context.Process(
            target=_worker, args=(self.study, theirs, self.halt, number, self.workers), daemon=True
        )
        process.start()
        theirs.close()
        self.pipes[ours] = process
        return ours

    def _hand_over(self, pipe: Connection, waiting: deque[str]) -> None:
        if waiting:
            self.busy[pipe] = waiting.popleft()
            pipe.send(self.busy[pipe])

    def _receive(self, pipe: Connection, waiting: deque[str], ended: dict[str, RowOutcome]) -> None:
        name = self.busy.pop(pipe)
        try:
            outcome: RowOutcome | None = pipe.recv()
        except (EOFError, ConnectionResetError):
            process = self.pipes.pop(pipe)
            process.join()
            with open_row(self.study, name, lambda: False) as row:
                ended[name] = row.give_up(_death(process.exitcode))
            pipe = self._start(len(self.pipes)) if waiting else pipe
        else:
            if outcome is not None:
                ended[name] = outcome
        self._hand_over(pipe, waiting)


def _death(code: int | None) -> str:
    how = signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"
    return f"the worker of this row died ({how}); if the kernel killed it, memory ran out"


def _worker(study: Study, pipe: Connection, halt: Event, number: int, workers: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides, through `halt`
    leave_with_parent()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import torch

    if torch.cuda.is_available() and study.device in ("auto", "cuda"):
        study = study.model_copy(update={"device": f"cuda:{number % torch.cuda.device_count()}"})
    else:
        torch.set_num_threads(max(1, torch.get_num_threads() // workers))
    while True:
        try:
            name = pipe.recv()
        except (EOFError, ConnectionResetError):
            return
        try:
            pipe.send(work_row(study, name, halt.is_set))
        except Interrupted:
            pipe.send(None)
