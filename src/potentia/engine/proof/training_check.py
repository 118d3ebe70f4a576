"""The check: before lanes are trusted, they are compared with the model's own code, end to end and gradients included.

The judge is the model's own code on each row alone (``judge``), and torch's AdamW. Rows are real ones, of different
lengths up to the longest, in three lanes with random adapters. The forms are tried from fast to slow, and the first
whose losses, gradients of every adapter and updates are the judge's is taken:

* **hand-written layers**: long rows of all lanes through layers written out by hand (``static``), captured;
* **long rows** of the model's own layers, captured;
* the model's own layers on padded rows: **shared passes** of all lanes, **one lane a pass**;
* **one row a pass**: the judge itself.

Structure is judged in float32, on an upcast copy of a model of 16 bits (``twin``): there a wrong factor is a thousand
times what rounding is. In 16 bits a lane's gradient may then be 1.5 times as far from float32's as the model's own, and
one layer's three times. The copy computes by plain operations; kernels are compared with these one by one, in the
model's own dtype (``operations.compared``). Each form is also tried with activations computed again, which a run may
need when memory runs out.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from potentia.engine.layers.packed_pass import Blocks
from potentia.engine.models.device_layout import out_of_memory
from potentia.engine.models.float32_copy import Twin, twin
from potentia.engine.models.split_model import SplitModel
from potentia.engine.operations import choosing, compared_kernels, plain_operations
from potentia.engine.proof.reference import Gradients, own_gradients, own_loss
from potentia.engine.training.adapters import AdapterBank
from potentia.engine.training.passes import (
    HAND,
    LANE,
    LARGER,
    LONG,
    ROW,
    SHARED,
    PassPlan,
    too_long,
)
from potentia.engine.training.schedule import LaneSpec, Lesson, LoraConfig, Schedule
from potentia.engine.training.steps import LaneStates, apply_update, settings_row, steps_in
from potentia.errors import TuningError

log = logging.getLogger(__name__)

COSTS = {
    LONG: "steps take about half as long again",
    SHARED: "steps take two to four times as long on a GPU, and of small models up to forty times",
    LANE: "a step takes as many passes as there are lanes",
    ROW: "a step takes a pass for every row",
}
SLOTS = 3
DRAWS = 3  # a router decides near ties by rounding: what is wrong is wrong on other rows too
MOST_PLAIN = 2048  # tokens of rows that plain attention has memory for: it keeps tokens × tokens
SHORTEST = 32  # tokens that rows are cut to before memory is given up on
ABSENT, NO_MEMORY = "its layers are of another kind", "no memory to try it"


class Distance(NamedTuple):
    """How far a form is from the judge: losses, a lane's whole gradient and one layer's, as shares of these."""

    loss: float
    lane: float
    layer: float

    def within(self, most: Distance) -> bool:
        """Whether nothing is farther than allowed; what is not a number is, also where the model's own is none."""
        return all(
            math.isfinite(off) and off <= allowed for off, allowed in zip(self, most, strict=True)
        )

    def times(self, factor: float, least: Distance) -> Distance:
        """Return a multiple, and no less than the rounding of a few operations."""
        return Distance(*(max(factor * off, low) for off, low in zip(self, least, strict=True)))

    def as_dict(self) -> dict[str, float]:
        """Return plain values for a manifest."""
        return {name: float(f"{value:.2e}") for name, value in self._asdict().items()}

    def __str__(self) -> str:
        return f"losses off by {self.loss:.1e}, gradients by {self.lane:.1e}, one layer's by {self.layer:.1e}"


WHOLE = (torch.float32, torch.float64)
IN_FEW_BITS = ("distance_in_few_bits", "own_rounding", "update", "kernels")
SHOWN = (
    "rows",
    "distance",
    *IN_FEW_BITS,
    "not_taken",
)  # of the whole check, where few rows were judged after it
WHOLE_BITS = Distance(1e-4, 1e-3, 1e-2)
FEW_BITS = Distance(4e-3, 4e-3, 5e-2)  # beside float32
FEW_ROWS = Distance(8e-3, 4e-2, 0.2)  # beside the model's own 16 bits
RATE, UPDATE = 1e-3, 1e-4  # of updates that are tried, and how far they may be off, of their size
MULTIPLE = 3.0  # of the model's own rounding, which differs from form to form: what is wrong shows in float32
LANE_MULTIPLE = 1.5  # the same of a lane's whole gradient


