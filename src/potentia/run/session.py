"""Opening a study against its store: names, folders, and the rows that executors are handed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from potentia.run.board import Board
from potentia.run.plan import load_tasks, plan_row, study_key
from potentia.study import Study

if TYPE_CHECKING:
    from potentia.run.row import Row
    from potentia.tasks import Task


def workspace(store: str) -> Path:
    """Return the folder for what a running row needs to resume: beside a store file, else in the current folder."""
    beside = Path(store).expanduser() if "://" not in store else Path("potentia")
    return beside.with_name(beside.name + ".lanes")


@lru_cache(maxsize=2)
def _tasks(study: Study) -> dict[str, Task]:
    return load_tasks(study)


@contextmanager
def open_row(study: Study, name: str, stop: Callable[[], bool]) -> Iterator[Row]:
    """Open the store and one row of the study in it."""
    from potentia.run.row import Row
    from potentia.store import Store

    with Store.open(study.store) as store:
        key = study_key(study)
        store.study(study.name, key, study.model_dump(mode="json"))
        tasks = _tasks(study)
        plan = plan_row(study, store, tasks, name)
        yield Row(study, key, plan, tasks, store, Board(store, key, name), stop, workspace(study.store))
