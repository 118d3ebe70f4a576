"""Was the fine-tuning the same for all? What every model was given, and which cells may have more in them.

The same recipe is the same fine-tuning where it trains as many parameters by as many updates on as many tokens, and
where its search ends inside what was searched. A cell whose best learning rate lies at the bound, whose validation
still rose at the end, or which kept the untuned model, may have more in it. The ranking leans on such cells where the
order of the mean standardised scores changes once they are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from potentia.values.findings import Cell, Finding, Table
from potentia.values.protocol import Protocol
from potentia.values.scores import ScoreMatrix

if TYPE_CHECKING:
    from potentia.evidence import Evidence

DOUBTS = ("at the bound", "still rising", "kept untuned")  # as cells record them: these may have more in them


@dataclass(frozen=True)
class Given:
    """What one model was given: medians over its cells, and its cells by how their search ended."""

    model: str
    cells: int
    trainable: float
    parts: tuple[str, ...]  # the targets of its adapters
    tokens: float
    updates: float
    rates: tuple[float, ...]  # the learning rates that were chosen
    doubts: Mapping[str, int]
    seed_spread: float  # the median standard deviation between seeds; NaN for one seed
    noise: float  # the median standard error of a test

    @property
    def doubtful(self) -> int:
        """Cells that may have more in them."""
        return sum(self.doubts.values())


@dataclass(frozen=True)
class SameForAll(Finding):
    """The fine-tunings of one protocol side by side."""

    protocol: Protocol
    given: tuple[Given, ...]
    moved: tuple[str, ...]  # models whose place over all tasks changes without the doubtful cells

    @property
    def cells(self) -> int:
        """Tuned cells that say how their search ended."""
        return sum(one.cells for one in self.given)

    @property
    def doubtful(self) -> int:
        """Cells that may have more in them."""
        return sum(one.doubtful for one in self.given)

    def sentences(self) -> list[str]:
        """Say what was not the same, what may have more in it, and what leans on that."""
        said = []
        parts = {one.parts for one in self.given}
        if len(parts) > 1:
            shown = "; ".join(sorted(", ".join(names) for names in parts))
            said.append(f"Not the same layers were tuned in all models: {shown}.")
        if self.doubtful:
            many = {doubt: sum(one.doubts[doubt] for one in self.given) for doubt in DOUBTS}
            listed = ", ".join(f"{count} {doubt}" for doubt, count in many.items() if count)
            said.append(f"{self.doubtful} of {self.cells} tuned cells may have more in them: {listed}.")
        else:
            said.append(f"In all {self.cells} tuned cells the search ended inside what was searched.")
        if self.moved:
            said.append(
                "The ranking leans on cells that may have more in them: without them other places over all tasks for "
                f"{', '.join(self.moved)}."
            )
        return said

    def tables(self) -> Sequence[Table]:
        """Return one row per model."""
        rows: list[tuple[Cell, ...]] = [
            (
                one.model,
                f"{one.trainable:,.0f}",
                f"{one.tokens:,.0f}",
                f"{one.updates:,.0f}",
                _spread(one.rates),
                *(f"{one.doubts[doubt]} of {one.cells}" if one.doubts[doubt] else "–" for doubt in DOUBTS),
                None if np.isnan(one.seed_spread) else f"{one.seed_spread:.3f}",
                None if np.isnan(one.noise) else f"{one.noise:.3f}",
            )
            for one in self.given
        ]
        columns = ("model", "trained parameters", "tokens", "updates", "rate", *DOUBTS, "between seeds", "test noise")
        note = " ".join(self.sentences()) + " Tokens, updates and rate: of the chosen lane, the median of its cells."
        return [Table(f"Was it the same for all? {self.protocol.label}", columns, tuple(rows), note)]


def find_same(evidence: Evidence, planned: Mapping[Protocol, ScoreMatrix]) -> dict[Protocol, SameForAll]:
    """Return what every model was given under each tuned protocol whose cells say it."""
    found: dict[Protocol, SameForAll] = {}
    for protocol, matrix in planned.items():
        if not protocol.tuned or protocol.step is not None or not evidence.stores:
            continue
        cells: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
        for cell in evidence.choices(protocol):
            if cell.model in matrix.models and cell.task in matrix.tasks and cell.names("search"):
                cells.setdefault(cell.model, []).append((cell.task, cell.selection))
        if cells:
            given = tuple(_given(model, cells[model], matrix) for model in matrix.models if model in cells)
            found[protocol] = SameForAll(protocol, given, _moved(matrix, cells))
    return found


def _given(model: str, cells: Sequence[tuple[str, Mapping[str, Any]]], matrix: ScoreMatrix) -> Given:
    chosen = [selection for _, selection in cells]
    row = matrix.models.index(model)
    noise = [float(matrix.stderr[row, matrix.tasks.index(task)]) for task, _ in cells]
    spread = [float(one["spread"]) for one in chosen if one.get("spread") is not None]
    parts = dict.fromkeys(name for one in chosen for name in one.get("target_modules") or ())
    return Given(
        model,
        len(chosen),
        _median([one["trainable"] for one in chosen]),
        tuple(parts),
        _median([one["tokens"] for one in chosen]),
        _median([one["updates"] for one in chosen]),
        tuple(sorted(one["learning_rate"] for one in chosen if one.get("learning_rate"))),
        {doubt: sum(one["search"] == doubt for one in chosen) for doubt in DOUBTS},
        _median(spread),
        _median(noise),
    )


def _moved(matrix: ScoreMatrix, cells: Mapping[str, Sequence[tuple[str, Mapping[str, Any]]]]) -> tuple[str, ...]:
    """Return the models whose place by mean standardised score changes where doubtful cells are left out."""
    signs = np.array([1.0 if metric.higher_is_better else -1.0 for metric in matrix.metrics])
    values = matrix.values * signs
    with np.errstate(all="ignore"):
        scale = np.nanstd(values, axis=0)
        z = (values - np.nanmean(values, axis=0)) / np.where(scale > 0, scale, np.nan)
    sure = z.copy()
    for model, own in cells.items():
        for task, selection in own:
            if selection.get("may_have_more"):
                sure[matrix.models.index(model), matrix.tasks.index(task)] = np.nan
    whole, left = (_places(one) for one in (z, sure))
    return tuple(m for m, one, two in zip(matrix.models, whole, left, strict=True) if two is not None and one != two)


def _places(z: np.ndarray[Any, Any]) -> list[int | None]:
    """Return each model's place by its mean over tasks; None for a model without any."""
    means = [float(np.nanmean(row)) if np.isfinite(row).any() else None for row in z]
    known = [mean for mean in means if mean is not None]
    return [None if mean is None else 1 + sum(other > mean for other in known) for mean in means]


def _median(values: Sequence[float]) -> float:
    finite = [value for value in values if np.isfinite(value)]
    return float(np.median(finite)) if finite else float("nan")


def _spread(rates: Sequence[float]) -> str:
    """Say the median rate, and the range around it where there is one."""
    if not rates:
        return "–"
    middle = f"{float(np.median(rates)):.0e}".replace("e-0", "e-")
    ends = [f"{rate:.0e}".replace("e-0", "e-") for rate in (rates[0], rates[-1])]
    return middle if ends[0] == ends[1] else f"{middle} ({ends[0]} … {ends[1]})"
