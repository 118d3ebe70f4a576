"""Agreement within groups of models or tasks, and by each correlation measure.

Agreement over all models is partly the plain fact that larger models are better everywhere; within a bin of equal size
(table 6 of the train-before-test paper) or a family (table 7) that signal is gone and what is left is harder to agree
on.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from potentia.analysis.left_out import keep_names_in
from potentia.analysis.rankings.agreement import METHOD_NAMES
from potentia.analysis.stats.bootstrap import DEFAULT_SAMPLING, Sampling, mean_over_pairs
from potentia.analysis.stats.correlation import CORRELATIONS, Correlate, kendall_matrix
from potentia.values.findings import Bars, Chart, Finding, Interval, Table
from potentia.values.protocol import Protocol
from potentia.values.scores import ScoreMatrix

ALL_GROUP = "all"


@dataclass(frozen=True)
class GroupAgreement(Finding):
    """Mean agreement over pairs of tasks, one row per group and one column per protocol."""

    by: str
    groups: tuple[str, ...]
    model_counts: tuple[int, ...]  # of each group
    task_counts: tuple[int, ...]
    protocols: tuple[Protocol, ...]
    means: tuple[tuple[Interval, ...], ...]  # (groups, protocols)
    # what the bootstrap resamples in each group: families if it has three, else models
    resampled_units: tuple[str, ...]
    measure: str

    def tables(self) -> Sequence[Table]:
        """Return one row per group: its size, and each protocol's mean agreement with its interval."""
        column_names = ["group", "models", "tasks"]
        for protocol in self.protocols:
            column_names += [protocol.label, "low", "high"]
        means_by_protocol = zip(*self.means, strict=True)
        table_rows = zip(
            self.groups, self.model_counts, self.task_counts, *means_by_protocol, strict=True
        )
        title = f"Mean {self.measure} over pairs of tasks, by {self.by}"
        note = f"Intervals: bootstrap over {self._describe_units()}."
        return [Table(title, column_names, table_rows, note)]

    def _describe_units(self) -> str:
        """Say what the bootstrap resamples, and for which groups where that differs."""
        groups_by_unit: dict[str, list[str]] = {}
        for group, unit in zip(self.groups, self.resampled_units, strict=True):
            groups_by_unit.setdefault(unit, []).append(group)
        if len(groups_by_unit) == 1:
            [unit] = groups_by_unit
            return unit
        parts = [f"{unit} of {', '.join(groups)}" for unit, groups in groups_by_unit.items()]
        return "; ".join(parts)

    def charts(self) -> Sequence[Chart]:
        """Return grouped bars with intervals."""
        sizes = zip(self.groups, self.model_counts, strict=True)
        labels = [protocol.label for protocol in self.protocols]
        title = f"Ranking agreement by {self.by}"
        caption = f"Mean {self.measure} over pairs of tasks, with bootstrap intervals."
        chart = Bars(
            f"agreement-by-{self.by.replace(' ', '-')}",
            title,
            caption,
            [f"{group} ({model_count})" for group, model_count in sizes],
            dict(zip(labels, zip(*self.means, strict=True), strict=True)),
            y_label=f"mean {self.measure}",
        )
        return [chart]


def agreement_by_models(
    matrices: Sequence[ScoreMatrix],
    group_by_model: Mapping[str, str | None],
    *,
    grouping: str,
    at_least: int = 5,
    order: Sequence[str] | None = None,
    sampling: Sampling = DEFAULT_SAMPLING,
) -> GroupAgreement:
    """Measure agreement within each group of models; groups with fewer than ``at_least`` models are left out."""
    models = keep_names_in(matrices[0].models, *(matrix.models for matrix in matrices))
    distinct_groups = dict.fromkeys(group_by_model.get(model) for model in models)
    names = order or [group for group in distinct_groups if group is not None]
    matrices_by_group = {}
    for name in names:
        members = [model for model in models if group_by_model.get(model) == name]
        if len(members) >= at_least:
            matrices_by_group[name] = [matrix.select(models=members) for matrix in matrices]
    matrices_by_group[ALL_GROUP] = [matrix.select(models=models) for matrix in matrices]
    return _measure_groups(matrices_by_group, grouping, sampling)


