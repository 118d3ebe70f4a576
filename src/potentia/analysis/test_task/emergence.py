"""What moves along compute: the Pareto frontier of scores (figure 7), and emergence with training on the test task.

As models train on the test task, c_e falls and a log-linear curve describes them better (figure 8).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from potentia.analysis.test_task.cohort import Cohort, Pair, Split, against_compute
from potentia.analysis.test_task.scaling import HingeFit, LogLinearFit, fit_hinge, fit_log_linear
from potentia.errors import InputError
from potentia.values.findings import Chart, Finding, Line, Plot, Table, picked
from potentia.values.scores import Floats


@dataclass(frozen=True)
class Frontier:
    """A step function: the best score that any model reaches with at most this much compute."""

    log_compute: Floats  # ascending, one entry per model on the frontier
    scores: Floats
    models: tuple[str, ...]

    def at(self, log_compute: Floats, *, floor: float) -> Floats:
        """Return the frontier's height, at least ``floor`` (chance), also where no model is that small."""
        place = np.searchsorted(self.log_compute, log_compute, side="right")
        return np.asarray(np.maximum(np.append(floor, self.scores)[place], floor))


def pareto_frontier(models: Sequence[str], log_compute: Floats, scores: Floats) -> Frontier:
    """Keep the models that no other beats with as little or less compute."""
    order = np.lexsort((-scores, log_compute))
    best = np.maximum.accumulate(scores[order])
    kept = order[np.append(True, best[1:] > best[:-1])] if len(order) else order
    return Frontier(log_compute[kept], scores[kept], picked(models, kept))


@dataclass(frozen=True)
class FrontierShift(Finding):
    """The area between the frontier of the others and the frontier of all, before and after adjustment."""

    task: str
    cohort: Cohort
    split: Split
    scores: tuple[Floats, Floats]  # before, after; oriented
    old: tuple[Frontier, Frontier]
    every: tuple[Frontier, Frontier]
    areas: tuple[float, float]
    floor: float  # chance, oriented

    @property
    def ratio(self) -> float:
        """How many times the area shrinks by adjustment."""
        return self.areas[0] / self.areas[1] if self.areas[1] > 0 else float("inf")

    def tables(self) -> Sequence[Table]:
        """Return the areas and the members of the group on the frontier."""
        inside = set(self.cohort.named(self.split.members))
        names = [", ".join(m for m in every.models if m in inside) or "none" for every in self.every]
        rows = zip(("before", "after"), self.areas, names, strict=True)
        before, after = self.areas
        how = f"shrinks {self.ratio:.1f}-fold" if after > 0 else "vanishes"
        how = how if before > after else "does not shrink"
        note = f"Area in score × log₁₀ FLOPs. It {how} by adjustment."
        columns = ("", "area of improvement", "on the frontier")
        return (Table(f"{self.task}: how far models {self.split.label} move the frontier", columns, rows, note, 4),)

    def charts(self) -> Sequence[Chart]:
        """Return both frontiers over all models, before and after."""
        corners, left = _steps(self.cohort.log_compute)
        drawn = []
        caption = "The shaded area between the two frontiers is the progress per unit of compute."
        for k, stage in enumerate(("before", "after")):
            below, above = (f[k].at(left, floor=self.floor) for f in (self.old, self.every))
            lines = (
                Line(f"frontier of models {self.split.others}", corners, below, dashed=True),
                Line("frontier of all models", corners, above, below, above),
            )
            name, title = f"{self.task}-frontier-{stage}", f"{self.task} {stage} adjustment: area {self.areas[k]:.3f}"
            points = self.split.points(self.cohort, self.scores[k])
            drawn.append(against_compute(name, title, caption, points, lines))
        return drawn


def frontier_shift(pair: Pair, split: Split) -> FrontierShift:
    """Measure the area of improvement since the split, in score × log₁₀ FLOPs, before and after adjustment."""
    x, scores = pair.cohort.log_compute, pair.oriented()
    outside = ~np.asarray(split.members)
    floor = pair.chance if pair.higher_is_better else -pair.chance
    others = pair.cohort.named(outside)
    first, second = (pareto_frontier(others, x[outside], y[outside]) for y in scores)
    before, after = (pareto_frontier(pair.cohort.models, x, y) for y in scores)
    areas = _area(first, before, x, floor), _area(second, after, x, floor)
    return FrontierShift(pair.task, pair.cohort, split, scores, (first, second), (before, after), areas, floor)


def _area(old: Frontier, every: Frontier, x: Floats, floor: float) -> float:
    """Integrate the gap between two step functions exactly: it is constant between neighbouring models."""
    edges = np.unique(x)
    left, width = edges[:-1], np.diff(edges)
    return float(np.sum((every.at(left, floor=floor) - old.at(left, floor=floor)) * width))


