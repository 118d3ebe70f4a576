"""Agreement among alike models or tasks: within a size bin, a family, base or instruct, or large test sets alone.

Agreement over all models is partly the plain fact that larger models are better everywhere; within a bin of equal size
(table 6) or a family (table 7) that signal is gone and what is left is harder to agree on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Unpack

import numpy as np

from potentia.analysis.rankings.agreement import NAMES
from potentia.analysis.stats.bootstrap import How, Sampling, pair_mean
from potentia.analysis.stats.correlation import METHODS, Correlate
from potentia.analysis.stats.kendall import kendall_matrix
from potentia.values.findings import Bars, Cell, Chart, Finding, Interval, Table
from potentia.values.protocol import Protocol
from potentia.values.scores import ScoreMatrix


@dataclass(frozen=True)
class GroupAgreement(Finding):
    """Mean agreement over pairs of tasks, one row per group and one column per protocol."""

    by: str
    groups: tuple[str, ...]
    models: tuple[int, ...]
    tasks: tuple[int, ...]
    protocols: tuple[Protocol, ...]
    means: tuple[tuple[Interval, ...], ...]  # (groups, protocols)
    over: tuple[str, ...] = ()  # per group: what its intervals draw, families where it has three or more, else models

    def tables(self) -> Sequence[Table]:
        """Return one row per group: its size, and each protocol's mean agreement with its interval."""
        columns = ["group", "models", "tasks"]
        drawn = dict(zip(self.groups, self.over, strict=True)) if self.over else {}
        by = {unit: [name for name in self.groups if drawn.get(name) == unit] for unit in dict.fromkeys(self.over)}
        told = "; ".join(f"{unit} of {', '.join(names)}" for unit, names in by.items()) if len(by) > 1 else "".join(by)
        for protocol in self.protocols:
            columns += [protocol.label, "low", "high"]
        rows: list[tuple[Cell, ...]] = []
        for name, models, tasks, means in zip(self.groups, self.models, self.tasks, self.means, strict=True):
            rows.append((name, models, tasks, *(x for m in means for x in (m.value, m.low, m.high))))
        title = f"Mean Kendall's τ over pairs of tasks, by {self.by}"
        return [Table(title, tuple(columns), tuple(rows), f"Intervals: bootstrap over {told or 'models'}.")]

    def charts(self) -> Sequence[Chart]:
        """Return grouped bars with intervals."""
        values = {p.label: tuple(m[k].value for m in self.means) for k, p in enumerate(self.protocols)}
        return [
            Bars(
                name=f"agreement-by-{self.by.replace(' ', '-')}",
                title=f"Ranking agreement by {self.by}",
                caption="Mean Kendall's τ over pairs of tasks, with bootstrap intervals.",
                labels=tuple(f"{g} ({n})" for g, n in zip(self.groups, self.models, strict=True)),
                series=values,
                low={p.label: tuple(m[k].low for m in self.means) for k, p in enumerate(self.protocols)},
                high={p.label: tuple(m[k].high for m in self.means) for k, p in enumerate(self.protocols)},
                y_label="mean Kendall's τ",
            )
        ]


@dataclass(frozen=True)
class Measures(Finding):
    """Mean agreement over pairs of tasks by each measure of correlation, one row per protocol."""

    protocols: tuple[Protocol, ...]
    means: dict[str, tuple[Interval, ...]]  # by measure
    over: str = "models"  # what the intervals draw

    def tables(self) -> Sequence[Table]:
        """Return Kendall, Spearman and Pearson side by side."""
        columns = ["protocol"]
        for name in self.means:
            columns += [NAMES[name], "low", "high"]
        rows: list[tuple[Cell, ...]] = [
            (protocol.label, *(x for m in self.means.values() for x in (m[k].value, m[k].low, m[k].high)))
            for k, protocol in enumerate(self.protocols)
        ]
        note = f"Intervals: bootstrap over {self.over}."
        return [Table("Mean agreement over pairs of tasks, by measure", tuple(columns), tuple(rows), note)]


