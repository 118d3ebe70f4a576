"""What the store holds, as plain values: studies, cells, lanes with their curves, failures, events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from potentia.store.database import now
from potentia.store.items import loads
from potentia.values.scores import Score


@dataclass(frozen=True)
class StudyRecord:
    """A study as first opened. ``key`` is its content key; a changed study of the same name is another record."""

    key: str
    name: str
    spec: Mapping[str, Any]
    created: str = field(default_factory=now)


@dataclass(frozen=True)
class CellRecord:
    """One model × task × protocol, finished. ``study`` is the key (or name) of the study that computed it.

    ``scores`` maps a metric's name to its score and ``metric`` names the main one. ``manifest``
    says how the score came about (versions, model, task, shots, seed, scorer, tuning, training; what does not apply is
    absent), ``selection`` what validation chose (learning rate, epoch, style).
    ``direct_value`` and ``gain`` are there when the model was tuned. ``probe`` is what ``Store.probes``
    gives back: how much was left to learn of the task.
    """

    key: str
    study: str
    model: str
    task: str
    protocol: str
    scores: Mapping[str, Score]
    metric: str
    manifest: Mapping[str, Any] = field(default_factory=dict)
    created: str = field(default_factory=now)
    seconds: float = 0.0
    selection: Mapping[str, Any] = field(default_factory=dict)
    direct_value: float | None = None
    gain: float | None = None
    probe: Mapping[str, Any] | None = None

    @property
    def score(self) -> Score:
        """The score of the main metric."""
        return self.scores[self.metric]


@dataclass(frozen=True, slots=True)
class ChoiceRecord:
    """What validation chose for one cell, and no more of it: a store of 200,000 cells gives them in seconds."""

    key: str
    model: str
    task: str
    protocol: str
    metric: str
    text: str  # the selection as it is stored

    def names(self, field: str) -> bool:
        """Say whether the selection may have this field, without reading it."""
        return f'"{field}"' in self.text

    @property
    def selection(self) -> Mapping[str, Any]:
        """The selection of the cell, as ``CellRecord`` has it."""
        found: Mapping[str, Any] = loads(self.text)
        return found


@dataclass(frozen=True)
class EpochRecord:
    """One point of a lane's curve. Epoch 0 is the model before tuning.

    ``tokens`` were learned from in ``seconds``, which other lanes may have shared.
    """

    epoch: int
    train_loss: float | None = None
    value: float | None = None
    stderr: float | None = None
    seconds: float = 0.0
    tokens: int = 0


@dataclass(frozen=True)
class LaneRecord:
    """One fine-tuning job: what it trains, where it stands and its curve so far.

    ``status`` is ``training``, ``done``, ``dropped`` (by the race), ``failed`` (``note`` says why) or ``interrupted``.
    """

    key: str
    study: str
    model: str
    task: str
    learning_rate: float
    style: str = ""
    seed: int = 0
    status: str = "training"
    cell: str | None = None
    epochs: tuple[EpochRecord, ...] = ()
    selected: bool = False
    note: str = ""
    updated: str = field(default_factory=now)


@dataclass(frozen=True)
class FailureRecord:
    """A cell that could not be scored, and why. Gone as soon as the cell is committed."""

    study: str
    model: str
    task: str
    protocol: str
    reason: str
    key: str | None = None
    kind: str = ""
    hint: str | None = None
    attempts: int = 1
    created: str = field(default_factory=now)


@dataclass(frozen=True)
class EventRecord:
    """One entry of a study's log; ids grow in the order in which entries become visible."""

    id: int
    study: str
    kind: str
    payload: Mapping[str, Any]
    created: str
