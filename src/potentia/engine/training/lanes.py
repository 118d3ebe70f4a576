"""Lanes: many fine-tunings of one frozen model in the same forward and backward passes.

A study needs many fine-tunings of each model: for every task, learning rate and prompt style. Each of them is a lane,
with its own examples, order, schedule, dropout, gradient clipping and optimizer state. Its adapter lies in a slot of an
:class:`~potentia.engine.layers.adapter_bank.AdapterBank`. Every step takes one batch of each lane in a slot, divides
the rows of all of them among passes, adds up the gradients and updates every lane at once. Losses are summed over lanes
and no operation mixes rows of different lanes, so a lane's gradients are those it would have alone. A lane that ends
hands its slot to the next one that waits.

**Resume.** A snapshot holds the state of the whole run: weights and moments of all slots, each lane's step, the queue,
the plan of passes. It is saved at ends of epochs and when the run is asked to stop. A run that starts from a snapshot
repeats what the first run did after it, pass for pass; on a CPU its numbers are the same bit for bit. Everything
follows from the list of lanes, so resume with the same list.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor, nn

from potentia.engine.lane_spec import LaneSpec
from potentia.engine.layers.adapter_bank import AdapterBank, lane_state_bytes
from potentia.engine.models.device_layout import is_spread
from potentia.engine.models.loading import LoadedModel
from potentia.engine.models.proof_cache import ProofCache
from potentia.engine.proof.constants import REPORT_HINT
from potentia.engine.proof.form_trial import TrialSettings
from potentia.engine.proof.handover_check import find_working_copy_fault
from potentia.engine.proof.refusal import Refusal, cannot_tune_error
from potentia.engine.proof.rehearsal import RehearsalFailedError
from potentia.engine.proof.training_check import FORMS, TrainingFormCheck, choose_training_form
from potentia.engine.training.lane import Lane
from potentia.engine.training.lane_run import LaneRun
from potentia.engine.training.trainer import Trainer, TrainingListener, ignore_event
from potentia.errors import TuningError
from potentia.timing import spending
from potentia.values.recipe import LoraConfig


class LaneTrainer(Trainer):
    """Trains lanes on a loaded model, and afterwards puts any lane's adapter of any epoch back for scoring.

    Lanes with the same shape of adapter train together; shapes take turns. At ends of epochs the adapters are in their
    slots, and may be scored through :attr:`router`. Closing the trainer takes the adapters off the model.

    ``may_pack`` says whether rows may be packed end to end into buffers of fixed sizes, whose passes a GPU captures as
    graphs; by default on a GPU. ``recompute`` says whether activations are recomputed in the backward pass; by default
    where memory is short.
    """

    def __init__(
        self,
        loaded: LoadedModel | nn.Module,
        *,
        token_budget: int | None = None,
        workspace: Path | None = None,
        may_pack: bool | None = None,
        recompute: bool | None = None,
    ) -> None:
        super().__init__(loaded, token_budget, workspace)
        self._proof_cache: ProofCache = getattr(loaded, "proof_cache", None) or ProofCache()
        # what identifies the model's structure; a function, since it takes time and is not always needed
        self._read_structure: Callable[[], str] = lambda: getattr(loaded, "structure", "")
        if may_pack is None:
            device = next(self.model.parameters()).device
            may_pack = device.type == "cuda" and not is_spread(self.model)
        self.may_pack = may_pack
        self.recompute = recompute
        self.run_under_way: LaneRun | None = None
        # what the check found for each shape of adapter, kept with the loaded model
        self._form_checks: dict[tuple[LoraConfig, bool, bool], TrainingFormCheck] = getattr(
            loaded, "lanes", {}
        )
        self._bank: AdapterBank | None = None
        self._run_of_lane: dict[str, LaneRun] = {}
        self._slot_of_lane: dict[str, int] = {}  # of lanes whose adapters are in slots now
        self._training_slots: set[int] = set()

    def close(self) -> None:
        """Take the adapters off the model."""
        self._remove_adapters()
        super().close()

    def _remove_adapters(self) -> None:
        if self._bank is not None:
            self._bank.close()
            self._bank = None
        self._slot_of_lane.clear()

    # ---- training -------------------------------------------------------------------------------------------------

    def _train_lanes(self, lanes: dict[str, Lane], listener: TrainingListener) -> None:
        groups: dict[LoraConfig, list[Lane]] = {}
        for lane in lanes.values():
            groups.setdefault(lane.spec.lora, []).append(lane)
        for lora, group in groups.items():
            # fails where the model leaves no memory for one lane, before the check takes its time
            self.plan_passes(1, 1.0, lane_bytes=lane_state_bytes(self.model, lora))
            self._check_lanes(lora, [lane.spec for lane in group])
            group_listener = listener
            while not self._train_group(lora, group, group_listener):
                # the refused run has reported the epochs of its snapshot already
                group_listener = replace(group_listener, on_resume=ignore_event)

    def _train_group(
        self, lora: LoraConfig, group: Sequence[Lane], listener: TrainingListener
    ) -> bool:
        """Train lanes with one shape of adapter.

        Return False, with a slower form chosen, where the rehearsal of the first step refuses the training form.
        """
        lane_run = LaneRun(self, lora, group, listener)
        self.run_under_way = lane_run
        for lane_key in lane_run.lanes:
            self._run_of_lane[lane_key] = lane_run
        try:
            lane_run.train_to_the_end()
        except RehearsalFailedError as failure:
            self._choose_slower_form(lora, [lane.spec for lane in group], failure.refusal)
            return False
        return True

    def _choose_slower_form(
        self, lora: LoraConfig, specs: Sequence[LaneSpec], refusal: Refusal
    ) -> None:
        """Choose a training form slower than the one that the rehearsal refused; raise an error where there is none."""
        refused = self.form_check(lora)
        if refused.form == FORMS[-1]:
            raise cannot_tune_error(self.model, refusal)
        self._remove_adapters()
        with spending("check"):
            form_check = choose_training_form(
                self.model,
                self._trial_settings(lora, specs),
                may_pack=self.may_pack,
                refused={refused.form: refusal},
            )
        form_check = replace(form_check, longest=refused.longest)
        self._form_checks[self._check_key(lora)] = form_check
        self._use_form_check(form_check)

    def _use_form_check(self, form_check: TrainingFormCheck) -> None:
        """Train as a check says, and record it."""
        self.may_recompute = form_check.may_recompute
        self.record_training(form_check.facts)

    @property
    def trainable(self) -> int:
        """The number of parameters of one lane's adapter; results record it."""
        if self._bank is None:
            return 0
        return self._bank.width

    def _check_lanes(self, lora: LoraConfig, specs: Sequence[LaneSpec]) -> None:
        """Choose the training form by comparison with the model's own code.

        What was found before holds for the same shape of adapter, unless texts are longer now.
        """
        longest_text = max(spec.longest_text for spec in specs)
        longest = min(self.limit, longest_text)
        check_key = self._check_key(lora)
        form_check = self._form_checks.get(check_key)
        if form_check is None or longest > form_check.longest:
            self._remove_adapters()
            with spending("check"):
                form_check = replace(self._choose_form(lora, specs), longest=longest)
                self._form_checks[check_key] = form_check
        self._use_form_check(form_check)

    def _choose_form(self, lora: LoraConfig, specs: Sequence[LaneSpec]) -> TrainingFormCheck:
        """Choose the training form: by a few rows where a model of the same structure was checked, else in full.

        A full check is shared with other models of this structure.
        """
        cache_key = self._cache_key(lora)
        cached = self._proof_cache.get(*cache_key)
        form_check = choose_training_form(
            self.model,
            self._trial_settings(lora, specs),
            may_pack=self.may_pack,
            proof=None if cached is None else TrainingFormCheck.from_dict(cached),
        )
        if form_check.was_full and not form_check.lacked_memory:
            self._proof_cache.put(form_check.to_dict(), *cache_key)
        return form_check

    def _trial_settings(self, lora: LoraConfig, specs: Sequence[LaneSpec]) -> TrialSettings:
        return TrialSettings(lora, specs, limit=self.limit, recompute=self.plans_recomputation)

    def _cache_key(self, lora: LoraConfig) -> tuple[str, ...]:
        """Return what a check in the cache holds for. An adapter's rank, scale and dropout do not matter."""
        options = f"{self.may_pack} {self.plans_recomputation} {self.limit}"
        return self._read_structure(), "lanes", lora.kind, str(lora.targets), options

    def form_check(self, lora: LoraConfig) -> TrainingFormCheck:
        """Return what the check found for a shape of adapter: the training form, and whether it may recompute."""
        return self._form_checks[self._check_key(lora)]

    def _check_key(self, lora: LoraConfig) -> tuple[LoraConfig, bool, bool]:
        return lora, self.may_pack, self.plans_recomputation

    @property
    def plans_recomputation(self) -> bool:
        """Whether to recompute activations in the backward pass: as asked for, else where memory is short.

        The adapters of all lanes are not counted here. They may turn a no into a yes when a run is planned.
        """
        if self.recompute is not None:
            return self.recompute
        return self.plan_passes(1, 1.0).checkpointing

    def note_occupied_slots(self, slots: dict[str, int]) -> None:
        """Note which lanes train in which slots, by their keys; the adapters that were in these slots are gone."""
        self._training_slots = set(slots.values())
        undisturbed: dict[str, int] = {}
        for key, slot in self._slot_of_lane.items():
            if slot not in self._training_slots:
                undisturbed[key] = slot
        self._slot_of_lane = undisturbed | slots

    def install_bank(self, lora: LoraConfig, slots: int) -> AdapterBank:
        """Put adapters of a shape on the model, in so many slots; those that are there already stay if they match."""
        if self._bank is None or self._bank.lora != lora or self._bank.slots != slots:
            self._remove_adapters()
            self._bank = AdapterBank(self.model, lora, slots)
        return self._bank

    # ---- adapters, after or during training -----------------------------------------------------------------------

    def slot(self, lane_key: str) -> int:
        """Return the slot that holds a lane's adapter now: the scorer takes it as the owner of a request."""
        if lane_key not in self._slot_of_lane:
            raise TuningError(
                f"fine-tuning {lane_key} is not in a slot",
                hint="call restore(lane_key, epoch) first",
            )
        return self._slot_of_lane[lane_key]

    def _load_adapter(self, lane_key: str, epoch: int | None) -> tuple[AdapterBank, Tensor]:
        """Return the installed bank and a lane's adapter after an epoch (the last one by default), as a row of it."""
        lane_run = self._run_of_lane.get(lane_key)
        if lane_run is None:
            raise TuningError(f"no fine-tuning {lane_key} was trained here")
        if epoch is None:
            finished_epochs = lane_run.lanes[lane_key].epochs
            if not finished_epochs:
                raise TuningError(f"fine-tuning {lane_key} finished no epoch")
            epoch = finished_epochs[-1].epoch
        tensors = lane_run.saved_states.load_state(lane_key, epoch)
        if tensors is None:
            raise TuningError(
                f"fine-tuning {lane_key} has no whole adapter of epoch {epoch}",
                hint="run the same command again to recompute it",
            )
        slots = 1 if self.plan is None else self.plan.slots
        return self.install_bank(lane_run.lora, slots), tensors["adapter"]

    def adapter_state(self, lane_key: str, epoch: int | None = None) -> dict[str, Tensor]:
        """Return a lane's adapter after an epoch (the last by default) as PEFT's state dict, in float32 on the CPU."""
        adapter_bank, row = self._load_adapter(lane_key, epoch)
        return adapter_bank.peft_state(row)

    def save_peft(self, lane_key: str, folder: Path, epoch: int | None = None) -> None:
        """Write a lane's adapter after an epoch (the last by default) to a folder as PEFT does.

        ``PeftModel.from_pretrained`` reads it.
        """
        from safetensors.torch import save_file

        adapter_bank, row = self._load_adapter(lane_key, epoch)
        folder.mkdir(parents=True, exist_ok=True)
        adapter_bank.peft_config().save_pretrained(str(folder))
        save_file(
            adapter_bank.name_for_files(adapter_bank.peft_state(row)),
            str(folder / "adapter_model.safetensors"),
            metadata={"format": "pt"},
        )

    @property
    def router(self) -> LaneTrainer:
        """What the scorer takes to compute each row with its own adapter: this trainer, for its ``route``."""
        return self

    def route(self, row_owners: Tensor | None) -> None:
        """Choose the adapter of every row of the next forward passes.

        A row's owner is the slot of its adapter, or −1 for the untuned model. None switches adapters off for all rows.
        """
        if self._bank is not None:
            self._bank.route(row_owners)
        elif row_owners is not None and bool((row_owners >= 0).any()):
            raise TuningError(
                "no adapters are installed",
                hint="train adapters, or restore one, before scoring with them",
            )

    def restore_untuned(self) -> None:
        """Switch all adapters off, so that every forward pass is the untuned model's."""
        self.route(None)

    def restore(self, lane_key: str, epoch: int) -> int:
        """Put a lane's adapter after an epoch into a slot for scoring, and return the slot."""
        adapter_bank, row = self._load_adapter(lane_key, epoch)
        slot = self._slot_of_lane.get(lane_key)
        if slot is None or slot in self._training_slots:
            slot = self._take_free_slot(adapter_bank.slots)
        # the lane moves to the end: slots are taken from the first ones
        self._slot_of_lane.pop(lane_key, None)
        self._slot_of_lane[lane_key] = slot
        adapter_bank.weights[slot].copy_(row)
        adapter_bank.refresh_work()
        fault = find_working_copy_fault(adapter_bank, slot)
        if fault is not None:
            raise TuningError(
                f"fine-tuning {lane_key} cannot be restored: {fault}", hint=REPORT_HINT
            )
        return slot

    def _take_free_slot(self, slots: int) -> int:
        """Return the first free slot; where all are taken, the one whose adapter was restored longest ago."""
        taken_slots = self._training_slots | set(self._slot_of_lane.values())
        for slot in range(slots):
            if slot not in taken_slots:
                return slot
        for lane_key, slot in self._slot_of_lane.items():
            if slot not in self._training_slots:
                del self._slot_of_lane[lane_key]
                return slot
        raise TuningError("every slot is training", hint="restore adapters after train() returns")
