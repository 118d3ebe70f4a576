"""The answer first: who has the most potential and how sure that is, in sentences and as a ladder of all models.

Each rung of the ladder has the model's rank and score on two axes side by side, as shares of their width. What is not
measured has a block of its own, marked as predicted: who may be best once all is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from potentia.analysis.planning import Completion
from potentia.analysis.rankings import NAMES, Scoreboard, Standing, agreement_sentence, resolution_sentence
from potentia.show.page import chance, count, percent, unbroken
from potentia.show.svg import make_scale
from potentia.values.findings import Interval, short_names

if TYPE_CHECKING:
    from potentia.show.source import ReportData

TICKS = 5  # at most, on an axis
TOP = 3  # places that the chance to be among the first is told for


@dataclass(frozen=True)
class Tile:
    """One number with what it means."""

    value: str
    label: str
    note: str = ""


@dataclass(frozen=True)
class Answer:
    """What a reader takes away."""

    headline: str
    sentences: tuple[str, ...]
    tiles: tuple[Tile, ...]
    board: Scoreboard | None = None

    @property
    def standings(self) -> tuple[Standing, ...]:
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
    headline, sentences = (board.headline(), board.certainty()) if runs is None else (runs.headline(), runs.sentences())
    if found is not None:
        agreed = agreement_sentence(found.changes.get((data.first, data.main)), found.agreement.get(data.main))
        sentences += [s for s in (agreed, resolution_sentence(found.significance.get(data.main))) if s is not None]
    return Answer(headline, tuple(map(unbroken, sentences)), _tiles(data), board)


def _tiles(data: ReportData) -> tuple[Tile, ...]:
    scores, found, runs = data.evidence.planned, data.rankings, data.runs
    known = {t for m in scores.values() for t in m.tasks}
    corpora = {t for m in scores.values() for t in m.corpora().tasks}
    cells = sum(int(np.isfinite(matrix.values).sum()) for matrix in data.evidence.scores.values())
    note = count(cells, "score") + (f", with {count(len(corpora), 'corpus', 'corpora')}" if corpora else "")
    what = "models × tasks" if runs is None else f"checkpoints × tasks, of {count(len(runs.runs), 'run')}"
    tiles = [Tile(f"{len(data.evidence.models)} × {len(known - corpora)}", what, note)]
    if data.failures:
        tiles.append(Tile(str(len(data.failures)), "failed cells", "shown with their reason, never as zero"))
    if found is None:
        return tuple(tiles)
    ranking, resolved = found.overall.get(data.main), found.significance.get(data.main)
    if ranking is not None and ranking.known and runs is None:
        first = Tile(chance(float(ranking.p_first.max())), "P(first)", f"by the {NAMES[ranking.method]}")
        tiles.insert(1, first)
    change, alone = found.changes.get((data.first, data.main)), found.agreement.get(data.main)
    if change is not None and np.isfinite([change.mean_before, change.mean_after]).all():
        taus = f"{change.mean_before:.2f} → {change.mean_after:.2f}"
        note = f"mean Kendall's τ, {change.before.label} → {change.after.label}"
        tiles.append(Tile(taus, "agreement between tasks", note))
    elif alone is not None and np.isfinite(alone.mean):
        tiles.append(Tile(f"{alone.mean:.2f}", "agreement between tasks", "mean Kendall's τ"))
    if resolved is not None and any(resolved.pairs) and not data.failures:
        share = sum(resolved.significant) / sum(resolved.pairs)
        tiles.append(Tile(percent(share), "comparisons resolved", "pairs of models on a task, 95 %"))
    return tuple(tiles)


# --- the ladder ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Axis:
    """From where to where it goes, and its marks: place in per cent, and label."""

    low: float
    high: float
    marks: tuple[tuple[float, str], ...]

    def at(self, value: float) -> float:
        """Return a value's place in per cent; of one that is not known, the beginning."""
        share = (value - self.low) / (self.high - self.low) if math.isfinite(value) else 0.0
        return round(100 * min(1.0, max(0.0, share)), 2)

    def mark(self, score: Interval | None) -> dict[str, float] | None:
        """Return the places of a value and its ends; both are the value's where they are not known."""
        if score is None:
            return None
        low, high = (score.low, score.high) if math.isfinite(score.low) else (score.value, score.value)
        return {"at": self.at(score.value), "low": self.at(low), "high": self.at(high)}

    @property
    def step(self) -> float:
        """The distance of two marks, in per cent."""
        return round(self.marks[1][0] - self.marks[0][0], 4) if len(self.marks) > 1 else 100.0


