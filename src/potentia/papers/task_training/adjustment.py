"""What one group of models has more than another at equal compute, before and after adjustment (figure 1).

With it goes an experiment that tells why: some models are tuned on the task on purpose (section 3.1): θ appears, and it
vanishes after all were adjusted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from potentia.analysis.left_out import keep_names_in
from potentia.analysis.wording import format_p_value
from potentia.papers.task_training.cohort import (
    Cohort,
    ModelSplit,
    ScorePair,
    plot_against_compute,
)
from potentia.papers.task_training.scaling import (
    CURVE_COLUMNS,
    CURVE_NOTE,
    EFFECT_COLUMNS,
    EFFECT_NOTE,
    Coefficient,
    HingeFit,
    fit_hinge,
)
from potentia.values.findings import Chart, Finding, Findings, Line, Points, Table
from potentia.values.scores import Floats

MIN_TREATED_COMPUTE = 7e21  # FLOPs of the smallest newer model: smaller ones are not treated (3.1)


@dataclass(frozen=True)
class GroupScaling(Finding):
    """Equation 1 on the scores of one task: every model's score against compute, and θ of a group."""

    task: str
    stage: str  # "before" or "after" adjustment
    cohort: Cohort
    split: ModelSplit
    scores: Floats
    fit: HingeFit

    @property
    def effect(self) -> Coefficient:
        """θ, with its standard errors."""
        return self.fit.theta

    def tables(self) -> Sequence[Table]:
        """Return θ and the curve."""
        return _tabulate_stages((self,))

    def charts(self) -> Sequence[Chart]:
        """Return score against compute with the two fitted hinges."""
        log_flops = self.cohort.log_compute
        grid = np.linspace(log_flops.min(), log_flops.max(), 200)
        lines = []
        for side_name, _ in self.split.sides():
            fitted = self.fit.predict(grid, member=side_name == self.split.label)
            lines.append(Line(side_name, 10**grid, fitted))
        chart = plot_against_compute(
            f"{self.task}-{self.stage}",
            f"{self.task} {self.stage} adjustment: "
            f"θ = {self.effect.value:.3f} ({format_p_value(self.effect.clustered_p)})",
            "The distance between the two lines is θ, the advantage of the group at equal compute.",
            points=self.split.to_points(self.cohort, self.scores),
            lines=tuple(lines),
        )
        return (chart,)


@dataclass(frozen=True)
class TaskAdjustment(Findings):
    """θ on one task before and after all models were tuned on the same task data."""

    before: GroupScaling
    after: GroupScaling

    def tables(self) -> Sequence[Table]:
        """Return both stages, a row each."""
        return _tabulate_stages((self.before, self.after))


@dataclass(frozen=True)
class SplitComparison(Finding):
    """θ before and after for several splits of the same models: other cut-offs (D.1), languages (D.2), columns."""

    comparisons: tuple[TaskAdjustment, ...]

    def tables(self) -> Sequence[Table]:
        """Return one row per task, split and stage."""
        table_rows = []
        for comparison in self.comparisons:
            for stage in (comparison.before, comparison.after):
                names = (stage.task, stage.split.label, stage.split.size, stage.stage)
                table_rows.append((*names, *stage.fit.effect_row()[2:]))
        column_names = ("task", "models", "in it", "stage", *EFFECT_COLUMNS[2:])
        return (
            Table("The same question with other splits", column_names, table_rows, EFFECT_NOTE),
        )


def compare_groups(
    score_pair: ScorePair, split: ModelSplit, *, draws: int = 1999, seed: int = 0
) -> TaskAdjustment:
    """Fit equation 1 before and after adjustment, N being membership in ``split``."""
    return TaskAdjustment(
        before=_fit_stage(score_pair, score_pair.before, split, "before", draws=draws, seed=seed),
        after=_fit_stage(score_pair, score_pair.after, split, "after", draws=draws, seed=seed),
    )


def _fit_stage(
    score_pair: ScorePair, scores: Floats, split: ModelSplit, stage: str, *, draws: int, seed: int
) -> GroupScaling:
    return fit_groups(
        score_pair.task,
        score_pair.cohort,
        scores,
        split,
        stage=stage,
        chance=score_pair.chance,
        higher_is_better=score_pair.higher_is_better,
        draws=draws,
        seed=seed,
    )


def fit_groups(
    task: str,
    cohort: Cohort,
    scores: Floats,
    split: ModelSplit,
    *,
    stage: str = "before",
    chance: float = 0.0,
    higher_is_better: bool = True,
    draws: int = 0,
    seed: int = 0,
) -> GroupScaling:
    """Fit equation 1 to one set of scores, N being membership in ``split``; options are those of ``fit_hinge``."""
    hinge_fit = fit_hinge(
        cohort.log_compute,
        scores,
        chance=chance,
        group=split.members,
        families=cohort.family,
        higher_is_better=higher_is_better,
        draws=draws,
        seed=seed,
    )
    return GroupScaling(
        task=task, stage=stage, cohort=cohort, split=split, scores=scores, fit=hinge_fit
    )


