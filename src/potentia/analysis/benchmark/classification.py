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
from potentia.evidence import Evidence, study_of
from potentia.values.findings import Bars, Cell, Chart, Finding, Heatmap, Table, short_names
from potentia.values.provenance import TaskProvenance
from potentia.values.scores import Floats, ItemOutcome

if TYPE_CHECKING:
    from potentia.store import CellRecord

Answers = Counter[tuple[str, str]]  # documents by true and predicted label

MAJORITY, TFIDF = "majority class", "TF-IDF + logistic regression"
CONSTANT = 0.98  # share of one answer from which a model is said to answer always the same
UNKNOWN = 0.05  # share of tokens that the tokenizer does not know, from which it is told
METRICS = ("acc", "macro_f1", "balanced_accuracy")
NAMES = ("accuracy", "macro-F1", "balanced accuracy")


@dataclass(frozen=True)
class Labelled:
    """One model's test on labelled texts, under the protocol that ranks."""

    model: str
    scores: tuple[float, float, float]  # accuracy, macro-F1, balanced accuracy
    stderr: float  # of the accuracy
    direct: float  # accuracy before tuning; NaN where not measured
    constant: str | None  # the label that it answers always
    unknown: float  # share of unknown tokens in the texts


@dataclass(frozen=True)
class Classification(Finding):
    """A test on labelled texts: models beside baselines, and the classes of the best model."""

    task: str
    protocol: str
    labels: tuple[str, ...]
    models: tuple[Labelled, ...]  # the best first
    baselines: Mapping[str, Mapping[str, float]]
    confusion: Floats  # (gold, predicted) counts of the best model
    documents: int

    def tables(self) -> Sequence[Table]:
        """Return models beside baselines, the classes of the best model, and what it takes for what."""
        names = short_names([one.model for one in self.models])
        rows: list[tuple[Cell, ...]] = [
            (n, *one.scores, one.direct) for n, one in zip(names, self.models, strict=True)
        ]
        rows += [
            (name, *(of.get(m, math.nan) for m in METRICS), math.nan)
            for name, of in self.baselines.items()
        ]
        columns: tuple[str, ...] = ("model", *NAMES, "accuracy, direct")
        if all(math.isnan(one.direct) for one in self.models):
            columns, rows = columns[:-1], [row[:-1] for row in rows]
        title = f"{self.task}: {len(self.labels)} labels, {self.documents} test documents"
        note = "Macro-F1 and balanced accuracy count every class the same, however rare."
        note += " The last rows need no language model." if self.baselines else ""
        gold, given, right = (
            self.confusion.sum(axis=1),
            self.confusion.sum(axis=0),
            np.diag(self.confusion),
        )
        shares = (_ratio(right, given), _ratio(right, gold), _ratio(2 * right, gold + given))
        classes = zip(self.labels, map(int, gold), map(int, given), *shares, strict=True)
        counts = self.confusion.astype(int)
        heads = ("label", "documents", "predicted", "precision", "recall", "F1")
        confusion = (
            f"Confusion on {self.task} ({names[0]}): rows are true labels, columns predictions"
        )
        return [
            Table(title, columns, rows, note),
            Table(f"Classes of {self.task} ({names[0]})", heads, classes),
            Table(confusion, ("true", *self.labels), zip(self.labels, *counts.T, strict=True)),
        ]

    def charts(self) -> Sequence[Chart]:
        """Return accuracy beside the baselines, and the confusion of the best model."""
        names = (*short_names([one.model for one in self.models]), *self.baselines)
        bars = {
            "accuracy": [one.scores[0] for one in self.models]
            + [of["acc"] for of in self.baselines.values()]
        }
        caption = "Models, and below them what needs no language model."
        shares = self.confusion / np.maximum(self.confusion.sum(axis=1, keepdims=True), 1)
        title = f"What {names[0]} takes for what on {self.task}"
        why = "Share of the documents of each true label (rows) by predicted label (columns)."
        place, labels = f"confusion-{self.task}", self.labels
        return [
            Bars(
                f"classification-{self.task}",
                f"Accuracy on {self.task}",
                caption,
                names,
                bars,
                y_label="accuracy",
            ),
            Heatmap(place, title, why, labels, labels, shares, low=0.0, high=1.0),
        ]

    def sentences(self) -> list[str]:
        """Say whether the best model beats what needs no language model, and which models to distrust."""
        said = []
        named = dict(zip(short_names([one.model for one in self.models]), self.models, strict=True))
        if TFIDF in self.baselines:
            said.append(_beside(next(iter(named)), self.models[0], TFIDF, self.baselines[TFIDF]))
        floor = self.baselines.get(MAJORITY, {})
        below = [name for name, one in named.items() if _difference(one, floor)[1] < 0]
        if below:
            less = f"{join_names(below)} score{'s' if len(below) == 1 else ''} less than always answering"
            most = f"the most frequent label ({floor['acc']:.3f})"
            said.append(f"{less} {most}: the tuning, the labels or the prompt may be wrong.")
        for name, one in named.items():
            if one.constant is not None:
                said.append(
                    f"{name} answers {one.constant!r} to nearly every document of {self.task}."
                )
            if one.unknown >= UNKNOWN:
                said.append(
                    f"{name} reads {one.unknown:.0%} of the tokens of {self.task} as unknown."
                )
        return said


