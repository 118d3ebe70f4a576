"""Fewer benchmarks suffice: how well a few tasks rank the models as all of them do (section 4).

Models are ranked by their mean z score over a subset of the tasks, and the ranking is compared with that over all tasks
by Kendall's tau. Subsets are drawn at random, which says what any choice of that size is worth, and grown one by one,
the task that helps most first, which says what a good choice could be worth at best. A subset is part of the whole,
so random ones are compared with the ranking on the tasks left out as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from potentia.analysis.stats.bootstrap import LEVEL, interval
from potentia.analysis.stats.kendall import kendall_matrix
from potentia.values.findings import Cell, Chart, Finding, Interval, Line, Plot, Table
from potentia.values.protocol import Protocol
from potentia.values.scores import Floats, ScoreMatrix

DRAWS = 200
ENOUGH = 0.9  # a tau that calls two rankings the same


@dataclass(frozen=True)
class FewerTasks(Finding):
    """Agreement with the ranking over all tasks, by number of tasks."""

    protocol: Protocol
    models: int
    tasks: tuple[str, ...]
    sizes: tuple[int, ...]
    random: tuple[Interval, ...]  # against all tasks: mean, and the middle 95 % of subsets
    left_out: tuple[float, ...]  # against the tasks left out, mean
    best: tuple[float, ...]  # against all tasks, chosen one by one
    order: tuple[str, ...]  # the tasks as chosen

    @property
    def enough(self) -> int | None:
        """The smallest number of tasks whose random choice gives the whole ranking, with τ of 0.9 on average."""
        return next((n for n, i in zip(self.sizes, self.random, strict=True) if i.value >= ENOUGH), None)

    def tables(self) -> Sequence[Table]:
        """Return one row per number of tasks."""
        rows: list[tuple[Cell, ...]] = [
            (n, i.value, i.low, i.high, rest, best, task)
            for n, i, rest, best, task in zip(
                self.sizes, self.random, self.left_out, self.best, self.order, strict=True
            )
        ]
        told = "no number of tasks" if self.enough is None else f"{self.enough} of {len(self.tasks)} tasks"
        return [
            Table(
                f"Fewer tasks: agreement with the ranking over all ({self.protocol.label}, {self.models} models)",
                ("tasks", "random", "low", "high", "with the rest", "best", "task added"),
                tuple(rows),
                note=f"Kendall's τ with the ranking over all tasks, of random choices (mean, and 95 % of them) and of "
                f"the best, chosen one by one on these very models, so too well. {told.capitalize()} give "
                f"τ ≥ {ENOUGH} on average.",
            )
        ]

    def charts(self) -> Sequence[Chart]:
        """Return τ against the number of tasks."""
        x = tuple(map(float, self.sizes))
        random = Line(
            "random tasks", x, tuple(i.value for i in self.random), tuple(i.low for i in self.random),
            tuple(i.high for i in self.random),
        )  # fmt: skip
        return [
            Plot(
                name=f"fewer-tasks-{self.protocol}",
                title=f"How many tasks give the whole ranking: {self.protocol.label}",
                caption=f"Kendall's τ with the ranking over all {len(self.tasks)} tasks; the band holds 95 % of random "
                "choices.",
                lines=(
                    random,
                    Line("best tasks", x, self.best),
                    Line("random, with the rest", x, self.left_out, dashed=True),
                ),
                x_label="tasks",
                y_label="Kendall's τ",
                y_range=(min(0.0, *(i.low for i in self.random)), 1.0),
                group="fewer-tasks",
            )
        ]


def measure_fewer(matrix: ScoreMatrix, *, draws: int = DRAWS, level: float = LEVEL, seed: int = 0) -> FewerTasks | None:
    """Compare rankings on some tasks with the ranking on all; None where three models and tasks lack."""
    values = matrix.oriented()
    whole = np.isfinite(values).all(axis=1)
    spread = values[whole].std(axis=0) if whole.any() else np.zeros(values.shape[1])
    kept = np.flatnonzero(spread > 0)
    if whole.sum() < 3 or len(kept) < 3:
        return None
    z = (values[whole][:, kept] - values[whole][:, kept].mean(axis=0)) / spread[kept]
    names = [matrix.tasks[k] for k in kept]
    total = len(names)
    full = z.mean(axis=1, keepdims=True)
    rng = np.random.default_rng(seed)
    found: list[Interval] = []
    rest: list[float] = []
    for size in range(1, total + 1):
        masks = np.zeros((draws, total), dtype=bool)
        for row in masks:
            row[rng.permutation(total)[:size]] = True
        tau = kendall_matrix(z @ masks.T / size, full)[:, 0]
        found.append(interval(float(np.nanmean(tau)), tau, level=level))
        if size < total:
            others = z @ (~masks).T  # (models, draws)
            both = [np.column_stack([z @ m[:, None], o]) for m, o in zip(masks[:50], others.T, strict=False)]
            rest.append(float(np.nanmean(kendall_matrix(np.stack(both))[:, 0, 1])))
        else:
            rest.append(float("nan"))
    best, order = _grown(z, full)
    return FewerTasks(
        matrix.protocol, int(whole.sum()), tuple(names), tuple(range(1, total + 1)), tuple(found), tuple(rest), best,
        tuple(names[k] for k in order),
    )  # fmt: skip


def _grown(z: Floats, full: Floats) -> tuple[tuple[float, ...], list[int]]:
    """Add one task after the other, always the one that brings the ranking nearest to the whole."""
    order: list[int] = []
    best: list[float] = []
    total = np.zeros(len(z))
    while len(order) < z.shape[1]:
        left = [k for k in range(z.shape[1]) if k not in order]
        tau = kendall_matrix(total[:, None] + z[:, left], full)[:, 0]
        place = int(np.nanargmax(tau))
        order.append(left[place])
        best.append(float(tau[place]))
        total = total + z[:, left[place]]
    return tuple(best), order
