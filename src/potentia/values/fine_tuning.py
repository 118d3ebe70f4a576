"""One fine-tuning: what it is, how far it got, and the result of each epoch, for engine, run, store and report alike.

While it trains beside others in common passes, a fine-tuning is called a *lane*. Lanes of one task that differ only in
their learning rate compete on validation: they are in one *race*.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, NamedTuple

Style = Literal["plain", "chat"]  # the prompt as it is, or in the model's chat template
RaceGroup = tuple[str, Style, int]  # data, style and seed, which fine-tunings of one race share


@dataclass(frozen=True)
class FineTuning:
    """One fine-tuning of a model: what it learns from, plain or as chat, its learning rate and its seed."""

    key: str  # a hash of everything that its result depends on
    data: str  # names what it learns from: a task, or joined data
    style: Style
    learning_rate: float
    seed: int

    @property
    def race(self) -> RaceGroup:
        """The race that it competes in: equal for fine-tunings that differ only in their learning rate."""
        return self.data, self.style, self.seed


class LaneStatus(StrEnum):
    """How far a fine-tuning got; the values are what the store and snapshots record."""

    WAITING = "waiting"
    TRAINING = "training"
    DONE = "done"
    DROPPED = "dropped"  # it lost its race before its last epoch
    FAILED = "failed"
    INTERRUPTED = "interrupted"

    @property
    def is_over(self) -> bool:
        """Whether it will not train any further, even if the run is resumed."""
        return self in (LaneStatus.DONE, LaneStatus.DROPPED, LaneStatus.FAILED)


class ValidationScore(NamedTuple):
    """What a state of a model scores on the validation split."""

    value: float
    stderr: float
    right: str = ""  # packed bits, one per example: answered rightly or not; empty for scores other than 0 and 1


NOT_VALIDATED = ValidationScore(math.nan, math.nan)


@dataclass(frozen=True)
class EpochResult:
    """What was measured at the end of one epoch of a fine-tuning; epoch 0 is the model before it."""

    epoch: int
    train_loss: float | None = None  # the mean over the epoch
    value: float | None = None  # the score on validation
    stderr: float | None = None  # of that score
    seconds: float = field(
        default=0.0, compare=False
    )  # of the epoch, shared with the lanes beside it
    tokens: int = 0  # learned from in the epoch
