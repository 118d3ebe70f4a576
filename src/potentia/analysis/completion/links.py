"""The scale on which scores are predicted: a link for each task, and the task's centre and spread on it.

An accuracy y on a task with chance c is predicted as logit(ε + (1 − 2ε)·(y − c)/(1 − c)), ε = 0.05: equal steps mean
about equal odds, and a score at or below chance stays finite. Where lower is better (bits per byte) the scale is −log
y; a metric outside the unit interval keeps its own. On every link scale higher is better.

Every task is centred and scaled by what its known scores say of the average model; a task of which nothing is known is
expected above its mean direct score.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from potentia.errors import InputError
from potentia.facts import compute_chance_score, find_benchmark_facts
from potentia.values.metric import Metric
from potentia.values.protocol import TaskName
from potentia.values.scores import Floats

SHRINK = 0.05
BEYOND = 0.8 * SHRINK  # how far outside [chance, 1] a score may count, as a share of that interval
# Standard deviation of a task's scores over models on the logit scale, before any is known.
TYPICAL_SPREAD = 0.7
# A task's mean after tuning: 0.7 + 0.4 · its mean before, on the logit scale, give or take the spread.
GAIN = 0.7
CARRY = 0.4
LEVEL_SPREAD = 0.9
USUAL_DIRECT_MEAN = -1.0  # on the logit scale, where no direct score is known
# How much a task rises with one standard deviation of ability.
SLOPE = 0.6
SLOPE_SPREAD = 0.3
LINE_NOISE = 0.3  # about the line
PSEUDO_SCORES = 2.0
ZERO_BY_GUESSING = ("mcc", "exact_match", "em", "f1")


class LinkKind(StrEnum):
    """Which function takes the scores of a task to the scale on which they are predicted."""

    LOGIT = "logit"
    LOG = "log"
    PLAIN = "plain"


@dataclass(frozen=True)
class TaskLinks:
    """One link per task: its kind, the score of guessing, and the direction."""

    kinds: tuple[LinkKind, ...]
    chance: Floats  # (tasks,)
    sign: Floats  # (tasks,): −1 where a plain score is better when lower

    @classmethod
    def choose(
        cls,
        metrics: Mapping[str, Metric],
        scores: Floats,
        chances: Mapping[str, float] | None = None,
    ) -> TaskLinks:
        """Choose each task's link from its direction and from the known scores, (models, tasks) with NaN."""
        kinds = []
        for column, metric in enumerate(metrics.values()):
            measured_scores = scores[np.isfinite(scores[:, column]), column]
            kinds.append(_choose_link(measured_scores, higher_is_better=metric.higher_is_better))
        guesses = []
        signs = []
        for task, metric in metrics.items():
            guesses.append(score_of_guessing(task, chances, metric.name))
            signs.append(1.0 if metric.higher_is_better else -1.0)
        return cls(tuple(kinds), np.array(guesses), np.array(signs))

    def select_first(self, count: int) -> TaskLinks:
        """Return the links of the first tasks."""
        return TaskLinks(self.kinds[:count], self.chance[:count], self.sign[:count])

    def forward(self, values: Floats) -> Floats:
        """Return scores on the link scale; (…, tasks), NaN stays NaN."""
        with np.errstate(all="ignore"):
            share = self._shrink_share(values)
            return self._choose_by_kind(
                logit=np.log(share / (1.0 - share)),
                log=-np.log(values),
                plain=values * self.sign,
            )

    def inverse(self, z: Floats) -> Floats:
        """Return scores from the link scale; (…, tasks). An accuracy never exceeds one."""
        with np.errstate(all="ignore"):
            share = (1.0 / (1.0 + np.exp(-z)) - SHRINK) / (1.0 - 2.0 * SHRINK)
            accuracy = np.minimum(self.chance + (1.0 - self.chance) * share, 1.0)
            return self._choose_by_kind(
                logit=accuracy,
                log=np.exp(-np.clip(z, -50.0, 50.0)),
                plain=z * self.sign,
            )

    def slope(self, values: Floats) -> Floats:
        """Return the steepness |dz/dy| of the link at these scores, which carries standard errors over; (…, tasks)."""
        with np.errstate(all="ignore"):
            share = self._shrink_share(values)
            return self._choose_by_kind(
                logit=(1.0 - 2.0 * SHRINK) / (1.0 - self.chance) / (share * (1.0 - share)),
                log=1.0 / np.abs(values),
                plain=np.ones_like(values, dtype=np.float64),
            )

    def _choose_by_kind(self, *, logit: Floats, log: Floats, plain: Floats) -> Floats:
        """Take each task's values from the array of its kind of link."""
        is_logit = np.array([kind is LinkKind.LOGIT for kind in self.kinds])
        is_log = np.array([kind is LinkKind.LOG for kind in self.kinds])
        return np.where(is_logit, logit, np.where(is_log, log, plain))

    def _shrink_share(self, values: Floats) -> Floats:
        """Return the share of the way from chance to one, away from both ends."""
        share = (values - self.chance) / (1.0 - self.chance)
        share = np.clip(share, -BEYOND, 1.0 + BEYOND)
        return np.asarray(SHRINK + (1.0 - 2.0 * SHRINK) * share)


