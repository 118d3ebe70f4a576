"""The score matrix of the page: every protocol over all models and tasks, with facts, gaps and the reasons for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from potentia.analysis.rankings import NAMES
from potentia.show.answer import Answer
from potentia.show.source import ReportData
from potentia.values.findings import short_names
from potentia.values.protocol import Protocol, in_order


def grid(data: ReportData, told: Answer) -> dict[str, Any]:
    """Return models, tasks and one block of values per protocol; ranked models first, in the order of the answer."""
    models, tasks = names_of(data)
    place = {s.model: k for k, s in enumerate(told.standings)}
    models.sort(key=lambda name: (place.get(name, len(place)), name.casefold()))
    known = data.evidence.background
    up = {
        task: bool(direction)
        for matrix in data.evidence.scores.values()
        for task, direction in zip(matrix.tasks, matrix.higher_is_better, strict=True)
    }
    tasks.sort(key=lambda task: not up.get(task, True))  # texts to predict come after the tasks
    ranks = {s.model: [round(s.rank, 1), round(s.low), round(s.high)] for s in told.standings}
    if data.training is not None and data.training.whole:  # runs, each in the order of its steps
        course = {model: k for k, model in enumerate(m for run in data.training.runs for m in run.models)}
        models.sort(key=lambda name: course.get(name, len(course)))
        ranks = {}
    reasons = {(f.model, f.task, f.protocol): f.reason for f in data.failures}
    protocols = in_order({*data.evidence.scores, *(f.protocol for f in data.failures)})
    return {
        "main": data.main,
        "method": NAMES.get(told.method, told.method),
        "protocols": [{"name": name, "label": name.label} for name in protocols],
        "models": [
            {
                "name": name,
                "short": short,
                "family": known.families.get(name, ""),
                "kind": known.kinds.get(name, ""),
                "billions": known.billions.get(name),
                "rank": ranks.get(name),
            }
            for name, short in zip(models, short_names(models), strict=True)
        ],
        "tasks": [{"name": t, "category": known.categories.get(t, ""), "up": up.get(t, True)} for t in tasks],
        "scores": {name: _block(data, name, models, tasks) for name in protocols},
        "details": has_details(data),
        "failed": [[m, t, p, reason] for (m, t, p), reason in reasons.items()],
    }


def has_details(data: ReportData) -> bool:
    """Say whether some cell has more to show than its score: lanes, items, or a manifest."""
    return bool(data.lanes) or bool(data.items) or any(cell.manifest.get("task") for cell in data.cells)


def cell_index(data: ReportData) -> dict[str, Any]:
    """Return which cells there are: for every protocol and model a row of noughts and ones over the tasks."""
    models, tasks = names_of(data)
    there = {(c.protocol, c.model, c.task) for c in data.cells}
    protocols = in_order({c.protocol for c in data.cells})
    return {
        "models": models,
        "tasks": tasks,
        "protocols": [{"name": p, "label": p.label} for p in protocols],
        "there": {p: ["".join("01"[(p, m, t) in there] for t in tasks) for m in models] for p in protocols},
        "main": data.main,
    }


def names_of(data: ReportData) -> tuple[list[str], list[str]]:
    """Return every model and task that has a score or a failure, tasks in the order of the matrices."""
    models = dict.fromkeys(m for matrix in data.evidence.scores.values() for m in matrix.models)
    tasks = dict.fromkeys(t for matrix in data.evidence.scores.values() for t in matrix.tasks)
    for failure in data.failures:
        models.setdefault(failure.model)
        tasks.setdefault(failure.task)
    return list(models), list(tasks)


def _block(data: ReportData, protocol: Protocol, models: Sequence[str], tasks: Sequence[str]) -> dict[str, Any]:
    matrix = data.evidence.scores.get(protocol)
    if matrix is None:
        empty: list[list[None]] = [[None] * len(tasks) for _ in models]
        return {"values": empty, "stderr": empty}
    row, column = ({name: k for k, name in enumerate(names)} for names in (matrix.models, matrix.tasks))
    blocks: dict[str, Any] = {}
    for name in ("values", "stderr"):
        part = getattr(matrix, name)
        blocks[name] = [
            [_rounded(part[row[m], column[t]]) if m in row and t in column else None for t in tasks] for m in models
        ]
    return blocks


def _rounded(value: float) -> float | None:
    return round(float(value), 5) if np.isfinite(value) else None
