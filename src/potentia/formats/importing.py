"""Scores of files into a store, as the cells of a study."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass, replace
from pathlib import Path

from potentia.store import CellRecord, Store
from potentia.values.protocol import Protocol
from potentia.values.provenance import Provenance
from potentia.values.scores import Score, ScoreMatrix

_BATCH = 5000  # cells in one transaction


@dataclass(frozen=True)
class ImportSummary:
    """What an import brought: new cells, and those that the store had already."""

    study: str
    new: int
    known: int


def import_scores(
    store: Store,
    matrices: Mapping[Protocol, ScoreMatrix],
    *,
    source: str,
    study_name: str | None = None,
) -> ImportSummary:
    """Commit every score as a cell of the study ``study_name`` (by default the source's file name), each once."""
    study = study_name or Path(source).name or source
    record = store.studies.open(
        study, f"import-{_digest(study)}", {"name": study, "imported": True}
    )
    cells = []
    for protocol, matrix in matrices.items():
        for model, task, score in matrix.scores():
            origin = replace(score.origin, source=score.origin.source or source)
            sourced_score = replace(score, origin=origin)
            metric = score.metric.name or "score"
            cell = CellRecord(
                key=_cell_key(study, protocol, model, task, sourced_score),
                study=record.key,
                model=model,
                task=task,
                protocol=protocol,
                scores={metric: sourced_score},
                metric=metric,
                provenance=Provenance(imported_from=source),
            )
            cells.append(cell)
    new_cells = 0
    for batch_start in range(0, len(cells), _BATCH):
        new_cells += store.cells.commit_many(cells[batch_start : batch_start + _BATCH])
    return ImportSummary(study=study, new=new_cells, known=len(cells) - new_cells)


def _cell_key(study: str, protocol: Protocol, model: str, task: str, score: Score) -> str:
    """Return a key that names everything which makes a score another one."""
    stderr = None if math.isnan(score.stderr) else score.stderr
    measured = (score.value, stderr, score.n, astuple(score.metric))
    origin = astuple(score.origin)[:4]
    return f"import-{_digest([study, protocol, model, task, measured, score.seeds, origin])}"


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:48]
