"""What having seen a test's form is worth at equal compute, over several tasks at once, where exposure is known.

One task splits the models into few families that saw it and few that did not, and families are what resembles each
other: a single task says little with four of them. Over several tasks every family is exposed to some and not to
others. Equation 1 is fitted to all cells together, N being "this model saw this task's form"; beside the usual errors
stands an exact test that needs no model of the errors: θ is computed for every way in which the forms could have been
handed to the families (or to the models, where exposure differs within a family).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np

from potentia.analysis import _hinge
from potentia.analysis.cohort import Cohort, Flags
from potentia.analysis.finding import Finding, Table
from potentia.analysis.pair import Pair
from potentia.analysis.scaling import EFFECT_COLUMNS, EFFECT_NOTE, HingeFit, fit_hinge
from potentia.errors import InputError
from potentia.scores import Floats

ASSIGNMENTS = 5_000  # up to so many are tried one by one; of more, so many are drawn


@dataclass(frozen=True)
class ExposureEffect(Finding):
    """θ of exposure over all tasks, before and after adjustment, with the p-value over assignments."""

    tasks: tuple[str, ...]
    before: HingeFit
    after: HingeFit
    before_p: float
    after_p: float
    assignments: int
    exact: bool

    def tables(self) -> Sequence[Table]:
        """Return both stages, a row each."""
        rows = tuple(
            (stage, *fit.effect_row(), fit.effect.p if fit.effect else None, p)
            for stage, fit, p in (("before", self.before, self.before_p), ("after", self.after, self.after_p))
        )
        columns = ("adjustment", "cells", *EFFECT_COLUMNS[1:], "plain p", "assigned p")
        how = "all" if self.exact else "drawn"
        note = (
            f"{EFFECT_NOTE} Assigned p: share of {self.assignments:,} assignments of forms ({how}) with as large a θ."
        )
        title = f"What having seen the form is worth, over {len(self.tasks)} tasks: {', '.join(self.tasks)}"
        return (Table(title, columns, rows, note),)


def measure_exposure(pairs: Sequence[Pair], *, draws: int = 1999, seed: int = 0) -> ExposureEffect:
    """Fit equation 1 to the cells of all tasks, N being exposure of the model to the task's form."""
    if not pairs:
        raise InputError("no task has both models that saw its form and models that did not")
    splits = [pair.cohort.exposed(pair.task).members for pair in pairs]
    x = np.concatenate([pair.cohort.log_compute for pair in pairs])
    families = [family for pair in pairs for family in pair.cohort.family]
    group = np.concatenate(splits).astype(np.float64)
    stages = [np.concatenate(above) for above in zip(*(_above_chance(pair) for pair in pairs), strict=True)]
    fits = [fit_hinge(x, y, group=group, families=families, draws=draws, seed=seed) for y in stages]
    others, exact = _assignments([pair.cohort for pair in pairs], splits, seed)
    drawn = np.array([_hinge.search(x, np.stack(stages), other).effect for other in others])  # (assignments, 2)
    observed = _hinge.search(x, np.stack(stages), group).effect
    reached = np.sum(np.abs(drawn) >= np.abs(observed) - 1e-12, axis=0)
    p = reached / len(drawn) if exact else (1 + reached) / (1 + len(drawn))
    names = tuple(pair.task for pair in pairs)
    return ExposureEffect(names, fits[0], fits[1], float(p[0]), float(p[1]), len(drawn), exact)


def _above_chance(pair: Pair) -> tuple[Floats, Floats]:
    sign = 1.0 if pair.higher_is_better else -1.0
    return sign * (pair.before - pair.chance), sign * (pair.after - pair.chance)


def _assignments(cohorts: Sequence[Cohort], splits: Sequence[Flags], seed: int) -> tuple[list[Floats], bool]:
    """Return other ways in which each task's form could have been handed out, and whether these are all of them."""
    by_family = all(_constant(cohort, members) for cohort, members in zip(cohorts, splits, strict=True))
    units = [np.unique(c.family if by_family else c.models, return_inverse=True)[1] for c in cohorts]
    counts = [int(unit.max()) + 1 for unit in units]
    taken = [len(np.unique(unit[members])) for unit, members in zip(units, splits, strict=True)]
    total = math.prod(math.comb(n, k) for n, k in zip(counts, taken, strict=True))
    chosen: Iterator[Sequence[Sequence[int]]]
    if total <= ASSIGNMENTS:
        chosen = product(*(list(combinations(range(n), k)) for n, k in zip(counts, taken, strict=True)))
    else:
        chosen = _drawn(counts, taken, np.random.default_rng(seed))
    made = [
        np.concatenate([np.isin(unit, picked) for unit, picked in zip(units, who, strict=True)]).astype(np.float64)
        for who in chosen
    ]
    return made, total <= ASSIGNMENTS


def _drawn(counts: Sequence[int], taken: Sequence[int], generator: np.random.Generator) -> Iterator[list[list[int]]]:
    for _ in range(ASSIGNMENTS):
        yield [generator.permutation(n)[:k].tolist() for n, k in zip(counts, taken, strict=True)]


def _constant(cohort: Cohort, members: Flags) -> bool:
    """Say whether the models of each family are all exposed or all not."""
    seen: dict[str, bool] = {}
    return all(
        seen.setdefault(family, bool(flag)) == bool(flag) for family, flag in zip(cohort.family, members, strict=True)
    )
