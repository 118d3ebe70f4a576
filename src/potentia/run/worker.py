"""What a worker does with an assignment: claim its cells, compute the row, and say how that went.

A row is leased to the process that computes it, by its cells; one that another run has is left to it. Everything that
is needed is in the assignment, so that any process of any machine can compute it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import TYPE_CHECKING

from potentia.errors import INTERRUPTS, PotentiaError, StoreError
from potentia.run.plan import Assignment, LoadedTasks, load_tasks
from potentia.run.progress import RunLog, Stopped, open_store
from potentia.run.row import RowRun
from potentia.run.row_context import RowOutcome
from potentia.timing import call_repeatedly
from potentia.values.protocol import TRAIN_BEFORE_TEST

if TYPE_CHECKING:
    from potentia.run.model_cache import ModelCache
    from potentia.store import LeaseRecord, Store
    from potentia.study import Study

StopRequested = Callable[[], bool]
Answer = RowOutcome | PotentiaError | None  # how a row ended, what went wrong; None: it was stopped


def compute_assignment(
    assignment: Assignment,
    stop_requested: StopRequested,
    *,
    tasks: LoadedTasks | None = None,
    device: str | None = None,
    model_cache: ModelCache | None = None,
) -> RowOutcome:
    """Compute one assignment and return how it ended, or who else computes it."""
    import torch

    if assignment.threads:
        torch.set_num_threads(assignment.threads)
    with open_store(assignment.study.store) as store:
        store.stop = stop_requested
        lease = claim_cells(assignment, store)
        run_log = RunLog(store, assignment.run)
        if not store.leases.is_mine(lease):
            run_log.write("held", row=assignment.label, by=lease.owner)
            return RowOutcome(holder=lease.owner)
        run_log.write("lease", row=assignment.label, cells=len(assignment.pending))
        with keep_lease(store, lease) as lease_lost:
            row_run = RowRun(
                assignment,
                tasks or load_tasks_once(assignment.study),
                store,
                stop_requested=lambda: stop_requested() or lease_lost(),
                device=device or assignment.study.device,
                model_cache=model_cache,
            )
            try:
                return row_run.run()
            except Stopped:
                if lease_lost() and not stop_requested():
                    # this process slept too long, and another has the row now
                    return RowOutcome(holder="another process")
                raise


def answer_assignment(
    assignment: Assignment,
    stop_requested: StopRequested,
    *,
    device: str | None = None,
    tasks: LoadedTasks | None = None,
    model_cache: ModelCache | None = None,
) -> Answer:
    """Compute one assignment; what went wrong is an answer too, and the others go on. None where it was stopped."""
    try:
        return compute_assignment(
            assignment, stop_requested, tasks=tasks, device=device, model_cache=model_cache
        )
    except Stopped:
        return None
    except PotentiaError as error:
        return error
    except INTERRUPTS:
        raise
    except BaseException as error:  # a panic of Rust code is no `Exception`
        return PotentiaError(f"{type(error).__name__}: {error}")


def give_up_assignment(
    assignment: Assignment, tasks: LoadedTasks | None, reason: str
) -> RowOutcome:
    """Record that an assignment was lost with the process that computed it; unless another has taken it up."""
    with open_store(assignment.study.store) as store:
        lease = claim_cells(assignment, store)
        if not store.leases.is_mine(lease):
            return RowOutcome(holder=lease.owner)
        with keep_lease(store, lease):
            row_run = RowRun(
                assignment.refresh(store),
                tasks or load_tasks_once(assignment.study),
                store,
                stop_requested=lambda: False,
                device=assignment.study.device,
            )
            return row_run.context.fail_all_cells(reason)


def claim_cells(assignment: Assignment, store: Store) -> LeaseRecord:
    """Claim the pending cells of an assignment.

    Those of train-before-test are claimed lane by lane, so that several workers can share one.
    """
    lanes = [f"/{lane}" for lane in range(assignment.study.lanes_per_task)]
    if assignment.lane_part is not None:
        lanes = lanes[assignment.lane_part :: assignment.lane_parts]
    cell_keys = []
    for cell in assignment.pending:
        if not cell.key:  # its model could not be read
            continue
        if cell.protocol == TRAIN_BEFORE_TEST:
            cell_keys += [cell.key + lane for lane in lanes]
        else:
            cell_keys.append(cell.key)
    return store.leases.claim(
        assignment.row.study_key, assignment.label, cell_keys, run_id=assignment.run
    )


@contextmanager
def keep_lease(store: Store, lease: LeaseRecord) -> Iterator[StopRequested]:
    """Renew a lease while its row is computed; gives a function that says whether it was taken away."""
    from potentia.store import BEAT_SECONDS

    lease_lost = threading.Event()
    ended = threading.Event()

    def renew() -> None:
        with suppress(StoreError):  # the row meets it too, and decides
            if not (lease_lost.is_set() or ended.is_set()) and not store.leases.beat(lease):
                lease_lost.set()

    try:
        with call_repeatedly(renew, BEAT_SECONDS):
            try:
                yield lease_lost.is_set
            finally:
                ended.set()  # a store that is away is not waited for once more
    finally:
        with suppress(StoreError):  # the store is away: the lease ends with this process
            store.leases.release(lease)


def load_tasks_once(study: Study) -> LoadedTasks:
    """Load the tasks of a study once for all assignments that this process is handed."""
    # what is left out changes no task
    return _load_tasks(study.model_copy(update={"models": (), "only": None, "dtype": "auto"}))


_load_tasks = lru_cache(maxsize=2)(load_tasks)
