"""From score matrices to the factor model's problem: rows of study and history, link scale, standardised tasks.

The study's models come first, each history's after them; a model that is in both has two rows, tied by name and
lineage, for a score of another recipe or another run is evidence of a kind, not a measurement of this study. Tasks of
the study come first, tasks that only a history knows after them. Every task is centred and scaled by what its known
scores say of the average model; a task of which nothing is known is expected above its mean direct score.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from potentia.analysis.planning.factors import Problem
from potentia.analysis.planning.features import TYPICAL_SPREAD, Kinship, Links, describe
from potentia.errors import InputError
from potentia.facts import ModelTable
from potentia.values.scores import Floats, ScoreMatrix

GAIN, CARRY = 0.7, 0.4  # a task's mean after tuning: 0.7 + 0.4 · its mean before, on the logit scale
LEVEL_SPREAD = 0.9  # give or take so much
SLOPE, SLOPE_SPREAD = 0.6, 0.3  # how much a task rises with one standard deviation of ability
NOISE = 0.3  # about the line
PSEUDO_SCORES = 2.0


@dataclass(frozen=True)
class Scale:
    """Centre and spread of every task on the link scale, and the link itself."""

    links: Links
    centre: Floats  # (tasks,)
    spread: Floats  # (tasks,)

    def standard(self, values: Floats) -> Floats:
        """Scores as standardised link values."""
        return np.asarray((self.links.forward(values) - self.centre) / self.spread)

    def scores(self, z: Floats) -> Floats:
        """Undo ``standard`` for any leading tasks."""
        count = z.shape[-1]
        first = Links(self.links.kinds[:count], self.links.chance[:count], self.links.sign[:count])
        return first.inverse(z * self.spread[:count] + self.centre[:count])


def set_up(
    tuned: ScoreMatrix,
    direct: Sequence[ScoreMatrix],
    history: Sequence[ScoreMatrix],
    table: ModelTable,
    chances: Mapping[str, float] | None,
    scale: Scale | None = None,
) -> tuple[Problem, Scale, Kinship]:
    """Stack study and history and standardise them; a given ``scale`` is kept."""
    tasks, up = _tasks(tuned, history)
    models = [m for matrix in (tuned, *history) for m in matrix.models]
    values, stderr = (np.vstack([_spread_out(m, tasks, name) for m in (tuned, *history)]) for name in _BLOCKS)
    features = describe(models, tasks, direct, table)
    if scale is None:
        links = Links.of(tasks, up, values, chances, _metrics(tasks, (tuned, *history)))
        scale = _scale(links, links.forward(values), features.level, features.mean)
    error = (stderr * scale.links.slope(values)) ** 2
    known = np.isfinite(error)
    usual = np.array([np.median(c[k]) if k.any() else 0.0 for c, k in zip(error.T, known.T, strict=True)])
    excess = np.where(known, np.maximum(error - usual, 0.0), 0.0) / scale.spread**2
    problem = Problem(
        z=scale.standard(values),
        excess=excess,
        grams=features.grams,
        mean=features.mean,
        kin=features.kin,
        own=features.own,
        level_variance=(LEVEL_SPREAD / scale.spread) ** 2,
    )
    return problem, scale, Kinship.of(models, table)


_BLOCKS = ("values", "stderr")


def _tasks(tuned: ScoreMatrix, history: Sequence[ScoreMatrix]) -> tuple[list[str], list[bool]]:
    up = dict(zip(tuned.tasks, tuned.higher_is_better, strict=True))
    for matrix in history:
        for task, direction in zip(matrix.tasks, matrix.higher_is_better, strict=True):
            if up.setdefault(task, direction) != direction:
                raise InputError(
                    f"{task} is better when higher in the study and when lower in its history, or the reverse",
                    hint="leave the task out of the history, or name the two metrics apart",
                )
    return list(up), list(up.values())


def _metrics(tasks: Sequence[str], matrices: Sequence[ScoreMatrix]) -> list[str]:
    """The metric of each task, as the first matrix that has the task calls it."""
    named: dict[str, str] = {}
    for matrix in matrices:
        for task, metric in zip(matrix.tasks, matrix.metrics, strict=True):
            named.setdefault(task, metric.name)
    return [named[task] for task in tasks]


def _spread_out(matrix: ScoreMatrix, tasks: Sequence[str], name: str) -> Floats:
    block = np.full((len(matrix.models), len(tasks)), np.nan)
    values: Floats = getattr(matrix, name)
    block[:, [tasks.index(t) for t in matrix.tasks]] = np.where(np.isfinite(matrix.values), values, np.nan)
    return block


def _scale(links: Links, z: Floats, level: Floats, ability: Floats) -> Scale:
    """Level at the average model and spread over models of each task, by regression on the expected ability.

    Known scores may be those of small models alone, whose mean and spread say little about the others; a line with
    expectations for its level, its slope and its noise (Bayesian linear regression) does.
    """
    known = np.isfinite(z)
    unit, sure = (ability - ability.mean()), ability.std() > 1e-9
    unit = unit / ability.std() if sure else np.zeros(len(ability))
    centre, spread = np.empty(z.shape[1]), np.empty(z.shape[1])
    for t, kind in enumerate(links.kinds):
        y, x = z[known[:, t], t], unit[known[:, t]]
        start, size = 0.0, 1.0
        if kind == "logit":
            start = GAIN + CARRY * (level[t] if np.isfinite(level[t]) else -1.0)
        elif len(y):  # a scale of its own: its known scores are all that says how wide it is
            start, size = float(y.mean()), (float(y.std()) if y.std() > 1e-9 else 1.0) / TYPICAL_SPREAD
        design = np.column_stack([np.ones(len(x)), x])
        prior = np.diag([1.0 / LEVEL_SPREAD**2, 1.0 / SLOPE_SPREAD**2])
        expected = np.array([0.0, SLOPE if sure else 0.0])
        off = (y - start) / size
        line = np.linalg.solve(prior + design.T @ design / NOISE**2, prior @ expected + design.T @ off / NOISE**2)
        left = float(((off - design @ line) ** 2).sum())
        noise = NOISE**2 if sure else TYPICAL_SPREAD**2
        rest = (left + PSEUDO_SCORES * noise) / (len(y) + PSEUDO_SCORES)
        centre[t] = start + size * line[0]
        spread[t] = size * np.sqrt(max(line[1], 0.25 * SLOPE if sure else 0.0) ** 2 + rest)
    return Scale(links, centre, spread)
