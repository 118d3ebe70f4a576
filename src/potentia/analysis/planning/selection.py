"""What a selection's store says beside its ranking: more labels, a smaller model, and when not to trust the winner.

``potentia select`` keeps its rounds as studies of one store, ``NAME-direct``, ``NAME-round-1`` … and ``NAME-final``.
The first round and the last are two sizes of training data, so a report on the store has the learning curve as well.
"""

from __future__ import annotations

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
from potentia.values.selection_studies import SelectionPart, SelectionStudy

if TYPE_CHECKING:
    from potentia.evidence import Evidence
    from potentia.store import CellRecord, Store


@dataclass(frozen=True)
class SelectionFinding(Finding):
    """What more labels would change, and how far the best model's probabilities can be trusted."""

    best: str
    curve: LearningCurve | None
    trust: Trust | None
    basis: str = ""  # what the answer rests on, where the budget held no more than a trial

    def sentences(self) -> list[str]:
        """Say what the answer rests on, and both."""
        sentences = []
        if self.basis:
            sentences.append(self.basis)
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


def find_selection(
    evidence: Evidence, best_model: str, *, seed: int = 0
) -> SelectionFinding | None:
    """Return what the store of a selection says beside its ranking; None where it is no selection."""
    if not evidence.studies:
        return None
    latest = SelectionStudy.parse(evidence.studies[-1].name)
    if latest is None:
        return None
    if latest.part is SelectionPart.TRIAL:
        return SelectionFinding(best_model, None, None, _describe_trial(evidence))
    if not latest.fine_tunes:
        return None
    first_round = SelectionStudy(latest.selection, SelectionPart.ROUND, round_number=1)
    final_cells = [cell for cell in evidence.cells() if cell.protocol == TRAIN_BEFORE_TEST]
    if not final_cells:
        return None
    first_cells: list[CellRecord] = []
    for store, _ in evidence.open_stores():
        first_cells += _read_round(store, first_round.name)
    curve = _measure_curve(evidence, first_cells, final_cells, seed=seed)
    return SelectionFinding(best_model, curve, _measure_trust(evidence, final_cells, best_model))


def _describe_trial(evidence: Evidence) -> str:
    """Say how short the fine-tunings of a trial are: nothing else on the page does."""
    updates = max((cell.selection.updates or 0 for cell in evidence.cells()), default=0)
    examples = max(
        (cell.provenance.task.training_examples or 0 for cell in evidence.cells()), default=0
    )
    extent = f"{examples} training examples"
    if updates:
        extent = f"{updates} training steps on {extent}"
    return f"The budget of this selection was enough for a trial alone ({extent}): a longer one may change the order."


def _read_round(store: Store, study_name: str) -> list[CellRecord]:
    """Return the cells of the latest study of a name."""
    study = store.studies.find_latest(study_name)
    return [] if study is None else list(store.cells.read(study=study.key))


def _measure_curve(
    evidence: Evidence,
    first_cells: Sequence[CellRecord],
    final_cells: Sequence[CellRecord],
    *,
    seed: int,
) -> LearningCurve | None:
    """Return the learning curve on one fold of the first round, by recipes that the final cells have too.

    A first round of another budget may be in the store, with shorter fine-tunings: its cells are left out.
    """
    recipes = {cell.score.origin.recipe for cell in final_cells}
    first_cells = [cell for cell in first_cells if cell.score.origin.recipe in recipes]
    fold = min((cell.task for cell in first_cells), default=None)
    points = []
    outcomes: dict[tuple[str, int], Mapping[int, float]] = {}
    cluster_by_example: dict[int, str] = {}
    higher_is_better = True
    for cell in (*first_cells, *final_cells):
        examples = cell.provenance.task.training_examples
        if cell.task != fold or not examples:
            continue
        higher_is_better = cell.score.metric.higher_is_better
        error = 1.0 - cell.score.value if higher_is_better else cell.score.value
        points.append(CurvePoint(cell.model, examples, error))
        items = evidence.items(cell.key)
        outcomes[cell.model, examples] = {outcome.doc_id: outcome.value for outcome in items}
        cluster_by_example |= {
            outcome.doc_id: outcome.cluster for outcome in items if outcome.cluster
        }
    return measure_learning_curve(
        points,
        outcomes,
        higher_is_better=higher_is_better,
        cluster_by_example=cluster_by_example,
        seed=seed,
    )


def _measure_trust(evidence: Evidence, cells: Sequence[CellRecord], model: str) -> Trust | None:
    """Return how far a model's probabilities can be trusted, from the rows that it was tested on."""
    answers = []
    of_model = [cell for cell in cells if cell.model == model]
    for fold, cell in enumerate(sorted(of_model, key=lambda cell: cell.task)):
        answers += answers_from_items(evidence.items(cell.key), cell.metric, fold)
    return measure_trust(answers)
