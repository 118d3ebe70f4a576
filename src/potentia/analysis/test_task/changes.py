"""What adjustment changes: gains (figure 2), families (figure 6), ranks (figure 17), what it mediates (appendix C)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from potentia.analysis.test_task.cohort import Cohort, Pair, Split, against_compute
from potentia.analysis.test_task.scaling import Coefficient, LogLinearFit, fit_log_linear, linear_coefficients
from potentia.errors import InputError
from potentia.values.findings import Bump, Chart, Finding, Line, Points, Table
from potentia.values.scores import Floats

KNOTS = (22.0, 23.0)  # log₁₀ FLOPs: 10²² and 10²³ (after equation 2)


@dataclass(frozen=True)
class Gain(Finding):
    """Gain after tuning, model by model, and its mean in the group and among the others."""

    task: str
    cohort: Cohort
    split: Split
    gains: Floats

    @property
    def means(self) -> tuple[float, float]:
        """Mean gain of the group and of the others."""
        inside = self.split.members
        return float(self.gains[inside].mean()), float(self.gains[~inside].mean())

    def tables(self) -> Sequence[Table]:
        """Return mean, median and largest gain of both sides."""
        rows = []
        for name, mask in reversed(self.split.sides()):
            part = self.gains[mask]
            top = self.cohort.named(mask)[int(np.argmax(part))]
            rows.append((name, len(part), float(part.mean()), float(np.median(part)), float(part.max()), top))
        columns = ("models", "n", "mean gain", "median", "largest", "which")
        return (Table(f"{self.task}: gain by tuning on task data", columns, tuple(rows)),)

    def charts(self) -> Sequence[Chart]:
        """Return gain against compute."""
        title, caption = (
            f"{self.task}: gain by tuning on task data",
            "Models that had not met the task before gain most.",
        )
        points = self.split.points(self.cohort, self.gains)
        return (against_compute(f"{self.task}-gain", title, caption, points, what="score after − before"),)


def measure_gain(pair: Pair, split: Split | None = None) -> Gain:
    """Subtract the score before from the score after, oriented so that a gain is positive."""
    before, after = pair.oriented()
    parts = split or Split("", np.zeros(len(before), dtype=bool), "all models")
    return Gain(pair.task, pair.cohort, parts, after - before)


@dataclass(frozen=True)
class RankShift(Finding):
    """Ranks of the same models before and after (1 is best), and by how many places they move."""

    task: str
    cohort: Cohort
    ranks: Floats  # (models, 2)
    tau: float

    @property
    def shifts(self) -> Floats:
        """Places gained (positive) or lost by adjustment."""
        return np.asarray(self.ranks[:, 0] - self.ranks[:, 1])

    @property
    def mean(self) -> float:
        """Mean absolute shift."""
        return float(np.abs(self.shifts).mean())

    @property
    def largest(self) -> float:
        """Largest absolute shift."""
        return float(np.abs(self.shifts).max())

    def tables(self) -> Sequence[Table]:
        """Return the summary and the models that move most."""
        summary = Table(
            f"{self.task}: change of ranks by adjustment",
            ("models", "mean shift", "largest shift", "Kendall's τ"),
            ((len(self.ranks), self.mean, self.largest, self.tau),),
            digits=2,
        )
        order = np.argsort(-np.abs(self.shifts), kind="stable")[:10]
        rows = tuple((self.cohort.models[i], *map(float, self.ranks[i]), float(self.shifts[i])) for i in order)
        return summary, Table("The ten largest shifts", ("model", "before", "after", "places gained"), rows, digits=0)

    def charts(self) -> Sequence[Chart]:
        """Return the ranks in two columns joined by lines."""
        return (
            Bump(
                name=f"{self.task}-ranks",
                title=f"{self.task}: ranks before and after adjustment",
                caption=f"Models move by {self.mean:.1f} places on average, {self.largest:.0f} at most.",
                models=self.cohort.models,
                columns=("before", "after"),
                ranks=self.ranks,
                groups=self.cohort.family,
            ),
        )


def shift_of_ranks(pair: Pair) -> RankShift:
    """Rank the models before and after adjustment; models with equal scores share the mean of their places."""
    scores = pair.oriented()
    ranks = np.column_stack([stats.rankdata(-score) for score in scores])
    tau = float(stats.kendalltau(*scores).statistic)
    return RankShift(pair.task, pair.cohort, ranks, tau)


@dataclass(frozen=True)
class Mediation(Finding):
    """The indirect effect φ′ (N → T → A, equation 6) and the direct effect ψ (N → A, equation 5) of a group N."""

    task: str
    group: str
    n: int
    mediated: Coefficient
    mediated_r2: float
    direct: Coefficient
    direct_r2: float

    def tables(self) -> Sequence[Table]:
        """Return both effects, a row each."""
        rows = tuple(
            (name, c.value, c.stderr, c.p, c.clustered_stderr, c.clustered_p, r2)
            for name, c, r2 in (
                ("mediated φ (before − after)", self.mediated, self.mediated_r2),
                ("direct ψ (after)", self.direct, self.direct_r2),
            )
        )
        columns = ("effect", "value", "s.e.", "p", "s.e. by family", "p by family", "R²")
        note = f"{self.n} models; compute enters piecewise log-linearly with knots at 10²² and 10²³ FLOPs."
        return (Table(f"{self.task}: mediation by test-task training, {self.group}", columns, rows, note),)


def mediate(pair: Pair, split: Split, *, knots: Sequence[float] = KNOTS) -> Mediation:
    """Regress the adjusted score (ψ) and the change by adjustment (φ′) on f(C) and N.

    f(C) is the continuous piecewise log-linear function with the given knots: its slope changes there, its value does
    not jump. This reading of equation 2 is the one that gives the published tables 3 and 4.
    """
    x = pair.cohort.log_compute
    design = _design(x, np.asarray(split.members, dtype=np.float64), knots)
    before, after = pair.oriented()
    families = pair.cohort.family
    change, change_r2 = linear_coefficients(design, before - after, families)
    adjusted, adjusted_r2 = linear_coefficients(design, after, families)
    return Mediation(pair.task, split.label, len(x), change[-1], change_r2, adjusted[-1], adjusted_r2)


def _design(x: Floats, group: Floats, knots: Sequence[float]) -> Floats:
    columns = [np.ones_like(x), x - x.mean()]
    for bend in (np.maximum(0.0, x - knot) for knot in knots):
        if np.linalg.matrix_rank(np.column_stack([*columns, bend])) > len(columns):  # else no models lie on one side
            columns.append(bend)
    return np.column_stack([*columns, group])


# --- families side by side --------------------------------------------------------------------------------------------


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
        for stage in ("before", "after"):
            curves = [(c.family, tuple(10**c.log_compute), tuple(getattr(c, stage)), c.models) for c in self.curves]
            drawn.append(
                against_compute(
                    f"{self.task}-families-{stage}",
                    f"{self.task} {stage} adjustment",
                    "Families that looked superior fall onto one common trend after adjustment.",
                    tuple(Points(family, x, y, models) for family, x, y, models in curves),
                    tuple(Line(family, x, y) for family, x, y, _ in curves),
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
        models = tuple(cohort.models[i] for i in places)
        curves.append(FamilyCurve(name, models, cohort.log_compute[places], pair.before[places], pair.after[places]))
    if not curves:
        raise InputError("no family has three models", hint="name the families to compare")
    x = np.concatenate([curve.log_compute for curve in curves])
    common = tuple(
        fit_log_linear(x, np.concatenate([getattr(curve, stage) for curve in curves])) for stage in ("before", "after")
    )
    return FamilyComparison(pair.task, tuple(curves), (common[0], common[1]))
