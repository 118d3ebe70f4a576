"""Alignment of two rankings: only the changes of rank that are statistically significant (appendix C.1, figure 1).

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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

from potentia.analysis.left_out import NO_ENTRIES
from potentia.analysis.stats.bootstrap import LEVEL
from potentia.analysis.stats.correlation import kendall_matrix
from potentia.analysis.stats.score_errors import believe_errors
from potentia.analysis.stats.significance import significant_order
from potentia.errors import InputError
from potentia.values.findings import Bump, Chart, Finding, Table, select_positions
from potentia.values.protocol import Protocol
from potentia.values.scores import Floats, ScoreMatrix

Ints = npt.NDArray[np.int_]
NO_MODEL = -1


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
    best_ranks: Ints  # (models, 2): one more than the models that are significantly better
    worst_ranks: Ints  # (models, 2): all models but those that are significantly worse

    def tables(self) -> Sequence[Table]:
        """Return both ranks of every model, and the agreement before and after the alignment."""
        first, second = self.ranks.T
        table_rows = list(zip(self.models, first, second, second - first, strict=True))
        order = np.lexsort((second, first))
        title = f"Aligned ranks on {self.tasks[0]} and {self.tasks[1]} ({self.protocol.label})"
        note = (
            f"{self.moved} of {len(self.models)} models change rank by more than test noise; "
            f"Kendall's τ {self.tau:.2f} as measured, {self.aligned_tau:.2f} aligned."
        )
        return [
            Table(
                title, ("model", *self.tasks, "change"), select_positions(table_rows, order), note
            )
        ]

    def charts(self) -> Sequence[Chart]:
        """Return the bump chart of figure 1."""
        first, second = self.tasks
        title = f"{first} and {second}: {self.protocol.label}"
        chart = Bump(
            f"alignment-{self.protocol}-{first}-{second}",
            title,
            "Rank changes within test noise are removed where possible; significant differences stay."
            " Shaded: the ranks that significant differences leave possible.",
            self.models,
            self.tasks,
            self.ranks,
            self.groups,
            best_ranks=self.best_ranks,
            worst_ranks=self.worst_ranks,
        )
        return [chart]


def align_rankings(
    matrix: ScoreMatrix,
    first: str,
    second: str,
    *,
    level: float = LEVEL,
    families: Mapping[str, str] = NO_ENTRIES,
) -> Alignment:
    """Align the rankings of two tasks over the models that both have scores of (algorithm 3)."""
    task_pair = believe_errors(matrix.select(tasks=[first, second]).drop_incomplete_models())
    if not np.isfinite(task_pair.stderr).all():
        raise InputError(f"{first} and {second} need standard errors to be aligned")
    scores = task_pair.oriented()
    first_ranks, second_ranks = align_orders(
        scores[:, 0], task_pair.stderr[:, 0], scores[:, 1], task_pair.stderr[:, 1], level=level
    )
    ranks = np.stack([first_ranks, second_ranks], axis=1)
    best_ranks, worst_ranks = compute_possible_ranks(scores, task_pair.stderr, level=level)
    groups = tuple(families.get(model, "") for model in task_pair.models)
    aligned_tau = float(kendall_matrix(-ranks.astype(np.float64))[0, 1])
    moved = int((first_ranks != second_ranks).sum())
    return Alignment(
        protocol=matrix.protocol,
        tasks=(first, second),
        models=task_pair.models,
        ranks=ranks,
        groups=groups,
        tau=float(kendall_matrix(scores)[0, 1]),
        aligned_tau=aligned_tau,
        moved=moved,
        best_ranks=best_ranks,
        worst_ranks=worst_ranks,
    )


def compute_possible_ranks(
    scores: Floats, stderr: Floats, *, level: float = LEVEL
) -> tuple[Ints, Ints]:
    """Return the best and the worst rank that significant differences leave each model on each task."""
    best_ranks = np.empty(scores.shape, dtype=np.int_)
    worst_ranks = np.empty(scores.shape, dtype=np.int_)
    for task in range(scores.shape[1]):
        is_better = significant_order(scores[:, task], stderr[:, task], level=level)
        best_ranks[:, task] = 1 + is_better.sum(axis=0)
        worst_ranks[:, task] = len(is_better) - is_better.sum(axis=1)
    return best_ranks, worst_ranks


def align_orders(
    score1: Floats, stderr1: Floats, score2: Floats, stderr2: Floats, *, level: float = LEVEL
) -> tuple[Ints, Ints]:
    """Return ranks (1 is best) that keep both partial orders and are as alike as greed makes them (algorithms 2, 3)."""
    plain1 = rankdata(-score1)
    plain2 = rankdata(-score2)
    side1 = _OrderSide(significant_order(score1, stderr1, level=level))
    side2 = _OrderSide(significant_order(score2, stderr2, level=level))
    for _ in range(len(score1)):
        model1 = side1.longest_waiting(side2.place)
        model2 = side2.longest_waiting(side1.place)
        if model1 == NO_MODEL and model2 == NO_MODEL:
            in_both = side1.available & side2.available
            model1 = model2 = _cheapest_model(plain1 + plain2, in_both)
        if model1 == NO_MODEL:
            model1 = _cheapest_model(plain2, side1.available)
        if model2 == NO_MODEL:
            model2 = _cheapest_model(plain1, side2.available)
        side1.put(model1)
        side2.put(model2)
    return side1.place + 1, side2.place + 1


class _OrderSide:
    """One order under construction: who has a place, and who may come next."""

    def __init__(self, beats: npt.NDArray[np.bool_]) -> None:
        models = len(beats)
        self.beats = beats
        self.unplaced_above = beats.sum(axis=0).astype(
            np.int64
        )  # models that must come before each
        self.place = np.full(models, models, dtype=np.int64)  # n: no place yet
        self.available = self.unplaced_above == 0
        self.next_place = 0

    def longest_waiting(self, other_place: Ints) -> int:
        """Return the available model that was placed first on the other side, or ``NO_MODEL``."""
        models = len(other_place)
        position = np.where(self.available, other_place, models)
        if not models or position.min() == models:
            return NO_MODEL
        return int(position.argmin())

    def put(self, model: int) -> None:
        """Give the next place to a model."""
        self.place[model] = self.next_place
        self.next_place += 1
        self.unplaced_above -= self.beats[model]
        self.available = (self.unplaced_above == 0) & (self.place == len(self.place))


def _cheapest_model(cost: Floats, allowed: npt.NDArray[np.bool_]) -> int:
    """Return the first allowed model of least cost, or ``NO_MODEL`` where none is allowed."""
    if not allowed.any():
        return NO_MODEL
    return int(np.where(allowed, cost, np.inf).argmin())
