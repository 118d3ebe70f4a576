"""Matrix completion of a study: predict the cells that it has not measured from those that it has.

Whatever else is known of its models helps: direct scores, scores of other studies, facts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from potentia.analysis.completion.complete import DRAWS, Completion, complete_matrix
from potentia.analysis.left_out import keep_names_in
from potentia.analysis.stats.first_place import ENOUGH_MODELS
from potentia.errors import InputError
from potentia.facts import ModelTable
from potentia.values.metric import Metric
from potentia.values.protocol import ADJUST, DIRECT, TRAIN_BEFORE_TEST, Protocol, TaskName
from potentia.values.scores import Floats, ScoreMatrix

if TYPE_CHECKING:
    from potentia.evidence import Evidence

MOST_PREDICTED_MODELS = 200  # models whose missing cells a ranking predicts
FEWEST_DRAWS = 20  # of aggregates: a ranking uses only ``draw_scores``, so these hardly matter
# Draws of all cells, in chunks of (draws, models, tasks).
CellSampler = Callable[[int, np.random.Generator], Iterator[Floats]]


@dataclass(frozen=True)
class StudyGrid:
    """The cells a study is about: its models, its tasks with their metrics, the tuned protocol."""

    models: tuple[str, ...]
    tasks: tuple[str, ...]
    metrics: tuple[Metric, ...]
    protocol: Protocol

    def lay_out(self, matrix: ScoreMatrix | None) -> ScoreMatrix:
        """Return the scores of this grid; NaN where there are none."""
        if matrix is None:
            values = stderr = n = np.full((len(self.models), len(self.tasks)), np.nan)
        else:
            values, stderr, n = matrix.arrange(self.models, self.tasks)
        return ScoreMatrix(self.protocol, self.models, self.tasks, values, stderr, n, self.metrics)


def build_grid(evidence: Evidence) -> StudyGrid:
    """Return the tuned cells that the studies of the evidence ask for, measured or not.

    Models and tasks are those of the studies, folds of a task joined, texts to predict left out as in every ranking. A
    task of which nothing is known yet, under no protocol, has no metric either and waits; a model of which every tuned
    cell failed is no candidate.
    """
    requested_protocols: set[str] = set()
    requested_tasks: dict[str, None] = {}  # in the order of first use
    requested_models: dict[str, None] = {}
    for study in evidence.study_files:
        requested_protocols.update(study.protocols)
        for task in study.list_task_specs():
            task_name = TaskName(task.name)
            if task_name.sighted is None:  # a blind twin is a control, nothing to rank by
                requested_tasks[task_name.whole] = None
        requested_models |= dict.fromkeys(model_spec.name for model_spec in study.rows())
    tuned_protocols = keep_names_in((TRAIN_BEFORE_TEST, ADJUST), requested_protocols)
    if not tuned_protocols:
        raise InputError("there is nothing to predict: no study of these scores tunes models")
    protocol = Protocol(tuned_protocols[0])
    metrics: dict[str, Metric] = {}
    for matrix in reversed(evidence.final_scores.values()):
        metrics |= dict(zip(matrix.tasks, matrix.metrics, strict=True))
    with_metric = keep_names_in(requested_tasks, metrics)
    tasks = tuple(task for task in with_metric if not metrics[task].is_text)
    failed = set()
    for failure in evidence.failures():
        if failure.protocol == protocol:
            failed.add((failure.model, TaskName(failure.task).whole))
    models = []
    for model in requested_models:
        if not all((model, task) in failed for task in tasks):
            models.append(model)
    if not models or not tasks:
        raise InputError("there is nothing to predict: no model has a score on any task yet")
    return StudyGrid(
        models=tuple(models),
        tasks=tasks,
        metrics=tuple(metrics[task] for task in tasks),
        protocol=protocol,
    )


def find_outlook(evidence: Evidence, *, history: Evidence | None = None) -> Completion | None:
    """Complete what the studies of the evidence ask for, as report and board show it; None once all is measured."""
    grid = build_grid(evidence)
    tuned = grid.lay_out(evidence.scores.get(grid.protocol))
    if np.isfinite(tuned.values).all():
        return None
    return complete_grid(grid, evidence, history=history)


def complete_grid(
    grid: StudyGrid,
    evidence: Evidence | None,
    *,
    history: Evidence | None = None,
    facts: ModelTable | None = None,
    measured: npt.NDArray[np.bool_] | None = None,
    draws: int = DRAWS,
) -> Completion:
    """Complete the grid from the study's own evidence, history from elsewhere, and facts.

    ``measured`` (True where a cell may be read) hides the others, so that a decision can be made again as it was made.
    """
    sources = [source for source in (evidence, history) if source is not None]
    tuned = grid.lay_out(None if evidence is None else evidence.scores.get(grid.protocol))
    if measured is not None:
        tuned = replace(tuned, values=np.where(measured, tuned.values, np.nan))
    chances: dict[str, float] = {}
    task_groups: dict[str, str] = {}
    for source in reversed(sources):  # what the study itself says comes last and holds
        chances |= source.background.chance
        task_groups |= source.background.task_groups
    past_matrix = None if history is None else history.scores.get(grid.protocol)
    if facts is None and sources:
        facts = sources[0].facts
    # Small matrices: threads that wait for each other cost ten times more.
    with threadpool_limits(1, user_api="blas"):
        direct = [source.scores[DIRECT] for source in sources if DIRECT in source.scores]
        return complete_matrix(
            tuned,
            direct=direct,
            history=None if past_matrix is None else past_matrix.benchmarks(),
            facts=facts,
            chances=chances,
            task_groups=task_groups,
            draws=draws,
        )


def predict_missing_cells(
    evidence: Evidence, matrices: Sequence[ScoreMatrix]
) -> dict[Protocol, CellSampler]:
    """Return a sampler of all cells of an unfinished study, those not measured as its completion predicts them.

    A completion needs direct scores, and neither too few nor too many models. Without one the result is empty, and a
    ranking predicts the cells by a fit of model + task.
    """
    unfinished = [matrix for matrix in matrices if _can_predict_gaps(matrix)]
    if not unfinished or not evidence.studies or DIRECT not in evidence.final_scores:
        return {}
    try:
        grid = build_grid(evidence)
    except InputError:
        return {}
    matrix = next((matrix for matrix in unfinished if matrix.protocol == grid.protocol), None)
    if matrix is None:
        return {}
    if not set(matrix.models) <= set(grid.models) or not set(matrix.tasks) <= set(grid.tasks):
        return {}
    completion = complete_grid(grid, evidence, draws=FEWEST_DRAWS)
    model_positions = [grid.models.index(model) for model in matrix.models]
    task_positions = [grid.tasks.index(task) for task in matrix.tasks]

    def draw_cells(count: int, rng: np.random.Generator) -> Iterator[Floats]:
        for scores in completion.draw_scores(count, rng):
            yield scores[:, model_positions][:, :, task_positions]

    return {matrix.protocol: draw_cells}


def _can_predict_gaps(matrix: ScoreMatrix) -> bool:
    """Whether a matrix has gaps and neither too few nor too many models to predict them."""
    if not ENOUGH_MODELS <= len(matrix.models) <= MOST_PREDICTED_MODELS:
        return False
    return not np.isfinite(matrix.values).all()
