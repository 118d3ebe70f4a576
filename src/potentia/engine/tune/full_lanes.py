"""Full fine-tunings as lanes: one after another, with the calls of :class:`~potentia.engine.tune.lanes.LaneTrainer`.

A lane here has all weights of the model to itself, so lanes take turns, and the state of an epoch is as large as the
model: only those that :meth:`FullLanes.hold` names are kept. An interrupted lane goes on from its last snapshot; what
its epochs said is noted beside it, and a lane that is over leaves its notes and its kept states alone.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from potentia.engine.tune.checkpoint_file import Shelf, read_sealed, write_sealed
from potentia.engine.tune.full import DivergedError, FullStep, FullTrainer
from potentia.engine.tune.schedule import Lane, LaneEpoch, LaneSpec, OnEpoch, StepInfo
from potentia.errors import TuningError

NOTES, UNDER_WAY = "notes.sealed", "under-way"  # what a lane's folder holds beside its kept states
State = tuple[str, int]  # a lane's key and an epoch


class FullLanes(FullTrainer):
    """Tunes all weights of a loaded model for one lane at a time, and puts any held state back for scoring.

    Without a ``workspace`` the held states stay in memory and an interrupted run starts over. With ``shards`` the model
    has its weights at ends of epochs and after the steps in ``looks``.
    """

    router = None  # the weights themselves are tuned: there is nothing to choose per row

    def __init__(self, loaded: Any, *, workspace: Path | None = None, **options: Any) -> None:
        super().__init__(loaded, **options)
        self.folder = workspace
        self._shelves: dict[str, Shelf] = {}  # of the lanes trained here
        self._now: State | None = None  # what the model is; None for anything but the end of an epoch

    # ---- training -------------------------------------------------------------------------------------------------

    def train(
        self,
        specs: Sequence[LaneSpec],
        *,
        on_epoch: OnEpoch | None = None,
        on_step: Callable[[StepInfo], None] | None = None,
        on_recall: Callable[[list[LaneEpoch]], None] | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> dict[str, Lane]:
        """Train every lane to its end; ``on_epoch`` may score the model as it is, and drop the lane.

        The epochs that an earlier run made of a lane are told to ``on_recall`` when the lane's turn comes.
        """
        lanes = {spec.key: Lane(spec) for spec in specs}
        for lane in lanes.values():
            _FullLane(self, lane, on_epoch, on_step, on_recall, stop).go()
            if not lane.over:
                break
        return {key: lane.ended() for key, lane in lanes.items()}

    def begin(self, spec: LaneSpec) -> Path | None:
        """Make the model and the folder ready for a lane."""
        self.bare()
        if self.folder is None:
            self._shelves[spec.key] = Shelf(None)
            return None
        name = hashlib.sha256(f"full lane 1\n{self.fingerprint}\n{spec.fingerprint()}".encode()).hexdigest()
        folder = self.folder / name[:24]
        self._shelves[spec.key], self.workspace = Shelf(folder), folder / UNDER_WAY
        return folder

    def reach(self, state: State | None) -> None:
        """Note what the model is now."""
        self._now = state

    # ---- states ---------------------------------------------------------------------------------------------------

    def slot(self, lane_key: str) -> None:
        """Return the owner number to give to the scorer: none, for the model itself is the lane's."""

    def hold(self, states: Collection[State]) -> None:
        """Keep these lanes' epochs, the current one now, and let go of all others."""
        if self._now is not None and self._now in states:
            weights = {str(place): weight for place, weight in enumerate(self.weights())}
            self._shelves[self._now[0]].put(*self._now, weights)
        for shelf in self._shelves.values():
            shelf.keep(states)

    def restore(self, lane_key: str, epoch: int) -> None:
        """Put a held state back into the model."""
        if self._now == (lane_key, epoch):
            return
        shelf = self._shelves.get(lane_key)
        held = shelf.get(lane_key, epoch) if shelf is not None else None
        if held is None:
            if shelf is not None and shelf.folder is not None:  # so that the next run does not trust its notes
                shutil.rmtree(shelf.folder, ignore_errors=True)
            raise TuningError(
                f"the weights of lane {lane_key} after epoch {epoch} are not there",
                hint="run the same command again to compute them anew",
            )
        self.put([held[str(place)] for place in range(len(held))])
        self._now = lane_key, epoch

    def bare(self) -> None:
        """Put the original weights back, so that the untuned model is scored."""
        self.put()
        self._now = None


