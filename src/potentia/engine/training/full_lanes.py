"""Full fine-tunings as lanes (``method: full``): all weights of the model, one lane after another.

The recipe of "Training on the test task" (appendix B.2) is tuned like this. The calls are those of
:class:`~potentia.engine.training.lanes.LaneTrainer`. A lane here has all weights of the model to itself, and the
state of an epoch is as large as the model: only those that :meth:`FullLanes.hold` names are kept. Weights and moments
are saved now and then and when asked to stop; an interrupted lane goes on from there, on a CPU bit for bit as if it
had not been interrupted. The results of its epochs are written to notes beside it. Of a lane that is over only the
notes and the kept states remain.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
import time
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from potentia.engine.lane_spec import LaneSpec, TrainingRow
from potentia.engine.models.float32_copy import open_float32_copy
from potentia.engine.models.quantization import is_quantised
from potentia.engine.models.split_model import asking
from potentia.engine.proof.full_rehearsal import (
    find_sharded_fault,
    reference_step_gradients,
    rehearse_full_step,
)
from potentia.engine.proof.plan_check import check_full_step_plan, check_lane_is_complete
from potentia.engine.training.full import FullStep, FullTuningJob, check_full
from potentia.engine.training.lane import Lane, LaneEpoch, StepInfo
from potentia.engine.training.sharded import Shards
from potentia.engine.training.snapshot import SavedStates, read_sealed, write_sealed
from potentia.engine.training.trainer import Trainer, TrainingListener
from potentia.errors import TuningError
from potentia.timing import spending
from potentia.values.training_form import TrainingForm

log = logging.getLogger(__name__)

# what a lane's folder holds beside its kept states
NOTES = "notes.sealed"
UNDER_WAY = "under-way"

# shards run the model's own forward, which the padded form does not
LOCAL_FORMS = (TrainingForm.PADDED, TrainingForm.ONE_LANE, TrainingForm.ONE_ROW)
SHARDED_FORMS = (TrainingForm.ONE_LANE, TrainingForm.ONE_ROW)

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
        self.shards = shards
        self.looks = looks
        self.steps: list[FullStep] = []  # of the lane under way
        self.form = TrainingForm.PADDED  # the check chooses it
        self._checked_length = 0  # the longest text that the check covers
        self.parameters = list(self.model.parameters())  # a tied weight appears once
        self._originals = [parameter.detach().to("cpu", copy=True) for parameter in self.parameters]
        self._asking = ExitStack()
        self._asking.enter_context(asking(self.model, True))
        self._states_by_lane: dict[str, SavedStates] = {}  # of the lanes trained here
        # the state that the model's weights are; None for anything but the end of an epoch
        self.now: State | None = None

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

    def _train_lanes(self, lanes: dict[str, Lane], listener: TrainingListener) -> None:
        for lane in lanes.values():
            _FullLaneRun(self, lane, listener).train_to_the_end()
            if not lane.is_over:
                break

    def begin(self, spec: LaneSpec) -> Path | None:
        """Make the model ready for a lane, and return the lane's folder."""
        self.bare()
        folder = None
        if self.workspace is not None:
            identity = f"full lane 1\n{self.fingerprint}\n{spec.fingerprint()}"
            name = hashlib.sha256(identity.encode()).hexdigest()[:24]
            folder = self.workspace / name
        self._states_by_lane[spec.key] = SavedStates(folder)
        return folder

    def job(
        self, spec: LaneSpec, folder: Path | None
    ) -> AbstractContextManager[FullTuningJob | Shards]:
        """Make a lane's job, here or in several processes, in a form that gives the model's own gradients."""
        if self.shards > 1:
            self._choose_form(spec, SHARDED_FORMS)
            return Shards(self, spec, self.form, self.shards)
        self._choose_form(spec, LOCAL_FORMS)
        # weights, gradients, masters and two moments stay on the device
        self.plan = self.plan_passes(1, 1.0, reserved_bytes=self.parameters[0].element_size() + 12)
        snapshot_folder = None if folder is None else folder / UNDER_WAY
        return nullcontext(FullTuningJob(self, spec, self.form, snapshot_folder))

    def _choose_form(self, spec: LaneSpec, forms: Sequence[TrainingForm]) -> None:
        """Choose the first form whose losses and gradients are the model's own, unless texts as long were checked."""
        longest = min(self.limit, spec.longest_text)
        if self._checked_length >= longest:
            return
        with spending("check"), open_float32_copy(self.model) as reference:
            verdict = check_full(reference.model, spec, self.limit, forms)
        self.form = verdict.form
        self.may_recompute = verdict.recomputes
        self._checked_length = longest
        self.record["training"] = verdict.as_dict()

    # ---- states ---------------------------------------------------------------------------------------------------

    def slot(self, lane_key: str) -> None:
        """Return the owner number to give to the scorer: none, for the model itself is the lane's."""

    def hold(self, states: Collection[State]) -> None:
        """Keep these lanes' epochs, the current one now, and delete all others."""
        if self.now is not None and self.now in states:
            lane_key, epoch = self.now
            weights = {str(number): weight for number, weight in enumerate(self.weights())}
            self._states_by_lane[lane_key].save_state(lane_key, epoch, weights)
        for saved_states in self._states_by_lane.values():
            saved_states.keep_only(states)

    def restore(self, lane_key: str, epoch: int) -> None:
        """Put a held state back into the model."""
        if self.now == (lane_key, epoch):
            return
        saved_states = self._states_by_lane.get(lane_key)
        weights = None
        if saved_states is not None:
            weights = saved_states.load_state(lane_key, epoch)
        if weights is None:
            if saved_states is not None and saved_states.folder is not None:
                # so that the next run does not trust its notes
                shutil.rmtree(saved_states.folder, ignore_errors=True)
            raise TuningError(
                f"the weights of lane {lane_key} after epoch {epoch} are not there",
                hint="run the same command again to compute them anew",
            )
        self.put([weights[str(number)] for number in range(len(weights))])
        self.now = (lane_key, epoch)

    def bare(self) -> None:
        """Put the original weights back, so that the untuned model is scored."""
        self.put(self._originals)
        self.now = None


