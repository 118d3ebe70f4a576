"""The check of a training form: before lanes are trusted, they are compared with the model's own code.

The reference is the model's own code on each row alone (``reference``), and torch's AdamW. Rows are real ones, of
different lengths up to the longest, in three lanes with random adapters. The forms are tried from fast to slow, and
the first whose losses, gradients of every adapter and updates are the reference's is taken:

* **fused**: packed rows of all lanes through layers written out by hand (``packed_pass``), captured;
* **packed**: packed rows of the model's own layers, captured;
* **padded**: the model's own layers on padded rows of all lanes, or of **one lane** a pass;
* **one row** a pass: the reference itself.

Structure is compared in float32, on an upcast copy of a model of 16 bits (``float32_copy``): there a wrong factor is a
thousand times what rounding is. In 16 bits a lane's gradient may then be 1.5 times as far from float32's as the model's
own, and one layer's three times. The copy computes by plain operations; kernels are compared with these one by one, in
the model's own dtype (``operations.compared``). Each form is also tried with activations computed again, which a run
may need when memory runs out. What only a real step has (all slots, all passes), ``rehearsal`` compares.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from potentia.engine.lane_spec import LaneSpec, LoraConfig, Schedule, TrainingRow
from potentia.engine.layers.adapter_bank import AdapterBank
from potentia.engine.layers.fused_layers import FusedLayers
from potentia.engine.models.device_layout import out_of_memory
from potentia.engine.models.float32_copy import Float32Copy, open_float32_copy
from potentia.engine.models.split_model import SplitModel
from potentia.engine.operations import choosing, compared_kernels, plain_operations
from potentia.engine.proof.reference import (
    Gradients,
    embeddings_moved_by_last_bit,
    reference_gradients,
    reference_loss,
)
from potentia.engine.proof.refusal import Refusal
from potentia.engine.proof.tolerance import (
    DRAWS,
    FEW_BITS,
    FEW_ROWS,
    LANE_MULTIPLE,
    MOST_NOISE,
    MULTIPLE,
    NOISE_DRAWS,
    UPDATE,
    WHOLE_BITS,
    Distance,
    is_whole,
    slots_distance,
)
from potentia.engine.proof.training_steps import make_steps
from potentia.engine.steps.lane_states import LaneStates, apply_update, update_settings
from potentia.engine.steps.pass_plan import MEMORY_HINT, PassPlan, row_too_long_error
from potentia.errors import TuningError
from potentia.values.training_form import TrainingForm

log = logging.getLogger(__name__)

COSTS = {
    TrainingForm.PACKED: "steps take about half as long again",
    TrainingForm.PADDED: "steps take two to four times as long on a GPU, and of small models up to forty times",
    TrainingForm.ONE_LANE: "a step takes as many passes as there are lanes",
    TrainingForm.ONE_ROW: "a step takes a pass for every row",
}
FORMS = tuple(TrainingForm)  # from fast to slow
SLOTS = 3
MOST_PLAIN = 2048  # tokens of rows that plain attention has memory for: it keeps tokens × tokens
SHORTEST = 32  # tokens that rows are cut to before memory is given up on
ABSENT = Refusal("its layers are of another kind")
NO_MEMORY = Refusal("no memory to try it")
LEARNING_RATE = 1e-3  # of updates that are tried
FEW_BITS_FACTS = ("distance_in_few_bits", "own_rounding", "update", "kernels")
FULL_CHECK_FACTS = ("rows", "distance", *FEW_BITS_FACTS, "not_taken")  # of a check on all rows


@dataclass
class TrainingVerdict:
    """What the check found: the form to take, what it holds for, and distances as plain values."""

    form: TrainingForm
    longest: int = 0  # tokens of the rows that it was found for
    recomputes: bool = False  # whether activations may be computed again
    lacked_memory: bool = False  # whether a faster form may be right where there is more memory
    facts: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for the record of a run."""
        return {"form": self.form.value, **self.facts}

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for processes that run beside this one."""
        return {"form": self.form.value, "recomputes": self.recomputes, "facts": self.facts}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainingVerdict:
        """Read what another process found."""
        form = TrainingForm(values["form"])
        return cls(form, recomputes=values["recomputes"], facts=values.get("facts", {}))


@dataclass(frozen=True)
class CheckSettings:
    """What a check is made for: adapters of a shape, examples of lanes, the longest text, recomputed activations."""

    lora: LoraConfig
    specs: Sequence[LaneSpec]
    limit: int | None = None
    recompute: bool = False


def check_lanes(
    model: nn.Module,
    lora: LoraConfig,
    specs: Sequence[LaneSpec],
    *,
    static: bool,
    limit: int | None = None,
    recompute: bool = False,
    refused: Mapping[TrainingForm, Refusal] | None = None,
) -> TrainingVerdict:
    """Find the fastest form that gives the reference's losses, gradients and updates; no form is an error.

    ``refused`` are forms that a run has refused before: these and faster ones are not tried.
    """
    began = time.monotonic()
    settings = CheckSettings(lora, specs, limit, recompute)
    refusals = dict(refused or {})
    forms = _forms_to_try(refusals, static=static)
    with open_float32_copy(model) as float32_copy:
        check = TrainingCheck(float32_copy, settings)
        with closing(check.bank):
            form = _first_right_form(model, check, forms, refusals)
    facts = check.facts
    recomputes = recompute
    if not recompute:
        refusal, _ = _check_few_rows(model, replace(settings, recompute=True), form)
        recomputes = refusal is None
        if refusal is not None:
            facts["recomputing"] = refusal.reason
    facts["seconds"] = _seconds_since(began)
    wrong = {
        refused_form: refusal for refused_form, refusal in refusals.items() if refusal != ABSENT
    }
    if wrong:
        facts["not_taken"] = {other.value: refusal.reason for other, refusal in wrong.items()}
    _log_slower_form(type(model).__name__, form, refusals)
    return TrainingVerdict(
        form,
        recomputes=recomputes,
        lacked_memory=NO_MEMORY in refusals.values(),
        facts=facts,
    )


def _forms_to_try(
    refused: Mapping[TrainingForm, Refusal], *, static: bool
) -> Sequence[TrainingForm]:
    """Return the forms slower than all that were refused; without packed passes, those of padded rows."""
    begin = 0 if static else FORMS.index(TrainingForm.PADDED)
    slowest = max((FORMS.index(form) for form in refused), default=-1)
    return FORMS[max(begin, slowest + 1) :]


def _first_right_form(
    model: nn.Module,
    check: TrainingCheck,
    forms: Sequence[TrainingForm],
    refusals: dict[TrainingForm, Refusal],
) -> TrainingForm:
    """Return the first form that nothing is wrong with, and note why others are refused."""
    for form in forms:
        refusal = check.find_refusal(form)
        if refusal is None and check.copied:
            refusal = _check_in_few_bits(model, check, form)
        if refusal is None:
            return form
        refusals[form] = refusal
    reason = list(refusals.values())[-1].reason
    raise TuningError(
        f"{type(model).__name__} cannot be tuned here: {reason}",
        hint="potentia doctor MODEL shows the distances; name other layers with `targets`",
    )


def _log_slower_form(
    model_name: str, form: TrainingForm, refusals: Mapping[TrainingForm, Refusal]
) -> None:
    """Log that a slower form is taken, with its cost, unless the model's layers are just of another kind."""
    if all(refusal == ABSENT for refusal in refusals.values()):
        return
    reasons = "; ".join(
        f"{refused_form.words}: {refusal.reason}" for refused_form, refusal in refusals.items()
    )
    level = logging.INFO if form is TrainingForm.PACKED else logging.WARNING
    log.log(level, "%s: lanes run as %s, %s (%s)", model_name, form.words, COSTS[form], reasons)


