"""The ladder of the answer: each model's rank and score on two axes side by side, as shares of their width."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from potentia.analysis.rankings import Scoreboard, Standing
from potentia.show.svg import make_scale
from potentia.values.findings import Interval

TICKS = 5  # at most, on an axis


@dataclass(frozen=True)
class Axis:
    """From where to where it goes, and its marks: place in per cent, and label."""

    low: float
    high: float
    marks: tuple[tuple[float, str], ...]

    def at(self, value: float) -> float:
        """Return a value's place in per cent; of one that is not known, the beginning."""
        if not math.isfinite(value):
            return 0.0
        share = (value - self.low) / (self.high - self.low)
        return round(100 * min(1.0, max(0.0, share)), 2)

    @property
    def step(self) -> float:
        """The distance of two marks, in per cent."""
        return round(self.marks[1][0] - self.marks[0][0], 4) if len(self.marks) > 1 else 100.0


@dataclass(frozen=True)
class Mark:
    """A value and its interval as places on an axis; without an interval both ends are the value's."""

    at: float
    low: float
    high: float


@dataclass(frozen=True)
class Rung:
    """One model."""

    model: str
    name: str
    standing: Standing
    rank: Mark
    before_rank: float | None  # place
    score: Mark | None
    before: Mark | None  # the score by the first protocol
    numbers: tuple[str, str]  # scores, and the gain


@dataclass(frozen=True)
class Ladder:
    """Every model from best to worst, and the two axes."""

    ranks: Axis
    scores: Axis | None
    rungs: tuple[Rung, ...]


def make_ladder(board: Scoreboard) -> Ladder:
    """Lay the scoreboard out."""
    ends = _ends(board)
    ranks = rank_axis(len(board.standings))
    known = [score for s in board.standings for score in (s.scores[k] for k in ends) if score is not None]
    scores = score_axis(x for score in known for x in _reach(score)) if board.tasks and known else None
    rungs = []
    for s in board.standings:
        before, after = (None if len(ends) == 1 else s.scores[ends[0]]), s.scores[ends[-1]]
        rungs.append(
            Rung(
                s.model,
                board.names[s.model],
                s,
                Mark(*(ranks.at(x) for x in (s.rank, *s.reach))),
                None if s.before is None else ranks.at(s.before),
                _mark(scores, after),
                _mark(scores, before),
                _numbers(before, after, s.gain),
            )
        )
    return Ladder(ranks, scores, tuple(rungs))


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


def _ends(board: Scoreboard) -> list[int]:
    """Return the places of the first protocol and of the one that ranks, among those of the scores."""
    return [k for k, p in enumerate(board.protocols) if p in (board.before, board.protocol)] or [-1]


def _reach(score: Interval) -> list[float]:
    return [x for x in (score.value, score.low, score.high) if math.isfinite(x)]


def _mark(axis: Axis | None, score: Interval | None) -> Mark | None:
    if axis is None or score is None:
        return None
    ends = (score.low, score.high) if math.isfinite(score.low) else (score.value, score.value)
    return Mark(axis.at(score.value), axis.at(ends[0]), axis.at(ends[1]))


def _numbers(before: Interval | None, after: Interval | None, gain: Interval | None) -> tuple[str, str]:
    def half(score: Interval, sign: str = "") -> str:
        width = (score.high - score.low) / 2
        return f"{score.value:{sign}.3f}" + (f" ± {width:.3f}" if math.isfinite(width) else "")

    if after is None:
        return "", ""
    if before is None:
        return half(after), ""
    return f"{before.value:.3f} → {after.value:.3f}", "" if gain is None else half(gain, "+")
