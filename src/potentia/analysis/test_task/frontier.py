"""The Pareto frontier of score against compute, and how far a group of models has moved it (figure 7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from potentia.analysis.test_task.cohort import Cohort, Pair, Split, against_compute
from potentia.values.findings import Chart, Finding, Line, Table
from potentia.values.scores import Floats


@dataclass(frozen=True)
class Frontier(Finding):
    """A step function: the best score that any model reaches with at most this much compute."""

    log_compute: Floats  # ascending, one entry per model on the frontier
    scores: Floats
    models: tuple[str, ...]

    def at(self, log_compute: Floats, *, floor: float) -> Floats:
        """Return the frontier's height; ``floor`` (chance) where no model is that small."""
        place = np.searchsorted(self.log_compute, log_compute, side="right") - 1
        return np.where(place >= 0, self.scores[np.maximum(place, 0)], floor)


def pareto_frontier(models: Sequence[str], log_compute: Floats, scores: Floats) -> Frontier:
    """Keep the models that no other beats with as little or less compute."""
    order = np.lexsort((-scores, log_compute))
    best, kept = -np.inf, []
    for i in order:
        if scores[i] > best:
            best = float(scores[i])
            kept.append(int(i))
    return Frontier(log_compute[kept], scores[kept], tuple(models[i] for i in kept))


@dataclass(frozen=True)
class FrontierShift(Finding):
    """The area between the frontier of the others and the frontier of all, before and after adjustment."""

    task: str
    cohort: Cohort
    split: Split
    scores: tuple[Floats, Floats]  # before, after; oriented
    old: tuple[Frontier, Frontier]
    every: tuple[Frontier, Frontier]
    areas: tuple[float, float]
    floor: float  # chance, oriented

    @property
    def ratio(self) -> float:
        """How many times the area shrinks by adjustment."""
        return self.areas[0] / self.areas[1] if self.areas[1] > 0 else float("inf")

    def tables(self) -> Sequence[Table]:
        """Return the areas and the members of the group on the frontier."""
        inside = set(self.cohort.named(self.split.members))
        rows = tuple(
            (stage, area, ", ".join(m for m in every.models if m in inside) or "none")
            for stage, area, every in zip(("before", "after"), self.areas, self.every, strict=True)
        )
        note = f"Area in score × log₁₀ FLOPs. It shrinks {self.ratio:.1f}-fold by adjustment."
        columns = ("", "area of improvement", "on the frontier")
        return (Table(f"{self.task}: how far models {self.split.label} move the frontier", columns, rows, note, 4),)

    def charts(self) -> Sequence[Chart]:
        """Return both frontiers over all models, before and after."""
        corners, left = _steps(self.cohort.log_compute)
        drawn = []
        for k, stage in enumerate(("before", "after")):
            below, above = (
                tuple(np.maximum(f[k].at(left, floor=self.floor), self.floor)) for f in (self.old, self.every)
            )
            drawn.append(
                against_compute(
                    f"{self.task}-frontier-{stage}",
                    f"{self.task} {stage} adjustment: area {self.areas[k]:.3f}",
                    "The shaded area between the two frontiers is the progress per unit of compute.",
                    self.split.points(self.cohort, self.scores[k]),
                    (
                        Line(f"frontier {self.split.others}", corners, below, dashed=True),
                        Line("frontier of all models", corners, above, below, above),
                    ),
                )
            )
        return tuple(drawn)


def frontier_shift(pair: Pair, split: Split) -> FrontierShift:
    """Measure the area of improvement since the split, in score × log₁₀ FLOPs, before and after adjustment."""
    x, scores = pair.cohort.log_compute, pair.oriented()
    outside = ~np.asarray(split.members)
    floor = pair.chance if pair.higher_is_better else -pair.chance
    others = pair.cohort.named(outside)
    old = tuple(pareto_frontier(others, x[outside], y[outside]) for y in scores)
    every = tuple(pareto_frontier(pair.cohort.models, x, y) for y in scores)
    areas = tuple(_area(a, b, x, floor) for a, b in zip(old, every, strict=True))
    stages = (old[0], old[1]), (every[0], every[1]), (areas[0], areas[1])
    return FrontierShift(pair.task, pair.cohort, split, scores, *stages, floor)


def _area(old: Frontier, every: Frontier, x: Floats, floor: float) -> float:
    """Integrate the gap between two step functions exactly: it is constant between neighbouring models."""
    edges = np.unique(x)
    left, width = edges[:-1], np.diff(edges)
    gap = np.maximum(every.at(left, floor=floor), floor) - np.maximum(old.at(left, floor=floor), floor)
    return float(np.sum(gap * width))


def _steps(x: Floats) -> tuple[tuple[float, ...], Floats]:
    """Return the corners of a step curve over these models in FLOPs, and where to read its height at each of them."""
    edges = np.unique(x)
    return tuple(10 ** np.repeat(edges, 2)[1:]), np.append(np.repeat(edges[:-1], 2), edges[-1])