def agreement_by_tasks(
    matrices: Sequence[ScoreMatrix],
    tasks_by_group: Mapping[str, Collection[str]],
    *,
    grouping: str,
    sampling: Sampling = DEFAULT_SAMPLING,
) -> GroupAgreement:
    """Measure agreement within each set of tasks, e.g. those with large test splits (appendix B.5 of the paper)."""
    tasks = keep_names_in(matrices[0].tasks, *(matrix.tasks for matrix in matrices))
    matrices_by_group = {}
    for group, tasks_of_group in tasks_by_group.items():
        members = keep_names_in(tasks, tasks_of_group)
        if len(members) > 1:
            matrices_by_group[group] = [matrix.select(tasks=members) for matrix in matrices]
    matrices_by_group[ALL_GROUP] = [matrix.select(tasks=tasks) for matrix in matrices]
    return _measure_groups(matrices_by_group, grouping, sampling)


def name_size_bins(billions: Mapping[str, float]) -> dict[str, str]:
    """Name the size bin of each model: [0, 1), [1, 2), … billions of parameters (table 6 of the paper)."""
    bin_by_model = {}
    for model, size in billions.items():
        if math.isfinite(size):
            bin_by_model[model] = f"[{int(size)}, {int(size) + 1})"
    return bin_by_model


def sort_size_bins(bin_names: Iterable[str]) -> list[str]:
    """Return the names of size bins from small to large."""
    return sorted(set(bin_names), key=lambda bin_name: float(bin_name[1:].split(",")[0]))


def agreement_by_measure(
    matrices: Sequence[ScoreMatrix], *, sampling: Sampling = DEFAULT_SAMPLING
) -> GroupAgreement:
    """Measure the mean agreement of every matrix by Kendall's, Spearman's and Pearson's correlation."""
    correlations = {METHOD_NAMES[method]: correlate for method, correlate in CORRELATIONS.items()}
    matrices_by_measure = dict.fromkeys(correlations, matrices)
    return _measure_groups(matrices_by_measure, "measure", sampling, correlations)


def _measure_groups(
    matrices_by_group: Mapping[str, Sequence[ScoreMatrix]],
    grouping: str,
    sampling: Sampling,
    correlations: Mapping[str, Correlate] | None = None,
) -> GroupAgreement:
    """Measure the mean agreement of each group; by Kendall's τ, or by a correlation for each group."""
    means = []
    for group, matrices in matrices_by_group.items():
        correlate = kendall_matrix if correlations is None else correlations[group]
        means.append(tuple(_mean_agreement(matrix, sampling, correlate) for matrix in matrices))
    first_of_groups = [matrices[0] for matrices in matrices_by_group.values()]
    first_group = next(iter(matrices_by_group.values()))
    model_counts = tuple(matrix.shape[0] for matrix in first_of_groups)
    task_counts = tuple(matrix.shape[1] for matrix in first_of_groups)
    protocols = tuple(matrix.protocol for matrix in first_group)
    resampled_units = tuple(sampling.units.drawn_unit(matrix.models) for matrix in first_of_groups)
    measure = METHOD_NAMES["kendall"] if correlations is None else "agreement"
    return GroupAgreement(
        by=grouping,
        groups=tuple(matrices_by_group),
        model_counts=model_counts,
        task_counts=task_counts,
        protocols=protocols,
        means=tuple(means),
        resampled_units=resampled_units,
        measure=measure,
    )


def _mean_agreement(matrix: ScoreMatrix, sampling: Sampling, correlate: Correlate) -> Interval:
    """Return the mean agreement over pairs of tasks.

    With gaps, Spearman's and Pearson's correlations go pair by pair; a tenth of the resamples will do.
    """
    values = matrix.oriented()
    draws = sampling.draw_models(matrix.models)
    if correlate is not kendall_matrix and not np.isfinite(values).all():
        draws = draws[: max(20, sampling.resamples // 10)]
    mean = float(mean_over_pairs(correlate(values)))
    return sampling.interval(mean, mean_over_pairs(correlate(values, weights=draws)))
