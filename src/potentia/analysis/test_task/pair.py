"""One task before and after adjustment, over the models that have both scores and known compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from potentia.analysis.test_task.cohort import Cohort
from potentia.errors import InputError
from potentia.values.scores import Floats, ScoreMatrix


@dataclass(frozen=True, eq=False)
class Pair:
    """Scores of the same models on one task, before and after all of them were tuned on the same task data."""

    task: str
    cohort: Cohort
    before: Floats  # (models,)
    after: Floats  # (models,)
    chance: float = 0.0
    higher_is_better: bool = True

    def oriented(self) -> tuple[Floats, Floats]:
        """Return both scores with higher always better."""
        sign = 1.0 if self.higher_is_better else -1.0
        return sign * self.before, sign * self.after


def pair_up(
    before: ScoreMatrix,
    after: ScoreMatrix,
    cohort: Cohort,
    *,
    tasks: Sequence[str] | None = None,
    chance: Mapping[str, float] | float = 0.0,
) -> tuple[Pair, ...]:
    """Join two protocols task by task, keeping the models with both scores and known compute."""
    shared = [task for task in (tasks or before.tasks) if task in before.tasks and task in after.tasks]
    if not shared:
        raise InputError(
            f"no task was scored both as {before.protocol} and as {after.protocol}",
            hint=f"{before.protocol}: {', '.join(before.tasks[:6])}; {after.protocol}: {', '.join(after.tasks[:6])}",
        )
    known = set(cohort.models) & set(after.models)
    models = [name for name in before.models if name in known]
    if not models:
        raise InputError(
            "no model has both scores and known compute",
            hint="add the models' parameters and training tokens to the facts (--facts models.csv)",
        )
    first, second = before.select(models=models, tasks=shared), after.select(models=models, tasks=shared)
    pairs = []
    for j, task in enumerate(shared):
        whole = np.isfinite(first.values[:, j]) & np.isfinite(second.values[:, j])
        names = [name for name, keep in zip(models, whole, strict=True) if keep]
        pairs.append(
            Pair(
                task=task,
                cohort=cohort.select(names),
                before=first.values[whole, j],
                after=second.values[whole, j],
                chance=chance if isinstance(chance, (int, float)) else chance.get(task, 0.0),
                higher_is_better=first.higher_is_better[j],
            )
        )
    return tuple(pairs)


def best_of(before: ScoreMatrix, after: ScoreMatrix) -> ScoreMatrix:
    """Return the better of both scores, model by model: what the published tables report (`selection: paper`).

    Models or tasks that only one matrix has are left out. So is a model without a score after: its score before is
    none of what all models were tuned for.
    """
    tasks = [task for task in after.tasks if task in before.tasks]
    models = [name for name in after.models if name in before.models]
    first, second = before.select(models=models, tasks=tasks), after.select(models=models, tasks=tasks)
    sign = np.where(np.asarray(second.higher_is_better), 1.0, -1.0)
    mine, other = np.nan_to_num(second.values * sign, nan=-np.inf), np.nan_to_num(first.values * sign, nan=-np.inf)
    keep = (mine >= other) | np.isnan(second.values)
    return replace(
        second,
        values=np.where(keep, second.values, first.values),
        stderr=np.where(keep, second.stderr, first.stderr),
        n=np.where(keep, second.n, first.n),
    )


def left_out(before: ScoreMatrix, after: ScoreMatrix, cohort: Cohort, task: str) -> dict[str, tuple[str, ...]]:
    """Name the models with a score on a task that are in no comparison of the two, by the reason."""
    first, second = _scored(before, task), _scored(after, task)
    both = [name for name in first if name in second]
    found = {
        f"no score by {after.protocol}": [name for name in first if name not in second],
        f"no score by {before.protocol}": [name for name in second if name not in first],
        "no compute known (parameters and tokens, --facts)": [name for name in both if name not in cohort.models],
    }
    return {why: tuple(names) for why, names in found.items() if names}


def _scored(matrix: ScoreMatrix, task: str) -> list[str]:
    column = matrix.select(tasks=[task])
    return [name for name, value in zip(column.models, column.values[:, 0], strict=True) if np.isfinite(value)]
