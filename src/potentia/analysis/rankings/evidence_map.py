"""Evidence between every two models: who is better on which task, and how sure that is.

On one task two models are compared on the items that all models have (McNemar's exact test), or by their standard
errors (z test) where no items are stored. Over all tasks the significant wins and losses are counted, and the mean
difference has the smallest true difference beside it that the tests would find with 80 % power.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.stats import norm

from potentia.analysis.rankings.decide import reach
from potentia.analysis.stats.bootstrap import LEVEL
from potentia.analysis.stats.paired import Outcomes, mcnemar_of_all
from potentia.analysis.stats.significance import benjamini_hochberg, pair_p_values
from potentia.values.findings import Cell, Table
from potentia.values.protocol import Protocol
from potentia.values.scores import Floats, ScoreMatrix


@dataclass(frozen=True)
class EvidenceMap:
    """Every pair of models (in the order of ``np.triu_indices``) on every task of one protocol."""

    protocol: Protocol
    models: tuple[str, ...]
    tasks: tuple[str, ...]
    basis: tuple[str, ...]  # per task: McNemar or z test
    values: Floats  # (models, tasks)
    stderr: Floats  # (models, tasks)
    difference: Floats  # (pairs, tasks), first minus second, higher is better
    p: Floats  # (pairs, tasks)
    critical: Floats  # (tasks,) the largest p that Benjamini–Hochberg keeps over all pairs of the task
    detectable: Floats  # (pairs,) of the mean difference
    mean: Floats  # (pairs,) mean difference over the shared tasks
    mean_p: Floats  # (pairs,)
    level: float = LEVEL

    def counts(self) -> tuple[npt.NDArray[np.int_], npt.NDArray[np.int_], npt.NDArray[np.int_]]:
        """Return wins, losses and ties of the first model of every pair, over the tasks that both have."""
        known = np.isfinite(self.p)
        real = known & (self.p < 1 - self.level)
        wins, losses = (real & (self.difference > 0)).sum(axis=1), (real & (self.difference < 0)).sum(axis=1)
        return wins, losses, known.sum(axis=1) - wins - losses

    def table(self) -> Table:
        """Return one row per pair over all tasks."""
        wins, losses, ties = self.counts()
        first, second = np.triu_indices(len(self.models), 1)
        rows: list[tuple[Cell, ...]] = [
            (
                self.models[a],
                self.models[b],
                int(wins[k]),
                int(losses[k]),
                int(ties[k]),
                *(float(v[k]) for v in (self.mean, self.mean_p, self.detectable)),
            )
            for k, (a, b) in enumerate(zip(first.tolist(), second.tolist(), strict=True))
        ]
        columns = ("first", "second", "wins", "losses", "ties", "mean difference", "p", "detectable")
        return Table(f"Every two models over {len(self.tasks)} tasks ({self.protocol.label})", columns, tuple(rows))


def map_evidence(matrix: ScoreMatrix, outcomes: Outcomes | None = None) -> EvidenceMap | None:
    """Compare every two models on every higher-is-better task with standard errors; None where there is none."""
    known = np.isfinite(matrix.values)
    usable = [
        task
        for k, task in enumerate(matrix.tasks)
        if matrix.higher_is_better[k] and known[:, k].sum() > 1 and np.isfinite(matrix.stderr[:, k]).any()
    ]
    rows = [m for m, row in zip(matrix.models, known, strict=True) if row.any()]
    if not usable or len(rows) < 2:
        return None
    tested = matrix.select(models=rows, tasks=usable)
    first, second = np.triu_indices(len(rows), 1)
    difference = tested.values[first] - tested.values[second]
    p = pair_p_values(tested)
    basis = [_sharpen(p[:, k], rows, (outcomes or {}).get(task, {})) for k, task in enumerate(usable)]
    kept = np.where(benjamini_hochberg(p) <= 1 - LEVEL, p, np.nan)
    critical = np.array([np.nanmax(c) if np.isfinite(c).any() else 0.0 for c in kept.T])
    variance = tested.stderr[first] ** 2 + tested.stderr[second] ** 2
    both = np.isfinite(difference) & np.isfinite(variance)
    shared = np.maximum(both.sum(axis=1), 1)
    mean = np.where(both.any(axis=1), np.where(both, difference, 0.0).sum(axis=1) / shared, np.nan)
    error = np.sqrt(np.where(both, variance, 0.0).sum(axis=1)) / shared
    with np.errstate(divide="ignore", invalid="ignore"):
        mean_p = np.where(mean == 0, 1.0, 2.0 * norm.sf(np.abs(mean / error)))
    return EvidenceMap(
        protocol=matrix.protocol,
        models=tested.models,
        tasks=tested.tasks,
        basis=tuple(basis),
        values=tested.values,
        stderr=tested.stderr,
        difference=difference,
        p=p,
        critical=critical,
        detectable=np.where(np.isfinite(mean), reach(LEVEL) * error, np.nan),
        mean=mean,
        mean_p=mean_p,
    )


def _sharpen(p: Floats, models: list[str], outcomes: Mapping[str, Mapping[int, float]]) -> str:
    """Put McNemar's p in the place of the z test's for every pair of models with items; returns the test's name."""
    present = [k for k, model in enumerate(models) if outcomes.get(model)]
    documents = sorted(set.intersection(*(set(outcomes[models[k]]) for k in present))) if len(present) > 1 else []
    if not documents:
        return "z test"
    right = np.array([[outcomes[models[k]][d] > 0.5 for d in documents] for k in present])
    first, second = np.triu_indices(len(present), 1)
    a, b = np.array(present)[first], np.array(present)[second]
    n = len(models)
    p[a * (2 * n - a - 1) // 2 + b - a - 1] = mcnemar_of_all(right)
    return "McNemar"
