"""The SLURM executor: every assignment is a job of the cluster's queue, handed in by submitit.

The store must be one that every machine reaches (PostgreSQL), with its items in a folder that all see; jobs and their
logs lie in a folder beside the store's logs. The environment variables that ``sbatch`` reads
(``SBATCH_PARTITION``, ``SBATCH_ACCOUNT``, ``SBATCH_TIMELIMIT``) override what is set here. Where there is no SLURM,
jobs are processes of this machine.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any

from potentia.errors import INTERRUPTS, InputError, first_line
from potentia.extras import Extra, require_extra
from potentia.run.cost import estimate_weight_bytes
from potentia.run.executors.base import ExecutionRequest, QueueExecutor
from potentia.run.plan import Assignment
from potentia.run.progress import open_store
from potentia.run.worker import Answer, answer_assignment
from potentia.timing import call_repeatedly

log = logging.getLogger(__name__)

POLL_SECONDS = 0.5
TIME_LIMIT_MINUTES = 24 * 60  # of a job; SBATCH_TIMELIMIT sets another
JOBS_AT_ONCE = 64  # for which the rows are divided; the cluster's own queue decides
EXTRA_GIB = 4  # of memory beside twice the weights


class SlurmExecutor(QueueExecutor):
    """Each assignment is a SLURM job; one that is lost costs its row alone."""

    def __init__(self) -> None:
        super().__init__()
        self._jobs: Any = None  # submitit's executor
        self._stop_file = Path()

    @classmethod
    def check_installed(cls) -> None:
        """Raise an error where submitit is not installed."""
        require_extra(Extra.SLURM, "--executor slurm")

    def start(self, request: ExecutionRequest) -> Sequence[Assignment]:
        """Make the folder of the jobs; refuse a store that not every machine reaches."""
        import submitit

        from potentia.store import locate_store

        first_assignment = request.assignments[0]
        has_slurm = shutil.which("sbatch") is not None
        if not has_slurm:
            log.warning("there is no SLURM here: models run as processes of this machine")
        elif locate_store(first_assignment.study.store).file is not None:
            raise InputError(
                "a SQLite file cannot be shared between machines",
                hint="give a PostgreSQL store: --store postgresql+psycopg://user@host/potentia?items=/shared/folder",
            )
        with open_store(first_assignment.study.store) as store:
            folder = store.logs_folder / f"{first_assignment.run}.slurm"
        folder.mkdir(parents=True, exist_ok=True)
        self._stop_file = folder / "stop"
        self._jobs = submitit.AutoExecutor(folder, cluster="slurm" if has_slurm else "local")
        device = "cpu" if first_assignment.study.device == "cpu" else "cuda"
        return request.divide(JOBS_AT_ONCE if has_slurm else request.workers, device)

    def submit(self, assignment: Assignment) -> Hashable:
        """Hand a job in, with the processors, memory and GPU that its row needs."""
        weights = estimate_weight_bytes(assignment.row) or 0
        self._jobs.update_parameters(
            name="potentia",
            timeout_min=TIME_LIMIT_MINUTES,
            cpus_per_task=max(1, assignment.threads),
            mem_gb=EXTRA_GIB + 2 * weights // 2**30,
            gpus_per_node=0 if assignment.study.device == "cpu" else 1,
        )
        job: Hashable = self._jobs.submit(_run_job, assignment, str(self._stop_file))
        return job

    def collect_answers(self) -> Iterable[tuple[Hashable, Answer]]:
        """Return the answers of the jobs that have ended; what was lost is given up."""
        time.sleep(POLL_SECONDS)
        for job in list(self.running):
            if job.done():  # type: ignore[attr-defined]
                yield job, self._read_answer(job)

    def _read_answer(self, job: Any) -> Answer:
        try:
            answer: Answer = job.result()
        except INTERRUPTS:
            raise
        except Exception as error:  # submitit raises what the job raised, or that it was lost
            reason = f"its SLURM job {job.job_id} was lost: {first_line(error)}"
            return self.give_up(self.running[job], reason)
        return answer

    def request_stop(self) -> None:
        """Leave the file that all jobs look for."""
        if self._jobs is not None:
            self._stop_file.touch()

    def close(self, *, graceful: bool) -> None:
        """Cancel what has not ended, after some time where it may have to save."""
        deadline = time.monotonic() + (self.drain_seconds if graceful else 0.0)
        jobs: list[Any] = list(self.running)
        while time.monotonic() < deadline and not all(job.done() for job in jobs):
            time.sleep(POLL_SECONDS)
        for job in jobs:
            if not job.done():
                job.cancel()


def _run_job(assignment: Assignment, stop_file: str) -> Answer:
    """Compute an assignment as a job, which looks for the stop file now and then."""
    stop_requested = threading.Event()

    def look_for_file() -> None:
        if Path(stop_file).exists():
            stop_requested.set()

    with call_repeatedly(look_for_file, 1.0):
        return answer_assignment(assignment, stop_requested.is_set)
