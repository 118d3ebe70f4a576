"""The check: before lanes are trusted, they are compared with the model's own code, end to end and gradients included.

The judge is the model's own code on each row alone (``judge``), and torch's AdamW. Rows are real ones, of different
lengths up to the longest, in three lanes with random adapters. The forms are tried from fast to slow, and the first
whose losses, gradients of every adapter and updates are the judge's is taken:

* **hand-written layers**: long rows of all lanes through layers written out by hand (``block``), captured;
* **long rows** of the model's own layers (``static``), captured;
* the model's own layers on padded rows: **shared passes** of all lanes, **one lane a pass**;
* **one row a pass**: the judge itself.

Structure is judged in float32, on an upcast copy of a model of 16 bits (``twin``): there a wrong factor is a thousand
times what rounding is. In 16 bits a lane's gradient may then be 1.5 times as far from float32's as the model's own, and
one layer's three times.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, astuple, dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from potentia.engine.split import SplitModel
from potentia.engine.spread import out_of_memory
from potentia.engine.tune.adapters import AdapterBank
from potentia.engine.tune.judge import Gradients, own_gradients
from potentia.engine.tune.layout import lay
from potentia.engine.tune.passes import LANE, LARGER, ROW, SHARED, PassPlan, run_step, too_long
from potentia.engine.tune.schedule import LaneSpec, Lesson, LoraConfig, Schedule
from potentia.engine.tune.static import Blocks, StaticPass, place
from potentia.engine.tune.steps import COLUMNS, LaneStates, apply_update, settings_row
from potentia.engine.twin import twin
from potentia.errors import TuningError

log = logging.getLogger(__name__)

HAND, LONG = "hand-written layers", "long rows"
COSTS = {
    LONG: "steps take about half as long again",
    SHARED: "steps take two to four times as long on a GPU, and of small models up to forty times",
    LANE: "a step takes as many passes as there are lanes",
    ROW: "a step takes a pass for every row",
}
SLOTS = 3
DRAWS = 3  # a router decides near ties by rounding: what is wrong is wrong on other rows too
SHORTEST = 32  # tokens that rows are cut to before memory is given up on


@dataclass(frozen=True)
class Distance:
    """How far a form is from the judge: losses, a lane's whole gradient and one layer's, as shares of these."""

    loss: float
    lane: float
    layer: float

    def within(self, most: Distance) -> bool:
        """Whether nothing is farther than allowed; what is not a number is, also where the model's own is none."""
        pairs = zip(astuple(self), astuple(most), strict=True)
        return all(math.isfinite(off) and off <= allowed for off, allowed in pairs)

    def times(self, factor: float, least: Distance) -> Distance:
        """Return a multiple, and no less than the rounding of a few operations."""
        return Distance(
            max(factor * self.loss, least.loss),
            max(factor * self.lane, least.lane),
            max(factor * self.layer, least.layer),
        )

    def as_dict(self) -> dict[str, float]:
        """Return plain values for a manifest."""
        return {name: float(f"{value:.2e}") for name, value in asdict(self).items()}

    def __str__(self) -> str:
        return f"losses off by {self.loss:.1e}, gradients by {self.lane:.1e}, one layer's by {self.layer:.1e}"


WHOLE_BITS = Distance(1e-4, 1e-3, 1e-2)
FEW_BITS = Distance(4e-3, 2e-2, 5e-2)
RATE, UPDATE = 1e-3, 1e-4  # of updates that are tried, and how far they may be off, of their size
MULTIPLE = 3.0  # of the model's own rounding, which differs from form to form: what is wrong shows in float32
LANE_MULTIPLE = 1.5  # the same of a lane's whole gradient
TELLING = 0.1  # of a lane's gradient: where a model rounds by more, few rows of its own dtype tell nothing


