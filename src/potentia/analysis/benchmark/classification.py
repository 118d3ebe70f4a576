"""Labelled texts: what each class gets right, what is taken for what, and whether a language model was needed at all.

Beside every model stand two that cost nothing: the most frequent class and a linear classifier on words, both taught
on the same training documents and tested on the same test.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from potentia.analysis.wording import join_names
from potentia.evidence import Evidence, parse_study_record
from potentia.values.findings import Bars, Cell, Chart, Finding, Heatmap, Table, short_names
from potentia.values.protocol import DIRECT
from potentia.values.scores import Floats, ItemOutcome

if TYPE_CHECKING:
    from potentia.store import CellRecord
    from potentia.study import Study

LabelCounts = Counter[tuple[str, str]]  # documents by true and predicted label

MAJORITY = "majority class"
TFIDF = "TF-IDF + logistic regression"
CONSTANT_SHARE = 0.98  # of one answer, from which a model is said to answer always the same
MIN_UNKNOWN_SHARE = 0.05  # of tokens that the tokenizer does not know, from which it is told
MIN_ANSWERS = 10  # from which a constant answer is looked for
METRICS = ("acc", "macro_f1", "balanced_accuracy")
METRIC_NAMES = ("accuracy", "macro-F1", "balanced accuracy")


@dataclass(frozen=True)
class LabelledTest:
    """One model's test on labelled texts, under the protocol that ranks."""

    model: str
    scores: tuple[float, float, float]  # accuracy, macro-F1, balanced accuracy
    stderr: float  # of the accuracy
    direct: float  # accuracy before tuning; NaN where not measured
    constant: str | None  # the label that it answers always
    unknown: float  # share of unknown tokens in the texts

    @property
    def accuracy(self) -> float:
        """The accuracy."""
        return self.scores[0]


@dataclass(frozen=True)
class Classification(Finding):
    """A test on labelled texts: models beside baselines, and the classes of the best model."""

    task: str
    protocol: str
    labels: tuple[str, ...]
    models: tuple[LabelledTest, ...]  # the best first
    baselines: Mapping[str, Mapping[str, float]]
    confusion: Floats  # (gold, predicted) counts of the best model
    documents: int

    def _short_model_names(self) -> list[str]:
        return short_names([test.model for test in self.models])

    def tables(self) -> Sequence[Table]:
        """Return models beside baselines, the classes of the best model, and what it takes for what."""
        return [self._model_table(), self._class_table(), self._confusion_table()]

    def _model_table(self) -> Table:
        columns: tuple[str, ...] = ("model", *METRIC_NAMES, "accuracy, direct")
        rows: list[tuple[Cell, ...]] = []
        for name, test in zip(self._short_model_names(), self.models, strict=True):
            rows.append((name, *test.scores, test.direct))
        for name, measured in self.baselines.items():
            scores = [measured.get(metric, math.nan) for metric in METRICS]
            rows.append((name, *scores, math.nan))
        if all(math.isnan(test.direct) for test in self.models):
            columns = columns[:-1]
            rows = [row[:-1] for row in rows]
        title = f"{self.task}: {len(self.labels)} labels, {self.documents} test documents"
        note = "Macro-F1 and balanced accuracy count every class the same, however rare."
        if self.baselines:
            note += " The last rows need no language model."
        return Table(title, columns, rows, note)

    def _class_table(self) -> Table:
        gold = self.confusion.sum(axis=1)
        predicted = self.confusion.sum(axis=0)
        right = np.diag(self.confusion)
        rows = zip(
            self.labels,
            map(int, gold),
            map(int, predicted),
            _divide(right, predicted),
            _divide(right, gold),
            _divide(2 * right, gold + predicted),
            strict=True,
        )
        title = f"Classes of {self.task} ({self._short_model_names()[0]})"
        columns = ("label", "documents", "predicted", "precision", "recall", "F1")
        return Table(title, columns, rows)

    def _confusion_table(self) -> Table:
        counts = self.confusion.astype(int)
        rows = zip(self.labels, *counts.T, strict=True)
        title = (
            f"Confusion on {self.task} ({self._short_model_names()[0]}): "
            "rows are true labels, columns predictions"
        )
        return Table(title, ("true", *self.labels), rows)

    def charts(self) -> Sequence[Chart]:
        """Return accuracy beside the baselines, and the confusion of the best model."""
        names = (*self._short_model_names(), *self.baselines)
        accuracies = [test.accuracy for test in self.models]
        accuracies += [measured["acc"] for measured in self.baselines.values()]
        documents_by_label = self.confusion.sum(axis=1, keepdims=True)
        accuracy_chart = Bars(
            f"classification-{self.task}",
            f"Accuracy on {self.task}",
            "Models, and below them what needs no language model.",
            names,
            {"accuracy": accuracies},
            y_label="accuracy",
        )
        confusion_chart = Heatmap(
            f"confusion-{self.task}",
            f"What {names[0]} takes for what on {self.task}",
            "Share of the documents of each true label (rows) by predicted label (columns).",
            rows=self.labels,
            columns=self.labels,
            values=self.confusion / np.maximum(documents_by_label, 1),
            low=0.0,
            high=1.0,
        )
        return [accuracy_chart, confusion_chart]

    def sentences(self) -> list[str]:
        """Say whether the best model beats what needs no language model, and which models to distrust."""
        test_by_name = dict(zip(self._short_model_names(), self.models, strict=True))
        sentences = []
        if TFIDF in self.baselines:
            best_name = next(iter(test_by_name))
            sentences.append(_compare_with_tfidf(best_name, self.models[0], self.baselines[TFIDF]))
        majority = self.baselines.get(MAJORITY, {})
        below = [
            name
            for name, test in test_by_name.items()
            if _compare_accuracy(test, majority).high < 0
        ]
        if below:
            verb = "scores" if len(below) == 1 else "score"
            sentences.append(
                f"{join_names(below)} {verb} less than always answering the most frequent label "
                f"({majority['acc']:.3f}): the tuning, the labels or the prompt may be wrong."
            )
        for name, test in test_by_name.items():
            if test.constant is not None:
                sentences.append(
                    f"{name} answers {test.constant!r} to nearly every document of {self.task}."
                )
            if test.unknown >= MIN_UNKNOWN_SHARE:
                sentences.append(
                    f"{name} reads {test.unknown:.0%} of the tokens of {self.task} as unknown."
                )
        return sentences


