"""The answer first: who has the most potential and how sure that is, in sentences and as a ladder of all models.

Each rung of the ladder has the model's rank and score on two axes side by side, as shares of their width. What is not
measured has a block of its own, marked as predicted: who may be best once all is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from potentia.analysis.completion import Completion
from potentia.analysis.rankings import (
    AGGREGATE_LABELS,
    ModelStanding,
    Scoreboard,
    agreement_sentence,
    resolution_sentence,
)
from potentia.show.page import chance, count, percent, unbroken
from potentia.show.svg import Scale, make_scale
from potentia.values.findings import Interval, short_names

if TYPE_CHECKING:
    from potentia.show.source import ReportData

TICKS = 5  # at most, on an axis
TOP = 3  # places that the chance to be among the first is told for
MOST_RUNGS = 200  # models of the ladder


Tile = dict[str, str]  # a number, what it is of, and a note


@dataclass(frozen=True)
class Answer:
    """What a reader takes away."""

    headline: str
    sentences: tuple[str, ...]
    tiles: tuple[Tile, ...]
    board: Scoreboard | None = None

    @property
    def standings(self) -> tuple[ModelStanding, ...]:
        """Every ranked model, best first."""
        return () if self.board is None else self.board.standings

    @property
    def method(self) -> str:
        """What ranks the models."""
        return "" if self.board is None else self.board.ranking.method


def answer(data: ReportData) -> Answer:
    """Put the findings into words; nothing is said that an interval does not hold."""
    found, board, runs = data.rankings, data.board, data.runs
    if board is None:
        reason = data.problem or "there are too few scores"
        return Answer(f"No ranking yet: {reason}.", (), _tiles(data))
    headline, sentences = (
        (board.headline(), board.certainty())
        if runs is None
        else (runs.headline(), runs.sentences())
    )
    if found is not None:
        agreed = agreement_sentence(
            found.changes.get((data.first, data.main)), found.agreement.get(data.main)
        )
        sentences += [
            s
            for s in (agreed, resolution_sentence(found.significance.get(data.main)))
            if s is not None
        ]
    return Answer(headline, tuple(map(unbroken, sentences)), _tiles(data), board)


def _tile(value: str, label: str, note: str) -> Tile:
    return {"value": value, "label": label, "note": note}


def _tiles(data: ReportData) -> tuple[Tile, ...]:
    tiles = [_size(data), _first(data)]
    if data.failures:
        tiles.append(
            _tile(str(len(data.failures)), "failed cells", "shown with their reason, never as zero")
        )
    tiles += [_agreement(data), _resolved(data)]
    return tuple(tile for tile in tiles if tile is not None)


def _size(data: ReportData) -> Tile:
    matrices, runs = data.evidence.planned.values(), data.runs
    corpora = {t for m in matrices for t in m.corpora().tasks}
    tasks = {t for m in matrices for t in m.tasks} - corpora
    cells = sum(int(np.isfinite(matrix.values).sum()) for matrix in data.evidence.scores.values())
    note = count(cells, "score") + (
        f", with {count(len(corpora), 'corpus', 'corpora')}" if corpora else ""
    )
    what = (
        "models × tasks"
        if runs is None
        else f"checkpoints × tasks, of {count(len(runs.runs), 'run')}"
    )
    return _tile(f"{len(data.evidence.models)} × {len(tasks)}", what, note)


def _first(data: ReportData) -> Tile | None:
    ranking = data.rankings.overall.get(data.main) if data.rankings is not None else None
    if ranking is None or not ranking.can_claim or data.runs is not None:
        return None
    return _tile(
        chance(float(ranking.p_first.max())),
        "P(first)",
        f"by the {ranking.method.label}",
    )


def _agreement(data: ReportData) -> Tile | None:
    if data.rankings is None or data.few:  # a τ of so few models takes few values
        return None
    change, alone = (
        data.rankings.changes.get((data.first, data.main)),
        data.rankings.agreement.get(data.main),
    )
    if change is not None and np.isfinite([change.mean_before, change.mean_after]).all():
        taus = f"{change.mean_before:.2f} → {change.mean_after:.2f}"
        note = f"mean Kendall's τ, {change.before.label} → {change.after.label}"
        return _tile(taus, "agreement between tasks", note)
    if alone is not None and np.isfinite(alone.mean):
        return _tile(f"{alone.mean:.2f}", "agreement between tasks", "mean Kendall's τ")
    return None


def _resolved(data: ReportData) -> Tile | None:
    found = data.rankings.significance.get(data.main) if data.rankings is not None else None
    if found is None or not any(found.pairs) or data.failures:
        return None
    share = sum(found.significant) / sum(found.pairs)
    return _tile(percent(share), "comparisons resolved", "pairs of models on a task, 95 %")


def answer_context(data: ReportData) -> dict[str, Any]:
    """Return what the template of the answer needs."""
    told = answer(data)
    board = told.board
    return {
        "training": data.runs is not None,
        "answer": told,
        "most": MOST_RUNGS,
        "board": board,
        "ladder": None if board is None else _ladder(board),
        "method": ""
        if board is None
        else AGGREGATE_LABELS[told.method]
        if len(board.ranking.tasks) > 1
        else "score",
        "names": () if board is None else tuple(board.names.values()),
        "outlook": None if data.completion is None else _outlook(data.completion),
    }


def _axis(scale: Scale) -> dict[str, Any]:
    """Return the marks of a scale over 100 per cent, each with its place, and the distance of two."""
    marks = [(round(scale(value), 4), text) for value, text in scale.marks]
    return {
        "marks": marks,
        "step": round(marks[1][0] - marks[0][0], 4) if len(marks) > 1 else 100.0,
    }


def _mark(scale: Scale, score: Interval | None) -> dict[str, float] | None:
    """Return the places of a value and its ends; both are the value's where they are not known."""
    if score is None:
        return None
    low, high = (score.low, score.high) if math.isfinite(score.low) else (score.value, score.value)
    return {
        name: _place(scale, value)
        for name, value in (("at", score.value), ("low", low), ("high", high))
    }


