"""Full fine-tunings as lanes (``method: full``): all weights of the model, one lane after another.

The recipe of "Training on the test task" (appendix B.2) is tuned like this. The calls are those of
:class:`~potentia.engine.training.lanes.LaneTrainer`. A lane here has all weights of the model to itself, and the
state of an epoch is as large as the model: only those that :meth:`FullLanes.hold` names are kept. Weights and moments
are saved now and then and when asked to stop; an interrupted lane goes on from there, on a CPU bit for bit as if it
had not been interrupted. What its epochs said is noted beside it, and a lane that is over leaves its notes and its
kept states alone.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from potentia.engine.lane_spec import LaneSpec
from potentia.engine.models.float32_copy import open_float32_copy
from potentia.engine.models.quantization import is_quantised
from potentia.engine.models.split_model import asking
from potentia.engine.training.full import FullStep, FullTuningJob, check_full
from potentia.engine.training.lane import Lane, LaneEpoch, StepInfo
from potentia.engine.training.sharded import Shards
from potentia.engine.training.snapshot import SavedStates, read_sealed, write_sealed
from potentia.engine.training.trainer import Trainer, TrainingListener
from potentia.errors import TuningError
from potentia.timing import spending
from potentia.values.training_form import TrainingForm

NOTES, UNDER_WAY = "notes.sealed", "under-way"  # what a lane's folder holds beside its kept states
State = tuple[str, int]  # a lane's key and an epoch


class FullLanes(Trainer):
    """Tunes all weights of a loaded model for one lane at a time, and puts any held state back for scoring.

    With ``shards`` a lane has so many processes; the model has its weights at ends of epochs and after the steps in
    ``looks``. When closed, the original weights come back.
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
        super().__init__(loaded, token_budget, workspace)
        if is_quantised(self.model):
            raise TuningError(
                "quantised weights cannot be tuned themselves", hint="use method: lora"
            )
        self.shards, self.looks = shards, looks
        self.steps: list[FullStep] = []  # of the lane under way
        self.form, self._checked = (
            TrainingForm.PADDED,
            0,
        )  # what the check found, up to which length
        self.parameters = list(self.model.parameters())  # a tied weight appears once
        self._originals = [parameter.detach().to("cpu", copy=True) for parameter in self.parameters]
        self._asking = ExitStack()
        self._asking.enter_context(asking(self.model, True))
        self._shelves: dict[str, SavedStates] = {}  # of the lanes trained here
        self.now: State | None = (
            None  # what the model is; None for anything but the end of an epoch
        )

    def close(self) -> None:
        """Put the original weights back."""
        self.bare()
        self._asking.close()
        super().close()

    def weights(self) -> list[Tensor]:
        """Return the weights as they are now; they change with the next step."""
        return [parameter.detach() for parameter in self.parameters]

    @torch.no_grad()
    def put(self, weights: Sequence[Tensor]) -> None:
        """Put these weights into the model."""
        for parameter, value in zip(self.parameters, weights, strict=True):
            parameter.copy_(value)
            parameter.grad = None

    def save(self, folder: Path) -> None:
        """Write the weights as they are now, in the model's own format."""
        self.model.save_pretrained(str(folder))  # type: ignore[operator]

    # ---- training -------------------------------------------------------------------------------------------------

    def _train(self, lanes: dict[str, Lane], watch: TrainingListener) -> None:
        for lane in lanes.values():
            _FullLane(self, lane, watch).go()
            if not lane.is_over:
                break

    def begin(self, spec: LaneSpec) -> Path | None:
        """Make the model ready for a lane; returns the lane's folder."""
        self.bare()
        folder = None
        if self.workspace is not None:
            name = hashlib.sha256(
                f"full lane 1\n{self.fingerprint}\n{spec.fingerprint()}".encode()
            ).hexdigest()
            folder = self.workspace / name[:24]
        self._shelves[spec.key] = SavedStates(folder)
        return folder

    def job(
        self, spec: LaneSpec, folder: Path | None
    ) -> AbstractContextManager[FullTuningJob | Shards]:
        """Make a lane's job, here or in several processes, in a form that is the model's own."""
        self._check(
            spec,
            (TrainingForm.PADDED, TrainingForm.ONE_LANE, TrainingForm.ONE_ROW)
            if self.shards == 1
            else (TrainingForm.ONE_LANE, TrainingForm.ONE_ROW),
        )
        if self.shards > 1:
            return Shards(self, spec, self.form, self.shards)
        # weights, gradients, masters and two moments stay on the device
        self.plan = self.plan_passes(1, 1.0, more=self.parameters[0].element_size() + 12)
        return nullcontext(
            FullTuningJob(self, spec, self.form, folder / UNDER_WAY if folder is not None else None)
        )

    def _check(self, spec: LaneSpec, forms: Sequence[TrainingForm]) -> None:
        """Find the first form whose losses and gradients are the model's own."""
        longest = min(self.limit, spec.longest_text)
        if self._checked >= longest:
            return
        with spending("check"), open_float32_copy(self.model) as judge:
            found = check_full(judge.model, spec, self.limit, forms)
        self.form, self.may_recompute, self._checked = found.form, found.recomputes, longest
        self.record["training"] = found.as_dict()

    # ---- states ---------------------------------------------------------------------------------------------------

    def slot(self, lane_key: str) -> None:
        """Return the owner number to give to the scorer: none, for the model itself is the lane's."""

    def hold(self, states: Collection[State]) -> None:
        """Keep these lanes' epochs, the current one now, and let go of all others."""
        if self.now is not None and self.now in states:
            weights = {str(place): weight for place, weight in enumerate(self.weights())}
            self._shelves[self.now[0]].save_state(*self.now, weights)
        for shelf in self._shelves.values():
            shelf.keep_only(states)

    def restore(self, lane_key: str, epoch: int) -> None:
        """Put a held state back into the model."""
        if self.now == (lane_key, epoch):
            return
        shelf = self._shelves.get(lane_key)
        held = shelf.load_state(lane_key, epoch) if shelf is not None else None
        if held is None:
            if (
                shelf is not None and shelf.folder is not None
            ):  # so that the next run does not trust its notes
                shutil.rmtree(shelf.folder, ignore_errors=True)
            raise TuningError(
                f"the weights of lane {lane_key} after epoch {epoch} are not there",
                hint="run the same command again to compute them anew",
            )
        self.put([held[str(place)] for place in range(len(held))])
        self.now = lane_key, epoch

    def bare(self) -> None:
        """Put the original weights back, so that the untuned model is scored."""
        self.put(self._originals)
        self.now = None


