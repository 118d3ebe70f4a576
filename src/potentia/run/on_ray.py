"""The Ray executor: rows as tasks of a cluster. The store must be one that every machine reaches (PostgreSQL)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from potentia.errors import InputError, MissingExtraError
from potentia.protocols import Stopped
from potentia.run.execute import give_up_row, work_row
from potentia.run.plan import LoadedTasks, RowPlan
from potentia.run.row import RowOutcome

STOP_SECONDS = 60.0  # that rows get to end once they are told to stop


def run_rows_on_ray(rows: Sequence[RowPlan], tasks: LoadedTasks, *, stop: Callable[[], bool]) -> dict[str, RowOutcome]:
    """Run each row as a Ray task with one GPU where the cluster has some.

    Ray tries a lost task again, and it goes on from what the store has; one that stays lost costs its row alone.
    """
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("the ray executor needs Ray", hint="pip install 'potentia[ray]'") from error
    if not ray.is_initialized():
        ray.init(ignore_reinit_error=True, log_to_driver=False, include_dashboard=False)
    several = len([node for node in ray.nodes() if node["Alive"]]) > 1
    if several and "://" not in rows[0].study.store:
        raise InputError(
            "a SQLite file cannot be shared between machines",
            hint="give a PostgreSQL store: --store postgresql+psycopg://user@host/potentia",
        )
    gpus = 1 if ray.cluster_resources().get("GPU") else 0
    task = ray.remote(num_gpus=gpus, max_retries=2)(_row)
    pending: dict[Any, RowPlan] = {task.remote(row): row for row in rows}
    ended: dict[str, RowOutcome] = {}
    while pending:
        ready, _ = ray.wait(list(pending), timeout=0.5)
        for reference in ready:
            row = pending.pop(reference)
            try:
                ended[row.model.name] = ray.get(reference)
            except ray.exceptions.RayError as error:
                lost = f"its Ray task was lost: {str(error).splitlines()[0]}"
                ended[row.model.name] = give_up_row(row, tasks, lost)
        if stop():
            for reference in pending:
                ray.cancel(reference)
            ray.wait(list(pending), num_returns=len(pending), timeout=STOP_SECONDS)
            raise Stopped
    return ended


def _row(row: RowPlan) -> RowOutcome:
    return work_row(row, lambda: False)
