"""What is not measured, marked as such: the expected final ranking, and the matrix with its predicted cells apart.

Predictions never enter a table of scores. They have a block of their own in the answer (who may be best once all is
measured) and a section with the completed matrix, where every predicted cell is hatched and carries its interval.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from potentia.analysis.planning import Completion
from potentia.show.ladder import Axis, Mark, rank_axis
from potentia.show.page import render
from potentia.show.source import ReportData
from potentia.show.wording import percent
from potentia.values.findings import short_names

TOP = 3  # places that the chance to be among the first is told for


@dataclass(frozen=True)
class Chance:
    """One model in the expected final ranking."""

    model: str
    name: str
    rank: float
    low: float
    high: float
    place: Mark  # on the axis of ranks
    best: float  # P(best)
    top: float  # P(rank ≤ TOP)
    cells: int  # measured


@dataclass(frozen=True)
class Outlook:
    """The expected final ranking: its axis, and the models from best to worst."""

    ranks: Axis
    chances: tuple[Chance, ...]
    top: int
    tasks: int
    headline: str
    basis: str  # what it rests on


def make_outlook(done: Completion) -> Outlook:
    """Lay the completion out, best first."""
    axis = rank_axis(len(done.models))
    top = min(TOP, len(done.models))
    order = [int(i) for i in np.argsort(done.rank, kind="stable")]
    names = short_names([done.models[i] for i in order])
    in_top, cells = done.p_top(top), done.measured.sum(axis=1)
    chances = tuple(
        Chance(
            model=done.models[i],
            name=name,
            rank=float(done.rank[i]),
            low=float(done.rank_low[i]),
            high=float(done.rank_high[i]),
            place=Mark(*(axis.at(float(x[i])) for x in (done.rank, done.rank_low, done.rank_high))),
            best=float(done.p_best[i]),
            top=float(in_top[i]),
            cells=int(cells[i]),
        )
        for i, name in zip(order, names, strict=True)
    )
    return Outlook(axis, chances, top, len(done.tasks), _headline(chances), _basis(done))


def outlook_part(done: Completion, cells: str) -> str:
    """Return the block of the expected final ranking; ``cells`` is the address of the completed matrix."""
    return render("outlook.html", outlook=make_outlook(done), predicted=cells)


def _headline(chances: tuple[Chance, ...]) -> str:
    if len(chances) < 2:
        return f"There is one model, {chances[0].name}: nothing to rank, only its scores are predicted."
    first = max(chances, key=lambda c: c.best)
    others = sorted((c for c in chances if c is not first and c.best >= 0.1), key=lambda c: -c.best)
    told = f"Once every cell is measured, {first.name} is the best model with probability {percent(first.best)}"
    if others:
        told += "; " + ", ".join(f"{c.name} {percent(c.best)}" for c in others[:3])
    return told + "."


def _basis(done: Completion) -> str:
    measured, whole = int(done.measured.sum()), done.measured.size
    a = done.agreement
    told = f"Predicted from {measured:,} of {whole:,} tuned cells, scores before tuning and facts of the models"
    told += f", and {done.history:,} rows of history" if done.history else ""
    if len(done.models) > 1:
        told += f"; expected agreement with the finished ranking τ {a.value:.2f} ({a.low:.2f} to {a.high:.2f})"
    return told + "."


def completed_grid(data: ReportData, done: Completion, models: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the completed matrix: values with what kind each is; ``models`` holds what the score matrix says of them.

    A predicted cell has an interval and no standard error; a measured one has a standard error and no interval.
    """
    order = [int(i) for i in np.argsort(done.rank, kind="stable")]
    matrix = data.evidence.scores.get(done.protocol)
    rows = {m: i for i, m in enumerate(matrix.models)} if matrix is not None else {}
    columns = {t: j for j, t in enumerate(matrix.tasks)} if matrix is not None else {}
    names = short_names([done.models[i] for i in order])
    known = data.evidence.background

    def block(measured: Any, predicted: Any) -> list[list[float | None]]:
        return [
            [_rounded(measured(i, j) if done.measured[i, j] else predicted(i, j)) for j in range(len(done.tasks))]
            for i in order
        ]

    def error(i: int, j: int) -> float:
        assert matrix is not None  # a measured cell is in it
        return float(matrix.stderr[rows[done.models[i]], columns[done.tasks[j]]])

    nothing = float("nan")
    plain = {"family": "", "kind": "", "billions": None}
    up = dict(zip(done.tasks, done.higher_is_better, strict=True))
    return {
        "main": done.protocol,
        "method": "mean z score over tasks, predicted",
        "protocols": [{"name": done.protocol, "label": done.protocol.label}],
        "models": [
            {
                **models.get(done.models[i], plain),
                "name": done.models[i],
                "short": name,
                "rank": [float(done.rank[i]), int(done.rank_low[i]), int(done.rank_high[i])],
            }
            for i, name in zip(order, names, strict=True)
        ],
        "tasks": [{"name": t, "category": known.categories.get(t, ""), "up": up[t]} for t in done.tasks],
        "scores": {
            done.protocol: {
                "values": block(lambda i, j: done.values[i, j], lambda i, j: done.mean[i, j]),
                "stderr": block(error, lambda i, j: nothing),
                "predicted": (~done.measured[order]).tolist(),
                "low": block(lambda i, j: nothing, lambda i, j: done.low[i, j]),
                "high": block(lambda i, j: nothing, lambda i, j: done.high[i, j]),
            }
        },
        "details": True,
        "failed": [[f.model, f.task, f.protocol, f.reason] for f in data.failures if f.protocol == done.protocol],
    }


def _rounded(value: float) -> float | None:
    return round(float(value), 5) if np.isfinite(value) else None
