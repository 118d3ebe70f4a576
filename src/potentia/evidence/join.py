"""Like with like: sources, studies and folds are joined only where ``find_differences`` finds no difference."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from potentia.errors import InputError
from potentia.evidence.evidence import Evidence
from potentia.facts import models as known_models
from potentia.store import Store, StudyRecord
from potentia.values.metric import UNKNOWN_ORIGIN, Difference, Metric, Origin, find_differences
from potentia.values.protocol import TaskName, sort_protocols
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
    find_recipe: Callable[[str, str, str], Mapping[str, object]],
    hint: str,
    location: str | None = None,
) -> None:
    """Refuse tasks of several sources, or of several studies of one store, that cannot be compared.

    The error names the differences. Data must agree across protocols, too: a gain by tuning compares two of them.
    ``find_recipe(source, protocol, task)`` returns the settings of a fine-tuning, to name those that differ;
    ``{source}`` in the hint is the later of the two sources, and ``location`` is where the error says it was found.
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
        for task_and_protocol, current in comparisons.items():
            first_source, earlier = first_seen.setdefault(
                task_and_protocol, (source_task.source, current)
            )
            differences = find_differences(earlier, current)
            if differences:
                unlike.add(first_source, source_task, differences)
                continue
            merged = MeasuredTask(
                earlier.metric.fill_gaps_from(current.metric),
                _merge_origins(earlier.origin, current.origin),
            )
            first_seen[task_and_protocol] = (first_source, merged)
    if unlike.sources is not None:
        raise _unlike_error(unlike, unlike.sources, find_recipe, hint, location)


def _unlike_error(
    unlike: _UnlikeTasks,
    sources: tuple[str, str],
    find_recipe: Callable[[str, str, str], Mapping[str, object]],
    hint: str,
    location: str | None,
) -> UnlikeError:
    differences = [
        difference
        for difference in unlike.differences.values()
        if difference.property_name != "recipe"
    ]
    if "recipe" in unlike.differences:
        first_settings, second_settings = (
            _flatten(find_recipe(source, *unlike.recipe_cell)) for source in sources
        )
        differences += _differing_settings(first_settings, second_settings)
    first_task, *other_tasks = unlike.tasks
    suffix = ""
    if other_tasks:
        suffix = f" and {len(other_tasks)} other task{'s' if len(other_tasks) > 1 else ''}"
    subject = f"the scores of {first_task}{suffix} in {' and '.join(sources)}"
    listed = "; different ".join(map(str, differences))
    return UnlikeError(
        f"{subject} cannot be compared: different {listed}",
        where=location,
        hint=hint.format(source=sources[1]),
    )


def find_stored_recipe(
    store: Store, studies: str | Sequence[str], protocol: str, task: str
) -> dict[str, object]:
    """Return how the cells of a task were tuned."""
    cells = store.cells.read(study=studies, task=task, protocol=protocol, limit=1)
    return cells[0].provenance.recipe if cells else {}


def _differing_settings(
    first_settings: Mapping[str, object], second_settings: Mapping[str, object]
) -> tuple[Difference, ...]:
    """Return the settings that differ; the recipe as a whole where they are not told."""
    differing_names = [
        setting
        for setting in {**first_settings, **second_settings}
        if first_settings.get(setting) != second_settings.get(setting)
    ]
    if not differing_names:
        return (Difference("recipe", "one", "another"),)
    return tuple(
        Difference(
            setting.removeprefix("tuning."),
            str(first_settings.get(setting)),
            str(second_settings.get(setting)),
        )
        for setting in differing_names
    )


