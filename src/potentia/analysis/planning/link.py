"""The scale on which scores are predicted: a logit above chance, shrunk at both ends so that no score is infinite.

An accuracy y on a task with chance c becomes logit(ε + (1 − 2ε)·(y − c)/(1 − c)), ε = 0.05: equal steps then mean
about equal odds at both ends of the scale, a score at chance or at one stays finite, and one below chance (a model
that guesses with bad luck) only a little lower. Where lower is better (bits per byte) the scale is −log y; a metric
outside the unit interval keeps its own scale. On every link scale higher is better.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from potentia.errors import InputError
from potentia.facts import benchmark, chance
from potentia.values.scores import Floats
from potentia.values.task_name import TaskName

SHRINK = 0.05
BEYOND = 0.8 * SHRINK  # how far outside [chance, 1] a score may count, as a share of that interval
TYPICAL_SPREAD = 0.7  # standard deviation of a task's scores over models on the logit scale, before any is known


@dataclass(frozen=True)
class Links:
    """One link per task: its kind (``logit``, ``log`` or ``plain``), the score of guessing, and the direction."""

    kinds: tuple[str, ...]
    chance: Floats  # (tasks,)
    sign: Floats  # (tasks,): −1 where a plain score is better when lower

    @classmethod
    def of(
        cls,
        tasks: Sequence[str],
        higher_is_better: Sequence[bool],
        known: Floats,
        chances: Mapping[str, float] | None = None,
        metrics: Sequence[str] = (),
    ) -> Links:
        """Choose each task's link from its direction and from the scores that are known, (models, tasks) with NaN."""
        kinds, guesses = [], []
        for column, (task, up) in enumerate(zip(tasks, higher_is_better, strict=True)):
            values = known[:, column][np.isfinite(known[:, column])]
            guess = score_of_guessing(task, chances, metrics[column] if metrics else "")
            if up and (values <= 1.0).all() and (values >= -1.0).all():
                kinds.append("logit")
            elif not up and (values > 0.0).all():
                kinds.append("log")
            else:
                kinds.append("plain")
            guesses.append(guess)
        return cls(tuple(kinds), np.array(guesses), np.where(np.asarray(higher_is_better, dtype=bool), 1.0, -1.0))

    def forward(self, values: Floats) -> Floats:
        """Scores on the link scale; (…, tasks), NaN stays NaN."""
        result = np.array(values, dtype=np.float64)
        for column, kind in enumerate(self.kinds):
            if kind == "logit":
                q = self._share(result[..., column], column)
                result[..., column] = np.log(q / (1.0 - q))
            elif kind == "log":
                result[..., column] = -np.log(result[..., column])
            else:
                result[..., column] *= self.sign[column]
        return result

    def inverse(self, z: Floats) -> Floats:
        """Scores from the link scale; (…, tasks). An accuracy never exceeds one."""
        result = np.array(z, dtype=np.float64)
        for column, kind in enumerate(self.kinds):
            if kind == "logit":
                share = (1.0 / (1.0 + np.exp(-result[..., column])) - SHRINK) / (1.0 - 2.0 * SHRINK)
                c = self.chance[column]
                result[..., column] = np.minimum(c + (1.0 - c) * share, 1.0)
            elif kind == "log":
                result[..., column] = np.exp(-np.clip(result[..., column], -50.0, 50.0))
            else:
                result[..., column] *= self.sign[column]
        return result

    def slope(self, values: Floats) -> Floats:
        """Steepness |dz/dy| of the link at these scores, by which standard errors are carried over; (…, tasks)."""
        result = np.ones_like(values, dtype=np.float64)
        for column, kind in enumerate(self.kinds):
            if kind == "logit":
                q = self._share(values[..., column], column)
                result[..., column] = (1.0 - 2.0 * SHRINK) / (1.0 - self.chance[column]) / (q * (1.0 - q))
            elif kind == "log":
                result[..., column] = 1.0 / np.abs(values[..., column])
        return result

    def _share(self, y: Floats, column: int) -> Floats:
        c = self.chance[column]
        return np.asarray(SHRINK + (1.0 - 2.0 * SHRINK) * np.clip((y - c) / (1.0 - c), -BEYOND, 1.0 + BEYOND))


def score_of_guessing(task: str, chances: Mapping[str, float] | None = None, metric: str = "") -> float:
    """Return what a guess scores: as given, else by the number of options, and 0 where the metric or task has no such.

    A correlation (mcc) and an exact match score 0 by guessing whatever the number of options.
    """
    if chances and task in chances:
        given = float(chances[task])
        if not 0.0 <= given < 1.0:
            raise InputError(f"the chance of {task} is {given:g}", hint="chance is a score from 0 to below 1")
        return given
    known = benchmark(TaskName(task).base)
    usual = known.metric if known is not None else ""
    if (metric or usual).partition("|")[0] in ("mcc", "exact_match", "em", "f1"):
        return 0.0
    try:
        return chance(task)
    except InputError:
        return 0.0
