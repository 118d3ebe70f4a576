"""Stability: whether a benchmark's score grows with pretraining, and how fine a step it can tell apart.

Stability is Kendall's tau between the scores of a model's checkpoints and their pretraining steps or tokens (BOSE,
section 4.1.3). A benchmark *resolves* a gap when most pairs of checkpoints at least that far apart differ
significantly and in the right direction; the smallest such gap says how often checkpoints are worth comparing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from potentia.analysis.base_models.ablation import (
    DRAWS,
    Column,
    Improvement,
    columns,
    improvement_chart,
    improvement_table,
    mean_tau,
    order_methods,
    tau_heatmap,
)
from potentia.analysis.left_out import left_out, noted
from potentia.analysis.stats.bootstrap import redraw, tau_interval, tau_rows
from potentia.errors import InputError
from potentia.values.findings import Chart, Finding, Interval, Line, Plot, Points, Table
from potentia.values.protocol import Protocol
from potentia.values.scores import Floats, ScoreMatrix

_NAMED = re.compile(r"(?P<series>.+)@(?:step)?(?P<step>\d+)")


@dataclass(frozen=True)
class Checkpoint:
    """Where a model stands in a pretraining run: the run's name, and its steps or tokens so far."""

    series: str
    step: float


def named_checkpoints(models: Iterable[str]) -> dict[str, Checkpoint]:
    """Find the models named ``run@step`` (or ``run@step1000``), as a study names the checkpoints of a series."""
    named = {model: match for model in models if (match := _NAMED.fullmatch(model))}
    return {model: Checkpoint(match["series"], float(match["step"])) for model, match in named.items()}


@dataclass(frozen=True, eq=False)
class Curve:
    """One benchmark by one method over one series of checkpoints, and how stably it grows."""

    series: str
    task: str
    method: str
    models: tuple[str, ...]
    steps: Floats  # (checkpoints,) ascending
    scores: Floats
    stderr: Floats
    tau: Interval
    gap: float | None  # the smallest gap resolved, None where none is or where no standard error is known
    neighbours: float | None  # the share of neighbouring checkpoints told apart in the right order

    @property
    def label(self) -> str:
        """Benchmark and series."""
        return f"{self.task} ({self.series})"

    def line(self) -> Line:
        """Return scores against steps, with 95 % intervals where they are known."""
        known = bool(np.isfinite(self.stderr).all())
        low, high = (tuple((self.scores + s * 1.96 * self.stderr).tolist()) if known else () for s in (-1, 1))
        return Line(self.method, tuple(self.steps.tolist()), tuple(self.scores.tolist()), low, high)


@dataclass(frozen=True)
class Stability(Finding):
    """Stability of every benchmark and method over every series of checkpoints."""

    unit: str  # "steps" or "tokens"
    baseline: str | None
    methods: tuple[str, ...]
    curves: tuple[Curve, ...]
    improvements: tuple[Improvement, ...]
    power: float
    left_out: tuple[str, ...] = ()

    def tables(self) -> Sequence[Table]:
        """Return tau per curve, the mean per method, and the improvements over the baseline (table 1's layout)."""
        rows = tuple(
            (c.series, c.task, c.method, len(c.steps), c.tau.value, c.tau.low, c.tau.high, c.gap, c.neighbours)
            for c in self.curves
        )
        found = [
            Table(
                f"Stability: Kendall's tau between scores and {self.unit}",
                ("series", "task", "method", "checkpoints", "tau", "low", "high", f"gap ({self.unit})", "neighbours"),
                rows,
                note=f"gap: the smallest distance at which at least {self.power:.0%} of the pairs of checkpoints that "
                "far apart or farther are significantly in the right order (one-sided, 5 %); – where none is. "
                f"neighbours: the share of adjacent checkpoints so told apart.{noted(self.left_out)}",
            ),
            Table(
                "Mean stability of each method",
                ("method", "curves", "mean tau", "resolved"),
                tuple(self._mean_row(method) for method in self.methods),
                note="resolved: curves that resolve some gap. Compare methods on the same curves only.",
            ),
        ]
        if self.improvements:
            found.append(improvement_table("stability", self.improvements, "series"))
        return found

    def charts(self) -> Sequence[Chart]:
        """Return tau as a heat map, and scores against steps for each benchmark and series."""
        caption = f"Kendall's tau between scores and {self.unit}; 1 means that every later checkpoint scores higher."
        taus = {(c.label, c.method): c.tau.value for c in self.curves}
        drawn: list[Chart] = [tau_heatmap("stability", "Stability by method", caption, taus)]
        if self.improvements:
            drawn.append(improvement_chart("stability", self.improvements))
        for series, task in dict.fromkeys((c.series, c.task) for c in self.curves):
            chosen = [c for c in self.curves if (c.series, c.task) == (series, task)]
            drawn.append(
                Plot(
                    f"stability-{series}-{task}",
                    f"{task} over the pretraining of {series}",
                    "Scores at each checkpoint, one curve per method, with 95 % intervals where known. "
                    "A stable method rises throughout.",
                    points=tuple(Points(c.method, c.line().x, c.line().y, c.models) for c in chosen),
                    lines=tuple(c.line() for c in chosen),
                    x_label=self.unit,
                    y_label="score",
                )
            )
        return drawn

    def _mean_row(self, method: str) -> tuple[str, int, float, int]:
        chosen = [c for c in self.curves if c.method == method]
        return method, len(chosen), mean_tau([c.tau.value for c in chosen]), sum(c.gap is not None for c in chosen)


