"""Labelled texts: what each class gets right, what is taken for what, and whether a language model was needed at all.

Beside every model stand two that cost nothing: the most frequent class and a linear classifier on words, both taught
on the same training documents and tested on the same test.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from potentia.analysis.rankings.sentences import listing
from potentia.evidence import Evidence, study_of
from potentia.values.findings import Bars, Cell, Chart, Finding, Heatmap, Table, short_names
from potentia.values.scores import Floats

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
            (name, *one.scores, one.direct) for name, one in zip(names, self.models, strict=True)
        ]
        rows += [(name, *(told.get(m, math.nan) for m in METRICS), None) for name, told in self.baselines.items()]
        best, shown = names[0], len(NAMES) + 1 + any(one.direct == one.direct for one in self.models)
        return [
            Table(
                f"{self.task}: {len(self.labels)} labels, {self.documents} test documents",
                ("model", *NAMES, "accuracy, direct")[:shown],
                tuple(row[:shown] for row in rows),
                note="Macro-F1 and balanced accuracy count every class the same, however rare."
                + (" The last rows need no language model." if self.baselines else ""),
            ),
            Table(
                f"Classes of {self.task} ({best})",
                ("label", "documents", "predicted", "precision", "recall", "F1"),
                tuple(self._classes()),
            ),
            Table(
                f"Confusion on {self.task} ({best}): rows are true labels, columns predictions",
                ("true", *self.labels),
                tuple((label, *map(int, row)) for label, row in zip(self.labels, self.confusion, strict=True)),
            ),
        ]

    def _classes(self) -> list[tuple[Cell, ...]]:
        gold, given, right = self.confusion.sum(axis=1), self.confusion.sum(axis=0), np.diag(self.confusion)
        rows: list[tuple[Cell, ...]] = []
        for k, label in enumerate(self.labels):
            precision = right[k] / given[k] if given[k] else math.nan
            recall = right[k] / gold[k] if gold[k] else math.nan
            f1 = 2 * right[k] / (gold[k] + given[k]) if gold[k] + given[k] else math.nan
            rows.append((label, int(gold[k]), int(given[k]), float(precision), float(recall), float(f1)))
        return rows

    def charts(self) -> Sequence[Chart]:
        """Return accuracy beside the baselines, and the confusion of the best model."""
        names = (*short_names([one.model for one in self.models]), *self.baselines)
        values = (*(one.scores[0] for one in self.models), *(told["acc"] for told in self.baselines.values()))
        total = np.maximum(self.confusion.sum(axis=1, keepdims=True), 1)
        return [
            Bars(
                name=f"classification-{self.task}",
                title=f"Accuracy on {self.task}",
                caption="Models, and below them what needs no language model.",
                labels=names,
                series={"accuracy": tuple(map(float, values))},
                y_label="accuracy",
            ),
            Heatmap(
                name=f"confusion-{self.task}",
                title=f"What {names[0]} takes for what on {self.task}",
                caption="Share of the documents of each true label (rows) by predicted label (columns).",
                rows=self.labels,
                columns=self.labels,
                values=self.confusion / total,
                low=0.0,
                high=1.0,
            ),
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
            said.append(
                f"{listing(below)} score{'s' if len(below) == 1 else ''} less than always answering the most frequent"
                f" label ({floor['acc']:.3f}): the tuning, the labels or the prompt may be wrong."
            )
        for name, one in named.items():
            if one.constant is not None:
                said.append(f"{name} answers {one.constant!r} to nearly every document of {self.task}.")
            if one.unknown >= UNKNOWN:
                said.append(f"{name} reads {one.unknown:.0%} of the tokens of {self.task} as unknown.")
        return said


def _difference(one: Labelled, other: Mapping[str, float]) -> tuple[float, float, float]:
    """Return by how much a model is ahead: (low, high, value) of a 95 % interval; NaN where it is not known."""
    gap = one.scores[0] - other.get("acc", math.nan)
    half = 1.96 * math.hypot(one.stderr, other.get("stderr", math.nan))
    return gap - half, gap + half, gap


def _beside(name: str, one: Labelled, other: str, told: Mapping[str, float]) -> str:
    low, high, gap = _difference(one, told)
    scores = f"{name} scores {one.scores[0]:.3f}"
    if low > 0:
        return f"{scores}, {gap:.3f} more than {other} (95 % interval {low:.3f} to {high:.3f})."
    sure = "less than" if high < 0 else "not surely more than"
    between = f"{told['acc']:.3f}; difference {gap:+.3f}, 95 % interval {low:+.3f} to {high:+.3f}"
    return f"{scores}, {sure} {other} on the same split ({between}). That classifier costs next to nothing and may do."


def find_classification(evidence: Evidence, *, best: str | None = None) -> list[Classification]:
    """Return the tests on labelled texts of one's own, under the protocol that ranks; ``best`` where it is chosen."""
    own = {
        task.name
        for study in filter(None, map(study_of, evidence.studies))
        for task in study.benchmarks()
        if task.file is not None or task.dataset is not None or "." in task.name or "/" in task.name
    }
    if not own or evidence.main is None:
        return []
    cells = [cell for cell in evidence.cells() if cell.task in own]
    direct = {(c.task, c.model): c.scores["acc"].value for c in cells if c.protocol == "direct" and "acc" in c.scores}
    found = []
    for task in dict.fromkeys(cell.task for cell in cells):
        mine = {c.model: c for c in cells if c.task == task and c.protocol == evidence.main}
        labels = next((_task(c).get("labels") for c in mine.values() if _task(c).get("labels")), None)
        mine = {model: cell for model, cell in mine.items() if all(m in cell.scores for m in METRICS)}
        if not labels or not mine:
            continue
        words = {said: raw for raw, said in labels.items()}
        answers = {model: evidence.items(cell.key) for model, cell in mine.items()}
        rows = []
        for model, cell in mine.items():
            given = Counter(words.get(item.prediction, item.prediction) for item in answers[model])
            gold = Counter(words.get(item.gold, item.gold) for item in answers[model])
            rows.append(
                Labelled(
                    model=model,
                    scores=tuple(cell.scores[m].value for m in METRICS),  # type: ignore[arg-type]
                    stderr=cell.scores["acc"].stderr,
                    direct=direct.get((task, model), math.nan),
                    constant=_constant(given, gold),
                    unknown=float(_task(cell).get("unknown_tokens") or 0.0),
                )
            )
        rows.sort(key=lambda one: (one.model != best, -one.scores[0], one.model))
        first = rows[0].model
        found.append(
            Classification(
                task=task,
                protocol=str(evidence.main),
                labels=tuple(labels),
                models=tuple(rows),
                baselines=_task(mine[first]).get("baselines") or {},
                confusion=_confusion(answers[first], words, list(labels)),
                documents=mine[first].scores["acc"].n,
            )
        )
    return found


def _task(cell: Any) -> Mapping[str, Any]:
    return cell.manifest.get("task") or {}


def _constant(given: Counter[str], gold: Counter[str]) -> str | None:
    """Return the label that is nearly always answered where the truth is more than that."""
    total = sum(given.values())
    if total < 10:
        return None
    label, times = given.most_common(1)[0]
    return label if times >= CONSTANT * total and gold[label] < 0.9 * total else None


def _confusion(items: Sequence[Any], words: Mapping[str, str], labels: list[str]) -> Floats:
    counts = np.zeros((len(labels), len(labels)))
    places = {label: k for k, label in enumerate(labels)}
    for item in items:
        gold, given = words.get(item.gold, item.gold), words.get(item.prediction, item.prediction)
        if gold in places and given in places:
            counts[places[gold], places[given]] += 1
    return counts
