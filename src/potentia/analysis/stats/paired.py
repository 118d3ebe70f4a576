"""Paired comparison of all models on the items they share: the sharpest test that stored outcomes allow.

Two models that answer the same items differ only where one is right and the other is not; McNemar's exact test looks at
those items alone. For every pair of models these counts are one matrix product. Items count as right where their value
is above one half.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.stats import binom

from potentia.analysis.stats.bootstrap import LEVEL, RESAMPLES
from potentia.analysis.stats.significance import PairedComparison, benjamini_hochberg, compare_items, pair_signs
from potentia.values.findings import Cell, Finding, Table
from potentia.values.protocol import Protocol
from potentia.values.scores import Floats, Outcomes, ScoreMatrix


@dataclass(frozen=True)
class PairedSignificance(Finding):
    """Pairs of models that differ on the same items, beside the z test from standard errors."""

    protocol: Protocol
    level: float
    tasks: tuple[str, ...]
    models: tuple[int, ...]
    items: tuple[int, ...]
    pairs: tuple[int, ...]
    by_z: tuple[int, ...]  # significant by the z test, on the same models
    by_items: tuple[int, ...]  # by McNemar's exact test
    discoveries: tuple[int, ...]  # of these after Benjamini–Hochberg
    leaders: tuple[PairedComparison, ...]  # the best two models of each task

    def tables(self) -> Sequence[Table]:
        """Return the resolved pairs per task, and the best model against the second best."""
        counts: list[tuple[Cell, ...]] = list(
            zip(
                self.tasks, self.models, self.items, self.pairs, self.by_z, self.by_items, self.discoveries, strict=True
            )
        )
        heads: list[tuple[Cell, ...]] = [
            (task, c.first, c.second, c.difference.value, c.difference.low, c.difference.high, c.p_value)
            for task, c in zip(self.tasks, self.leaders, strict=True)
        ]
        return [
            Table(
                f"Pairs of models that differ on the same items ({self.protocol.label}, {self.level:.0%})",
                ("task", "models", "items", "pairs", "z test", "McNemar", "after BH"),
                tuple(counts),
                note="McNemar's exact test on stored items; the z test knows only the standard errors.",
            ),
            Table(
                f"First against second on the same items ({self.protocol.label})",
                ("task", "first", "second", "difference", "low", "high", "p (McNemar)"),
                tuple(heads),
            ),
        ]


def compare_all_items(
    matrix: ScoreMatrix, outcomes: Outcomes, *, level: float = LEVEL, resamples: int = RESAMPLES, seed: int = 0
) -> PairedSignificance | None:
    """Test every pair of models on every task with stored items; None where no task has items of two models."""
    rows = []
    for column, task in enumerate(matrix.tasks):
        models, right = _aligned(matrix.models, outcomes.get(task, {}))
        if len(models) < 2 or right.shape[1] == 0:
            continue
        p = mcnemar_of_all(right > 0.5)
        signs, _ = pair_signs(matrix.select(models=models, tasks=[task]), level=level)
        scores = matrix.oriented()[[matrix.models.index(m) for m in models], column]
        first, second = np.argsort(-np.where(np.isfinite(scores), scores, -np.inf), kind="stable")[:2]
        leader = compare_items(
            right[first],
            right[second],
            names=(models[first], models[second]),
            level=level,
            resamples=resamples,
            seed=seed,
        )
        adjusted = benjamini_hochberg(p[:, None])[:, 0]
        rows.append(
            (
                task,
                len(models),
                right.shape[1],
                len(p),
                int((signs != 0).sum()),
                int((p < 1 - level).sum()),
                int((adjusted < 1 - level).sum()),
                leader,
            )
        )
    return PairedSignificance(matrix.protocol, level, *zip(*rows, strict=True)) if rows else None


def mcnemar_of_all(right: npt.NDArray[np.bool_]) -> Floats:
    """McNemar's exact p value of every pair of rows of (models, items), in the order of ``np.triu_indices``."""
    hits = right.astype(np.float64)
    only = hits @ (1.0 - hits).T  # [a, b]: items that a alone got right
    a, b = np.triu_indices(len(right), 1)
    apart = only[a, b] + only[b, a]
    p = 2.0 * binom.cdf(np.minimum(only[a, b], only[b, a]), apart, 0.5)
    return np.where(apart > 0, np.minimum(p, 1.0), 1.0)


def item_tables(matrix: ScoreMatrix, outcomes: Outcomes) -> dict[str, Floats]:
    """Return (models, items) for each task whose items can stand for its scores, to draw their noise from.

    Every model with a score must have the items, all on the same documents, and their mean must be the score: that
    leaves out metrics of a whole set (mcc, f1), whose noise comes from their standard errors.
    """
    tables = {}
    for column, task in enumerate(matrix.tasks):
        scored = [m for m, v in zip(matrix.models, matrix.values[:, column], strict=True) if np.isfinite(v)]
        models, values = _aligned(scored, outcomes.get(task, {}))
        if not scored or models != scored or values.shape[1] == 0:
            continue
        rows = [matrix.models.index(m) for m in models]
        if np.allclose(values.mean(axis=1), matrix.values[rows, column], atol=1e-6):
            table = np.full((len(matrix.models), values.shape[1]), np.nan)
            table[rows] = values
            tables[task] = table
    return tables


def _aligned(models: Sequence[str], outcomes: Mapping[str, Mapping[int, float]]) -> tuple[list[str], Floats]:
    """Return the models with items, and their values on the documents that all of them have."""
    present = [m for m in models if outcomes.get(m)]
    if not present:
        return [], np.zeros((0, 0))
    documents = sorted(set.intersection(*(set(outcomes[m]) for m in present)))
    return present, np.array([[outcomes[m][d] for d in documents] for m in present], dtype=np.float64)
