"""What having seen a test's form is worth, among models whose exposure is known.

One task says little: it splits the models into few families that saw it and few that did not. Over several tasks every
family is exposed to some and not to others. Equation 1 is fitted to all cells together, N being "this model saw this
task's form"; beside the usual errors stands an exact test that needs no model of the errors: θ is computed for every
way in which the forms could have been handed to the families (or to the models, where exposure differs within a
family).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np
import numpy.typing as npt

from potentia.errors import InputError
from potentia.papers.task_training.cohort import Cohort, Mask, ScorePair
from potentia.papers.task_training.hinge_search import search_hinges
from potentia.papers.task_training.scaling import (
    EFFECT_COLUMNS,
    EFFECT_NOTE,
    UNKNOWN_COEFFICIENT,
    Coefficient,
    HingeFit,
    fit_hinge,
    fit_linear,
)
from potentia.values.findings import Finding, Table
from potentia.values.scores import Floats

MAX_ASSIGNMENTS = 5_000  # up to so many are tried one by one; of more, so many are drawn


@dataclass(frozen=True)
class ExposureWorth:
    """θ of exposure at one stage: at equal compute (equation 1), and within models (each against its other tasks).

    ``assigned_p`` and ``within_p`` are the shares of assignments whose θ is as far from 0, on either side. Within
    models, every model and every task has its own level, so that nothing a model is better at everywhere can pass for
    exposure; one task alone does not allow it.
    """

    stage: str
    fit: HingeFit
    assigned_p: float
    within: Coefficient
    within_p: float


@dataclass(frozen=True)
class ExposureEffect(Finding):
    """What exposure is worth over all tasks, before and after adjustment."""

    tasks: tuple[str, ...]
    before: ExposureWorth
    after: ExposureWorth
    assignments: int
    exact: bool

    def tables(self) -> Sequence[Table]:
        """Return θ at equal compute and θ within models, a row for each stage."""
        if len(self.tasks) == 1:
            return (self._equal_compute_table(),)
        return self._equal_compute_table(), self._within_models_table()

    def _equal_compute_table(self) -> Table:
        assignment_words = f"{self.assignments:,} random ways"
        if self.exact:
            assignment_words = f"all {self.assignments:,} ways"
        scores, families, *_ = self.before.fit.effect_row()
        counts = f"{scores} scores of {families} families in {', '.join(self.tasks)}."
        share = (
            f"Randomization p: share of {assignment_words} to hand out the forms that give a θ as far from"
            " 0."
        )
        table_rows = []
        for worth in (self.before, self.after):
            effect = worth.fit.effect_row()[2:]
            table_rows.append((worth.stage, *effect, worth.fit.theta.p, worth.assigned_p))
        return Table(
            "What having seen a test's form is worth at equal compute",
            ("", *EFFECT_COLUMNS[2:], "plain p", "randomization p"),
            table_rows,
            f"{counts} {EFFECT_NOTE} {share}",
        )

    def _within_models_table(self) -> Table:
        table_rows = [
            (worth.stage, *worth.within.to_row(), worth.within_p)
            for worth in (self.before, self.after)
        ]
        column_names = (
            "",
            "θ",
            "s.e.",
            "p",
            "clustered s.e.",
            "clustered p",
            "randomization p",
        )
        note = (
            "Every model and every task has its own level: a model's exposed tasks against its other ones."
            " Clustered: by family. Randomization p: share of the ways to hand out the forms that give a θ as far"
            " from 0."
        )
        return Table("The same within models", column_names, table_rows, note)


@dataclass(frozen=True, eq=False)
class ExposureCells:
    """The cells of all tasks, one after the other, and the ways to hand out the forms."""

    log_compute: Floats
    families: list[str]
    group: Floats  # N: exposure of the model to the task's form
    levels: Floats | None  # of models and tasks; None where there is one task
    assignments: Sequence[Floats]  # N in every way, the actual one among them; or in random ways
    exact: bool  # these are all the ways


def measure_exposure_effect(
    pairs: Sequence[ScorePair], *, draws: int = 1999, seed: int = 0
) -> ExposureEffect:
    """Fit equation 1 to the cells of all tasks, N being exposure of the model to the task's form."""
    if not pairs:
        raise InputError("no task has both models that saw its form and models that did not")
    exposed = [score_pair.cohort.split_by_exposure(score_pair.task).members for score_pair in pairs]
    families: list[str] = []
    for score_pair in pairs:
        families.extend(score_pair.cohort.family)
    assignments, exact = _list_assignments(
        [score_pair.cohort for score_pair in pairs], exposed, seed
    )
    cells = ExposureCells(
        log_compute=np.concatenate([score_pair.cohort.log_compute for score_pair in pairs]),
        families=families,
        group=np.concatenate(exposed).astype(np.float64),
        levels=_make_level_columns(pairs) if len(pairs) > 1 else None,
        assignments=assignments,
        exact=exact,
    )
    before = np.concatenate(
        [score_pair.oriented()[0] - _orient_chance(score_pair) for score_pair in pairs]
    )
    after = np.concatenate(
        [score_pair.oriented()[1] - _orient_chance(score_pair) for score_pair in pairs]
    )
    assigned_effects = np.array(
        [
            search_hinges(cells.log_compute, np.stack([before, after]), group).effect
            for group in assignments
        ]
    )  # (assignments, stages)
    return ExposureEffect(
        tasks=tuple(score_pair.task for score_pair in pairs),
        before=_measure_stage(
            "before", before, assigned_effects[:, 0], cells, draws=draws, seed=seed
        ),
        after=_measure_stage("after", after, assigned_effects[:, 1], cells, draws=draws, seed=seed),
        assignments=len(assignments),
        exact=exact,
    )