def measure_stability(
    scores: Mapping[Protocol, ScoreMatrix],
    checkpoints: Mapping[str, Checkpoint],
    *,
    unit: str = "steps",
    baseline: str | None = None,
    power: float = 0.8,
) -> Stability:
    """Measure each benchmark and method over each series of checkpoints.

    ``scores`` maps protocols to matrices, ``checkpoints`` models to their place in a series. Intervals come from a
    parametric bootstrap over the scores' standard errors; where these are unknown the interval is unknown too. With a
    ``baseline`` method the finding also says how much every other method improves on it, on the checkpoints that both
    scored.
    """
    found = columns(scores)
    methods = order_methods(found, baseline)
    rng = np.random.default_rng(0)
    curves: list[Curve] = []
    for series in dict.fromkeys(c.series for c in checkpoints.values()):
        members = sorted((c.step, model) for model, c in checkpoints.items() if c.series == series)
        for column in found:
            curve = _curve(series, members, column, power, rng)
            if curve is not None:
                curves.append(curve)
    if not curves:
        raise InputError(
            "no series has three or more scored checkpoints",
            hint="name each checkpoint as the scores do, with its series and step; tau needs at least three",
        )
    curves.sort(key=lambda c: (c.series, c.task, methods.index(c.method)))
    improvements = _improvements(curves, baseline, rng) if baseline else ()
    present = tuple(m for m in methods if any(c.method == m for c in curves))
    scored = dict.fromkeys(model for column in found for model in column.models)
    taken = {model for curve in curves for model in curve.models}
    reasons: dict[str, list[str]] = {
        "no score": [model for model in checkpoints if model not in scored],
        "of a series of fewer than three scored checkpoints": [
            model for model in checkpoints if model in scored and model not in taken
        ],
        "no checkpoint of a series": [model for model in scored if model not in checkpoints],
    }
    return Stability(unit, baseline, present, tuple(curves), improvements, power, left_out(reasons))


def resolvable_gap(
    steps: Floats, scores: Floats, stderr: Floats, *, power: float = 0.8
) -> tuple[float | None, float | None]:
    """Return the smallest gap resolved, and the share of neighbouring checkpoints told apart.

    A pair is told apart when the later checkpoint's score is higher by more than 1.645 standard errors of the
    difference. A gap g is resolved when at least ``power`` of the pairs with a distance of g or more are. Checkpoints
    share their items, which makes the true error of a difference smaller than this one: the gap errs on the large side.
    """
    if not np.isfinite(stderr).all() or len(steps) < 2:
        return None, None
    early, late = np.triu_indices(len(steps), k=1)
    distance = steps[late] - steps[early]
    told = scores[late] - scores[early] > 1.645 * np.hypot(stderr[late], stderr[early])
    adjacent = told[(late - early == 1) & (distance > 0)]
    neighbours = float(adjacent.mean()) if len(adjacent) else None
    for gap in np.unique(distance[distance > 0]):
        if told[distance >= gap].mean() >= power:
            return float(gap), neighbours
    return None, neighbours


def _curve(
    series: str, members: Sequence[tuple[float, str]], column: Column, power: float, rng: np.random.Generator
) -> Curve | None:
    models = tuple(model for _, model in members)
    values, stderr = column.at(models)
    scored = np.isfinite(values)
    if scored.sum() < 3:
        return None
    steps = np.array([step for step, _ in members])[scored]
    values, stderr = values[scored], stderr[scored]
    tau = float(tau_rows(steps, values))
    known = np.isfinite(stderr).all()
    spread = tau_rows(steps, redraw(values, stderr, DRAWS, rng)) if known else np.array([])
    gap, neighbours = resolvable_gap(steps, values, stderr, power=power)
    return Curve(
        series=series,
        task=column.task,
        method=column.method,
        models=tuple(model for model, keep in zip(models, scored, strict=True) if keep),
        steps=steps,
        scores=values,
        stderr=stderr,
        tau=tau_interval(tau, spread, bounds=(-1.0, 1.0)),
        gap=gap,
        neighbours=neighbours,
    )


def _improvements(curves: Sequence[Curve], baseline: str, rng: np.random.Generator) -> tuple[Improvement, ...]:
    origins = {(c.series, c.task): c for c in curves if c.method == baseline}
    found: list[Improvement] = []
    for curve in curves:
        origin = origins.get((curve.series, curve.task))
        if origin is None or curve.method == baseline:
            continue
        common = [model for model in curve.models if model in set(origin.models)]
        if len(common) < 3:
            continue
        new, old = (np.array([c.models.index(model) for model in common]) for c in (curve, origin))
        steps = curve.steps[new]
        value = float(tau_rows(steps, curve.scores[new]) - tau_rows(steps, origin.scores[old]))
        spread = np.array([])
        if np.isfinite(curve.stderr[new]).all() and np.isfinite(origin.stderr[old]).all():
            first, second = (
                tau_rows(steps, redraw(c.scores[k], c.stderr[k], DRAWS, rng)) for c, k in ((curve, new), (origin, old))
            )
            spread = first - second
        difference = tau_interval(value, spread, bounds=(-2.0, 2.0))
        found.append(Improvement(curve.series, curve.task, curve.method, baseline, difference))
    return tuple(found)
