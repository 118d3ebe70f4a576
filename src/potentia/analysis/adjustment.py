"""What one group of models has more than another at equal compute, before and after adjustment (figure 1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from potentia.analysis.cohort import Split
from potentia.analysis.finding import Chart, Finding, Line, Plot, Points, Table
from potentia.analysis.pair import Pair, slug
from potentia.analysis.scaling import HINGE_COLUMNS, HINGE_NOTE, HingeFit, fit_hinge
from potentia.scores import Floats


@dataclass(frozen=True)
class TaskAdjustment(Finding):
    """Equation 1 on one task, before and after all models were tuned on the same task data."""

    task: str
    group: str
    others: str
    models: tuple[str, ...]
    log_compute: Floats
    members: tuple[bool, ...]
    scores_before: Floats
    scores_after: Floats
    before: HingeFit
    after: HingeFit

    def tables(self) -> Sequence[Table]:
        """Return both fits, a row each."""
        rows = tuple((stage, *fit.row()) for stage, fit in (("before", self.before), ("after", self.after)))
        return (Table(f"{self.task}: {self.group}", ("", *HINGE_COLUMNS), rows, HINGE_NOTE),)

    def charts(self) -> Sequence[Chart]:
        """Return score against compute with the fitted hinges, before and after."""
        return tuple(
            self._chart(stage, scores, fit)
            for stage, scores, fit in (
                ("before", self.scores_before, self.before),
                ("after", self.scores_after, self.after),
            )
        )

    def _chart(self, stage: str, scores: Floats, fit: HingeFit) -> Plot:
        inside = np.asarray(self.members)
        grid = np.linspace(self.log_compute.min(), self.log_compute.max(), 200)
        points, lines = [], []
        for name, mask, member in ((self.others, ~inside, False), (self.group, inside, True)):
            points.append(
                Points(
                    name,
                    tuple(10 ** self.log_compute[mask]),
                    tuple(scores[mask]),
                    tuple(m for m, keep in zip(self.models, mask, strict=True) if keep),
                )
            )
            lines.append(Line(f"fit, {name}", tuple(10**grid), tuple(fit.predict(grid, member=member))))
        effect = fit.effect
        verdict = "no group effect fitted" if effect is None else f"θ = {effect.value:.3f} (p {effect.clustered_p:.3f})"
        return Plot(
            name=f"{slug(self.task)}-{stage}",
            title=f"{self.task} {stage} adjustment: {verdict}",
            caption="The distance between the two lines is θ, the advantage of the group at equal compute.",
            points=tuple(points),
            lines=tuple(lines),
            x_label="pretraining compute (FLOPs)",
            y_label="score",
            log_x=True,
        )


def compare_groups(pair: Pair, split: Split, *, draws: int = 1999, seed: int = 0) -> TaskAdjustment:
    """Fit equation 1 before and after adjustment, N being membership in ``split``."""
    cohort = pair.cohort
    before, after = (
        fit_hinge(
            cohort.log_compute,
            scores,
            chance=pair.chance,
            group=split.members,
            families=cohort.family,
            higher_is_better=pair.higher_is_better,
            draws=draws,
            seed=seed,
        )
        for scores in (pair.before, pair.after)
    )
    return TaskAdjustment(
        task=pair.task,
        group=split.label,
        others=split.others,
        models=cohort.models,
        log_compute=cohort.log_compute,
        members=tuple(bool(member) for member in split.members),
        scores_before=pair.before,
        scores_after=pair.after,
        before=before,
        after=after,
    )


@dataclass(frozen=True)
class SplitComparison(Finding):
    """θ before and after for several splits of the same models: other cut-offs (D.1), languages (D.2), columns."""

    comparisons: tuple[TaskAdjustment, ...]

    def tables(self) -> Sequence[Table]:
        """Return one row per task, split and stage."""
        rows = tuple(
            (one.task, one.group, sum(one.members), stage, *fit.row())
            for one in self.comparisons
            for stage, fit in (("before", one.before), ("after", one.after))
        )
        columns = ("task", "group", "in group", "", *HINGE_COLUMNS)
        return (Table("The same question with other splits", columns, rows, HINGE_NOTE),)
