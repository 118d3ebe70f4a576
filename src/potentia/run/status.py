"""What a store holds, in numbers: for ``potentia status`` and the live board."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from potentia.errors import without_password
from potentia.study import Study
from potentia.values.protocol import ADJUST

if TYPE_CHECKING:
    from potentia.store import Store, StudyRecord

ALIVE_SECONDS = 60.0  # a running row writes its state about once a second


def store_status(where: str, study: str | None = None) -> dict[str, Any]:
    """Return studies with their counts, the failed cells with reasons, and the rows that run now."""
    from potentia.store import Store

    with Store.open(where, readonly=True) as store:
        records = [r for r in store.studies() if study in (None, r.name, r.key)]
        failures = [asdict(f) for r in records for f in store.failures(study=r.key)]
        studies = []
        for record in records:
            done = store.count(study=record.key)
            progress = store.get_progress(record.key)
            leases = store.leases(study=record.key)
            running = {lease.row for lease in leases} | {row for row, state in progress.items() if is_running(state)}
            study_file = _study(record)
            studies.append(
                {
                    "name": record.name,
                    "key": record.key,
                    "created": record.created,
                    "models": len(study_file.rows()) if study_file else None,
                    "tasks": len(study_file.tasks) if study_file else None,
                    "asked": asked_cells(store, record),
                    "done": done,
                    "failed": sum(f["study"] == record.key for f in failures),
                    "running": len(running),
                    "rows": progress,
                    "leases": [
                        {"row": lease.row, "host": lease.host, "pid": lease.pid, "since": lease.since, "run": lease.run}
                        for lease in leases
                    ],
                }
            )
    return {"store": without_password(where), "studies": studies, "failures": failures}


def is_running(state: dict[str, Any]) -> bool:
    """Say whether a row's last word is recent and not its last."""
    return "ended" not in state and abs(time.time() - float(state.get("at", 0))) < ALIVE_SECONDS


def asked_cells(store: Store, record: StudyRecord) -> int | None:
    """Return how many cells the study asks for; None for imported scores.

    An adjustment that is scored on the way has a cell for each such step. Texts to predict have no few-shot cells;
    which tasks are texts is known as soon as one cell of each is there.
    """
    study = _study(record)
    if study is None:
        return None
    steps = len(set(study.adjust.at_steps)) if study.adjust else 0
    tasks = [task.name for task in study.benchmarks()]
    shown = any(protocol.kind == "few_shot" for protocol in study.protocols)
    samples = [store.cells(study=record.key, task=task, limit=1) for task in tasks] if shown else []
    texts = {cells[0].task for cells in samples if cells and cells[0].score.metric.is_text}
    return sum(
        1 + (steps if protocol == ADJUST else 0)
        for row in study.rows()
        for protocol in study.protocols
        for task in tasks
        if study.asks(row.name, task, protocol) and not (protocol.kind == "few_shot" and task in texts)
    )


def _study(record: StudyRecord) -> Study | None:
    try:
        return Study.model_validate(dict(record.spec))
    except ValueError:  # imported scores have no study
        return None
