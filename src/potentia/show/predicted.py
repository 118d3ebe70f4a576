"""What is not measured, marked as such: the expected final ranking, and the matrix with its predicted cells apart.

Predictions never enter a table of scores. They have a block of their own in the answer (who may be best once all is
measured) and a section with the completed matrix, where every predicted cell is hatched and carries its interval.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from potentia.analysis.planning import Completion
from potentia.show.ladder import Axis, Mark, rank_axis
from potentia.show.page import render
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