def _orient_chance(score_pair: ScorePair) -> float:
    return score_pair.chance if score_pair.higher_is_better else -score_pair.chance


def _measure_stage(
    stage: str,
    scores: Floats,
    assigned_effects: Floats,
    cells: ExposureCells,
    *,
    draws: int,
    seed: int,
) -> ExposureWorth:
    hinge_fit = fit_hinge(
        cells.log_compute,
        scores,
        group=cells.group,
        families=cells.families,
        draws=draws,
        seed=seed,
    )
    within = UNKNOWN_COEFFICIENT
    within_p = math.nan
    if cells.levels is not None:
        design = np.column_stack([cells.group, cells.levels])
        within = fit_linear(design, scores, cells.families)[0][0]
        assigned_within = _effects_within_levels(cells.assignments, scores, cells.levels)
        within_p = _share_as_far_from_zero(assigned_within, within.value, cells.exact)
    return ExposureWorth(
        stage=stage,
        fit=hinge_fit,
        assigned_p=_share_as_far_from_zero(assigned_effects, hinge_fit.theta.value, cells.exact),
        within=within,
        within_p=within_p,
    )


def _make_level_columns(pairs: Sequence[ScorePair]) -> Floats:
    """Return one column per model and per task but the first, which the models' columns imply."""
    models = np.concatenate([score_pair.cohort.models for score_pair in pairs])
    tasks = np.repeat(
        [score_pair.task for score_pair in pairs],
        [len(score_pair.cohort.models) for score_pair in pairs],
    )
    columns = [models == name for name in np.unique(models)]
    columns += [tasks == score_pair.task for score_pair in pairs[1:]]
    return np.column_stack(columns).astype(np.float64)


def _effects_within_levels(groups: Sequence[Floats], y: Floats, levels: Floats) -> Floats:
    """Return θ of each assignment with the levels taken out of it (Frisch–Waugh–Lovell)."""
    basis = np.linalg.qr(levels)[0]
    G = np.stack(groups)
    G = G - (G @ basis) @ basis.T
    power = np.einsum("an,an->a", G, G)
    return np.asarray(np.where(power > 1e-9, G @ y / np.maximum(power, 1e-9), 0.0))


def _share_as_far_from_zero(drawn: Floats, observed: float, exact: bool) -> float:
    """Return the share of assignments whose θ is as far from 0 as the observed one, on either side."""
    reached = int(np.sum(np.abs(drawn) >= abs(observed) - 1e-9))
    if exact:
        return reached / len(drawn)
    return (1 + reached) / (1 + len(drawn))


# --- ways to hand out the forms --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class FormUnits:
    """Who can be shown the form of one task: families, or single models."""

    unit_of_model: npt.NDArray[np.intp]
    count: int
    exposed: int  # units that were shown it

    @classmethod
    def from_cohort(cls, cohort: Cohort, exposed: Mask, *, by_family: bool) -> FormUnits:
        """Number the families, or the models, of a task's cohort."""
        names = cohort.family if by_family else cohort.models
        unit_of_model = np.unique(names, return_inverse=True)[1]
        return cls(
            unit_of_model=unit_of_model,
            count=int(unit_of_model.max()) + 1,
            exposed=len(np.unique(unit_of_model[exposed])),
        )


def _list_assignments(
    cohorts: Sequence[Cohort], exposed: Sequence[Mask], seed: int
) -> tuple[list[Floats], bool]:
    """Return every way in which each task's form could have been handed out, and whether these are all.

    The actual way is among them. Where there are more than ``MAX_ASSIGNMENTS`` ways, so many random ones are returned.
    """
    by_family = all(map(_is_exposed_by_family, cohorts, exposed))
    units = [
        FormUnits.from_cohort(cohort, members, by_family=by_family)
        for cohort, members in zip(cohorts, exposed, strict=True)
    ]
    exact = math.prod(math.comb(unit.count, unit.exposed) for unit in units) <= MAX_ASSIGNMENTS
    choices: Iterable[Sequence[Sequence[int]]]
    if exact:
        choices = product(*(list(combinations(range(unit.count), unit.exposed)) for unit in units))
    else:
        permute = np.random.default_rng(seed).permutation
        choices = (_draw_assignment(units, permute) for _ in range(MAX_ASSIGNMENTS))
    assignments = []
    for choice in choices:
        masks = [
            np.isin(unit.unit_of_model, chosen) for unit, chosen in zip(units, choice, strict=True)
        ]
        assignments.append(np.concatenate(masks).astype(np.float64))
    return assignments, exact


def _draw_assignment(
    units: Sequence[FormUnits], permute: Callable[[int], npt.NDArray[np.int64]]
) -> list[list[int]]:
    """Return, for each form, the units that are exposed to it in one random way of handing forms out."""
    return [permute(unit.count)[: unit.exposed].tolist() for unit in units]


def _is_exposed_by_family(cohort: Cohort, exposed: Mask) -> bool:
    """Whether the models of every family are all exposed or all not."""
    family_states = set(zip(cohort.family, exposed.tolist(), strict=True))
    return len(family_states) == len(dict(family_states))
