"""Principal components of the score matrix: how many abilities the scores show (section 3.4).

Every task is standardised (mean 0, standard deviation 1 over the models), so no task counts more for its scale; the
explained variance of the components then says how close the matrix is to rank one. The sign of a component is free: it
is chosen so that its loadings sum to more than zero, which for PC1 means higher is better.

PC1 against pretraining compute: whether what the scores share is what was spent (figure 7).

Compute is 6·parameters·tokens (table 4), known only for the models whose training tokens are public; PC1 is fitted by
least squares on its logarithm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Unpack

import numpy as np
from scipy.stats import linregress

from potentia.analysis.left_out import NO_ENTRIES
from potentia.analysis.stats.bootstrap import How, Sampling
from potentia.analysis.stats.correlation import kendall_matrix
from potentia.analysis.stats.first_place import ENOUGH_MODELS
from potentia.analysis.stats.standardize import standardize
from potentia.errors import InputError
from potentia.values.findings import (
    Bars,
    Chart,
    Finding,
    Interval,
    Line,
    Plot,
    Points,
    Table,
    picked,
)
from potentia.values.protocol import Protocol
from potentia.values.scores import Floats, ScoreMatrix

GAPS = ("models", "tasks", "mean")
ALL = "all models"
PC = ("PC1", "PC2", "PC3", "PC4", "PC5")  # that are shown
BLOCK = 1 << 20  # scores standardised at once


@dataclass(frozen=True)
class Components(Finding):
    """Explained variance, loadings and scores of the principal components."""

    protocol: Protocol
    group: str
    gaps: str  # what was done about missing cells
    models: tuple[str, ...]
    tasks: tuple[str, ...]
    explained: tuple[Interval, ...]  # variance ratios
    loadings: Floats  # (components, tasks)
    scores: Floats  # (models, components)
    over: str = "models"  # what the intervals draw

    @property
    def pc1(self) -> dict[str, float]:
        """Each model's score on the first component; higher is better."""
        return {m: float(s) for m, s in zip(self.models, self.scores[:, 0], strict=True)}

    def tables(self) -> Sequence[Table]:
        """Return the explained variance of the first components, and PC1 of each model."""
        shares = zip(PC, self.explained, strict=False)
        note = f"Missing cells: {GAP_NOTES[self.gaps]}. Intervals: bootstrap over {self.over}."
        what = f"{self.protocol.label}, {self.group}"
        title = f"Explained variance ({what}: {len(self.models)} × {len(self.tasks)})"
        ranked = tuple(sorted(self.pc1.items(), key=lambda one: -one[1]))
        return [
            Table(title, ("component", "share", "low", "high"), shares, note),
            Table(f"PC1 of each model ({what})", ("model", "PC1"), ranked),
        ]

    def charts(self) -> Sequence[Chart]:
        """Return the scree bars (figures 6 and 8) and PC1 of each model (figure 11)."""
        top, label = self.explained[: len(PC)], self.protocol.label
        name = f"{self.protocol}-{self.group}".replace(" ", "-")
        title = f"Explained variance: {label}, {self.group}"
        caption = (
            f"The first principal component (PC1) explains {top[0].value:.0%} of the variance."
        )
        bars, group = {label: top}, f"scree-{self.group}"
        charts = [
            Bars(
                f"scree-{name}",
                title,
                caption,
                PC[: len(top)],
                bars,
                y_label="share of variance",
                group=group,
            )
        ]
        if self.group == ALL:
            order = np.argsort(-self.scores[:, 0], kind="stable")
            title = f"PC1 of each model: {label}"
            caption = "Scores on the first principal component (PC1); higher is better."
            models, bars = picked(self.models, order), {label: self.scores[order, 0]}
            charts.append(
                Bars(f"pc1-{name}", title, caption, models, bars, y_label="PC1", group="pc1")
            )
        return charts


GAP_NOTES = {
    "models": "models with a gap left out",
    "tasks": "tasks with a gap left out",
    "mean": "filled with the task's mean",
}


def compute_components(
    matrix: ScoreMatrix, *, group: str = ALL, gaps: str = "models", **how: Unpack[How]
) -> Components:
    """Principal components of the standardised scores.

    ``gaps`` says what to do about missing cells: leave out the models that have one ("models"), leave out the tasks
    that have one ("tasks"), or fill in the task's mean ("mean").
    """
    whole = remove_gaps(matrix, gaps)
    if whole.shape[0] < 2:
        few = f"components need two models without missing scores, {group} of {matrix.protocol} has {whole.shape[0]}"
        hint = (
            'gaps="tasks" leaves out incomplete tasks instead of models, gaps="mean" fills them in'
        )
        raise InputError(few, hint=hint)
    values = whole.oriented()
    scores, loadings, singular = principal_components(values)
    total = (singular**2).sum()
    ratios = singular**2 / total if total > 0 else np.full_like(singular, np.nan)
    sampling = Sampling(**how)
    spread = explained_variance(values, sampling.draws(whole.models))
    if len(whole.models) < ENOUGH_MODELS:  # drawing so few again says nothing of others
        spread = np.full_like(spread, np.nan)
    return Components(
        protocol=matrix.protocol,
        group=group,
        gaps=gaps,
        models=whole.models,
        tasks=whole.tasks,
        explained=tuple(sampling.interval(float(r), spread[:, k]) for k, r in enumerate(ratios)),
        loadings=loadings,
        scores=scores,
        over=sampling.units.drawn_unit(whole.models),
    )