def _steps(x: Floats) -> tuple[Floats, Floats]:
    """Return the corners of a step curve over these models in FLOPs, and where to read its height at each of them."""
    edges = np.unique(x)
    return 10 ** np.repeat(edges, 2)[1:], np.append(np.repeat(edges[:-1], 2), edges[-1])


LEAST_MODELS = 8  # that a curve is fitted to


@dataclass(frozen=True)
class EmergenceCurve(Finding):
    """The hinge and the line fitted at each amount of test-task training (number of examples)."""

    task: str
    examples: tuple[int, ...]
    hinges: tuple[HingeFit, ...]
    lines: tuple[LogLinearFit, ...]
    span: tuple[float, float]  # log₁₀ FLOPs of the smallest and the largest model
    batch: int | None = None  # examples per optimizer step, where amounts come from steps

    def tables(self) -> Sequence[Table]:
        """Return one row per amount of training."""
        rows = []
        for examples, hinge, line in zip(self.examples, self.hinges, self.lines, strict=True):
            alpha, point, bounds, r2, _ = hinge.curve_row()
            rows.append((examples, hinge.n, point, bounds, f"{10**hinge.emergence.value:.1e}", alpha, r2, line.r2))
        columns = ("examples", "models", "c_e", "c_e 95 %", "FLOPs", "α", "R² hinge", "R² log-linear")
        note = "c_e: log₁₀ of the FLOPs from which models rise above chance; a log-linear R² near 1 means no emergence."
        if self.batch is not None:
            note += f" Examples: optimizer steps × {self.batch}, the batch."
        return (Table(f"{self.task}: emergence by amount of test-task training", columns, rows, note),)

    def charts(self) -> Sequence[Chart]:
        """Return c_e and R² against the number of training examples, and some of the fitted curves."""
        start = min((n for n in self.examples if n), default=3) / 3
        x = [n or start for n in self.examples]
        points = np.array([h.emergence.value for h in self.hinges])
        ends = np.array([(h.emergence_interval.low, h.emergence_interval.high) for h in self.hinges]).T
        low, high = np.where(np.isfinite(ends), ends, points)
        point = Line("c_e", x, points, low, high)
        fit = Line("log-linear R²", x, [line.r2 for line in self.lines])
        caption = "Training on the test task moves emergence to smaller scales. The first point is before any training."
        grid = np.linspace(*self.span, 200)
        some = sorted({round(i) for i in np.linspace(0, len(self.examples) - 1, 5)})
        curves = tuple(Line(f"{self.examples[i]:,} examples", 10**grid, self.hinges[i].predict(grid)) for i in some)
        title = "scaling as models train on the test task"
        why = "Each curve is the hinge fitted after that much training."
        drawn = [against_compute(f"{self.task}-curves", f"{self.task}: {title}", why, (), curves)]
        for kind, title, line, what in (
            ("emergence", "point of emergence", point, "log₁₀ FLOPs of emergence"),
            ("log-linear", "how log-linear the scaling is", fit, "R² of the log-linear fit"),
        ):
            axes = "training examples", what
            name, title = f"{self.task}-{kind}", f"{self.task}: {title}"
            drawn.append(Plot(name, title, caption, (), (line,), *axes, log_x=True))
        return drawn


def trace_emergence(
    task: str,
    stages: Mapping[int, Mapping[str, float]],
    cohort: Cohort,
    *,
    chance: float = 0.0,
    higher_is_better: bool = True,
    batch: int | None = None,
) -> EmergenceCurve:
    """Fit both curves at each amount of training: ``stages`` maps examples seen to model → score.

    Amounts at which fewer than ``LEAST_MODELS`` were scored are left out, as their fits would compare other models.
    """
    known = set(cohort.models)
    examples, hinges, lines = [], [], []
    for amount in sorted(stages):
        scores = {name: value for name, value in stages[amount].items() if name in known and np.isfinite(value)}
        if len(scores) < LEAST_MODELS:
            continue
        part = cohort.select(list(scores))
        y = np.array(list(scores.values()))
        examples.append(amount)
        x, of = part.log_compute, part.family
        hinges.append(fit_hinge(x, y, chance=chance, families=of, higher_is_better=higher_is_better))
        lines.append(fit_log_linear(x, y, families=of))
    if not examples:
        raise InputError(f"no stage of {task} has {LEAST_MODELS} models of known compute")
    span = (float(cohort.log_compute.min()), float(cohort.log_compute.max()))
    return EmergenceCurve(task, tuple(examples), tuple(hinges), tuple(lines), span, batch)
