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
        positions = np.searchsorted(self.log_compute, log_compute, side="right")
        heights = np.append(floor, self.scores)
        return np.asarray(np.maximum(heights[positions], floor))


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
    """The area between the frontier of the others alone and that of all models, before and after adjustment.

    The others are the models outside the group of the split.
    """

    task: str
    cohort: Cohort
    split: ModelSplit
    scores: tuple[Floats, Floats]  # before, after; oriented
    frontiers_of_others: tuple[Frontier, Frontier]  # before, after
    frontiers_of_all: tuple[Frontier, Frontier]  # before, after
    areas: tuple[float, float]
    floor: float  # chance, oriented

    @property
    def ratio(self) -> float:
        """The area before adjustment over the area after it; infinite where no area is left."""
        return self.areas[0] / self.areas[1] if self.areas[1] > 0 else float("inf")

    def tables(self) -> Sequence[Table]:
        """Return the areas and the members of the group on the frontier."""
        group = set(self.cohort.select_names(self.split.members))
        table_rows = []
        for stage, area, frontier in zip(STAGES, self.areas, self.frontiers_of_all, strict=True):
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
        """Return the two frontiers over the scores of all models: a chart before adjustment, and one after."""
        return [self._plot_stage(index, stage) for index, stage in enumerate(STAGES)]

    def _plot_stage(self, index: int, stage: str) -> Plot:
        corners, edges_below = _step_corners(self.cohort.log_compute)
        heights_of_others = self.frontiers_of_others[index].height_at(edges_below, floor=self.floor)
        heights_of_all = self.frontiers_of_all[index].height_at(edges_below, floor=self.floor)
        line_of_others = Line(
            f"frontier of models {self.split.others}", corners, heights_of_others, dashed=True
        )
        line_of_all = Line(
            "frontier of all models",
            corners,
            heights_of_all,
            low=heights_of_others,
            high=heights_of_all,
        )
        return plot_against_compute(
            f"{self.task}-frontier-{stage}",
            f"{self.task} {stage} adjustment: area {self.areas[index]:.3f}",
            "The shaded area between the two frontiers is the progress per unit of compute.",
            points=self.split.to_points(self.cohort, self.scores[index]),
            lines=(line_of_others, line_of_all),
        )


def measure_frontier_shift(score_pair: ScorePair, split: ModelSplit) -> FrontierShift:
    """Measure how far the members of a split move the frontier: the area of improvement, before and after adjustment.

    The area is in score × log₁₀ FLOPs.
    """
    log_flops = score_pair.cohort.log_compute
    before, after = score_pair.oriented()
    is_outside = ~np.asarray(split.members)
    outside_models = score_pair.cohort.select_names(is_outside)
    others_before = pareto_frontier(outside_models, log_flops[is_outside], before[is_outside])
    others_after = pareto_frontier(outside_models, log_flops[is_outside], after[is_outside])
    all_before = pareto_frontier(score_pair.cohort.models, log_flops, before)
    all_after = pareto_frontier(score_pair.cohort.models, log_flops, after)
    floor = score_pair.chance if score_pair.higher_is_better else -score_pair.chance
    return FrontierShift(
        task=score_pair.task,
        cohort=score_pair.cohort,
        split=split,
        scores=(before, after),
        frontiers_of_others=(others_before, others_after),
        frontiers_of_all=(all_before, all_after),
        areas=(
            _area_between(others_before, all_before, log_flops, floor),
            _area_between(others_after, all_after, log_flops, floor),
        ),
        floor=floor,
    )


def _area_between(
    frontier_of_others: Frontier, frontier_of_all: Frontier, log_flops: Floats, floor: float
) -> float:
    """Integrate the gap between two step functions exactly: it is constant between neighbouring models."""
    edges = np.unique(log_flops)
    left_edges = edges[:-1]
    height_gap = frontier_of_all.height_at(left_edges, floor=floor) - frontier_of_others.height_at(
        left_edges, floor=floor
    )
    return float(np.sum(height_gap * np.diff(edges)))


def _step_corners(log_flops: Floats) -> tuple[Floats, Floats]:
    """Return the corners of a step curve over these models in FLOPs, and where to read its height at each of them."""
    edges = np.unique(log_flops)
    corners = 10 ** np.repeat(edges, 2)[1:]
    return corners, np.append(np.repeat(edges[:-1], 2), edges[-1])
