"""One run of lanes with the same adapter shape: slots filled from a queue, steps, epochs, failures, snapshots.

A lane is one fine-tuning. It trains in a slot, where its adapter and its optimizer's state lie; there may be more lanes
than slots, and the others wait. Each step makes one update of every lane that has a slot.
"""

from __future__ import annotations

import hashlib
import logging
import math
import re
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, fields, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from potentia.engine.lane_spec import LaneSpec, TrainingRow
from potentia.engine.layers.adapter_bank import AdapterBank, lane_state_bytes
from potentia.engine.layers.fused_layers import FusedLayers
from potentia.engine.models.device_layout import find_blocks
from potentia.engine.models.quantization import count_parameters
from potentia.engine.proof.handover_check import (
    LaneDigest,
    check_begun_lanes,
    check_resumed_lanes,
    digest_lane,
)
from potentia.engine.proof.plan_check import check_lane_is_complete, check_step_plan
from potentia.engine.proof.rehearsal import RehearsalFailedError, rehearse_first_step
from potentia.engine.proof.training_steps import TrainingStepper, make_stepper
from potentia.engine.steps.lane_states import (
    STATE_NAMES,
    UPDATE_COLUMNS,
    LaneStates,
    settings_of_update,
)
from potentia.engine.steps.packed_steps import PackedStepper
from potentia.engine.steps.pass_plan import LEAST_TOKENS, MEMORY_HINT, PassPlan
from potentia.engine.training.lane import Lane, LaneEpoch, StepInfo
from potentia.engine.training.snapshot import SavedStates, SealedContent, Snapshots
from potentia.engine.training.trainer import TrainingListener
from potentia.timing import spending
from potentia.values.fine_tuning import EpochResult, LaneStatus
from potentia.values.recipe import LoraConfig
from potentia.values.training_form import TrainingForm

if TYPE_CHECKING:
    from potentia.engine.training.lanes import LaneTrainer

log = logging.getLogger(__name__)

HEALTH_CHECK_STEPS = 25  # between two checks whether losses are finite: each waits for the device
SNAPSHOT_SECONDS = 60.0  # between two snapshots: the work that a kill may cost
# times a blind guess's loss, and the first step's: a mean loss above both has diverged
DIVERGED_FACTOR = 2.0
SNAPSHOT_VERSION = "7"  # a run does not find the snapshots of other versions