def recheck_lanes(
    model: nn.Module,
    lora: LoraConfig,
    specs: Sequence[LaneSpec],
    verdict: TrainingVerdict,
    *,
    limit: int,
    recompute: bool,
) -> TrainingVerdict | None:
    """Return what was found of a model built alike, or on shorter rows, where a row of two lanes is right here too.

    Structure is all that few rows can tell, and float32 tells it: 16 bits round a gradient of one row by a tenth of it.
    Of all its weights the model itself is asked whether they are numbers.
    """
    began = time.monotonic()
    shortest = min(choose_trial_rows(specs, limit), key=lambda row: len(row.ids))
    with torch.no_grad():
        loss = reference_loss(model, shortest, next(model.parameters()).device)
    settings = CheckSettings(lora, specs, limit, recompute)
    refusal, facts = _check_few_rows(model, settings, verdict.form)
    if refusal is not None or not math.isfinite(loss):
        log.debug("%s: %s on a few rows, so it is checked in full", type(model).__name__, refusal)
        return None
    full = {name: fact for name, fact in verdict.facts.items() if name in FULL_CHECK_FACTS}
    facts |= {"seconds": _seconds_since(began), "judged": "two rows", "in_full": full}
    return replace(verdict, facts=facts)


def _check_few_rows(
    model: nn.Module, settings: CheckSettings, form: TrainingForm
) -> tuple[Refusal | None, dict[str, Any]]:
    """Check a form on a row of two lanes, in float32 and two blocks of each kind; return what is wrong, and facts.

    Blocks of a kind are the same code, whatever their weights are; a model that cannot do with fewer has all of them.
    """
    refusal = Refusal("")
    for all_blocks in (False, True):
        try:
            with open_float32_copy(model, all_blocks=all_blocks) as float32_copy:
                check = TrainingCheck(float32_copy, settings, few_rows=True)
                with closing(check.bank):
                    return check.find_refusal(form), check.facts
        except Exception as error:  # what is not known to be right is not taken
            refusal = _refusal_of_error(error)
    return refusal, {}


