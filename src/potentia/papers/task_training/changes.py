"""What adjustment changes for single models: gains (figure 2), ranks (figure 17), and mediation (appendix C)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from potentia.papers.task_training.cohort import (
    Cohort,
    ModelSplit,
    ScorePair,
    plot_against_compute,
)
from potentia.papers.task_training.scaling import Coefficient, fit_linear
from potentia.values.findings import Bump, Chart, Finding, Table
from potentia.values.scores import Floats

KNOTS = (22.0, 23.0)  # log₁₀ FLOPs: 10²² and 10²³ (after equation 2)
SHIFTS_LISTED = 10


@dataclass(frozen=True)
class TuningGain(Finding):
    """Gain after tuning, model by model, and its mean in the group and among the others."""

    task: str
    cohort: Cohort
    split: ModelSplit
    gains: Floats

    @property
    def means(self) -> tuple[float, float]:
        """Mean gain of the group and of the others."""
        members = self.split.members
        return float(self.gains[members].mean()), float(self.gains[~members].mean())

    def tables(self) -> Sequence[Table]:
        """Return mean, median and largest gain of both sides."""
        table_rows = []
        for side_name, mask in reversed(self.split.sides()):
            gains = self.gains[mask]
            models = self.cohort.select_names(mask)
            best_model = models[int(np.argmax(gains))]
            summary = (gains.mean(), np.median(gains), gains.max())
            table_rows.append((side_name, len(gains), *summary, best_model))
        column_names = ("models", "n", "mean gain", "median", "largest", "which")
        return (Table(f"{self.task}: gain by tuning on task data", column_names, table_rows),)

    def charts(self) -> Sequence[Chart]:
        """Return gain against compute."""
        chart = plot_against_compute(
            f"{self.task}-gain",
            f"{self.task}: gain by tuning on task data",
            "Each point is a model: what it gained by fine-tuning on the task's data.",
            points=self.split.to_points(self.cohort, self.gains),
            y_label="score after − before",
        )
        return (chart,)


def measure_gain(score_pair: ScorePair, split: ModelSplit | None = None) -> TuningGain:
    """Subtract the score before from the score after, oriented so that a gain is positive."""
    before, after = score_pair.oriented()
    if split is None:
        split = ModelSplit("", np.zeros(len(before), dtype=bool), "all models")
    return TuningGain(
        task=score_pair.task, cohort=score_pair.cohort, split=split, gains=after - before
    )


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
        shifts = self.shifts
        largest_first = np.argsort(-np.abs(shifts), kind="stable")[:SHIFTS_LISTED]
        table_rows = [
            (self.cohort.models[position], *self.ranks[position], shifts[position])
            for position in largest_first
        ]
        has_ties = bool((self.ranks[largest_first] % 1).any())  # models that tie share their places
        return (
            Table(
                f"{self.task}: change of ranks by adjustment",
                ("models", "mean shift", "largest shift", "Kendall's τ"),
                ((len(self.ranks), self.mean, self.largest, self.tau),),
                digits=2,
            ),
            Table(
                "The ten largest shifts",
                ("model", "before", "after", "places gained"),
                table_rows,
                digits=1 if has_ties else 0,
            ),
        )

    def charts(self) -> Sequence[Chart]:
        """Return the ranks in two columns joined by lines."""
        chart = Bump(
            f"{self.task}-ranks",
            f"{self.task}: ranks before and after adjustment",
            f"Models move by {self.mean:.1f} places on average, {self.largest:.0f} at most.",
            self.cohort.models,
            ("before", "after"),
            self.ranks,
            self.cohort.family,
        )
        return (chart,)


def measure_rank_shift(score_pair: ScorePair) -> RankShift:
    """Rank the models before and after adjustment; models with equal scores share the mean of their places."""
    before, after = score_pair.oriented()
    ranks = np.column_stack([stats.rankdata(-before), stats.rankdata(-after)])
    tau = float(stats.kendalltau(before, after).statistic)
    return RankShift(task=score_pair.task, cohort=score_pair.cohort, ranks=ranks, tau=tau)


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
        table_rows = (
            ("mediated φ (before − after)", *self.mediated.to_row(), self.mediated_r2),
            ("direct ψ (after)", *self.direct.to_row(), self.direct_r2),
        )
        title = f"{self.task}: mediation by test-task training, models {self.group}"
        column_names = ("effect", "value", "s.e.", "p", "s.e. by family", "p by family", "R²")
        note = f"{self.n} models; compute enters piecewise log-linearly with knots at 10²² and 10²³ FLOPs."
        return (Table(title, column_names, table_rows, note),)


def measure_mediation(
    score_pair: ScorePair, split: ModelSplit, *, jumps: bool = False
) -> Mediation:
    """Regress the adjusted score (ψ) and the change by adjustment (φ′) on f(C) and N.

    f(C) is the continuous piecewise log-linear function with ``KNOTS``: its slope changes there, its value does
    not jump. This reading of equation 2 is the one that gives the published tables 3 and 4; with ``jumps`` it is taken
    literally, and its value jumps at the knots.
    """
    log_flops = score_pair.cohort.log_compute
    columns = [np.ones_like(log_flops), log_flops - log_flops.mean()]
    for knot in KNOTS:
        bent_compute = np.maximum(0.0, log_flops - knot)
        if jumps:
            bent_compute = log_flops * (log_flops > knot)
        matrix_rank = np.linalg.matrix_rank(np.column_stack([*columns, bent_compute]))
        if matrix_rank > len(columns):  # else no models lie on one side
            columns.append(bent_compute)
    design = np.column_stack([*columns, np.asarray(split.members, dtype=np.float64)])
    before, after = score_pair.oriented()
    change, change_r2 = fit_linear(design, before - after, score_pair.cohort.family)
    adjusted, adjusted_r2 = fit_linear(design, after, score_pair.cohort.family)
    return Mediation(
        task=score_pair.task,
        group=split.label,
        n=len(log_flops),
        mediated=change[-1],
        mediated_r2=change_r2,
        direct=adjusted[-1],
        direct_r2=adjusted_r2,
    )
