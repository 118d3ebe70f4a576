"""Whether training on the test task saturates: what its last steps still gain (appendix C assumes: nothing).

The adjustment makes models equal only if all have learned what the task data can teach. Then the last part of the
training gains nothing on average, for models that had met the task before and for those that had not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from potentia.errors import InputError
from potentia.papers.task_training.cohort import Cohort, ModelSplit
from potentia.values.findings import Chart, Finding, Line, Plot, Table

MIN_MODELS = 3  # of a side, for a mean with a standard error


@dataclass(frozen=True)
class StepGain:
    """The mean gain between two steps of the training, over models scored at both."""

    first_step: int
    last_step: int
    side: str  # "trained before 2023-11"
    models: int
    mean: float
    stderr: float


@dataclass(frozen=True)
class Saturation(Finding):
    """The mean gain from each step to the next, for both sides of a split."""

    task: str
    gains: tuple[StepGain, ...]

    def last_gains(self) -> tuple[StepGain, ...]:
        """Return the gains of the last two steps, a side each."""
        last_step = max(gain.last_step for gain in self.gains)
        return tuple(gain for gain in self.gains if gain.last_step == last_step)

    def tables(self) -> Sequence[Table]:
        """Return one row per pair of steps and side."""
        rows = []
        for gain in self.gains:
            steps = f"{gain.first_step:,} to {gain.last_step:,}"
            rows.append((steps, gain.side, gain.models, gain.mean, gain.stderr))
        note = (
            "The mean over models scored at both steps, and its standard error. Training on the test task has "
            "saturated where the last gains are zero."
        )
        columns = ("steps", "models", "n", "mean gain", "s.e.")
        return (Table(f"{self.task}: does training on it saturate?", columns, rows, note),)

    def charts(self) -> Sequence[Chart]:
        """Return the gain of each part of the training."""
        lines = []
        for side in dict.fromkeys(gain.side for gain in self.gains):
            gains = [gain for gain in self.gains if gain.side == side]
            means = np.array([gain.mean for gain in gains])
            errors = 1.96 * np.array([gain.stderr for gain in gains])
            steps = [gain.last_step for gain in gains]
            lines.append(Line(side, steps, means, low=means - errors, high=means + errors))
        chart = Plot(
            f"{self.task}-saturation",
            f"{self.task}: gain since the step before",
            "Bands: 95 % of the mean over models. Near zero at the end: the training has saturated.",
            lines=tuple(lines),
            x_label="optimizer steps",
            y_label="mean gain since the step before",
            log_x=True,
        )
        return (chart,)


def measure_saturation(
    task: str, scores_by_step: Mapping[int, Mapping[str, float]], cohort: Cohort, split: ModelSplit
) -> Saturation:
    """Measure what each part of the training gained, for the group of the split and for the others."""
    steps = sorted(scores_by_step)
    gains: list[StepGain] = []
    for first_step, last_step in pairwise(steps):
        first_scores = scores_by_step[first_step]
        last_scores = scores_by_step[last_step]
        for side, members in split.sides():
            models = [model for model in cohort.select_names(members) if model in first_scores]
            models = [model for model in models if model in last_scores]
            if len(models) < MIN_MODELS:
                continue
            differences = np.array([last_scores[model] - first_scores[model] for model in models])
            stderr = float(differences.std(ddof=1) / np.sqrt(len(models)))
            gains.append(
                StepGain(
                    first_step=first_step,
                    last_step=last_step,
                    side=side,
                    models=len(models),
                    mean=float(differences.mean()),
                    stderr=stderr,
                )
            )
    if not gains:
        raise InputError(f"no two steps of {task} share {MIN_MODELS} models of one side")
    return Saturation(task, tuple(gains))