class LaneRun:
    """Trains lanes with one shape of adapter, from the first step or a snapshot, until all end or it has to stop."""

    # made when the training begins, for as many slots as the plan has
    bank: AdapterBank
    states: LaneStates
    stepper: TrainingStepper

    def __init__(
        self,
        trainer: LaneTrainer,
        lora: LoraConfig,
        lanes: Sequence[Lane],
        listener: TrainingListener,
    ) -> None:
        self.trainer = trainer
        self.lora = lora
        self.listener = listener
        # the longest lanes first, so that no long one is left alone at the end; ties keep the given order
        longest_first = sorted(lanes, key=lambda lane: -lane.spec.total_steps)
        self.lanes = {lane.key: lane for lane in longest_first}
        folder = self._states_folder()
        self.saved_states = SavedStates(folder)
        self.snapshots = Snapshots(folder, SNAPSHOT_SECONDS)
        self.step = 0
        self._resumed_steps = 0  # updates of all lanes that an earlier run had made

    def _states_folder(self) -> Path | None:
        """Return the folder for the states and snapshots of exactly these lanes on this model."""
        if self.trainer.workspace is None:
            return None
        lane_fingerprints = [lane.spec.fingerprint() for lane in self.lanes.values()]
        identity = [SNAPSHOT_VERSION, self.trainer.fingerprint, *lane_fingerprints]
        folder_name = hashlib.sha256("\n".join(identity).encode()).hexdigest()[:24]
        return Path(self.trainer.workspace) / folder_name

    def train_to_the_end(self) -> None:
        """Train until every lane is over or the listener asks to stop."""
        snapshot = self._read_snapshot()
        if snapshot is None:
            pass_plan = self._plan_new_run()
        else:
            pass_plan = PassPlan(**snapshot.facts["plan"])
        self.trainer.plan = pass_plan
        self.bank = self.trainer.install_bank(self.lora, pass_plan.slots)
        self.states = LaneStates(pass_plan.slots, self.bank.width, self.bank.device)
        self.bank.grads.zero_()
        self.stepper = self._make_stepper(pass_plan)
        self._record_adapted_layers()
        if snapshot is not None:
            self._restore_snapshot(snapshot.tensors, snapshot.facts)
            finished_epochs: list[LaneEpoch] = []
            for lane in self.lanes.values():
                finished_epochs += lane.epochs
            self.listener.on_resume(finished_epochs)
        is_rehearsed = False
        while self._fill_free_slots() and not self.listener.stop():
            if not is_rehearsed:
                self._rehearse()
                is_rehearsed = True
            self._make_step()
        self._save_snapshot(now=True)
        self.stepper.release()
        self.trainer.note_occupied_slots({})
        for lane in self.lanes.values():
            lane.targets = self.bank.targets

    def _record_adapted_layers(self) -> None:
        """Record which layers have adapters; names that differ in a block's number alone are counted together."""
        names = {site.name for site in self.bank.sites}  # a fused layer has several sites
        layers = Counter(re.sub(r"\b\d+\b", "*", layer_name) for layer_name in sorted(names))
        training_facts = replace(
            self.trainer.training_facts, targets=tuple(self.bank.targets), layers=dict(layers)
        )
        self.trainer.record_training(training_facts)

    def _make_stepper(
        self, pass_plan: PassPlan, blocks: FusedLayers | None = None
    ) -> TrainingStepper:
        """Make the stepper of the form that the check found; ``blocks`` are its fused layers, if made before."""
        training_form = self.trainer.form_check(self.lora).form
        stepper = make_stepper(training_form, self.trainer.split, self.bank, self.states, blocks)
        if isinstance(stepper, PackedStepper):
            # an estimate from the lanes that start together, which are those with the most steps
            first_lanes = list(self.lanes.values())[: pass_plan.slots]
            tokens_by_lane = [lane.spec.tokens_by_step(self.trainer.limit) for lane in first_lanes]
            tokens_by_step = map(sum, zip_longest(*tokens_by_lane, fillvalue=0))
            stepper.largest_step_tokens = int(max(tokens_by_step))
        return stepper

    def _rehearse(self) -> None:
        """Compare the first step with the reference, and put everything back; raise an error where it differs.

        The reference is the model's own code on each row alone (``proof.rehearsal``).
        """
        form_check = self.trainer.form_check(self.lora)
        rounding = form_check.facts.reference_rounding
        pass_plan = self.pass_plan
        with spending("check"):
            result = rehearse_first_step(
                self,
                self._active_lanes(),
                without_dropout=form_check.form == TrainingForm.ONE_LANE,
                reference_rounding=None if rounding is None else rounding.lane,
            )
        training_facts = replace(self.trainer.training_facts, rehearsal=result.facts)
        self.trainer.record_training(training_facts)
        self.stepper.release()
        if result.refusal is not None:
            for lane in self._active_lanes():
                lane.status = LaneStatus.WAITING
                lane.slot = None
            self.trainer.note_occupied_slots({})
            raise RehearsalFailedError(result.refusal)
        # forget what the rehearsal shrank and captured, so that the run goes on as one that was not rehearsed
        self.trainer.plan = pass_plan
        blocks = None
        if isinstance(self.stepper, PackedStepper):
            blocks = self.stepper.packed_pass.blocks
        self.stepper = self._make_stepper(pass_plan, blocks)

    @property
    def model(self) -> nn.Module:
        """The model that is tuned."""
        return self.trainer.model

    @property
    def token_limit(self) -> int:
        """The longest text that the model reads, in tokens."""
        return self.trainer.limit

    @property
    def pass_plan(self) -> PassPlan:
        """How steps are divided into passes now; a lack of memory may shrink it."""
        assert self.trainer.plan is not None
        return self.trainer.plan

    def _plan_new_run(self) -> PassPlan:
        """Plan a run without a snapshot: how many lanes at once, tokens a pass, whether activations are recomputed."""
        trainer = self.trainer
        tokens_per_step = [_mean_step_tokens(lane.spec) for lane in self.lanes.values()]
        parameters = 0
        activation_bytes = 0
        if trainer.form_check(self.lora).form is TrainingForm.FUSED:
            # fused layers know the memory that they keep; embeddings and head do little work for most tokens
            blocks = find_blocks(trainer.model)
            parameters = sum(map(count_parameters, blocks))
            activation_bytes = FusedLayers(blocks, joined=False).activation_bytes
        planned = trainer.plan_passes(
            len(tokens_per_step),
            sum(tokens_per_step) / len(tokens_per_step),
            parameters=parameters,
            known_activation_bytes=activation_bytes,
            lane_bytes=lane_state_bytes(trainer.model, self.lora),
        )
        # `plans_recomputation`, with which the check ran, does not count the adapters of all lanes. They may leave too
        # little memory for activations, so that the plan asks for recomputation nevertheless.
        asks_anew = planned.checkpointing and not trainer.plans_recomputation
        if not asks_anew:
            return replace(planned, checkpointing=trainer.plans_recomputation)
        is_allowed = trainer.recompute is None and trainer.may_recompute
        if is_allowed:
            return planned
        # the user forbids it, or it gives other gradients: as many lanes, in the smallest passes
        smallest_budget = min(planned.token_budget, LEAST_TOKENS)
        return replace(planned, token_budget=smallest_budget, checkpointing=False)

    # ---- slots ----------------------------------------------------------------------------------------------------

    def _active_lanes(self) -> list[Lane]:
        """Return the lanes in training, in the order of their slots."""
        lanes = [lane for lane in self.lanes.values() if lane.status == LaneStatus.TRAINING]
        return sorted(lanes, key=lambda lane: lane.slot if lane.slot is not None else -1)

    def _fill_free_slots(self) -> list[Lane]:
        """Begin waiting lanes in the free slots, in the queue's order; return all lanes in training."""
        taken_slots = {lane.slot for lane in self._active_lanes()}
        free_slots = [slot for slot in range(self.bank.slots) if slot not in taken_slots]
        waiting_lanes = [lane for lane in self.lanes.values() if lane.status == LaneStatus.WAITING]
        begun_lanes = list(zip(waiting_lanes, free_slots, strict=False))
        for lane, slot in begun_lanes:
            self.put_into_slot(lane, slot)
        if begun_lanes:
            self.bank.refresh_work()
            check_begun_lanes(self.bank, self.states, [slot for _, slot in begun_lanes])
        active_lanes = self._active_lanes()
        self.trainer.note_occupied_slots(
            {lane.key: lane.slot for lane in active_lanes if lane.slot is not None}
        )
        return active_lanes

    def put_into_slot(self, lane: Lane, slot: int) -> None:
        """Begin a lane in a slot, with a fresh adapter and nothing left of the lane that had the slot before."""
        lane.slot = slot
        lane.status = LaneStatus.TRAINING
        lane.epoch_began = time.monotonic()
        self.bank.weights[slot].copy_(self.bank.fresh_row(lane.spec.seed))
        self.states.reset(slot)

    def _end_lane(self, lane: Lane, status: LaneStatus, reason: str | None = None) -> None:
        """End a lane, and free its slot."""
        lane.status = status
        lane.reason = reason
        lane.slot = None

    # ---- one step of all active lanes -----------------------------------------------------------------------------

    def _make_step(self) -> None:
        """Make one update of every active lane, report it, and end the epochs that end with it."""
        active_lanes = self._active_lanes()
        rows = self.next_rows(active_lanes)
        table = self.update_table(active_lanes)
        check_step_plan(active_lanes, rows, table, self.token_limit)
        self.compute_gradients(rows)
        self.stepper.update(table)
        for lane in active_lanes:
            lane.step += 1
        self.step += 1
        due_lanes = [lane for lane in active_lanes if lane.step % lane.spec.steps_per_epoch == 0]
        if due_lanes or self.step % HEALTH_CHECK_STEPS == 0:
            self._fail_non_finite(active_lanes)
        waiting_count = sum(lane.status == LaneStatus.WAITING for lane in self.lanes.values())
        self.listener.on_step(
            StepInfo(
                step=self.step,
                active=len(active_lanes),
                waiting=waiting_count,
                tokens=sum(len(row.ids) for row in rows),
                done=self._count_updates(),
                resumed=self._resumed_steps,
            )
        )
        healthy_lanes = [lane for lane in due_lanes if lane.status == LaneStatus.TRAINING]
        if healthy_lanes:
            self._end_epochs(healthy_lanes)

    def saved_adapter(self, lane: Lane) -> Tensor | None:
        """Return the adapter that was saved at the end of a lane's last epoch; None where its file is broken."""
        tensors = self.saved_states.load_state(lane.key, lane.epochs[-1].epoch)
        return None if tensors is None else tensors["adapter"]

    def next_rows(self, lanes: Sequence[Lane]) -> list[TrainingRow]:
        """Return the rows of the next step of these lanes, slot by slot."""
        rows: list[TrainingRow] = []
        for lane in lanes:
            rows += lane.next_rows(self.trainer.limit)
        return rows

    def compute_gradients(self, rows: Sequence[TrainingRow]) -> None:
        """Add a step's gradients to the bank's, in smaller passes where memory runs out."""
        self.trainer.run_in_passes(
            rows, partial(self.stepper.add_gradients, rows), self.stepper.clear, MEMORY_HINT
        )

    def update_table(self, active: Sequence[Lane]) -> npt.NDArray[np.float32]:
        """Return the table of an update: by slot, the settings of the lanes that take a step (``lane_states``)."""
        table = np.zeros((self.bank.slots, UPDATE_COLUMNS), np.float32)
        for lane in active:
            settings = settings_of_update(lane.spec.schedule, lane.step, lane.spec.total_steps)
            takes_step = 1.0
            is_first_step = lane.step == 0
            table[lane.slot] = [*settings, takes_step, is_first_step]
        return table

    def _count_updates(self) -> int:
        """Return how many updates all lanes together have had, those of earlier runs included."""
        return sum(lane.step for lane in self.lanes.values())

    def _fail_non_finite(self, active_lanes: list[Lane]) -> None:
        """End the lanes that had an infinite or undefined loss or gradient; waits for the device."""
        is_non_finite = self.states.non_finite.tolist()
        for lane in active_lanes:
            if lane.slot is not None and is_non_finite[lane.slot]:
                reason = f"the loss or its gradient was not finite within {lane.step} steps"
                self._end_lane(lane, LaneStatus.FAILED, reason)

    # ---- ends of epochs -------------------------------------------------------------------------------------------

    def _end_epochs(self, due_lanes: list[Lane]) -> None:
        """End an epoch of these lanes: save their adapters, report the epochs, end lanes that diverged or are done.

        The listener, who may score the adapters in their slots meanwhile, says which lanes to drop.
        """
        loss_sums = self.states.loss_sums.tolist()
        first_losses = self.states.first_losses.tolist()
        loss_of_guessing = math.log(self.trainer.split.vocabulary)
        ended_epochs: dict[str, LaneEpoch] = {}
        for lane in due_lanes:
            lane_spec = lane.spec
            slot = lane.slot
            assert slot is not None
            mean_loss = loss_sums[slot] / lane_spec.steps_per_epoch
            first_loss = first_losses[slot]
            self.states.loss_sums[slot] = 0.0
            result = EpochResult(
                epoch=lane.step // lane_spec.steps_per_epoch,
                train_loss=mean_loss,
                tokens=lane.tokens,
                seconds=time.monotonic() - lane.epoch_began,
            )
            epoch = LaneEpoch(lane_spec.key, lane.step, result)
            lane.tokens = 0
            if mean_loss > DIVERGED_FACTOR * max(loss_of_guessing, first_loss):
                reason = (
                    f"diverged: mean loss {mean_loss:.3g} in epoch {epoch.epoch}, "
                    f"{first_loss:.3g} at the first step"
                )
                self._end_lane(lane, LaneStatus.FAILED, reason)
                continue
            adapter = self.bank.weights[slot]
            self.saved_states.save_state(lane_spec.key, epoch.epoch, {"adapter": adapter})
            lane.epochs.append(epoch)
            ended_epochs[lane_spec.key] = epoch
        dropped_keys: Collection[str] = ()
        if ended_epochs:
            dropped_keys = self.listener.on_epoch(list(ended_epochs.values())) or ()
        self.bank.route(None)  # whoever scored the adapters may have left them on
        for lane_key in ended_epochs:
            lane = self.lanes[lane_key]
            # after the scoring, which is no part of the next epoch
            lane.epoch_began = time.monotonic()
            if lane.step >= lane.spec.total_steps:
                check_lane_is_complete(lane.spec, lane.step)
                self._end_lane(lane, LaneStatus.DONE)
            elif lane_key in dropped_keys:
                self._end_lane(lane, LaneStatus.DROPPED)
        self._save_snapshot()

    # ---- snapshots ------------------------------------------------------------------------------------------------

    def _save_snapshot(self, now: bool = False) -> None:
        """Save the state of all lanes, if the last snapshot is old enough or ``now`` asks for one at once."""
        if not self.snapshots.is_due(now=now):
            return
        slots = [lane.slot for lane in self._active_lanes()]
        tensors = {name: part.cpu()[slots] for name, part in self._state_tensors().items()}
        lane_records = {key: lane.to_record() for key, lane in self.lanes.items()}
        facts = {
            "plan": asdict(self.pass_plan),
            "step": self.step,
            "lanes": lane_records,
            "slots": slots,
            "digests": self._digest_lanes(),
        }
        self.snapshots.save(tensors, facts)

    def _read_snapshot(self) -> SealedContent | None:
        """Return the newest snapshot; None where there is none, or another version wrote it in another layout."""
        snapshot = self.snapshots.read_latest()
        if snapshot is None or self._has_known_layout(snapshot.tensors, snapshot.facts):
            return snapshot
        log.warning(
            "%d fine-tunings start over: another version of Potentia saved their state",
            len(self.lanes),
        )
        return None

    def _has_known_layout(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> bool:
        """Whether a snapshot has the parts that :meth:`_save_snapshot` writes."""
        if facts.keys() - {"serial"} != {"plan", "step", "lanes", "slots", "digests"}:
            return False
        if tensors.keys() != {"weights", *STATE_NAMES}:
            return False
        if facts["plan"].keys() != {part.name for part in fields(PassPlan)}:
            return False
        lane_records = facts["lanes"]
        if lane_records.keys() != self.lanes.keys():
            return False
        return all(lane.can_restore(lane_records[key]) for key, lane in self.lanes.items())

    def _digest_lanes(self) -> dict[str, LaneDigest]:
        """Return the checksums of every active lane's state, by the lane's key."""
        state = self._state_tensors()
        digests: dict[str, LaneDigest] = {}
        for lane in self._active_lanes():
            assert lane.slot is not None
            digests[lane.key] = digest_lane(state, lane.slot, lane.step)
        return digests

    def _state_tensors(self) -> dict[str, Tensor]:
        """Return the tensors that a step changes, each stacked by slot, under their names in snapshots."""
        return {"weights": self.bank.weights, **self.states.named_tensors()}

    def _restore_snapshot(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Put a snapshot's state back; where an adapter of a finished epoch is broken, all lanes start over instead.

        Training the lane with the broken file alone would not do: a lane's last bits depend on the lanes beside it.
        """
        lane_records = facts["lanes"]
        if not self._has_all_adapters(lane_records):
            return
        slots = torch.tensor(facts["slots"], dtype=torch.long, device=self.bank.device)
        for tensor_name, part in self._state_tensors().items():
            part.index_copy_(0, slots, tensors[tensor_name].to(self.bank.device))
        self.step = int(facts["step"])
        for lane_key, lane in self.lanes.items():
            lane.restore(lane_records[lane_key])
        self._resumed_steps = self._count_updates()
        self.bank.refresh_work()
        check_resumed_lanes(facts["digests"], self._digest_lanes(), self.bank)

    def _has_all_adapters(self, lane_records: Mapping[str, Mapping[str, Any]]) -> bool:
        """Return whether the adapter of every finished epoch is on disk and unbroken."""
        for lane_key in self.lanes:
            for record in lane_records[lane_key]["epochs"]:
                epoch = LaneEpoch.from_record(record).epoch
                if self.saved_states.load_state(lane_key, epoch) is None:
                    return False
        return True


def _mean_step_tokens(lane_spec: LaneSpec) -> float:
    """Estimate how many tokens a step of a lane has, from the mean length of its examples."""
    mean_length = min(lane_spec.schedule.max_tokens, float(lane_spec.examples.lengths.mean()))
    return mean_length * lane_spec.schedule.batch