def _seconds_since(began: float) -> float:
    return round(time.monotonic() - began, 3)


class TrainingCheck:
    """Forms tried on one model: its adapters, its rows, and what the reference says of them.

    The reference is the model's own code, on ``exact``'s model where there is one: then this model is the same in
    16 bits.
    """

    def __init__(
        self,
        float32_copy: Float32Copy,
        settings: CheckSettings,
        *,
        few_rows: bool = False,
        exact: TrainingCheck | None = None,
    ) -> None:
        self.model = float32_copy.model
        self.settings = settings
        self.few_rows = few_rows
        self.exact = exact
        self.copied = float32_copy.copied  # what runs is another: a model of 16 bits
        self.whole = float32_copy.whole
        self.split = SplitModel(self.model)
        self.bank = AdapterBank(self.model, settings.lora, SLOTS)
        if exact is None:
            self.bank.make_up_adapters()
        else:
            self.bank.weights.copy_(exact.bank.weights)
            self.bank.refresh_work()
        self.facts: dict[str, Any] = {"judged_in": str(self.bank.dtype).removeprefix("torch.")}
        if not float32_copy.whole:
            blocks = f"{float32_copy.blocks} of {float32_copy.of}, two of each kind"
            self.facts["judged_blocks"] = blocks
        self.longest = settings.limit
        self.blocks: FusedLayers | None = None
        self._references: dict[tuple[int, bool], tuple[list[TrainingRow], Gradients]] = {}

    @contextmanager
    def dropout_of(self, form: TrainingForm) -> Iterator[None]:
        """Drop nothing where a lane has its passes to itself: there the order of its tokens is the model's affair."""
        with ExitStack() as stack:
            if form is TrainingForm.ONE_LANE:
                stack.enter_context(self.bank.without_dropout())
                if self.exact is not None:
                    stack.enter_context(self.exact.bank.without_dropout())
            yield

    def rows_and_reference(self, draw: int = 0) -> tuple[list[TrainingRow], Gradients]:
        """Return rows and the reference's losses and gradients; shorter rows where memory does not hold the longest."""
        if self.exact is not None:
            return self.exact.rows_and_reference(draw)
        key = draw, self.bank.lora.dropout > 0
        while key not in self._references:
            rows = choose_trial_rows(self.settings.specs, self.longest, draw)
            if self.few_rows:
                rows = [row for row in rows if row.batch_index == 0][:2]
            try:
                reference = reference_gradients(self.model, self.bank, rows)
            except (torch.OutOfMemoryError, RuntimeError) as error:
                if not out_of_memory(error):
                    raise
                self._shorten(rows, error)
                continue
            if not bool(reference[1].any()):
                raise TuningError(
                    "no adapter changes what the model computes", hint="check `targets`"
                )
            self.facts.setdefault("rows", [len(row.ids) for row in rows])
            self._references[key] = rows, reference
        return self._references[key]

    def _shorten(self, rows: Sequence[TrainingRow], error: Exception) -> None:
        """Halve the longest row, or give up where rows are short."""
        longest = max(len(row.ids) for row in rows)
        if longest <= SHORTEST:
            raise row_too_long_error(rows, MEMORY_HINT) from error
        self.longest = longest // 2

    def find_refusal(self, form: TrainingForm) -> Refusal | None:
        """Return what is wrong with a form on this model, or None."""
        if form is TrainingForm.FUSED and self.blocks is None:
            self.blocks = FusedLayers.of(self.model)
            if self.blocks is None:
                return ABSENT
        refusal: Refusal | None = None
        for draw in range(DRAWS):
            with self.dropout_of(form):
                refusal = self._try_form(form, draw)
            if refusal is None or not refusal.retry:
                return refusal
        return refusal

    def _try_form(self, form: TrainingForm, draw: int) -> Refusal | None:
        rows, reference = self.rows_and_reference(draw)
        chosen = self._operations(rows)
        try:
            with choosing(chosen):
                refusal = self._compare(form, rows, reference)
            if hasattr(chosen, "judge"):
                self.facts["kernels"] = chosen.judge()
            return refusal
        except Exception as error:  # whatever it is, the form is not taken
            return _refusal_of_error(error)

    def _operations(self, rows: Sequence[TrainingRow]) -> Any:
        """Return plain operations for a copy, kernels beside them for a model of 16 bits; None for the device's own."""
        if max(len(row.ids) for row in rows) > MOST_PLAIN:
            return None
        if self.copied:
            return plain_operations()
        return compared_kernels(self.bank.device, self.bank.dtype)

    def _compare(
        self, form: TrainingForm, rows: Sequence[TrainingRow], reference: Gradients
    ) -> Refusal | None:
        """Return how a form's losses, gradients and updates differ from the reference's by too much, or None."""
        allowed = self._tolerance(rows, reference)
        distance = self.distance(self.form_gradients(form, rows), reference)
        fact = "distance" if self.exact is None else "distance_in_few_bits"
        self.facts[fact] = distance.as_dict()
        if not distance.within(allowed) and is_whole(self.bank.dtype):
            allowed = self._allow_own_noise(rows, reference)
        if not distance.within(allowed):
            return Refusal(distance.compared_with(allowed), retry=True)
        if form is TrainingForm.PADDED and self.exact is None:
            reversed_rows = self.distance(self.form_gradients(form, rows[::-1]), reference)
            if not reversed_rows.within(allowed):
                reason = f"losses and gradients depend on the order of rows: {reversed_rows}"
                return Refusal(reason, retry=True)
        if self.copied:  # updates are made in the dtype of the run
            return None
        error = update_distance(self.bank, reference[1], self.settings.specs[0].schedule)
        self.facts["update"] = error
        if not error <= UPDATE:
            return Refusal(f"its updates are off by {error:.1e} from AdamW's")
        return None

    def _allow_own_noise(self, rows: Sequence[TrainingRow], reference: Gradients) -> Distance:
        """Return how far a form may be off where the model itself is: when its embeddings move by their last bit.

        Attention that is nearly a choice of one token (random weights of Gemma 4) turns rounding into other answers.
        What is off by more than a quarter is refused whatever the noise: nothing could be told from a fault there.
        """
        noise = Distance(0.0, 0.0, 0.0)
        for seed in range(NOISE_DRAWS):
            with embeddings_moved_by_last_bit(self.model, seed):
                moved = reference_gradients(self.model, self.bank, rows)
            noise = self.distance(moved, reference).times(1.0, noise)
        self.facts["own_noise"] = noise.as_dict()
        return noise.times(MULTIPLE, WHOLE_BITS).at_most(MOST_NOISE)

    def _tolerance(self, rows: Sequence[TrainingRow], reference: Gradients) -> Distance:
        """Return how far a form may be off: in 16 bits by the model's own rounding, on other shapes or from float32."""
        if is_whole(self.bank.dtype):
            return WHOLE_BITS
        padding = 5 if self.exact is None else 0
        model_gradients = reference_gradients(self.model, self.bank, rows, padding=padding)
        rounding = self.distance(model_gradients, reference)
        if self.exact is None:
            return rounding.times(MULTIPLE, FEW_ROWS)
        self.facts["own_rounding"] = rounding.as_dict()
        lane = max(LANE_MULTIPLE * rounding.lane, FEW_BITS.lane)
        return rounding.times(MULTIPLE, FEW_BITS)._replace(lane=lane)

    def distance(self, ours: Gradients, reference: Gradients) -> Distance:
        """Return how far losses and gradients of all slots are from the reference's."""
        return slots_distance(self.bank, ours, reference, range(self.bank.slots))

    def form_gradients(self, form: TrainingForm, rows: Sequence[TrainingRow]) -> Gradients:
        """Return the losses and gradients that a form gives on these rows, all in one pass where it shares passes."""
        states = LaneStates(self.bank.slots, self.bank.width, self.bank.device)
        steps = make_steps(form, self.split, self.bank, states, self.blocks)
        one_pass = PassPlan(
            slots=self.bank.slots,
            token_budget=1 << 40,
            pass_price=1 << 40,
            checkpointing=self.settings.recompute,
        )
        steps.clear()
        steps.add_gradients(rows, one_pass)
        losses, gradients = steps.losses.clone(), self.bank.grads.clone()
        steps.clear()
        return losses, gradients


