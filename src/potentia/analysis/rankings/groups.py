"""Agreement among alike models or tasks, and of perplexity with tasks.

Agreement over all models is partly the plain fact that larger models are better everywhere; within a bin of equal size
(table 6) or a family (table 7) that signal is gone and what is left is harder to agree on.

Rankings by bits per byte on each corpus are compared with the rankings on each task by Kendall's tau: under one
protocol (figure 4), or perplexity before tuning against scores after it (figure 5), for base and for instruct models
apart, since instruction tuning raises perplexity and scores alike. Agreement is signed so that 1 means alike.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Unpack

import numpy as np

from potentia.analysis.left_out import inside
from potentia.analysis.rankings.agreement import NAMES
from potentia.analysis.stats.bootstrap import How, Sampling, pair_mean
from potentia.analysis.stats.correlation import METHODS, Correlate, kendall_matrix, nan_mean
from potentia.errors import InputError
from potentia.values.findings import Bars, Chart, Finding, Heatmap, Interval, Table, mean_in_words
from potentia.values.protocol import Protocol
from potentia.values.scores import Floats, ScoreMatrix


@dataclass(frozen=True)
class GroupAgreement(Finding):
    """Mean agreement over pairs of tasks, one row per group and one column per protocol."""

    by: str
    groups: tuple[str, ...]
    models: tuple[int, ...]
    tasks: tuple[int, ...]
    protocols: tuple[Protocol, ...]
    means: tuple[tuple[Interval, ...], ...]  # (groups, protocols)
    over: tuple[str, ...]  # per group: what its intervals draw, families where it has three or more, else models
    measure: str

    def tables(self) -> Sequence[Table]:
        """Return one row per group: its size, and each protocol's mean agreement with its interval."""
        by = {unit: [g for g, over in zip(self.groups, self.over, strict=True) if over == unit] for unit in self.over}
        told = "; ".join(f"{unit} of {', '.join(names)}" for unit, names in by.items()) if len(by) > 1 else "".join(by)
        columns = ("group", "models", "tasks", *(x for p in self.protocols for x in (p.label, "low", "high")))
        rows = zip(self.groups, self.models, self.tasks, *zip(*self.means, strict=True), strict=True)
        title = f"Mean {self.measure} over pairs of tasks, by {self.by}"
        return [Table(title, columns, rows, f"Intervals: bootstrap over {told}.")]

    def charts(self) -> Sequence[Chart]:
        """Return grouped bars with intervals."""
        caption = f"Mean {self.measure} over pairs of tasks, with bootstrap intervals."
        names = [f"{g} ({n})" for g, n in zip(self.groups, self.models, strict=True)]
        bars = dict(zip((p.label for p in self.protocols), zip(*self.means, strict=True), strict=True))
        name, title = f"agreement-by-{self.by.replace(' ', '-')}", f"Ranking agreement by {self.by}"
        return [Bars(name, title, caption, names, bars, y_label=f"mean {self.measure}")]


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
    models = inside(matrices[0].models, *(one.models for one in matrices))
    names = order or [group for group in dict.fromkeys(map(groups.get, models)) if group is not None]
    members = {name: [m for m in models if groups.get(m) == name] for name in names}
    kept = {name: rows for name, rows in members.items() if len(rows) >= at_least} | {"all": models}
    cells = {name: [one.select(models=rows) for one in matrices] for name, rows in kept.items()}
    return _built(cells, by, Sampling(**how))


def agreement_by_tasks(
    matrices: Sequence[ScoreMatrix], groups: Mapping[str, Collection[str]], *, by: str, **how: Unpack[How]
) -> GroupAgreement:
    """Agreement within each set of tasks, e.g. those with large test splits (appendix B.5)."""
    tasks = inside(matrices[0].tasks, *(one.tasks for one in matrices))
    members = {name: inside(tasks, wanted) for name, wanted in groups.items()}
    kept = {name: columns for name, columns in members.items() if len(columns) > 1} | {"all": tasks}
    cells = {name: [one.select(tasks=columns) for one in matrices] for name, columns in kept.items()}
    return _built(cells, by, Sampling(**how))


def size_bins(billions: Mapping[str, float]) -> dict[str, str]:
    """Name the size bin of each model: [0, 1), [1, 2), … billions of parameters (table 6)."""
    return {m: f"[{int(size)}, {int(size) + 1})" for m, size in billions.items() if math.isfinite(size)}


def bin_order(bins: Iterable[str]) -> list[str]:
    """Bins from small to large."""
    return sorted(set(bins), key=lambda name: float(name[1:].split(",")[0]))


def measure_all(matrices: Sequence[ScoreMatrix], **how: Unpack[How]) -> GroupAgreement:
    """Mean agreement of every matrix by Kendall's, Spearman's and Pearson's correlation."""
    methods = {NAMES[name]: correlate for name, correlate in METHODS.items()}
    return _built(dict.fromkeys(methods, matrices), "measure", Sampling(**how), methods)


def _built(
    cells: Mapping[str, Sequence[ScoreMatrix]], by: str, how: Sampling, methods: Mapping[str, Correlate] | None = None
) -> GroupAgreement:
    """Measure the mean agreement of each group; by Kendall's τ, or a method for each."""
    groups = list(cells.values())
    return GroupAgreement(
        by=by,
        groups=tuple(cells),
        models=tuple(group[0].shape[0] for group in groups),
        tasks=tuple(group[0].shape[1] for group in groups),
        protocols=tuple(matrix.protocol for matrix in groups[0]),
        means=tuple(
            tuple(_mean(m, how, methods[name] if methods else kendall_matrix) for m in group)
            for name, group in cells.items()
        ),
        over=tuple(how.units.over(group[0].models) for group in groups),
        measure="agreement" if methods else NAMES["kendall"],
    )


