"""Full fine-tuning (``method: full``): all weights of the model, one lane (fine-tuning) after another.

The recipe of "Training on the test task" (appendix B.2) tunes like this. :class:`FullLanes` has the methods of
:class:`~potentia.engine.training.lanes.LaneTrainer`, but a lane here has all weights of the model to itself. The state
of an epoch is as large as the model, so only the states that :meth:`FullLanes.keep_only_states` names are kept.

With a workspace, a lane's folder holds snapshots of weights and moments, saved now and then and when the run is asked
to stop. An interrupted lane goes on from there, on a CPU bit for bit as if it had not been interrupted. The folder also
holds notes: the lane's status and the results of its epochs. When a lane is over, only its notes and the kept states
remain.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
import time
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from potentia.engine.lane_spec import LaneSpec, TrainingRow
from potentia.engine.models.float32_copy import open_trial_model
from potentia.engine.models.loading import LoadedModel
from potentia.engine.models.quantization import is_quantised
from potentia.engine.models.split_model import requiring_gradients
from potentia.engine.proof.full_rehearsal import (
    find_sharded_fault,
    reference_step_gradients,
    rehearse_full_step,
)
from potentia.engine.proof.plan_check import check_full_step_plan, check_lane_is_complete
from potentia.engine.proof.refusal import cannot_tune_error
from potentia.engine.training.full import STATE_BYTES, FullStep, FullTuningJob, check_full
from potentia.engine.training.lane import Lane, LaneEpoch, StepInfo
from potentia.engine.training.sharded import Shards
from potentia.engine.training.snapshot import SavedStates, read_sealed, write_sealed
from potentia.engine.training.trainer import Trainer, TrainingListener
from potentia.errors import TuningError
from potentia.timing import spending
from potentia.values.fine_tuning import EpochResult, LaneStatus
from potentia.values.training_form import TrainingForm

log = logging.getLogger(__name__)

# what a lane's folder holds beside its kept states
NOTES = "notes.sealed"
UNDER_WAY = "under-way"  # the folder of snapshots

# from fast to slow; several processes run the model's own forward, which the padded form does not
LOCAL_FORMS = (TrainingForm.PADDED, TrainingForm.ONE_LANE, TrainingForm.ONE_ROW)
SHARDED_FORMS = (TrainingForm.ONE_LANE, TrainingForm.ONE_ROW)

StateKey = tuple[str, int]  # a lane's key and an epoch


class FullLanes(Trainer):
    """Fine-tunes all weights of a loaded model for one lane at a time, and puts any kept state back for scoring.

    With ``shards`` above one, that many processes train a lane together, and the model here gets the weights only at
    ends of epochs and after the steps (from 1) in ``scored_steps``. Closing the trainer puts the original weights back.
    """

    # for the scorer: the weights themselves are tuned, so no row has an adapter to choose
    router = None

    def __init__(
        self,
        loaded: LoadedModel | nn.Module,
        *,
        token_budget: int | None = None,
        workspace: Path | None = None,
        shards: int = 1,
        scored_steps: Collection[int] = (),
    ) -> None:
        super().__init__(loaded, token_budget, workspace)
        if is_quantised(self.model):
            raise TuningError(
                "quantised weights cannot be tuned themselves", hint="use method: lora"
            )
        self.shards = shards
        self.scored_steps = scored_steps
        self.steps: list[FullStep] = []  # of the lane under way
        self.form = TrainingForm.PADDED  # the check chooses it
        self._checked_length = 0  # the longest text that the check covers
        self.parameters = list(self.model.parameters())  # a tied weight appears once
        self._originals = [parameter.detach().to("cpu", copy=True) for parameter in self.parameters]
        self._gradients_required = ExitStack()
        self._gradients_required.enter_context(requiring_gradients(self.model, True))
        self._states_by_lane: dict[str, SavedStates] = {}  # of the lanes trained here
        # the lane and epoch whose state the model's weights are now; None for any other weights
        self.loaded_key: StateKey | None = None

    def close(self) -> None:
        """Put the original weights back."""
        self.restore_untuned()
        self._gradients_required.close()
        super().close()

    def current_weights(self) -> list[Tensor]:
        """Return the model's weights, not copied: they change with the next step."""
        return [parameter.detach() for parameter in self.parameters]

    @torch.no_grad()
    def load_weights(self, weights: Sequence[Tensor]) -> None:
        """Copy weights into the model."""
        for parameter, value in zip(self.parameters, weights, strict=True):
            parameter.copy_(value)
            parameter.grad = None

    def save_model(self, folder: Path) -> None:
        """Write the model with its current weights to a folder, as transformers does."""
        self.model.save_pretrained(str(folder))  # type: ignore[operator]

    # ---- training -------------------------------------------------------------------------------------------------

    def _train_lanes(self, lanes: dict[str, Lane], listener: TrainingListener) -> None:
        for lane in lanes.values():
            _FullLaneRun(self, lane, listener).train_to_the_end()
            if not lane.is_over:
                break

    def begin_lane(self, lane_spec: LaneSpec) -> Path | None:
        """Put the original weights back for a lane to begin with, and return the lane's folder in the workspace."""
        self.restore_untuned()
        folder = None
        if self.workspace is not None:
            identity = f"full lane 1\n{self.fingerprint}\n{lane_spec.fingerprint()}"
            folder_name = hashlib.sha256(identity.encode()).hexdigest()[:24]
            folder = self.workspace / folder_name
        self._states_by_lane[lane_spec.key] = SavedStates(folder)
        return folder

    def make_job(
        self, lane_spec: LaneSpec, folder: Path | None
    ) -> AbstractContextManager[FullTuningJob | Shards]:
        """Make a lane's job, here or in several processes, in a form whose gradients are the reference's."""
        if self.shards > 1:
            self._choose_form(lane_spec, SHARDED_FORMS)
            return Shards(self, lane_spec, self.form, self.shards)
        self._choose_form(lane_spec, LOCAL_FORMS)
        # beside each weight the device holds its gradient, its master and two moments
        reserved_bytes = self.parameters[0].element_size() + STATE_BYTES
        self.plan = self.plan_passes(1, 1.0, reserved_bytes=reserved_bytes)
        snapshot_folder = None if folder is None else folder / UNDER_WAY
        return nullcontext(FullTuningJob(self, lane_spec, self.form, snapshot_folder))

    def _choose_form(self, lane_spec: LaneSpec, forms: Sequence[TrainingForm]) -> None:
        """Choose the first form whose loss and gradients are the reference's; it holds for shorter texts too."""
        longest = min(self.limit, lane_spec.longest_text)
        if self._checked_length >= longest:
            return
        with spending("check"), open_trial_model(self.model) as trial_model:
            form_check = check_full(trial_model.model, lane_spec, self.limit, forms)
        self.form = form_check.form
        self.may_recompute = form_check.may_recompute
        self._checked_length = longest
        self.record_training(form_check.facts)

    # ---- states ---------------------------------------------------------------------------------------------------

    def slot(self, lane_key: str) -> None:
        """Return None, which the scorer takes as the owner of a request: the model's weights are the lane's."""

    def keep_only_states(self, kept: Collection[StateKey]) -> None:
        """Keep the states of these lanes and epochs, and delete all others; the model's current state is saved now."""
        if self.loaded_key is not None and self.loaded_key in kept:
            lane_key, epoch = self.loaded_key
            weights = {str(number): weight for number, weight in enumerate(self.current_weights())}
            self._states_by_lane[lane_key].save_state(lane_key, epoch, weights)
        for saved_states in self._states_by_lane.values():
            saved_states.keep_only(kept)

    def restore(self, lane_key: str, epoch: int) -> None:
        """Put a kept state back into the model."""
        if self.loaded_key == (lane_key, epoch):
            return
        saved_states = self._states_by_lane.get(lane_key)
        weights = None
        if saved_states is not None:
            weights = saved_states.load_state(lane_key, epoch)
        if weights is None:
            if saved_states is not None and saved_states.folder is not None:
                # its notes (NOTES) say that the epoch is finished: without them the next run trains the lane again
                shutil.rmtree(saved_states.folder, ignore_errors=True)
            raise TuningError(
                f"the weights of fine-tuning {lane_key} after epoch {epoch} are not there",
                hint="run the same command again to compute them again",
            )
        self.load_weights([weights[str(number)] for number in range(len(weights))])
        self.loaded_key = (lane_key, epoch)

    def restore_untuned(self) -> None:
        """Put the original weights back, so that every forward pass is the untuned model's."""
        self.load_weights(self._originals)
        self.loaded_key = None


