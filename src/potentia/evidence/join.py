"""Like with like: sources, studies and folds are joined only where ``comparable`` finds no difference."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from potentia.errors import InputError
from potentia.evidence.evidence import Evidence
from potentia.facts import models as known_models
from potentia.store import Store
from potentia.values.metric import UNKNOWN, Difference, Measured, Metric, Origin, comparable
from potentia.values.protocol import Protocol, TaskName, in_order
from potentia.values.scores import Objects, ScoreMatrix


class UnlikeError(InputError):
    """Scores that cannot be compared, or that two sources have."""


@dataclass(frozen=True, slots=True)
class Cell:
    """What the cells of a task have in common."""

    metric: Metric
    origin: Origin


def refuse_unlike(
    cells: Iterable[tuple[str, str, str, Measured]],
    *,
    recipe: Callable[[str, str, str], Mapping[str, Any]],
    hint: str,
    where: str | None = None,
) -> None:
    """Refuse cells (source, protocol, task, what they are) that cannot be compared, with the differences named.

    Data must agree across protocols, too: a gain by tuning compares two of them. ``recipe`` tells the settings of a
    fine-tuning, to name those that differ; ``{source}`` in the hint is the later of the two sources.
    """
    seen: dict[tuple[str, str], tuple[str, Measured]] = {}
    for source, protocol, task, cell in cells:
        data = Cell(replace(cell.metric, name="", scale=None), Origin(data=cell.origin.data))
        for place, what in (((protocol, task), cell), (("", task), data)):
            first, known = seen.setdefault(place, (source, what))
            different = comparable(known, what)
            if any(difference.what == "recipe" for difference in different):
                settings = [_flat(recipe(name, protocol, task)) for name in (first, source)]
                different = tuple(d for d in different if d.what != "recipe") + _settings(*settings)
            if different:
                raise UnlikeError(
                    f"the scores of {task} in {first} and {source} cannot be compared: different "
                    + "; different ".join(map(str, different)),
                    where=where,
                    hint=hint.format(source=source),
                )
            seen[place] = first, Cell(known.metric.merged(what.metric), _merged(known.origin, what.origin))


def recipe_of(store: Store, studies: str | Sequence[str], protocol: str, task: str) -> dict[str, Any]:
    """Return how the cells of a task were tuned."""
    cells = store.cells(study=studies, task=task, protocol=protocol, limit=1)
    return {name: cells[0].manifest.get(name) for name in ("tuning", "selection", "adjust")} if cells else {}


def _settings(one: Mapping[str, Any], two: Mapping[str, Any]) -> tuple[Difference, ...]:
    """Return the settings that differ; the recipe as a whole where they are not told."""
    found = [Difference(name.removeprefix("tuning."), str(one.get(name)), str(two.get(name)))
             for name in {**one, **two} if one.get(name) != two.get(name)]  # fmt: skip
    return tuple(found) or (Difference("recipe", "one", "another"),)


def _flat(settings: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in settings.items():
        found |= _flat(value, f"{before}{name}.") if isinstance(value, Mapping) else {before + name: value}
    return found


def _merged(one: Origin, two: Origin) -> Origin:
    """Return what is known of either origin, of what must agree."""
    known = {name: getattr(one, name) if getattr(one, name) is not None else getattr(two, name)
             for name in ("data", "recipe", "shots")}  # fmt: skip
    return Origin(**known)


def joined(parts: Sequence[Evidence]) -> Evidence:
    """Join several sources, protocol by protocol; what cannot be compared, and a cell that two have, is refused."""
    views = {part.source: part.stores for part in parts}

    def recipe(source: str, protocol: str, task: str) -> dict[str, Any]:
        for view in views[source]:
            with view.open() as store:
                return recipe_of(store, view.studies, protocol, task)
        return {}

    refuse_unlike(
        (
            (part.source, protocol, task, cell)
            for part in parts
            for protocol, matrix in part.scores.items()
            for task, cell in _cells(matrix)
        ),
        recipe=recipe,
        hint="show them apart, with --apart: scores compare where data, metric and fine-tuning are the same",
    )
    merged: dict[Protocol, ScoreMatrix] = {}
    for part in parts:
        for protocol, matrix in part.scores.items():
            merged[protocol] = _union(merged[protocol], matrix) if protocol in merged else matrix
    protocols = in_order(merged)
    names = list(dict.fromkeys(part.source for part in parts))
    return Evidence(
        source=" + ".join(names),
        title=" + ".join(dict.fromkeys(part.title for part in parts)),
        scores={p: merged[p] for p in protocols},
        facts=known_models(),
        studies=tuple(record for part in parts for record in part.studies),
        specs=tuple({row.name: row for part in reversed(parts) for row in part.specs}.values()),
        notes=tuple(f"{part.source}: {note}" for part in parts for note in part.notes),
        reading=next((part.reading for part in parts if part.reading is not None), None),
        stores=tuple(view for part in parts for view in part.stores),
        without_items={p: frozenset(t for part in parts for t in part.without_items.get(p, ())) for p in protocols},
        items_read={p: _items([part.items_read[p] for part in parts if p in part.items_read]) for p in protocols},
    )


def _items(parts: Sequence[Mapping[str, Mapping[str, Mapping[int, float]]]]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for part in parts:
        for task, by in part.items():
            found.setdefault(task, {}).update(by)
    return found


def _cells(matrix: ScoreMatrix) -> list[tuple[str, Cell]]:
    """Return what the cells of each task have in common; a matrix holds none that are unlike."""
    found = []
    for j, task in enumerate(matrix.tasks):
        origin = UNKNOWN
        for other in {o for o in (matrix.origins[:, j] if matrix.origins is not None else ()) if o is not None}:
            origin = _merged(origin, other)
        found.append((task, Cell(matrix.metrics[j], origin)))
    return found


def _union(one: ScoreMatrix, two: ScoreMatrix) -> ScoreMatrix:
    """Lay two matrices of like cells over each other; none may have a score that the other has."""
    models, tasks = tuple(dict.fromkeys(one.models + two.models)), tuple(dict.fromkeys(one.tasks + two.tasks))
    row, column = {m: i for i, m in enumerate(models)}, {t: j for j, t in enumerate(tasks)}
    grids = [np.ix_([row[m] for m in part.models], [column[t] for t in part.tasks]) for part in (one, two)]
    both = np.zeros((len(models), len(tasks)), dtype=np.intp)
    for part, grid in zip((one, two), grids, strict=True):
        both[grid] += np.isfinite(part.values)
    if (both > 1).any():
        i, j = np.argwhere(both > 1)[0]
        raise UnlikeError(
            f"two sources have a {one.protocol} score of {models[i]} on {tasks[j]}",
            hint="leave one of the sources out, or add --apart",
        )

    def laid(name: str, blank: Any) -> Any:
        table = np.full(both.shape, blank, dtype=object if blank is None else np.float64)
        for part, grid in zip((one, two), grids, strict=True):
            own = getattr(part, name)
            if own is not None:
                table[grid] = np.where(np.isfinite(part.values), own, table[grid])
        return table

    metrics: dict[str, Metric] = dict(zip(one.tasks, one.metrics, strict=True))
    for task, metric in zip(two.tasks, two.metrics, strict=True):
        metrics[task] = metrics.get(task, metric).merged(metric)
    values, stderr, n = (laid(name, np.nan) for name in ("values", "stderr", "n"))
    return ScoreMatrix(
        one.protocol, models, tasks, values, stderr, n, tuple(metrics[t] for t in tasks),
        laid("origins", None), laid("seeds", None),
    )  # fmt: skip


def unfolded(matrix: ScoreMatrix, notes: list[str]) -> ScoreMatrix:
    """Join the folds of a task (``name#1/5`` …) into one column, the mean over all documents, where none is missing.

    Of a task with missing folds each stands alone, and a note says which are missing.
    """
    groups: dict[str, list[int]] = {}
    for j, task in enumerate(map(TaskName, matrix.tasks)):
        missing = _missing_folds(task, matrix.tasks)
        if missing:
            told = ", ".join(map(str, missing))
            notes.append(f"{task.whole}: {matrix.protocol.label} scores of fold {told} are missing; folds stand alone")
        groups.setdefault(task if missing else task.whole, []).append(j)
    if len(groups) == len(matrix.tasks) and list(groups) == list(matrix.tasks):
        return matrix
    columns = [_fold_mean(matrix, places) for places in groups.values()]
    values, stderr, n, origins, seeds = (np.stack([column[k] for column in columns], axis=1) for k in range(5))
    metrics = tuple(matrix.metrics[places[0]] for places in groups.values())
    return replace(
        matrix, tasks=tuple(groups), values=values, stderr=stderr, n=n, metrics=metrics, origins=origins, seeds=seeds
    )


def _missing_folds(task: TaskName, tasks: Sequence[str]) -> list[int]:
    if task.fold is None:
        return []
    count = task.fold[1]
    return [k for k in range(1, count + 1) if f"{task.whole}#{k}/{count}" not in tasks]


def _fold_mean(matrix: ScoreMatrix, places: list[int]) -> tuple[Any, Any, Any, Objects, Objects]:
    """Return values, standard errors, sizes, origins and seeds of the folds of a task taken as one."""
    n, values, stderr = (part[:, places] for part in (matrix.n, matrix.values, matrix.stderr))
    origins, seeds = np.full(len(matrix.models), None, dtype=object), np.full(len(matrix.models), None, dtype=object)
    weights = n / n.sum(axis=1, keepdims=True) if len(places) > 1 else np.ones_like(n)
    for i in range(len(matrix.models)):
        parts = [matrix.score(i, j) for j in places]
        origins[i] = _together([part.origin for part in parts])
        if parts[0].seeds and len({len(part.seeds) for part in parts}) == 1:
            seeds[i] = tuple(float(v) for v in weights[i] @ np.array([part.seeds for part in parts]))
    if len(places) == 1:
        return values[:, 0], stderr[:, 0], n[:, 0], origins, seeds
    error = np.sqrt((weights**2 * stderr**2).sum(axis=1))
    return (weights * values).sum(axis=1), error, n.sum(axis=1), origins, seeds


def _together(origins: Sequence[Origin]) -> Origin:
    """Return the origin of folds taken as one: their documents together."""
    data = [origin.data for origin in origins]
    if len(data) == 1 or None in data:
        return origins[0]
    return replace(origins[0], data=hashlib.sha256("\n".join(map(str, data)).encode()).hexdigest())