@dataclass
class Verdict:
    """What the check found: the form to take, and distances, as plain values."""

    form: str = ""
    longest: int = 0  # of the rows that it was found for
    recomputes: bool = False  # whether activations may be computed again
    facts: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for a manifest."""
        return {"form": self.form, **self.facts}


def check_lanes(
    model: nn.Module,
    lora: LoraConfig,
    specs: Sequence[LaneSpec],
    *,
    static: bool,
    limit: int | None = None,
    recompute: bool = False,
) -> Verdict:
    """Find the fastest form that gives the judge's losses, gradients and updates; no form is an error."""
    began = time.monotonic()
    refused: dict[str, str] = {}
    with twin(model) as judge:
        structure = _Trial(judge, lora, specs, limit, recompute)
        with closing(structure.bank):
            for form in [HAND, LONG, SHARED, LANE, ROW][0 if static else 2 :]:
                told = structure.wrong(form)
                if told is None and judge.copied:
                    told = _wrong_in_few_bits(model, structure, form, whole=judge.whole)
                if told is None:
                    break
                refused[form] = told
    if told is not None:
        raise TuningError(
            f"{type(model).__name__} cannot be tuned here: {told}",
            hint="potentia models check MODEL shows the distances; name other layers with `targets`",
        )
    unlike = None if recompute else _few(model, lora, specs, form, limit, recompute=True)[0]
    facts = structure.facts | ({} if unlike is None else {"recomputing": unlike})
    verdict = _taken(type(model).__name__, form, refused, _timed(facts, began))
    return replace(verdict, recomputes=unlike is None)


def _taken(name: str, form: str, refused: dict[str, str], facts: dict[str, Any]) -> Verdict:
    """Return what was found, and tell where a slower form is taken."""
    if refused:
        facts["not_taken"] = refused
    if set(refused.values()) - {ABSENT}:
        reasons = "; ".join(f"{other}: {reason}" for other, reason in refused.items())
        level = logging.INFO if form == LONG else logging.WARNING
        log.log(level, "%s: lanes run as %s, %s (%s)", name, form, COSTS[form], reasons)
    return Verdict(form, facts=facts)


def recheck(
    model: nn.Module,
    lora: LoraConfig,
    specs: Sequence[LaneSpec],
    verdict: Verdict,
    *,
    limit: int,
    recompute: bool,
) -> Verdict | None:
    """Return what was found of a model built alike, or on shorter rows, where a row of two lanes is right here too.

    Structure is all that few rows can tell, and float32 tells it: 16 bits round a gradient of one row by a tenth of it.
    Of all its weights the model itself is asked whether they are numbers.
    """
    began = time.monotonic()
    row = min(trial_rows(specs, limit), key=lambda row: len(row.ids))
    with torch.no_grad():
        sound = math.isfinite(own_loss(model, row, next(model.parameters()).device))
    told, facts = _few(model, lora, specs, verdict.form, limit, recompute=recompute)
    if told is not None or not sound:
        log.debug("%s: %s on a few rows, so it is checked in full", type(model).__name__, told)
        return None
    full = {name: fact for name, fact in verdict.facts.items() if name in SHOWN}
    return replace(verdict, facts=_timed(facts, began) | {"judged": "two rows", "in_full": full})


def _few(
    model: nn.Module,
    lora: LoraConfig,
    specs: Sequence[LaneSpec],
    form: str,
    limit: int | None,
    *,
    recompute: bool,
) -> tuple[str | None, dict[str, Any]]:
    """Say what is wrong with a form on a row of two lanes, in float32 and two blocks of each kind; and what was found.

    Blocks of a kind are the same code, whatever their weights are; a model that cannot do with fewer has all of them.
    """
    told = ""
    for whole in (False, True):
        try:
            with twin(model, whole=whole) as judge:
                trial = _Trial(judge, lora, specs, limit, recompute, few=True)
                with closing(trial.bank):
                    return trial.wrong(form), trial.facts
        except Exception as error:  # what is not known to be right is not taken
            told = _refusal(error)
    return told, {}


