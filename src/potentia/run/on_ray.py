"""The Ray executor: rows as tasks of a cluster. The store must be one that every machine reaches (PostgreSQL)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from potentia.errors import InputError, MissingExtraError
from potentia.run.board import Interrupted
from potentia.run.row import RowOutcome
from potentia.run.session import open_row

if TYPE_CHECKING:
    from potentia.study import Study

STOP_SECONDS = 60.0  # that rows get to end once they are told to stop


def run_rows_on_ray(study: Study, names: Sequence[str], *, stop: Callable[[], bool]) -> dict[str, RowOutcome]:
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
    if several and "://" not in study.store:
        raise InputError(
            "a SQLite file cannot be shared between machines",
            hint="give a PostgreSQL store: --store postgresql+psycopg://user@host/potentia",
        )
    gpus = 1 if ray.cluster_resources().get("GPU") else 0
    task = ray.remote(num_gpus=gpus, max_retries=2)(_row)
    pending: dict[Any, str] = {task.remote(study, name): name for name in names}
    ended: dict[str, RowOutcome] = {}
    while pending:
        ready, _ = ray.wait(list(pending), timeout=0.5)
        for reference in ready:
            name = pending.pop(reference)
            try:
                ended[name] = ray.get(reference)
            except ray.exceptions.RayError as error:
                with open_row(study, name, stop) as row:
                    ended[name] = row.give_up(f"its Ray task was lost: {str(error).splitlines()[0]}")
        if stop():
            for reference in pending:
                ray.cancel(reference)
            ray.wait(list(pending), num_returns=len(pending), timeout=STOP_SECONDS)
            raise Interrupted
    return ended


def _row(study: Study, name: str) -> RowOutcome:
    from potentia.run.local import work_row

    return work_row(study, name, lambda: False)
