"""Like with like: sources, studies and folds are joined only where ``comparable`` finds no difference."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from potentia.errors import InputError
from potentia.evidence.evidence import Evidence
from potentia.facts import models as known_models
from potentia.store import Store
from potentia.values.metric import UNKNOWN, Difference, Metric, Origin, comparable
from potentia.values.protocol import TaskName, in_order
from potentia.values.scores import (
    Outcomes,
    Score,
    ScoreMatrix,
    TaskOutcomes,
    clusters_of_task,
)


class UnlikeError(InputError):
    """Scores that cannot be compared, or that two sources have."""


@dataclass(frozen=True, slots=True)
class MeasuredTask:
    """What the cells of a task have in common: metric and origin."""

    metric: Metric
    origin: Origin


@dataclass(frozen=True, slots=True)
class SourceTask:
    """A task as one source has it under one protocol."""

    source: str
    protocol: str
    task: str
    measured: MeasuredTask


class _UnlikeTasks:
    """The first two sources that cannot be compared: the tasks in which, and the first difference of each kind."""

    def __init__(self) -> None:
        self.sources: tuple[str, str] | None = None
        self.tasks: list[str] = []
        self.differences: dict[str, Difference] = {}  # by kind
        self.recipe_cell: tuple[str, str] = ("", "")  # protocol and task whose recipes differ

    def add(self, first_source: str, later: SourceTask, differences: Sequence[Difference]) -> None:
        """Take the differences of a task, where they are of the same two sources as the first."""
        sources = (first_source, later.source)
        if self.sources not in (None, sources):
            return
        self.sources = sources
        if later.task not in self.tasks:
            self.tasks.append(later.task)
        new_differences = {difference.property_name: difference for difference in differences}
        if "recipe" in new_differences and "recipe" not in self.differences:
            self.recipe_cell = (later.protocol, later.task)
        self.differences = new_differences | self.differences


def check_alike(
    source_tasks: Iterable[SourceTask],
    *,
    find_recipe: Callable[[str, str, str], Mapping[str, Any]],
    hint: str,
    source: str | None = None,
) -> None:
    """Refuse tasks of several sources that cannot be compared, with the differences named.

    Data must agree across protocols, too: a gain by tuning compares two of them. ``find_recipe`` returns the settings
    of a fine-tuning, to name those that differ; ``{source}`` in the hint is the later of the two sources.
    """
    first_seen: dict[tuple[str, str], tuple[str, MeasuredTask]] = {}
    unlike = _UnlikeTasks()
    for source_task in source_tasks:
        measured = source_task.measured
        data_alone = MeasuredTask(
            replace(measured.metric, name="", scale=None), Origin(data=measured.origin.data)
        )
        comparisons = {
            (source_task.protocol, source_task.task): measured,
            ("", source_task.task): data_alone,
        }
        for key, current in comparisons.items():
            first_source, earlier = first_seen.setdefault(key, (source_task.source, current))
            differences = comparable(earlier, current)
            if differences:
                unlike.add(first_source, source_task, differences)
                continue
            merged = MeasuredTask(
                earlier.metric.merged(current.metric),
                _merge_origins(earlier.origin, current.origin),
            )
            first_seen[key] = (first_source, merged)
    if unlike.sources is not None:
        raise _unlike_error(unlike, unlike.sources, find_recipe, hint, source)


def _unlike_error(
    unlike: _UnlikeTasks,
    sources: tuple[str, str],
    find_recipe: Callable[[str, str, str], Mapping[str, Any]],
    hint: str,
    source: str | None,
) -> UnlikeError:
    differences = [d for d in unlike.differences.values() if d.property_name != "recipe"]
    if "recipe" in unlike.differences:
        first, second = (_flatten(find_recipe(source, *unlike.recipe_cell)) for source in sources)
        differences += _differing_settings(first, second)
    first_task, *other_tasks = unlike.tasks
    suffix = ""
    if other_tasks:
        suffix = f" and {len(other_tasks)} other task{'s' if len(other_tasks) > 1 else ''}"
    subject = f"the scores of {first_task}{suffix} in {' and '.join(sources)}"
    listed = "; different ".join(map(str, differences))
    return UnlikeError(
        f"{subject} cannot be compared: different {listed}",
        where=source,
        hint=hint.format(source=sources[1]),
    )


def find_stored_recipe(
    store: Store, studies: str | Sequence[str], protocol: str, task: str
) -> dict[str, Any]:
    """Return how the cells of a task were tuned."""
    cells = store.cells.read(study=studies, task=task, protocol=protocol, limit=1)
    return cells[0].provenance.recipe if cells else {}


def _differing_settings(
    first: Mapping[str, Any], second: Mapping[str, Any]
) -> tuple[Difference, ...]:
    """Return the settings that differ; the recipe as a whole where they are not told."""
    names = [name for name in {**first, **second} if first.get(name) != second.get(name)]
    if not names:
        return (Difference("recipe", "one", "another"),)
    return tuple(
        Difference(name.removeprefix("tuning."), str(first.get(name)), str(second.get(name)))
        for name in names
    )


def _flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings by their dotted names."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def _merge_origins(first: Origin, second: Origin) -> Origin:
    """Return what is known of either origin, of what must agree."""
    return Origin(
        data=first.data or second.data,
        recipe=first.recipe or second.recipe,
        shots=second.shots if first.shots is None else first.shots,
    )


def join_sources(parts: Sequence[Evidence]) -> Evidence:
    """Join several sources, protocol by protocol; what cannot be compared, and a cell that two have, is refused."""
    part_by_source = {part.source: part for part in parts}

    def find_recipe(source: str, protocol: str, task: str) -> Mapping[str, Any]:
        for store, studies in part_by_source[source].open_stores():
            return find_stored_recipe(store, studies, protocol, task)
        return {}

    check_alike(
        _tasks_of_sources(parts),
        find_recipe=find_recipe,
        hint="scores compare where data, metric and fine-tuning are the same;"
        " to show them apart: apart: true in --columns FILE",
    )
    names = itertools.chain.from_iterable(part.scores for part in parts)
    protocols = in_order(dict.fromkeys(names))
    scores = {}
    items_read = {}
    for protocol in protocols:
        matrices = [part.scores[protocol] for part in parts if protocol in part.scores]
        scores[protocol] = _union_matrices(matrices)
        items_read[protocol] = _merge_items([part.items_read.get(protocol, {}) for part in parts])
    layouts = [part.table_layout for part in parts if part.table_layout is not None]
    return Evidence(
        source=" + ".join(dict.fromkeys(part.source for part in parts)),
        title=" + ".join(dict.fromkeys(part.title for part in parts)),
        scores=scores,
        facts=known_models(),
        studies=tuple(study for part in parts for study in part.studies),
        notes=tuple(f"{part.source}: {note}" for part in parts for note in part.notes),
        table_layout=layouts[0] if layouts else None,
        stores=tuple(store for part in parts for store in part.stores),
        metric=next((part.metric for part in parts if part.metric is not None), None),
        items_read=items_read,
    )


def _tasks_of_sources(parts: Sequence[Evidence]) -> Iterator[SourceTask]:
    """Give what the cells of each task have in common, source by source; a matrix holds none that are unlike."""
    for part in parts:
        for protocol, matrix in part.scores.items():
            for column, task in enumerate(matrix.tasks):
                origin = _origin_of_column(matrix, column)
                measured = MeasuredTask(matrix.metrics[column], origin)
                yield SourceTask(part.source, protocol, task, measured=measured)


def _origin_of_column(matrix: ScoreMatrix, column: int) -> Origin:
    origin = UNKNOWN
    if matrix.origins is None:
        return origin
    for cell_origin in {cell for cell in matrix.origins[:, column] if cell is not None}:
        origin = _merge_origins(origin, cell_origin)
    return origin


def _merge_items(parts: Sequence[Outcomes]) -> Outcomes:
    merged: dict[str, TaskOutcomes] = {}
    for part in parts:
        for task, values_by_model in part.items():
            joined = merged.setdefault(task, TaskOutcomes({}))
            joined.update(values_by_model)
            clusters = {**joined.cluster_by_example, **clusters_of_task(values_by_model)}
            joined.cluster_by_example = clusters
    return merged


def _union_matrices(matrices: Sequence[ScoreMatrix]) -> ScoreMatrix:
    """Lay matrices of like cells over each other; none may have a score that another has."""
    if len(matrices) == 1:
        return matrices[0]
    protocol = matrices[0].protocol
    cells: dict[tuple[str, str], Score] = {}
    for matrix in matrices:
        for model, task, score in matrix.scores():
            if (model, task) in cells:
                raise UnlikeError(
                    f"two sources have a {protocol} score of {model} on {task}",
                    hint="leave one of the sources out, or show them apart: apart: true in --columns FILE",
                )
            cells[model, task] = score
    models = [model for matrix in matrices for model in matrix.models]
    tasks = [task for matrix in matrices for task in matrix.tasks]
    return ScoreMatrix.of_cells(protocol, cells, models, tasks)


def join_folds(
    matrix: ScoreMatrix, notes: list[str], asked: Collection[str] | None = None
) -> ScoreMatrix:
    """Join the folds of a task (``name#1/5`` …) into one column, the mean over all documents, where none is missing.

    ``asked`` are the tasks of the studies: a selection under a budget asks for some folds alone, and these are joined.
    Of a task with missing folds each stands alone, and a note says which are missing.
    """
    columns_by_task: dict[str, list[int]] = {}
    for column, task in enumerate(map(TaskName, matrix.tasks)):
        missing = _missing_folds(task, matrix.tasks, asked)
        if missing:
            folds = ", ".join(map(str, missing))
            scores = f"{matrix.protocol.label} scores of fold {folds}"
            notes.append(f"{task.whole}: {scores} are missing; folds stand alone")
        joined_name = task if missing else task.whole
        columns_by_task.setdefault(joined_name, []).append(column)
    if list(columns_by_task) == list(matrix.tasks):
        return matrix
    cells = {}
    for name, columns in columns_by_task.items():
        for row, model in enumerate(matrix.models):
            if np.isfinite(matrix.values[row, columns]).all():
                fold_scores = [matrix.score(row, column) for column in columns]
                cells[model, name] = _mean_of_folds(fold_scores, f"{model} on {name}")
    return ScoreMatrix.of_cells(matrix.protocol, cells, matrix.models, columns_by_task)


def _missing_folds(
    task: TaskName, tasks: Sequence[str], asked: Collection[str] | None
) -> list[int]:
    """Return the folds that a study asks for and that have no scores; where it is not known, all are asked for."""
    if task.fold is None:
        return []
    count = task.fold[1]
    missing = []
    for fold in range(1, count + 1):
        name = f"{task.whole}#{fold}/{count}"
        if name not in tasks and (asked is None or name in asked):
            missing.append(fold)
    return missing


def _mean_of_folds(folds: Sequence[Score], cell: str) -> Score:
    """Return the folds of a task taken as one: the mean over their documents together."""
    first = folds[0]
    for fold in folds[1:]:  # which test different documents, and are alike in all else
        with_same_data = replace(fold, origin=replace(fold.origin, data=first.origin.data))
        differences = comparable(first, with_same_data)
        if differences:
            listed = "; different ".join(map(str, differences))
            message = f"the folds of {cell} cannot be joined: different {listed}"
            raise UnlikeError(message, hint="choose one --study")
    if len(folds) == 1:
        return first
    size = sum(fold.n for fold in folds)
    weights = np.array([fold.n for fold in folds]) / (size or np.nan)
    values, errors = np.array([(fold.value, fold.stderr) for fold in folds]).T
    seeds = first.seeds
    if seeds:
        has_same_seeds = len({len(fold.seeds) for fold in folds}) == 1
        seed_scores = [fold.seeds for fold in folds]
        seeds = tuple((weights @ np.array(seed_scores)).tolist()) if has_same_seeds else ()
    origin = first.origin
    if all(fold.origin.data is not None for fold in folds):
        data = "\n".join(str(fold.origin.data) for fold in folds)
        origin = replace(origin, data=hashlib.sha256(data.encode()).hexdigest())
    return replace(
        first,
        value=float(weights @ values),
        stderr=float(np.linalg.norm(weights * errors)),
        n=size,
        origin=origin,
        seeds=seeds,
    )
