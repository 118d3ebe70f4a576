"""The overall ranking: one rule for all protocols of a comparison, chosen in one place and said with its reason.

The first principal component is the paper's summary of a model, but it ranks models only where every task loads on it
with the same sign and every model has all scores. Where that fails under any protocol, the mean z score is taken for
all of them, so that two columns of ranks are never made by two rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from potentia.analysis.rankings.aggregate import Aggregate
from potentia.analysis.rankings.components import Components
from potentia.analysis.stats.bootstrap import LEVEL
from potentia.values.findings import Cell, Finding, Table
from potentia.values.protocol import Protocol
from potentia.values.scores import Floats

MAY_BE_FIRST = 1.5  # an interval that reaches below this holds the first place
NAMES = {"PC1": "first principal component", "mean z": "mean z score over tasks"}


@dataclass(frozen=True)
class Ranking(Finding):
    """Models from best to worst under one protocol, with the interval of every rank."""

    protocol: Protocol
    method: str
    reason: str  # why this method
    models: tuple[str, ...]  # best first
    tasks: tuple[str, ...]
    scores: Floats  # (models,) by the method; higher is better
    ranks: Floats
    low: Floats  # best rank within the interval over noise and tasks
    high: Floats
    level: float = LEVEL

    @property
    def rivals(self) -> tuple[str, ...]:
        """The models beside the first whose intervals reach the first place."""
        return tuple(m for m, low in zip(self.models[1:], self.low[1:].tolist(), strict=True) if low < MAY_BE_FIRST)

    def rank(self, model: str) -> float | None:
        """Return a model's rank; None where it has none."""
        return float(self.ranks[self.models.index(model)]) if model in self.models else None

    def tables(self) -> Sequence[Table]:
        """Return the ranking."""
        rows: list[tuple[Cell, ...]] = [
            (m, f"{self.ranks[k]:g}", f"{self.low[k]:.0f} to {self.high[k]:.0f}", float(self.scores[k]))
            for k, m in enumerate(self.models)
        ]
        return [
            Table(
                f"Overall ranking ({self.protocol.label}, {len(self.models)} models × {len(self.tasks)} tasks)",
                ("model", "rank", f"{self.level:.0%} interval", self.method),
                tuple(rows),
                note=f"By the {NAMES[self.method]}: {self.reason}.",
                digits=2,
            )
        ]


def rank_overall(
    aggregates: Mapping[Protocol, Aggregate], components: Mapping[Protocol, Components], *, level: float = LEVEL
) -> dict[Protocol, Ranking]:
    """Rank the models under every protocol by the one method that fits all of them."""
    method, reason = choose_method(aggregates, components)
    return {protocol: _ranking(found, method, reason, level) for protocol, found in aggregates.items()}


def choose_method(
    aggregates: Mapping[Protocol, Aggregate], components: Mapping[Protocol, Components]
) -> tuple[str, str]:
    """Return the method that ranks every protocol, and the reason for it."""
    for protocol, aggregate in aggregates.items():
        found = components.get(protocol)
        if len(aggregate.tasks) < 2:
            return "mean z", "there is one task"
        if found is None:
            return "mean z", f"{protocol.label} has too few models for principal components"
        against = int((found.loadings[0] <= 0).sum())
        if against:
            return "mean z", f"{against} of {len(found.tasks)} tasks run against the first component ({protocol.label})"
        missing = int((~np.isfinite(aggregate.ranks[:, aggregate.methods.index("PC1")])).sum())
        if missing:
            return "mean z", f"{missing} of {len(aggregate.models)} models lack some score ({protocol.label})"
    return "PC1", "every task loads on it with the same sign, and every model has all scores"


def _ranking(found: Aggregate, method: str, reason: str, level: float) -> Ranking:
    column = found.methods.index(method)
    ranks = found.ranks[:, column]
    order = [int(k) for k in np.argsort(ranks, kind="stable") if np.isfinite(ranks[k])]
    return Ranking(
        protocol=found.protocol,
        method=method,
        reason=reason,
        models=tuple(found.models[k] for k in order),
        tasks=found.tasks,
        scores=found.scores[order, column],
        ranks=ranks[order],
        low=found.low[order, column],
        high=found.high[order, column],
        level=level,
    )
