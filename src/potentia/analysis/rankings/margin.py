"""Whether one model is as good as another within a margin, over all tasks that both have.

``compare --margin`` asks it of two models. The scoreboard asks it of the smallest model beside the best one: a model
that is as good within 0.01 and a tenth of the size is what many people look for. Of several smaller models one is
claimed only where its interval holds for all of them together (Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.stats import norm

from potentia.analysis.rankings.lead import detectable_z
from potentia.analysis.rankings.pair_test import ScoreGaps
from potentia.analysis.rankings.task_groups import TaskGroups
from potentia.analysis.stats.bootstrap import LEVEL
from potentia.analysis.stats.non_inferiority import MarginVerdict, check_margin, judge_margin
from potentia.analysis.wording import format_level
from potentia.values.findings import Interval, short_names
from potentia.values.scores import Outcomes, ScoreMatrix

USUAL_MARGIN = 0.01
MOST_EXAMPLES = 100.0  # times as many as there are: more are out of reach


@dataclass(frozen=True)
class MarginComparison:
    """A model beside one that it is to be as good as."""

    candidate: str
    reference: str
    margin: float
    difference: Interval  # of the candidate over the reference; more is better
    tasks: int

    @property
    def verdict(self) -> MarginVerdict:
        """What the interval says."""
        return judge_margin(self.difference, self.margin)

    @property
    def is_as_good(self) -> bool:
        """Whether the candidate is not worse by more than the margin."""
        return self.verdict in (MarginVerdict.NOT_WORSE, MarginVerdict.BETTER)

    @property
    def examples_needed(self) -> float:
        """How many times as many examples show with 80 % power that two equally good models are so."""
        half_width = (self.difference.high - self.difference.low) / 2
        stderr = half_width / float(norm.ppf(0.5 + self.difference.level / 2))
        return (detectable_z(self.difference.level) * stderr / self.margin) ** 2

    def sentence(self, first: str | None = None) -> str:
        """Say whether the candidate is as good as the reference within the margin.

        The interval is of the difference of ``first`` over the other one, as a table beside it has it; by itself of
        the candidate.
        """
        candidate, reference = short_names([self.candidate, self.reference])
        tasks = f"these {self.tasks} tasks" if self.tasks > 1 else "this task"
        level = format_level(self.difference.level)
        low, high = self.difference.low, self.difference.high
        if first == self.reference:
            low, high = -high, -low
        interval = (
            f"{level} interval of the difference by test noise alone {low:+.3f} to {high:+.3f}"
        )
        verdict = self.verdict
        if verdict is MarginVerdict.UNKNOWN:
            return (
                f"Whether {candidate} is as good as {reference} within {self.margin:g} cannot be "
                "said: the scores have no standard errors."
            )
        if self.is_as_good:
            return (
                f"{candidate} is not worse than {reference} by more than {self.margin:g} "
                f"on {tasks} ({interval})."
            )
        if verdict is MarginVerdict.WORSE:
            return (
                f"{candidate} is worse than {reference} by more than {self.margin:g} "
                f"on {tasks} ({interval})."
            )
        return (
            f"Whether {candidate} is as good as {reference} within {self.margin:g} is open "
            f"({interval}).{self._describe_examples_needed()}"
        )

    def _describe_examples_needed(self) -> str:
        times = self.examples_needed
        if not self.difference.low <= 0 <= self.difference.high:  # they are not equally good
            return ""
        if not 1 < times <= MOST_EXAMPLES:
            return ""
        return (
            f" If the two are equally good, {times:.2g} times as many test examples "
            "would show it with 80 % power."
        )


def compare_within_margin(
    matrix: ScoreMatrix,
    items: Outcomes | None,
    candidate: str,
    reference: str,
    margin: float,
    groups: TaskGroups,
    *,
    level: float = LEVEL,
) -> MarginComparison | None:
    """Compare two models over the tasks that both have; None where they share none, or no scale."""
    check_margin(margin)
    score_gaps = ScoreGaps.measure(matrix, items, candidate, reference, groups)
    if score_gaps is None:
        return None
    difference = score_gaps.mean_difference(level)
    if difference is None:
        return None
    return MarginComparison(candidate, reference, margin, difference, len(score_gaps.tasks))


def find_smallest_as_good(
    matrix: ScoreMatrix,
    items: Outcomes | None,
    best_model: str,
    sizes: Mapping[str, float],
    groups: TaskGroups,
    *,
    margin: float = USUAL_MARGIN,
    level: float = LEVEL,
) -> MarginComparison | None:
    """Return the smallest model that is not worse than the best by more than a margin; None where there is none.

    ``sizes`` are parameters, or anything else that costs; models without a size are left out.
    """
    if best_model not in sizes:
        return None
    smaller = [model for model in matrix.models if sizes.get(model, math.inf) < sizes[best_model]]
    tasks_of_best = int(np.isfinite(matrix.select(models=[best_model]).values).sum())
    joint_level = 1 - (1 - level) / max(1, len(smaller))
    for model in sorted(smaller, key=lambda model_name: sizes[model_name]):
        comparison = compare_within_margin(
            matrix, items, model, best_model, margin, groups, level=joint_level
        )
        if comparison is None or comparison.tasks < tasks_of_best:
            continue
        if comparison.is_as_good:
            return comparison
    return None