def _divide(part: Floats, total: Floats) -> list[float]:
    """Return shares; NaN where the total is zero."""
    unknown = np.full(len(total), np.nan)
    return [float(share) for share in np.divide(part, total, out=unknown, where=total > 0)]


@dataclass(frozen=True)
class AccuracyGap:
    """By how much a model is ahead, with its 95 % interval; NaN where it is not known."""

    value: float
    low: float
    high: float


def _compare_accuracy(test: LabelledTest, baseline: Mapping[str, float]) -> AccuracyGap:
    gap = test.accuracy - baseline.get("acc", math.nan)
    half_width = 1.96 * math.hypot(test.stderr, baseline.get("stderr", math.nan))
    return AccuracyGap(gap, gap - half_width, gap + half_width)


def _compare_with_tfidf(name: str, test: LabelledTest, baseline: Mapping[str, float]) -> str:
    gap = _compare_accuracy(test, baseline)
    scores = f"{name} scores {test.accuracy:.3f}"
    if gap.low > 0:
        return (
            f"{scores}, {gap.value:.3f} more than {TFIDF} "
            f"(95 % interval {gap.low:.3f} to {gap.high:.3f})."
        )
    relation = "less than" if gap.high < 0 else "not surely more than"
    difference = (
        f"{baseline['acc']:.3f}; difference {gap.value:+.3f}, "
        f"95 % interval {gap.low:+.3f} to {gap.high:+.3f}"
    )
    return (
        f"{scores}, {relation} {TFIDF} on the same split ({difference}). "
        "That classifier costs next to nothing and may do."
    )


# --- from evidence ---------------------------------------------------------------------------------------------------


