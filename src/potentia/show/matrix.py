"""The score matrix of the page: a table for every protocol and for every gain, with gaps and the reasons for them.

The completed matrix, where cells that are not measured yet are predicted, is the same table with those cells hatched.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlencode

import numpy as np
from markupsafe import Markup

from potentia.analysis.planning import Completion
from potentia.analysis.rankings import NAMES
from potentia.show.page import named
from potentia.values.findings import short_names
from potentia.values.protocol import Protocol, in_order

if TYPE_CHECKING:
    from potentia.show.answer import Answer
    from potentia.show.source import ReportData

Place = tuple[str, str]  # model, task
MOST_CELLS = 12_000  # scores of one table of the page; the best models come first


class Shown(NamedTuple):
    """What one cell shows: a measured score with its error, or a predicted one with its interval."""

    value: float
    stderr: float = math.nan
    interval: tuple[float, float] | None = None


class View(NamedTuple):
    """One table of the matrix."""

    id: str
    label: str
    html: Any


@dataclass(frozen=True)
class Matrix:
    """Models and tasks in the order of the page, and what is known of the models."""

    models: tuple[str, ...]
    tasks: tuple[str, ...]
    ranks: dict[str, tuple[float, float, float]]
    method: str
    up: dict[str, bool]
    facts: dict[str, dict[str, str]]  # family and kind of a model
    failed: dict[tuple[str, str, str], str]  # model, task, protocol → reason
    address: Callable[[str, str, str], str] | None  # of a cell's details


def score_views(data: ReportData, told: Answer, live: str) -> list[View]:
    """Return the scores by every protocol, the one that ranks first, and the gains over the first."""
    matrix = _matrix(data, told, live)
    protocols = in_order({*data.evidence.scores, *(f.protocol for f in data.failures)})
    cells = {p: _cells(data, p) for p in protocols}
    first = protocols[0]
    order = sorted(protocols, key=lambda p: p != data.main)
    views = [View(p, p.label, _table(matrix, p, cells[p])) for p in order]
    for p in protocols[1:]:
        both = ((at, cells[first][at], cells[p][at]) for at in cells[p].keys() & cells[first].keys())
        gains = {at: Shown(b.value - a.value, math.hypot(a.stderr, b.stderr)) for at, a, b in both}
        label = f"gain, {p.label}" if len(protocols) > 2 else "gain"
        views.append(View(f"gain-{p}", label, _table(matrix, p, gains, gain=True)))
    return views


def completed_view(data: ReportData, told: Answer, done: Completion, live: str) -> View:
    """Return the matrix that the study will have: measured cells, and predicted ones with their intervals."""
    order = [int(i) for i in np.argsort(done.rank, kind="stable")][: max(20, MOST_CELLS // len(done.tasks))]
    matrix = replace(
        _matrix(data, told, live),
        models=tuple(done.models[i] for i in order),
        tasks=done.tasks,
        ranks={done.models[i]: (done.rank[i], done.rank_low[i], done.rank_high[i]) for i in order},
        method="mean z score over tasks, predicted",
        up=dict(zip(done.tasks, done.higher_is_better, strict=True)),
    )
    measured = _cells(data, done.protocol)
    cells = {}
    for i, model in enumerate(done.models):
        for j, task in enumerate(done.tasks):
            guess = Shown(float(done.mean[i, j]), interval=(float(done.low[i, j]), float(done.high[i, j])))
            cells[model, task] = measured.get((model, task), guess) if done.measured[i, j] else guess
    return View("completed", done.protocol.label, _table(matrix, done.protocol, cells))


def has_details(data: ReportData) -> bool:
    """Say whether some cell has more to show than its score: lanes, items, or a manifest."""
    return bool(data.items) or any(cell.manifest.get("task") for cell in data.cells)


def cell_index(data: ReportData, models: Sequence[str]) -> dict[str, Any]:
    """Return which cells there are: for every protocol and model a row of noughts and ones over the tasks."""
    _, tasks = names_of(data)
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


def shown_models(data: ReportData, told: Answer) -> list[str]:
    """Return the models of the page: ranked ones first, of checkpoints in the order of their steps; no more than fit.

    A page of thousands of models would open in no browser; what is left out is told, and an export has it.
    """
    models, tasks = names_of(data)
    place = {s.model: k for k, s in enumerate(told.standings)}
    models.sort(key=lambda name: (place.get(name, len(place)), name.casefold()))
    if data.training is not None and data.training.whole:
        course = {model: k for k, model in enumerate(m for run in data.training.runs for m in run.models)}
        models.sort(key=lambda name: course.get(name, len(course)))
    return models[: max(20, MOST_CELLS // max(1, len(tasks)))]


def _matrix(data: ReportData, told: Answer, live: str) -> Matrix:
    models, (_, tasks) = shown_models(data, told), names_of(data)
    whole = data.training is not None and data.training.whole
    ranks = {} if whole else {s.model: (s.rank, *s.reach) for s in told.standings}
    up = {
        task: bool(direction)
        for matrix in data.evidence.scores.values()
        for task, direction in zip(matrix.tasks, matrix.higher_is_better, strict=True)
    }
    texts = {t for matrix in data.evidence.scores.values() for t in matrix.corpora().tasks}
    tasks.sort(key=lambda task: task in texts)  # texts to predict come after the tasks
    known = data.evidence.background
    facts = {m: {"family": known.families.get(m, ""), "kind": known.kinds.get(m, "")} for m in models}
    failed = {(f.model, f.task, f.protocol): f.reason for f in data.failures}
    address = partial(_address, live) if has_details(data) else None
    method = NAMES.get(told.method, told.method)
    return Matrix(tuple(models), tuple(tasks), ranks, method, up, facts, failed, address)


def _address(live: str, model: str, task: str, protocol: str) -> str:
    """Return where the details of a cell are: in the page, or on the board."""
    if live:
        return f"{live}/cell?{urlencode({'model': model, 'task': task, 'protocol': protocol})}"
    return "#cell=" + "/".join(quote(part, safe="") for part in (model, task, protocol))


def _cells(data: ReportData, protocol: Protocol) -> dict[Place, Shown]:
    matrix = data.evidence.scores.get(protocol)
    if matrix is None:
        return {}
    return {
        (matrix.models[i], matrix.tasks[j]): Shown(float(matrix.values[i, j]), float(matrix.stderr[i, j]))
        for i, j in zip(*np.nonzero(np.isfinite(matrix.values)), strict=True)
    }


def _table(matrix: Matrix, protocol: Protocol, cells: dict[Place, Shown], *, gain: bool = False) -> Any:
    """Write the table; a task that no model has under this protocol is no column of dots."""
    known = {t for _, t in cells} | {t for _, t, p in matrix.failed if p == protocol}
    tasks = [t for t in matrix.tasks if t in known]
    spread: dict[str, list[float]] = {task: [] for task in tasks}
    for (_, task), shown in sorted(cells.items(), key=lambda cell: cell[1].value):
        spread[task].append(shown.value)
    head = "<th scope=col class=model>model</th>"
    if matrix.ranks:
        head += f'<th scope=col class=rank title="by the {escape(matrix.method)}, with its 95 % interval">rank</th>'
    head += "".join(
        f"<th scope=col class=task{' data-down' if matrix.up.get(t, True) else ''}><span>{escape(t)}</span></th>"
        for t in tasks
    )
    rows = []
    for model, short in zip(matrix.models, short_names(matrix.models), strict=True):
        facts = "".join(f' data-{k}="{escape(v)}"' for k, v in matrix.facts.get(model, {}).items() if v)
        line = f'<th scope=row class=model title="{escape(model)}">{named(short)}</th>'
        if matrix.ranks:
            line += _rank(matrix.ranks.get(model))
        for task in tasks:
            reason = "" if gain else matrix.failed.get((model, task, protocol), "")
            cell = cells.get((model, task))
            if cell is None:
                line += _gap(reason)
                continue
            good, share = _shade(cell.value, spread[task], matrix.up.get(task, True), gain=gain)
            linked = matrix.address is not None and not gain and cell.interval is None
            link = matrix.address(model, task, protocol) if matrix.address and linked else ""
            line += _score(cell, reason, "" if good else " worse", share, link, gain=gain)
        rows.append(f'<tr data-name="{escape(model)}"{facts}>{line}</tr>')
    return Markup(
        f'<table class="scores" data-protocol="{escape(protocol)}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
    )


def _rank(rank: tuple[float, float, float] | None) -> str:
    if rank is None:
        return "<td class=rank>–</td>"
    ends = f"<small>{rank[1]:.0f}–{rank[2]:.0f}</small>" if math.isfinite(rank[1] + rank[2]) else ""
    return f"<td class=rank data-v={rank[0]:g}><b>{rank[0]:.3g}</b>{ends}</td>"


def _gap(reason: str) -> str:
    if not reason:
        return "<td class='score missing' title='no score'>·<span class=sr>no score</span></td>"
    told = escape(f"failed: {reason}")
    return f'<td class="score failed"><span title="{told}">✕</span><span class=sr>{told}</span></td>'


def _shade(value: float, known: Sequence[float], up: bool, *, gain: bool) -> tuple[bool, float]:
    """Return whether it is good, and how strong its colour is.

    Scores go by their place among the models of the task, and steeper at the top: there the models differ least and
    matter most. Gains go by their size.
    """
    if gain:
        reach = max(abs(known[0]), abs(known[-1])) or 1.0
        return (value > 0) == up or value == 0, abs(value) / reach
    place = float(np.searchsorted(known, value)) / (len(known) - 1) if len(known) > 1 else 0.5
    return True, (place if up else 1 - place) ** 1.7


def _score(cell: Shown, reason: str, kind: str, share: float, link: str, *, gain: bool) -> str:
    digits = 1 if abs(cell.value) >= 100 else 3
    text = f"{cell.value:{'+' if gain else ''}.{digits}f}"
    style = f'style="--share:{share:.2f}" data-v="{cell.value:.6g}"'
    if cell.interval is not None:
        low, high = (f"{x:.{min(digits, 2)}f}" for x in cell.interval)
        failed = f'<span class=cross title="{escape(reason)}">✕ </span>' if reason else ""
        return (
            f'<td class="score predicted" {style} data-low="{cell.interval[0]:.6g}" data-high="{cell.interval[1]:.6g}" '
            f'title="predicted, 95 % interval {low} to {high}">{failed}<span class=sr>predicted </span>'
            f"{cell.value:.{min(digits, 2)}f}<small>{low}–{high}</small></td>"
        )
    error = f' data-e="{cell.stderr:.6g}"' if math.isfinite(cell.stderr) else ""
    half = f"<small>±{1.96 * cell.stderr:.{digits}f}</small>" if error else ""
    inside = f'<a href="{escape(link)}">{text}</a>' if link else text
    return f'<td class="score{kind}" {style}{error}>{inside}{half}</td>'
