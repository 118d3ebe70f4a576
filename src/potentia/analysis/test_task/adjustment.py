"""What one group of models has more than another at equal compute, before and after adjustment (figure 1).

With it go two experiments that tell why. Some models are tuned on the task on purpose (section 3.1): θ appears, and it
vanishes after all were adjusted. One group gets its best learning rate by the test itself (B.3), while the others keep
the one that validation chose: a θ that stays small was not an artefact of the search.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from potentia.analysis.left_out import inside
from potentia.analysis.test_task import scaling
from potentia.analysis.test_task.cohort import Cohort, Pair, Split, against_compute
from potentia.analysis.test_task.scaling import Coefficient, HingeFit, fit_hinge
from potentia.errors import InputError
from potentia.values.findings import Chart, Finding, Line, Plot, Table
from potentia.values.protocol import Protocol
from potentia.values.scores import Floats

if TYPE_CHECKING:
    from potentia.evidence import Evidence

COMPUTE_FLOOR = 7e21  # FLOPs of the smallest newer model: smaller models are not treated (section 3.1)

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
        assert self.fit.effect is not None
        return self.fit.effect

    def tables(self) -> Sequence[Table]:
        """Return θ and the curve."""
        return _tables((self,))

    def charts(self) -> Sequence[Chart]:
        """Return score against compute with the two fitted hinges."""
        x = self.cohort.log_compute
        grid = np.linspace(x.min(), x.max(), 200)
        fitted = {name: self.fit.predict(grid, member=name == self.split.label) for name, _ in self.split.sides()}
        lines = tuple(Line(name, 10**grid, line) for name, line in fitted.items())
        title = f"{self.task} {self.stage} adjustment: θ = {self.effect.value:.3f} (p {self.effect.clustered_p:.3f})"
        caption = "The distance between the two lines is θ, the advantage of the group at equal compute."
        points = self.split.points(self.cohort, self.scores)
        return (against_compute(f"{self.task}-{self.stage}", title, caption, points, lines),)


@dataclass(frozen=True)
class TaskAdjustment(Finding):
    """θ on one task before and after all models were tuned on the same task data."""

    before: GroupScaling
    after: GroupScaling

    def tables(self) -> Sequence[Table]:
        """Return both stages, a row each."""
        return _tables((self.before, self.after))

    def charts(self) -> Sequence[Chart]:
        """Return both pictures."""
        return (*self.before.charts(), *self.after.charts())


@dataclass(frozen=True)
class SplitComparison(Finding):
    """θ before and after for several splits of the same models: other cut-offs (D.1), languages (D.2), columns."""

    comparisons: tuple[TaskAdjustment, ...]

    def tables(self) -> Sequence[Table]:
        """Return one row per task, split and stage."""
        stages = (stage for both in self.comparisons for stage in (both.before, both.after))
        rows = [(s.task, s.split.label, s.split.size, s.stage, *s.fit.effect_row()[2:]) for s in stages]
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
    how = {"chance": pair.chance, "higher_is_better": pair.higher_is_better, "draws": draws, "seed": seed}
    before = scale_groups(pair.task, pair.cohort, pair.before, split, stage="before", **how)
    return TaskAdjustment(before, scale_groups(pair.task, pair.cohort, pair.after, split, stage="after", **how))


def _tables(stages: Sequence[GroupScaling]) -> tuple[Table, Table]:
    task, split = stages[0].task, stages[0].split
    name = f"{task}: models {split.label} ({split.size} of {len(split.members)})"
    effects = [(one.stage, *one.fit.effect_row()) for one in stages]
    curves = [(one.stage, *one.fit.curve_row()) for one in stages]
    title, columns = f"{name}, advantage at equal compute", ("adjustment", *scaling.EFFECT_COLUMNS)
    return (
        Table(title, columns, effects, scaling.EFFECT_NOTE),
        Table(f"{task}: the curve", ("adjustment", *scaling.CURVE_COLUMNS), curves, scaling.CURVE_NOTE),
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
    plain = inside(cohort.models, control)
    copies = [m for m in cohort.models if m in treated and compute[m] >= floor]

    def fit(first: Mapping[str, float], second: Mapping[str, float]) -> HingeFit:
        left, right = inside(plain, first), inside(copies, second)
        both = cohort.select(left), cohort.select(right)
        x, y = np.concatenate([one.log_compute for one in both]), [*map(first.get, left), *map(second.get, right)]
        group, families = np.repeat([False, True], [len(left), len(right)]), both[0].family + both[1].family
        return fit_hinge(x, np.array(y), chance=chance, group=group, families=families, draws=draws, seed=seed)

    after = fit(control_adjusted, treated_adjusted) if control_adjusted and treated_adjusted else None
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
            tables.append(Table(f"{self.task}: θ by search budget", ("rates", "θ", "p"), thetas, why))
        return tables

    def charts(self) -> Sequence[Chart]:
        """Return a line per model over the learning rates."""
        lines = tuple(Line(model, self.rates, row) for model, row in zip(self.models, self.values, strict=True))
        title = f"{self.task}: score by learning rate"
        caption = "The score on the test split after adjustment; a best rate at an end may want another grid."
        return [Plot(f"{self.task}-rates", title, caption, (), lines, "learning rate", "score", log_x=True)]


def stored_rates(evidence: Evidence, protocol: Protocol) -> dict[str, Rates]:
    """Return the scores of every learning rate by task, where a study stored them; several seeds are averaged."""
    found: dict[str, dict[str, dict[float, list[float]]]] = {}
    for cell in evidence.choices(protocol) if evidence.stores else ():
        for one in (cell.selection.get("rates") or ()) if cell.names("rates") else ():
            by = found.setdefault(cell.task, {}).setdefault(cell.model, {})
            by.setdefault(float(one["learning_rate"]), []).append(float(one["value"]))
    return {
        task: {model: {rate: float(np.mean(v)) for rate, v in by.items()} for model, by in models.items()}
        for task, models in found.items()
    }


def weigh_rates(
    task: str,
    rates: Rates,
    pair: Pair | None = None,
    parts: Split | None = None,
    *,
    chosen: Mapping[str, float] | None = None,
    draws: int = 1999,
    seed: int = 0,
) -> RateBudget:
    """Lay every rate's scores side by side; with a pair and its division, give the group its best and fit θ again."""
    models = tuple(rates)
    grid = tuple(sorted({rate for by in rates.values() for rate in by}))
    values = np.array([[rates[m].get(rate, np.nan) for rate in grid] for m in models])
    taken = tuple(float((chosen or {}).get(m, np.nan)) for m in models)
    if pair is None or parts is None:
        return RateBudget(task, models, grid, values, taken)
    sweep = np.array([[rates.get(m, {}).get(rate, np.nan) for m in pair.cohort.models] for rate in grid])
    best = favour_group(pair, parts, list(sweep))
    favoured, usual = (compare_groups(one, parts, draws=draws, seed=seed).after for one in (best, pair))
    return RateBudget(task, models, grid, values, taken, favoured, usual)