class _FullLaneRun:
    """One lane from its first step, or from its notes, to its end or a request to stop."""

    def __init__(self, trainer: FullLanes, lane: Lane, listener: TrainingListener) -> None:
        self.trainer = trainer
        self.lane = lane
        self.spec = lane.spec
        self.listener = listener
        self.folder = trainer.begin(lane.spec)

    def train_to_the_end(self) -> None:
        lane = self.lane
        total_steps = self.spec.total_steps
        lane.status = "training"
        self._read_notes()
        if lane.is_over:
            return
        with self.trainer.job(self.spec, self.folder) as job:
            steps = job.restore()
            self.trainer.steps = steps
            if isinstance(job, FullTuningJob):
                self._rehearse(job, len(steps))
            resumed_steps = len(steps)
            lane.began = time.monotonic()
            while len(steps) < total_steps and not lane.is_over and not self.listener.stop():
                self._make_step(job, steps, resumed_steps)
            if not lane.is_over:
                if len(steps) < total_steps:
                    job.save(steps, now=True)
                else:
                    check_lane_is_complete(self.spec, len(steps))
                    lane.status = "done"
                    self.trainer.now = (self.spec.key, lane.epochs[-1].epoch)
        self._write_notes()

    def _rehearse(self, job: FullTuningJob, step: int) -> None:
        """Compare the first step with the reference; where it differs, take the next slower form, or raise an error."""
        if step >= self.spec.total_steps:
            return
        trainer = self.trainer
        rows = self.spec.rows_of_step(step, trainer.limit)
        slower_forms = LOCAL_FORMS[LOCAL_FORMS.index(job.form) :]
        for form in slower_forms:
            job.form = form
            with spending("check"):
                result = rehearse_full_step(job, trainer.model, self.spec, step, rows)
            if result.refusal is None:
                trainer.form = form
                training_record = trainer.record["training"]
                training_record["form"] = form.value
                training_record["rehearsal"] = result.facts
                return
            model_name = type(trainer.model).__name__
            log.warning("%s: not tuned as %s: %s", model_name, form.words, result.refusal.reason)
            if not result.refusal.retry or form == slower_forms[-1]:
                raise TuningError(
                    f"{model_name} cannot be tuned here: {result.refusal.reason}",
                    hint="potentia doctor MODEL shows the distances",
                )

    def _make_step(
        self, job: FullTuningJob | Shards, steps: list[FullStep], resumed_steps: int
    ) -> None:
        """Make the next update, append it to ``steps`` and report it; end the lane where it diverges."""
        step_index = len(steps)
        schedule = self.spec.schedule
        rate = schedule.learning_rate * schedule.rate_share(step_index, self.spec.total_steps)
        rows = self.spec.rows_of_step(step_index, self.trainer.limit)
        check_full_step_plan(self.spec, step_index, rows, rate, self.trainer.limit)
        if isinstance(job, Shards) and step_index == 0:
            step = self._make_first_sharded_step(job, rows, rate)
        else:
            step = job.step(rows, rate)
        self.trainer.now = None
        step_number = step_index + 1
        if not step.sound:
            self.lane.status = "failed"
            self.lane.reason = (
                f"full tuning diverged at step {step_number}: "
                f"loss {step.loss:.3g}, gradient norm {step.norm:.3g}"
            )
            return
        steps.append(step)
        epoch, steps_beyond = divmod(step_number, self.spec.steps_per_epoch)
        ends_epoch = steps_beyond == 0
        if ends_epoch or step_number in self.trainer.looks:
            job.show()
        self.listener.on_step(
            StepInfo(
                step=step_number,
                active=1,
                waiting=0,
                tokens=step.tokens,
                done=step_number,
                before=resumed_steps,
            )
        )
        # an earlier run may have come this far, and been stopped before its next snapshot
        if ends_epoch and not self._has_epoch(epoch):
            self._end_epoch(epoch, steps)
        job.save(steps)

    def _make_first_sharded_step(
        self, job: Shards, rows: list[TrainingRow], rate: float
    ) -> FullStep:
        """Make the first update in several processes; raise an error where it is not that of each row alone."""
        model = self.trainer.model
        with spending("check"):
            reference = reference_step_gradients(model, rows)
        step = job.step(rows, rate)
        dtype = self.trainer.parameters[0].dtype
        fault = find_sharded_fault(reference, step.loss, step.norm, dtype)
        if fault is not None:
            raise TuningError(
                f"{type(model).__name__} cannot be tuned here: {fault}", hint="lower `shards`"
            )
        return step

    def _has_epoch(self, number: int) -> bool:
        return any(epoch.epoch == number for epoch in self.lane.epochs)

    def _end_epoch(self, number: int, steps: Sequence[FullStep]) -> None:
        """Report an epoch that ended with the last of these steps, and note it."""
        lane = self.lane
        key = self.spec.key
        epoch_steps = steps[-self.spec.steps_per_epoch :]
        epoch = LaneEpoch(
            key=key,
            epoch=number,
            step=len(steps),
            loss=sum(step.loss for step in epoch_steps) / len(epoch_steps),
            tokens=sum(step.tokens for step in epoch_steps),
            seconds=time.monotonic() - lane.began,
        )
        self.trainer.now = (key, number)
        dropped = self.listener.on_epoch([epoch]) or ()
        lane.epochs.append(epoch)
        lane.step = len(steps)
        if lane.step < self.spec.total_steps and key in dropped:
            lane.status = "dropped"
        self._write_notes()
        lane.began = time.monotonic()

    # ---- notes ----------------------------------------------------------------------------------------------------

    def _write_notes(self) -> None:
        """Write what the lane's epochs were; the snapshots of a lane that is over are deleted."""
        if self.folder is None:
            return
        write_sealed(self.folder / NOTES, {}, self.lane.to_record())
        if self.lane.is_over:
            shutil.rmtree(self.folder / UNDER_WAY, ignore_errors=True)

    def _read_notes(self) -> None:
        """Take up the notes of an earlier run; without notes its snapshots are of no use, and are deleted."""
        if self.folder is None:
            return
        notes = read_sealed(self.folder / NOTES)
        if notes is None:
            shutil.rmtree(self.folder, ignore_errors=True)
            self._write_notes()
            return
        _, record = notes
        self.lane.take_up_record(record)
        self.listener.on_recall(self.lane.epochs)
