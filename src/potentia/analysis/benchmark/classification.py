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
from scipy.stats import norm

from potentia.analysis.wording import format_difference, format_range, join_names
from potentia.evidence import Evidence, parse_study_record
from potentia.values.baselines import Baseline
from potentia.values.findings import Bars, Chart, Finding, Heatmap, Table, TableValue, short_names
from potentia.values.protocol import DIRECT, TaskName
from potentia.values.scores import Floats, ItemOutcome
from potentia.values.selection_studies import SelectionPart, SelectionStudy

if TYPE_CHECKING:
    from potentia.store import CellRecord
    from potentia.study import Study

LabelCounts = Counter[tuple[str, str]]  # documents by true and predicted label

CONSTANT_SHARE = 0.98  # of one answer, from which a model is said to answer always the same
MIN_UNKNOWN_SHARE = 0.05  # of tokens that the tokenizer does not know, from which it is told
MIXED_SHARE = 0.9  # of one gold label, below which the gold labels count as varied
MIN_ANSWERS = 10  # from which a constant answer is looked for
FEWEST_EXAMPLES = 10  # tested, from which on a model is compared with what is cheap
METRICS = ("acc", "macro_f1", "balanced_accuracy")
METRIC_NAMES = ("accuracy", "macro-F1", "balanced accuracy")


