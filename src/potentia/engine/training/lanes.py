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
from potentia.engine.proof.refusal import Refusal
from potentia.engine.proof.rehearsal import RehearsalFailedError
from potentia.engine.proof.training_check import FORMS, TrainingVerdict, check_lanes, recheck_lanes
from potentia.engine.training.lane import Lane
from potentia.engine.training.lane_run import LaneRun
from potentia.engine.training.trainer import Trainer, TrainingListener, _nothing
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
        self._shared: ProofCache = getattr(loaded, "proof_cache", None) or ProofCache()
        self._structure: Callable[[], str] = lambda: getattr(loaded, "structure", "")
        on_gpu = next(self.model.parameters()).device.type == "cuda" and not is_spread(self.model)
        self.static = static if static is not None else on_gpu
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
        self._take_off()
        super().close()

    def _take_off(self) -> None:
        if self._bank is not None:
            self._bank.close()
            self._bank = None
        self._resident.clear()

    # ---- training -------------------------------------------------------------------------------------------------

    def _train(self, lanes: dict[str, Lane], watch: TrainingListener) -> None:
        groups: dict[LoraConfig, list[Lane]] = {}
        for lane in lanes.values():
            groups.setdefault(lane.spec.lora, []).append(lane)
        for lora, group in groups.items():
            specs = [lane.spec for lane in group]
            self.plan_passes(
                1, 1.0, lane_bytes=lane_state_bytes(self.model, lora)
            )  # no room is an error
            self._check(lora, specs)
            while not self._run_group(lora, group, watch):
                # the run that was refused has told of the epochs that it found
                watch = replace(watch, on_recall=_nothing)

    def _run_group(self, lora: LoraConfig, group: Sequence[Lane], watch: TrainingListener) -> bool:
        """Train lanes of one shape; return False where the rehearsal refuses the form, and a slower one is next."""
        run = self.run_under_way = LaneRun(self, lora, group, watch)
        self._runs |= dict.fromkeys(run.lanes, run)
        try:
            run.train_to_the_end()
        except RehearsalFailedError as failure:
            self._take_slower_form(lora, [lane.spec for lane in group], failure.refusal)
            return False
        return True

    def _take_slower_form(
        self, lora: LoraConfig, specs: Sequence[LaneSpec], refusal: Refusal
    ) -> None:
        """Check the forms that are slower than the one that the rehearsal refused; none is an error."""
        refused = self.verdict(lora)
        if refused.form == FORMS[-1]:
            raise TuningError(
                f"{type(self.model).__name__} cannot be tuned here: {refusal.reason}",
                hint="potentia models check MODEL shows the distances",
            )
        self._take_off()
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
        self._verdicts[self._way(lora)] = verdict
        self.may_recompute = verdict.recomputes
        self.record["training"] = verdict.as_dict()

    @property
    def trainable(self) -> int:
        """The parameters of one lane's adapter."""
        return self._bank.width if self._bank is not None else 0

    def _check(self, lora: LoraConfig, specs: Sequence[LaneSpec]) -> None:
        """Compare lanes with the model's own code, once a model for a shape of adapters and the longest rows so far."""
        longest, way = min(self.limit, max(spec.longest_text for spec in specs)), self._way(lora)
        known = self._verdicts.get(way)
        if known is None or longest > known.longest:
            self._take_off()
            with spending("check"):
                known = self._verdicts[way] = replace(self._found(lora, specs), longest=longest)
        self.may_recompute = known.recomputes
        self.record["training"] = known.as_dict()

    def _found(self, lora: LoraConfig, specs: Sequence[LaneSpec]) -> TrainingVerdict:
        """Check in full, or on a few rows where models built alike were; whoever runs beside is told."""
        how: dict[str, Any] = {"limit": self.limit, "recompute": self.recomputes}
        alike = self._alike(lora)
        found = self._shared.get(*alike)
        if found is not None:
            before = TrainingVerdict.from_dict(found)
            verdict = recheck_lanes(self.model, lora, specs, before, **how)
            if verdict is not None:
                return verdict
        verdict = check_lanes(self.model, lora, specs, static=self.static, **how)
        if not verdict.lacked_memory:
            self._shared.put(verdict.to_dict(), *alike)
        return verdict

    def _alike(self, lora: LoraConfig) -> tuple[str, ...]:
        """Name what a verdict holds for: adapters of another rank, scale or dropout go the same ways."""
        how = f"{self.static} {self.recomputes} {self.limit}"
        return self._structure(), "lanes", lora.kind, str(lora.targets), how

    def verdict(self, lora: LoraConfig) -> TrainingVerdict:
        """Return what the check found for a shape of adapters."""
        return self._verdicts[self._way(lora)]

    def _way(self, lora: LoraConfig) -> tuple[LoraConfig, bool, bool]:
        return lora, self.static, self.recomputes

    @property
    def recomputes(self) -> bool:
        """Whether activations are computed again: where it is asked for, or memory is short."""
        return self.plan_passes(1, 1.0).checkpointing if self.recompute is None else self.recompute

    def occupy(self, slots: dict[str, int]) -> None:
        """Note which lanes train in which slots; what a slot held before is gone."""
        self._busy = set(slots.values())
        kept = {key: slot for key, slot in self._resident.items() if slot not in self._busy}
        self._resident = kept | slots

    def bank(self, lora: LoraConfig, slots: int) -> AdapterBank:
        """Return the installed adapters for this shape, replacing those of another shape or size."""
        if self._bank is None or self._bank.lora != lora or self._bank.slots != slots:
            self._take_off()
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

    def _row(self, lane_key: str, epoch: int | None) -> tuple[AdapterBank, Tensor]:
        if lane_key not in self._runs:
            raise TuningError(f"no lane {lane_key} was trained here")
        run = self._runs[lane_key]
        if epoch is None:
            if not run.lanes[lane_key].epochs:
                raise TuningError(f"lane {lane_key} finished no epoch")
            epoch = run.lanes[lane_key].epochs[-1].epoch
        kept = run.shelf.load_state(lane_key, epoch)
        if kept is None:
            raise TuningError(
                f"lane {lane_key} has no whole adapter of epoch {epoch}",
                hint="run the same command again to recompute it",
            )
        return self.bank(run.lora, self.plan.slots if self.plan else 1), kept["adapter"]

    def adapter_state(self, lane_key: str, epoch: int | None = None) -> dict[str, Tensor]:
        """Return a lane's adapter after an epoch (the last one by default) as PEFT's state dict, fp32 on the CPU."""
        bank, row = self._row(lane_key, epoch)
        return bank.peft_state(row)

    def save_peft(self, lane_key: str, folder: Path, epoch: int | None = None) -> None:
        """Write a lane's adapter as PEFT does; ``PeftModel.from_pretrained`` reads it."""
        from safetensors.torch import save_file

        bank, row = self._row(lane_key, epoch)
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
        """Put a lane's adapter of an epoch into a free slot for scoring; returns the slot."""
        bank, row = self._row(lane_key, epoch)
        slot = self._resident.get(lane_key)
        if slot is None or slot in self._busy:
            taken = self._busy | set(self._resident.values())
            free = [number for number in range(bank.slots) if number not in taken]
            if not free:  # let go of the adapter restored longest ago
                idle = [key for key, number in self._resident.items() if number not in self._busy]
                if not idle:
                    raise TuningError(
                        "every slot is training", hint="restore adapters after train() returns"
                    )
                free = [self._resident.pop(idle[0])]
            slot = free[0]
        self._resident.pop(lane_key, None)
        self._resident[lane_key] = slot
        bank.weights[slot].copy_(row)
        bank.refresh_work()
        return slot
