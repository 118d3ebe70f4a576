"""The scores of a store as matrices, and the outcomes behind them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from potentia.errors import DataError, InputError
from potentia.extras import Extra
from potentia.store import schema
from potentia.store.cell_queries import (
    METRIC_COLUMN_NAMES,
    SCORE_COLUMNS,
    StudyFilter,
    cell_conditions,
    execute_on_cells,
    score_from_columns,
)
from potentia.store.database import Database
from potentia.store.items import can_read_items, load_item_values, load_values_by_metric
from potentia.store.waiting import PatientPart
from potentia.values.answer_bits import ANSWER_METRICS
from potentia.values.metric import Metric, Origin
from potentia.values.scores import Score, ScoreMatrix


@dataclass(frozen=True)
class StoredMeasure:
    """What the cells of a task and protocol in one study measure.

    Of the origin it holds only what ``find_differences`` compares: data, recipe and shots.
    """

    study: str
    protocol: str
    task: str
    metric: Metric
    origin: Origin


@dataclass(frozen=True)
class CellOutcomes:
    """The value of every document of one cell."""

    protocol: str
    task: str
    model: str
    data: str | None  # the fingerprint of the documents
    values: dict[int, float]
    clusters: dict[int, str]  # of examples that share a passage


class Scores(PatientPart):
    """The scores of the committed cells."""

    def __init__(self, database: Database) -> None:
        self.database: Database = database

    def read_protocols(self, *, study: StudyFilter = None) -> list[str]:
        """Return the protocols that have cells."""
        with self.database.reading() as connection:
            conditions = cell_conditions(self.database, connection, study=study)
            query = sa.select(schema.cells.c.protocol).distinct().where(*conditions)
            return sorted(connection.execute(query).scalars().all())

    def read_matrix(
        self, protocol: str, *, study: StudyFilter = None, metric: str | None = None
    ) -> ScoreMatrix:
        """Return models × tasks of one protocol, sorted by name, checkpoints by step; missing cells are NaN.

        Without ``study`` all cells count; where several have the same model and task (another recipe, another import)
        the newest is taken. ``metric`` picks another than each cell's main metric.
        """
        query = _join_scores(
            sa.select(schema.cells.c.model, schema.cells.c.task, *SCORE_COLUMNS), metric
        )
        rows = execute_on_cells(self.database, query, study=study, protocol=protocol)
        # rows come in the order of their making, so the newest of a model and task takes the place of older ones
        scores = {(model, task): score_from_columns(*columns) for model, task, *columns in rows}
        if metric in ANSWER_METRICS and can_read_items():
            scores |= self._compute_answer_scores(
                protocol, study, metric, already_scored=set(scores)
            )
        if not scores:
            raise self._missing_scores(protocol, study, metric)
        self._check_metrics(scores)
        models = _sort_models({model for model, _ in scores})
        tasks = _sort_names({task for _, task in scores})
        return ScoreMatrix.from_cells(protocol, scores, models, tasks)

    def _missing_scores(self, protocol: str, study: StudyFilter, metric: str | None) -> InputError:
        missing = f"{protocol} results"
        if metric:
            missing += f" with the metric {metric!r}"
        protocols = ", ".join(self.read_protocols(study=study)) or "none"
        hint = f"protocols there: {protocols}"
        if metric in ANSWER_METRICS and not can_read_items():
            hint = f"to compute them from the examples: {Extra.PARQUET.install_command}"
        return InputError(
            f"the store has no {missing}",
            where=self.database.where,
            hint=hint,
        )

    def _compute_answer_scores(
        self,
        protocol: str,
        study: StudyFilter,
        metric: str,
        *,
        already_scored: Container[tuple[str, str]],
    ) -> dict[tuple[str, str], Score]:
        """Score the right answers of cells that earlier versions stored, from the log-likelihoods of their items."""
        cell_columns = schema.cells.c
        query = _join_scores(
            sa.select(cell_columns.key, cell_columns.model, cell_columns.task, *SCORE_COLUMNS), None
        )
        query = query.where(cell_columns.item_count.is_not(None))
        scores = {}
        for cell_key, model, task, *columns in execute_on_cells(
            self.database, query, study=study, protocol=protocol
        ):
            if (model, task) in already_scored:
                continue
            items = load_values_by_metric(self.database.items_folder, cell_key, metric)
            if items is not None and items.values:
                main_score = score_from_columns(*columns)
                scores[model, task] = _mean_score(list(items.values.values()), metric, main_score)
        return scores

    def _check_metrics(self, scores: dict[tuple[str, str], Score]) -> None:
        """Refuse cells of a task that are of different metrics."""
        first_of_task: dict[str, Metric] = {}
        distinct_metrics = {
            (task, id(score.metric)): score.metric for (_, task), score in scores.items()
        }
        for (task, _), metric in distinct_metrics.items():
            first_metric = first_of_task.setdefault(task, metric)
            for difference in first_metric.find_differences(metric):
                raise DataError(
                    f"{task} has two kinds of scores: {difference.property_name} {difference.first_value}"
                    f" and {difference.second_value}",
                    where=self.database.where,
                    hint="choose one metric for all: metric: NAME in --columns FILE",
                )

    def read_measures(
        self, *, study: StudyFilter = None, metric: str | None = None
    ) -> list[StoredMeasure]:
        """Return what is measured among the cells, each once, for ``find_differences`` to judge."""
        cell_columns = schema.cells.c
        link_columns = schema.study_cells.c
        metric_names = METRIC_COLUMN_NAMES[:-1]  # a guess's accuracy forbids no comparison
        metric_columns = [schema.scores.c[metric_name] for metric_name in metric_names]
        query = sa.select(
            link_columns.study,
            cell_columns.protocol,
            cell_columns.task,
            cell_columns.data,
            cell_columns.recipe,
            cell_columns.shots,
            *metric_columns,
        )
        # the bits of right answers may have to be computed: what forbids a comparison is as with the main metric
        is_computed = metric in ANSWER_METRICS
        stored_metric = None if is_computed else metric
        query = _join_scores(query.distinct(), stored_metric)
        query = query.join(schema.study_cells, link_columns.cell == cell_columns.id)
        with self.database.reading() as connection:
            conditions = cell_conditions(self.database, connection, study=study)
            if study is not None:  # a cell may be of other studies too
                study_keys = self.database.find_study_keys(connection, study)
                conditions.append(link_columns.study.in_(study_keys))
            rows = connection.execute(query.where(*conditions)).all()
        measures = []
        for row in rows:
            measure = StoredMeasure(
                study=row.study,
                protocol=row.protocol,
                task=row.task,
                metric=Metric.of(str(metric)) if is_computed else Metric(*row[6:]),
                origin=Origin(data=row.data, recipe=row.recipe, shots=row.shots),
            )
            measures.append(measure)
        return measures

    def has_outcomes(self, *, study: StudyFilter = None) -> bool:
        """Whether any cell has items."""
        query = sa.select(schema.cells.c.key).where(schema.cells.c.item_count.is_not(None))
        return bool(execute_on_cells(self.database, query.limit(1), study=study))

    def read_outcomes(
        self, *, study: StudyFilter = None, metric: str | None = None
    ) -> Iterator[CellOutcomes]:
        """Give the value by document of every cell with items, the newest of several last.

        ``metric`` picks another than each cell's main metric, where it has a number for every item. A file that is
        missing or cannot be read is passed over: the score still stands. Without pyarrow none can be read.
        """
        if not can_read_items():
            return
        cell_columns = schema.cells.c
        items_folder = self.database.items_folder
        query = sa.select(
            cell_columns.key,
            cell_columns.protocol,
            cell_columns.task,
            cell_columns.model,
            cell_columns.data,
            cell_columns.metric,
        )
        query = query.where(cell_columns.item_count.is_not(None))
        for row in execute_on_cells(self.database, query, study=study):
            if metric in (None, row.metric):
                items = load_item_values(items_folder, row.key)
            else:
                items = load_values_by_metric(items_folder, row.key, str(metric))
            if items is not None and items.values:
                yield CellOutcomes(
                    row.protocol,
                    row.task,
                    row.model,
                    data=row.data,
                    values=items.values,
                    clusters=items.clusters,
                )


def _join_scores(
    query: sa.Select[*tuple[Any, ...]], metric: str | None
) -> sa.Select[*tuple[Any, ...]]:
    """Join cells with their scores by one metric, or by each cell's main one."""
    has_name = schema.scores.c.name == (schema.cells.c.metric if metric is None else metric)
    is_of_cell = schema.scores.c.cell == schema.cells.c.id
    return query.join_from(schema.cells, schema.scores, sa.and_(is_of_cell, has_name))


def _mean_score(values: list[float], metric: str, main_score: Score) -> Score:
    """Return the mean of a metric over items, with what the cell's main score knows of its task and origin."""
    score_count = len(values)
    stderr = math.nan
    if score_count > 1:
        stderr = statistics.stdev(values) / math.sqrt(score_count)
    return Score(
        value=statistics.fmean(values),
        stderr=stderr,
        n=score_count,
        metric=Metric.of(metric, chance=main_score.metric.chance),
        origin=main_score.origin,
    )


def _sort_models(models: set[str]) -> list[str]:
    """Sort models by name, and the checkpoints of a run (``run@390``) by their steps."""

    def sorting_key(model: str) -> tuple[str, int, str]:
        series, _, step = model.rpartition("@")
        step = step.removeprefix("step")
        if series and step.isdecimal():
            return series.casefold(), int(step), model
        return model.casefold(), -1, model

    return sorted(models, key=sorting_key)


def _sort_names(names: set[str]) -> list[str]:
    """Sort without regard to case."""
    return sorted(names, key=lambda name: (name.casefold(), name))
