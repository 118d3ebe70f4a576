"""Whether training on the test task saturates: what its last steps still gain (appendix C assumes: nothing).

The adjustment makes models equal only if all have learned what the task data can teach. Then the last part of the
training gains nothing on average, for models that had met the task before and for those that had not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from potentia.analysis.stats.intervals import mean_interval
from potentia.errors import InputError
from potentia.papers.task_training.cohort import Cohort, ModelSplit
from potentia.values.findings import Chart, Finding, Interval, Line, Plot, Table

MIN_MODELS = 3  # of a side, for a mean with a standard error


@dataclass(frozen=True)
class StepGain:
    """The mean gain between two steps of the training, over models scored at both."""

    first_step: int
    last_step: int
    side: str  # "trained before 2023-11"
    models: int
    gain: Interval  # over families


@dataclass(frozen=True)
class Saturation(Finding):
    """The mean gain from each step to the next, for both sides of a split."""

    task: str
    gains: tuple[StepGain, ...]

    def last_gains(self) -> tuple[StepGain, ...]:
        """Return the gains of the last two steps, a side each."""
        last_step = max(step_gain.last_step for step_gain in self.gains)
        return tuple(step_gain for step_gain in self.gains if step_gain.last_step == last_step)

    def tables(self) -> Sequence[Table]:
        """Return one row per pair of steps and side."""
        table_rows = []
        for step_gain in self.gains:
            steps = f"{step_gain.first_step:,} to {step_gain.last_step:,}"
            table_rows.append((steps, step_gain.side, step_gain.models, step_gain.gain))
        note = (
            "The mean over models scored at both steps, with its 95 % interval, clustered by family. Training on the "
            "test task has saturated where the last gains are zero."
        )
        column_names = ("steps", "models", "n", "mean gain", "low", "high")
        return (
            Table(f"{self.task}: does training on it saturate?", column_names, table_rows, note),
        )

    def charts(self) -> Sequence[Chart]:
        """Return the gain of each part of the training."""
        lines = []
        for side in dict.fromkeys(step_gain.side for step_gain in self.gains):
            gains = [step_gain for step_gain in self.gains if step_gain.side == side]
            steps = [step_gain.last_step for step_gain in gains]
            means = np.array([step_gain.gain.value for step_gain in gains])
            low = np.array([step_gain.gain.low for step_gain in gains])
            high = np.array([step_gain.gain.high for step_gain in gains])
            lines.append(Line(side, steps, means, low=low, high=high))
        chart = Plot(
            f"{self.task}-saturation",
            f"{self.task}: gain since the step before",
            "Bands: 95 % of the mean over models. Training has saturated where the last value is near zero.",
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
    family_by_model = dict(zip(cohort.models, cohort.family, strict=True))
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
            labels = [family_by_model[model] for model in models]
            step_gain = mean_interval(differences, labels)
            gains.append(
                StepGain(
                    first_step=first_step,
                    last_step=last_step,
                    side=side,
                    models=len(models),
                    gain=step_gain,
                )
            )
    if not gains:
        raise InputError(f"no two steps of {task} share {MIN_MODELS} models of one side")
    return Saturation(task, tuple(gains))
