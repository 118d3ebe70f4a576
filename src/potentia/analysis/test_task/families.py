"""Model families side by side, before and after adjustment (figure 6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from potentia.analysis.test_task.pair import Pair
from potentia.analysis.test_task.scaling import LogLinearFit, fit_log_linear
from potentia.errors import InputError
from potentia.values.findings import Chart, Finding, Line, Plot, Points, Table
from potentia.values.scores import Floats


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
        return {
            curve.family: (
                float(np.mean(curve.before - self.common[0].predict(curve.log_compute))),
                float(np.mean(curve.after - self.common[1].predict(curve.log_compute))),
            )
            for curve in self.curves
        }

    def tables(self) -> Sequence[Table]:
        """Return one row per family, and how well one line describes all of them."""
        distance = self.residuals()
        rows = tuple(
            (
                curve.family,
                len(curve.models),
                f"{curve.before.min():.3f} – {curve.before.max():.3f}",
                f"{curve.after.min():.3f} – {curve.after.max():.3f}",
                *distance[curve.family],
            )
            for curve in self.curves
        )
        columns = ("family", "models", "scores before", "scores after", "off the line before", "after")
        note = f"R² of one line for all: {self.common[0].r2:.3f} before, {self.common[1].r2:.3f} after adjustment."
        return (Table(f"{self.task}: families at equal compute", columns, rows, note),)

    def charts(self) -> Sequence[Chart]:
        """Return a curve per family, before and after."""
        drawn = []
        for k, stage in enumerate(("before", "after")):
            points, lines = [], []
            for curve in self.curves:
                x = tuple(10**curve.log_compute)
                y = tuple(curve.after if k else curve.before)
                points.append(Points(curve.family, x, y, curve.models))
                lines.append(Line(curve.family, x, y))
            drawn.append(
                Plot(
                    name=f"{self.task}-families-{stage}",
                    title=f"{self.task} {stage} adjustment",
                    caption="Families that looked superior fall onto one common trend after adjustment.",
                    points=tuple(points),
                    lines=tuple(lines),
                    x_label="pretraining compute (FLOPs)",
                    y_label="score",
                    log_x=True,
                )
            )
        return tuple(drawn)


def compare_families(
    pair: Pair, families: Sequence[str] | Mapping[str, Sequence[str]] | None = None
) -> FamilyComparison:
    """Compare families on one task: names of the facts' family column, or a mapping from a name to its models.

    Without a choice, every family with at least three models is taken.
    """
    cohort = pair.cohort
    if isinstance(families, Mapping):
        chosen = {name: list(models) for name, models in families.items()}
    else:
        sizes = {name: cohort.family.count(name) for name in dict.fromkeys(cohort.family)}
        wanted = list(families) if families else [name for name, size in sizes.items() if size >= 3]
        chosen = {name: [m for m, f in zip(cohort.models, cohort.family, strict=True) if f == name] for name in wanted}
    index = {name: i for i, name in enumerate(cohort.models)}
    curves = []
    for name, members in chosen.items():
        places = sorted((index[m] for m in members if m in index), key=lambda i: float(cohort.compute[i]))
        if not places:
            raise InputError(f"no model of family {name!r} here", hint=f"there are: {', '.join(set(cohort.family))}")
        curves.append(
            FamilyCurve(
                name,
                tuple(cohort.models[i] for i in places),
                cohort.log_compute[places],
                pair.before[places],
                pair.after[places],
            )
        )
    if not curves:
        raise InputError("no family has three models", hint="name the families to compare")
    x = np.concatenate([curve.log_compute for curve in curves])
    common = tuple(
        fit_log_linear(x, np.concatenate([getattr(curve, stage) for curve in curves])) for stage in ("before", "after")
    )
    return FamilyComparison(pair.task, tuple(curves), (common[0], common[1]))
