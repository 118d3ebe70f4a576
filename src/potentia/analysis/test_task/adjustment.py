"""What one group of models has more than another at equal compute, before and after adjustment (figure 1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from potentia.analysis.test_task.cohort import Cohort, Split
from potentia.analysis.test_task.pair import Pair
from potentia.analysis.test_task.scaling import (
    CURVE_COLUMNS,
    CURVE_NOTE,
    EFFECT_COLUMNS,
    EFFECT_NOTE,
    Coefficient,
    HingeFit,
    fit_hinge,
)
from potentia.errors import InputError
from potentia.values.findings import Chart, Finding, Line, Plot, Points, Table
from potentia.values.scores import Floats


@dataclass(frozen=True)
class GroupScaling(Finding):
    """Equation 1 on the scores of one task: every model's score against compute, and θ of a group."""

    task: str
    stage: str  # "before" or "after" adjustment
    group: str
    others: str
    models: tuple[str, ...]
    log_compute: Floats
    members: tuple[bool, ...]
    scores: Floats
    fit: HingeFit

    @property
    def effect(self) -> Coefficient:
        """θ, with its standard errors."""
        assert self.fit.effect is not None
        return self.fit.effect

    def tables(self) -> Sequence[Table]:
        """Return θ and the curve."""
        return _tables((self,))

    def charts(self) -> Sequence[Chart]:
        """Return score against compute with the two fitted hinges."""
        inside = np.asarray(self.members)
        grid = np.linspace(self.log_compute.min(), self.log_compute.max(), 200)
        points, lines = [], []
        for name, mask, member in ((self.others, ~inside, False), (self.group, inside, True)):
            labels = tuple(m for m, keep in zip(self.models, mask, strict=True) if keep)
            points.append(Points(name, tuple(10 ** self.log_compute[mask]), tuple(self.scores[mask]), labels))
            lines.append(Line(name, tuple(10**grid), tuple(self.fit.predict(grid, member=member))))
        return (
            Plot(
                name=f"{self.task}-{self.stage}",
                title=f"{self.task} {self.stage} adjustment: θ = {self.effect.value:.3f}"
                f" (p {self.effect.clustered_p:.3f})",
                caption="The distance between the two lines is θ, the advantage of the group at equal compute.",
                points=tuple(points),
                lines=tuple(lines),
                x_label="pretraining compute (FLOPs)",
                y_label="score",
                log_x=True,
            ),
        )


@dataclass(frozen=True)
class TaskAdjustment(Finding):
    """θ on one task before and after all models were tuned on the same task data."""

    before: GroupScaling
    after: GroupScaling

    def tables(self) -> Sequence[Table]:
        """Return both stages, a row each."""
        return _tables((self.before, self.after))

    def charts(self) -> Sequence[Chart]:
        """Return both pictures."""
        return (*self.before.charts(), *self.after.charts())


@dataclass(frozen=True)
class SplitComparison(Finding):
    """θ before and after for several splits of the same models: other cut-offs (D.1), languages (D.2), columns."""

    comparisons: tuple[TaskAdjustment, ...]

    def tables(self) -> Sequence[Table]:
        """Return one row per task, split and stage."""
        stages = [stage for one in self.comparisons for stage in (one.before, one.after)]
        rows = tuple((one.task, one.group, sum(one.members), one.stage, *one.fit.effect_row()[2:]) for one in stages)
        columns = ("task", "group", "in it", "stage", *EFFECT_COLUMNS[2:])
        return (Table("The same question with other splits", columns, rows, EFFECT_NOTE),)


def scale_groups(
    task: str,
    cohort: Cohort,
    scores: Floats,
    split: Split,
    *,
    stage: str = "before",
    chance: float = 0.0,
    higher_is_better: bool = True,
    draws: int = 1999,
    seed: int = 0,
) -> GroupScaling:
    """Fit equation 1 to one set of scores, N being membership in ``split``."""
    fit = fit_hinge(
        cohort.log_compute,
        scores,
        chance=chance,
        group=split.members,
        families=cohort.family,
        higher_is_better=higher_is_better,
        draws=draws,
        seed=seed,
    )
    members = tuple(bool(member) for member in split.members)
    return GroupScaling(task, stage, split.label, split.others, cohort.models, cohort.log_compute, members, scores, fit)


def compare_groups(pair: Pair, split: Split, *, draws: int = 1999, seed: int = 0) -> TaskAdjustment:
    """Fit equation 1 before and after adjustment, N being membership in ``split``."""
    before, after = (
        scale_groups(
            pair.task,
            pair.cohort,
            scores,
            split,
            stage=stage,
            chance=pair.chance,
            higher_is_better=pair.higher_is_better,
            draws=draws,
            seed=seed,
        )
        for stage, scores in (("before", pair.before), ("after", pair.after))
    )
    return TaskAdjustment(before, after)


def favour_group(pair: Pair, split: Split, sweep: Sequence[Floats]) -> Pair:
    """Give the group its best score of a learning-rate sweep, and leave the others as they are (B.3).

    ``sweep`` holds one array of adjusted scores per learning rate (NaN where it was not tried). If θ stays near zero
    even so, it is not the choice of learning rate that took the group's advantage away.
    """
    if any(scores.shape != pair.after.shape for scores in sweep):
        raise InputError("every learning rate of the sweep needs one score per model")
    tried = np.stack([pair.after, *sweep])
    best = np.nanmax(tried, axis=0) if pair.higher_is_better else np.nanmin(tried, axis=0)
    return replace(pair, after=np.where(split.members, best, pair.after))


def _tables(stages: Sequence[GroupScaling]) -> tuple[Table, Table]:
    first = stages[0]
    name = f"{first.task}: {first.group} ({sum(first.members)} of {len(first.members)} models)"
    effects = tuple((one.stage, *one.fit.effect_row()) for one in stages)
    curves = tuple((one.stage, *one.fit.curve_row()) for one in stages)
    return (
        Table(f"{name}, advantage at equal compute", ("adjustment", *EFFECT_COLUMNS), effects, EFFECT_NOTE),
        Table(f"{first.task}: the curve", ("adjustment", *CURVE_COLUMNS), curves, CURVE_NOTE),
    )
