"""What one group of models has more than another at equal compute, before and after adjustment (figure 1).

With it go two experiments that tell why. Some models are tuned on the task on purpose (section 3.1): θ appears, and it
vanishes after all were adjusted. One group gets its best learning rate by the test itself (B.3), while the others keep
the one that validation chose: a θ that stays small was not an artefact of the search.

What moves along compute: the Pareto frontier of scores (figure 7), and emergence with training on the test task.

As models train on the test task, c_e falls and a log-linear curve describes them better (figure 8).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from potentia.analysis.left_out import NO_ENTRIES, keep_names_in
from potentia.errors import InputError
from potentia.papers.task_training import scaling
from potentia.papers.task_training.cohort import Cohort, Pair, Split, against_compute
from potentia.papers.task_training.scaling import (
    Coefficient,
    HingeFit,
    LogLinearFit,
    fit_hinge,
    fit_log_linear,
)
from potentia.values.findings import Chart, Finding, Findings, Line, Plot, Table, picked
from potentia.values.protocol import Protocol
from potentia.values.scores import Floats

if TYPE_CHECKING:
    from potentia.evidence import Evidence

COMPUTE_FLOOR = (
    7e21  # FLOPs of the smallest newer model: smaller models are not treated (section 3.1)
)

Rates = Mapping[str, Mapping[float, float]]  # model → learning rate → score on the test split


@dataclass(frozen=True)
class GroupScaling(Finding):
    """Equation 1 on the scores of one task: every model's score against compute, and θ of a group."""

    task: str
    stage: str  # "before" or "after" adjustment
    cohort: Cohort
    split: Split
    scores: Floats
    fit: HingeFit

    @property
    def effect(self) -> Coefficient:
        """θ, with its standard errors."""
        return self.fit.theta

    def tables(self) -> Sequence[Table]:
        """Return θ and the curve."""
        return _tables((self,))

    def charts(self) -> Sequence[Chart]:
        """Return score against compute with the two fitted hinges."""
        x = self.cohort.log_compute
        grid = np.linspace(x.min(), x.max(), 200)
        fitted = {
            name: self.fit.predict(grid, member=name == self.split.label)
            for name, _ in self.split.sides()
        }
        lines = tuple(Line(name, 10**grid, line) for name, line in fitted.items())
        title = f"{self.task} {self.stage} adjustment: θ = {self.effect.value:.3f} (p {self.effect.clustered_p:.3f})"
        caption = (
            "The distance between the two lines is θ, the advantage of the group at equal compute."
        )
        points = self.split.points(self.cohort, self.scores)
        return (against_compute(f"{self.task}-{self.stage}", title, caption, points, lines),)


@dataclass(frozen=True)
class TaskAdjustment(Findings):
    """θ on one task before and after all models were tuned on the same task data."""

    before: GroupScaling
    after: GroupScaling

    def tables(self) -> Sequence[Table]:
        """Return both stages, a row each."""
        return _tables((self.before, self.after))


@dataclass(frozen=True)
class SplitComparison(Finding):
    """θ before and after for several splits of the same models: other cut-offs (D.1), languages (D.2), columns."""

    comparisons: tuple[TaskAdjustment, ...]

    def tables(self) -> Sequence[Table]:
        """Return one row per task, split and stage."""
        stages = (stage for both in self.comparisons for stage in (both.before, both.after))
        rows = [
            (s.task, s.split.label, s.split.size, s.stage, *s.fit.effect_row()[2:]) for s in stages
        ]
        columns = ("task", "models", "in it", "stage", *scaling.EFFECT_COLUMNS[2:])
        return (Table("The same question with other splits", columns, rows, scaling.EFFECT_NOTE),)


def scale_groups(
    task: str, cohort: Cohort, scores: Floats, split: Split, *, stage: str = "before", **how: Any
) -> GroupScaling:
    """Fit equation 1 to one set of scores, N being membership in ``split``; ``how`` is what ``fit_hinge`` takes."""
    fit = fit_hinge(cohort.log_compute, scores, group=split.members, families=cohort.family, **how)
    return GroupScaling(task, stage, cohort, split, scores, fit)


