"""What a store holds, in numbers: for ``potentia status`` and the live board."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from potentia.study import Study

ALIVE_SECONDS = 60.0  # a running row writes its state about once a second


def store_status(where: str, study: str | None = None) -> dict[str, Any]:
    """Return studies with their counts, the failed cells with reasons, and the rows that run now."""
    from potentia.store import Store

    with Store.open(where, readonly=True) as store:
        records = [r for r in store.studies() if study in (None, r.name, r.key)]
        failures = [asdict(f) for r in records for f in store.failures(study=r.key)]
        studies = []
        for record in records:
            done = len(store.cells(study=record.key))
            progress = store.get_progress(record.key)
            running = [row for row, state in progress.items() if is_running(state)]
            asked = _asked(record.spec)
            studies.append(
                {
                    "name": record.name,
                    "key": record.key,
                    "created": record.created,
                    "models": asked["models"],
                    "tasks": asked["tasks"],
                    "asked": asked["cells"],
                    "done": done,
                    "failed": sum(f["study"] == record.key for f in failures),
                    "running": len(running),
                    "rows": progress,
                }
            )
    return {"store": where, "studies": studies, "failures": failures}


def is_running(state: dict[str, Any]) -> bool:
    """Say whether a row's last word is recent and not its last."""
    return "ended" not in state and time.time() - float(state.get("at", 0)) < ALIVE_SECONDS


def _asked(spec: Any) -> dict[str, int | None]:
    try:
        study = Study.model_validate(spec)
    except ValueError:  # imported scores have no study
        return {"models": None, "tasks": None, "cells": None}
    rows, tasks = len(study.rows()), len(study.tasks)
    return {"models": rows, "tasks": tasks, "cells": rows * tasks * len(study.protocols)}
