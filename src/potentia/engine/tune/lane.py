"""The values of a lane: where it stands, what its epochs said, and how it ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from potentia.engine.tune.passes import Lesson
from potentia.engine.tune.schedule import LaneSpec, data_order


class Decision(Enum):
    """What to do with a lane after an epoch."""

    KEEP = "keep"
    DROP = "drop"


KEEP, DROP = Decision.KEEP, Decision.DROP


@dataclass
class LaneEpoch:
    """The end of one epoch of one lane. ``notes`` is the caller's (plain values) and is kept across a resume.

    ``tokens`` were learned from in ``seconds``, which other lanes may have shared; a resumed epoch counts from there.
    """

    key: str
    epoch: int
    step: int
    loss: float
    tokens: int = 0
    seconds: float = field(default=0.0, compare=False)
    notes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StepInfo:
    """One step of all active lanes, for progress: ``rows`` examples of ``tokens`` tokens were learned from.

    ``done`` counts the steps of all lanes so far, and ``before`` those among them that a resumed run found done.
    """

    step: int
    active: int
    waiting: int
    rows: int
    tokens: int
    done: int
    before: int = 0


@dataclass
class LaneResult:
    """How a lane ended: ``done``, ``dropped`` (the caller's race), ``failed`` (with a reason) or ``interrupted``."""

    key: str
    status: str
    epochs: list[LaneEpoch]
    steps: int
    targets: tuple[str, ...]
    reason: str | None = None


@dataclass
class Lane:
    """A lane under way: its updates so far, its slot while it trains, and what became of it."""

    spec: LaneSpec
    step: int = 0
    slot: int | None = None
    status: str = "waiting"
    reason: str | None = None
    tokens: int = 0  # of the epoch under way
    began: float = field(default_factory=time.monotonic)  # that epoch, here
    epochs: list[LaneEpoch] = field(default_factory=list)
    order: tuple[int, Any] = (-1, None)

    @property
    def over(self) -> bool:
        """Nothing is left to do."""
        return self.status in ("done", "dropped", "failed")

    def result(self, targets: tuple[str, ...]) -> LaneResult:
        """Tell what became of the lane; one that is not over was interrupted."""
        status = self.status if self.over else "interrupted"
        return LaneResult(self.spec.key, status, self.epochs, self.step, targets, self.reason)

    def batch(self, limit: int | None) -> list[Lesson]:
        """Return the rows of the lane's next step."""
        spec = self.spec
        epoch, at = divmod(self.step, spec.steps_per_epoch)
        if self.order[0] != epoch:
            self.order = (epoch, data_order(spec.seed, epoch, len(spec.examples)))
        chosen = self.order[1][at * spec.schedule.batch : (at + 1) * spec.schedule.batch]
        texts = [spec.text(int(i), limit) for i in chosen]
        self.tokens += sum(len(ids) for ids, _ in texts)
        weight = 1.0 / max(1, sum(len(ids) - first for ids, first in texts))
        assert self.slot is not None
        return [
            Lesson(ids, first, self.slot, spec.seed, self.step, place, weight)
            for place, (ids, first) in enumerate(texts)
        ]

    def record(self) -> dict[str, Any]:
        """Plain values for a snapshot."""
        return {
            "step": self.step,
            "slot": self.slot,
            "status": self.status,
            "reason": self.reason,
            "tokens": self.tokens,
            "epochs": [asdict(epoch) for epoch in self.epochs],
        }

    def recall(self, record: Mapping[str, Any]) -> None:
        """Take up a snapshot's values."""
        self.step, self.slot, self.status = record["step"], record["slot"], record["status"]
        self.reason, self.tokens = record["reason"], record.get("tokens", 0)
        self.epochs = [LaneEpoch(**epoch) for epoch in record["epochs"]]


OnEpoch = Callable[[list[LaneEpoch]], Mapping[str, Decision] | None]
