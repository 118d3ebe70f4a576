"""The Ray executor: rows as tasks of a cluster. The store must be one that every machine reaches (PostgreSQL)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from potentia.errors import InputError, MissingExtraError
from potentia.run.board import Interrupted
from potentia.run.row import RowOutcome

if TYPE_CHECKING:
    from potentia.study import Study


def run_rows_on_ray(study: Study, names: Sequence[str], *, stop: Callable[[], bool]) -> dict[str, RowOutcome]:
    """Run each row as a Ray task with one GPU where the cluster has some; a lost task is retried by Ray."""
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("the ray executor needs Ray", hint="pip install 'potentia[ray]'") from error
    if not ray.is_initialized():
        ray.init(ignore_reinit_error=True, log_to_driver=False)
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
            ended[pending.pop(reference)] = ray.get(reference)
        if stop():
            for reference in pending:
                ray.cancel(reference)
            raise Interrupted
    return ended


def _row(study: Study, name: str) -> RowOutcome:
    from potentia.run.local import work_row

    return work_row(study, name, lambda: False)
