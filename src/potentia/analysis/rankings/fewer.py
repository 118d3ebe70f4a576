"""Fewer benchmarks suffice (section 4): agreement with the ranking over all tasks against the cost of a fixed subset.

A subset is chosen on some models and judged on others: tasks are added one by one, each time the one that raises τ the
most per cost on the models to choose by, and τ is taken on the models left out, with lineages on one side. Chosen and
judged on the same models, a subset would look better than it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from potentia.analysis.rankings.aggregate import mean_z
from potentia.analysis.stats.bootstrap import tau_rows
from potentia.errors import InputError
from potentia.values.findings import Cell, Chart, Finding, Interval, Line, Plot, Table
from potentia.values.protocol import Protocol
from potentia.values.scores import Floats, ScoreMatrix

SPLITS = 40
LEAST = 8  # models


@dataclass(frozen=True)
class TaskCurve(Finding):
    """Agreement of subsets of one, two, three … tasks with the whole, on models that the choice did not see."""

    protocol: Protocol
    tasks: tuple[str, ...]  # in the order of choice, on all models
    cost: tuple[float, ...]  # share of the cost of all tasks so far
    held_out: tuple[Interval, ...]  # τ on models left out, mean and 10–90 % over splits
    seen: tuple[float, ...]  # τ on the models that chose
    any_subset: tuple[float, ...]  # τ of random subsets of that size, on the models left out

    def enough(self, agreement: float) -> int | None:
        """Return how many tasks reach this agreement; None where no subset does."""
        return next((k + 1 for k, value in enumerate(self.held_out) if value.value >= agreement), None)

    def tables(self) -> Sequence[Table]:
        """Return the curve."""
        rows: list[tuple[Cell, ...]] = [
            (k + 1, task, self.cost[k], h.value, f"{h.low:.3f}–{h.high:.3f}", self.seen[k], self.any_subset[k])
            for k, (task, h) in enumerate(zip(self.tasks, self.held_out, strict=True))
        ]
        reached = {level: self.enough(level) for level in (0.8, 0.9, 0.95)}
        said = ", ".join(f"τ {level:g} takes {k}" for level, k in reached.items() if k is not None)
        columns = ("tasks", "added", "cost share", "τ, other models", "10–90 %", "τ, same models", "random")
        note = "Chosen on half of the models, judged on the others."
        note += f" Of {len(self.tasks)} tasks, {said}." if said else ""
        return [Table(f"How few tasks suffice ({self.protocol.label})", columns, tuple(rows), note=note)]

    def charts(self) -> Sequence[Chart]:
        """Return agreement against cost."""
        return [
            Plot(
                name=f"fewer-tasks-{self.protocol}",
                title=f"Agreement with the whole ranking against cost: {self.protocol.label}",
                caption="Fixed subsets of tasks, chosen on half of the models; random ones beside.",
                lines=(
                    Line("on other models", self.cost, tuple(h.value for h in self.held_out)),
                    Line("on the same models", self.cost, self.seen),
                    Line("random tasks, by number", self.cost, self.any_subset, dashed=True),
                ),
                x_label="share of the cost of all tasks",
                y_label="Kendall's τ",
                group="fewer-tasks",
            )
        ]


def find_task_curve(
    matrix: ScoreMatrix,
    *,
    costs: Mapping[str, float] | None = None,
    lineages: Mapping[str, str] | None = None,
    splits: int = SPLITS,
    seed: int = 0,
) -> TaskCurve:
    """Measure how agreement rises with the tasks of a fixed subset; ``costs`` by task, else all cost the same."""
    whole = matrix.benchmarks().complete()
    values, names = whole.oriented(), whole.models
    if not enough_for_a_curve(whole):
        raise InputError(
            f"{len(names)} models have all of {len(whole.tasks)} tasks: too few to choose on some and judge on others",
            hint=f"at least {LEAST} models and two tasks are needed",
        )
    known = [costs[t] for t in whole.tasks if costs and t in costs]
    usual = float(np.median(known)) if known else 1.0
    price = np.array([(costs or {}).get(t, usual) for t in whole.tasks], dtype=np.float64)
    kin = np.array([(lineages or {}).get(m, m) for m in names])
    kin = kin if len(set(kin.tolist())) >= LEAST // 2 else np.array(names)
    rng = np.random.default_rng(seed)
    count = len(whole.tasks)
    seen, other, plain = (np.empty((splits, count)) for _ in range(3))
    for split in range(splits):
        groups = rng.permutation(np.unique(kin))
        inside = np.isin(kin, groups[: len(groups) // 2])
        order = choose_tasks(values[inside], price)
        seen[split] = _taus(values[inside], order)
        other[split] = _taus(values[~inside], order)
        plain[split] = _taus(values[~inside], rng.permutation(count))
    final = choose_tasks(values, price)
    low, high = np.nanquantile(other, [0.1, 0.9], axis=0)
    return TaskCurve(
        protocol=whole.protocol,
        tasks=tuple(whole.tasks[t] for t in final),
        cost=tuple((np.cumsum(price[final]) / price.sum()).tolist()),
        held_out=tuple(
            Interval(float(m), float(a), float(b), 0.8)
            for m, a, b in zip(np.nanmean(other, axis=0), low, high, strict=True)
        ),
        seen=tuple(np.nanmean(seen, axis=0).tolist()),
        any_subset=tuple(np.nanmean(plain, axis=0).tolist()),
    )


def enough_for_a_curve(whole: ScoreMatrix) -> bool:
    """Whether there are models to choose tasks on and others to judge by."""
    return len(whole.models) >= LEAST and len(whole.tasks) > 1


def choose_tasks(values: Floats, price: Floats) -> npt.NDArray[np.intp]:
    """Order the tasks: each time the one that raises τ with the whole the most for its cost."""
    z = _standard(values)
    truth, count = z.mean(axis=1), values.shape[1]
    order: list[int] = []
    total, held = np.zeros(len(values)), 0.0
    while len(order) < count:
        left = [t for t in range(count) if t not in order]
        taus = np.nan_to_num(tau_rows(truth, (total[:, None] + z[:, left]).T))
        gain = np.maximum(taus - held, 0.0)
        # Where nothing raises τ any more, the least harm.
        worth = gain / price[left] if gain.max() > 0 else taus
        best = int(np.argmax(worth))
        order.append(left[best])
        total, held = total + z[:, left[best]], float(taus[best])
    return np.array(order)


def _taus(values: Floats, order: npt.NDArray[np.intp]) -> Floats:
    """τ of the first one, two, three … tasks with all of them."""
    z = _standard(values)[:, order]
    partial = np.cumsum(z, axis=1)
    return np.asarray(tau_rows(mean_z(values), partial.T))


def _standard(values: Floats) -> Floats:
    spread = values.std(axis=0)
    return np.asarray(np.where(spread > 1e-12, (values - values.mean(axis=0)) / np.maximum(spread, 1e-12), 0.0))