def _timed(facts: dict[str, Any], began: float) -> dict[str, Any]:
    return facts | {"seconds": round(time.monotonic() - began, 3)}


class _Trial:
    """Forms tried on one model: its adapters, its rows, and what the judge says of them.

    The judge is the model's own code, on ``exact``'s model where there is one: then this model is the same in 16 bits.
    """

    def __init__(
        self,
        judge: Twin,
        lora: LoraConfig,
        specs: Sequence[LaneSpec],
        limit: int | None,
        recompute: bool,
        *,
        few: bool = False,
        exact: _Trial | None = None,
    ) -> None:
        self.model, self.specs, self.recompute, self.few, self.exact = (
            judge.model,
            specs,
            recompute,
            few,
            exact,
        )
        self.copied = judge.copied  # what runs is another: a model of 16 bits
        self.split = SplitModel(self.model)
        self.bank = AdapterBank(self.model, lora, SLOTS)
        if exact is None:
            self.bank.randomise()
        else:
            self.bank.weights.copy_(exact.bank.weights)
            self.bank.refresh()
        self.facts: dict[str, Any] = {"judged_in": str(self.bank.dtype).removeprefix("torch.")}
        if not judge.whole:
            self.facts["judged_blocks"] = f"{judge.blocks} of {judge.of}, two of each kind"
        self.most = limit
        self.blocks: Blocks | None = None
        self._judged: dict[tuple[int, bool], tuple[list[Lesson], Gradients]] = {}

    @contextmanager
    def dropping(self, form: str) -> Iterator[None]:
        """Drop nothing where a lane has its passes to itself: there the order of its tokens is the model's affair."""
        with ExitStack() as stack:
            for trial in (self, self.exact) if form == LANE else ():
                if trial is not None:
                    stack.enter_context(trial.bank.without_dropout())
            yield

    def rows(self, draw: int = 0) -> tuple[list[Lesson], Gradients]:
        """Return rows and what the judge says of them; shorter ones where memory does not hold the longest."""
        if self.exact is not None:
            return self.exact.rows(draw)
        key = draw, self.bank.lora.dropout > 0
        while key not in self._judged:
            rows = trial_rows(self.specs, self.most, draw)
            rows = [row for row in rows if row.place == 0][:2] if self.few else rows
            try:
                truth = own_gradients(self.model, self.bank, rows)
            except (torch.OutOfMemoryError, RuntimeError) as error:
                if not out_of_memory(error):
                    raise
                longest = max(len(row.ids) for row in rows)
                if longest <= SHORTEST:
                    raise too_long(rows, LARGER) from error
                self.most = longest // 2
                continue
            if not bool(truth[1].any()):
                raise TuningError(
                    "no adapter changes what the model computes", hint="check `targets`"
                )
            self.facts.setdefault("rows", [len(row.ids) for row in rows])
            self._judged[key] = rows, truth
        return self._judged[key]

    def wrong(self, form: str) -> str | None:
        """Say what is wrong with a form on this model, or None."""
        if form in (HAND, LONG) and self.bank.lora.kind == "dora":
            return "DoRA runs by the model's own layers"
        if form == HAND and self.blocks is None:
            self.blocks = Blocks.of(self.model)
            if self.blocks is None:
                return ABSENT
        found: str | None = None
        for draw in range(DRAWS):
            with self.dropping(form):
                found = self._tried(form, draw)
            if found is None or not found.startswith("losses"):
                return found
        return found

    def _tried(self, form: str, draw: int) -> str | None:
        rows, truth = self.rows(draw)
        do = self._operations(rows)
        try:
            with choosing(do):
                told = self._differs(form, rows, truth)
            if hasattr(do, "judge"):
                self.facts["kernels"] = do.judge()
            return told
        except Exception as error:  # whatever it is, the form is not taken
            return _refusal(error)

    def _operations(self, rows: Sequence[Lesson]) -> Any:
        """Return plain operations for a copy, kernels beside them for a model of 16 bits; None for the device's own."""
        if max(len(row.ids) for row in rows) > MOST_PLAIN:
            return None
        return (
            plain_operations()
            if self.copied
            else compared_kernels(self.bank.device, self.bank.dtype)
        )

    def _differs(self, form: str, rows: Sequence[Lesson], truth: Gradients) -> str | None:
        """Say how a form's losses, gradients and updates differ from the judge's by more than is allowed, or None."""
        most = self._allowed(rows, truth)
        distance = distance_of(self.bank, self.gradients(form, rows), truth)
        self.facts["distance" if self.exact is None else "distance_in_few_bits"] = (
            distance.as_dict()
        )
        if not distance.within(most):
            return f"{distance} ({most.loss:.1e}, {most.lane:.1e} and {most.layer:.1e} are allowed)"
        if form == SHARED and self.exact is None:
            mixed = distance_of(self.bank, self.gradients(form, rows[::-1]), truth)
            if not mixed.within(most):
                return f"losses and gradients depend on the order of rows: {mixed}"
        if self.copied:  # updates are made in the dtype of the run
            return None
        self.facts["update"] = update_distance(self.bank, truth[1], self.specs[0].schedule)
        if not self.facts["update"] <= UPDATE:
            return f"its updates are off by {self.facts['update']:.1e} from AdamW's"
        return None

    def _allowed(self, rows: Sequence[Lesson], truth: Gradients) -> Distance:
        """Return how far a form may be off: in 16 bits by the model's own rounding, on other shapes or from float32."""
        if self.bank.dtype in WHOLE:
            return WHOLE_BITS
        padding = 5 if self.exact is None else 0
        own = distance_of(
            self.bank, own_gradients(self.model, self.bank, rows, padding=padding), truth
        )
        if self.exact is None:
            return own.times(MULTIPLE, FEW_ROWS)
        self.facts["own_rounding"] = own.as_dict()
        return own.times(MULTIPLE, FEW_BITS)._replace(
            lane=max(LANE_MULTIPLE * own.lane, FEW_BITS.lane)
        )

    def gradients(self, form: str, rows: Sequence[Lesson]) -> Gradients:
        """Return the losses and gradients that a form gives on these rows, all in one pass where it shares passes."""
        states = LaneStates(self.bank.slots, self.bank.width, self.bank.device)
        steps = steps_in(form, self.split, self.bank, states, self.blocks)
        steps.clear()
        steps.gradients(rows, PassPlan(self.bank.slots, 1 << 40, 1 << 40, self.recompute))
        found = steps.losses.clone(), self.bank.grads.clone()
        steps.clear()
        return found


