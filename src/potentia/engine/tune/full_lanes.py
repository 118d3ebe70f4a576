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
from dataclasses import asdict
from pathlib import Path
from typing import Any

from potentia.engine.tune.checkpoint_file import Shelf, read_sealed, write_sealed
from potentia.engine.tune.full import DivergedError, FullStep, FullTrainer
from potentia.engine.tune.schedule import LaneEpoch, LaneResult, LaneSpec, OnEpoch, StepInfo
from potentia.errors import TuningError

NOTES, UNDER_WAY = "notes.sealed", "under-way"  # what a lane's folder holds beside its kept states
State = tuple[str, int]  # a lane's key and an epoch


class FullLanes:
    """Tunes all weights of a loaded model for one lane at a time, and puts any held state back for scoring.

    Without a ``workspace`` the held states stay in memory and an interrupted run starts over. With ``shards`` a job has
    so many processes, and the model has its weights at ends of epochs and after the steps in ``looks``. Use as a
    context manager, or call :meth:`close`, to put the original weights back.
    """

    router = None  # the weights themselves are tuned: there is nothing to choose per row

    def __init__(
        self,
        loaded: Any,
        *,
        token_budget: int | None = None,
        workspace: Path | None = None,
        shards: int = 1,
        looks: Collection[int] = (),
    ) -> None:
        self.trainer = FullTrainer(loaded, token_budget=token_budget, shards=shards, looks=looks)
        self.workspace = workspace
        self._shelves: dict[str, Shelf] = {}  # of the lanes trained here
        self._now: State | None = None  # what the model is; None for anything but the end of an epoch

    def __enter__(self) -> FullLanes:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Put the original weights back."""
        self.trainer.close()

    # ---- training -------------------------------------------------------------------------------------------------

    def train(
        self,
        specs: Sequence[LaneSpec],
        *,
        on_epoch: OnEpoch | None = None,
        on_step: Callable[[StepInfo], None] | None = None,
        on_recall: Callable[[list[LaneEpoch]], None] | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> dict[str, LaneResult]:
        """Train every lane to its end; ``on_epoch`` may score the model as it is, and drop the lane.

        The epochs that an earlier run made of a lane are told to ``on_recall`` when the lane's turn comes.
        """
        results: dict[str, LaneResult] = {}
        for spec in specs:
            results[spec.key] = _FullLane(self, spec, on_epoch, on_step, on_recall, stop).go()
            if results[spec.key].status == "interrupted":
                break
        waiting = [spec.key for spec in specs if spec.key not in results]
        return results | {key: LaneResult(key, "interrupted", [], 0, ()) for key in waiting}

    def begin(self, spec: LaneSpec) -> Path | None:
        """Make the model and the folder ready for a lane."""
        self.bare()
        if self.workspace is None:
            self._shelves[spec.key] = Shelf(None)
            return None
        name = hashlib.sha256(f"full lane 1\n{self.trainer.fingerprint}\n{spec.fingerprint()}".encode()).hexdigest()
        folder = Path(self.workspace) / name[:24]
        self._shelves[spec.key], self.trainer.workspace = Shelf(folder), folder / UNDER_WAY
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
            weights = {str(place): weight for place, weight in enumerate(self.trainer.weights())}
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
        self.trainer.put([held[str(place)] for place in range(len(held))])
        self._now = lane_key, epoch

    def bare(self) -> None:
        """Put the original weights back, so that the untuned model is scored."""
        self.trainer.put()
        self._now = None


class _FullLane:
    """One lane from its first step, or from its notes, to its end or a request to stop."""

    def __init__(
        self,
        lanes: FullLanes,
        spec: LaneSpec,
        on_epoch: OnEpoch | None,
        on_step: Callable[[StepInfo], None] | None,
        on_recall: Callable[[list[LaneEpoch]], None] | None,
        stop: Callable[[], bool] | None,
    ) -> None:
        self.lanes, self.spec = lanes, spec
        self.on_epoch, self.on_step, self.on_recall, self.stop = on_epoch, on_step, on_recall, stop
        self.epochs: list[LaneEpoch] = []
        self.status = "training"
        self.reason: str | None = None
        self.before: int | None = None  # steps that an earlier run had made

    def go(self) -> LaneResult:
        self.folder = self.lanes.begin(self.spec)
        self._recall()
        trainer, total = self.lanes.trainer, self.spec.total_steps
        if self.status == "training":
            self.began = time.monotonic()
            ends = range(self.spec.steps_per_epoch, total + 1, self.spec.steps_per_epoch)
            try:
                trainer.train(
                    self.spec.examples,
                    self.spec.schedule,
                    seed=self.spec.seed,
                    checkpoints=ends,
                    on_checkpoint=self._end_epoch,
                    on_step=self._step,
                    stop=lambda: self.status != "training" or (self.stop is not None and self.stop()),
                )
            except DivergedError as error:
                self.status, self.reason = "failed", error.message
            if len(trainer.steps) == total and self.status == "training":
                self.status = "done"
                self.lanes.reach((self.spec.key, self.epochs[-1].epoch))
            self._note()
        steps = self.epochs[-1].step if self.epochs else 0
        status = "interrupted" if self.status == "training" else self.status
        return LaneResult(self.spec.key, status, self.epochs, steps, (), self.reason)

    def _step(self, done: FullStep) -> None:
        self.lanes.reach(None)
        if self.before is None:
            self.before = done.step - 1
        if self.on_step is not None:
            rows = self.spec.schedule.batch
            self.on_step(StepInfo(done.step, 1, 0, rows, done.tokens, done=done.step, before=self.before))

    def _end_epoch(self, done: FullStep) -> None:
        epoch = done.step // self.spec.steps_per_epoch
        if any(known.epoch == epoch for known in self.epochs):
            return  # an earlier run had come this far, and was stopped before its next snapshot
        steps = self.lanes.trainer.steps[-self.spec.steps_per_epoch :]
        loss = sum(step.loss for step in steps) / len(steps)
        tokens, seconds = sum(step.tokens for step in steps), time.monotonic() - self.began
        made = LaneEpoch(self.spec.key, epoch, done.step, loss, tokens, seconds)
        self.lanes.reach((self.spec.key, epoch))
        dropped = self.on_epoch([made]) if self.on_epoch is not None else None
        self.epochs.append(made)
        if done.step < self.spec.total_steps and self.spec.key in (dropped or ()):
            self.status = "dropped"
        self._note()
        self.began = time.monotonic()

    # ---- notes ----------------------------------------------------------------------------------------------------

    def _note(self) -> None:
        if self.folder is None:
            return
        epochs = [asdict(epoch) for epoch in self.epochs]
        write_sealed(self.folder / NOTES, {}, {"status": self.status, "reason": self.reason, "epochs": epochs})
        if self.status != "training":
            shutil.rmtree(self.folder / UNDER_WAY, ignore_errors=True)

    def _recall(self) -> None:
        """Take up the notes of an earlier run; without them its snapshots are worth nothing."""
        found = read_sealed(self.folder / NOTES) if self.folder is not None else None
        if found is not None:
            facts = found[1]
            self.epochs = [LaneEpoch(**epoch) for epoch in facts["epochs"]]
            self.status, self.reason = facts["status"], facts["reason"]
            if self.on_recall is not None:
                self.on_recall(self.epochs)
        elif self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            self._note()
