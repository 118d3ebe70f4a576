"""Cells that kept the untuned model, and the ranking without that choice.

Validation may prefer the untuned model to every tuned state (``selection: validation``), and the paper keeps the better
of both by the test (``selection: paper``). A model that was exposed to a test before the study then skips the tuning
and keeps its advantage, so the ranking is also computed with the best tuned state of every cell (``selection: tuned``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from potentia.values.findings import Cell, Finding, Table
from potentia.values.protocol import Protocol
from potentia.values.scores import ScoreMatrix

if TYPE_CHECKING:
    from potentia.evidence import Evidence


@dataclass(frozen=True)
class Kept(Finding):
    """How many cells of a tuned protocol kept the untuned model, and each model's rank with and without."""

    protocol: Protocol
    cells: int
    kept: dict[str, tuple[str, ...]]  # by model: its tasks
    unknown: int  # kept cells without a score of the tuned state: made before that was stored
    ranks: dict[str, float]
    tuned_ranks: dict[str, float]

    @property
    def count(self) -> int:
        """The cells that kept the untuned model."""
        return sum(map(len, self.kept.values()))

    def tables(self) -> Sequence[Table]:
        """Return one row per model: where it kept the untuned state, and its two ranks."""
        rows: list[tuple[Cell, ...]] = [
            (model, len(self.kept.get(model, ())), ", ".join(self.kept.get(model, ())) or "–", rank,
             self.tuned_ranks.get(model))
            for model, rank in sorted(self.ranks.items(), key=lambda item: item[1])
        ]  # fmt: skip
        note = (
            f"{self.count} of {self.cells} cells kept the untuned model. A model that saw a test's form before "
            "the study keeps its advantage there; the last column ranks the best tuned state of every cell, "
            "as under `selection: tuned`."
        )
        if self.unknown:
            note += f" In {self.unknown} of them the tuned state was not tested, and the score stays."
        columns = ("model", "kept", "tasks", "rank", "rank if always tuned")
        return [
            Table(f"Cells that kept the untuned model: {self.protocol.label}", columns, tuple(rows), note, digits=0)
        ]


def always_tuned(
    evidence: Evidence, planned: Mapping[Protocol, ScoreMatrix]
) -> dict[Protocol, tuple[ScoreMatrix, Kept]]:
    """Return each tuned protocol's scores with the best tuned state in every cell, where some cell kept the untuned."""
    found: dict[Protocol, tuple[ScoreMatrix, Kept]] = {}
    tuned = {p: m for p, m in planned.items() if p.tuned and p.step is None}
    for protocol, matrix in tuned.items():
        values, total, unknown = matrix.values.copy(), 0, 0
        rows, columns = ({name: k for k, name in enumerate(names)} for names in (matrix.models, matrix.tasks))
        kept: dict[str, list[str]] = {}
        for cell in evidence.choices(protocol) if evidence.stores else ():
            if cell.model not in rows or cell.task not in columns:
                continue
            total += 1
            if not cell.names("tuned") or (chosen := cell.selection).get("tuned", True):
                continue
            kept.setdefault(cell.model, []).append(cell.task)
            own = (chosen.get("best_tuned") or {}).get("value")
            place = rows[cell.model], columns[cell.task]
            if own is None or matrix.metrics[place[1]].name not in ("", cell.metric):
                unknown += 1
            else:
                values[place] = own
        if kept:
            names = {model: tuple(tasks) for model, tasks in kept.items()}
            found[protocol] = replace(matrix, values=values), Kept(protocol, total, names, unknown, {}, {})
    return found
