"""What having seen a test's form is worth at equal compute, over several tasks at once, where exposure is known.

One task splits the models into few families that saw it and few that did not, and families are what resembles each
other: a single task says little with four of them. Over several tasks every family is exposed to some and not to
others. Equation 1 is fitted to all cells together, N being "this model saw this task's form"; beside the usual errors
stands an exact test that needs no model of the errors: θ is computed for every way in which the forms could have been
handed to the families (or to the models, where exposure differs within a family).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np

from potentia.analysis.test_task import hinge as hinge_fit
from potentia.analysis.test_task.cohort import Cohort, Flags, Pair
from potentia.analysis.test_task.scaling import (
    EFFECT_COLUMNS,
    EFFECT_NOTE,
    Coefficient,
    HingeFit,
    fit_hinge,
    linear_coefficients,
)
from potentia.errors import InputError
from potentia.values.findings import Finding, Table
from potentia.values.scores import Floats

ASSIGNMENTS = 5_000  # up to so many are tried one by one; of more, so many are drawn


@dataclass(frozen=True)
class Advantage:
    """θ of exposure at one stage: at equal compute (equation 1), and within models (each against its other tasks).

    ``assigned_p`` and ``within_p`` are the shares of assignments whose θ is as large. Within models, every model and
    every task has its own level, so that nothing a model is better at everywhere can pass for exposure; one task alone
    does not allow it.
    """

    stage: str
    fit: HingeFit
    assigned_p: float
    within: Coefficient
    within_p: float

    @property
    def effect(self) -> Coefficient:
        """θ at equal compute."""
        assert self.fit.effect is not None
        return self.fit.effect


@dataclass(frozen=True)
class ExposureEffect(Finding):
    """What exposure is worth over all tasks, before and after adjustment."""

    tasks: tuple[str, ...]
    before: Advantage
    after: Advantage
    assignments: int
    exact: bool

    def tables(self) -> Sequence[Table]:
        """Return θ at equal compute and θ within models, a row for each stage."""
        stages = (self.before, self.after)
        ways = f"all {self.assignments:,} ways" if self.exact else f"{self.assignments:,} random ways"
        share = f"Assigned p: share of {ways} to hand out the forms that give as large a θ."
        cells, families, *_ = self.before.fit.effect_row()
        counts = f"{cells} scores of {families} families in {', '.join(self.tasks)}."
        equal = Table(
            "What having seen a test's form is worth at equal compute",
            ("", *EFFECT_COLUMNS[2:], "plain p", "assigned p"),
            tuple((one.stage, *one.fit.effect_row()[2:], one.effect.p, one.assigned_p) for one in stages),
            f"{counts} {EFFECT_NOTE} {share}",
        )
        if len(self.tasks) == 1:
            return (equal,)
        own = tuple(
            (one.stage, c.value, c.stderr, c.p, c.clustered_stderr, c.clustered_p, one.within_p)
            for one in stages
            for c in (one.within,)
        )
        columns = ("", "θ", "s.e.", "plain p", "by family", "p", "assigned p")
        note = "Every model and every task has its own level: a model's exposed tasks against its other ones."
        return equal, Table("The same within models", columns, own, note)


def measure_exposure(pairs: Sequence[Pair], *, draws: int = 1999, seed: int = 0) -> ExposureEffect:
    """Fit equation 1 to the cells of all tasks, N being exposure of the model to the task's form."""
    if not pairs:
        raise InputError("no task has both models that saw its form and models that did not")
    splits = [pair.cohort.exposed(pair.task).members for pair in pairs]
    x = np.concatenate([pair.cohort.log_compute for pair in pairs])
    families = [family for pair in pairs for family in pair.cohort.family]
    group = np.concatenate(splits).astype(np.float64)
    others, exact = _assignments([pair.cohort for pair in pairs], splits, seed)
    levels = _levels(pairs)
    signs = [1.0 if pair.higher_is_better else -1.0 for pair in pairs]
    scores = [
        np.concatenate([sign * (getattr(p, stage) - p.chance) for p, sign in zip(pairs, signs, strict=True)])
        for stage in ("before", "after")
    ]
    drawn = np.array([hinge_fit.search(x, np.stack(scores), other).effect for other in others])  # (assignments, stages)
    stages = []
    for place, (stage, y) in enumerate(zip(("before", "after"), scores, strict=True)):
        fit = fit_hinge(x, y, group=group, families=families, draws=draws, seed=seed)
        within, within_p = Coefficient(math.nan, math.nan, math.nan), math.nan
        if len(pairs) > 1:
            within = linear_coefficients(np.column_stack([group, levels]), y, families)[0][0]
            within_p = _share(_within(others, y, levels), within.value, exact)
        assert fit.effect is not None
        stages.append(Advantage(stage, fit, _share(drawn[:, place], fit.effect.value, exact), within, within_p))
    return ExposureEffect(tuple(pair.task for pair in pairs), stages[0], stages[1], len(others), exact)


def _levels(pairs: Sequence[Pair]) -> Floats:
    """Return one column per model and per task but the first, which the models' columns imply."""
    models = np.array([model for pair in pairs for model in pair.cohort.models])
    tasks = np.array([pair.task for pair in pairs for _ in pair.cohort.models])
    columns = [*(models == name for name in np.unique(models)), *(tasks == pair.task for pair in pairs[1:])]
    return np.column_stack(columns).astype(np.float64)


def _within(groups: Sequence[Floats], y: Floats, levels: Floats) -> Floats:
    """Return θ of each assignment with the levels taken out of it (Frisch–Waugh–Lovell)."""
    basis = np.linalg.qr(levels)[0]
    G = np.stack(groups)
    G = G - (G @ basis) @ basis.T
    power = np.einsum("an,an->a", G, G)
    return np.asarray(np.where(power > 1e-9, G @ y / np.maximum(power, 1e-9), 0.0))


def _share(drawn: Floats, observed: float, exact: bool) -> float:
    reached = int(np.sum(np.abs(drawn) >= abs(observed) - 1e-9))
    return reached / len(drawn) if exact else (1 + reached) / (1 + len(drawn))


def _assignments(cohorts: Sequence[Cohort], splits: Sequence[Flags], seed: int) -> tuple[list[Floats], bool]:
    """Return other ways in which each task's form could have been handed out, and whether these are all of them."""
    seen = [set(zip(c.family, members.tolist(), strict=True)) for c, members in zip(cohorts, splits, strict=True)]
    by_family = all(len(both) == len(dict(both)) for both in seen)  # a family's models are all exposed or all not
    units = [np.unique(c.family if by_family else c.models, return_inverse=True)[1] for c in cohorts]
    counts = [int(unit.max()) + 1 for unit in units]
    taken = [len(np.unique(unit[members])) for unit, members in zip(units, splits, strict=True)]
    exact = math.prod(map(math.comb, counts, taken)) <= ASSIGNMENTS
    chosen: Iterable[Sequence[Sequence[int]]]
    if exact:
        chosen = product(*(list(combinations(range(n), k)) for n, k in zip(counts, taken, strict=True)))
    else:
        draw = np.random.default_rng(seed).permutation
        chosen = ([draw(n)[:k].tolist() for n, k in zip(counts, taken, strict=True)] for _ in range(ASSIGNMENTS))
    made = [np.concatenate([np.isin(unit, who) for unit, who in zip(units, way, strict=True)]) for way in chosen]
    return [way.astype(np.float64) for way in made], exact
