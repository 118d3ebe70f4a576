"""Choosing the state to test: validation alone decides; ties go to the earlier epoch and the smaller learning rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from potentia.protocols.ask import Style


@dataclass(frozen=True)
class LanePlan:
    """One fine-tuning to make: what it learns from, plain or as chat, its learning rate and its seed."""

    key: str
    data: str
    style: Style
    learning_rate: float
    seed: int


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

    @property
    def tuned(self) -> bool:
        """Whether any fine-tuning lies behind it."""
        return self.lane is not None

    @property
    def learning_rate(self) -> float | None:
        """The lane's learning rate; None for the untuned model."""
        return self.lane.learning_rate if self.lane is not None else None


def select(candidates: Sequence[Candidate], *, higher_is_better: bool) -> Candidate:
    """Return the candidate with the best validation value; NaN values never win while a number is there."""

    def order(candidate: Candidate) -> tuple[bool, float, int, float, bool]:
        worth = candidate.value if higher_is_better else -candidate.value
        return (
            math.isnan(worth),
            -worth if not math.isnan(worth) else 0.0,
            candidate.epoch,
            candidate.learning_rate or 0.0,
            candidate.style == "chat",
        )

    return min(candidates, key=order)


def behind(one: Candidate, best: Candidate, *, higher_is_better: bool, z: float = 1.96) -> bool:
    """Say whether ``one`` trails ``best`` by more than the noise of their difference (for the learning-rate race)."""
    gap = (best.value - one.value) if higher_is_better else (one.value - best.value)
    noise = math.hypot(one.stderr, best.stderr)
    return bool(gap > z * noise) if math.isfinite(gap) and math.isfinite(noise) else math.isnan(one.value)
