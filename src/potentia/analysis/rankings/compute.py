"""PC1 against pretraining compute: whether what the scores share is what was spent (figure 7).

Compute is 6·parameters·tokens (table 4), known only for the models whose training tokens are public; PC1 is fitted by
least squares on its logarithm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import linregress

from potentia.analysis.rankings.components import Components
from potentia.analysis.stats.bootstrap import LEVEL, MODELS, RESAMPLES, Units, interval
from potentia.analysis.stats.kendall import kendall_matrix
from potentia.errors import InputError
from potentia.values.findings import Cell, Chart, Finding, Interval, Line, Plot, Points, Table
from potentia.values.protocol import Protocol


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
        rows: tuple[tuple[Cell, ...], ...] = (
            ("PC1 per factor of ten in compute", self.slope.value, self.slope.low, self.slope.high),
            ("R²", self.r_squared, None, None),
            ("Kendall's τ of PC1 and compute", self.tau.value, self.tau.low, self.tau.high),
        )
        return [
            Table(
                f"PC1 against pretraining compute ({self.protocol.label}, {len(self.models)} models with known tokens)",
                ("quantity", "value", "low", "high"),
                rows,
                note=f"Intervals: bootstrap over {self.over}.",
            )
        ]

    def charts(self) -> Sequence[Chart]:
        """Return the scatter of figure 7 with the fitted line."""
        ends = (min(self.flops), max(self.flops))
        points = []
        for family in sorted(set(self.families)):
            rows = [k for k, f in enumerate(self.families) if f == family]
            points.append(
                Points(
                    name=family,
                    x=tuple(self.flops[k] for k in rows),
                    y=tuple(self.pc1[k] for k in rows),
                    labels=tuple(self.models[k] for k in rows),
                )
            )
        return [
            Plot(
                name=f"compute-{self.protocol}",
                title=f"PC1 against pretraining compute: {self.protocol.label}",
                caption="First principal component (PC1) against 6·parameters·tokens; the line explains "
                f"{max(self.r_squared, 0.0):.0%} of the variance (R²), Kendall's τ {self.tau.value:.2f}.",
                points=tuple(points),
                lines=(
                    Line(
                        name="least squares",
                        x=ends,
                        y=tuple(self.intercept + self.slope.value * float(np.log10(x)) for x in ends),
                        dashed=True,
                    ),
                ),
                x_label="pretraining compute (FLOPs)",
                y_label="PC1",
                log_x=True,
                group="compute",
            )
        ]


def fit_compute(
    found: Components,
    flops: Mapping[str, float],
    *,
    families: Mapping[str, str] | None = None,
    units: Units = MODELS,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
    seed: int = 0,
) -> ComputeFit:
    """Fit PC1 on log10 of pretraining compute over the models whose compute is known."""
    models = [m for m in found.models if np.isfinite(flops.get(m, np.nan)) and flops[m] > 0]
    if len(models) < 3 or len({flops[m] for m in models}) < 2:
        raise InputError(
            f"pretraining compute is known for {len(models)} models; a fit needs three of different compute"
        )
    x, y = np.log10([flops[m] for m in models]), np.array([found.pc1[m] for m in models])
    fit = linregress(x, y)
    draws = units.draws(models, resamples, seed)
    share = draws / draws.sum(axis=1, keepdims=True)
    centred = x - (share @ x)[:, None]
    with np.errstate(invalid="ignore", divide="ignore"):
        slopes = (share * centred * y).sum(axis=1) / (share * centred**2).sum(axis=1)
    return ComputeFit(
        protocol=found.protocol,
        models=tuple(models),
        families=tuple((families or {}).get(m, "models") for m in models),
        flops=tuple(float(flops[m]) for m in models),
        pc1=tuple(y.tolist()),
        slope=interval(float(fit.slope), slopes, level=level),
        intercept=float(fit.intercept),
        r_squared=float(fit.rvalue**2),
        tau=interval(
            float(kendall_matrix(x[:, None], y[:, None])[0, 0]),
            kendall_matrix(x[:, None], y[:, None], weights=draws)[:, 0, 0],
            level=level,
        ),
        over=units.over(models),
    )