class BaselineVerdict(StrEnum):
    """How the best model stands beside the best of what is cheap."""

    BEATS = "beats"  # significantly better
    TIES = "ties"  # better, and not significantly
    LOSES = "loses"  # not better
    UNKNOWN = "unknown"  # too few tested examples to say


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
    baselines: Mapping[Baseline, Mapping[str, float]]
    confusion: Floats  # (gold, predicted) counts of the best model
    documents: int
    folds: int = 1

    def _short_model_names(self) -> list[str]:
        return short_names([labelled_test.model for labelled_test in self.models])

    def tables(self) -> Sequence[Table]:
        """Return models beside baselines, the classes of the best model, and what it takes for what."""
        return [self._model_table(), self._class_table(), self._confusion_table()]

    def _model_table(self) -> Table:
        column_names: tuple[str, ...] = ("model", *METRIC_NAMES, "accuracy before fine-tuning")
        table_rows: list[tuple[TableValue, ...]] = []
        for model_name, labelled_test in zip(self._short_model_names(), self.models, strict=True):
            table_rows.append((model_name, *labelled_test.scores, labelled_test.direct))
        for baseline, measured in self._cheap_scores().items():
            scores = [measured.get(metric, math.nan) for metric in METRICS]
            table_rows.append((self.label_baseline(baseline), *scores, math.nan))
        if all(math.isnan(labelled_test.direct) for labelled_test in self.models):
            column_names = column_names[:-1]
            table_rows = [row[:-1] for row in table_rows]
        title = f"{self.task}: {len(self.labels)} labels, {self.documents} tested examples"
        note = "Macro-F1 and balanced accuracy count every class the same, however rare."
        if self.folds > 1:
            note += f" All scores are means over {self.folds} folds; the classes below are counted over all of them."
        if self.baselines:
            note += " The last rows need no fine-tuning."
        return Table(title, column_names, table_rows, note)

    def _class_table(self) -> Table:
        gold = self.confusion.sum(axis=1)
        predicted = self.confusion.sum(axis=0)
        right = np.diag(self.confusion)
        table_rows = zip(
            self.labels,
            map(int, gold),
            map(int, predicted),
            _divide(right, predicted),
            _divide(right, gold),
            _divide(2 * right, gold + predicted),
            strict=True,
        )
        title = f"Classes of {self.task} ({self._short_model_names()[0]})"
        column_names = ("label", "examples", "predicted", "precision", "recall", "F1")
        return Table(title, column_names, table_rows)

    def _confusion_table(self) -> Table:
        counts = self.confusion.astype(int)
        table_rows = zip(self.labels, *counts.T, strict=True)
        title = (
            f"Confusion on {self.task} ({self._short_model_names()[0]}): "
            "rows are true labels, columns predictions"
        )
        return Table(title, ("true", *self.labels), table_rows)

    def charts(self) -> Sequence[Chart]:
        """Return accuracy beside the baselines, and the confusion of the best model."""
        cheap_scores = self._cheap_scores()
        names = (*self._short_model_names(), *map(self.label_baseline, cheap_scores))
        accuracies = [labelled_test.accuracy for labelled_test in self.models]
        accuracies += [measured["acc"] for measured in cheap_scores.values()]
        documents_by_label = self.confusion.sum(axis=1, keepdims=True)
        accuracy_chart = Bars(
            f"classification-{self.task}",
            f"Accuracy on {self.task}",
            "Models, and below them what needs no fine-tuning.",
            names,
            {"accuracy": accuracies},
            y_label="accuracy",
        )
        values = self.confusion / np.maximum(documents_by_label, 1)
        confusion_chart = Heatmap(
            f"confusion-{self.task}",
            f"What {names[0]} takes for what on {self.task}",
            "Share of the examples of each true label (rows) by predicted label (columns).",
            rows=self.labels,
            columns=self.labels,
            values=values,
            low=0.0,
            high=1.0,
        )
        return [accuracy_chart, confusion_chart]

    @property
    def best_baseline(self) -> Baseline | None:
        """The best of what is cheap: words, or the embeddings of a model, with logistic regression."""
        scores = {
            baseline: measured["acc"]
            for baseline, measured in self._cheap_scores().items()
            if math.isfinite(measured.get("acc", math.nan))
        }
        return max(scores, key=lambda baseline: scores[baseline]) if scores else None

    @property
    def best_baseline_score(self) -> float | None:
        """Its accuracy."""
        baseline = self.best_baseline
        return None if baseline is None else self._cheap_scores()[baseline]["acc"]

    @property
    def best_embedding_model(self) -> str | None:
        """The model whose frozen embeddings are the best of what is cheap; None where something else is."""
        best_frozen = self._best_embeddings()
        if best_frozen is None or self.best_baseline is not Baseline.EMBEDDINGS:
            return None
        return best_frozen.model

    @property
    def best_baseline_label(self) -> str:
        """The best of what is cheap as people read it; empty where nothing cheap was measured."""
        baseline = self.best_baseline
        return "" if baseline is None else self.label_baseline(baseline)

    def label_baseline(self, baseline: Baseline) -> str:
        """Return a baseline as people read it: of embeddings, also whose they are."""
        best_frozen = self._best_embeddings()
        if baseline is not Baseline.EMBEDDINGS or best_frozen is None:
            return baseline.label
        (model_name,) = short_names([best_frozen.model])
        return f"frozen embeddings of {model_name} + logistic regression"

    def _best_embeddings(self) -> LabelledTest | None:
        """Return the candidate with the best classifier on its embeddings; None where none was measured."""
        frozen = [labelled_test for labelled_test in self.models if labelled_test.frozen]
        return max(frozen, key=lambda labelled_test: labelled_test.frozen["acc"], default=None)

    def _cheap_scores(self) -> dict[Baseline, Mapping[str, float]]:
        """Return the scores of all that is cheap; of embeddings the best ones."""
        scores = dict(self.baselines)
        best_frozen = self._best_embeddings()
        if best_frozen is not None:
            scores[Baseline.EMBEDDINGS] = best_frozen.frozen
        return scores

    @property
    def verdict(self) -> BaselineVerdict | None:
        """Whether the best model beats the best of what is cheap; None where nothing cheap was measured."""
        if self.best_baseline is None:
            return None
        if self.documents < FEWEST_EXAMPLES:
            return BaselineVerdict.UNKNOWN
        accuracy_gap = self._compare_accuracy(
            self.models[0], self._cheap_scores()[self.best_baseline]
        )
        if accuracy_gap.low > 0:
            return BaselineVerdict.BEATS
        return BaselineVerdict.TIES if accuracy_gap.value > 0 else BaselineVerdict.LOSES

    def verdict_sentence(self) -> str:
        """Say whether a language model is worth it; empty where nothing cheap was measured."""
        verdict = self.verdict
        baseline = self.best_baseline
        if verdict is None or baseline is None:
            return ""
        measured = self._cheap_scores()[baseline]
        model_name = self._short_model_names()[0]
        best_accuracy = self.models[0].accuracy
        label = self.label_baseline(baseline)
        scores = f"{measured['acc']:.2f} against {best_accuracy:.2f}"
        if verdict is BaselineVerdict.UNKNOWN:
            examples = f"{self.documents} tested examples are"
            if self.documents == 1:
                examples = "1 tested example is"
            return f"{examples} too few to say whether a candidate beats {label} ({scores}): label more rows."
        if verdict is BaselineVerdict.LOSES:
            subject = (
                "None of the candidates beats"
                if len(self.models) > 1
                else f"{model_name} does not beat"
            )
            if baseline is Baseline.MAJORITY:
                return (
                    f"{subject} always answering the most frequent label ({scores}), and no cheap classifier does:"
                    " label more rows, of the rare labels above all."
                )
            return f"{subject} {label} ({scores}). Use that."
        accuracy_gap = self._compare_accuracy(self.models[0], measured)
        difference = format_difference(accuracy_gap.value, in_points=True, sign=True)
        interval = self._describe_interval(accuracy_gap)
        if verdict is BaselineVerdict.TIES:
            return (
                f"{model_name} is not significantly better than {label} ({best_accuracy:.2f} against"
                f" {measured['acc']:.2f}, difference {difference}, {interval}), which needs no fine-tuning."
            )
        return (
            f"{model_name} beats {label} ({best_accuracy:.2f} against {measured['acc']:.2f},"
            f" difference {difference}, {interval})."
        )

    def _compare_accuracy(
        self, labelled_test: LabelledTest, baseline: Mapping[str, float]
    ) -> AccuracyGap:
        """Say by how much a model is ahead of a baseline.

        The best of several candidates is partly the best by luck, so its interval is one that holds for all of them.
        """
        gap = labelled_test.accuracy - baseline.get("acc", math.nan)
        error = math.hypot(labelled_test.stderr, baseline.get("stderr", math.nan))
        half_width = float(norm.ppf(1 - 0.025 / len(self.models))) * error
        return AccuracyGap(gap, gap - half_width, gap + half_width)

    @property
    def needs_no_fine_tuning(self) -> bool:
        """Whether a cheap classifier is as good as the best model, as far as the test can tell."""
        has_classifier = self.best_baseline is not Baseline.MAJORITY
        return has_classifier and self.verdict is BaselineVerdict.TIES

    def advise(self) -> str:
        """Say what to do where no model beats what is cheap."""
        if self.best_baseline is Baseline.MAJORITY:
            return "Label more rows, of the rare labels above all: nothing has learned to tell them apart."
        return f"Use {self.best_baseline_label}: no candidate does better."

    def _describe_interval(self, accuracy_gap: AccuracyGap) -> str:
        """Write the interval of a difference, or why there is none."""
        if math.isfinite(accuracy_gap.low):
            ends = format_range(accuracy_gap.low, accuracy_gap.high, in_points=True, sign=True)
            if len(self.models) > 1:
                return f"95 % interval for the best of {len(self.models)} {ends}"
            return f"95 % interval {ends}"
        return "its interval is not known"

    def sentences(self) -> list[str]:
        """Say whether the best model beats what needs no language model, and which models to distrust."""
        test_by_name = dict(zip(self._short_model_names(), self.models, strict=True))
        sentences = []
        if self.verdict is not None:
            sentences.append(self.verdict_sentence())
        majority = self.baselines.get(Baseline.MAJORITY, {})
        below = [
            model_name
            for model_name, labelled_test in test_by_name.items()
            if self._compare_accuracy(labelled_test, majority).high < 0
        ]
        if below:
            verb = "scores" if len(below) == 1 else "score"
            sentences.append(
                f"{join_names(below)} {verb} less than always answering the most frequent label "
                f"({majority['acc']:.3f}): the tuning, the labels or the prompt may be wrong."
            )
        for model_name, labelled_test in test_by_name.items():
            if labelled_test.constant is not None:
                sentences.append(
                    f"{model_name} answers {labelled_test.constant!r} to nearly every example of {self.task}."
                )
            if labelled_test.unknown >= MIN_UNKNOWN_SHARE:
                sentences.append(
                    f"{model_name} reads {labelled_test.unknown:.0%} of the tokens of {self.task} as unknown."
                )
        return sentences