def make_ladder(board: Scoreboard) -> dict[str, Any]:
    """Lay the scoreboard out: ranks, and the scores by the first protocol and by the one that ranks."""
    ends = [k for k, p in enumerate(board.protocols) if p in (board.before, board.protocol)] or [-1]
    ranks, names = rank_axis(len(board.standings)), board.names
    known = [score for s in board.standings for score in (s.scores[k] for k in ends) if score is not None]
    reach = [x for score in known for x in (score.value, score.low, score.high) if math.isfinite(x)]
    scores = score_axis(reach) if board.tasks and known else None
    rungs = []
    for s in board.standings:
        before, after = (None if len(ends) == 1 else s.scores[ends[0]]), s.scores[ends[-1]]
        rungs.append(
            {
                "model": s.model,
                "name": names[s.model],
                "standing": s,
                "rank": ranks.mark(Interval(s.rank, *s.reach)),
                "before_rank": None if s.before is None else ranks.at(s.before),
                "score": scores and scores.mark(after),
                "before": scores and scores.mark(before),
                "numbers": _numbers(before, after, s.gain),
            }
        )
    return {"ranks": ranks, "scores": scores, "rungs": rungs}


def rank_axis(models: int) -> Axis:
    """Return an axis from 1 to the last rank, marked at 1 and in even steps."""
    last = max(2, models)
    step = max(1, math.ceil((last - 1) / (TICKS - 1)))
    marks = [1 + k * step for k in range((last - 1) // step + 1)]
    if last - marks[-1] > step / 2:
        marks.append(last)
    return Axis(1, last, tuple((100 * (m - 1) / (last - 1), str(m)) for m in marks))


def score_axis(values: Iterable[float]) -> Axis:
    """Return an axis over the values that begins and ends at a round mark."""
    scale = make_scale(values, 0.0, 100.0, most=TICKS)
    return Axis(scale.low, scale.high, tuple((round(scale(value), 4), text) for value, text in scale.marks))


def _numbers(before: Interval | None, after: Interval | None, gain: Interval | None) -> tuple[str, str]:
    def half(score: Interval, sign: str = "") -> str:
        width = (score.high - score.low) / 2
        return f"{score.value:{sign}.3f}" + (f" ± {width:.3f}" if math.isfinite(width) else "")

    if after is None:
        return "", ""
    if before is None:
        return half(after), ""
    return f"{before.value:.3f} → {after.value:.3f}", "" if gain is None else half(gain, "+")


# --- what is not measured yet ----------------------------------------------------------------------------------------


def make_outlook(done: Completion) -> dict[str, Any]:
    """Lay the expected final ranking out, best first."""
    axis, top = rank_axis(len(done.models)), min(TOP, len(done.models))
    order = [int(i) for i in np.argsort(done.rank, kind="stable")]
    names = short_names([done.models[i] for i in order])
    in_top, cells = done.p_top(top), done.measured.sum(axis=1)
    chances = []
    for i, name in zip(order, names, strict=True):
        rank = Interval(float(done.rank[i]), float(done.rank_low[i]), float(done.rank_high[i]))
        odds = {"best": float(done.p_best[i]), "top": float(in_top[i]), "cells": int(cells[i])}
        chances.append({"model": done.models[i], "name": name, "rank": rank, "place": axis.mark(rank), **odds})
    words = {"headline": _headline(chances), "basis": _basis(done)}
    return {"ranks": axis, "chances": chances, "top": top, "tasks": len(done.tasks), **words}


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
