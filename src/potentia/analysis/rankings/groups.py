"""Agreement among alike models or tasks, and of perplexity with tasks.

Agreement over all models is partly the plain fact that larger models are better everywhere; within a bin of equal size
(table 6) or a family (table 7) that signal is gone and what is left is harder to agree on.

Rankings by bits per byte on each corpus are compared with the rankings on each task by Kendall's tau: under one
protocol (figure 4), or perplexity before tuning against scores after it (figure 5), for base and for instruct models
apart, since instruction tuning raises perplexity and scores alike. Agreement is signed so that 1 means alike.

Alignment of two rankings: only the changes of rank that are statistically significant (appendix C.1, figure 1).

Each task gives a partial order, the significant differences (algorithm 1). Algorithm 2 builds one linear extension of
each, place by place and side by side, so that the two differ as little as the partial orders allow. The paper names
three costs of a candidate pair (m1, m2) and leaves their weights open; here they are read lexicographically:

1. the sum of the places that m1 already has in order 2 and m2 in order 1, a model not yet placed there counting as n:
   a model that waits for its twin is placed as soon as it may be, the longest-waiting first;
2. m1 = m2 before m1 ≠ m2;
3. the sum of the rank of m1 on task 2 and of m2 on task 1 (1 is best, ties share the mean rank);
4. the order of the models as given, for determinism.

Costs 1 and 3 are sums of one term per side and cost 2 matters only where both sides have no waiting model, so the best
pair is found from the two sides alone: n steps of vector work, instead of the n·|available|² loop of the paper.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Unpack

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

from potentia.analysis.left_out import NO_ENTRIES, keep_names_in
from potentia.analysis.rankings.agreement import METHOD_NAMES
from potentia.analysis.stats.bootstrap import LEVEL, How, Sampling, mean_over_pairs
from potentia.analysis.stats.correlation import CORRELATIONS, Correlate, kendall_matrix, nan_mean
from potentia.analysis.stats.significance import significant_order
from potentia.errors import InputError
from potentia.values.findings import (
    Bars,
    Bump,
    Chart,
    Finding,
    Heatmap,
    Interval,
    Table,
    mean_in_words,
    picked,
)
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
    over: tuple[
        str, ...
    ]  # per group: what its intervals draw, families where it has three or more, else models
    measure: str

    def tables(self) -> Sequence[Table]:
        """Return one row per group: its size, and each protocol's mean agreement with its interval."""
        by = {
            unit: [g for g, over in zip(self.groups, self.over, strict=True) if over == unit]
            for unit in self.over
        }
        told = (
            "; ".join(f"{unit} of {', '.join(names)}" for unit, names in by.items())
            if len(by) > 1
            else "".join(by)
        )
        columns = (
            "group",
            "models",
            "tasks",
            *(x for p in self.protocols for x in (p.label, "low", "high")),
        )
        rows = zip(
            self.groups, self.models, self.tasks, *zip(*self.means, strict=True), strict=True
        )
        title = f"Mean {self.measure} over pairs of tasks, by {self.by}"
        return [Table(title, columns, rows, f"Intervals: bootstrap over {told}.")]

    def charts(self) -> Sequence[Chart]:
        """Return grouped bars with intervals."""
        caption = f"Mean {self.measure} over pairs of tasks, with bootstrap intervals."
        names = [f"{g} ({n})" for g, n in zip(self.groups, self.models, strict=True)]
        bars = dict(
            zip((p.label for p in self.protocols), zip(*self.means, strict=True), strict=True)
        )
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
    models = keep_names_in(matrices[0].models, *(one.models for one in matrices))
    names = order or [
        group for group in dict.fromkeys(map(groups.get, models)) if group is not None
    ]
    members = {name: [m for m in models if groups.get(m) == name] for name in names}
    kept = {name: rows for name, rows in members.items() if len(rows) >= at_least} | {"all": models}
    cells = {name: [one.select(models=rows) for one in matrices] for name, rows in kept.items()}
    return _built(cells, by, Sampling(**how))


def agreement_by_tasks(
    matrices: Sequence[ScoreMatrix],
    groups: Mapping[str, Collection[str]],
    *,
    by: str,
    **how: Unpack[How],
) -> GroupAgreement:
    """Agreement within each set of tasks, e.g. those with large test splits (appendix B.5)."""
    tasks = keep_names_in(matrices[0].tasks, *(one.tasks for one in matrices))
    members = {name: keep_names_in(tasks, wanted) for name, wanted in groups.items()}
    kept = {name: columns for name, columns in members.items() if len(columns) > 1} | {"all": tasks}
    cells = {
        name: [one.select(tasks=columns) for one in matrices] for name, columns in kept.items()
    }
    return _built(cells, by, Sampling(**how))


