"""Choosing the checkpoint: validation alone decides; ties go to the earlier epoch and the smaller learning rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from potentia.protocols.ask import Form


@dataclass(frozen=True)
class Candidate:
    """A model state that could be tested: epoch 0 without a learning rate is the untuned model."""

    form: Form
    epoch: int
    learning_rate: float | None
    seed: int
    value: float
    stderr: float
    lane: str | None = None

    @property
    def tuned(self) -> bool:
        """Whether any fine-tuning lies behind it."""
        return self.lane is not None


def select(candidates: Sequence[Candidate], *, higher_is_better: bool) -> Candidate:
    """Return the candidate with the best validation value; NaN values never win while a number is there."""

    def order(candidate: Candidate) -> tuple[bool, float, int, float, bool]:
        worth = candidate.value if higher_is_better else -candidate.value
        return (
            math.isnan(worth),
            -worth if not math.isnan(worth) else 0.0,
            candidate.epoch,
            candidate.learning_rate or 0.0,
            candidate.form == "chat",
        )

    return min(candidates, key=order)


def behind(one: Candidate, best: Candidate, *, higher_is_better: bool, z: float = 1.96) -> bool:
    """Say whether ``one`` trails ``best`` by more than the noise of their difference (for the learning-rate race)."""
    gap = (best.value - one.value) if higher_is_better else (one.value - best.value)
    noise = math.hypot(one.stderr, best.stderr)
    return bool(gap > z * noise) if math.isfinite(gap) and math.isfinite(noise) else math.isnan(one.value)