def _wrong_in_few_bits(
    model: nn.Module, structure: _Trial, form: str, *, whole: bool
) -> str | None:
    """Say what is wrong with a form in the model's own 16 bits, or None.

    Float32's gradients of a copy without all blocks are another model's: then the model is judged by itself.
    """
    bank, exact = structure.bank, structure if whole else None
    itself = Twin(model, 1, 1, copied=False)
    trial = _Trial(
        itself, bank.lora, structure.specs, structure.most, structure.recompute, exact=exact
    )
    with closing(trial.bank):
        told = trial.wrong(form)
    structure.facts |= {name: trial.facts[name] for name in IN_FEW_BITS if name in trial.facts}
    return told


def _refusal(error: Exception) -> str:
    log.debug("a form that was refused", exc_info=error)
    if not out_of_memory(error):
        return f"{type(error).__name__}: {str(error).strip()[:200]}"
    return NO_MEMORY


def trial_rows(specs: Sequence[LaneSpec], limit: int | None, draw: int = 0) -> list[Lesson]:
    """Choose real rows for three lanes: the longest of all, some of other lengths, and some cut short."""
    stream = np.random.default_rng(draw)
    longest = max(range(len(specs)), key=lambda number: specs[number].longest)
    order = [specs[(longest + lane) % len(specs)] for lane in range(SLOTS)]
    rows: list[Lesson] = []
    for slot, spec in enumerate(order):
        first = (
            int(spec.examples.lengths.argmax())
            if slot == 0
            else int(stream.integers(len(spec.examples)))
        )
        texts = [
            spec.text(index, limit) for index in (first, int(stream.integers(len(spec.examples))))
        ]
        ids, start = texts[1]
        half = max(2, len(ids) // (2 + slot))
        texts[1] = ids[:half], min(start, half - 1)
        count = sum(len(ids) - start for ids, start in texts)
        rows += [
            Lesson(ids, start, slot, spec.seed + slot, 1 + draw, at, 1 / max(1, count))
            for at, (ids, start) in enumerate(texts)
        ]
    return rows


# ---- distances -------------------------------------------------------------------------------------------------------


def distance_of(bank: AdapterBank, ours: Gradients, judge: Gradients) -> Distance:
    """Return how far losses and gradients are from the judge's: the worst lane, and the worst layer of any lane."""
    (losses, grads), (own_losses, own) = ours, judge
    n = bank.slots
    loss = ((losses - own_losses).abs()[:n] / own_losses.abs()[:n].clamp(min=1e-6)).max()
    sizes = torch.linalg.vector_norm(own[:n], dim=1)
    gap = grads[:n] - own[:n]
    lane = (torch.linalg.vector_norm(gap, dim=1) / sizes.clamp(min=1e-12)).max()
    floor = 0.1 * sizes / len(bank.sites) ** 0.5
    ends = torch.tensor([0, *(site.offset + site.size for site in bank.sites)], device=own.device)

    def layers(flat: Tensor) -> Tensor:
        """Return the size of every layer's part (n, sites); they lie side by side."""
        sums = nn.functional.pad(flat.double().square().cumsum(1), (1, 0))
        return sums[:, ends].diff(dim=1).clamp(min=0).sqrt().float()

    layer = (layers(gap) / torch.maximum(layers(own[:n]), floor[:, None]).clamp(min=1e-12)).max()
    return Distance(
        *(
            float(part) if bool(torch.isfinite(part)) else float("inf")
            for part in (loss, lane, layer)
        )
    )


def update_distance(bank: AdapterBank, grads: Tensor, schedule: Schedule) -> float:
    """Return how far three updates are from torch's AdamW's, after torch's clipping, as a share of their size."""
    n, kept = bank.slots, bank.weights.clone()
    states, losses = LaneStates(n, bank.width, bank.device), torch.zeros(n + 1, device=bank.device)
    leaves = [kept[slot].clone().requires_grad_() for slot in range(n)]
    judges = [
        torch.optim.AdamW(
            [leaf], 0.0, schedule.betas, schedule.eps, schedule.weight_decay, foreach=False
        )
        for leaf in leaves
    ]
    clip = schedule.clip if schedule.clip > 0 else float("inf")
    tried = replace(schedule, warmup_steps=0, learning_rate=RATE)
    try:
        for step, factor in enumerate((1.0, -0.5, 2.0)):
            bank.grads.copy_(grads * factor)
            numbers = settings_row(tried, step, 8)
            apply_update(
                bank,
                states,
                losses,
                torch.tensor([[*numbers, 1.0, step == 0]] * n, device=bank.device),
            )
            for slot, (leaf, judge) in enumerate(zip(leaves, judges, strict=True)):
                leaf.grad = grads[slot].clone() * factor
                nn.utils.clip_grad_norm_([leaf], clip)
                judge.param_groups[0]["lr"] = numbers[0]
                judge.step()
        wanted = torch.stack([leaf.detach() for leaf in leaves])
        moved = torch.linalg.vector_norm(wanted - kept[:n])
        error = torch.linalg.vector_norm(bank.weights[:n] - wanted)
        used = bank.weights[:n] * bank.factors
        stale, rounding = (
            torch.linalg.vector_norm(part - used)
            for part in (bank.work[:n], used.to(bank.work.dtype))
        )
        error += (stale - MULTIPLE * rounding).clamp(min=0)
        return float(error / moved.clamp(min=1e-12) if float(moved) > 0 else error)
    finally:
        bank.grads.zero_()
        bank.weights.copy_(kept)
        bank.refresh()
