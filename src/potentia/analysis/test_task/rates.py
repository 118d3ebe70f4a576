"""Whether the budget of the learning-rate search decides: every rate's score, and θ with one group favoured (B.3).

A study with ``adjust: {every_rate: true}`` stores the test score of every learning rate, beside that of the rate which
validation chose. The newer models (or whichever group is asked about) are then given their best rate by the test
itself, while the others keep theirs: a θ that stays small was not an artefact of the search.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from potentia.analysis.test_task.adjustment import GroupScaling, compare_groups, favour_group
from potentia.analysis.test_task.cohort import Split
from potentia.analysis.test_task.pair import Pair
from potentia.values.findings import Cell, Chart, Finding, Line, Plot, Table
from potentia.values.protocol import Protocol
from potentia.values.scores import Floats

if TYPE_CHECKING:
    from potentia.evidence import Evidence

Rates = Mapping[str, Mapping[float, float]]  # model → learning rate → score on the test split


@dataclass(frozen=True)
class RateBudget(Finding):
    """Every model's score by learning rate on one task, and θ where the group has its best rate."""

    task: str
    models: tuple[str, ...]
    rates: tuple[float, ...]
    values: Floats  # (models, rates); NaN where a rate was not tried
    chosen: tuple[float, ...]  # score of the rate that validation chose
    favoured: GroupScaling | None = None  # equation 1 after adjustment, the group at its best rate
    usual: GroupScaling | None = None  # the same at the rates that were chosen

    def tables(self) -> Sequence[Table]:
        """Return one row per model, and both effects."""
        rows: list[tuple[Cell, ...]] = [
            (model, *map(float, self.values[k]), self.chosen[k]) for k, model in enumerate(self.models)
        ]
        columns = ("model", *(f"{rate:g}" for rate in self.rates), "chosen")
        note = "The score on the test split at every learning rate. Validation chooses; these scores choose nothing."
        tables = [Table(f"{self.task}: score by learning rate", columns, tuple(rows), note)]
        if self.favoured is not None and self.usual is not None:
            effects = (("as chosen", self.usual), (f"{self.favoured.group}: best rate by the test", self.favoured))
            told: list[tuple[Cell, ...]] = [(n, g.effect.value, g.effect.clustered_p) for n, g in effects]
            why = "A θ that stays small where one group is favoured in the search is no artefact of it (appendix B.3)."
            tables.append(Table(f"{self.task}: θ by search budget", ("rates", "θ", "p"), tuple(told), why))
        return tables

    def charts(self) -> Sequence[Chart]:
        """Return a line per model over the learning rates."""
        lines = tuple(Line(model, self.rates, tuple(map(float, self.values[k]))) for k, model in enumerate(self.models))
        caption = (
            "The score on the test split after adjustment; a model whose best rate is at an end may want another grid."
        )
        title = f"{self.task}: score by learning rate"
        return [
            Plot(
                f"{self.task}-rates", title, caption, lines=lines, x_label="learning rate", y_label="score", log_x=True
            )
        ]


def stored_rates(evidence: Evidence, protocol: Protocol) -> dict[str, Rates]:
    """Return the scores of every learning rate by task, where a study stored them; several seeds are averaged."""
    found: dict[str, dict[str, dict[float, list[float]]]] = {}
    for cell in evidence.choices(protocol) if evidence.stores else ():
        if cell.names("rates"):
            for one in cell.selection.get("rates") or ():
                by = found.setdefault(cell.task, {}).setdefault(cell.model, {})
                by.setdefault(float(one["learning_rate"]), []).append(float(one["value"]))
    return {
        task: {model: {rate: float(np.mean(v)) for rate, v in by.items()} for model, by in models.items()}
        for task, models in found.items()
    }


def weigh_rates(
    task: str,
    rates: Rates,
    pair: Pair | None = None,
    parts: Split | None = None,
    *,
    chosen: Mapping[str, float] | None = None,
    draws: int = 1999,
    seed: int = 0,
) -> RateBudget:
    """Lay every rate's scores side by side; with a pair and its division, give the group its best and fit θ again."""
    models = tuple(rates)
    grid = tuple(sorted({rate for by in rates.values() for rate in by}))
    values = np.array([[rates[m].get(rate, np.nan) for rate in grid] for m in models])
    taken = tuple(float((chosen or {}).get(m, np.nan)) for m in models)
    made = RateBudget(task, models, grid, values, taken)
    if pair is None or parts is None:
        return made
    sweep = [np.array([rates.get(m, {}).get(rate, np.nan) for m in pair.cohort.models]) for rate in grid]
    usual = compare_groups(pair, parts, draws=draws, seed=seed).after
    favoured = compare_groups(favour_group(pair, parts, sweep), parts, draws=draws, seed=seed).after
    return replace(made, usual=usual, favoured=favoured)