@dataclass
class Verdict:
    """What the check found: the form to take, and distances, as plain values."""

    form: str = ""
    longest: int = 0  # of the rows that it was found for
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
    verdict = Verdict()
    refused: dict[str, str] = {}
    with twin(model) as judge:
        verdict.facts["judged_in"] = str(_dtype(judge.model)).removeprefix("torch.")
        if not judge.whole:
            verdict.facts["judged_blocks"] = f"{judge.blocks} of {judge.of}, one of each kind"
        structure = _Trial(judge.model, lora, specs, limit, recompute)
        try:
            for form in ([HAND, LONG] if static else []) + [SHARED, LANE, ROW]:
                told = structure.wrong(form)
                if told is None and judge.copied:
                    told = _wrong_in_few_bits(model, structure, form, whole=judge.whole)
                if told is None:
                    verdict.form = form
                    break
                refused[form] = told
            verdict.facts |= structure.facts
        finally:
            structure.bank.close()
    if not verdict.form:
        raise TuningError(
            f"{type(model).__name__} cannot be tuned here: {refused[ROW]}",
            hint="potentia models check MODEL shows the distances; name other layers with `targets`",
        )
    if refused:
        verdict.facts["not_taken"] = refused
    if set(refused.values()) - {ABSENT}:
        reasons = "; ".join(f"{form}: {reason}" for form, reason in refused.items())
        cost = COSTS[verdict.form]
        level = logging.INFO if verdict.form == LONG else logging.WARNING
        log.log(level, "%s: lanes run as %s, %s (%s)", type(model).__name__, verdict.form, cost, reasons)
    verdict.facts["seconds"] = round(time.monotonic() - began, 3)
    return verdict


ABSENT = "its layers are of another kind"


def recheck(
    model: nn.Module, lora: LoraConfig, specs: Sequence[LaneSpec], verdict: Verdict, *, limit: int, recompute: bool
) -> Verdict | None:
    """Return what was found of a model built alike, where a row of each lane is right here too, by its own rounding."""
    began = time.monotonic()
    trial = _Trial(model, lora, specs, limit, recompute, rows_each=1)
    try:
        told = trial.wrong(verdict.form)
    finally:
        trial.bank.close()
    if told is None and trial.facts["distance"]["lane"] > TELLING:
        told = "gradients that are mostly rounding"
    if told is not None:
        log.debug("%s: %s on a few rows, so it is checked in full", type(model).__name__, told)
        return None
    facts = trial.facts | {"judged_in": str(trial.bank.dtype).removeprefix("torch."), "judged": "a row a lane"}
    return replace(verdict, facts=facts | {"seconds": round(time.monotonic() - began, 3)})