def compare_groups(pair: Pair, split: Split, *, draws: int = 1999, seed: int = 0) -> TaskAdjustment:
    """Fit equation 1 before and after adjustment, N being membership in ``split``."""
    how = {
        "chance": pair.chance,
        "higher_is_better": pair.higher_is_better,
        "draws": draws,
        "seed": seed,
    }
    before = scale_groups(pair.task, pair.cohort, pair.before, split, stage="before", **how)
    return TaskAdjustment(
        before, scale_groups(pair.task, pair.cohort, pair.after, split, stage="after", **how)
    )


def _tables(stages: Sequence[GroupScaling]) -> tuple[Table, Table]:
    task, split = stages[0].task, stages[0].split
    name = f"{task}: models {split.label} ({split.size} of {len(split.members)})"
    effects = [(one.stage, *one.fit.effect_row()) for one in stages]
    curves = [(one.stage, *one.fit.curve_row()) for one in stages]
    title, columns = f"{name}, advantage at equal compute", ("adjustment", *scaling.EFFECT_COLUMNS)
    return (
        Table(title, columns, effects, scaling.EFFECT_NOTE),
        Table(
            f"{task}: the curve", ("adjustment", *scaling.CURVE_COLUMNS), curves, scaling.CURVE_NOTE
        ),
    )


# --- models that are treated on purpose ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Treatment(Finding):
    """θ of having been treated, before and after all models were tuned on the same task data."""

    task: str
    treated: tuple[str, ...]
    control: tuple[str, ...]
    before: HingeFit
    after: HingeFit | None

    def tables(self) -> Sequence[Table]:
        """Return both fits, a row each."""
        stages = (("before", self.before), ("after", self.after))
        rows = [(stage, *fit.effect_row()) for stage, fit in stages if fit is not None]
        title = f"{self.task}: {len(self.treated)} models tuned on the test task, {len(self.control)} not"
        return (Table(title, ("adjustment", *scaling.EFFECT_COLUMNS), rows, scaling.EFFECT_NOTE),)


def compare_copies(
    task: str,
    control: Mapping[str, float],
    treated: Mapping[str, float],
    cohort: Cohort,
    *,
    control_adjusted: Mapping[str, float] | None = None,
    treated_adjusted: Mapping[str, float] | None = None,
    chance: float = 0.0,
    floor: float = COMPUTE_FLOOR,
    draws: int = 1999,
    seed: int = 0,
) -> Treatment:
    """Compare models with their own tuned copies: the document's design, where every model is its own control.

    ``control`` and ``treated`` map a model to its score; models below ``floor`` FLOPs have no treated copy. A model and
    its copy are of the same family, so clustered errors allow for their likeness.
    """
    compute = dict(zip(cohort.models, cohort.compute, strict=True))
    plain = keep_names_in(cohort.models, control)
    copies = [m for m in cohort.models if m in treated and compute[m] >= floor]

    def fit(first: Mapping[str, float], second: Mapping[str, float]) -> HingeFit:
        left, right = keep_names_in(plain, first), keep_names_in(copies, second)
        both = cohort.select(left), cohort.select(right)
        x, y = (
            np.concatenate([one.log_compute for one in both]),
            [*map(first.get, left), *map(second.get, right)],
        )
        group, families = (
            np.repeat([False, True], [len(left), len(right)]),
            both[0].family + both[1].family,
        )
        return fit_hinge(
            x, np.array(y), chance=chance, group=group, families=families, draws=draws, seed=seed
        )

    after = (
        fit(control_adjusted, treated_adjusted) if control_adjusted and treated_adjusted else None
    )
    return Treatment(task, tuple(copies), tuple(plain), fit(control, treated), after)


# --- learning rates --------------------------------------------------------------------------------------------------