def agreement_by_models(
    matrices: Sequence[ScoreMatrix],
    groups: Mapping[str, str | None],
    *,
    by: str,
    at_least: int = 5,
    order: Sequence[str] | None = None,
    **how: Unpack[How],
) -> GroupAgreement:
    """Agreement within each group of models; groups with fewer than ``at_least`` models are left out."""
    models = [m for m in matrices[0].models if all(m in set(x.models) for x in matrices)]
    names = order or list(dict.fromkeys(g for m in models if (g := groups.get(m)) is not None))
    members = {name: [m for m in models if groups.get(m) == name] for name in names}
    kept = {name: rows for name, rows in members.items() if len(rows) >= at_least} | {"all": models}
    return _grouped(
        {name: [x.select(models=rows) for x in matrices] for name, rows in kept.items()}, by, Sampling(**how)
    )


def agreement_by_tasks(
    matrices: Sequence[ScoreMatrix], groups: Mapping[str, Iterable[str]], *, by: str, **how: Unpack[How]
) -> GroupAgreement:
    """Agreement within each set of tasks, e.g. those with large test splits (appendix B.5)."""
    tasks = [t for t in matrices[0].tasks if all(t in set(x.tasks) for x in matrices)]
    members = {name: [t for t in tasks if t in set(wanted)] for name, wanted in groups.items()}
    kept = {name: columns for name, columns in members.items() if len(columns) > 1} | {"all": tasks}
    return _grouped(
        {name: [x.select(tasks=some) for x in matrices] for name, some in kept.items()}, by, Sampling(**how)
    )


def size_bins(billions: Mapping[str, float], *, width: float = 1.0) -> dict[str, str]:
    """Name the size bin of each model: [0, 1), [1, 2), … billions of parameters (table 6)."""
    bins = {}
    for model, size in billions.items():
        if math.isfinite(size):
            low = math.floor(size / width) * width
            bins[model] = f"[{low:g}, {low + width:g})"
    return bins


def bin_order(bins: Iterable[str]) -> list[str]:
    """Bins from small to large."""
    return sorted(set(bins), key=lambda name: float(name[1:].split(",")[0]))


def items_per_task(matrix: ScoreMatrix) -> dict[str, float]:
    """Return the number of test items behind each task: as stored, or as the standard errors imply.

    Where the number is not stored, an accuracy p with the harness's standard error s comes from p(1 - p)/s² + 1 items;
    it is believed only where the models agree on it, which they do for means of zeros and ones and for nothing else.
    """
    sizes = {}
    for column, task in enumerate(matrix.tasks):
        stored = matrix.n[:, column]
        if np.isfinite(stored).any():
            sizes[task] = float(np.nanmedian(stored))
            continue
        value, stderr = matrix.values[:, column], matrix.stderr[:, column]
        usable = np.isfinite(value) & np.isfinite(stderr) & (stderr > 0) & (value > 0.02) & (value < 0.98)
        if usable.any():
            implied = value[usable] * (1 - value[usable]) / stderr[usable] ** 2 + 1
            middle = float(np.median(implied))
            if np.quantile(np.abs(implied - middle), 0.75) < 0.01 * middle:
                sizes[task] = float(round(middle))
    return sizes


def _grouped(cells: Mapping[str, Sequence[ScoreMatrix]], by: str, how: Sampling) -> GroupAgreement:
    groups = list(cells.values())
    return GroupAgreement(
        by=by,
        groups=tuple(cells),
        models=tuple(group[0].shape[0] for group in groups),
        tasks=tuple(group[0].shape[1] for group in groups),
        protocols=tuple(matrix.protocol for matrix in groups[0]),
        means=tuple(tuple(_mean(matrix, how, kendall_matrix) for matrix in group) for group in groups),
        over=tuple(how.units.over(group[0].models) for group in groups),
    )


def measure_all(matrices: Sequence[ScoreMatrix], **how: Unpack[How]) -> Measures:
    """Mean agreement of every matrix by Kendall's, Spearman's and Pearson's correlation."""
    sampling = Sampling(**how)
    means = {name: tuple(_mean(m, sampling, correlate) for m in matrices) for name, correlate in METHODS.items()}
    return Measures(tuple(m.protocol for m in matrices), means, sampling.units.over(matrices[0].models))


def _mean(matrix: ScoreMatrix, how: Sampling, correlate: Correlate) -> Interval:
    """Mean agreement over pairs of tasks. With gaps, rho and r go pair by pair; a tenth of the resamples will do."""
    values, draws = matrix.oriented(), how.draws(matrix.models)
    if correlate is not kendall_matrix and not np.isfinite(values).all():
        draws = draws[: max(20, how.resamples // 10)]
    return how.interval(float(pair_mean(correlate(values))), pair_mean(correlate(values, weights=draws)))