def _divide(numerator: Floats, total: Floats) -> list[float]:
    """Return shares; NaN where the total is zero."""
    unknown = np.full(len(total), np.nan)
    return [float(share) for share in np.divide(numerator, total, out=unknown, where=total > 0)]


@dataclass(frozen=True)
class AccuracyGap:
    """By how much a model is ahead, with its 95 % interval among all candidates; NaN where it is not known."""

    value: float
    low: float
    high: float


# --- from evidence ---------------------------------------------------------------------------------------------------


def find_classification(
    evidence: Evidence, *, best_model: str | None = None
) -> list[Classification]:
    """Return the tests on one's own labelled texts, by the protocol that ranks.

    Args:
        evidence: Evidence, or anything that ``read`` accepts: a store, a table, a folder of results, a DataFrame.
        best_model: The model whose classes are shown; else the one that ranks first.

    Example:
        >>> potentia.find_classification("selected/select.db")[0].to_frame()
    """
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
        classification = _classify_task(evidence, task, cells, best_model)
        if classification is not None:
            classifications.append(classification)
    return classifications


def _list_own_tasks(study: Study) -> set[str]:
    """Return the tasks of a study that are made of a user's files or data sets."""
    own_tasks = set()
    for task in study.list_task_specs():
        is_path = bool({".", "/"} & set(task.name))
        if task.file or task.dataset or is_path:
            own_tasks.add(task.name)
    return own_tasks


