"""A method is a protocol with a prompt form: ``direct``, ``blank_ppl``, ``train_before_test:cloze``.

A task named ``arc_easy:blank_ppl`` is the benchmark ``arc_easy`` in the form ``blank_ppl``. Stability, consistency and
the ablation compare methods on the same benchmark, so they read score matrices as columns of (benchmark, method), and
the first two say how much one method's tau improves on another's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from potentia.errors import InputError
from potentia.values.findings import Bars, Heatmap, Interval, Table
from potentia.values.protocol import Protocol, TaskName
from potentia.values.scores import Floats, ScoreMatrix


@dataclass(frozen=True, eq=False)
class Column:
    """The scores of some models on one benchmark by one method; higher always means better."""

    task: str
    method: str
    models: tuple[str, ...]
    values: Floats  # (models,)
    stderr: Floats  # (models,)

    def at(self, models: Sequence[str]) -> tuple[Floats, Floats]:
        """Return values and standard errors of these models, NaN where the column lacks one."""
        nothing = (np.nan, np.nan)
        known = dict(zip(self.models, zip(self.values, self.stderr, strict=True), strict=True))
        both = np.array([known.get(model, nothing) for model in models], dtype=np.float64).reshape(-1, 2)
        return both[:, 0], both[:, 1]


def columns(scores: Mapping[Protocol, ScoreMatrix]) -> tuple[Column, ...]:
    """Read matrices, keyed by protocol, as columns; a column without any score is left out.

    A form that was scored without tuning or examples needs no protocol in front of its name.
    """
    found: list[Column] = []
    for protocol, matrix in scores.items():
        oriented = matrix.oriented()
        for k, name in enumerate(map(TaskName, matrix.tasks)):
            method = f"{protocol}:{name.form}" if name.form and protocol != "direct" else name.form or protocol
            if np.isfinite(oriented[:, k]).any():
                found.append(Column(name.base, method, matrix.models, oriented[:, k], matrix.stderr[:, k]))
    if not found:
        raise InputError("no scores to analyse", hint="choose a protocol and tasks that have scores")
    return tuple(found)


def order_methods(found: Sequence[Column], baseline: str | None = None) -> tuple[str, ...]:
    """Return the methods in order of appearance, the baseline first where one is named."""
    names = tuple(dict.fromkeys(column.method for column in found))
    if baseline is None:
        return names
    if baseline not in names:
        raise InputError(f"no method {baseline!r} in these scores", hint=f"there are: {', '.join(names)}")
    return (baseline, *(name for name in names if name != baseline))


def tau_heatmap(name: str, title: str, caption: str, taus: Mapping[tuple[str, str], float]) -> Heatmap:
    """Draw Kendall's tau by (label, method)."""
    rows, methods = (tuple(dict.fromkeys(key[k] for key in taus)) for k in (0, 1))
    values = np.array([[taus.get((row, method), np.nan) for method in methods] for row in rows])
    return Heatmap(name, title, caption, rows, methods, values, low=-1, high=1, diverging=True)


def mean_tau(taus: Sequence[float]) -> float:
    """Return the mean of those that are known."""
    known = [tau for tau in taus if np.isfinite(tau)]
    return float(np.mean(known)) if known else float("nan")


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


def improvement_table(what: str, improvements: Sequence[Improvement], group: str) -> Table:
    """Lay out improvements: one row per benchmark and method, with whether the interval leaves out zero."""
    rows = tuple(
        (i.series, i.task, i.method, i.difference.value, i.difference.low, i.difference.high, "yes" if i.real else "no")
        for i in improvements
    )
    title = f"Improvement in {what} over {improvements[0].baseline}"
    columns = (group, "task", "method", "difference", "low", "high", "real")
    return Table(title, columns, rows, note="real: the interval leaves out zero.")


def improvement_chart(what: str, improvements: Sequence[Improvement]) -> Bars:
    """Draw improvements as bars with intervals, one group per benchmark and one colour per method."""
    labels = tuple(dict.fromkeys(f"{i.task} ({i.series})" for i in improvements))
    methods = tuple(dict.fromkeys(i.method for i in improvements))
    table = {(f"{i.task} ({i.series})", i.method): i.difference for i in improvements}
    missing = Interval(float("nan"), float("nan"), float("nan"))

    caption = f"Difference in Kendall's tau to {improvements[0].baseline}, with 95 % intervals; above zero is better."
    bars = {method: [table.get((label, method), missing) for label in labels] for method in methods}
    return Bars.of(f"{what}-improvement", f"Improvement in {what}", caption, labels, bars, "difference in tau")
