"""What a store holds, in numbers: for ``potentia status`` and the live board."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from potentia.errors import without_password
from potentia.run.time_left import StudyClock
from potentia.study import find_price
from potentia.values.protocol import ADJUST

if TYPE_CHECKING:
    from potentia.store import LeaseRecord, Store, StudyRecord
    from potentia.study import Study

LEASE = ("row", "host", "pid", "since", "run")  # what is told of one
ALIVE_SECONDS = 60.0  # a running row writes its state about once a second


def read_store_status(location: str, study: str | None = None) -> dict[str, Any]:
    """Return studies with their counts, the failed cells with reasons, and the rows that run now."""
    from potentia.store import Store, match_studies

    failures: list[dict[str, Any]] = []
    studies: list[dict[str, Any]] = []
    with Store.open(location, readonly=True) as store:
        records = store.studies.read()
        if study is not None:
            records = match_studies(records, study)
        for record in records:
            study_failures = store.failures.read(study=record.key)
            failures += [asdict(failure) for failure in study_failures]
            studies.append(_describe_study(store, record, failed=len(study_failures)))
    return {"store": without_password(location), "studies": studies, "failures": failures}


def _describe_study(store: Store, record: StudyRecord, *, failed: int) -> dict[str, Any]:
    """Return a study's names and counts, the state of its rows, and who holds them."""
    from potentia.evidence import parse_study_record

    progress = store.events.read_progress(record.key)
    leases = store.leases.read(study=record.key)
    running_rows = {lease.row for lease in leases}
    running_rows |= {row for row, state in progress.items() if is_running(state)}
    study_file = parse_study_record(record)
    return {
        "name": record.name,
        "key": record.key,
        "created": record.created,
        "models": len(study_file.rows()) if study_file else None,
        "tasks": len(study_file.tasks) if study_file else None,
        "asked": count_planned_cells(store, record),
        "done": store.cells.count(study=record.key),
        "failed": failed,
        "running": len(running_rows),
        "left": StudyClock(store, record.key).estimate_seconds() if running_rows else None,
        "cost": _describe_cost(store, record, study_file),
        "rows": progress,
        "leases": [_describe_lease(lease) for lease in leases],
    }


def _describe_cost(store: Store, record: StudyRecord, study: Study | None) -> str | None:
    """Return what the results of a study cost so far; None where no price is known."""
    if study is None:
        return None
    price = find_price(study.price, read_device(store, record.key) or study.device)
    return None if price is None else price.format(store.cells.sum_seconds(study=record.key))


def read_device(store: Store, study_key: str) -> str | None:
    """Return the device that computed a study's results, by the first of them; None where it is not known."""
    first_cells = store.cells.read(study=study_key, limit=1)
    return first_cells[0].provenance.model.device if first_cells else None


def _describe_lease(lease: LeaseRecord) -> dict[str, Any]:
    return {field_name: getattr(lease, field_name) for field_name in LEASE}


def is_running(state: dict[str, Any]) -> bool:
    """Say whether a row's last word is recent and not its last."""
    return "ended" not in state and abs(time.time() - float(state.get("at", 0))) < ALIVE_SECONDS


def count_planned_cells(store: Store, record: StudyRecord) -> int | None:
    """Return how many cells the study asks for; None for imported scores.

    An adjustment that is scored on the way has a cell for each such step. Texts to predict have no few-shot cells;
    which tasks are texts is known as soon as one cell of each is there.
    """
    from potentia.evidence import parse_study_record

    study = parse_study_record(record)
    if study is None:
        return None
    tasks = [task.name for task in study.list_task_specs()]
    steps = len(set(study.adjust.at_steps)) if study.adjust else 0
    texts: set[str] = set()
    if any(protocol.kind == "few_shot" for protocol in study.protocols):
        texts = _find_texts(store, record, tasks)
    planned = 0
    for row in study.rows():
        for protocol in study.protocols:
            cells_per_task = 1 + steps if protocol == ADJUST else 1
            for task in tasks:
                is_text_with_shots = protocol.kind == "few_shot" and task in texts
                if study.includes_cell(row.name, task, protocol) and not is_text_with_shots:
                    planned += cells_per_task
    return planned


def _find_texts(store: Store, record: StudyRecord, tasks: Iterable[str]) -> set[str]:
    """Return the tasks that are texts to predict, by one stored cell of each."""
    texts = set()
    for task in tasks:
        for cell in store.cells.read(study=record.key, task=task, limit=1):
            if cell.score.metric.is_text:
                texts.add(cell.task)
    return texts
