"""How far one model is ahead of another, and what more would have to be measured to tell the two apart."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.stats import norm

from potentia.analysis.rankings.decide import CLAIM_PROBABILITY, Ranking
from potentia.analysis.rankings.noise import task_noise
from potentia.analysis.stats.bootstrap import LEVEL
from potentia.analysis.stats.significance import POWER
from potentia.values.findings import Interval, select_positions
from potentia.values.scores import Floats, Outcomes, ScoreMatrix

MOST_DOCUMENTS = 100.0  # times as many as there are: more are out of reach
MOST_TASKS = 10.0


@dataclass(frozen=True)
class Lead:
    """How far one model's mean score lies above another's on the tasks that both have."""

    first: str
    second: str
    tasks: int
    difference: Interval
    chance: float  # that the first is better, as the ranking draws it
    generalizes: bool  # on other tasks like these too

    @property
    def is_certain(self) -> bool:
        """Whether the first may be called better."""
        return self.chance >= CLAIM_PROBABILITY


def measure_lead(
    ranking: Ranking, matrix: ScoreMatrix, items: Outcomes | None, first: str, second: str
) -> Lead | None:
    """Compare two models; the likelier of them comes first. None where they share no task."""
    gaps = ScoreGaps.measure(matrix, items, first, second)
    if gaps is None:
        return None
    chance = ranking.probability_better(first, second)
    differences = gaps.differences
    # Models that score alike stay in their order.
    if chance < 0.5 and differences.any():
        first, second = second, first
        chance = 1.0 - chance
        differences = -differences
    tasks = len(differences)
    z = float(norm.ppf(0.5 + ranking.level / 2))
    half_width = z * np.sqrt(gaps.variances.sum()) / tasks
    return Lead(
        first=first,
        second=second,
        tasks=tasks,
        difference=Interval.around(differences.mean(), half_width, ranking.level),
        chance=chance,
        generalizes=ranking.generalizes,
    )


@dataclass(frozen=True)
class ScoreGaps:
    """The differences of two models on the tasks that both have."""

    tasks: tuple[str, ...]
    differences: Floats  # (tasks,): of the first over the second; more is better
    variances: Floats  # (tasks,): by test noise; NaN without standard errors

    @classmethod
    def measure(
        cls, matrix: ScoreMatrix, items: Outcomes | None, first: str, second: str
    ) -> ScoreGaps | None:
        """Measure the differences; None where the models share no task.

        Tasks where less is better are left out where there are others: a mean over both says nothing.
        """
        pair = matrix.select(models=[first, second])
        columns = np.flatnonzero(np.isfinite(pair.values).all(axis=0))
        higher_is_better = np.asarray(matrix.higher_is_better, dtype=bool)[columns]
        if higher_is_better.any():
            columns = columns[higher_is_better]
        if not len(columns):
            return None
        covariances = [task_noise(pair, int(k), items).full_covariance() for k in columns]
        noise = np.stack(covariances)  # (tasks, 2, 2)
        variances = noise[:, 0, 0] + noise[:, 1, 1] - 2 * noise[:, 0, 1]
        has_errors = np.isfinite(pair.stderr[:, columns]).all(axis=0)
        scores = pair.oriented()[:, columns]
        return cls(
            tasks=select_positions(matrix.tasks, columns),
            differences=scores[0] - scores[1],
            variances=np.where(has_errors, variances, np.nan),
        )

    @property
    def is_split(self) -> bool:
        """Whether each of the two models leads on a task."""
        return bool(self.differences.min() < 0 < self.differences.max())


@dataclass(frozen=True)
class MissingEvidence:
    """What would tell two models apart four times in five; ``documents`` and ``tasks`` are more than there are now."""

    first: str
    rival: str
    times: float  # as many test documents; infinite where the choice of tasks alone could change the order
    documents: int | None  # per task; None where their number is not known, or none would do
    tasks: int | None  # where documents alone would not do; None beyond reach
    has_several_tasks: bool
    is_split: bool  # each leads on a task


def estimate_missing_evidence(
    ranking: Ranking,
    matrix: ScoreMatrix,
    items: Outcomes | None,
    test_sizes: Mapping[str, float],
    first: str,
    rival: str,
) -> MissingEvidence | None:
    """Return how many documents or tasks would separate two models, if they differ as much as they seem to.

    The variance of their difference in the ranking has two parts: test noise, which falls with the documents, and the
    rest, which falls with the tasks alone. None where nothing is missing or no error is known.
    """
    gaps = ScoreGaps.measure(matrix, items, first, rival)
    if gaps is None or not ranking.can_claim or not np.isfinite(gaps.variances).all():
        return None
    if ranking.probability_better(first, rival) >= CLAIM_PROBABILITY:
        return None
    tasks = len(gaps.tasks)
    difference = ranking.draws_of(first) - ranking.draws_of(rival)
    scales = ranking.task_scales[[ranking.tasks.index(task) for task in gaps.tasks]]
    noise_variance = float((scales**2 * gaps.variances).sum()) / tasks**2
    variance = noise_variance
    if ranking.generalizes:
        variance = max(float(np.var(difference)), noise_variance)
    task_variance = variance - noise_variance
    allowed = (float(difference.mean()) / detectable_z(ranking.level)) ** 2
    times = math.inf
    more_documents = None
    more_tasks = None
    if allowed > task_variance and 0 < noise_variance <= MOST_DOCUMENTS * (allowed - task_variance):
        times = noise_variance / (allowed - task_variance)
        more_documents = _count_more_documents(times, gaps.tasks, test_sizes)
    elif ranking.generalizes and allowed > 0:
        needed = tasks * variance / allowed
        if needed <= MOST_TASKS * tasks:
            more_tasks = max(1, math.ceil(needed) - tasks)
    return MissingEvidence(
        first=first,
        rival=rival,
        times=times,
        documents=more_documents,
        tasks=more_tasks,
        has_several_tasks=tasks > 1,
        is_split=gaps.is_split,
    )


def _count_more_documents(
    times: float, tasks: tuple[str, ...], test_sizes: Mapping[str, float]
) -> int | None:
    """Return how many more documents a task needs to have so many times as many; None where sizes are not known."""
    sizes = [test_sizes[task] for task in tasks if task in test_sizes]
    if not sizes:
        return None
    more = max(1, math.ceil((times - 1) * float(np.median(sizes))))
    # Two digits, rounded up: nobody knows more.
    unit = int(10 ** max(0, len(str(more)) - 2))
    return math.ceil(more / unit) * unit


def detectable_z(level: float = LEVEL) -> float:
    """Return the standard errors of a difference that is found with 80 % power."""
    return float(norm.ppf(0.5 + level / 2) + norm.ppf(POWER))
