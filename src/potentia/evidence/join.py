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
from potentia.values.protocol import TaskName, in_order
from potentia.values.scores import Outcomes, Score, ScoreMatrix


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
    sources: tuple[str, str] | None = None  # the first two that are unlike
    tasks: dict[str, None] = {}  # in which they are
    kinds: dict[
        str, tuple[str, str, Difference]
    ] = {}  # of each kind of difference the first: protocol, task, itself
    for source, protocol, task, cell in cells:
        data = Cell(replace(cell.metric, name="", scale=None), Origin(data=cell.origin.data))
        for place, what in (((protocol, task), cell), (("", task), data)):
            first, known = seen.setdefault(place, (source, what))
            different = comparable(known, what)
            if not different:
                seen[place] = (
                    first,
                    Cell(known.metric.merged(what.metric), _merged(known.origin, what.origin)),
                )
            elif sources in (None, (first, source)):
                sources, tasks[task] = (first, source), None
                kinds = {
                    difference.what: (protocol, task, difference) for difference in different
                } | kinds
    if sources is None:
        return
    found = [difference for what, (*_, difference) in kinds.items() if what != "recipe"]
    if "recipe" in kinds:
        found += _settings(*(_flat(recipe(source, *kinds["recipe"][:2])) for source in sources))
    task, *others = tasks
    more = f" and {len(others)} other task{'s' if others[1:] else ''}" if others else ""
    told = f"the scores of {task}{more} in {' and '.join(sources)} cannot be compared"
    message = f"{told}: different {'; different '.join(map(str, found))}"
    raise UnlikeError(message, where=where, hint=hint.format(source=sources[1]))


def recipe_of(
    store: Store, studies: str | Sequence[str], protocol: str, task: str
) -> dict[str, Any]:
    """Return how the cells of a task were tuned."""
    cells = store.cells(study=studies, task=task, protocol=protocol, limit=1)
    return cells[0].provenance.recipe if cells else {}


def _settings(one: Mapping[str, Any], two: Mapping[str, Any]) -> tuple[Difference, ...]:
    """Return the settings that differ; the recipe as a whole where they are not told."""
    found = [
        Difference(name.removeprefix("tuning."), str(one.get(name)), str(two.get(name)))
        for name in {**one, **two}
        if one.get(name) != two.get(name)
    ]
    return tuple(found) or (Difference("recipe", "one", "another"),)