def favour_group(pair: Pair, split: Split, sweep: Sequence[Floats]) -> Pair:
    """Give the group its best score of a learning-rate sweep, and leave the others as they are (B.3).

    ``sweep`` holds one array of adjusted scores per learning rate (NaN where it was not tried). If θ stays near zero
    even so, it is not the choice of learning rate that took the group's advantage away.
    """
    if any(scores.shape != pair.after.shape for scores in sweep):
        raise InputError("every learning rate of the sweep needs one score per model")
    tried = np.stack([pair.after, *sweep])
    best = np.nanmax(tried, axis=0) if pair.higher_is_better else np.nanmin(tried, axis=0)
    return replace(pair, after=np.where(split.members, best, pair.after))


@dataclass(frozen=True)
class RateBudget(Finding):
    """Every model's score by learning rate on one task, and θ where the group has its best rate."""

    task: str
    models: tuple[str, ...]
    rates: tuple[float, ...]
    values: Floats  # (models, rates); NaN where a rate was not tried
    chosen: tuple[float, ...]  # score of the rate that validation chose
    favoured: GroupScaling | None = None  # equation 1 after adjustment, the group at its best rate
    usual: GroupScaling | None = None  # the same at the rates that were chosen

    def tables(self) -> Sequence[Table]:
        """Return one row per model, and both effects."""
        rows = zip(self.models, *self.values.T, self.chosen, strict=True)
        columns = ("model", *(f"{rate:g}" for rate in self.rates), "chosen")
        note = "The score on the test split at every learning rate. Validation chooses; these scores choose nothing."
        tables = [Table(f"{self.task}: score by learning rate", columns, rows, note)]
        if self.favoured is not None and self.usual is not None:
            favoured = f"best rate by the test for models {self.favoured.split.label}"
            effects = {"as chosen": self.usual.effect, favoured: self.favoured.effect}
            thetas = [(name, effect.value, effect.clustered_p) for name, effect in effects.items()]
            why = "A θ that stays small where one group is favoured in the search is no artefact of it (appendix B.3)."
            tables.append(
                Table(f"{self.task}: θ by search budget", ("rates", "θ", "p"), thetas, why)
            )
        return tables

    def charts(self) -> Sequence[Chart]:
        """Return a line per model over the learning rates."""
        lines = tuple(
            Line(model, self.rates, row)
            for model, row in zip(self.models, self.values, strict=True)
        )
        title = f"{self.task}: score by learning rate"
        caption = "The score on the test split after adjustment; a best rate at an end may want another grid."
        return [
            Plot(
                f"{self.task}-rates",
                title,
                caption,
                (),
                lines,
                "learning rate",
                "score",
                log_x=True,
            )
        ]


def stored_rates(evidence: Evidence, protocol: Protocol) -> dict[str, Rates]:
    """Return the scores of every learning rate by task, where a study stored them; several seeds are averaged."""
    found: dict[str, dict[str, dict[float, list[float]]]] = {}
    for cell in evidence.choices(protocol) if evidence.stores else ():
        for state in cell.selection.rates if cell.names("rates") else ():
            by = found.setdefault(cell.task, {}).setdefault(cell.model, {})
            by.setdefault(state.learning_rate, []).append(state.value)
    return {
        task: {
            model: {rate: float(np.mean(v)) for rate, v in by.items()}
            for model, by in models.items()
        }
        for task, models in found.items()
    }


