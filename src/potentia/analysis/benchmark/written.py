"""Written answers of one's own data: whether a fine-tuned model is of use, beside two answers that need no model.

They are the most frequent answer of the training rows, and the answer of the training row whose question is nearest by
TF-IDF. A model that does no better than these is of no use yet.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scipy.stats import norm

from potentia.analysis.benchmark.classification import (
    FEWEST_EXAMPLES,
    MIN_UNKNOWN_SHARE,
    BaselineVerdict,
)
from potentia.analysis.wording import format_range
from potentia.values.baselines import WRITTEN_BASELINES, Baseline
from potentia.values.findings import Finding, Table, TableValue, short_names
from potentia.values.protocol import TaskName

if TYPE_CHECKING:
    from potentia.evidence import Evidence
    from potentia.store import CellRecord


@dataclass(frozen=True)
class WrittenTest:
    """One model's written answers: the mean score with its error, and the share of tokens it does not know."""

    model: str
    value: float
    stderr: float
    unknown: float


@dataclass(frozen=True)
class WrittenAnswers(Finding):
    """A test on written answers: models beside what needs none."""

    task: str
    metric: str
    models: tuple[WrittenTest, ...]  # the best first
    baselines: Mapping[Baseline, Mapping[str, float]]  # value and stderr
    examples: int

    @property
    def best_baseline(self) -> Baseline:
        """The better of what needs no model."""
        return max(self.baselines, key=lambda baseline: self.baselines[baseline]["value"])

    def _compare_best(self) -> tuple[float, float, float]:
        """Return by how much the best model is ahead of the best baseline, with an interval for all candidates."""
        best = self.models[0]
        cheap = self.baselines[self.best_baseline]
        gap = best.value - cheap["value"]
        error = math.hypot(best.stderr, cheap["stderr"])
        half_width = float(norm.ppf(1 - 0.025 / len(self.models))) * error
        return gap, gap - half_width, gap + half_width

    @property
    def verdict(self) -> BaselineVerdict:
        """Whether the best model beats the better of what needs no model."""
        if self.examples < FEWEST_EXAMPLES:
            return BaselineVerdict.UNKNOWN
        gap, low, _ = self._compare_best()
        if low > 0:
            return BaselineVerdict.BEATS
        return BaselineVerdict.TIES if gap > 0 else BaselineVerdict.LOSES

    def verdict_sentence(self) -> str:
        """Say whether a candidate is of use."""
        best = self.models[0]
        name = self._short_model_names()[0]
        baseline = self.best_baseline
        cheap = self.baselines[baseline]["value"]
        if self.verdict is BaselineVerdict.UNKNOWN:
            examples = f"{self.examples} tested examples are"
            if self.examples == 1:
                examples = "1 tested example is"
            return f"{examples} too few to say whether a candidate beats {baseline.label}: add more rows."
        if self.verdict is BaselineVerdict.LOSES:
            return (
                f"No candidate is of use yet: {name} scores {best.value:.3f} {self.metric},"
                f" {baseline.label} {cheap:.3f}."
            )
        _, low, high = self._compare_best()
        ends = format_range(low, high, in_points=False, sign=True)
        interval = f"95 % interval {ends}"
        if len(self.models) > 1:
            interval = f"95 % interval for the best of {len(self.models)} {ends}"
        if not math.isfinite(low):
            interval = "its interval is not known"
        scores = f"({best.value:.3f} against {cheap:.3f} {self.metric}, {interval})"
        if self.verdict is BaselineVerdict.TIES:
            return (
                f"No candidate is shown to be of use yet: {name} is not significantly better than"
                f" {baseline.label} {scores}."
            )
        return f"{name} beats {baseline.label} {scores}."

    def sentences(self) -> list[str]:
        """Say whether a candidate is of use, and which models do not know the words."""
        sentences = [self.verdict_sentence()]
        for name, written_test in zip(self._short_model_names(), self.models, strict=True):
            if written_test.unknown >= MIN_UNKNOWN_SHARE:
                sentences.append(
                    f"{name} reads {written_test.unknown:.0%} of the tokens of {self.task} as unknown."
                )
        return sentences

    def tables(self) -> Sequence[Table]:
        """Return models beside what needs none."""
        rows: list[tuple[TableValue, ...]] = []
        for name, written_test in zip(self._short_model_names(), self.models, strict=True):
            rows.append((name, written_test.value))
        for baseline, scores in self.baselines.items():
            rows.append((baseline.label, scores["value"]))
        title = f"{self.task}: written answers, {self.examples} tested examples"
        note = "The last rows need no language model: they know the training rows alone."
        return [Table(title, ("model", self.metric), rows, note)]

    def _short_model_names(self) -> list[str]:
        return short_names([written_test.model for written_test in self.models])


def find_written_answers(
    evidence: Evidence, *, best_model: str | None = None
) -> list[WrittenAnswers]:
    """Return the tests on written answers of one's own data, by the protocol that ranks; ``best_model`` comes first."""
    cells_by_task: dict[str, dict[str, list[CellRecord]]] = {}
    for cell in evidence.cells():
        baselines = cell.provenance.task.baselines
        if cell.protocol == evidence.main and set(WRITTEN_BASELINES) & set(baselines):
            by_model = cells_by_task.setdefault(TaskName(cell.task).whole, {})
            by_model.setdefault(cell.model, []).append(cell)
    found = []
    for task, cells_by_model in cells_by_task.items():
        tests = [_make_test(cells) for cells in cells_by_model.values()]
        tests.sort(key=lambda test: (test.model != best_model, -test.value, test.model))
        best_cells = cells_by_model[tests[0].model]
        metric = best_cells[0].metric
        joined = {}
        for baseline in WRITTEN_BASELINES:
            scores = [cell.provenance.task.baselines.get(baseline, {}) for cell in best_cells]
            if all(metric in fold_scores for fold_scores in scores):
                values = [fold_scores[metric] for fold_scores in scores]
                errors = [fold_scores[f"{metric}_stderr"] for fold_scores in scores]
                value, error = _pool_folds(best_cells, values, errors)
                joined[baseline] = {"value": value, "stderr": error}
        if joined:
            examples = sum(cell.score.n for cell in best_cells)
            found.append(WrittenAnswers(task, metric, tuple(tests), joined, examples))
    return found


def _make_test(cells: Sequence[CellRecord]) -> WrittenTest:
    values = [cell.score.value for cell in cells]
    errors = [cell.score.stderr for cell in cells]
    value, error = _pool_folds(cells, values, errors)
    unknown = max(cell.provenance.task.unknown_tokens for cell in cells)
    return WrittenTest(cells[0].model, value, error, unknown)


def _pool_folds(
    cells: Sequence[CellRecord], values: Sequence[float], errors: Sequence[float]
) -> tuple[float, float]:
    """Return the mean over the folds by their examples, and its error."""
    examples = sum(cell.score.n for cell in cells)
    weights = [cell.score.n / examples for cell in cells]
    value = sum(weight * value for weight, value in zip(weights, values, strict=True))
    error = math.hypot(*(weight * error for weight, error in zip(weights, errors, strict=True)))
    return value, error
