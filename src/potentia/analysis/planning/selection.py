"""What a selection's store says beside its ranking: more examples, a smaller model, and when not to trust the winner.

``potentia select`` keeps its rounds as studies of one store, ``NAME-direct``, ``NAME-round-1`` … and ``NAME-final``.
The first round and the last are two sizes of training data, so a report on the store has the learning curve as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from potentia.analysis.benchmark.classification import BaselineVerdict, Classification
from potentia.analysis.planning.learning_curve import (
    CurvePoint,
    LearningCurve,
    measure_learning_curve,
)
from potentia.analysis.planning.trust import (
    TestedAnswer,
    Trust,
    answers_from_items,
    explain_no_trust,
    measure_trust,
)
from potentia.values.baselines import Baseline
from potentia.values.findings import Finding, Table
from potentia.values.protocol import TRAIN_BEFORE_TEST, TaskName
from potentia.values.selection_studies import SelectionPart, SelectionStudy

if TYPE_CHECKING:
    from potentia.evidence import Evidence
    from potentia.store import CellRecord, Store


@dataclass(frozen=True)
class SelectionFinding(Finding):
    """What more examples would change, and how far the probabilities of what is to be used can be trusted."""

    best: str
    curve: LearningCurve | None
    trust: Trust | None  # of the best candidate, or of the cheap classifier to use in its place
    basis: str = ""  # what the answer rests on, where the budget held no more than a trial
    classifier: str = ""  # the cheap classifier to use, as people read it
    no_trust: str = ""  # why there is no threshold
    candidate_trust: Trust | None = None  # of the best candidate, whatever is to be used
    words_trust: Trust | None = None  # of the classifier on words, whatever is to be used

    def sentences(self) -> list[str]:
        """Say what the answer rests on, and both."""
        sentences = []
        if self.basis:
            sentences.append(self.basis)
        if self.curve is not None:
            sentences.append(self.curve.sentence(self.best))
        if self.trust is not None:
            sentences.append(self.trust.sentence(self.classifier))
        elif self.no_trust:
            sentences.append(self.no_trust)
        return sentences

    def tables(self) -> Sequence[Table]:
        """Return the tables of both."""
        tables: list[Table] = []
        if self.curve is not None:
            tables += self.curve.tables()
        if self.trust is not None:
            for table in self.trust.tables():
                title = f"{table.title}: {self.classifier}" if self.classifier else table.title
                note = self.trust.sentence(self.classifier)
                tables.append(replace(table, title=title, note=note))
        return tables


def find_selection(
    evidence: Evidence,
    best_model: str,
    *,
    classification: Classification | None = None,
    seed: int = 0,
) -> SelectionFinding | None:
    """Return what the store of a selection says beside its ranking; None where it is no selection.

    ``classification`` is its test on labelled texts, by which a cheap classifier may be what to use.
    """
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
    of_best = [cell for cell in final_cells if cell.model == best_model]
    best_answers = _read_answers(evidence, of_best)
    tested_tasks = {cell.task for cell in of_best}
    cheap = _CheapAnswers.read(evidence, latest, tested_tasks)
    recommended = _find_recommended_classifier(classification)
    answers: Sequence[TestedAnswer] = best_answers
    classifier = ""
    if classification is not None and recommended is not None:
        answers = cheap.of(recommended)
        classifier = classification.best_baseline_label
    elif classification is not None and classification.verdict is BaselineVerdict.LOSES:
        answers = []  # nothing is to be used yet
    return SelectionFinding(
        best_model,
        curve,
        measure_trust(answers),
        classifier=classifier,
        no_trust=explain_no_trust(answers),
        candidate_trust=measure_trust(best_answers),
        words_trust=measure_trust(cheap.of(Baseline.TFIDF)),
    )


def _find_recommended_classifier(classification: Classification | None) -> str | None:
    """Return the cheap classifier to use, as its results name it; None where a candidate is to be used, or nothing."""
    if classification is None or classification.verdict is not BaselineVerdict.LOSES:
        return None
    if classification.best_baseline is Baseline.TFIDF:
        return Baseline.TFIDF
    return classification.best_embedding_model


@dataclass(frozen=True)
class _CheapAnswers:
    """What cheap classifiers answered to the tested rows, by their name: that of the model, of embeddings."""

    answers_by_name: Mapping[str, Sequence[TestedAnswer]] = field(default_factory=dict)

    @classmethod
    def read(cls, evidence: Evidence, selection: SelectionStudy, tasks: set[str]) -> _CheapAnswers:
        """Return the answers to the rows of these tasks, or folds; those that not all of them have are left out."""
        name = SelectionStudy(selection.selection, SelectionPart.EMBEDDINGS).name
        cells_by_name: dict[str, list[CellRecord]] = {}
        answers_by_name: dict[str, Sequence[TestedAnswer]] = {}
        for store, _ in evidence.open_stores():
            for cell in _read_round(store, name):
                if cell.task in tasks:
                    cells_by_name.setdefault(cell.model, []).append(cell)
            for model, cells in cells_by_name.items():
                if {cell.task for cell in cells} == tasks:
                    answers: list[TestedAnswer] = []
                    for fold, cell in enumerate(sorted(cells, key=lambda cell: cell.task)):
                        answers += answers_from_items(store.cells.read_items(cell.key), "acc", fold)
                    answers_by_name[model] = answers
        return cls(answers_by_name)

    def of(self, name: str) -> Sequence[TestedAnswer]:
        """Return the answers of a classifier; none where it was not tested."""
        return self.answers_by_name.get(name, ())


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
    """Return the learning curve on the folds of the first round, by recipes that the final cells have too.

    A first round of another budget may be in the store, with shorter fine-tunings: its cells are left out.
    """
    recipes = {cell.score.origin.recipe for cell in final_cells}
    first_cells = [cell for cell in first_cells if cell.score.origin.recipe in recipes]
    folds = sorted({cell.task for cell in first_cells} & {cell.task for cell in final_cells})
    points = []
    outcomes: dict[tuple[str, int], Mapping[int, float]] = {}
    cluster_by_example: dict[int, str] = {}
    higher_is_better = True
    for round_cells in (first_cells, final_cells):
        cells_by_model: dict[str, list[CellRecord]] = {}
        for cell in round_cells:
            if cell.task in folds and cell.provenance.task.training_examples:
                cells_by_model.setdefault(cell.model, []).append(cell)
        for model, cells in cells_by_model.items():
            sizes = [cell.provenance.task.training_examples or 0 for cell in cells]
            examples = min(sizes)  # folds differ by an example or so
            higher_is_better = cells[0].score.metric.higher_is_better
            tested = sum(cell.score.n for cell in cells)
            score = sum(cell.score.value * cell.score.n for cell in cells) / tested
            error = 1.0 - score if higher_is_better else score
            points.append(CurvePoint(model, examples, error))
            values: dict[int, float] = {}
            for cell in cells:
                for outcome in evidence.items(cell.key):
                    values[outcome.doc_id] = outcome.value
                    if outcome.cluster:
                        cluster_by_example[outcome.doc_id] = outcome.cluster
            outcomes[model, examples] = values
    return measure_learning_curve(
        points,
        outcomes,
        higher_is_better=higher_is_better,
        cluster_by_example=cluster_by_example,
        tested_in=_name_folds(folds, final_cells),
        seed=seed,
    )


def _name_folds(folds: Sequence[str], final_cells: Sequence[CellRecord]) -> str:
    """Name these folds of a task; empty where they are all that were tested."""
    if set(folds) == {cell.task for cell in final_cells}:
        return ""
    numbers = [str(fold[0]) for fold in (TaskName(name).fold for name in folds) if fold is not None]
    return f"fold {numbers[0]}" if len(numbers) == 1 else f"folds {', '.join(numbers)}"


def _read_answers(evidence: Evidence, cells: Sequence[CellRecord]) -> list[TestedAnswer]:
    """Return what a model answered to the rows that it was tested on, of its folds in their order."""
    answers: list[TestedAnswer] = []
    for fold, cell in enumerate(sorted(cells, key=lambda cell: cell.task)):
        answers += answers_from_items(evidence.items(cell.key), cell.metric, fold)
    return answers
