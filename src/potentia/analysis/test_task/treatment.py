"""The treatment experiment (section 3.1): tune some models on the task, see θ appear, adjust all, see it vanish."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from potentia.analysis.test_task.cohort import Cohort, Split
from potentia.analysis.test_task.scaling import EFFECT_COLUMNS, EFFECT_NOTE, HingeFit, fit_hinge
from potentia.values.findings import Finding, Table

COMPUTE_FLOOR = 7e21  # FLOPs of the smallest newer model: smaller models are not treated (section 3.1)


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
        rows = tuple((stage, *fit.effect_row()) for stage, fit in stages if fit is not None)
        title = f"{self.task}: {len(self.treated)} models tuned on the test task, {len(self.control)} not"
        return (Table(title, ("adjustment", *EFFECT_COLUMNS), rows, EFFECT_NOTE),)


def assign_half(cohort: Cohort, *, seed: int = 0, floor: float = 0.0) -> Split:
    """Choose a random half for treatment, one of each pair of models next to each other in compute.

    Pairing keeps compute balanced, so that what θ shows is the treatment. Models below ``floor`` FLOPs stay untreated.
    """
    order = [int(i) for i in np.argsort(cohort.compute, kind="stable") if cohort.compute[i] >= floor]
    generator = np.random.default_rng(seed)
    members = np.zeros(len(cohort.models), dtype=bool)
    for first in range(0, len(order), 2):
        chosen = first + int(generator.integers(2))
        if chosen < len(order):  # the last of an odd number is treated or not by the same coin
            members[order[chosen]] = True
    return Split("treated", members, "control")


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
    plain = [m for m in cohort.models if m in control]
    copies = [m for m in cohort.models if m in treated and compute[m] >= floor]
    before = _fit(cohort, plain, copies, control, treated, chance, draws, seed)
    after = None
    if control_adjusted is not None and treated_adjusted is not None:
        after = _fit(
            cohort,
            [m for m in plain if m in control_adjusted],
            [m for m in copies if m in treated_adjusted],
            control_adjusted,
            treated_adjusted,
            chance,
            draws,
            seed,
        )
    return Treatment(task, tuple(copies), tuple(plain), before, after)


def _fit(
    cohort: Cohort,
    plain: Sequence[str],
    copies: Sequence[str],
    control: Mapping[str, float],
    treated: Mapping[str, float],
    chance: float,
    draws: int,
    seed: int,
) -> HingeFit:
    left, right = cohort.select(plain), cohort.select(copies)
    return fit_hinge(
        np.concatenate([left.log_compute, right.log_compute]),
        np.array([*(control[m] for m in plain), *(treated[m] for m in copies)]),
        chance=chance,
        group=np.array([False] * len(plain) + [True] * len(copies)),
        families=left.family + right.family,
        draws=draws,
        seed=seed,
    )