def _tabulate_stages(stages: Sequence[GroupScaling]) -> tuple[Table, Table]:
    task = stages[0].task
    split = stages[0].split
    effects = [(stage.stage, *stage.fit.effect_row()) for stage in stages]
    curves = [(stage.stage, *stage.fit.curve_row()) for stage in stages]
    group = f"{task}: models {split.label} ({split.size} of {len(split.members)})"
    return (
        Table(
            f"{group}, advantage at equal compute",
            ("adjustment", *EFFECT_COLUMNS),
            effects,
            EFFECT_NOTE,
        ),
        Table(f"{task}: the curve", ("adjustment", *CURVE_COLUMNS), curves, CURVE_NOTE),
    )


# --- models that are treated on purpose ------------------------------------------------------------------------------


@dataclass(frozen=True)
class TreatmentEffect(Finding):
    """θ of having been treated, before and after all models were tuned on the same task data."""

    task: str
    treated: tuple[str, ...]
    control: tuple[str, ...]
    before: HingeFit
    after: HingeFit | None
    points: tuple[tuple[Points, ...], ...] = ()  # before and after: the models, and their copies

    def charts(self) -> Sequence[Chart]:
        """Return models and their treated copies before and after adjustment, with the fitted hinges (figure 3)."""
        charts = []
        stages = (("before", self.before), ("after", self.after))
        for (stage, fit), points in zip(stages, self.points, strict=False):
            if fit is not None:
                charts.append(_plot_treatment(self.task, stage, fit, points))
        return charts

    def tables(self) -> Sequence[Table]:
        """Return both fits, a row each."""
        table_rows = [("before", *self.before.effect_row())]
        if self.after is not None:
            table_rows.append(("after", *self.after.effect_row()))
        title = f"{self.task}: {len(self.treated)} models tuned on the test task, {len(self.control)} not"
        return (Table(title, ("adjustment", *EFFECT_COLUMNS), table_rows, EFFECT_NOTE),)


def _plot_treatment(
    task: str, stage: str, hinge_fit: HingeFit, points: tuple[Points, ...]
) -> Chart:
    log_compute = np.log10(np.concatenate([side.x for side in points]))
    grid = np.linspace(log_compute.min(), log_compute.max(), 200)
    lines = []
    for side, is_treated in zip(points, (False, True), strict=True):
        lines.append(Line(side.name, 10**grid, hinge_fit.predict(grid, member=is_treated)))
    return plot_against_compute(
        f"{task}-treatment-{stage}",
        f"{task}, treated copies {stage} adjustment: "
        f"θ = {hinge_fit.theta.value:.3f} ({format_p_value(hinge_fit.theta.clustered_p)})",
        "The distance between the two lines is θ, the advantage of the treated copies at equal compute.",
        points=points,
        lines=tuple(lines),
    )


def compare_treated_copies(
    task: str,
    control: Mapping[str, float],
    treated: Mapping[str, float],
    cohort: Cohort,
    *,
    control_adjusted: Mapping[str, float] | None = None,
    treated_adjusted: Mapping[str, float] | None = None,
    chance: float = 0.0,
    floor: float = MIN_TREATED_COMPUTE,
    draws: int = 1999,
    seed: int = 0,
) -> TreatmentEffect:
    """Compare models with their own tuned copies: the paper's design, where every model is its own control.

    ``control`` and ``treated`` map a model to its score; models below ``floor`` FLOPs have no treated copy. A model and
    its copy are of the same family, so clustered errors allow for their likeness.
    """
    compute_by_model = dict(zip(cohort.models, cohort.compute, strict=True))
    originals = keep_names_in(cohort.models, control)
    copies = []
    for model in cohort.models:
        if model in treated and compute_by_model[model] >= floor:
            copies.append(model)

    def mark_sides(
        original_scores: Mapping[str, float], copy_scores: Mapping[str, float]
    ) -> tuple[Points, ...]:
        sides = []
        for side_name, models, scores in (
            ("not treated", originals, original_scores),
            ("treated", copies, copy_scores),
        ):
            marked = keep_names_in(models, scores)
            compute = [compute_by_model[model] for model in marked]
            heights = [scores[model] for model in marked]
            sides.append(Points(side_name, compute, heights, tuple(marked)))
        return tuple(sides)

    def fit_effect(
        original_scores: Mapping[str, float], copy_scores: Mapping[str, float]
    ) -> HingeFit:
        fitted_originals = keep_names_in(originals, original_scores)
        fitted_copies = keep_names_in(copies, copy_scores)
        original_cohort = cohort.select(fitted_originals)
        copy_cohort = cohort.select(fitted_copies)
        scores = [original_scores[model] for model in fitted_originals]
        scores += [copy_scores[model] for model in fitted_copies]
        return fit_hinge(
            np.concatenate([original_cohort.log_compute, copy_cohort.log_compute]),
            np.array(scores),
            chance=chance,
            group=np.repeat([False, True], [len(fitted_originals), len(fitted_copies)]),
            families=original_cohort.family + copy_cohort.family,
            draws=draws,
            seed=seed,
        )

    after = None
    points = [mark_sides(control, treated)]
    if control_adjusted and treated_adjusted:
        after = fit_effect(control_adjusted, treated_adjusted)
        points.append(mark_sides(control_adjusted, treated_adjusted))
    return TreatmentEffect(
        task=task,
        treated=tuple(copies),
        control=tuple(originals),
        before=fit_effect(control, treated),
        after=after,
        points=tuple(points),
    )
