"""Lanes: many fine-tunings of one frozen model in the same forward and backward passes.

A row of a study needs tasks × learning rates × forms fine-tunings of one model. Each is a lane: its own examples,
order, schedule, dropout stream, clipping and optimizer state, in a slot of an
:class:`~potentia.engine.layers.adapter_bank.AdapterBank`. Every step gathers one effective batch of each active lane,
packs the rows of all of them into passes by length, adds up the gradients and updates every lane at once. Losses are
summed over lanes and no operation mixes rows of different lanes, so a lane's gradients are those it would have alone.
A lane that ends hands its slot to the next in the queue.

**Resume.** The state of the whole trainer (weights and moments of all slots, each lane's step, the queue, the
packing) is a snapshot, taken at ends of epochs and when asked to stop. A run that starts from a snapshot repeats what
the first run did after it, pass for pass; on a CPU its numbers are the same bit for bit. The packing is fixed by the
list of lanes, so resume with the same list.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from potentia.engine.lane_spec import LaneSpec, LoraConfig
from potentia.engine.layers.adapter_bank import AdapterBank, lane_state_bytes
from potentia.engine.models.device_layout import is_spread
from potentia.engine.models.proof_cache import ProofCache
from potentia.engine.proof.handover_check import find_copy_fault
from potentia.engine.proof.plan_check import REPORT
from potentia.engine.proof.refusal import Refusal
from potentia.engine.proof.rehearsal import RehearsalFailedError
from potentia.engine.proof.training_check import FORMS, TrainingVerdict, check_lanes, recheck_lanes
from potentia.engine.training.lane import Lane
from potentia.engine.training.lane_run import LaneRun
from potentia.engine.training.trainer import Trainer, TrainingListener, ignore_event
from potentia.errors import TuningError
from potentia.timing import spending


class LaneTrainer(Trainer):
    """Trains lanes on a loaded model, and afterwards puts any lane's adapter of any epoch back for scoring.

    Lanes with the same adapter shape share passes, other shapes take their turn. ``static`` asks for passes of static
    sizes, captured as graphs where that pays: by default on a GPU. ``recompute`` says whether activations are computed
    again in the backward pass: by default where memory is short. At ends of epochs adapters are in their slots, and may
    be scored through :attr:`router`. When closed, the adapters come off the model.
    """

    def __init__(
        self,
        loaded: Any,
        *,
        token_budget: int | None = None,
        workspace: Path | None = None,
        static: bool | None = None,
        recompute: bool | None = None,
    ) -> None:
        super().__init__(loaded, token_budget, workspace)
        self._proof_cache: ProofCache = getattr(loaded, "proof_cache", None) or ProofCache()
        # read only when it is needed: computing it takes time
        self._read_structure: Callable[[], str] = lambda: getattr(loaded, "structure", "")
        if static is None:
            device = next(self.model.parameters()).device
            static = device.type == "cuda" and not is_spread(self.model)
        self.static = static
        self.recompute = recompute
        self.run_under_way: LaneRun | None = None
        self._verdicts: dict[tuple[LoraConfig, bool, bool], TrainingVerdict] = getattr(
            loaded, "lanes", {}
        )
        self._bank: AdapterBank | None = None
        self._runs: dict[str, LaneRun] = {}  # by the lanes that they trained
        self._resident: dict[str, int] = {}  # lane → the slot that holds its adapter
        self._busy: set[int] = set()  # slots in training

    def close(self) -> None:
        """Take the adapters off the model."""
        self._remove_adapters()
        super().close()

    def _remove_adapters(self) -> None:
        if self._bank is not None:
            self._bank.close()
            self._bank = None
        self._resident.clear()

    # ---- training -------------------------------------------------------------------------------------------------

    def _train_lanes(self, lanes: dict[str, Lane], listener: TrainingListener) -> None:
        groups: dict[LoraConfig, list[Lane]] = {}
        for lane in lanes.values():
            groups.setdefault(lane.spec.lora, []).append(lane)
        for lora, group in groups.items():
            # a model that leaves no room for one lane is an error here, before the check
            self.plan_passes(1, 1.0, lane_bytes=lane_state_bytes(self.model, lora))
            self._check_lanes(lora, [lane.spec for lane in group])
            group_listener = listener
            while not self._train_group(lora, group, group_listener):
                # the run that was refused has reported the epochs of its snapshot
                group_listener = replace(group_listener, on_recall=ignore_event)

    def _train_group(
        self, lora: LoraConfig, group: Sequence[Lane], listener: TrainingListener
    ) -> bool:
        """Train lanes of one shape; return False where the rehearsal refuses the form, and a slower one is next."""
        run = LaneRun(self, lora, group, listener)
        self.run_under_way = run
        for lane_key in run.lanes:
            self._runs[lane_key] = run
        try:
            run.train_to_the_end()
        except RehearsalFailedError as failure:
            self._choose_slower_form(lora, [lane.spec for lane in group], failure.refusal)
            return False
        return True

    def _choose_slower_form(
        self, lora: LoraConfig, specs: Sequence[LaneSpec], refusal: Refusal
    ) -> None:
        """Check the forms that are slower than the one that the rehearsal refused; raise where there is none."""
        refused = self.verdict(lora)
        if refused.form == FORMS[-1]:
            raise TuningError(
                f"{type(self.model).__name__} cannot be tuned here: {refusal.reason}",
                hint="potentia doctor MODEL shows the distances",
            )
        self._remove_adapters()
        with spending("check"):
            verdict = check_lanes(
                self.model,
                lora,
                specs,
                static=self.static,
                limit=self.limit,
                recompute=self.recomputes,
                refused={refused.form: refusal},
            )
        verdict.longest = refused.longest
        self._verdicts[self._verdict_key(lora)] = verdict
        self._apply_verdict(verdict)

    def _apply_verdict(self, verdict: TrainingVerdict) -> None:
        """Train by a verdict, and record it."""
        self.may_recompute = verdict.recomputes
        self.record["training"] = verdict.as_dict()

    @property
    def trainable(self) -> int:
        """The parameters of one lane's adapter."""
        if self._bank is None:
            return 0
        return self._bank.width

    def _check_lanes(self, lora: LoraConfig, specs: Sequence[LaneSpec]) -> None:
        """Compare lanes with the model's own code, unless this shape was compared on rows that were as long."""
        longest_text = max(spec.longest_text for spec in specs)
        longest = min(self.limit, longest_text)
        verdict_key = self._verdict_key(lora)
        verdict = self._verdicts.get(verdict_key)
        if verdict is None or longest > verdict.longest:
            self._remove_adapters()
            with spending("check"):
                verdict = replace(self._find_verdict(lora, specs), longest=longest)
                self._verdicts[verdict_key] = verdict
        self._apply_verdict(verdict)

    def _find_verdict(self, lora: LoraConfig, specs: Sequence[LaneSpec]) -> TrainingVerdict:
        """Check a few rows where a model of the same structure has a verdict; else check in full, and share it."""
        cache_key = self._cache_key(lora)
        cached = self._proof_cache.get(*cache_key)
        if cached is not None:
            rechecked = recheck_lanes(
                self.model,
                lora,
                specs,
                TrainingVerdict.from_dict(cached),
                limit=self.limit,
                recompute=self.recomputes,
            )
            if rechecked is not None:
                return rechecked
        verdict = check_lanes(
            self.model,
            lora,
            specs,
            static=self.static,
            limit=self.limit,
            recompute=self.recomputes,
        )
        if not verdict.lacked_memory:
            self._proof_cache.put(verdict.to_dict(), *cache_key)
        return verdict

    def _cache_key(self, lora: LoraConfig) -> tuple[str, ...]:
        """Return what a verdict holds for; it does not depend on an adapter's rank, scale and dropout."""
        options = f"{self.static} {self.recomputes} {self.limit}"
        return self._read_structure(), "lanes", lora.kind, str(lora.targets), options

    def verdict(self, lora: LoraConfig) -> TrainingVerdict:
        """Return what the check found for a shape of adapters."""
        return self._verdicts[self._verdict_key(lora)]

    def _verdict_key(self, lora: LoraConfig) -> tuple[LoraConfig, bool, bool]:
        return lora, self.static, self.recomputes

    @property
    def recomputes(self) -> bool:
        """Whether activations are computed again: where it is asked for, or memory is short."""
        if self.recompute is not None:
            return self.recompute
        return self.plan_passes(1, 1.0).checkpointing

    def occupy(self, slots: dict[str, int]) -> None:
        """Note which lanes train in which slots; the adapters that were in these slots are gone."""
        self._busy = set(slots.values())
        undisturbed = {key: slot for key, slot in self._resident.items() if slot not in self._busy}
        self._resident = undisturbed | slots

    def bank(self, lora: LoraConfig, slots: int) -> AdapterBank:
        """Return the installed adapters for this shape, replacing those of another shape or size."""
        if self._bank is None or self._bank.lora != lora or self._bank.slots != slots:
            self._remove_adapters()
            self._bank = AdapterBank(self.model, lora, slots)
        return self._bank

    # ---- adapters, after or during training -----------------------------------------------------------------------

    def slot(self, lane_key: str) -> int:
        """Return the slot that holds this lane's adapter now: the owner number to give to the scorer."""
        if lane_key not in self._resident:
            raise TuningError(
                f"lane {lane_key} is not in a slot", hint="call restore(lane_key, epoch) first"
            )
        return self._resident[lane_key]

    def _load_adapter(self, lane_key: str, epoch: int | None) -> tuple[AdapterBank, Tensor]:
        """Return the bank for a lane's shape and the lane's saved adapter, as a row of that bank."""
        run = self._runs.get(lane_key)
        if run is None:
            raise TuningError(f"no lane {lane_key} was trained here")
        if epoch is None:
            finished_epochs = run.lanes[lane_key].epochs
            if not finished_epochs:
                raise TuningError(f"lane {lane_key} finished no epoch")
            epoch = finished_epochs[-1].epoch
        tensors = run.shelf.load_state(lane_key, epoch)
        if tensors is None:
            raise TuningError(
                f"lane {lane_key} has no whole adapter of epoch {epoch}",
                hint="run the same command again to recompute it",
            )
        slots = 1 if self.plan is None else self.plan.slots
        return self.bank(run.lora, slots), tensors["adapter"]

    def adapter_state(self, lane_key: str, epoch: int | None = None) -> dict[str, Tensor]:
        """Return a lane's adapter after an epoch (the last one by default) as PEFT's state dict, fp32 on the CPU."""
        bank, row = self._load_adapter(lane_key, epoch)
        return bank.peft_state(row)

    def save_peft(self, lane_key: str, folder: Path, epoch: int | None = None) -> None:
        """Write a lane's adapter as PEFT does; ``PeftModel.from_pretrained`` reads it."""
        from safetensors.torch import save_file

        bank, row = self._load_adapter(lane_key, epoch)
        folder.mkdir(parents=True, exist_ok=True)
        bank.peft_config().save_pretrained(str(folder))
        save_file(
            bank.peft_state(row),
            str(folder / "adapter_model.safetensors"),
            metadata={"format": "pt"},
        )

    @property
    def router(self) -> LaneTrainer:
        """The scorer's way to choose adapters."""
        return self

    def route(self, row_owners: Tensor | None) -> None:
        """Name the slot of every row of the next forward pass; −1 is the bare model, None switches adapters off."""
        if self._bank is not None:
            self._bank.route(row_owners)
        elif row_owners is not None and bool((row_owners >= 0).any()):
            raise TuningError(
                "no adapters are installed",
                hint="train lanes, or restore one, before scoring with them",
            )

    def bare(self) -> None:
        """Let the untuned model be scored, also by those who know nothing of adapters."""
        self.route(None)

    def restore(self, lane_key: str, epoch: int) -> int:
        """Put a lane's adapter of an epoch into a slot for scoring, and return the slot."""
        bank, row = self._load_adapter(lane_key, epoch)
        slot = self._resident.get(lane_key)
        if slot is None or slot in self._busy:
            slot = self._find_free_slot(bank.slots)
        # the adapter that was restored last comes last: slots are freed in this order
        self._resident.pop(lane_key, None)
        self._resident[lane_key] = slot
        bank.weights[slot].copy_(row)
        bank.refresh_work()
        fault = find_copy_fault(bank, slot)
        if fault is not None:
            raise TuningError(f"lane {lane_key} cannot be restored: {fault}", hint=REPORT)
        return slot

    def _find_free_slot(self, slots: int) -> int:
        """Return the first free slot, or that of the adapter restored longest ago, which is let go."""
        taken = self._busy | set(self._resident.values())
        for slot in range(slots):
            if slot not in taken:
                return slot
        for lane_key, slot in self._resident.items():
            if slot not in self._busy:
                del self._resident[lane_key]
                return slot
        raise TuningError("every slot is training", hint="restore adapters after train() returns")
