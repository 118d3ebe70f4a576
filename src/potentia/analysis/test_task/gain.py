"""How much each model gains by adjustment, against its pretraining compute (figure 2); a division is not needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from potentia.analysis.test_task.cohort import Flags, Split
from potentia.analysis.test_task.pair import Pair
from potentia.values.findings import Chart, Finding, Plot, Points, Table
from potentia.values.scores import Floats


@dataclass(frozen=True)
class Gain(Finding):
    """Gain after tuning, model by model, and its mean in the group and among the others."""

    task: str
    group: str
    others: str
    models: tuple[str, ...]
    compute: Floats
    members: tuple[bool, ...]
    gains: Floats

    @property
    def means(self) -> tuple[float, float]:
        """Mean gain of the group and of the others."""
        inside = np.asarray(self.members)
        return float(self.gains[inside].mean()), float(self.gains[~inside].mean())

    def _sides(self) -> list[tuple[str, Flags]]:
        """Return the two sides with their members; one where the models are not divided."""
        inside = np.asarray(self.members, dtype=bool)
        return [(name, mask) for name, mask in ((self.group, inside), (self.others, ~inside)) if mask.any()]

    def tables(self) -> Sequence[Table]:
        """Return mean, median and largest gain of both sides."""
        rows = []
        for name, mask in self._sides():
            part = self.gains[mask]
            top = [m for m, keep in zip(self.models, mask, strict=True) if keep][int(np.argmax(part))]
            rows.append((name, len(part), float(part.mean()), float(np.median(part)), float(part.max()), top))
        columns = ("models", "n", "mean gain", "median", "largest", "which")
        return (Table(f"{self.task}: gain by tuning on task data", columns, tuple(rows)),)

    def charts(self) -> Sequence[Chart]:
        """Return gain against compute."""
        points = tuple(
            Points(
                name,
                tuple(self.compute[mask]),
                tuple(self.gains[mask]),
                tuple(m for m, keep in zip(self.models, mask, strict=True) if keep),
            )
            for name, mask in reversed(self._sides())
        )
        return (
            Plot(
                f"{self.task}-gain",
                f"{self.task}: gain by tuning on task data",
                "Models that had not met the task before gain most.",
                points=points,
                x_label="pretraining compute (FLOPs)",
                y_label="score after − before",
                log_x=True,
            ),
        )


def measure_gain(pair: Pair, split: Split | None = None) -> Gain:
    """Subtract the score before from the score after, oriented so that a gain is positive."""
    before, after = pair.oriented()
    parts = split or Split("", np.zeros(len(before), dtype=bool), "all models")
    return Gain(
        pair.task,
        parts.label,
        parts.others,
        pair.cohort.models,
        pair.cohort.compute,
        tuple(bool(m) for m in parts.members),
        after - before,
    )
