"""Families side by side: whether one lies above the common line in log compute (figure 6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from potentia.errors import InputError, suggest_names
from potentia.papers.task_training.cohort import Cohort, ScorePair, plot_against_compute
from potentia.papers.task_training.scaling import LogLinearFit, fit_log_linear
from potentia.values.findings import Chart, Finding, Line, Plot, Points, Table, select_positions
from potentia.values.scores import Floats

MIN_FAMILY_MODELS = 3  # of a family that is compared without being named


@dataclass(frozen=True)
class FamilyCurve:
    """One family's scores by compute, in ascending compute."""

    family: str
    models: tuple[str, ...]
    log_compute: Floats
    before: Floats
    after: Floats


@dataclass(frozen=True)
class FamilyComparison(Finding):
    """How far each family lies above one common line in log compute: an advantage that adjustment should remove."""

    task: str
    curves: tuple[FamilyCurve, ...]
    common: tuple[LogLinearFit, LogLinearFit]  # of all these families together, before and after

    def residuals(self) -> dict[str, tuple[float, float]]:
        """Return each family's mean distance from the common line, before and after."""
        line_before, line_after = self.common
        distances = {}
        for curve in self.curves:
            before = curve.before - line_before.predict(curve.log_compute)
            after = curve.after - line_after.predict(curve.log_compute)
            distances[curve.family] = float(np.mean(before)), float(np.mean(after))
        return distances

    def tables(self) -> Sequence[Table]:
        """Return one row per family, and how well one line describes all of them."""
        distances = self.residuals()
        table_rows = []
        for curve in self.curves:
            ranges = (_format_range(curve.before), _format_range(curve.after))
            table_rows.append((curve.family, len(curve.models), *ranges, *distances[curve.family]))
        scores = ("scores before", "scores after")
        column_names = ("family", "models", *scores, "off the line before", "after")
        note = f"R² of one line for all: {self.common[0].r2:.3f} before, {self.common[1].r2:.3f} after adjustment."
        return (Table(f"{self.task}: families at equal compute", column_names, table_rows, note),)

    def charts(self) -> Sequence[Chart]:
        """Return a curve per family, before and after."""
        before = [self._to_points(curve, curve.before) for curve in self.curves]
        after = [self._to_points(curve, curve.after) for curve in self.curves]
        before_line, after_line = self.common
        return [
            self._plot_stage("before", before, before_line),
            self._plot_stage("after", after, after_line),
        ]

    @staticmethod
    def _to_points(curve: FamilyCurve, scores: Floats) -> Points:
        return Points(curve.family, 10**curve.log_compute, scores, curve.models)

    def _plot_stage(self, stage: str, points: Sequence[Points], common_line: LogLinearFit) -> Plot:
        return plot_against_compute(
            f"{self.task}-families-{stage}",
            f"{self.task} {stage} adjustment",
            "One curve per family. Families of equal merit lie on one trend;"
            f" R² of one line: {common_line.r2:.2f}.",
            points=tuple(points),
            lines=tuple(Line(family.name, family.x, family.y) for family in points),
        )


def _format_range(scores: Floats) -> str:
    return f"{scores.min():.3f} – {scores.max():.3f}"


def compare_families(
    score_pair: ScorePair, families: Sequence[str] | Mapping[str, Sequence[str]] | None = None
) -> FamilyComparison:
    """Compare families on one task: names of the facts' family column, or a mapping from a name to its models.

    Without a choice, every family with at least three models is taken.
    """
    if isinstance(families, Mapping):
        models_by_family = dict(families)
    else:
        models_by_family = _select_families(score_pair.cohort, families)
    curves = [
        _make_curve(score_pair, family, models) for family, models in models_by_family.items()
    ]
    if not curves:
        raise InputError("no family has three models", hint="name the families to compare")
    log_flops = np.concatenate([curve.log_compute for curve in curves])
    before = np.concatenate([curve.before for curve in curves])
    after = np.concatenate([curve.after for curve in curves])
    common = (fit_log_linear(log_flops, before), fit_log_linear(log_flops, after))
    return FamilyComparison(score_pair.task, tuple(curves), common)


def _select_families(cohort: Cohort, families: Sequence[str] | None) -> dict[str, Sequence[str]]:
    """Return the models of the families named, else of all with three models and more."""
    models_by_family: dict[str, list[str]] = {}
    for model, family in zip(cohort.models, cohort.family, strict=True):
        models_by_family.setdefault(family, []).append(model)
    if not families:
        families = [
            family
            for family, models in models_by_family.items()
            if len(models) >= MIN_FAMILY_MODELS
        ]
    return {family: models_by_family.get(family, []) for family in families}


def _make_curve(score_pair: ScorePair, family: str, models: Sequence[str]) -> FamilyCurve:
    cohort = score_pair.cohort
    positions = np.flatnonzero(np.isin(cohort.models, list(models)))
    if not len(positions):
        raise InputError(
            f"no model of family {family!r} here",
            hint=suggest_names(family, sorted(set(cohort.family))),
        )
    by_compute = positions[np.argsort(cohort.compute[positions], kind="stable")]
    return FamilyCurve(
        family=family,
        models=select_positions(cohort.models, by_compute),
        log_compute=cohort.log_compute[by_compute],
        before=score_pair.before[by_compute],
        after=score_pair.after[by_compute],
    )
