"""PC1 against pretraining compute: whether what the scores share is what was spent (figure 7).

Compute is 6·parameters·tokens (table 4), known only for the models whose training tokens are public; PC1 is fitted by
least squares on its logarithm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import linregress

from potentia.analysis.left_out import NO_ENTRIES
from potentia.analysis.rankings.components import Components
from potentia.analysis.stats.bootstrap import DEFAULT_SAMPLING, Sampling
from potentia.analysis.stats.correlation import kendall_matrix
from potentia.errors import InputError
from potentia.values.findings import Chart, Finding, Interval, Line, Plot, Points, Table
from potentia.values.protocol import Protocol
from potentia.values.scores import Floats


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
    resampled_unit: str = "models"  # what the intervals draw

    def tables(self) -> Sequence[Table]:
        """Return the fit."""
        table_rows = (
            ("PC1 per factor of ten in compute", self.slope),
            ("R²", self.r_squared, None, None),
            ("Kendall's τ of PC1 and compute", self.tau),
        )
        model_count = f"{len(self.models)} models with known tokens"
        title = f"PC1 against pretraining compute ({self.protocol.label}, {model_count})"
        note = f"Intervals: bootstrap over {self.resampled_unit}."
        return [Table(title, ("quantity", "value", "low", "high"), table_rows, note)]

    def charts(self) -> Sequence[Chart]:
        """Return the scatter of figure 7 with the fitted line."""
        flops_range = (min(self.flops), max(self.flops))
        fitted = self.intercept + self.slope.value * np.log10(flops_range)
        families = np.array(self.families)
        flops = np.array(self.flops)
        pc1 = np.array(self.pc1)
        models = np.array(self.models)
        points = []
        for family in np.unique(families).tolist():
            members = families == family
            names = tuple(models[members].tolist())
            points.append(Points(str(family), flops[members], pc1[members], names))
        caption = (
            "First principal component (PC1) against 6·parameters·tokens; the line explains "
            f"{max(self.r_squared, 0.0):.0%} of the variance (R²), Kendall's τ {self.tau.value:.2f}."
        )
        title = f"PC1 against pretraining compute: {self.protocol.label}"
        chart = Plot(
            f"compute-{self.protocol}",
            title,
            caption,
            tuple(points),
            (Line("least squares", flops_range, fitted, dashed=True),),
            x_label="pretraining compute (FLOPs)",
            y_label="PC1",
            log_x=True,
            group="compute",
        )
        return [chart]


def fit_compute(
    components: Components,
    flops: Mapping[str, float],
    *,
    families: Mapping[str, str] = NO_ENTRIES,
    sampling: Sampling = DEFAULT_SAMPLING,
) -> ComputeFit:
    """Fit PC1 on log10 of pretraining compute over the models whose compute is known."""
    models = []
    for model in components.models:
        compute = flops.get(model, np.nan)
        if np.isfinite(compute) and compute > 0:
            models.append(model)
    if len(models) < 3 or len({flops[model] for model in models}) < 2:
        available = f"pretraining compute is known for {len(models)} models"
        raise InputError(f"{available}; a fit needs three of different compute")
    log_compute = np.log10([flops[model] for model in models])
    pc1 = np.array([components.pc1[model] for model in models])
    line = linregress(log_compute, pc1)
    draws = sampling.draw_models(models)
    tau = kendall_matrix(log_compute[:, None], pc1[:, None])
    drawn_tau = kendall_matrix(log_compute[:, None], pc1[:, None], weights=draws)
    drawn_slopes = _weighted_slopes(log_compute, pc1, draws)
    slope = sampling.interval(float(line.slope), drawn_slopes)
    tau_interval = sampling.interval(float(tau[0, 0]), drawn_tau[:, 0, 0])
    family_of_models = tuple(families.get(model, "models") for model in models)
    flops_of_models = tuple(float(flops[model]) for model in models)
    r_squared = float(line.rvalue**2)
    resampled_unit = sampling.units.drawn_unit(models)
    return ComputeFit(
        protocol=components.protocol,
        models=tuple(models),
        families=family_of_models,
        flops=flops_of_models,
        pc1=tuple(pc1.tolist()),
        slope=slope,
        intercept=float(line.intercept),
        r_squared=r_squared,
        tau=tau_interval,
        resampled_unit=resampled_unit,
    )


def _weighted_slopes(x: Floats, y: Floats, draws: Floats) -> Floats:
    """Return the least-squares slope of y on x under every draw (draws, points)."""
    shares = draws / draws.sum(axis=1, keepdims=True)
    centred = x - (shares @ x)[:, None]
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((shares * centred * y).sum(axis=1) / (shares * centred**2).sum(axis=1))