def _classify_task(
    evidence: Evidence, task: str, cells: Sequence[CellRecord], best_model: str | None
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
        labelled_test = _make_labelled_test(model_cells, direct_cells.get(model, ()), counts)
        frozen_cells = embedding_cells.get(model, ())
        if len(frozen_cells) == len(model_cells):
            labelled_test = replace(labelled_test, frozen=_join_cells(frozen_cells))
        tests.append(labelled_test)
    tests.sort(
        key=lambda labelled_test: (
            labelled_test.model != best_model,
            -labelled_test.accuracy,
            labelled_test.model,
        )
    )
    best_cells = cells_by_model[tests[0].model]
    baselines = _join_baselines(best_cells)
    word_cells = embedding_cells.get(Baseline.TFIDF, ())
    if len(word_cells) == len(best_cells):  # taught more examples than the candidates
        baselines[Baseline.TFIDF] = _join_cells(word_cells)
    best_counts = counts_by_model[tests[0].model]
    confusion = []
    for gold in labels:
        confusion.append([best_counts[gold, predicted] for predicted in labels])
    documents = sum(cell.scores["acc"].n for cell in best_cells)
    return Classification(
        task=task,
        protocol=str(evidence.main),
        labels=tuple(labels),
        models=tuple(tests),
        baselines=baselines,
        confusion=np.array(confusion, dtype=np.float64),
        documents=documents,
        folds=len(best_cells),
    )


def _join_baselines(cells: Sequence[CellRecord]) -> dict[Baseline, dict[str, float]]:
    """Return the baselines over all folds."""
    return {
        baseline: _join_baseline(cells, baseline) for baseline in cells[0].provenance.task.baselines
    }


def _join_baseline(cells: Sequence[CellRecord], baseline: Baseline) -> dict[str, float]:
    """Return the scores of one baseline over all folds: means by documents, and the error of such a mean."""
    measured = [cell.provenance.task.baselines.get(baseline) for cell in cells]
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
    joined["stderr"] = math.hypot(
        *(weight * error for weight, error in zip(weights, errors, strict=True))
    )
    return joined


def _read_embedding_cells(
    evidence: Evidence, tasks: Collection[str]
) -> dict[str, list[CellRecord]]:
    """Return the results of classifiers on embeddings, by model, where the store is that of a selection."""
    cells_by_model: dict[str, list[CellRecord]] = {}
    if not evidence.studies:
        return cells_by_model
    latest = SelectionStudy.parse(evidence.studies[-1].name)
    if latest is None:
        return cells_by_model
    study_name = SelectionStudy(latest.selection, SelectionPart.EMBEDDINGS).name
    for store, _ in evidence.open_stores():
        study = store.studies.find_latest(study_name)
        for cell in store.cells.read(study=study.key) if study is not None else ():
            if cell.task in tasks:
                cells_by_model.setdefault(cell.model, []).append(cell)
    return cells_by_model


def _join_cells(cells: Sequence[CellRecord]) -> dict[str, float]:
    """Return the scores of a baseline's cells over all folds, with the error of the accuracy."""
    weights = _weigh_by_documents(cells)
    errors = [cell.scores["acc"].stderr for cell in cells]
    joined = {metric: _mean_over_folds(cells, metric) for metric in METRICS}
    joined["stderr"] = math.hypot(
        *(weight * error for weight, error in zip(weights, errors, strict=True))
    )
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
    accuracy, macro_f1, balanced_accuracy = (_mean_over_folds(cells, metric) for metric in METRICS)
    weights = _weigh_by_documents(cells)
    errors = [cell.scores["acc"].stderr for cell in cells]
    scores = (accuracy, macro_f1, balanced_accuracy)
    stderr = math.hypot(*(weight * error for weight, error in zip(weights, errors, strict=True)))
    direct = _mean_over_folds(direct_cells, "acc") if direct_cells else math.nan
    unknown = max(cell.provenance.task.unknown_tokens for cell in cells)
    return LabelledTest(
        model=cells[0].model,
        scores=scores,
        stderr=stderr,
        direct=direct,
        constant=_find_constant_answer(counts),
        unknown=unknown,
    )


def _count_labels(items: Sequence[ItemOutcome], label_by_answer: Mapping[str, str]) -> LabelCounts:
    """Count the documents by true and by predicted label."""
    counts: LabelCounts = Counter()
    for outcome in items:
        gold = label_by_answer.get(outcome.gold, outcome.gold)
        predicted = label_by_answer.get(outcome.prediction, outcome.prediction)
        counts[gold, predicted] += 1
    return counts


def _find_constant_answer(counts: LabelCounts) -> str | None:
    """Return the label that a model answers nearly always although the gold labels vary; None where there is none."""
    gold_counts = Counter[str]()
    predicted_counts = Counter[str]()
    for (gold, predicted), document_count in counts.items():
        gold_counts[gold] += document_count
        predicted_counts[predicted] += document_count
    total = predicted_counts.total()
    if total < MIN_ANSWERS:
        return None
    label, document_count = predicted_counts.most_common(1)[0]
    is_constant = document_count >= CONSTANT_SHARE * total
    gold_labels_vary = gold_counts[label] < MIXED_SHARE * total
    return label if is_constant and gold_labels_vary else None