class _FullLane:
    """One lane from its first step, or from its notes, to its end or a request to stop."""

    def __init__(self, trainer: FullLanes, lane: Lane, watch: TrainingListener) -> None:
        self.trainer, self.lane, self.spec, self.watch = trainer, lane, lane.spec, watch
        self.folder = trainer.begin(lane.spec)

    def go(self) -> None:
        lane, spec = self.lane, self.spec
        lane.status = "training"
        self._recall()
        if lane.is_over:
            return
        with self.trainer.job(spec, self.folder) as job:
            steps = self.trainer.steps = job.restore()
            before, lane.began = len(steps), time.monotonic()
            while len(steps) < spec.total_steps and not lane.is_over and not self.watch.stop():
                self._one_step(job, steps, before)
            if not lane.is_over and len(steps) < spec.total_steps:
                job.save(steps, now=True)
            elif not lane.is_over:
                lane.status, self.trainer.now = "done", (spec.key, lane.epochs[-1].epoch)
        self._note()

    def _one_step(self, job: FullTuningJob | Shards, steps: list[FullStep], before: int) -> None:
        lane, schedule, at = self.lane, self.spec.schedule, len(steps) + 1
        rate = schedule.learning_rate * schedule.rate_share(at - 1, self.spec.total_steps)
        made = job.step(self.spec.rows_of_step(at - 1, self.trainer.limit), rate)
        self.trainer.now = None
        if not made.sound:
            lane.status = "failed"
            lane.reason = f"full tuning diverged at step {at}: loss {made.loss:.3g}, gradient norm {made.norm:.3g}"
            return
        steps.append(made)
        epoch, rest = divmod(at, self.spec.steps_per_epoch)
        if rest == 0 or at in self.trainer.looks:
            job.show()
        self.watch.on_step(StepInfo(at, 1, 0, made.tokens, done=at, before=before))
        # an earlier run may have come this far, and been stopped before its next snapshot
        if rest == 0 and all(known.epoch != epoch for known in lane.epochs):
            self._end_epoch(epoch, at, steps[-self.spec.steps_per_epoch :])
        job.save(steps)

    def _end_epoch(self, number: int, at: int, steps: Sequence[FullStep]) -> None:
        lane, key = self.lane, self.spec.key
        loss, tokens = (
            sum(step.loss for step in steps) / len(steps),
            sum(step.tokens for step in steps),
        )
        epoch = LaneEpoch(key, number, at, loss, tokens, time.monotonic() - lane.began)
        self.trainer.now = key, number
        dropped = self.watch.on_epoch([epoch]) or ()
        lane.epochs.append(epoch)
        lane.step = at
        if at < self.spec.total_steps and key in dropped:
            lane.status = "dropped"
        self._note()
        lane.began = time.monotonic()

    # ---- notes ----------------------------------------------------------------------------------------------------

    def _note(self) -> None:
        if self.folder is None:
            return
        write_sealed(self.folder / NOTES, {}, self.lane.to_record())
        if self.lane.is_over:
            shutil.rmtree(self.folder / UNDER_WAY, ignore_errors=True)

    def _recall(self) -> None:
        """Take up the notes of an earlier run; without them its snapshots are worth nothing."""
        if self.folder is None:
            return
        found = read_sealed(self.folder / NOTES)
        if found is not None:
            self.lane.take_up_record(found[1])
            self.watch.on_recall(self.lane.epochs)
        else:
            shutil.rmtree(self.folder, ignore_errors=True)
            self._note()