def weigh_rates(
    task: str,
    rates: Rates,
    pair: Pair | None = None,
    parts: Split | None = None,
    *,
    chosen: Mapping[str, float] = NO_ENTRIES,
    draws: int = 1999,
    seed: int = 0,
) -> RateBudget:
    """Lay every rate's scores side by side; with a pair and its division, give the group its best and fit θ again."""
    models = tuple(rates)
    grid = tuple(sorted({rate for by in rates.values() for rate in by}))
    values = np.array([[rates[m].get(rate, np.nan) for rate in grid] for m in models])
    taken = tuple(float(chosen.get(m, np.nan)) for m in models)
    if pair is None or parts is None:
        return RateBudget(task, models, grid, values, taken)
    sweep = np.array(
        [[rates.get(m, {}).get(rate, np.nan) for m in pair.cohort.models] for rate in grid]
    )
    best = favour_group(pair, parts, list(sweep))
    favoured, usual = (
        compare_groups(one, parts, draws=draws, seed=seed).after for one in (best, pair)
    )
    return RateBudget(task, models, grid, values, taken, favoured, usual)


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
        names = [
            ", ".join(m for m in every.models if m in inside) or "none" for every in self.every
        ]
        rows = zip(("before", "after"), self.areas, names, strict=True)
        before, after = self.areas
        how = f"shrinks {self.ratio:.1f}-fold" if after > 0 else "vanishes"
        how = how if before > after else "does not shrink"
        note = f"Area in score × log₁₀ FLOPs. It {how} by adjustment."
        columns = ("", "area of improvement", "on the frontier")
        return (
            Table(
                f"{self.task}: how far models {self.split.label} move the frontier",
                columns,
                rows,
                note,
                4,
            ),
        )

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
            name, title = (
                f"{self.task}-frontier-{stage}",
                f"{self.task} {stage} adjustment: area {self.areas[k]:.3f}",
            )
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
    return FrontierShift(
        pair.task, pair.cohort, split, scores, (first, second), (before, after), areas, floor
    )


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
            rows.append(
                (
                    examples,
                    hinge.n,
                    point,
                    bounds,
                    f"{10**hinge.emergence.value:.1e}",
                    alpha,
                    r2,
                    line.r2,
                )
            )
        columns = (
            "examples",
            "models",
            "c_e",
            "c_e 95 %",
            "FLOPs",
            "α",
            "R² hinge",
            "R² log-linear",
        )
        note = "c_e: log₁₀ of the FLOPs from which models rise above chance; a log-linear R² near 1 means no emergence."
        if self.batch is not None:
            note += f" Examples: optimizer steps × {self.batch}, the batch."
        return (
            Table(f"{self.task}: emergence by amount of test-task training", columns, rows, note),
        )

    def charts(self) -> Sequence[Chart]:
        """Return c_e and R² against the number of training examples, and some of the fitted curves."""
        start = min((n for n in self.examples if n), default=3) / 3
        x = [n or start for n in self.examples]
        points = np.array([h.emergence.value for h in self.hinges])
        ends = np.array(
            [(h.emergence_interval.low, h.emergence_interval.high) for h in self.hinges]
        ).T
        low, high = np.where(np.isfinite(ends), ends, points)
        point = Line("c_e", x, points, low, high)
        fit = Line("log-linear R²", x, [line.r2 for line in self.lines])
        caption = "Training on the test task moves emergence to smaller scales. The first point is before any training."
        grid = np.linspace(*self.span, 200)
        some = sorted({round(i) for i in np.linspace(0, len(self.examples) - 1, 5)})
        curves = tuple(
            Line(f"{self.examples[i]:,} examples", 10**grid, self.hinges[i].predict(grid))
            for i in some
        )
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
        scores = {
            name: value
            for name, value in stages[amount].items()
            if name in known and np.isfinite(value)
        }
        if len(scores) < LEAST_MODELS:
            continue
        part = cohort.select(list(scores))
        y = np.array(list(scores.values()))
        examples.append(amount)
        x, of = part.log_compute, part.family
        hinges.append(
            fit_hinge(x, y, chance=chance, families=of, higher_is_better=higher_is_better)
        )
        lines.append(fit_log_linear(x, y, families=of))
    if not examples:
        raise InputError(f"no stage of {task} has {LEAST_MODELS} models of known compute")
    span = (float(cohort.log_compute.min()), float(cohort.log_compute.max()))
    return EmergenceCurve(task, tuple(examples), tuple(hinges), tuple(lines), span, batch)
