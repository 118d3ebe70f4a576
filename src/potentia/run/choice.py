"""What is chosen among fine-tunings, by validation alone: the best state, the next learning rate to try, who drops out.

The learning rates of a benchmark form a ladder: 1, 3, 10, 30 … times a power of ten. A grid is begun with and extended
by one rung at whichever end leads, until the best lies inside or a bound is reached. To lead is to beat the neighbour
by more than half a standard error: less is a tie, and ties stay inside.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from potentia.run.ask import Style

LEAD = 0.5  # standard errors of validation by which an end must lead to be followed further
PATIENCE = 3  # looks in a row, each more than a standard error below its best, after which a lane is past it

# Where a cell's best lies, the most doubtful first: the first three may have more in them.
Verdict = Literal["kept untuned", "at the bound", "still rising", "one rate", "flat", "inside"]
VERDICTS: tuple[Verdict, ...] = ("kept untuned", "at the bound", "still rising", "one rate", "flat", "inside")
MORE = VERDICTS[:3]


@dataclass(frozen=True)
class LanePlan:
    """One fine-tuning to make: what it learns from, plain or as chat, its learning rate and its seed."""

    key: str
    data: str
    style: Style
    learning_rate: float
    seed: int

    @property
    def rivals(self) -> tuple[str, Style, int]:
        """What lanes share that differ in their learning rate alone."""
        return self.data, self.style, self.seed


@dataclass(frozen=True)
class Candidate:
    """A state of the model as validated on a task: a lane after an epoch, or the untuned model at epoch 0."""

    style: Style
    epoch: int
    value: float
    stderr: float
    lane: LanePlan | None = None
    loss: float | None = None  # in training, over the epoch
    tokens: int = 0  # learned from in the epoch
    seconds: float = 0.0
    right: str = ""  # which validation documents it got right, packed; empty where that is no 0 or 1

    @property
    def tuned(self) -> bool:
        """Whether any fine-tuning lies behind it."""
        return self.lane is not None

    @property
    def learning_rate(self) -> float | None:
        """The lane's learning rate; None for the untuned model."""
        return self.lane.learning_rate if self.lane is not None else None

    def worth(self, higher_is_better: bool) -> float:
        """Return its value, larger for better; no number is worst of all."""
        if math.isnan(self.value):
            return -math.inf
        return self.value if higher_is_better else -self.value


Peaks = Mapping[float, Candidate | None]  # the best state of every learning rate of one search; None where it failed


def select(candidates: Sequence[Candidate], *, higher_is_better: bool) -> Candidate:
    """Return the best on validation; ties go to the untuned model, the rates inside the grid, the earlier epoch."""
    rates = sorted({c.learning_rate for c in candidates if c.learning_rate is not None})
    middle = (len(rates) - 1) / 2

    def order(candidate: Candidate) -> tuple[float, float, int, float, bool]:
        rate = candidate.learning_rate
        outside = -1.0 if rate is None else abs(rates.index(rate) - middle)
        chat = candidate.style == "chat"
        return -candidate.worth(higher_is_better), outside, candidate.epoch, rate or 0.0, chat

    return min(candidates, key=order)


def peaks_of(
    lanes: Iterable[LanePlan], states: Sequence[Candidate], *, higher_is_better: bool
) -> dict[float, Candidate | None]:
    """Return the best state of each of these lanes, by learning rate."""
    found: dict[float, Candidate | None] = {}
    for lane in lanes:
        own = [state for state in states if state.lane == lane]
        found[lane.learning_rate] = select(own, higher_is_better=higher_is_better) if own else None
    return found


def leading_end(peaks: Peaks, *, higher_is_better: bool) -> float | None:
    """Return the end of the grid that beats its neighbour beyond a tie; None where neither does."""
    rates = sorted(peaks)
    worth = {rate: -math.inf if c is None else c.worth(higher_is_better) for rate, c in peaks.items()}
    if len(rates) < 2:
        return None
    if max(worth.values()) == -math.inf:
        return rates[0]  # all failed: smaller ones may not
    best = max(rates, key=worth.__getitem__)
    neighbour = {rates[0]: rates[1], rates[-1]: rates[-2]}.get(best)
    top = peaks[best]
    if neighbour is None or top is None:
        return None
    return best if worth[best] - worth[neighbour] > LEAD * _error(top) else None


def next_rate(peaks: Peaks, bounds: tuple[float, float] | None, *, higher_is_better: bool) -> float | None:
    """Return the learning rate to try next, one rung beyond the end that leads; None where the search is over."""
    end = leading_end(peaks, higher_is_better=higher_is_better)
    if end is None or bounds is None:
        return None
    rate = next_rung(end, up=end == max(peaks))
    return rate if bounds[0] <= rate <= bounds[1] else None


def next_rung(rate: float, *, up: bool) -> float:
    """Return the nearest of 1, 3, 10, 30 … times a power of ten that is at least half as much again away."""
    power = math.floor(math.log10(rate))
    rungs = sorted(float(f"{digit}e{power + more}") for more in (-2, -1, 0, 1, 2) for digit in (1, 3))
    if up:
        return next(rung for rung in rungs if rung > 1.5 * rate)
    return next(rung for rung in reversed(rungs) if 1.5 * rung < rate)


def verdict(chosen: Candidate, peaks: Peaks, curve: Sequence[Candidate], *, higher_is_better: bool) -> Verdict:
    """Say where the chosen state lies in what was searched; ``curve`` is its lane's, from the untuned model on."""
    if not chosen.tuned:
        return "kept untuned"
    if leading_end(peaks, higher_is_better=higher_is_better) is not None:
        return "at the bound"
    before = [c for c in curve if c.epoch < chosen.epoch]
    if before and chosen.epoch == curve[-1].epoch and not math.isnan(chosen.value):
        last = max(before, key=lambda c: c.epoch)
        if chosen.worth(higher_is_better) - last.worth(higher_is_better) > LEAD * _error(chosen):
            return "still rising"
    if len(peaks) < 2:
        return "one rate"
    return "flat" if chosen.learning_rate in (min(peaks), max(peaks)) else "inside"


def past_its_best(curve: Sequence[Candidate], *, higher_is_better: bool) -> bool:
    """Say whether a lane's last looks are all clearly worse than its best."""
    looks = [c for c in curve if c.tuned and math.isfinite(c.value)]
    if len(looks) <= PATIENCE:
        return False
    best = max(looks, key=lambda c: c.worth(higher_is_better))
    limit = best.worth(higher_is_better) - _error(best)
    return all(c.worth(higher_is_better) < limit for c in looks[-PATIENCE:])


def is_behind(lane: LanePlan, same: Mapping[LanePlan, Candidate], looks: int, *, higher_is_better: bool) -> bool:
    """Say whether a lane has hardly a chance to be the best of its rivals at the same epoch.

    The rule is that of every race (``analysis.planning.race``); the doubt is shared out over the ends of epochs.
    """
    from potentia.analysis.planning import MAYBE, may_win

    if any(math.isfinite(c.value) and not math.isfinite(c.stderr) for c in same.values()):
        return False  # no telling what is noise
    chance = may_win(
        {other.key: c.value for other, c in same.items()},
        {other.key: c.stderr for other, c in same.items()},
        {other.key: c.right for other, c in same.items()},
        higher_is_better=higher_is_better,
    )
    return bool(chance[lane.key] < MAYBE / max(looks, 1))


def _error(candidate: Candidate) -> float:
    return candidate.stderr if math.isfinite(candidate.stderr) else 0.0