def find_classification(evidence: Evidence, *, best: str | None = None) -> list[Classification]:
    """Return the tests on labelled texts of one's own, under the protocol that ranks; ``best`` where it is chosen."""
    tasks: set[str] = set()
    for study in map(parse_study_record, evidence.studies):
        if study is not None:
            tasks |= _list_own_tasks(study)
    if not tasks or evidence.main is None:
        return []
    cells_by_task: dict[str, list[CellRecord]] = {}
    for cell in evidence.cells():
        if cell.task in tasks:
            cells_by_task.setdefault(cell.task, []).append(cell)
    classifications = []
    for task, cells in cells_by_task.items():
        classification = _classify_task(evidence, task, cells, best)
        if classification is not None:
            classifications.append(classification)
    return classifications


def _list_own_tasks(study: Study) -> set[str]:
    """Return the tasks of a study that are made of a user's files or data sets."""
    own_tasks = set()
    for task in study.benchmarks():
        is_path = bool({".", "/"} & set(task.name))
        if task.file or task.dataset or is_path:
            own_tasks.add(task.name)
    return own_tasks


def _classify_task(
    evidence: Evidence, task: str, cells: Sequence[CellRecord], best: str | None
) -> Classification | None:
    """Return one test on labelled texts, the best model first; None where its cells have no labels."""
    ranked = [cell for cell in cells if cell.protocol == evidence.main]
    labels = _find_labels(ranked)
    ranked = [cell for cell in ranked if set(METRICS) <= set(cell.scores)]
    if not labels or not ranked:
        return None
    ranked.sort(key=lambda cell: (cell.model != best, -cell.scores["acc"].value, cell.model))
    direct_accuracy = {
        cell.model: cell.scores["acc"].value
        for cell in cells
        if cell.protocol == DIRECT and "acc" in cell.scores
    }
    label_by_answer = {answer: label for label, answer in labels.items()}
    counts_by_model = {
        cell.model: _count_labels(evidence.items(cell.key), label_by_answer) for cell in ranked
    }
    best_cell = ranked[0]
    best_counts = counts_by_model[best_cell.model]
    confusion = [[best_counts[gold, predicted] for predicted in labels] for gold in labels]
    tests = [
        _make_labelled_test(cell, direct_accuracy, counts_by_model[cell.model]) for cell in ranked
    ]
    return Classification(
        task=task,
        protocol=str(evidence.main),
        labels=tuple(labels),
        models=tuple(tests),
        baselines=best_cell.provenance.task.baselines,
        confusion=np.array(confusion, dtype=np.float64),
        documents=best_cell.scores["acc"].n,
    )


def _find_labels(cells: Sequence[CellRecord]) -> Mapping[str, str] | None:
    """Return the labels of a task with the answers that stand for them, from the first cell that has them."""
    for cell in cells:
        if cell.provenance.task.labels:
            return cell.provenance.task.labels
    return None


def _make_labelled_test(
    cell: CellRecord, direct_accuracy: Mapping[str, float], counts: LabelCounts
) -> LabelledTest:
    accuracy, macro_f1, balanced_accuracy = (cell.scores[name].value for name in METRICS)
    return LabelledTest(
        model=cell.model,
        scores=(accuracy, macro_f1, balanced_accuracy),
        stderr=cell.scores["acc"].stderr,
        direct=direct_accuracy.get(cell.model, math.nan),
        constant=_find_constant_answer(counts),
        unknown=cell.provenance.task.unknown_tokens,
    )


def _count_labels(items: Sequence[ItemOutcome], label_by_answer: Mapping[str, str]) -> LabelCounts:
    """Count the documents by true and by predicted label."""
    counts: LabelCounts = Counter()
    for item in items:
        gold = label_by_answer.get(item.gold, item.gold)
        predicted = label_by_answer.get(item.prediction, item.prediction)
        counts[gold, predicted] += 1
    return counts


def _find_constant_answer(counts: LabelCounts) -> str | None:
    """Return the label that is nearly always answered where the truth is more than that."""
    gold_counts = Counter[str]()
    predicted_counts = Counter[str]()
    for (gold, predicted), documents in counts.items():
        gold_counts[gold] += documents
        predicted_counts[predicted] += documents
    total = predicted_counts.total()
    if total < MIN_ANSWERS:
        return None
    label, documents = predicted_counts.most_common(1)[0]
    is_constant = documents >= CONSTANT_SHARE * total
    is_truth_mixed = gold_counts[label] < 0.9 * total
    return label if is_constant and is_truth_mixed else None
