"""From evidence to a completion: what a study has measured so far, with whatever else is known of its models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
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

MOST_PREDICTED, LEAST_PREDICTED = (
    200,
    20,
)  # models whose missing cells a ranking predicts; draws it has no use for

CellSampler = Callable[
    [int, np.random.Generator], Iterator[Floats]
]  # draws of all cells, in chunks of (k, models, tasks)


@dataclass(frozen=True)
class StudyGrid:
    """The cells a study is about: its rows, its tasks with their metrics, the tuned protocol."""

    models: tuple[str, ...]
    tasks: tuple[str, ...]
    metrics: tuple[Metric, ...]
    protocol: Protocol

    def lay_out(self, matrix: ScoreMatrix | None) -> ScoreMatrix:
        """Return the scores of this grid; NaN where there are none."""
        none = np.full((len(self.models), len(self.tasks)), np.nan)
        values, stderr, n = (
            (none, none, none) if matrix is None else matrix.laid_out(self.models, self.tasks)
        )
        return ScoreMatrix(self.protocol, self.models, self.tasks, values, stderr, n, self.metrics)


def build_grid(evidence: Evidence) -> StudyGrid:
    """Return the tuned cells that the studies of the evidence ask for, measured or not.

    Rows and tasks are those of the studies, folds of a task joined, texts to predict left out as in every ranking. A
    task of which nothing is known yet, under no protocol, has no metric either and waits; a row of which every tuned
    cell failed is no candidate.
    """
    from potentia.evidence import (
        parse_study_record,
    )  # rankings are also made of scores without a store

    studies = list(filter(None, map(parse_study_record, evidence.studies)))
    every = {protocol for study in studies for protocol in study.protocols}
    protocol = next(iter(keep_names_in((TRAIN_BEFORE_TEST, ADJUST), every)), None)
    if protocol is None:
        raise InputError("there is nothing to predict: no study of these scores tunes models")
    metrics: dict[str, Metric] = {}
    for matrix in reversed(evidence.planned.values()):
        metrics |= dict(zip(matrix.tasks, matrix.metrics, strict=True))
    asked = dict.fromkeys(
        TaskName(task.name).whole for study in studies for task in study.benchmarks()
    )
    tasks = tuple(t for t in keep_names_in(asked, metrics) if not metrics[t].is_text)
    failed = {
        (f.model, TaskName(f.task).whole) for f in evidence.failures() if f.protocol == protocol
    }
    rows = dict.fromkeys(row.name for study in studies for row in study.rows())
    models = tuple(m for m in rows if not {(m, t) for t in tasks} <= failed)
    if not models or not tasks:
        raise InputError("there is nothing to predict: no model has a score on any task yet")
    return StudyGrid(models, tasks, tuple(metrics[t] for t in tasks), Protocol(protocol))


def find_outlook(evidence: Evidence, *, history: Evidence | None = None) -> Completion | None:
    """Complete what the studies of the evidence ask for, as report and board show it; None once all is measured."""
    grid = build_grid(evidence)
    if np.isfinite(grid.lay_out(evidence.scores.get(grid.protocol)).values).all():
        return None
    return complete_grid(grid, evidence, history=history)


def complete_grid(
    grid: StudyGrid,
    evidence: Evidence | None,
    *,
    history: Evidence | None = None,
    facts: ModelTable | None = None,
    measured: Floats | None = None,
    draws: int = DRAWS,
) -> Completion:
    """Complete the grid from the study's own evidence, history from elsewhere, and facts.

    ``measured`` (True where a cell may be read) hides the others, so that a decision can be made again as it was made.
    """
    sources = [source for source in (evidence, history) if source is not None]
    tuned = grid.lay_out(evidence.scores.get(grid.protocol) if evidence is not None else None)
    if measured is not None:
        tuned = replace(tuned, values=np.where(measured, tuned.values, np.nan))
    chances: dict[str, float] = {}
    for source in reversed(sources):  # the study's own say comes last
        chances |= source.background.chance
    past = history.scores.get(grid.protocol) if history is not None else None
    with threadpool_limits(
        1, user_api="blas"
    ):  # small matrices: threads that wait for each other cost ten times more
        return complete_matrix(
            tuned,
            direct=[source.scores[DIRECT] for source in sources if DIRECT in source.scores],
            history=None if past is None else past.benchmarks(),
            facts=sources[0].facts if facts is None and sources else facts,
            chances=chances,
            draws=draws,
        )


def predict_missing_cells(
    evidence: Evidence, matrices: Sequence[ScoreMatrix]
) -> dict[Protocol, CellSampler]:
    """Return draws of what an unfinished study has not measured: by its completion, where it can be made.

    That takes direct scores of the models and enough of them; else a fit of model + task will do.
    """
    gappy = [
        m
        for m in matrices
        if ENOUGH_MODELS <= len(m.models) <= MOST_PREDICTED and not np.isfinite(m.values).all()
    ]
    if not gappy or not evidence.studies or DIRECT not in evidence.planned:
        return {}
    try:
        grid = build_grid(evidence)
    except InputError:
        return {}
    matrix = next((m for m in gappy if m.protocol == grid.protocol), None)
    if matrix is None or not (
        set(matrix.models) <= set(grid.models) and set(matrix.tasks) <= set(grid.tasks)
    ):
        return {}
    done = complete_grid(grid, evidence, draws=LEAST_PREDICTED)
    rows = [grid.models.index(m) for m in matrix.models]
    columns = [grid.tasks.index(t) for t in matrix.tasks]

    def draw(count: int, rng: np.random.Generator) -> Iterator[Floats]:
        for chunk in done.posterior.draw_cells(count, rng):
            yield done.fitted.scale.to_scores(chunk)[:, rows][:, :, columns]

    return {matrix.protocol: draw}
