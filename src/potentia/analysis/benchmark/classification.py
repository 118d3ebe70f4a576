"""Labelled texts: what each class gets right, what is taken for what, and whether a language model was needed at all.

Beside every model stand two that cost nothing: the most frequent class and a linear classifier on words, both taught
on the same training documents and tested on the same test. Of a task in folds the scores are means over its folds,
weighted by their documents.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from potentia.analysis.wording import join_names
from potentia.evidence import Evidence, parse_study_record
from potentia.values.findings import Bars, Cell, Chart, Finding, Heatmap, Table, short_names
from potentia.values.protocol import DIRECT, TaskName
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
FROZEN = "frozen embeddings"
EMBEDDINGS = "embeddings"  # ends the name of a selection's study of classifiers on embeddings
METRICS = ("acc", "macro_f1", "balanced_accuracy")
METRIC_NAMES = ("accuracy", "macro-F1", "balanced accuracy")


class BaselineVerdict(StrEnum):
    """How the best model stands beside the best of what is cheap."""

    BEATS = "beats"  # significantly better
    TIES = "ties"  # better, and not significantly
    LOSES = "loses"  # not better


@dataclass(frozen=True)
class LabelledTest:
    """One model's test on labelled texts, under the protocol that ranks."""

    model: str
    scores: tuple[float, float, float]  # accuracy, macro-F1, balanced accuracy
    stderr: float  # of the accuracy
    direct: float  # accuracy before tuning; NaN where not measured
    constant: str | None  # the label that it answers always
    unknown: float  # share of unknown tokens in the texts
    frozen: Mapping[str, float] = field(default_factory=dict)  # a classifier on its embeddings

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
        columns: tuple[str, ...] = ("model", *METRIC_NAMES, "accuracy before fine-tuning")
        rows: list[tuple[Cell, ...]] = []
        for name, test in zip(self._short_model_names(), self.models, strict=True):
            rows.append((name, *test.scores, test.direct))
        for name, measured in self._cheap_scores().items():
            scores = [measured.get(metric, math.nan) for metric in METRICS]
            rows.append((name, *scores, math.nan))
        if all(math.isnan(test.direct) for test in self.models):
            columns = columns[:-1]
            rows = [row[:-1] for row in rows]
        title = f"{self.task}: {len(self.labels)} labels, {self.documents} tested examples"
        note = "Macro-F1 and balanced accuracy count every class the same, however rare."
        if self.baselines:
            note += " The last rows need no fine-tuning."
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
        names = (*self._short_model_names(), *self._cheap_scores())
        accuracies = [test.accuracy for test in self.models]
        accuracies += [measured["acc"] for measured in self._cheap_scores().values()]
        documents_by_label = self.confusion.sum(axis=1, keepdims=True)
        accuracy_chart = Bars(
            f"classification-{self.task}",
            f"Accuracy on {self.task}",
            "Models, and below them what needs no fine-tuning.",
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

    @property
    def best_baseline(self) -> str | None:
        """The best of what is cheap: words, or the embeddings of a model, with logistic regression."""
        scores = {
            name: measured["acc"]
            for name, measured in self._cheap_scores().items()
            if math.isfinite(measured.get("acc", math.nan))
        }
        return max(scores, key=lambda name: scores[name]) if scores else None

    def _cheap_scores(self) -> dict[str, Mapping[str, float]]:
        """Return the scores of all that is cheap, by name; of embeddings the best ones."""
        scores: dict[str, Mapping[str, float]] = dict(self.baselines)
        frozen = [test for test in self.models if test.frozen]
        if frozen:
            best = max(frozen, key=lambda test: test.frozen["acc"])
            (name,) = short_names([best.model])
            scores[f"{FROZEN} of {name} + logistic regression"] = best.frozen
        return scores

    @property
    def verdict(self) -> BaselineVerdict | None:
        """Whether the best model beats the best of what is cheap; None where nothing cheap was measured."""
        if self.best_baseline is None:
            return None
        gap = _compare_accuracy(self.models[0], self._cheap_scores()[self.best_baseline])
        if gap.low > 0:
            return BaselineVerdict.BEATS
        return BaselineVerdict.TIES if gap.value > 0 else BaselineVerdict.LOSES

    def verdict_sentence(self) -> str:
        """Say whether a language model is worth it; empty where nothing cheap was measured."""
        verdict = self.verdict
        baseline = self.best_baseline
        if verdict is None or baseline is None:
            return ""
        measured = self._cheap_scores()[baseline]
        name = self._short_model_names()[0]
        best = self.models[0].accuracy
        scores = f"{measured['acc']:.2f} against {best:.2f}"
        if verdict is BaselineVerdict.LOSES:
            subject = (
                "None of the candidates beats" if len(self.models) > 1 else f"{name} does not beat"
            )
            return f"{subject} {baseline} ({scores}). Use that."
        gap = _compare_accuracy(self.models[0], measured)
        interval = f"95 % interval {gap.low:+.3f} to {gap.high:+.3f}"
        if verdict is BaselineVerdict.TIES:
            return (
                f"{name} is not significantly better than {baseline} ({best:.2f} against"
                f" {measured['acc']:.2f}, difference {gap.value:+.3f}, {interval}), which costs next to nothing."
            )
        return (
            f"{name} beats {baseline} ({best:.2f} against {measured['acc']:.2f},"
            f" difference {gap.value:+.3f}, {interval})."
        )

    def sentences(self) -> list[str]:
        """Say whether the best model beats what needs no language model, and which models to distrust."""
        test_by_name = dict(zip(self._short_model_names(), self.models, strict=True))
        sentences = []
        if self.verdict is not None:
            sentences.append(self.verdict_sentence())
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
            cells_by_task.setdefault(TaskName(cell.task).whole, []).append(cell)
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
    cells_by_model: dict[str, list[CellRecord]] = {}
    for cell in ranked:
        if set(METRICS) <= set(cell.scores):
            cells_by_model.setdefault(cell.model, []).append(cell)
    if not labels or not cells_by_model:
        return None
    direct_cells: dict[str, list[CellRecord]] = {}
    for cell in cells:
        if cell.protocol == DIRECT and "acc" in cell.scores:
            direct_cells.setdefault(cell.model, []).append(cell)
    embedding_cells = _read_embedding_cells(evidence, {cell.task for cell in ranked})
    label_by_answer = {answer: label for label, answer in labels.items()}
    counts_by_model: dict[str, LabelCounts] = {}
    tests = []
    for model, model_cells in cells_by_model.items():
        counts: LabelCounts = Counter()
        for cell in model_cells:
            counts += _count_labels(evidence.items(cell.key), label_by_answer)
        counts_by_model[model] = counts
        test = _make_labelled_test(model_cells, direct_cells.get(model, ()), counts)
        frozen_cells = embedding_cells.get(model, ())
        if len(frozen_cells) == len(model_cells):
            test = replace(test, frozen=_join_cells(frozen_cells))
        tests.append(test)
    tests.sort(key=lambda test: (test.model != best, -test.accuracy, test.model))
    best_counts = counts_by_model[tests[0].model]
    best_cells = cells_by_model[tests[0].model]
    confusion = [[best_counts[gold, predicted] for predicted in labels] for gold in labels]
    return Classification(
        task=task,
        protocol=str(evidence.main),
        labels=tuple(labels),
        models=tuple(tests),
        baselines=_join_baselines(best_cells),
        confusion=np.array(confusion, dtype=np.float64),
        documents=sum(cell.scores["acc"].n for cell in best_cells),
    )


def _join_baselines(cells: Sequence[CellRecord]) -> dict[str, dict[str, float]]:
    """Return the baselines over all folds."""
    return {name: _join_baseline(cells, name) for name in cells[0].provenance.task.baselines}


def _join_baseline(cells: Sequence[CellRecord], name: str) -> dict[str, float]:
    """Return the scores of one baseline over all folds: means by documents, and the error of such a mean."""
    measured = [cell.provenance.task.baselines.get(name) for cell in cells]
    if not all(measured):
        return {}
    weights = _weigh_by_documents(cells)
    joined = {}
    for metric in METRICS:
        joined[metric] = sum(
            weight * (scores or {}).get(metric, math.nan)
            for weight, scores in zip(weights, measured, strict=True)
        )
    errors = [(scores or {}).get("stderr", math.nan) for scores in measured]
    joined["stderr"] = math.hypot(*(w * e for w, e in zip(weights, errors, strict=True)))
    return joined


def _read_embedding_cells(
    evidence: Evidence, tasks: Collection[str]
) -> dict[str, list[CellRecord]]:
    """Return the results of classifiers on embeddings, by model, where the store is that of a selection."""
    cells_by_model: dict[str, list[CellRecord]] = {}
    if not evidence.studies:
        return cells_by_model
    selection_name = evidence.studies[-1].name.rpartition("-")[0].removesuffix("-round")
    for store, _ in evidence.open_stores():
        name = f"{selection_name}-{EMBEDDINGS}"
        keys = [record.key for record in store.studies.read() if record.name == name]
        for cell in store.cells.read(study=keys[-1]) if keys else ():
            if cell.task in tasks:
                cells_by_model.setdefault(cell.model, []).append(cell)
    return cells_by_model


def _join_cells(cells: Sequence[CellRecord]) -> dict[str, float]:
    """Return the scores of a baseline's cells over all folds, with the error of the accuracy."""
    weights = _weigh_by_documents(cells)
    errors = [cell.scores["acc"].stderr for cell in cells]
    joined = {metric: _mean_over_folds(cells, metric) for metric in METRICS}
    joined["stderr"] = math.hypot(*(w * e for w, e in zip(weights, errors, strict=True)))
    return joined


def _weigh_by_documents(cells: Sequence[CellRecord]) -> list[float]:
    counts = [cell.scores["acc"].n for cell in cells]
    return [count / sum(counts) for count in counts]


def _mean_over_folds(cells: Sequence[CellRecord], metric: str) -> float:
    weights = _weigh_by_documents(cells)
    values = [cell.scores[metric].value for cell in cells]
    return sum(weight * value for weight, value in zip(weights, values, strict=True))


def _find_labels(cells: Sequence[CellRecord]) -> Mapping[str, str] | None:
    """Return the labels of a task with the answers that stand for them, from the first cell that has them."""
    for cell in cells:
        if cell.provenance.task.labels:
            return cell.provenance.task.labels
    return None


def _make_labelled_test(
    cells: Sequence[CellRecord], direct_cells: Sequence[CellRecord], counts: LabelCounts
) -> LabelledTest:
    accuracy, macro_f1, balanced_accuracy = (_mean_over_folds(cells, name) for name in METRICS)
    weights = _weigh_by_documents(cells)
    errors = [cell.scores["acc"].stderr for cell in cells]
    return LabelledTest(
        model=cells[0].model,
        scores=(accuracy, macro_f1, balanced_accuracy),
        stderr=math.hypot(*(w * e for w, e in zip(weights, errors, strict=True))),
        direct=_mean_over_folds(direct_cells, "acc") if direct_cells else math.nan,
        constant=_find_constant_answer(counts),
        unknown=max(cell.provenance.task.unknown_tokens for cell in cells),
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