def _flat(settings: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in settings.items():
        found |= (
            _flat(value, f"{before}{name}.")
            if isinstance(value, Mapping)
            else {before + name: value}
        )
    return found


def _merged(one: Origin, two: Origin) -> Origin:
    """Return what is known of either origin, of what must agree."""
    shots = one.shots if one.shots is not None else two.shots
    return Origin(one.data or two.data, one.recipe or two.recipe, shots)


def joined(parts: Sequence[Evidence]) -> Evidence:
    """Join several sources, protocol by protocol; what cannot be compared, and a cell that two have, is refused."""
    matrices = [
        (part.source, protocol, matrix)
        for part in parts
        for protocol, matrix in part.scores.items()
    ]
    by_name = {part.source: part for part in parts}
    refuse_unlike(
        (
            (source, protocol, task, cell)
            for source, protocol, matrix in matrices
            for task, cell in _cells(matrix)
        ),
        recipe=lambda source, *cell: next(
            (recipe_of(*store, *cell) for store in by_name[source]._opened()), {}
        ),
        hint="show them apart, with --apart: scores compare where data, metric and fine-tuning are the same",
    )
    protocols = in_order({protocol for _, protocol, _ in matrices})
    return Evidence(
        source=" + ".join(dict.fromkeys(part.source for part in parts)),
        title=" + ".join(dict.fromkeys(part.title for part in parts)),
        scores={
            p: _union([matrix for _, protocol, matrix in matrices if protocol == p])
            for p in protocols
        },
        facts=known_models(),
        studies=_every(parts, "studies"),
        notes=tuple(f"{part.source}: {note}" for part in parts for note in part.notes),
        table_layout=next(
            (part.table_layout for part in parts if part.table_layout is not None), None
        ),
        stores=_every(parts, "stores"),
        without_items={
            p: frozenset().union(*(part.without_items.get(p, ()) for part in parts))
            for p in protocols
        },
        items_read={p: _items([part.items_read.get(p, {}) for part in parts]) for p in protocols},
    )


def _every(parts: Sequence[Evidence], name: str) -> tuple[Any, ...]:
    return tuple(value for part in parts for value in getattr(part, name))


def _items(parts: Sequence[Outcomes]) -> dict[str, dict[str, Any]]:
    tasks = dict.fromkeys(task for part in parts for task in part)
    return {
        task: {model: by for part in parts for model, by in part.get(task, {}).items()}
        for task in tasks
    }


def _cells(matrix: ScoreMatrix) -> list[tuple[str, Cell]]:
    """Return what the cells of each task have in common; a matrix holds none that are unlike."""
    found = []
    for j, task in enumerate(matrix.tasks):
        origin = UNKNOWN
        for other in {
            o for o in (matrix.origins[:, j] if matrix.origins is not None else ()) if o is not None
        }:
            origin = _merged(origin, other)
        found.append((task, Cell(matrix.metrics[j], origin)))
    return found


def _union(matrices: Sequence[ScoreMatrix]) -> ScoreMatrix:
    """Lay matrices of like cells over each other; none may have a score that another has."""
    if len(matrices) == 1:
        return matrices[0]
    protocol, cells = matrices[0].protocol, dict[tuple[str, str], Score]()
    for matrix in matrices:
        for model, task, score in matrix.scores():
            if (model, task) in cells:
                raise UnlikeError(
                    f"two sources have a {protocol} score of {model} on {task}",
                    hint="leave one of the sources out, or add --apart",
                )
            cells[model, task] = score
    models, tasks = (
        [name for m in matrices for name in getattr(m, names)] for names in ("models", "tasks")
    )
    return ScoreMatrix.of_cells(protocol, cells, models, tasks)


def unfolded(matrix: ScoreMatrix, notes: list[str]) -> ScoreMatrix:
    """Join the folds of a task (``name#1/5`` …) into one column, the mean over all documents, where none is missing.

    Of a task with missing folds each stands alone, and a note says which are missing.
    """
    groups: dict[str, list[int]] = {}
    for j, task in enumerate(map(TaskName, matrix.tasks)):
        missing = _missing_folds(task, matrix.tasks)
        if missing:
            told = ", ".join(map(str, missing))
            notes.append(
                f"{task.whole}: {matrix.protocol.label} scores of fold {told} are missing; folds stand alone"
            )
        groups.setdefault(task if missing else task.whole, []).append(j)
    if list(groups) == list(matrix.tasks):
        return matrix
    cells = {
        (model, name): _fold_mean([matrix.score(i, j) for j in places], f"{model} on {name}")
        for name, places in groups.items()
        for i, model in enumerate(matrix.models)
        if np.isfinite(matrix.values[i, places]).all()
    }
    return ScoreMatrix.of_cells(matrix.protocol, cells, matrix.models, groups)


def _missing_folds(task: TaskName, tasks: Sequence[str]) -> list[int]:
    if task.fold is None:
        return []
    count = task.fold[1]
    return [k for k in range(1, count + 1) if f"{task.whole}#{k}/{count}" not in tasks]


def _fold_mean(folds: Sequence[Score], what: str) -> Score:
    """Return the folds of a task taken as one: the mean over their documents together."""
    for fold in folds[1:]:  # which test different documents, and are alike in all else
        alike = replace(fold, origin=replace(fold.origin, data=folds[0].origin.data))
        if different := comparable(folds[0], alike):
            told = "; different ".join(map(str, different))
            raise UnlikeError(
                f"the folds of {what} cannot be joined: different {told}", hint="choose one --study"
            )
    if len(folds) == 1:
        return folds[0]
    n, first = sum(fold.n for fold in folds), folds[0]
    weights = np.array([fold.n for fold in folds]) / (n or np.nan)
    value, error = np.array([(fold.value, fold.stderr) for fold in folds]).T
    seeds, origin = first.seeds, first.origin
    if seeds:
        same = len({len(fold.seeds) for fold in folds}) == 1
        seeds = tuple((weights @ np.array([fold.seeds for fold in folds])).tolist()) if same else ()
    if all(fold.origin.data is not None for fold in folds):
        data = "\n".join(str(fold.origin.data) for fold in folds)
        origin = replace(origin, data=hashlib.sha256(data.encode()).hexdigest())
    stderr = float(np.linalg.norm(weights * error))
    return replace(
        first, value=float(weights @ value), stderr=stderr, n=n, origin=origin, seeds=seeds
    )