def _ratio(part: Floats, whole: Floats) -> list[float]:
    return [
        float(x) for x in np.divide(part, whole, out=np.full(len(whole), np.nan), where=whole > 0)
    ]


def _difference(one: Labelled, other: Mapping[str, float]) -> tuple[float, float, float]:
    """Return by how much a model is ahead: (low, high, value) of a 95 % interval; NaN where it is not known."""
    gap = one.scores[0] - other.get("acc", math.nan)
    half = 1.96 * math.hypot(one.stderr, other.get("stderr", math.nan))
    return gap - half, gap + half, gap


def _beside(name: str, one: Labelled, other: str, measured: Mapping[str, float]) -> str:
    low, high, gap = _difference(one, measured)
    scores = f"{name} scores {one.scores[0]:.3f}"
    if low > 0:
        return f"{scores}, {gap:.3f} more than {other} (95 % interval {low:.3f} to {high:.3f})."
    sure = "less than" if high < 0 else "not surely more than"
    between = (
        f"{measured['acc']:.3f}; difference {gap:+.3f}, 95 % interval {low:+.3f} to {high:+.3f}"
    )
    return f"{scores}, {sure} {other} on the same split ({between}). That classifier costs next to nothing and may do."


def find_classification(evidence: Evidence, *, best: str | None = None) -> list[Classification]:
    """Return the tests on labelled texts of one's own, under the protocol that ranks; ``best`` where it is chosen."""
    own = set()
    for study in filter(None, map(study_of, evidence.studies)):
        own |= {
            task.name
            for task in study.benchmarks()
            if task.file or task.dataset or {".", "/"} & set(task.name)
        }
    if not own or evidence.main is None:
        return []
    by_task: dict[str, list[CellRecord]] = {}
    for cell in evidence.cells():
        if cell.task in own:
            by_task.setdefault(cell.task, []).append(cell)
    found = (_classified(evidence, task, cells, best) for task, cells in by_task.items())
    return [one for one in found if one is not None]


def _classified(
    evidence: Evidence, task: str, cells: Sequence[CellRecord], best: str | None
) -> Classification | None:
    """Return one test on labelled texts, the best model first; None where its cells have no labels."""
    ranked = [cell for cell in cells if cell.protocol == evidence.main]
    labels = next(filter(None, (_task(cell).labels for cell in ranked)), None)
    ranked = [cell for cell in ranked if set(METRICS) <= set(cell.scores)]
    if not labels or not ranked:
        return None
    ranked.sort(key=lambda cell: (cell.model != best, -cell.scores["acc"].value, cell.model))
    direct = {
        c.model: c.scores["acc"].value
        for c in cells
        if c.protocol == "direct" and "acc" in c.scores
    }
    words = {said: raw for raw, said in labels.items()}
    answers = {cell.model: _answers(evidence.items(cell.key), words) for cell in ranked}
    first, counts = ranked[0], answers[ranked[0].model]
    return Classification(
        task=task,
        protocol=str(evidence.main),
        labels=tuple(labels),
        models=tuple(_labelled(cell, direct, answers[cell.model]) for cell in ranked),
        baselines=_task(first).baselines,
        confusion=np.array(
            [[counts[gold, given] for given in labels] for gold in labels], dtype=np.float64
        ),
        documents=first.scores["acc"].n,
    )


def _labelled(cell: CellRecord, direct: Mapping[str, float], answers: Answers) -> Labelled:
    accuracy, macro_f1, balanced = (cell.scores[name].value for name in METRICS)
    unknown = _task(cell).unknown_tokens
    error, before = cell.scores["acc"].stderr, direct.get(cell.model, math.nan)
    return Labelled(
        cell.model, (accuracy, macro_f1, balanced), error, before, _constant(answers), unknown
    )


def _task(cell: CellRecord) -> TaskProvenance:
    return cell.provenance.task


def _answers(items: Sequence[ItemOutcome], words: Mapping[str, str]) -> Answers:
    """Count the documents by true and by predicted label."""
    return Counter(
        (words.get(one.gold, one.gold), words.get(one.prediction, one.prediction)) for one in items
    )


def _constant(answers: Answers) -> str | None:
    """Return the label that is nearly always answered where the truth is more than that."""
    gold, given = Counter[str](), Counter[str]()
    for (right, said), times in answers.items():
        gold[right] += times
        given[said] += times
    if given.total() < 10:
        return None
    label, times = given.most_common(1)[0]
    return (
        label if times >= CONSTANT * given.total() and gold[label] < 0.9 * given.total() else None
    )
