"""What adjustment changes: gains of models (figure 2), their ranks (figure 17), what it mediates (appendix C)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from potentia.analysis.test_task.cohort import Flags, Split
from potentia.analysis.test_task.pair import Pair
from potentia.analysis.test_task.scaling import Coefficient, linear_coefficients
from potentia.values.findings import Bump, Chart, Finding, Plot, Points, Table
from potentia.values.scores import Floats

KNOTS = (22.0, 23.0)  # log₁₀ FLOPs: 10²² and 10²³ (after equation 2)


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


@dataclass(frozen=True)
class RankShift(Finding):
    """Ranks of the same models before and after (1 is best), and by how many places they move."""

    task: str
    models: tuple[str, ...]
    families: tuple[str, ...]
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
            ((len(self.models), self.mean, self.largest, self.tau),),
            digits=2,
        )
        order = np.argsort(-np.abs(self.shifts), kind="stable")[:10]
        rows = tuple((self.models[i], *map(float, self.ranks[i]), float(self.shifts[i])) for i in order)
        return summary, Table("The ten largest shifts", ("model", "before", "after", "places gained"), rows, digits=0)

    def charts(self) -> Sequence[Chart]:
        """Return the ranks in two columns joined by lines."""
        return (
            Bump(
                name=f"{self.task}-ranks",
                title=f"{self.task}: ranks before and after adjustment",
                caption=f"Models move by {self.mean:.1f} places on average, {self.largest:.0f} at most.",
                models=self.models,
                columns=("before", "after"),
                ranks=self.ranks,
                groups=self.families,
            ),
        )


def shift_of_ranks(pair: Pair) -> RankShift:
    """Rank the models before and after adjustment; models with equal scores share the mean of their places."""
    scores = pair.oriented()
    ranks = np.column_stack([stats.rankdata(-score) for score in scores])
    tau = float(stats.kendalltau(*scores).statistic)
    return RankShift(pair.task, pair.cohort.models, pair.cohort.family, ranks, tau)


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