class _FullLane:
    """One lane from its first step, or from its notes, to its end or a request to stop."""

    def __init__(
        self,
        trainer: FullLanes,
        lane: Lane,
        on_epoch: OnEpoch | None,
        on_step: Callable[[StepInfo], None] | None,
        on_recall: Callable[[list[LaneEpoch]], None] | None,
        stop: Callable[[], bool] | None,
    ) -> None:
        self.trainer, self.lane, self.spec = trainer, lane, lane.spec
        self.on_epoch, self.on_step, self.on_recall, self.stop = on_epoch, on_step, on_recall, stop
        self.before: int | None = None  # steps that an earlier run had made

    def go(self) -> None:
        lane, spec = self.lane, self.spec
        lane.status = "training"
        self.folder = self.trainer.begin(spec)
        self._recall()
        if lane.over:
            return
        lane.began = time.monotonic()
        try:
            self.trainer.tune(
                spec.examples,
                spec.schedule,
                seed=spec.seed,
                checkpoints=range(spec.steps_per_epoch, spec.total_steps + 1, spec.steps_per_epoch),
                on_checkpoint=self._end_epoch,
                on_step=self._step,
                stop=lambda: lane.over or (self.stop is not None and self.stop()),
            )
        except DivergedError as error:
            lane.status, lane.reason = "failed", error.message
        if len(self.trainer.steps) == spec.total_steps and not lane.over:
            lane.status = "done"
            self.trainer.reach((spec.key, lane.epochs[-1].epoch))
        self._note()

    def _step(self, done: FullStep) -> None:
        self.trainer.reach(None)
        if self.before is None:
            self.before = done.step - 1
        if self.on_step is not None:
            rows = self.spec.schedule.batch
            self.on_step(StepInfo(done.step, 1, 0, rows, done.tokens, done=done.step, before=self.before))

    def _end_epoch(self, done: FullStep) -> None:
        lane, spec = self.lane, self.spec
        epoch = done.step // spec.steps_per_epoch
        if any(known.epoch == epoch for known in lane.epochs):
            return  # an earlier run had come this far, and was stopped before its next snapshot
        steps = self.trainer.steps[-spec.steps_per_epoch :]
        loss = sum(step.loss for step in steps) / len(steps)
        tokens, seconds = sum(step.tokens for step in steps), time.monotonic() - lane.began
        made = LaneEpoch(spec.key, epoch, done.step, loss, tokens, seconds)
        self.trainer.reach((spec.key, epoch))
        dropped = self.on_epoch([made]) if self.on_epoch is not None else None
        lane.epochs.append(made)
        lane.step = done.step
        if done.step < spec.total_steps and spec.key in (dropped or ()):
            lane.status = "dropped"
        self._note()
        lane.began = time.monotonic()

    # ---- notes ----------------------------------------------------------------------------------------------------

    def _note(self) -> None:
        if self.folder is None:
            return
        write_sealed(self.folder / NOTES, {}, self.lane.record())
        if self.lane.over:
            shutil.rmtree(self.folder / UNDER_WAY, ignore_errors=True)

    def _recall(self) -> None:
        """Take up the notes of an earlier run; without them its snapshots are worth nothing."""
        found = read_sealed(self.folder / NOTES) if self.folder is not None else None
        if found is not None:
            self.lane.recall(found[1])
            if self.on_recall is not None:
                self.on_recall(self.lane.epochs)
        elif self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            self._note()
