"""What a selection's store says beside its ranking: more labels, a smaller model, and when not to trust the winner.

``potentia select`` keeps its rounds as studies of one store, ``NAME-direct``, ``NAME-round-1`` … and ``NAME-final``.
The first round and the last are two sizes of training data, so a report on the store has the learning curve as well.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from potentia.analysis.planning.learning_curve import (
    CurvePoint,
    LearningCurve,
    measure_learning_curve,
)
from potentia.analysis.planning.trust import Trust, answers_from_items, measure_trust
from potentia.values.findings import Finding, Table
from potentia.values.protocol import TRAIN_BEFORE_TEST

if TYPE_CHECKING:
    from potentia.evidence import Evidence
    from potentia.store import CellRecord, Store

FIRST_ROUND = "round-1"
FINAL = "final"
_ROUND_NAME = re.compile(rf"(.+)-(?:{FINAL}|round-\d+)")


@dataclass(frozen=True)
class SelectionFinding(Finding):
    """What more labels would change, and how far the best model's probabilities can be trusted."""

    best: str
    curve: LearningCurve | None
    trust: Trust | None

    def sentences(self) -> list[str]:
        """Say both."""
        sentences = []
        if self.curve is not None:
            sentences.append(self.curve.sentence(self.best))
        if self.trust is not None:
            sentences.append(self.trust.sentence())
        return sentences

    def tables(self) -> Sequence[Table]:
        """Return the tables of both."""
        tables: list[Table] = []
        if self.curve is not None:
            tables += self.curve.tables()
        if self.trust is not None:
            tables += self.trust.tables()
        return tables


def find_selection(evidence: Evidence, best: str, *, seed: int = 0) -> SelectionFinding | None:
    """Return what the store of a selection says beside its ranking; None where it is no selection."""
    if not evidence.studies:
        return None
    match = _ROUND_NAME.fullmatch(evidence.studies[-1].name)
    if match is None:
        return None
    final_cells = [cell for cell in evidence.cells() if cell.protocol == TRAIN_BEFORE_TEST]
    if not final_cells:
        return None
    curve = None
    for store, _ in evidence.open_stores():
        first_cells = _read_round(store, f"{match[1]}-{FIRST_ROUND}")
        curve = _measure_curve(store, first_cells, final_cells, seed=seed)
    return SelectionFinding(best, curve, _measure_trust(evidence, final_cells, best))


def _read_round(store: Store, name: str) -> list[CellRecord]:
    """Return the cells of the latest study of a name."""
    keys = [record.key for record in store.studies.read() if record.name == name]
    return list(store.cells.read(study=keys[-1])) if keys else []


def _measure_curve(
    store: Store,
    first_cells: Sequence[CellRecord],
    final_cells: Sequence[CellRecord],
    *,
    seed: int,
) -> LearningCurve | None:
    """Return the learning curve of the fold that was tuned on both sizes."""
    fold = min((cell.task for cell in first_cells), default=None)
    points = []
    outcomes: dict[tuple[str, int], Mapping[int, float]] = {}
    higher_is_better = True
    for cell in (*first_cells, *final_cells):
        examples = cell.provenance.task.splits.train.used
        if cell.task != fold or not examples:
            continue
        higher_is_better = cell.score.metric.higher_is_better
        error = 1.0 - cell.score.value if higher_is_better else cell.score.value
        points.append(CurvePoint(cell.model, examples, error))
        items = store.cells.read_items(cell.key)
        outcomes[cell.model, examples] = {item.doc_id: item.value for item in items}
    return measure_learning_curve(points, outcomes, higher_is_better=higher_is_better, seed=seed)


def _measure_trust(evidence: Evidence, cells: Sequence[CellRecord], model: str) -> Trust | None:
    """Return how far a model's probabilities can be trusted, from the rows that it was tested on."""
    answers = []
    of_model = [cell for cell in cells if cell.model == model]
    for fold, cell in enumerate(sorted(of_model, key=lambda cell: cell.task)):
        answers += answers_from_items(evidence.items(cell.key), fold)
    return measure_trust(answers)