def _mean(matrix: ScoreMatrix, how: Sampling, correlate: Correlate) -> Interval:
    """Mean agreement over pairs of tasks. With gaps, rho and r go pair by pair; a tenth of the resamples will do."""
    values, draws = matrix.oriented(), how.draws(matrix.models)
    if correlate is not kendall_matrix and not np.isfinite(values).all():
        draws = draws[: max(20, how.resamples // 10)]
    return how.interval(float(pair_mean(correlate(values))), pair_mean(correlate(values, weights=draws)))


@dataclass(frozen=True)
class PerplexityAgreement(Finding):
    """Agreement of perplexity rankings with each other and with task rankings."""

    perplexity_protocol: Protocol
    task_protocol: Protocol
    group: str  # which models: all, base, instruct
    models: int
    corpora: tuple[str, ...]
    tasks: tuple[str, ...]
    matrix: Floats  # (corpora, tasks)
    between_corpora: Floats  # (corpora, corpora)
    mean: Interval  # perplexity against tasks
    corpora_mean: Interval  # corpora against each other
    per_corpus: tuple[Interval, ...]
    averages: Interval  # average perplexity against average score
    over: str = "models"  # what the intervals draw

    def tables(self) -> Sequence[Table]:
        """Return the means with their intervals."""
        named = [
            ("between corpora, mean", self.corpora_mean),
            ("corpora against tasks, mean", self.mean),
            *((f"{c} against tasks, mean", i) for c, i in zip(self.corpora, self.per_corpus, strict=True)),
            ("average perplexity against average score", self.averages),
        ]
        title, columns = f"{self._what('against')} ({self.models})", ("agreement", "Kendall's τ", "low", "high")
        return [Table(title, columns, named, f"Intervals: bootstrap over {self.over}.")]

    def _what(self, joined: str) -> str:
        texts, tasks = self.perplexity_protocol.label, self.task_protocol.label
        return f"Perplexity ({texts}) {joined} tasks ({tasks}), {self.group} models"

    def charts(self) -> Sequence[Chart]:
        """Return the corpora × (corpora and tasks) heat map of figures 4 and 5."""
        values = np.concatenate([self.between_corpora, self.matrix], axis=1)
        name = f"perplexity-{self.perplexity_protocol}-{self.task_protocol}-{self.group}"
        against, between = mean_in_words(self.mean.value), mean_in_words(self.corpora_mean.value)
        caption = f"Kendall's τ; {against} against tasks, {between} between corpora."
        low = -1.0 if np.nanmin(values, initial=0.0) < -0.2 else 0.0
        cells = self.corpora, (*self.corpora, *self.tasks), values, low, 1.0
        return [Heatmap(name, self._what("and"), caption, *cells, unit="Kendall's τ", group="perplexity")]


def compare_perplexity(
    perplexity: ScoreMatrix,
    scores: ScoreMatrix,
    *,
    models: Collection[str] | None = None,
    group: str = "all",
    **how: Unpack[How],
) -> PerplexityAgreement:
    """Compare rankings by perplexity with rankings by score, on the models that both have.

    ``perplexity`` holds corpora, ``scores`` tasks; they may come from different protocols. Averages are taken over the
    models that have every corpus and every task.
    """
    asked = scores.models if models is None else models
    bits = perplexity.select(models=inside(scores.models, perplexity.models, asked))
    bits = bits.select(models=np.isfinite(bits.values).any(axis=1))
    if not bits.models:
        message = f"no model of the {group} group has both a perplexity and a score"
        raise InputError(message, hint="add corpora to the study, or pass scores of the same models")
    task = scores.select(models=bits.models)
    x, y = bits.oriented(), task.oriented()
    whole = np.isfinite(x).all(axis=1) & np.isfinite(y).all(axis=1)
    average_x, average_y = x.mean(axis=1)[whole, None], y.mean(axis=1)[whole, None]
    sampling = Sampling(**how)
    draws = sampling.draws(bits.models)
    matrix, between = kendall_matrix(x, y), kendall_matrix(x)
    spread, between_spread = kendall_matrix(x, y, weights=draws), kendall_matrix(x, weights=draws)
    averages = (kendall_matrix(average_x, average_y, weights=w) for w in (None, draws[:, whole]))
    average, average_spread = (tau[..., 0, 0] for tau in averages)
    return PerplexityAgreement(
        perplexity_protocol=perplexity.protocol,
        task_protocol=scores.protocol,
        group=group,
        models=len(bits.models),
        corpora=bits.tasks,
        tasks=task.tasks,
        matrix=matrix,
        between_corpora=between,
        mean=sampling.interval(float(nan_mean(matrix.ravel())), nan_mean(spread.reshape(len(spread), -1))),
        corpora_mean=sampling.interval(float(pair_mean(between)), pair_mean(between_spread)),
        per_corpus=tuple(
            sampling.interval(float(nan_mean(matrix[k])), nan_mean(spread[:, k])) for k in range(len(bits.tasks))
        ),
        averages=sampling.interval(float(average), average_spread),
        over=sampling.units.over(bits.models),
    )
