"""One run of lanes with the same adapter shape: slots filled from a queue, steps, epochs, failures, snapshots."""

from __future__ import annotations

import hashlib
import math
import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from potentia.engine.lane_spec import LaneSpec, LoraConfig, TrainingRow
from potentia.engine.layers.adapter_bank import AdapterBank, lane_state_bytes
from potentia.engine.layers.fused_layers import FusedLayers
from potentia.engine.models.device_layout import find_blocks
from potentia.engine.models.quantization import count_parameters
from potentia.engine.proof.handover_check import check_begun_lanes, check_resumed_lanes, digest_lane
from potentia.engine.proof.plan_check import check_lane_is_complete, check_step_plan
from potentia.engine.proof.rehearsal import RehearsalFailedError, rehearse_first_step
from potentia.engine.proof.training_steps import TrainingSteps, make_steps
from potentia.engine.steps.lane_states import UPDATE_COLUMNS, LaneStates, update_settings
from potentia.engine.steps.packed_steps import PackedSteps
from potentia.engine.steps.pass_plan import LEAST_TOKENS, MEMORY_HINT, PassPlan
from potentia.engine.training.lane import Lane, LaneEpoch, StepInfo
from potentia.engine.training.snapshot import SavedStates, Snapshots
from potentia.engine.training.trainer import TrainingListener
from potentia.timing import spending
from potentia.values.training_form import TrainingForm

if TYPE_CHECKING:
    from potentia.engine.training.lanes import LaneTrainer

LOOK_EVERY = 25  # steps between two looks at the lanes' health: each look waits for the device
SNAPSHOT_SECONDS = 60.0  # that a kill may cost
SNAPSHOT_FORM = "7"  # snapshots of another form are not taken up