def name_size_bins(billions: Mapping[str, float]) -> dict[str, str]:
    """Name the size bin of each model: [0, 1), [1, 2), … billions of parameters (table 6)."""
    return {
        m: f"[{int(size)}, {int(size) + 1})" for m, size in billions.items() if math.isfinite(size)
    }


def sort_size_bins(bins: Iterable[str]) -> list[str]:
    """Bins from small to large."""
    return sorted(set(bins), key=lambda name: float(name[1:].split(",")[0]))


def agreement_by_measure(matrices: Sequence[ScoreMatrix], **how: Unpack[How]) -> GroupAgreement:
    """Mean agreement of every matrix by Kendall's, Spearman's and Pearson's correlation."""
    methods = {METHOD_NAMES[name]: correlate for name, correlate in CORRELATIONS.items()}
    return _built(dict.fromkeys(methods, matrices), "measure", Sampling(**how), methods)


def _built(
    cells: Mapping[str, Sequence[ScoreMatrix]],
    by: str,
    how: Sampling,
    methods: Mapping[str, Correlate] | None = None,
) -> GroupAgreement:
    """Measure the mean agreement of each group; by Kendall's τ, or a method for each."""
    groups = list(cells.values())
    means = {name: methods[name] if methods else kendall_matrix for name in cells}
    return GroupAgreement(
        by=by,
        groups=tuple(cells),
        models=tuple(group[0].shape[0] for group in groups),
        tasks=tuple(group[0].shape[1] for group in groups),
        protocols=tuple(matrix.protocol for matrix in groups[0]),
        means=tuple(
            tuple(_mean(m, how, means[name]) for m in group) for name, group in cells.items()
        ),
        over=tuple(how.units.drawn_unit(group[0].models) for group in groups),
        measure="agreement" if methods else METHOD_NAMES["kendall"],
    )


def _mean(matrix: ScoreMatrix, how: Sampling, correlate: Correlate) -> Interval:
    """Mean agreement over pairs of tasks. With gaps, rho and r go pair by pair; a tenth of the resamples will do."""
    values, draws = matrix.oriented(), how.draws(matrix.models)
    if correlate is not kendall_matrix and not np.isfinite(values).all():
        draws = draws[: max(20, how.resamples // 10)]
    return how.interval(
        float(mean_over_pairs(correlate(values))), mean_over_pairs(correlate(values, weights=draws))
    )


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
            *(
                (f"{c} against tasks, mean", i)
                for c, i in zip(self.corpora, self.per_corpus, strict=True)
            ),
            ("average perplexity against average score", self.averages),
        ]
        title, columns = (
            f"{self._what('against')} ({self.models})",
            ("agreement", "Kendall's τ", "low", "high"),
        )
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
        return [
            Heatmap(
                name, self._what("and"), caption, *cells, unit="Kendall's τ", group="perplexity"
            )
        ]


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
    bits = perplexity.select(models=keep_names_in(scores.models, perplexity.models, asked))
    bits = bits.select(models=np.isfinite(bits.values).any(axis=1))
    if not bits.models:
        message = f"no model of the {group} group has both a perplexity and a score"
        raise InputError(
            message, hint="add corpora to the study, or pass scores of the same models"
        )
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
        mean=sampling.interval(
            float(nan_mean(matrix.ravel())), nan_mean(spread.reshape(len(spread), -1))
        ),
        corpora_mean=sampling.interval(
            float(mean_over_pairs(between)), mean_over_pairs(between_spread)
        ),
        per_corpus=tuple(
            sampling.interval(float(nan_mean(matrix[k])), nan_mean(spread[:, k]))
            for k in range(len(bits.tasks))
        ),
        averages=sampling.interval(float(average), average_spread),
        over=sampling.units.drawn_unit(bits.models),
    )


Ints = npt.NDArray[np.int_]