class _FullLaneRun:
    """Trains one lane, from its first step or its snapshot, to its end or a request to stop."""

    def __init__(self, trainer: FullLanes, lane: Lane, listener: TrainingListener) -> None:
        self.trainer = trainer
        self.lane = lane
        self.spec = lane.spec
        self.listener = listener
        self.folder = trainer.begin_lane(lane.spec)

    def train_to_the_end(self) -> None:
        """Train until the lane is over or the listener asks to stop."""
        lane = self.lane
        total_steps = self.spec.total_steps
        lane.status = LaneStatus.TRAINING
        self._read_notes()
        if lane.is_over:
            return
        with self.trainer.make_job(self.spec, self.folder) as tuning_job:
            done_steps = tuning_job.restore()
            self.trainer.steps = done_steps
            if isinstance(tuning_job, FullTuningJob):
                self._rehearse(tuning_job, len(done_steps))
            resumed_steps = len(done_steps)
            lane.epoch_began = time.monotonic()
            while len(done_steps) < total_steps and not lane.is_over and not self.listener.stop():
                self._make_step(tuning_job, done_steps, resumed_steps)
            if not lane.is_over:
                if len(done_steps) < total_steps:
                    tuning_job.save(done_steps, now=True)
                else:
                    check_lane_is_complete(self.spec, len(done_steps))
                    lane.status = LaneStatus.DONE
                    self.trainer.loaded_key = (self.spec.key, lane.epochs[-1].epoch)
        self._write_notes()

    def _rehearse(self, tuning_job: FullTuningJob, step: int) -> None:
        """Compare the next step with the reference (``proof.full_rehearsal``), and put everything back.

        Where it differs, take the next slower form; raise an error where there is none, or no form would help.
        """
        if step >= self.spec.total_steps:
            return
        trainer = self.trainer
        rows = self.spec.rows_of_step(step, trainer.limit)
        slower_forms = LOCAL_FORMS[LOCAL_FORMS.index(tuning_job.form) :]
        for training_form in slower_forms:
            tuning_job.form = training_form
            with spending("check"):
                result = rehearse_full_step(tuning_job, trainer.model, self.spec, step, rows)
            if result.refusal is None:
                trainer.form = training_form
                training_facts = replace(
                    trainer.training_facts, form=training_form, rehearsal=result.facts
                )
                trainer.record_training(training_facts)
                return
            model_name = type(trainer.model).__name__
            log.warning(
                "%s: not tuned as %s: %s", model_name, training_form.words, result.refusal.reason
            )
            if not result.refusal.retry or training_form == slower_forms[-1]:
                raise cannot_tune_error(trainer.model, result.refusal)

    def _make_step(
        self, tuning_job: FullTuningJob | Shards, done_steps: list[FullStep], resumed_steps: int
    ) -> None:
        """Make the next update, append it to ``done_steps`` and report it; fail the lane where it diverges."""
        step = self._compute_step(tuning_job, step_index=len(done_steps))
        self.trainer.loaded_key = None
        step_number = len(done_steps) + 1
        if not step.is_finite:
            self.lane.status = LaneStatus.FAILED
            self.lane.reason = (
                f"full tuning diverged at step {step_number}: "
                f"loss {step.loss:.3g}, gradient norm {step.gradient_norm:.3g}"
            )
            return
        done_steps.append(step)
        epoch, steps_into_next_epoch = divmod(step_number, self.spec.steps_per_epoch)
        ends_epoch = steps_into_next_epoch == 0
        if ends_epoch or step_number in self.trainer.scored_steps:
            tuning_job.publish_weights()
        step_info = StepInfo(
            step=step_number,
            active=1,
            waiting=0,
            tokens=step.tokens,
            done=step_number,
            resumed=resumed_steps,
        )
        self.listener.on_step(step_info)
        # an earlier run may have reported this epoch, and been killed before its next snapshot
        if ends_epoch and not self._has_epoch(epoch):
            self._end_epoch(epoch, done_steps)
        tuning_job.save(done_steps)

    def _compute_step(self, tuning_job: FullTuningJob | Shards, step_index: int) -> FullStep:
        """Make the update number ``step_index`` (from 0), after a check that it is what the recipe says."""
        schedule = self.spec.schedule
        rate_share = schedule.rate_share(step_index, self.spec.total_steps)
        learning_rate = schedule.learning_rate * rate_share
        rows = self.spec.rows_of_step(step_index, self.trainer.limit)
        check_full_step_plan(self.spec, step_index, rows, learning_rate, self.trainer.limit)
        # a job of several processes always begins with step 0, as nothing of it is saved
        if isinstance(tuning_job, Shards) and step_index == 0:
            return self._make_first_sharded_step(tuning_job, rows, learning_rate)
        return tuning_job.step(rows, learning_rate)

    def _make_first_sharded_step(
        self, tuning_job: Shards, rows: list[TrainingRow], learning_rate: float
    ) -> FullStep:
        """Make the first update in several processes; raise an error where it differs from the reference."""
        model = self.trainer.model
        with spending("check"):
            reference = reference_step_gradients(model, rows)
        step = tuning_job.step(rows, learning_rate)
        dtype = self.trainer.parameters[0].dtype
        fault = find_sharded_fault(reference, step.loss, step.gradient_norm, dtype)
        if fault is not None:
            raise TuningError(
                f"{type(model).__name__} cannot be tuned here: {fault}", hint="lower `shards`"
            )
        return step

    def _has_epoch(self, number: int) -> bool:
        return any(epoch.epoch == number for epoch in self.lane.epochs)

    def _end_epoch(self, number: int, done_steps: Sequence[FullStep]) -> None:
        """Report the epoch that ended with the last of these steps, and write it to the notes.

        The listener, who may score the weights meanwhile, says whether to drop the lane.
        """
        lane = self.lane
        key = self.spec.key
        epoch_steps = done_steps[-self.spec.steps_per_epoch :]
        result = EpochResult(
            epoch=number,
            train_loss=sum(step.loss for step in epoch_steps) / len(epoch_steps),
            tokens=sum(step.tokens for step in epoch_steps),
            seconds=time.monotonic() - lane.epoch_began,
        )
        epoch = LaneEpoch(key, len(done_steps), result)
        self.trainer.loaded_key = (key, number)
        dropped_keys = self.listener.on_epoch([epoch]) or ()
        lane.epochs.append(epoch)
        lane.step = len(done_steps)
        if lane.step < self.spec.total_steps and key in dropped_keys:
            lane.status = LaneStatus.DROPPED
        self._write_notes()
        lane.epoch_began = time.monotonic()

    # ---- notes ----------------------------------------------------------------------------------------------------

    def _write_notes(self) -> None:
        """Write the lane's status and epochs; delete the snapshots of a lane that is over."""
        if self.folder is None:
            return
        write_sealed(self.folder / NOTES, {}, self.lane.to_record())
        if self.lane.is_over:
            shutil.rmtree(self.folder / UNDER_WAY, ignore_errors=True)

    def _read_notes(self) -> None:
        """Go on from the notes of an earlier run; without readable notes, delete its folder and start over."""
        if self.folder is None:
            return
        notes = read_sealed(self.folder / NOTES)
        if notes is not None and not self.lane.can_restore(notes.facts):
            log.warning(
                "fine-tuning %s starts over: another version saved its state", self.lane.key
            )
            notes = None
        if notes is None:
            shutil.rmtree(self.folder, ignore_errors=True)
            self._write_notes()
            return
        self.lane.restore(notes.facts)
        self.listener.on_resume(self.lane.epochs)