def _place(scale: Scale, value: float) -> float:
    return round(scale.inside(value), 2) if math.isfinite(value) else 0.0


def _ladder(board: Scoreboard) -> dict[str, Any]:
    """Lay the scoreboard out: ranks, and the scores by the first protocol and by the one that ranks."""
    ends = [k for k, p in enumerate(board.protocols) if p in (board.before, board.protocol)] or [-1]
    known = [score for s in board.standings for k in ends if (score := s.scores[k]) is not None]
    reach = [x for score in known for x in (score.value, score.low, score.high) if math.isfinite(x)]
    ranks = _rank_scale(len(board.standings))
    scores = make_scale(reach, 0.0, 100.0, most=TICKS) if board.tasks and known else None
    rungs = []
    for s in board.standings:
        before, after = (s.scores[ends[0]] if len(ends) > 1 else None), s.scores[ends[-1]]
        rungs.append(
            {
                "model": s.model,
                "name": board.names[s.model],
                "standing": s,
                "rank": _mark(ranks, Interval(s.rank, *s.rank_interval)),
                "before_rank": None if s.before is None else _place(ranks, s.before),
                "score": scores and _mark(scores, after),
                "before": scores and _mark(scores, before),
                "numbers": _numbers(before, after, s.gain),
            }
        )
    errors = any(math.isfinite(score.low) for score in known)
    return {
        "ranks": _axis(ranks),
        "scores": scores and _axis(scores),
        "rungs": rungs,
        "intervals": board.ranking.can_claim,
        "errors": errors,
    }


def _rank_scale(models: int) -> Scale:
    """Return a scale from 1 to the last rank, marked at 1 and in even steps."""
    last = max(2, models)
    step = max(1, math.ceil((last - 1) / (TICKS - 1)))
    marks = [*range(1, last + 1, step)]
    if last - marks[-1] > step / 2:
        marks.append(last)
    return Scale(1, last, 0.0, 100.0, marks=tuple((mark, str(mark)) for mark in marks))


def _numbers(
    before: Interval | None, after: Interval | None, gain: Interval | None
) -> tuple[str, str]:
    def half(score: Interval, sign: str = "") -> str:
        width = (score.high - score.low) / 2
        return f"{score.value:{sign}.3f}" + (f" ± {width:.3f}" if math.isfinite(width) else "")

    if after is None:
        return "", ""
    if before is None:
        return half(after), ""
    return f"{before.value:.3f} → {after.value:.3f}", "" if gain is None else half(gain, "+")


def _outlook(done: Completion) -> dict[str, Any]:
    """Lay the expected final ranking out, best first."""
    scale, top = _rank_scale(len(done.models)), min(TOP, len(done.models))
    order = [int(i) for i in np.argsort(done.rank, kind="stable")]
    names = short_names([done.models[i] for i in order])
    in_top, cells = done.p_top(top), done.measured.sum(axis=1)
    chances = []
    for i, name in zip(order, names, strict=True):
        rank = Interval(float(done.rank[i]), float(done.rank_low[i]), float(done.rank_high[i]))
        odds = {"best": float(done.p_best[i]), "top": float(in_top[i]), "cells": int(cells[i])}
        chances.append(
            {
                "model": done.models[i],
                "name": name,
                "rank": rank,
                "place": _mark(scale, rank),
                **odds,
            }
        )
    words = {"headline": _headline(chances), "basis": _basis(done)}
    return {
        "ranks": _axis(scale),
        "chances": chances,
        "top": top,
        "tasks": len(done.tasks),
        **words,
    }


def _headline(chances: list[dict[str, Any]]) -> str:
    if len(chances) < 2:
        return f"There is one model, {chances[0]['name']}: nothing to rank, only its scores are predicted."
    first, *others = sorted(chances, key=lambda c: -c["best"])
    told = f"Once every cell is measured, {first['name']} is the best model with probability {chance(first['best'])}"
    close = [f"{c['name']} {percent(c['best'])}" for c in others[:3] if c["best"] >= 0.1]
    return told + ("; " + ", ".join(close) if close else "") + "."


def _basis(done: Completion) -> str:
    measured, whole = int(done.measured.sum()), done.measured.size
    a = done.agreement
    told = f"Predicted from {measured:,} of {whole:,} tuned cells, scores before tuning and facts of the models"
    told += f", and {done.history:,} rows of history" if done.history else ""
    if len(done.models) > 1:
        told += f"; expected agreement with the finished ranking τ {a.value:.2f} ({a.low:.2f} to {a.high:.2f})"
    return told + "."