def _check_in_few_bits(
    model: nn.Module, structure: TrainingCheck, form: TrainingForm
) -> Refusal | None:
    """Return what is wrong with a form in the model's own 16 bits, or None.

    Float32's gradients of a copy without all blocks are another model's: then the model is compared with itself.
    """
    exact = structure if structure.whole else None
    itself = Float32Copy(model, 1, 1, copied=False)
    settings = replace(structure.settings, limit=structure.longest)
    check = TrainingCheck(itself, settings, exact=exact)
    with closing(check.bank):
        refusal = check.find_refusal(form)
    for name in FEW_BITS_FACTS:
        if name in check.facts:
            structure.facts[name] = check.facts[name]
    return refusal


def _refusal_of_error(error: Exception) -> Refusal:
    log.debug("a form that was refused", exc_info=error)
    if out_of_memory(error):
        return NO_MEMORY
    return Refusal(f"{type(error).__name__}: {str(error).strip()[:200]}")


def choose_trial_rows(
    specs: Sequence[LaneSpec], limit: int | None, draw: int = 0
) -> list[TrainingRow]:
    """Choose real rows for three lanes: the longest of all, some of other lengths, and some cut short."""
    stream = np.random.default_rng(draw)
    longest = max(range(len(specs)), key=lambda number: specs[number].longest_text)
    chosen = [specs[(longest + lane) % len(specs)] for lane in range(SLOTS)]
    rows: list[TrainingRow] = []
    for slot, spec in enumerate(chosen):
        count = len(spec.examples)
        first = int(spec.examples.lengths.argmax()) if slot == 0 else int(stream.integers(count))
        second = int(stream.integers(count))
        ids, start = spec.text_of_example(second, limit)
        half = max(2, len(ids) // (2 + slot))
        texts = [spec.text_of_example(first, limit), (ids[:half], min(start, half - 1))]
        targets = sum(len(ids) - start for ids, start in texts)
        for batch_index, (ids, start) in enumerate(texts):
            row = TrainingRow(
                ids=ids,
                first_target=start,
                slot=slot,
                seed=spec.seed + slot,
                step=1 + draw,
                batch_index=batch_index,
                weight=1 / max(1, targets),
            )
            rows.append(row)
    return rows


# ---- updates -------------------------------------------------------------------------------------

UPDATE_NORMS = (2.0, -0.5, 0.25)  # of gradients, of the norm that they are clipped to
MOST_CLIP = 1e6  # a larger norm clips nothing
UNCLIPPED_FACTORS = (1.0, -0.5, 2.0)  # of gradients that are not clipped


def update_distance(bank: AdapterBank, gradients: Tensor, schedule: Schedule) -> float:
    """Return how far three updates are from torch's AdamW's, after torch's clipping, as a share of their size.

    The first gradient is clipped and the others are not: clipping hides the size of a gradient from AdamW.
    """
    count = bank.slots
    start = bank.weights.clone()
    states = LaneStates(count, bank.width, bank.device)
    losses = torch.zeros(count + 1, device=bank.device)
    leaves = [start[slot].clone().requires_grad_() for slot in range(count)]
    optimizers = [_adamw(leaf, schedule) for leaf in leaves]
    clip = schedule.clip if schedule.clip > 0 else math.inf
    tried = replace(schedule, warmup_steps=0, learning_rate=LEARNING_RATE)
    try:
        for step in range(len(UPDATE_NORMS)):
            scaled = _scale_for_update(gradients[:count], clip, step)
            bank.grads[:count].copy_(scaled)
            numbers = update_settings(tried, step, 8)
            table = torch.tensor([[*numbers, 1.0, step == 0]] * count, device=bank.device)
            apply_update(bank, states, losses, table)
            for leaf, optimizer, gradient in zip(leaves, optimizers, scaled, strict=True):
                leaf.grad = gradient.clone()
                nn.utils.clip_grad_norm_([leaf], clip)
                optimizer.param_groups[0]["lr"] = numbers[0]
                optimizer.step()
        expected = torch.stack([leaf.detach() for leaf in leaves])
        moved = float(torch.linalg.vector_norm(expected - start[:count]))
        error = float(torch.linalg.vector_norm(bank.weights[:count] - expected))
        error += _staleness(bank)
        return error / moved if moved > 0 else error
    finally:
        bank.grads.zero_()
        bank.weights.copy_(start)
        bank.refresh_work()


def _adamw(leaf: Tensor, schedule: Schedule) -> torch.optim.AdamW:
    return torch.optim.AdamW(
        [leaf],
        lr=0.0,
        betas=schedule.betas,
        eps=schedule.eps,
        weight_decay=schedule.weight_decay,
        foreach=False,
    )


def _scale_for_update(gradients: Tensor, clip: float, step: int) -> Tensor:
    """Return gradients (n, P) of the norms that the three updates are tried with."""
    if clip > MOST_CLIP:  # squares of such gradients are no numbers
        return gradients * UNCLIPPED_FACTORS[step]
    norms = torch.linalg.vector_norm(gradients, dim=1, keepdim=True)
    directions: Tensor = gradients / norms.clamp(min=1e-12)
    return directions * (UPDATE_NORMS[step] * clip)


def _staleness(bank: AdapterBank) -> float:
    """Return how far the copies of adapters that passes multiply with are off, beyond their rounding."""
    used = bank.weights[: bank.slots] * bank.factors
    work = bank.work[: bank.slots]
    stale = float(torch.linalg.vector_norm(work - used))
    rounding = float(torch.linalg.vector_norm(used.to(work.dtype) - used))
    return max(0.0, stale - MULTIPLE * rounding)
