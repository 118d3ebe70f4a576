"""Scores measured elsewhere, put into a store beside one's own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import astuple, dataclass, replace
from pathlib import Path

from potentia.store import CellRecord, Store
from potentia.values.protocol import Protocol
from potentia.values.scores import ScoreMatrix

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
    for protocol, matrix in matrices.items():
        for model, task, score in matrix.scores():
            origin = replace(score.origin, source=score.origin.source or source)
            told = (score.value, score.stderr if score.stderr == score.stderr else None, score.n, astuple(score.metric))
            metric = score.metric.name or "score"
            cells.append(
                CellRecord(
                    key=f"import-{_digest([study, protocol, model, task, told, score.seeds, astuple(origin)[:4]])}",
                    study=record.key,
                    model=model,
                    task=task,
                    protocol=protocol,
                    scores={metric: replace(score, origin=origin)},
                    metric=metric,
                    manifest={"imported_from": source},
                )
            )
    new = sum(store.commit_cells(cells[start : start + _BATCH]) for start in range(0, len(cells), _BATCH))
    return Imported(study=study, new=new, known=len(cells) - new)


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:48]
