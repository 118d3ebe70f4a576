"""Scores by method, and how much one method's Kendall's tau improves on another's.

A method is a protocol with a prompt form: ``direct``, ``blank_ppl``, ``train_before_test:cloze``. A task named
``arc_easy:blank_ppl`` is the benchmark ``arc_easy`` in the form ``blank_ppl``. Stability, consistency and the ablation
compare methods on the same benchmark, so they read score matrices as columns of (benchmark, method).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from potentia.errors import InputError, suggest_names
from potentia.values.findings import Bars, Chart, Heatmap, Interval, Table
from potentia.values.protocol import DIRECT, Protocol, TaskName
from potentia.values.scores import Floats, ScoreMatrix

RESAMPLES = 2_000  # of an interval


@dataclass(frozen=True, eq=False)
class MethodScores:
    """The scores of all models by benchmark and method; higher always means better."""

    model_index: Mapping[str, int]
    columns: Mapping[
        tuple[str, str], Floats
    ]  # by benchmark and method: (2, models + 1) of values and standard errors

    @classmethod
    def from_matrices(cls, scores: Mapping[Protocol, ScoreMatrix]) -> MethodScores:
        """Read the matrices of all protocols as columns; a column without any score is left out."""
        model_index: dict[str, int] = {}
        for matrix in scores.values():
            for model in matrix.models:
                model_index.setdefault(model, len(model_index))
        columns: dict[tuple[str, str], Floats] = {}
        for protocol, matrix in scores.items():
            model_positions = [model_index[model] for model in matrix.models]
            oriented = matrix.oriented()
            for index, task in enumerate(map(TaskName, matrix.tasks)):
                values = oriented[:, index]
                if not np.isfinite(values).any():
                    continue
                # The last place is that of models without a score.
                column = np.full((2, len(model_index) + 1), np.nan)
                column[0, model_positions] = values
                column[1, model_positions] = matrix.stderr[:, index]
                columns[task.base, _name_method(protocol, task)] = column
        if not columns:
            raise InputError(
                "no scores to analyse", hint="choose a protocol and tasks that have scores"
            )
        return cls(model_index, columns)

    @property
    def models(self) -> tuple[str, ...]:
        """The models in order of appearance."""
        return tuple(self.model_index)

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods in order of appearance."""
        return tuple(dict.fromkeys(method for _, method in self.columns))

    @property
    def tasks(self) -> tuple[str, ...]:
        """The benchmarks in order of appearance."""
        return tuple(dict.fromkeys(task for task, _ in self.columns))

    def scores_of_models(self, column: tuple[str, str], models: Iterable[str]) -> Floats:
        """Return values and standard errors of these models, (2, models); NaN where there is no score."""
        model_positions = [self.model_index.get(model, -1) for model in models]
        return self.columns[column][:, model_positions]

    def methods_from_baseline(self, baseline: str | None) -> tuple[str, ...]:
        """Return the methods, the baseline first where one is named."""
        if baseline is None:
            return self.methods
        if baseline not in self.methods:
            raise InputError(
                f"no method {baseline!r} in these scores",
                hint=suggest_names(baseline, self.methods),
            )
        return (baseline, *(method for method in self.methods if method != baseline))


def _name_method(protocol: Protocol, task: TaskName) -> str:
    """Return protocol and form; a form that was scored without tuning or examples needs no protocol before it."""
    if not task.form:
        return protocol
    if protocol == DIRECT:
        return task.form
    return f"{protocol}:{task.form}"


# --- improvements over a baseline ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Improvement:
    """How much more stable (or consistent) one method is than another on the same models."""

    series: str
    task: str
    method: str
    baseline: str
    difference: Interval

    @property
    def real(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.difference.low > 0 or self.difference.high < 0

    @property
    def label(self) -> str:
        """The benchmark and the series that the methods are compared on."""
        return f"{self.task} ({self.series})"


def improvement_tables(
    property_name: str, improvements: Sequence[Improvement], group_column: str
) -> list[Table]:
    """Lay out improvements, one row per benchmark and method; no table where there are none."""
    if not improvements:
        return []
    table_rows = []
    for improvement in improvements:
        real = "yes" if improvement.real else "no"
        table_rows.append(
            (
                improvement.series,
                improvement.task,
                improvement.method,
                improvement.difference,
                real,
            )
        )
    title = f"Improvement in {property_name} over {improvements[0].baseline}"
    column_names = (group_column, "task", "method", "difference", "low", "high", "real")
    return [Table(title, column_names, table_rows, note="real: the interval excludes zero.")]


def tau_charts(
    property_name: str,
    caption: str,
    tau_by_label_and_method: Mapping[tuple[str, str], float],
    improvements: Sequence[Improvement],
) -> list[Chart]:
    """Draw Kendall's tau by (label, method), and the improvements over the baseline where there are some."""
    labels, methods = _axes(tau_by_label_and_method)
    values = []
    for label in labels:
        taus = [tau_by_label_and_method.get((label, method), math.nan) for method in methods]
        values.append(taus)
    heatmap = Heatmap(
        property_name,
        f"{property_name.capitalize()} by method",
        caption,
        rows=labels,
        columns=methods,
        values=np.array(values),
        low=-1,
        high=1,
        diverging=True,
    )
    charts: list[Chart] = [heatmap]
    if improvements:
        charts.append(_improvement_bars(property_name, improvements))
    return charts


def _improvement_bars(property_name: str, improvements: Sequence[Improvement]) -> Bars:
    differences = {
        (improvement.label, improvement.method): improvement.difference
        for improvement in improvements
    }
    labels, methods = _axes(differences)
    missing = Interval(math.nan, math.nan, math.nan)
    bar_by_method = {}
    for method in methods:
        bar_by_method[method] = [differences.get((label, method), missing) for label in labels]
    caption = (
        f"Difference in Kendall's tau to {improvements[0].baseline}, 95 % intervals; "
        "above zero is better."
    )
    return Bars(
        f"{property_name}-improvement",
        f"Improvement in {property_name}",
        caption,
        labels,
        bar_by_method,
        y_label="difference in tau",
    )


def _axes(keys: Iterable[tuple[str, str]]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the different labels and the different methods, each in order of appearance."""
    labels = dict.fromkeys(label for label, _ in keys)
    methods = dict.fromkeys(method for _, method in keys)
    return tuple(labels), tuple(methods)
