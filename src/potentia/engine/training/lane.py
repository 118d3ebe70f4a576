"""A lane under way: where it stands, how its epochs ended, and what a run reports of its steps.

A lane is one fine-tuning; its :class:`~potentia.engine.lane_spec.LaneSpec` says what it learns.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from potentia.engine.lane_spec import LaneSpec, TrainingRow
from potentia.values.fine_tuning import EpochResult, LaneStatus, ValidationScore


@dataclass
class LaneEpoch:
    """The end of one epoch of one lane.

    The caller may add the scores of ``validations``, by task: they are saved with the lane. If a run was resumed within
    the epoch, the seconds of ``result`` count from there.
    """

    key: str  # of the lane
    step: int  # the lane's updates until here
    result: EpochResult
    validations: dict[str, ValidationScore] = field(default_factory=dict)

    @property
    def epoch(self) -> int:
        """The number of the epoch that ended, from 1."""
        return self.result.epoch

    @property
    def loss(self) -> float:
        """The mean of the losses of the epoch's updates; not a number where it is not known."""
        return math.nan if self.result.train_loss is None else self.result.train_loss

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> LaneEpoch:
        """Return the epoch that a snapshot describes: what ``dataclasses.asdict`` made of it, read from JSON."""
        validations = {}
        for task, score in record["validations"].items():
            validations[task] = ValidationScore(*score)
        result = EpochResult(**record["result"])
        return cls(record["key"], record["step"], result, validations)


@dataclass(frozen=True)
class StepInfo:
    """One step, in which every active lane made one update, for reports of progress."""

    step: int  # its number, from 1
    active: int  # lanes in training
    waiting: int  # lanes that have no slot yet
    tokens: int  # of the step's rows, prompts included
    done: int  # updates of all lanes until here
    resumed: int = 0  # updates among these that an earlier run had made


@dataclass
class Lane:
    """A lane under way: its updates so far, its slot while it trains, and what became of it.

    It ends as done, dropped (by the caller, as it loses against others), failed (with a reason) or interrupted.
    """

    spec: LaneSpec = field(compare=False)
    step: int = 0  # updates made
    slot: int | None = None  # where its adapter lies while it trains
    status: LaneStatus = LaneStatus.WAITING
    reason: str | None = None  # why it failed
    tokens: int = 0  # of the epoch under way
    # when the epoch under way began in this process, by the monotonic clock
    epoch_began: float = field(default_factory=time.monotonic, compare=False)
    epochs: list[LaneEpoch] = field(default_factory=list)  # that ended
    targets: tuple[str, ...] = ()  # the layers that its adapter is on

    @property
    def key(self) -> str:
        """The lane's name."""
        return self.spec.key

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do."""
        return self.status.is_over

    def next_rows(self, limit: int | None) -> list[TrainingRow]:
        """Return the rows of the lane's next update, and count their tokens; ``limit`` is the model's longest text."""
        assert self.slot is not None
        rows = self.spec.rows_of_step(self.step, limit, self.slot)
        self.tokens += sum(len(row.ids) for row in rows)
        return rows

    def to_record(self) -> dict[str, object]:
        """Return the lane's state as plain values, for a snapshot."""
        saved_fields = {
            field_name: getattr(self, field_name)
            for field_name in ("step", "slot", "status", "reason", "tokens")
        }
        return saved_fields | {"epochs": [asdict(epoch) for epoch in self.epochs]}

    def can_restore(self, record: Mapping[str, Any]) -> bool:
        """Whether a record has the layout that :meth:`to_record` writes; older versions wrote others."""
        if record.keys() != self.to_record().keys():
            return False
        try:
            Lane(self.spec).restore(record)
        except (KeyError, TypeError, ValueError):
            return False
        return True

    def restore(self, record: Mapping[str, Any]) -> None:
        """Go on from the state that :meth:`to_record` wrote."""
        epochs = [LaneEpoch.from_record(epoch) for epoch in record["epochs"]]
        vars(self).update(record, status=LaneStatus(record["status"]), epochs=epochs)