class _Trial:
    """Forms tried on one model: its adapters, its rows, and what the judge says of them."""

    def __init__(
        self,
        model: nn.Module,
        lora: LoraConfig,
        specs: Sequence[LaneSpec],
        limit: int | None,
        recompute: bool,
        rows_each: int = 2,
    ) -> None:
        self.model, self.specs, self.limit, self.recompute, self.rows_each = model, specs, limit, recompute, rows_each
        self.facts: dict[str, Any] = {}
        self.split = SplitModel(model)
        self.bank = AdapterBank(model, lora, SLOTS)
        self.bank.randomise()
        self.most = limit
        self.blocks: Blocks | None = None
        self._judged: dict[tuple[int, bool], tuple[list[Lesson], Gradients]] = {}

    def dropping(self, form: str) -> AbstractContextManager[None]:
        """Drop nothing where a lane has its passes to itself: there the order of its tokens is the model's affair."""
        return self.bank.without_dropout() if form == LANE else nullcontext()

    def rows(self, draw: int = 0) -> tuple[list[Lesson], Gradients]:
        """Return rows and what the judge says of them; shorter ones where memory does not hold the longest."""
        key = draw, self.bank.lora.dropout > 0
        while key not in self._judged:
            rows = [row for row in trial_rows(self.specs, self.most, draw) if row.place < self.rows_each]
            try:
                truth = own_gradients(self.model, self.bank, rows)
            except (torch.OutOfMemoryError, RuntimeError) as error:
                longest = max(len(row.ids) for row in rows)
                if not out_of_memory(error):
                    raise
                if longest <= SHORTEST:
                    raise too_long(rows, LARGER) from error
                self.most = longest // 2
                continue
            if not bool(truth[1].any()):
                hint = "check `targets`"
                raise TuningError("no adapter changes what the model computes", hint=hint)
            self.facts.setdefault("rows", [len(row.ids) for row in rows])
            self._judged[key] = rows, truth
        return self._judged[key]

    def wrong(self, form: str) -> str | None:
        """Say what is wrong with a form on this model, or None."""
        found: str | None = None
        if form in (HAND, LONG) and self.bank.lora.kind == "dora":
            return "DoRA runs by the model's own layers"
        if form == HAND and self.blocks is None:
            self.blocks = Blocks.of(self.model)
            if self.blocks is None:
                return ABSENT
        for draw in range(DRAWS):
            with self.dropping(form):
                found = self._tried(form, draw)
            if found is None or not found.startswith("losses"):
                return found
        return found

    def _tried(self, form: str, draw: int) -> str | None:
        rows, truth = self.rows(draw)
        least = WHOLE_BITS if self.bank.dtype in (torch.float32, torch.float64) else self._rounding(rows, truth)
        try:
            distance = distance_of(self.bank, self.gradients(form, rows), truth)
            if not distance.within(least):
                return str(distance)
            if form == SHARED:
                reversed_rows = rows[::-1]
                mixed = distance_of(self.bank, self.gradients(form, reversed_rows), truth)
                if not mixed.within(least):
                    return f"losses and gradients depend on the order of rows: {mixed}"
            update = update_distance(self.bank, truth[1], self.specs[0].schedule)
        except Exception as error:  # whatever it is, the form is not taken
            return _refusal(error)
        if not update <= UPDATE:
            return f"its updates are off by {update:.1e} from AdamW's"
        self.facts |= {"distance": distance.as_dict(), "update": update}
        return None

    def _rounding(self, rows: Sequence[Lesson], truth: Gradients) -> Distance:
        """Return how far the model is from itself on rows of another shape: what 16 bits round."""
        own = distance_of(self.bank, own_gradients(self.model, self.bank, rows, padding=5), truth)
        return own.times(MULTIPLE, Distance(2 * FEW_BITS.loss, 2 * FEW_BITS.lane, 4 * FEW_BITS.layer))

    def gradients(self, form: str, rows: Sequence[Lesson]) -> Gradients:
        """Return the losses and gradients that a form gives on these rows, all in one pass where it shares passes."""
        bank = self.bank
        bank.grads.zero_()
        if form in (HAND, LONG):
            static = StaticPass(self.split, bank, self.blocks if form == HAND else None)
            static(place(lay(rows), bank, few=False), recompute=self.recompute)
            losses = static.losses
        else:
            plan = PassPlan(bank.slots, 1 << 40, 1 << 40, checkpointing=self.recompute)
            losses = run_step(self.split, bank, rows, plan, form)
        found = bank.grads.clone()
        bank.grads.zero_()
        return losses.clone(), found


def _wrong_in_few_bits(model: nn.Module, structure: _Trial, form: str, *, whole: bool) -> str | None:
    """Say what is wrong with a form in the model's own 16 bits, or None: by the model's own rounding."""
    trial = _Trial(model, structure.bank.lora, structure.specs, structure.most, structure.recompute)
    try:
        if not whole:  # float32's gradients are another model's: the model's own on other shapes
            return trial.wrong(form)
        trial.blocks = Blocks.of(model) if form == HAND else None
        told = ""
        with structure.dropping(form), trial.dropping(form):
            for draw in range(DRAWS):
                rows, truth = structure.rows(draw)
                own = distance_of(trial.bank, own_gradients(model, trial.bank, rows), truth)
                distance = distance_of(trial.bank, trial.gradients(form, rows), truth)
                structure.facts |= {"distance_in_few_bits": distance.as_dict(), "own_rounding": own.as_dict()}
                most = own.times(MULTIPLE, FEW_BITS)
                if distance.within(replace(most, lane=max(LANE_MULTIPLE * own.lane, FEW_BITS.lane))):
                    return None
                told = f"{distance} in 16 bits, where the model's own are off: {own}"
        return told
    except Exception as error:  # whatever it is, the form is not taken
        return _refusal(error)
    finally:
        trial.bank.close()