@dataclass(frozen=True)
class Alignment(Finding):
    """Two aligned rankings of the same models."""

    protocol: Protocol
    tasks: tuple[str, str]
    models: tuple[str, ...]
    ranks: Ints  # (models, 2), 1 is best
    groups: tuple[str, ...]
    tau: float  # Kendall's tau of the plain rankings
    aligned_tau: float  # and of the aligned ones
    moved: int  # models whose two aligned ranks differ

    def tables(self) -> Sequence[Table]:
        """Return both ranks of every model, and the agreement before and after the alignment."""
        order = np.lexsort((self.ranks[:, 1], self.ranks[:, 0]))
        rows = list(
            zip(self.models, *self.ranks.T, self.ranks[:, 1] - self.ranks[:, 0], strict=True)
        )
        title = f"Aligned ranks on {self.tasks[0]} and {self.tasks[1]} ({self.protocol.label})"
        note = (
            f"{self.moved} of {len(self.models)} models keep a change that no alignment removed; "
            f"τ {self.tau:.2f} plain, {self.aligned_tau:.2f} aligned."
        )
        return [Table(title, ("model", *self.tasks, "change"), picked(rows, order), note)]

    def charts(self) -> Sequence[Chart]:
        """Return the bump chart of figure 1."""
        first, second = self.tasks
        name, title = (
            f"alignment-{self.protocol}-{first}-{second}",
            f"{first} and {second}: {self.protocol.label}",
        )
        caption = (
            "Rankings aligned greedily, never against a significant difference on either task."
        )
        return [Bump(name, title, caption, self.models, self.tasks, self.ranks, self.groups)]


def align_rankings(
    matrix: ScoreMatrix,
    first: str,
    second: str,
    *,
    level: float = LEVEL,
    families: Mapping[str, str] = NO_ENTRIES,
) -> Alignment:
    """Align the rankings of two tasks over the models that both have scores of (algorithm 3)."""
    pair = matrix.select(tasks=[first, second]).complete()
    if not np.isfinite(pair.stderr).all():
        raise InputError(f"{first} and {second} need standard errors to be aligned")
    values = pair.oriented()
    (one, two), (error_one, error_two) = values.T, pair.stderr.T
    aligned = np.stack(align_orders(one, error_one, two, error_two, level=level), axis=1)
    return Alignment(
        protocol=matrix.protocol,
        tasks=(first, second),
        models=pair.models,
        ranks=aligned,
        groups=tuple(families.get(m, "") for m in pair.models),
        tau=float(kendall_matrix(values)[0, 1]),
        aligned_tau=float(kendall_matrix(-aligned.astype(np.float64))[0, 1]),
        moved=int((aligned[:, 0] != aligned[:, 1]).sum()),
    )


def align_orders(
    score1: Floats, stderr1: Floats, score2: Floats, stderr2: Floats, *, level: float = LEVEL
) -> tuple[Ints, Ints]:
    """Algorithms 2 and 3: ranks (1 is best) that keep both partial orders and are as alike as greed makes them."""
    plain1, plain2 = rankdata(-score1), rankdata(-score2)
    side1, side2 = (
        _Side(significant_order(score1, stderr1, level=level)),
        _Side(significant_order(score2, stderr2, level=level)),
    )
    for _ in range(len(score1)):
        m1, m2 = side1.longest_waiting(side2.place), side2.longest_waiting(side1.place)
        if m1 < 0 and m2 < 0:
            m1 = m2 = _least(plain1 + plain2, side1.available & side2.available)
        side1.put(m1 if m1 >= 0 else _least(plain2, side1.available))
        side2.put(m2 if m2 >= 0 else _least(plain1, side2.available))
    return side1.place + 1, side2.place + 1


class _Side:
    """One order under construction: who has a place, and who may come next."""

    def __init__(self, beats: npt.NDArray[np.bool_]) -> None:
        self.beats = beats
        self.above = beats.sum(axis=0).astype(
            np.int64
        )  # unplaced models that must come before each
        self.place = np.full(len(beats), len(beats), dtype=np.int64)  # n: no place yet
        self.available = self.above == 0
        self.next = 0

    def longest_waiting(self, other_place: Ints) -> int:
        """Return the available model that was placed first on the other side, or -1."""
        place = np.where(self.available, other_place, len(other_place))
        best = int(place.argmin()) if len(place) else -1
        return best if place[best] < len(place) else -1

    def put(self, model: int) -> None:
        self.place[model] = self.next
        self.next += 1
        self.above -= self.beats[model]
        self.available = (self.above == 0) & (self.place == len(self.place))


def _least(cost: Floats, allowed: npt.NDArray[np.bool_]) -> int:
    """Return the first allowed model of least cost, or -1 where none is allowed."""
    return int(np.where(allowed, cost, np.inf).argmin()) if allowed.any() else -1