class LaneRun:
    """Lanes in their slots, from the first step or a snapshot to the end of the queue or a request to stop."""

    def __init__(
        self, trainer: LaneTrainer, lora: LoraConfig, lanes: Sequence[Lane], watch: TrainingListener
    ) -> None:
        self.trainer = trainer
        self.lora = lora
        self.watch = watch
        # the longest lanes first: what is left for the end is short; ties keep the given order
        longest_first = sorted(lanes, key=lambda lane: -lane.spec.total_steps)
        self.lanes = {lane.key: lane for lane in longest_first}
        folder = self._folder()
        self.shelf = SavedStates(folder)
        self.snapshots = Snapshots(folder, SNAPSHOT_SECONDS)
        self.step = 0
        self._resumed_steps = 0  # that a snapshot brought

    def _folder(self) -> Path | None:
        """Return where states and snapshots of exactly these lanes on this model lie."""
        if self.trainer.workspace is None:
            return None
        lane_prints = [lane.spec.fingerprint() for lane in self.lanes.values()]
        facts = [SNAPSHOT_FORM, self.trainer.fingerprint, *lane_prints]
        name = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:24]
        return Path(self.trainer.workspace) / name

    def train_to_the_end(self) -> None:
        """Train until every lane is over or ``stop`` says so."""
        snapshot = self.snapshots.latest()
        plan = PassPlan(**snapshot[1]["plan"]) if snapshot else self._first_plan()
        self.trainer.plan = plan
        self.bank: AdapterBank = self.trainer.bank(self.lora, plan.slots)
        self.states = LaneStates(plan.slots, self.bank.width, self.bank.device)
        self.bank.grads.zero_()
        self.steps = self._make_steps(plan, None)
        self._record_adapted_layers()
        if snapshot:
            self._take_up(*snapshot)
            self.watch.on_recall([epoch for lane in self.lanes.values() for epoch in lane.epochs])
        is_rehearsed = False
        while self._fill() and not self.watch.stop():
            if not is_rehearsed:
                self._rehearse()
                is_rehearsed = True
            self._one_step()
        self._snapshot(now=True)
        self.steps.release()
        self.trainer.occupy({})
        for lane in self.lanes.values():
            lane.targets = self.bank.targets

    def _record_adapted_layers(self) -> None:
        """Record which layers are adapted; those of all blocks, which differ in a number, are counted together."""
        layers = Counter(re.sub(r"\b\d+\b", "*", site.name) for site in self.bank.sites)
        record = self.trainer.record["training"]
        record["targets"] = list(self.bank.targets)
        record["layers"] = dict(layers)

    def _make_steps(self, plan: PassPlan, blocks: FusedLayers | None) -> TrainingSteps:
        """Make the steps in the form that the check found; ``blocks`` are fused layers that are made already."""
        form = self.trainer.verdict(self.lora).form
        steps = make_steps(form, self.trainer.split, self.bank, self.states, blocks)
        if isinstance(steps, PackedSteps):
            # lanes that start together; those that wait have shorter company
            together = [
                lane.spec.tokens_by_step(self.trainer.limit)
                for lane in list(self.lanes.values())[: plan.slots]
            ]
            steps.most_tokens = int(max(map(sum, zip_longest(*together, fillvalue=0))))
        return steps

    def _rehearse(self) -> None:
        """Compare the first step with the reference, and go on as if that had not been; what differs is an error."""
        form = self.trainer.verdict(self.lora).form
        plan = self.pass_plan
        with spending("check"):
            result = rehearse_first_step(
                self, self._active(), without_dropout=form == TrainingForm.ONE_LANE
            )
        self.trainer.record["training"]["rehearsal"] = result.facts
        self.steps.release()
        if result.refusal is not None:
            for lane in self._active():
                lane.status, lane.slot = "waiting", None
            self.trainer.occupy({})
            raise RehearsalFailedError(result.refusal)
        self.trainer.plan = plan
        blocks = self.steps.packed_pass.blocks if isinstance(self.steps, PackedSteps) else None
        self.steps = self._make_steps(plan, blocks)

    @property
    def model(self) -> nn.Module:
        """The model that is tuned."""
        return self.trainer.model

    @property
    def token_limit(self) -> int:
        """The longest text that the model reads."""
        return self.trainer.limit

    @property
    def pass_plan(self) -> PassPlan:
        """How steps are packed into passes now."""
        assert self.trainer.plan is not None
        return self.trainer.plan

    def _first_plan(self) -> PassPlan:
        """Choose the passes of a run that begins."""
        tokens_per_step = [_mean_step_tokens(lane.spec) for lane in self.lanes.values()]
        parameters = 0
        activation_bytes = 0
        if self.trainer.verdict(self.lora).form is TrainingForm.FUSED:
            # embeddings and head are no work of most tokens
            blocks = find_blocks(self.trainer.model)
            parameters = sum(map(count_parameters, blocks))
            activation_bytes = FusedLayers(blocks, joined=False).activation_bytes
        plan = self.trainer.plan_passes(
            len(tokens_per_step),
            sum(tokens_per_step) / len(tokens_per_step),
            parameters=parameters,
            known_activation_bytes=activation_bytes,
            lane_bytes=lane_state_bytes(self.trainer.model, self.lora),
        )
        if (
            plan.checkpointing and not self.trainer.recomputes
        ):  # adapters take the room of activations
            if self.trainer.recompute is None and self.trainer.may_recompute:
                return plan
            plan = replace(plan, token_budget=min(plan.token_budget, LEAST_TOKENS))
        return replace(plan, checkpointing=self.trainer.recomputes)

    # ---- slots ----------------------------------------------------------------------------------------------------

    def _active(self) -> list[Lane]:
        lanes = [lane for lane in self.lanes.values() if lane.status == "training"]
        return sorted(lanes, key=lambda lane: lane.slot if lane.slot is not None else -1)

    def _fill(self) -> list[Lane]:
        """Give free slots to waiting lanes, in the queue's order; returns the lanes in training."""
        active = self._active()
        free = sorted(set(range(self.bank.slots)) - {lane.slot for lane in active})
        waiting = [lane for lane in self.lanes.values() if lane.status == "waiting"]
        begun = list(zip(waiting, free, strict=False))
        for lane, slot in begun:
            self.put_into_slot(lane, slot)
            active.append(lane)
        if begun:
            self.bank.refresh_work()
            check_begun_lanes(self.bank, self.states, [slot for _, slot in begun])
        self.trainer.occupy({lane.spec.key: lane.slot for lane in active if lane.slot is not None})
        return self._active()

    def put_into_slot(self, lane: Lane, slot: int) -> None:
        """Begin a lane in a slot: a fresh adapter, and nothing of the lane that had the slot before."""
        lane.slot, lane.status, lane.began = slot, "training", time.monotonic()
        self.bank.weights[slot].copy_(self.bank.fresh_row(lane.spec.seed))
        self.states.reset(slot)

    def _end(self, lane: Lane, status: str, reason: str | None = None) -> None:
        lane.status, lane.reason, lane.slot = status, reason, None

    # ---- one step of all active lanes -----------------------------------------------------------------------------

    def _one_step(self) -> None:
        active = self._active()
        rows = self.next_rows(active)
        table = self.update_table(active)
        check_step_plan(active, rows, table, self.token_limit)
        self.compute_gradients(rows)
        self.steps.update(table)
        for lane in active:
            lane.step += 1
        self.step += 1
        due = [lane for lane in active if lane.step % lane.spec.steps_per_epoch == 0]
        if due or self.step % LOOK_EVERY == 0:
            self._fail_unsound(active)
        waiting = sum(lane.status == "waiting" for lane in self.lanes.values())
        tokens = sum(len(row.ids) for row in rows)
        self.watch.on_step(
            StepInfo(self.step, len(active), waiting, tokens, self._done(), self._resumed_steps)
        )
        due = [lane for lane in due if lane.status == "training"]
        if due:
            self._end_epochs(due)

    def saved_adapter(self, lane: Lane) -> Tensor | None:
        """Return the adapter that was saved at the end of a lane's last epoch."""
        tensors = self.shelf.load_state(lane.key, lane.epochs[-1].epoch)
        return None if tensors is None else tensors["adapter"]

    def next_rows(self, lanes: Sequence[Lane]) -> list[TrainingRow]:
        """Return the rows of the next step of lanes, slot by slot."""
        return [row for lane in lanes for row in lane.next_rows(self.trainer.limit)]

    def compute_gradients(self, rows: Sequence[TrainingRow]) -> None:
        """Add the gradients of a step, in smaller passes where memory runs out."""
        self.trainer.run_in_passes(
            rows, partial(self.steps.add_gradients, rows), self.steps.clear, MEMORY_HINT
        )

    def update_table(self, active: Sequence[Lane]) -> npt.NDArray[np.float32]:
        """Return the table of an update: the settings of lanes that take a step, by slot."""
        table = np.zeros((self.bank.slots, UPDATE_COLUMNS), np.float32)
        for lane in active:
            numbers = update_settings(lane.spec.schedule, lane.step, lane.spec.total_steps)
            table[lane.slot] = [*numbers, 1.0, lane.step == 0]
        return table

    def _done(self) -> int:
        return sum(lane.step for lane in self.lanes.values())

    def _fail_unsound(self, active: list[Lane]) -> None:
        flags = self.states.unsound.tolist()
        for lane in active:
            if lane.slot is not None and flags[lane.slot]:
                self._end(
                    lane,
                    "failed",
                    f"the loss or its gradient was not finite within {lane.step} steps",
                )

    # ---- ends of epochs -------------------------------------------------------------------------------------------

    def _end_epochs(self, due: list[Lane]) -> None:
        sums = self.states.loss_sums.tolist()
        starts, blind = self.states.first_losses.tolist(), math.log(self.trainer.split.vocabulary)
        ended: dict[str, LaneEpoch] = {}
        for lane in due:
            spec, slot = lane.spec, lane.slot
            assert slot is not None
            loss = sums[slot] / spec.steps_per_epoch
            self.states.loss_sums[slot] = 0.0
            seconds = time.monotonic() - lane.began
            epoch = LaneEpoch(
                spec.key, lane.step // spec.steps_per_epoch, lane.step, loss, lane.tokens, seconds
            )
            lane.tokens = 0
            if loss > 2 * max(blind, starts[slot]):
                reason = f"diverged: mean loss {loss:.3g} in epoch {epoch.epoch}, {starts[slot]:.3g} at the first step"
                self._end(lane, "failed", reason)
                continue
            self.shelf.save_state(spec.key, epoch.epoch, {"adapter": self.bank.weights[slot]})
            lane.epochs.append(epoch)
            ended[spec.key] = epoch
        dropped = (self.watch.on_epoch(list(ended.values())) if ended else None) or ()
        self.bank.route(None)
        for key in ended:
            lane = self.lanes[key]
            lane.began = time.monotonic()  # scoring took its time too
            if lane.step >= lane.spec.total_steps:
                check_lane_is_complete(lane.spec, lane.step)
                self._end(lane, "done")
            elif key in dropped:
                self._end(lane, "dropped")
        self._snapshot()

    # ---- snapshots ------------------------------------------------------------------------------------------------

    def _snapshot(self, now: bool = False) -> None:
        """Save the state of all lanes under way; unless asked to at once, not more often than pays."""
        if not self.snapshots.due(now=now):
            return
        plan, at = self.trainer.plan, [lane.slot for lane in self._active()]
        assert plan is not None
        tensors = {name: part.cpu()[at] for name, part in self._state().items()}
        lanes = {key: lane.to_record() for key, lane in self.lanes.items()}
        facts = {
            "plan": asdict(plan),
            "step": self.step,
            "lanes": lanes,
            "slots": at,
            "digests": self._digests(),
        }
        self.snapshots.save(tensors, facts)

    def _digests(self) -> dict[str, dict[str, int]]:
        """Return a checksum of each tensor of every lane under way, by the lane's key."""
        state = self._state()
        return {lane.key: digest_lane(state, lane.slot, lane.step) for lane in self._active()}

    def _state(self) -> dict[str, Tensor]:
        """Return what a step changes, by slot."""
        return {"weights": self.bank.weights, **vars(self.states)}

    def _take_up(self, tensors: dict[str, Tensor], facts: dict[str, object]) -> None:
        records = facts["lanes"]
        assert isinstance(records, dict)
        if any(
            self.shelf.load_state(key, e["epoch"]) is None
            for key in self.lanes
            for e in records[key]["epochs"]
        ):
            return  # a broken adapter file: all start over, for the last bits of a lane follow from those beside it
        at = torch.tensor(facts["slots"], dtype=torch.long, device=self.bank.device)
        for name, part in self._state().items():
            part.index_copy_(0, at, tensors[name].to(self.bank.device))
        self.step = int(facts["step"])  # type: ignore[call-overload]
        for key, lane in self.lanes.items():
            lane.take_up_record(records[key])
        self._resumed_steps = self._done()
        self.bank.refresh_work()
        digests = facts["digests"]
        assert isinstance(digests, dict)
        check_resumed_lanes(digests, self._digests(), self.bank)


def _mean_step_tokens(spec: LaneSpec) -> float:
    """Return how many tokens a step of a lane has, about."""
    mean_length = min(spec.schedule.max_tokens, float(spec.examples.lengths.mean()))
    return mean_length * spec.schedule.batch
