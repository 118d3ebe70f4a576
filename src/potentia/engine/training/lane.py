"""Where a lane stands, how its epochs ended, and what a run reports of its steps."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from potentia.engine.lane_spec import LaneSpec, TrainingRow


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
    """One step of all active lanes, for progress: ``tokens`` were learned from.

    ``done`` counts the steps of all lanes so far, and ``before`` those among them that a resumed run found done.
    """

    step: int
    active: int
    waiting: int
    tokens: int
    done: int
    before: int = 0


@dataclass
class Lane:
    """A lane under way: its updates so far, its slot while it trains, and what became of it.

    It ends as ``done``, ``dropped`` (the caller's race), ``failed`` (with a reason) or ``interrupted``.
    """

    spec: LaneSpec = field(compare=False)
    step: int = 0
    slot: int | None = None
    status: str = "waiting"
    reason: str | None = None
    tokens: int = 0  # of the epoch under way
    began: float = field(default_factory=time.monotonic, compare=False)  # that epoch, here
    epochs: list[LaneEpoch] = field(default_factory=list)
    targets: tuple[str, ...] = ()  # the layers that its adapter is on

    @property
    def key(self) -> str:
        """The lane's name."""
        return self.spec.key

    @property
    def is_over(self) -> bool:
        """Nothing is left to do."""
        return self.status in ("done", "dropped", "failed")

    def mark_ended(self) -> Lane:
        """Return the lane as a run leaves it: interrupted, where it is not over."""
        self.status = self.status if self.is_over else "interrupted"
        return self

    def next_rows(self, limit: int | None) -> list[TrainingRow]:
        """Return the rows of the lane's next step."""
        assert self.slot is not None
        rows = self.spec.rows_of_step(self.step, limit, self.slot)
        self.tokens += sum(len(row.ids) for row in rows)
        return rows

    def to_record(self) -> dict[str, Any]:
        """Plain values for a snapshot."""
        saved_fields = {
            name: getattr(self, name) for name in ("step", "slot", "status", "reason", "tokens")
        }
        return saved_fields | {"epochs": [asdict(epoch) for epoch in self.epochs]}

    def take_up_record(self, record: Mapping[str, Any]) -> None:
        """Take up a snapshot's values."""
        vars(self).update(record, epochs=[LaneEpoch(**epoch) for epoch in record["epochs"]])