def _flatten(settings: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Return nested settings by their dotted names."""
    settings_by_name: dict[str, object] = {}
    for setting, value in settings.items():
        if isinstance(value, Mapping):
            settings_by_name |= _flatten(value, f"{prefix}{setting}.")
        else:
            settings_by_name[prefix + setting] = value
    return settings_by_name


def _merge_origins(first_origin: Origin, second_origin: Origin) -> Origin:
    """Return what is known of either origin, of what must agree."""
    return Origin(
        data=first_origin.data or second_origin.data,
        recipe=first_origin.recipe or second_origin.recipe,
        shots=second_origin.shots if first_origin.shots is None else first_origin.shots,
    )


def join_sources(all_evidence: Sequence[Evidence]) -> Evidence:
    """Join several sources, protocol by protocol; what cannot be compared, and a cell that two have, is refused."""
    part_by_source = {evidence.source: evidence for evidence in all_evidence}

    def find_recipe(source: str, protocol: str, task: str) -> Mapping[str, object]:
        for store, studies in part_by_source[source].open_stores():
            return find_stored_recipe(store, studies, protocol, task)
        return {}

    check_alike(
        _tasks_of_sources(all_evidence),
        find_recipe=find_recipe,
        hint="only scores with the same data, metric and fine-tuning can be compared;"
        " to show each group by itself: apart: true in --columns FILE",
    )
    protocol_names = itertools.chain.from_iterable(evidence.scores for evidence in all_evidence)
    protocols = sort_protocols(dict.fromkeys(protocol_names))
    scores = {}
    items_read = {}
    for protocol in protocols:
        matrices = [
            evidence.scores[protocol] for evidence in all_evidence if protocol in evidence.scores
        ]
        scores[protocol] = _union_matrices(matrices)
        items_read[protocol] = _merge_items(
            [evidence.items_read.get(protocol, {}) for evidence in all_evidence]
        )
    file_task_groups: dict[str, str] = {}
    studies: list[StudyRecord] = []
    notes: list[str] = []
    stores: list[tuple[str, tuple[str, ...]]] = []
    for evidence in all_evidence:
        studies += evidence.studies
        notes += [f"{evidence.source}: {note}" for note in evidence.notes]
        stores += evidence.stores
        file_task_groups = {**evidence.file_task_groups, **file_task_groups}
    layouts = [
        evidence.table_layout for evidence in all_evidence if evidence.table_layout is not None
    ]
    metrics = [evidence.metric for evidence in all_evidence if evidence.metric is not None]
    return Evidence(
        source=" + ".join(dict.fromkeys(evidence.source for evidence in all_evidence)),
        title=" + ".join(dict.fromkeys(evidence.title for evidence in all_evidence)),
        scores=scores,
        facts=known_models(),
        studies=tuple(studies),
        notes=tuple(notes),
        table_layout=layouts[0] if layouts else None,
        stores=tuple(stores),
        metric=metrics[0] if metrics else None,
        items_read=items_read,
        file_task_groups=file_task_groups,
    )


def _tasks_of_sources(all_evidence: Sequence[Evidence]) -> Iterator[SourceTask]:
    """Give what the cells of each task have in common, source by source; a matrix holds none that are unlike."""
    for evidence in all_evidence:
        for protocol, matrix in evidence.scores.items():
            for column, task in enumerate(matrix.tasks):
                origin = _origin_of_column(matrix, column)
                measured = MeasuredTask(matrix.metrics[column], origin)
                yield SourceTask(evidence.source, protocol, task, measured=measured)


def _origin_of_column(matrix: ScoreMatrix, column: int) -> Origin:
    origin = UNKNOWN_ORIGIN
    if matrix.origins is None:
        return origin
    for cell_origin in {
        known_origin for known_origin in matrix.origins[:, column] if known_origin is not None
    }:
        origin = _merge_origins(origin, cell_origin)
    return origin


def _merge_items(outcomes_by_source: Sequence[Outcomes]) -> Outcomes:
    merged_outcomes: dict[str, TaskOutcomes] = {}
    for source_outcomes in outcomes_by_source:
        for task, values_by_model in source_outcomes.items():
            task_outcomes = merged_outcomes.setdefault(task, TaskOutcomes({}))
            task_outcomes.update(values_by_model)
            clusters = {**task_outcomes.cluster_by_example, **clusters_of_task(values_by_model)}
            task_outcomes.cluster_by_example = clusters
    return merged_outcomes


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
    models: list[str] = []
    tasks: list[str] = []
    for matrix in matrices:
        models.extend(matrix.models)
        tasks.extend(matrix.tasks)
    return ScoreMatrix.from_cells(protocol, cells, models, tasks)


def join_folds(
    matrix: ScoreMatrix, notes: list[str], requested_tasks: Collection[str] | None = None
) -> ScoreMatrix:
    """Join the folds of a task (``name#1/5`` …) into one column, the mean over all documents, where none is missing.

    ``requested_tasks`` are the tasks of the studies: a selection under a budget asks for some folds alone, and these
    are joined. Of a task with missing folds each stands alone, and a note says which are missing.
    """
    columns_by_task: dict[str, list[int]] = {}
    for column, task in enumerate(map(TaskName, matrix.tasks)):
        missing = _missing_folds(task, matrix.tasks, requested_tasks)
        if missing:
            folds = ", ".join(map(str, missing))
            notes.append(
                f"{task.whole}: the scores of fold {folds} are missing ({matrix.protocol.label}), "
                "so each fold is shown by itself"
            )
        joined_name = task if missing else task.whole
        columns_by_task.setdefault(joined_name, []).append(column)
    if list(columns_by_task) == list(matrix.tasks):
        return matrix
    cells = {}
    for task_name, columns in columns_by_task.items():
        for row, model in enumerate(matrix.models):
            if np.isfinite(matrix.values[row, columns]).all():
                fold_scores = [matrix.score(row, column) for column in columns]
                cells[model, task_name] = _average_folds(fold_scores, f"{model} on {task_name}")
    return ScoreMatrix.from_cells(matrix.protocol, cells, matrix.models, columns_by_task)


def _missing_folds(
    task: TaskName, tasks: Sequence[str], requested_tasks: Collection[str] | None
) -> list[int]:
    """Return the folds that a study asks for and that have no scores; where it is not known, all are asked for."""
    if task.fold is None:
        return []
    fold_count = task.fold[1]
    missing = []
    for fold in range(1, fold_count + 1):
        fold_name = f"{task.whole}#{fold}/{fold_count}"
        if fold_name not in tasks and (requested_tasks is None or fold_name in requested_tasks):
            missing.append(fold)
    return missing


def _average_folds(folds: Sequence[Score], cell_name: str) -> Score:
    """Return the folds of a task taken as one: the mean over their documents together."""
    first_fold = folds[0]
    for fold in folds[1:]:  # which test different documents, and are alike in all else
        with_same_data = replace(fold, origin=replace(fold.origin, data=first_fold.origin.data))
        differences = find_differences(first_fold, with_same_data)
        if differences:
            listed_differences = "; different ".join(map(str, differences))
            message = f"the folds of {cell_name} cannot be joined: different {listed_differences}"
            raise UnlikeError(message, hint="choose one --study")
    if len(folds) == 1:
        return first_fold
    total_examples = sum(fold.n for fold in folds)
    weights = np.array([fold.n for fold in folds]) / (total_examples or np.nan)
    values, errors = np.array([(fold.value, fold.stderr) for fold in folds]).T
    seeds = first_fold.seeds
    if seeds:
        has_equal_seed_counts = len({len(fold.seeds) for fold in folds}) == 1
        seed_scores = [fold.seeds for fold in folds]
        seeds = tuple((weights @ np.array(seed_scores)).tolist()) if has_equal_seed_counts else ()
    origin = first_fold.origin
    if all(fold.origin.data is not None for fold in folds):
        fold_fingerprints = "\n".join(str(fold.origin.data) for fold in folds)
        origin = replace(origin, data=hashlib.sha256(fold_fingerprints.encode()).hexdigest())
    return replace(
        first_fold,
        value=float(weights @ values),
        stderr=float(np.linalg.norm(weights * errors)),
        n=total_examples,
        origin=origin,
        seeds=seeds,
    )