def principal_components(values: Floats) -> tuple[Floats, Floats, Floats]:
    """Return scores (models, components), loadings (components, tasks) and singular values of standardised scores."""
    left, singular, loadings = np.linalg.svd(standardize(values), full_matrices=False)
    sign = np.where(loadings.sum(axis=1) < 0, -1.0, 1.0)
    return left * singular * sign, loadings * sign[:, None], singular


def remove_gaps(matrix: ScoreMatrix, gaps: str) -> ScoreMatrix:
    """Treat missing cells as asked: see ``find_components``."""
    known = np.isfinite(matrix.values)
    if gaps == "models":
        return matrix.complete()
    if gaps == "tasks":
        return matrix.select(tasks=known.all(axis=0))
    if gaps == "mean":
        counted = matrix.select(tasks=known.any(axis=0))
        there = np.isfinite(counted.values)
        mean = np.where(there, counted.values, 0.0).sum(axis=0) / there.sum(axis=0)
        return replace(counted, values=np.where(there, counted.values, mean))
    raise InputError(f"no treatment of gaps {gaps!r}", hint=f"one of: {', '.join(GAPS)}")


def explained_variance(values: Floats, weights: Floats) -> Floats:
    """Variance ratios of the components of the standardised values, largest first, for each resample.

    ``weights`` (resamples, models) says how many models each row stands for.
    """
    parts = []
    for rows in np.array_split(weights, max(1, -(-len(weights) * values.size // BLOCK))):
        z = standardize(values, rows) * np.sqrt(rows)[:, :, None]  # (resamples, models, tasks)
        gram = z.transpose(0, 2, 1) @ z if z.shape[2] <= z.shape[1] else z @ z.transpose(0, 2, 1)
        parts.append(np.linalg.eigvalsh(gram)[:, ::-1])
    eigen = np.clip(np.concatenate(parts), 0.0, None)
    total = eigen.sum(axis=1, keepdims=True)
    return np.asarray(np.divide(eigen, total, out=np.full(eigen.shape, np.nan), where=total > 0))


@dataclass(frozen=True)
class ComputeFit(Finding):
    """PC1 as a straight line in the logarithm of pretraining compute."""

    protocol: Protocol
    models: tuple[str, ...]
    families: tuple[str, ...]
    flops: tuple[float, ...]
    pc1: tuple[float, ...]
    slope: Interval  # PC1 per factor of ten
    intercept: float
    r_squared: float
    tau: Interval  # rank agreement of PC1 and compute
    over: str = "models"  # what the intervals draw

    def tables(self) -> Sequence[Table]:
        """Return the fit."""
        slope, tau = (
            ("PC1 per factor of ten in compute", self.slope),
            ("Kendall's τ of PC1 and compute", self.tau),
        )
        rows = slope, ("R²", self.r_squared, None, None), tau
        title = f"PC1 against pretraining compute ({self.protocol.label}, {len(self.models)} models with known tokens)"
        return [
            Table(
                title,
                ("quantity", "value", "low", "high"),
                rows,
                f"Intervals: bootstrap over {self.over}.",
            )
        ]

    def charts(self) -> Sequence[Chart]:
        """Return the scatter of figure 7 with the fitted line."""
        ends = (min(self.flops), max(self.flops))
        fitted = self.intercept + self.slope.value * np.log10(ends)
        family, x, y, names = map(np.array, (self.families, self.flops, self.pc1, self.models))
        own = {str(name): family == name for name in np.unique(family)}
        points = tuple(
            Points(name, x[of], y[of], tuple(names[of].tolist())) for name, of in own.items()
        )
        caption = (
            "First principal component (PC1) against 6·parameters·tokens; the line explains "
            f"{max(self.r_squared, 0.0):.0%} of the variance (R²), Kendall's τ {self.tau.value:.2f}."
        )
        title = f"PC1 against pretraining compute: {self.protocol.label}"
        drawn = (
            points,
            (Line("least squares", ends, fitted, dashed=True),),
            "pretraining compute (FLOPs)",
            "PC1",
        )
        return [
            Plot(f"compute-{self.protocol}", title, caption, *drawn, log_x=True, group="compute")
        ]


def fit_compute(
    found: Components,
    flops: Mapping[str, float],
    *,
    families: Mapping[str, str] = NO_ENTRIES,
    **how: Unpack[How],
) -> ComputeFit:
    """Fit PC1 on log10 of pretraining compute over the models whose compute is known."""
    models = [m for m in found.models if np.isfinite(flops.get(m, np.nan)) and flops[m] > 0]
    if len(models) < 3 or len({flops[m] for m in models}) < 2:
        few = f"pretraining compute is known for {len(models)} models"
        raise InputError(f"{few}; a fit needs three of different compute")
    x, y = np.log10([flops[m] for m in models]), np.array([found.pc1[m] for m in models])
    fit = linregress(x, y)
    sampling = Sampling(**how)
    draws = sampling.draws(models)
    share = draws / draws.sum(axis=1, keepdims=True)
    centred = x - (share @ x)[:, None]
    with np.errstate(invalid="ignore", divide="ignore"):
        slopes = (share * centred * y).sum(axis=1) / (share * centred**2).sum(axis=1)
    tau, taus = (kendall_matrix(x[:, None], y[:, None], weights=w) for w in (None, draws))
    return ComputeFit(
        protocol=found.protocol,
        models=tuple(models),
        families=tuple(families.get(m, "models") for m in models),
        flops=tuple(float(flops[m]) for m in models),
        pc1=tuple(y.tolist()),
        slope=sampling.interval(float(fit.slope), slopes),
        intercept=float(fit.intercept),
        r_squared=float(fit.rvalue**2),
        tau=sampling.interval(float(tau[0, 0]), taus[:, 0, 0]),
        over=sampling.units.drawn_unit(models),
    )