def _choose_link(measured_scores: Floats, *, higher_is_better: bool) -> LinkKind:
    """Choose the link of a task from its direction and its known scores."""
    if higher_is_better and (np.abs(measured_scores) <= 1.0).all():
        return LinkKind.LOGIT
    if not higher_is_better and (measured_scores > 0.0).all():
        return LinkKind.LOG
    return LinkKind.PLAIN


def score_of_guessing(
    task: str, chances: Mapping[str, float] | None = None, metric: str = ""
) -> float:
    """Return what a guess scores: as given, else by the number of options, and 0 where the metric or task has no such.

    A correlation (mcc) and an exact match score 0 by guessing whatever the number of options.
    """
    if chances and task in chances:
        given_chance = float(chances[task])
        if not 0.0 <= given_chance < 1.0:
            raise InputError(
                f"the chance of {task} is {given_chance:g}",
                hint="chance is a score from 0 to below 1",
            )
        return given_chance
    public = find_benchmark_facts(TaskName(task).base)
    usual_metric = public.metric if public is not None else ""
    metric_name = (metric or usual_metric).partition("|")[0]
    if metric_name in ZERO_BY_GUESSING:
        return 0.0
    try:
        return compute_chance_score(task)
    except InputError:
        return 0.0


@dataclass(frozen=True)
class LinkScale:
    """Centre and spread of every task on the link scale, and the link itself."""

    links: TaskLinks
    centre: Floats  # (tasks,)
    spread: Floats  # (tasks,)

    @classmethod
    def fit(cls, links: TaskLinks, z: Floats, direct_means: Floats, ability: Floats) -> LinkScale:
        """Fit the level at the average model and the spread over models of each task, by regression on ability.

        Known scores may be those of small models alone, whose mean and spread say little about the others; a line with
        expectations for its level, its slope and its noise (Bayesian linear regression) does. ``z`` (models, tasks)
        holds scores on the link scale, ``direct_means`` each task's mean direct score.
        """
        has_ability = bool(ability.std() > 1e-9)
        standard_ability = np.zeros(len(ability))
        if has_ability:
            standard_ability = (ability - ability.mean()) / ability.std()
        tasks = z.shape[1]
        centre = np.empty(tasks)
        spread = np.empty(tasks)
        for task, kind in enumerate(links.kinds):
            is_measured = np.isfinite(z[:, task])
            scores = z[is_measured, task]
            level, unit = _expect_level(kind, scores, direct_means[task])
            line = _fit_line(
                standard_ability[is_measured], (scores - level) / unit, has_ability=has_ability
            )
            centre[task] = level + unit * line.level
            spread[task] = unit * line.spread
        return cls(links, centre, spread)

    def standardize(self, values: Floats) -> Floats:
        """Return scores as standardized link values."""
        return np.asarray((self.links.forward(values) - self.centre) / self.spread)

    def to_scores(self, z: Floats) -> Floats:
        """Undo ``standardize`` for any leading tasks."""
        count = z.shape[-1]
        links = self.links.select_first(count)
        return links.inverse(z * self.spread[:count] + self.centre[:count])


def _expect_level(link_kind: LinkKind, scores: Floats, direct_mean: float) -> tuple[float, float]:
    """Return where a task's scores are expected on the link scale, and the unit of that scale."""
    if link_kind is LinkKind.LOGIT:
        mean_before = direct_mean if np.isfinite(direct_mean) else USUAL_DIRECT_MEAN
        return GAIN + CARRY * mean_before, 1.0
    if not len(scores):
        return 0.0, 1.0
    # A scale of its own: its known scores are all that says how wide it is.
    deviation = float(scores.std()) if scores.std() > 1e-9 else 1.0
    return float(scores.mean()), deviation / TYPICAL_SPREAD


@dataclass(frozen=True)
class _TaskLine:
    """A task's scores as a line in the models' ability."""

    level: float  # at the average model
    spread: float  # over models


def _fit_line(ability: Floats, scores: Floats, *, has_ability: bool) -> _TaskLine:
    """Fit a line with expectations for its level, its slope and its noise."""
    slope = SLOPE if has_ability else 0.0
    noise = LINE_NOISE**2 if has_ability else TYPICAL_SPREAD**2
    design = np.column_stack([np.ones(len(ability)), ability])
    prior = np.diag([1.0 / LEVEL_SPREAD**2, 1.0 / SLOPE_SPREAD**2])
    expected = np.array([0.0, slope])
    precision = prior + design.T @ design / LINE_NOISE**2
    right_side = prior @ expected + design.T @ scores / LINE_NOISE**2
    line = np.linalg.solve(precision, right_side)
    squares = float(((scores - design @ line) ** 2).sum())
    residual_variance = (squares + PSEUDO_SCORES * noise) / (len(scores) + PSEUDO_SCORES)
    steepness = max(line[1], 0.25 * slope)
    return _TaskLine(level=line[0], spread=np.sqrt(steepness**2 + residual_variance))
