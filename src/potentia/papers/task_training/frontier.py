"""The Pareto frontier of scores over compute, and how far a group of models moves it (figure 7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from potentia.papers.task_training.cohort import (
    Cohort,
    ModelSplit,
    ScorePair,
    plot_against_compute,
)
from potentia.values.findings import Chart, Finding, Line, Plot, Table, select_positions
from potentia.values.scores import Floats

STAGES = ("before", "after")


@dataclass(frozen=True)
class Frontier:
    """A step function: the best score that any model reaches with at most this much compute."""

    log_compute: Floats  # ascending, one entry per model on the frontier
    scores: Floats
    models: tuple[str, ...]

    def height_at(self, log_compute: Floats, *, floor: float) -> Floats:
        """Return the frontier's height, at least ``floor`` (chance), also where no model is that small."""
        places = np.searchsorted(self.log_compute, log_compute, side="right")
        heights = np.append(floor, self.scores)
        return np.asarray(np.maximum(heights[places], floor))


def pareto_frontier(models: Sequence[str], log_compute: Floats, scores: Floats) -> Frontier:
    """Keep the models that no other beats with as little or less compute."""
    order = np.lexsort((-scores, log_compute))
    best_so_far = np.maximum.accumulate(scores[order])
    on_frontier = order
    if len(order):
        is_better = np.append(True, best_so_far[1:] > best_so_far[:-1])
        on_frontier = order[is_better]
    return Frontier(
        log_compute[on_frontier], scores[on_frontier], select_positions(models, on_frontier)
    )


@dataclass(frozen=True)
class FrontierShift(Finding):
    """The area between the frontier of the others and the frontier of all, before and after adjustment."""

    task: str
    cohort: Cohort
    split: ModelSplit
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
        group = set(self.cohort.select_names(self.split.members))
        table_rows = []
        for stage, area, frontier in zip(STAGES, self.areas, self.every, strict=True):
            members = ", ".join(model for model in frontier.models if model in group)
            table_rows.append((stage, area, members or "none"))
        table = Table(
            f"{self.task}: how far models {self.split.label} move the frontier",
            ("", "area of improvement", "on the frontier"),
            table_rows,
            f"Area in score × log₁₀ FLOPs. It {self._describe_change()} by adjustment.",
            digits=4,
        )
        return (table,)

    def _describe_change(self) -> str:
        before, after = self.areas
        if not before > after:
            return "does not shrink"
        return f"shrinks {self.ratio:.1f}-fold" if after > 0 else "vanishes"

    def charts(self) -> Sequence[Chart]:
        """Return both frontiers over all models, before and after."""
        return [self._plot_stage(index, stage) for index, stage in enumerate(STAGES)]

    def _plot_stage(self, index: int, stage: str) -> Plot:
        corners, edges_below = _step_corners(self.cohort.log_compute)
        old_heights = self.old[index].height_at(edges_below, floor=self.floor)
        heights = self.every[index].height_at(edges_below, floor=self.floor)
        old_line = Line(
            f"frontier of models {self.split.others}", corners, old_heights, dashed=True
        )
        line = Line("frontier of all models", corners, heights, low=old_heights, high=heights)
        return plot_against_compute(
            f"{self.task}-frontier-{stage}",
            f"{self.task} {stage} adjustment: area {self.areas[index]:.3f}",
            "The shaded area between the two frontiers is the progress per unit of compute.",
            points=self.split.to_points(self.cohort, self.scores[index]),
            lines=(old_line, line),
        )


def measure_frontier_shift(score_pair: ScorePair, split: ModelSplit) -> FrontierShift:
    """Measure the area of improvement since the split, in score × log₁₀ FLOPs, before and after adjustment."""
    log_flops = score_pair.cohort.log_compute
    before, after = score_pair.oriented()
    is_outside = ~np.asarray(split.members)
    outside_models = score_pair.cohort.select_names(is_outside)
    old_before = pareto_frontier(outside_models, log_flops[is_outside], before[is_outside])
    old_after = pareto_frontier(outside_models, log_flops[is_outside], after[is_outside])
    all_before = pareto_frontier(score_pair.cohort.models, log_flops, before)
    all_after = pareto_frontier(score_pair.cohort.models, log_flops, after)
    floor = score_pair.chance if score_pair.higher_is_better else -score_pair.chance
    return FrontierShift(
        task=score_pair.task,
        cohort=score_pair.cohort,
        split=split,
        scores=(before, after),
        old=(old_before, old_after),
        every=(all_before, all_after),
        areas=(
            _area_between(old_before, all_before, log_flops, floor),
            _area_between(old_after, all_after, log_flops, floor),
        ),
        floor=floor,
    )


def _area_between(
    old_frontier: Frontier, frontier_of_all: Frontier, log_flops: Floats, floor: float
) -> float:
    """Integrate the gap between two step functions exactly: it is constant between neighbouring models."""
    edges = np.unique(log_flops)
    left_edges = edges[:-1]
    height_gap = frontier_of_all.height_at(left_edges, floor=floor) - old_frontier.height_at(
        left_edges, floor=floor
    )
    return float(np.sum(height_gap * np.diff(edges)))


def _step_corners(log_flops: Floats) -> tuple[Floats, Floats]:
    """Return the corners of a step curve over these models in FLOPs, and where to read its height at each of them."""
    edges = np.unique(log_flops)
    corners = 10 ** np.repeat(edges, 2)[1:]
    return corners, np.append(np.repeat(edges[:-1], 2), edges[-1])
