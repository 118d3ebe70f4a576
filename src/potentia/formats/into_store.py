"""Scores measured elsewhere, put into a store beside one's own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from potentia.formats.metrics import usual_metric
from potentia.formats.write import tidy_rows
from potentia.store import CellRecord, Store
from potentia.values.metric import Metric
from potentia.values.protocol import Protocol
from potentia.values.scores import Score, ScoreMatrix

_BATCH = 5000


@dataclass(frozen=True)
class Imported:
    """What an import brought: new cells, and those that the store had already."""

    study: str
    new: int
    known: int


def import_scores(
    store: Store, matrices: Mapping[Protocol, ScoreMatrix], *, source: str, name: str | None = None
) -> Imported:
    """Commit every score as a cell of the study ``name`` (the source's file name); the same scores come in once."""
    study = name or Path(source).name or source
    record = store.study(study, f"import-{_digest(study)}", {"name": study, "imported": True})
    cells = []
    for row in tidy_rows(matrices):
        task = row["benchmark"]
        metric = usual_metric(task) or "score"
        score = Score(
            value=row["score"],
            stderr=float("nan") if row["stderr"] is None else row["stderr"],
            n=0 if row["n"] is None else int(row["n"]),
            metric=Metric.of(metric, row["higher_is_better"]),
        )
        cells.append(
            CellRecord(
                key=f"import-{_digest([study, row])}",
                study=record.key,
                model=row["model"],
                task=task,
                protocol=row["protocol"],
                scores={metric: score},
                metric=metric,
                manifest={"imported_from": source},
            )
        )
    new = sum(store.commit_cells(cells[start : start + _BATCH]) for start in range(0, len(cells), _BATCH))
    return Imported(study=study, new=new, known=len(cells) - new)


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:48]