def _refusal(error: Exception) -> str:
    log.debug("a form that was refused", exc_info=error)
    if out_of_memory(error):
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return "no memory to try it"
    return f"{type(error).__name__}: {str(error).strip()[:200]}"


def trial_rows(specs: Sequence[LaneSpec], limit: int | None, draw: int = 0) -> list[Lesson]:
    """Choose real rows for three lanes: the longest of all, some of other lengths, and some cut short."""
    stream = np.random.default_rng(draw)
    longest = max(range(len(specs)), key=lambda number: specs[number].longest)
    order = [specs[(longest + lane) % len(specs)] for lane in range(SLOTS)]
    rows: list[Lesson] = []
    for slot, spec in enumerate(order):
        first = int(spec.examples.lengths.argmax()) if slot == 0 else int(stream.integers(len(spec.examples)))
        texts = [spec.text(index, limit) for index in (first, int(stream.integers(len(spec.examples))))]
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
    layer = torch.zeros((), device=own.device)
    for site in bank.sites:
        span = slice(site.offset, site.offset + site.size)
        size = torch.linalg.vector_norm(own[:n, span], dim=1)
        layer = torch.maximum(
            layer, (torch.linalg.vector_norm(gap[:, span], dim=1) / torch.maximum(size, floor).clamp(min=1e-12)).max()
        )
    return Distance(*(float(part) if bool(torch.isfinite(part)) else float("inf") for part in (loss, lane, layer)))


def update_distance(bank: AdapterBank, grads: Tensor, schedule: Schedule) -> float:
    """Return how far three updates are from torch's AdamW's, after torch's clipping, as a share of their size."""
    n = bank.slots
    kept = bank.weights.clone()
    states = LaneStates(n, bank.width, bank.device)
    leaves = [kept[slot].clone().requires_grad_() for slot in range(n)]
    judges = [
        torch.optim.AdamW([leaf], 0.0, schedule.betas, schedule.eps, schedule.weight_decay, foreach=False)
        for leaf in leaves
    ]
    clip = schedule.clip if schedule.clip > 0 else float("inf")
    total = max(8, schedule.warmup_steps + 8)
    try:
        for step, factor in enumerate((1.0, -0.5, 2.0), max(0, schedule.warmup_steps)):
            bank.grads.copy_(grads * factor)
            table = torch.zeros(n, COLUMNS)
            count = step - max(0, schedule.warmup_steps)
            numbers = settings_row(replace(schedule, warmup_steps=0, learning_rate=RATE), count, total)
            table[:] = torch.tensor([*numbers, 1.0, float(count == 0)])
            apply_update(bank, states, torch.zeros(n + 1, device=bank.device), table.to(bank.device))
            for slot, (leaf, judge) in enumerate(zip(leaves, judges, strict=True)):
                leaf.grad = grads[slot].clone() * factor
                nn.utils.clip_grad_norm_([leaf], clip)
                judge.param_groups[0]["lr"] = numbers[0]
                judge.step()
        wanted = torch.stack([leaf.detach() for leaf in leaves])
        worked = (bank.work[:n] - (bank.weights[:n] * bank.factors).to(bank.work.dtype)).abs().max()
        moved = torch.linalg.vector_norm(wanted - kept[:n])
        error = torch.linalg.vector_norm(bank.weights[:n] - wanted) / moved.clamp(min=1e-12)
        return float(error + worked) if float(moved) > 0 else float(worked)
    finally:
        bank.grads.zero_()
        bank.weights.copy_(kept)
        bank.refresh()


def _dtype(model: nn.Module) -> torch.dtype:
    return next(p.dtype for p in model.parameters() if p.is_floating_point())
