"""Deliberate breaks of the engine, and whether its checks notice them: ``python -m sabotage``.

Each break changes one thing in the code that computes (never in the code that judges): a part of a layer, whose adapter
is used, a factor, a loss, a gradient, the optimizer, a mask, a window, positions, the tail, tokens or a cache. It is
noticed where the check takes another form or refuses, or a trial does not agree. In bfloat16 the table also tells how
far the break moves gradients (or log-probabilities), as a multiple of the model's own rounding: what moves them by less
than three times that is hidden in rounding anyway.

    python -m sabotage                       # all of them, in float32 and bfloat16
    python -m sabotage --only norm,rotation  # those whose names hold a word
    python -m sabotage --workers 14 --minutes 10 --out sabotage.json
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from many import options, read_results, run_all
from potentia.engine import LoadedModel, lane_spec
from potentia.engine.layers import (
    adapter_methods,
    lane_layers,
    layer_parts,
    network,
    prefix_tree,
    recomputation,
    row_layout,
    row_mixers,
)
from potentia.engine.layers.adapter_bank import AdapterBank
from potentia.engine.layers.adapter_methods import LowRankAdapter
from potentia.engine.layers.fused_layers import FusedLayers, _BackwardPass
from potentia.engine.layers.layer_parts import FusedLayer
from potentia.engine.layers.row_layout import LossTokens
from potentia.engine.models.float32_copy import TrialModel, open_trial_model
from potentia.engine.models.split_model import SplitModel
from potentia.engine.operations import Gain, dropout, plain
from potentia.engine.proof import form_trial, rehearsal
from potentia.engine.proof.form_trial import FormTrial, TrialSettings, measure_update_error
from potentia.engine.proof.reference import reference_gradients
from potentia.engine.proof.training_check import choose_training_form
from potentia.engine.scoring import Scorer
from potentia.engine.scoring.continuous import Seats
from potentia.engine.steps import lane_states, packed_steps, padded_pass, pass_plan
from potentia.engine.steps.lane_states import LaneStates
from potentia.engine.steps.packed_steps import PackedStepper
from potentia.engine.training import (
    LaneSpec,
    LaneTrainer,
    LoraConfig,
    Schedule,
    TokenisedExamples,
    lane_run,
)
from potentia.engine.training.lane import Lane
from potentia.engine.training.lane_run import LaneRun
from potentia.errors import PotentiaError
from potentia.values.requests import Generation
from potentia.values.training_form import TrainingForm

WORTH = 3.0  # times the model's own rounding


@dataclass(frozen=True)
class Break:
    """One break: its name, what notices it (a form, a first step, scores, texts), and how it is made."""

    name: str
    by: str
    made: Callable[[], Any]
    model: str = "llama"


def changed(owner: Any, name: str, change: Callable[..., Any]) -> Callable[[], Any]:
    """Make a patch of ``owner.name``: ``change`` gets the own function first, then its arguments."""
    original = getattr(owner, name)

    def broken(*args: Any, **options: Any) -> Any:
        return change(original, *args, **options)

    return lambda: patch.object(owner, name, broken)


# ---- the breaks -----------------------------------------------------------------------------------------------------


def _scaled(position: int, factor: float) -> Callable[..., Any]:
    """Return a change that scales one of the values that a function returns."""

    def change(original: Callable[..., Any], *args: Any, **options: Any) -> Any:
        out = original(*args, **options)
        if not isinstance(out, tuple):
            return out * factor
        return tuple(
            part * factor if number == position else part for number, part in enumerate(out)
        )

    return change


def _argument(position: int, change: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return a change of one argument."""

    def broken(original: Callable[..., Any], *args: Any, **options: Any) -> Any:
        return original(
            *(change(a) if number == position else a for number, a in enumerate(args)), **options
        )

    return broken


def _no_projection(
    _: Any, dy: Tensor, x: Tensor, gain: Gain, scale: Tensor, add: Tensor | None = None
) -> Tensor:
    dx = dy.float() * gain.weight.float() * scale.unsqueeze(1)
    return (dx if add is None else dx + add.float()).to(x.dtype)


def _gelu(_: Any, gate_and_up: Tensor, gelu: bool) -> Tensor:
    g, u = gate_and_up.float().chunk(2, dim=1)
    return (torch.nn.functional.gelu(g) * u).to(gate_and_up.dtype)


def _steeper_gates(original: Any, gate_and_up: Tensor, *settings: Any) -> None:
    original(gate_and_up, *settings)
    gate_and_up *= 1.03


def _as_if_one_row(places: Tensor) -> Tensor:
    return torch.arange(len(places), dtype=places.dtype)


def _scan_as_it_is(_: Any, function: Callable[..., Any], *arguments: Any) -> Callable[..., Any]:
    return function


def _no(_: Any) -> bool:
    return False


def _not_normed(_: Any, self: Any, do: Any, qkv: Tensor) -> Any:
    return qkv.clone(), []


def _one_gain(original: Any, self: Any, do: Any, qkv: Tensor) -> Any:
    gain = self.gains[layer_parts.HEAD_NORMS[0]]
    places = [position for position in layer_parts.HEAD_NORMS if position in self.gains]
    with patch.dict(self.gains, dict.fromkeys(places, gain)):
        return original(self, do, qkv)


def _less_one(original: Any, *arguments: Any) -> Any:
    return original(*arguments)._replace(offset=0.0)


def _keys_for_values(original: Any, site: Any) -> int:
    """Let adapters of keys add to values, and those of values to keys."""
    first = int(original(site))
    width = int(site.fan_out)
    shifts = {2 * width: width, 3 * width: -width}  # half as many keys as queries
    return first + shifts.get(first, 0)


def _taken_for_side_by_side(original: Any, *arguments: Any) -> None:
    return None


def _values_without_norm(original: Any, self: Any, do: Any, qkv: Tensor) -> Any:
    turned, factors = original(self, do, qkv)
    if self.has_value_norms:
        self._split_columns(turned)[2].copy_(self._split_columns(qkv)[2])
    return turned, factors


def _values_gradient_lost(
    original: Any, self: Any, do: Any, gradient: Tensor, *arguments: Any
) -> Any:
    if self.keys_are_values:
        self._split_columns(gradient)[2].zero_()
    return original(self, do, gradient, *arguments)


def _readers_gradient_lost(original: Any, self: Any, answers_gradient: Tensor) -> Any:
    self.gradients_of_readers = ()
    return original(self, answers_gradient)


def _without_factor(original: Any, self: Any, output: Tensor, *arguments: Any) -> Any:
    with patch.object(self.layer, "layer_scalar", 1.0 + 0 * self.layer.layer_scalar):
        return original(self, output, *arguments)


def _branch_back(change: Callable[..., Any]) -> Callable[[], Any]:
    return changed(FusedLayer, "norm_branch_back", change)


def _rotate_forward_only(original: Any, *args: Any, back: bool = False) -> Tensor:
    return original(*args)  # type: ignore[no-any-return]


def _rows_seen(change: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return a change of the rows' bounds that attention sees."""
    return _argument(3, change)


def _seen_from_lane_start(rows: Any) -> Any:
    return _Bounds(torch.zeros_like(rows.first), rows.last, rows.tiles)


@dataclass(frozen=True)
class _Bounds:
    first: Tensor
    last: Tensor
    tiles: Tensor


def _not_causal(
    original: Any,
    q: Tensor,
    k: Tensor,
    first: Tensor,
    span: slice,
    scale: float,
    window: int | None,
) -> Any:
    at = torch.arange(span.start, span.stop)
    unseen = (at > at[:, None] + 1) | (at < first[span, None])
    keys = k[span].repeat_interleave(q.shape[1] // k.shape[1], dim=1).float()
    products = torch.einsum("mhd,nhd->hmn", q[span].float(), keys) * scale
    return products.masked_fill(unseen, float("-inf")), unseen


def _attend_back_scaled(position: int) -> Callable[..., Any]:
    def change(original: Any, *args: Any) -> None:
        original(*args)
        args[-1][position].mul_(1.02)

    return change


def _thin_owners(original: Any, x: Tensor, y: Tensor, group: Any, route: Any) -> Any:
    return original(x, y, group, replace(route, owners=route.owners.roll(1)))


def _picked_before(original: Any, *arguments: Any) -> Any:
    picked = original(*arguments)
    return replace(picked, at=(picked.at - 1).clamp(min=0))


def _picked_owners(original: Any, *arguments: Any) -> Any:
    picked = original(*arguments)
    return replace(picked, route=replace(picked.route, owners=picked.route.owners.roll(1)))


def _thin_last(original: Any, x: Tensor, y: Tensor, group: Any, route: Any) -> Any:
    return original(x, y, group, replace(route, owners=torch.full_like(route.owners, 2)))


def _thin_back_grads(part: int, factor: float) -> Callable[..., Any]:
    def change(
        original: Any, x: Tensor, dy: Tensor, h: Tensor, dh: Tensor, group: Any, route: Any
    ) -> None:
        before = route.bank.grads.clone()
        original(x, dy, h, dh, group, route)
        for site in group.sites:
            sums, old = (
                route.bank.views(route.bank.grads, site)[part],
                route.bank.views(before, site)[part],
            )
            sums.copy_(old + (sums - old) * factor)

    return change


def _share_skips_a_row(
    original: Any, ctx: Any, x: Tensor, bank: Any, site: Any, *, into: Tensor
) -> None:
    values_before = into.clone()
    original(ctx, x, bank, site, into=into)
    into[:1].copy_(values_before[:1])


def _wrong_owner(original: Any, ctx: Any, grad_output: Tensor, base: Any) -> Any:
    bank, site, owners, drop, shape = ctx.held
    ctx.held = bank, site, owners.roll(1), drop, shape
    return original(ctx, grad_output, base)


def _steeper(original: Any, ctx: Any, grad_output: Tensor, base: Any) -> Any:
    return original(ctx, grad_output * 1.02, base)


def _refresh(factor: float) -> Callable[..., Any]:
    def change(_: Any, bank: Any) -> None:
        bank.work.copy_(
            bank.weights * torch.where(bank.scales != 1, bank.scales * factor, bank.scales)
        )

    return change


def _targets_shifted(
    original: Any, self: Any, hidden: Tensor, targets: Tensor, weights: Tensor
) -> Any:
    return original(self, hidden, targets.roll(1), weights)


def _weights_even(
    original: Any, self: Any, hidden: Tensor, targets: Tensor, weights: Tensor
) -> Any:
    return original(self, hidden, targets, torch.full_like(weights, float(weights.mean())))


def _slopes(original: Any, self: Any, *args: Any) -> Any:
    values, slopes = original(self, *args)
    return values, slopes * 1.02


def _first_target(original: Any, rows: Sequence[Any], *args: Any) -> Any:
    return original(
        [replace(row, first_target=max(1, row.first_target - 1)) for row in rows], *args
    )


def _last_token(original: Any, rows: Sequence[Any], *args: Any) -> Any:
    batch = original(rows, *args)
    ids = batch.ids.clone()
    ids[:, 1] = 0
    return replace(batch, ids=ids)


def _position_ids_run_on(original: Any, rows: Any) -> Any:
    row = original(rows)
    return replace(row, position_ids=np.arange(len(row.position_ids), dtype=np.int32) % 96)


def _last_target_lost(original: Any, rows: Any) -> Any:
    row = original(rows)
    kept_targets = slice(0, len(row.targets) - 1)
    names = ("prediction_indices", "targets", "target_owners", "weights")
    return replace(row, **{name: getattr(row, name)[kept_targets] for name in names})


def _spans_short(original: Any, rows: Any) -> Any:
    row = original(rows)
    return replace(row, spans={slot: (min(a + 1, b), b) for slot, (a, b) in row.spans.items()})


def _settings(change: Callable[[list[float]], list[float]]) -> Callable[[], Any]:
    original = lane_states.settings_of_update

    def broken(*args: Any) -> lane_states.UpdateSettings:
        return lane_states.UpdateSettings(*change([*original(*args)]))

    return lambda: _everywhere("settings_of_update", broken, form_trial, rehearsal, lane_run)


@contextmanager
def _everywhere(name: str, broken: Any, *modules: Any) -> Iterator[None]:
    """Patch a function in every module that imports it by its name."""
    with ExitStack() as stack:
        for module in modules:
            stack.enter_context(patch.object(module, name, broken))
        yield


def _set(
    position: int, value: Callable[[list[float]], float]
) -> Callable[[list[float]], list[float]]:
    return lambda row: [value(row) if number == position else one for number, one in enumerate(row)]


def _work_stale(original: Any, *args: Any) -> None:
    work_before = args[4].clone()
    original(*args)
    args[4].copy_(work_before)


def _tree_positions(original: Any, self: Any, rows: Any, length: int) -> Any:
    result = original(self, rows, length)
    return {**result, "position_ids": torch.arange(length).expand_as(result["position_ids"])}


def _ends_late(original: Any, self: Any, ends: Tensor, depths: Tensor, deepest: int) -> Any:
    return original(self, (ends + 1).clamp(max=ends.shape[1]), depths, deepest)


def _window_gone(original: Any, self: Any, ends: Tensor, depths: Tensor, deepest: int) -> Any:
    with patch.object(self, "_window", None):
        return original(self, ends, depths, deepest)


def _read_early(original: Any, self: Any, rows: Any, hidden: Tensor, length: int) -> Any:
    return original(self, rows, hidden.roll(1, 0), length)


def _askers_mixed(original: Any, self: Any, *args: Any) -> Any:
    out = original(self, *args)
    return replace(out, requests=np.roll(out.requests, 1))


def _prefix_more(original: Any, first: list[int], second: list[int]) -> int:
    return min(int(original(first, second)) + 1, len(first), len(second))


def _owners_swapped(original: Any, self: Any, owners: Sequence[int]) -> None:
    original(self, list(owners)[::-1])


def _hidden_from(original: Any, self: Any, **inputs: Any) -> Any:
    if "past_key_values" in inputs and inputs["input_ids"].shape[1] == 1:
        inputs["position_ids"] = inputs["position_ids"] * 0 + 1
    return original(self, **inputs)


def _mask_forgets(original: Any, self: Any, **inputs: Any) -> Any:
    if inputs.get("attention_mask") is not None and inputs["input_ids"].shape[1] == 1:
        mask = inputs["attention_mask"].clone()
        mask[:, -2] = 0
        inputs["attention_mask"] = mask
    return original(self, **inputs)


def _seat_short(
    original: Any, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, *other_arguments: Any
) -> Tensor:
    return original(q, k, v, (lengths - 1).clamp(min=1), *other_arguments)  # type: ignore[no-any-return]


def _kept_wrong(
    original: Any, self: Any, layer: int, positions: Tensor, k: Tensor, v: Tensor
) -> Any:
    return original(self, layer, positions, k, v.roll(1, 0))


def _chosen_second(original: Any, self: Any, hidden: Tensor, *other_arguments: Any) -> Any:
    return original(self, hidden * 0.9 + hidden.roll(1, 0) * 0.1, *other_arguments)


# ---- breaks that only a real step has: many slots, several passes, a used slot, the run's own learning rates ---------


def _late_slots_idle(original: Any, *args: Any) -> None:
    """Update the first three slots only, and clear the gradients of all."""
    settings = args[6].clone()
    settings[3:, 9] = 0.0
    original(*args[:6], settings, *args[7:])


def _slots_modulo_four(original: Any, rows: Sequence[Any], *args: Any) -> Any:
    return original([replace(row, slot=row.slot % 4) for row in rows], *args)


def _stretches_modulo_four(original: Any, rows: Sequence[Any]) -> Any:
    row = original(rows)
    return replace(row, owners=row.owners % 4)


def _last_pass_lost(original: Any, rows: Sequence[Any], *args: Any) -> Any:
    result = original(rows, *args)
    return result[:-1] if len(result) > 1 else result


def _first_pass_twice(original: Any, rows: Sequence[Any], *args: Any) -> Any:
    result = original(rows, *args)
    return [result[0], *result] if len(result) > 1 else result


def _packed_last_lost(original: Any, self: Any, rows: Sequence[Any], plan: Any) -> None:
    result = self.divide_rows(rows, plan)
    original(self, [row for chosen in (result[:-1] or result) for row in chosen], plan)


def _packed_first_twice(original: Any, self: Any, rows: Sequence[Any], plan: Any) -> None:
    original(self, rows, plan)
    result = self.divide_rows(rows, plan)
    if len(result) > 1:
        original(self, result[0], plan)


def _seventh_row_lost(
    original: Any,
    bank: Any,
    site: Any,
    owners: Tensor,
    kept: Tensor,
    h: Tensor,
    dy: Tensor,
    dh: Tensor,
) -> None:
    if owners.shape[0] > 6:
        dy, dh = dy.clone(), dh.clone()
        dy[-1], dh[-1] = 0, 0
    original(bank, site, owners, kept, h, dy, dh)


def _packed_seventh_lost(original: Any, rows: Sequence[Any]) -> Any:
    lost = [*rows[:-1], replace(rows[-1], weight=0.0)] if len(rows) > 6 else rows
    return original(lost)


def _gradients_kept(original: Any, *args: Any) -> None:
    before = args[3].clone()
    original(*args)
    args[3].copy_(before)


def _moments_inherited(_: Any, self: Any, slot: int) -> None:
    self.loss_sums[slot], self.non_finite[slot] = 0, False


def _adapter_inherited(original: Any, self: Any, lane: Any, slot: int) -> None:
    before = self.bank.weights[slot].clone()
    original(self, lane, slot)
    if bool(before.any()):
        self.bank.weights[slot].copy_(before)


def _beta2(original: Any, schedule: Schedule, *args: Any) -> Any:
    return original(replace(schedule, betas=(schedule.betas[0], 0.95)), *args)


def _rank_and_one(_: Any, self: LowRankAdapter, rank: float, alpha: float) -> float:
    return alpha / (rank + 1)


def _table(change: Callable[[Any], None]) -> Callable[..., Any]:
    def broken(original: Any, self: Any, lanes: Sequence[Any]) -> Any:
        table = original(self, lanes)
        change(table)
        return table

    return broken


def _twice_the_rate(table: Any) -> None:
    table[:, (0, 5)] *= 2


def _rate_of_first_lane(table: Any) -> None:
    table[:, :9] = table[0, :9]


def _step_too_late(original: Any, schedule: Schedule, step: int, total: int) -> Any:
    return original(schedule, step + 1, total)


def _end_unlearned(original: Any, self: LaneSpec, *args: Any) -> Any:
    ids, first = original(self, *args)
    return ids[:-1] if len(ids) - first > 1 else ids, first


def _prompt_learned(original: Any, self: LaneSpec, *args: Any) -> Any:
    ids, _ = original(self, *args)
    return ids, 1


def _answer_begins_late(original: Any, self: LaneSpec, *args: Any) -> Any:
    ids, first = original(self, *args)
    return ids, min(first + 1, len(ids) - 1)


def _first_example_twice(original: Any, seed: int, epoch: int, examples: int) -> Any:
    order = original(seed, epoch, examples).copy()
    order[1] = order[0]
    return order


def _batch_short(original: Any, self: LaneSpec, *args: Any) -> Any:
    return original(self, *args)[:-1]


def _moments_not_saved(original: Any, self: Any) -> Any:
    """Return the state with moments of zero: one that leaves them out has another layout, and is not resumed."""
    state = dict(original(self))
    for name in ("first", "second"):
        state[name] = torch.zeros_like(state[name])
    return state


def _slots_swapped(original: Any, self: Any, tensors: Any, facts: Any) -> None:
    slots = facts["slots"]
    original(self, tensors, {**facts, "slots": [*slots[1:], *slots[:1]]})


def _epoch_forgotten(original: Any, self: Any, record: Any) -> None:
    original(self, record)
    self.step = max(0, self.step - self.spec.steps_per_epoch)


def first_step_breaks() -> list[Break]:
    """Return the breaks that the rehearsal of a run's first step is for."""
    first, packed, resumed = "first", "first packed", "resumed"
    lost, twice = "passes: the last left out", "passes: the first counts twice"
    return [
        Break(
            "slots: beyond the third never move", first, changed(plain, "update_", _late_slots_idle)
        ),
        Break(
            "routing: slot modulo four",
            first,
            changed(padded_pass, "assemble_batch", _slots_modulo_four),
        ),
        Break(
            "routing: slot modulo four, packed",
            packed,
            changed(packed_steps, "lay_out_rows", _stretches_modulo_four),
        ),
        Break(lost, first, changed(padded_pass, "divide_rows", _last_pass_lost)),
        Break(
            f"{lost}, told too",
            first,
            changed(pass_plan, "divide_into_padded_passes", _last_pass_lost),
        ),
        Break(
            f"{lost}, packed", packed, changed(PackedStepper, "add_gradients", _packed_last_lost)
        ),
        Break(
            f"{lost}, packed, told too",
            packed,
            changed(packed_steps, "divide_into_packed_passes", _last_pass_lost),
        ),
        Break(twice, first, changed(padded_pass, "divide_rows", _first_pass_twice)),
        Break(
            f"{twice}, packed", packed, changed(PackedStepper, "add_gradients", _packed_first_twice)
        ),
        Break(
            "gradient: the seventh row of a pass lost",
            first,
            changed(lane_layers, "add_factor_gradients", _seventh_row_lost),
        ),
        Break(
            "gradient: the seventh row of a pass lost, packed",
            packed,
            changed(packed_steps, "lay_out_rows", _packed_seventh_lost),
        ),
        Break("gradient: not cleared", first, changed(plain, "update_", _gradients_kept)),
        Break(
            "slots: a new lane inherits moments",
            first,
            changed(LaneStates, "reset", _moments_inherited),
        ),
        Break(
            "slots: a new lane inherits an adapter",
            first,
            changed(LaneRun, "put_into_slot", _adapter_inherited),
        ),
        Break(
            "optimizer: β2 of 0.95",
            first,
            lambda: _everywhere(
                "settings_of_update",
                lambda *args: _beta2(_SETTINGS, *args),
                form_trial,
                rehearsal,
                lane_run,
            ),
        ),
        Break(
            "scale: α/(r + 1), everywhere", first, changed(LowRankAdapter, "scale", _rank_and_one)
        ),
        Break(
            "rate: twice, in the schedule",
            first,
            changed(Schedule, "rate_share", _scaled(0, 2.0)),
        ),
        Break(
            "rate: twice, in the update's table",
            first,
            changed(LaneRun, "update_table", _table(_twice_the_rate)),
        ),
        Break(
            "rate: the first lane's for all",
            first,
            changed(LaneRun, "update_table", _table(_rate_of_first_lane)),
        ),
        Break(
            "rate: of the step after",
            first,
            lambda: _everywhere(
                "settings_of_update", lambda *args: _step_too_late(_SETTINGS, *args), lane_run
            ),
        ),
        Break(
            "loss: the end of text is not learned",
            first,
            changed(LaneSpec, "text_of_example", _end_unlearned),
        ),
        Break(
            "loss: the prompt is learned",
            first,
            changed(LaneSpec, "text_of_example", _prompt_learned),
        ),
        Break(
            "loss: the answer's first token is not learned",
            first,
            changed(LaneSpec, "text_of_example", _answer_begins_late),
        ),
        Break(
            "order: an example twice in an epoch",
            first,
            changed(lane_spec, "data_order", _first_example_twice),
        ),
        Break("order: batches one short", first, changed(LaneSpec, "rows_of_step", _batch_short)),
        Break(
            "resume: moments not saved",
            resumed,
            changed(LaneRun, "_state_tensors", _moments_not_saved),
        ),
        Break(
            "resume: lanes in each other's slots",
            resumed,
            changed(LaneRun, "_restore_snapshot", _slots_swapped),
        ),
        Break("resume: an epoch again", resumed, changed(Lane, "restore", _epoch_forgotten)),
    ]


_SETTINGS = lane_states.settings_of_update


def breaks() -> list[Break]:
    """Return every break."""
    return [*check_breaks(), *first_step_breaks()]


def check_breaks() -> list[Break]:
    """Return the breaks that the checks of a few rows and requests are for."""
    hand, long, shared = "hand", "long", "shared"
    return [
        Break("norm: gain 2 % too large", hand, changed(plain, "norm", _scaled(0, 1.02))),
        Break(
            "norm: ε a thousand times",
            hand,
            changed(plain, "norm", _argument(1, lambda g: g._replace(epsilon=1e4 * g.epsilon))),
        ),
        Break(
            "norm: gradient without its projection",
            hand,
            changed(plain, "norm_back", _no_projection),
        ),
        Break(
            "residual: attention counts 0.98",
            hand,
            changed(plain, "add_norm", _argument(1, lambda y: y * 0.98)),
        ),
        Break(
            "norm: queries' and keys' left out",
            hand,
            changed(FusedLayer, "norm_heads", _not_normed),
            "gemma3_text",
        ),
        Break(
            "norm: keys by the queries' gain",
            hand,
            changed(FusedLayer, "norm_heads", _one_gain),
            "gemma3_text",
        ),
        Break(
            "norm: a branch's gradient 3 % too large",
            hand,
            _branch_back(_scaled(0, 1.03)),
            "gemma3_text",
        ),
        Break(
            "norm: gains without their one",
            hand,
            changed(layer_parts, "read_gain", _less_one),
            "gemma3_text",
        ),
        Break(
            "projections: keys' adapters on values",
            hand,
            changed(layer_parts, "_first_column", _keys_for_values),
            "phi3",
        ),
        Break(
            "projections: heads in turn taken for side by side",
            long,
            changed(row_layout, "find_output_order", _taken_for_side_by_side),
            "gpt_neox",
        ),
        Break(
            "norm: values' left out",
            hand,
            changed(FusedLayer, "norm_heads", _values_without_norm),
            "gemma4_text+dense",
        ),
        Break(
            "values: gradient of keys that are values lost",
            hand,
            changed(FusedLayer, "backpropagate_head_norms", _values_gradient_lost),
            "gemma4_text+dense",
        ),
        Break(
            "values: gradient of layers that read them lost",
            hand,
            changed(_BackwardPass, "_back_through_attention", _readers_gradient_lost),
            "gemma4_text",
        ),
        Break(
            "layer: its factor left out",
            hand,
            changed(FusedLayer, "finish", _without_factor),
            "gemma4_text+dense",
        ),
        Break(
            "gate: silu for gelu",
            hand,
            changed(plain, "gate", _argument(1, lambda _: False)),
            "gemma3_text",
        ),
        Break(
            "gate: silu's gradient for gelu's",
            hand,
            changed(plain, "gate_back_", _argument(2, _no)),
            "gemma3_text",
        ),
        Break(
            "window: by hand, one token wider",
            hand,
            changed(plain, "_scores", _argument(5, _wider)),
            "gemma3_text",
        ),
        Break("gate: gelu for silu", hand, changed(plain, "gate", _gelu)),
        Break("gate: gradient 3 % too large", hand, changed(plain, "gate_back_", _steeper_gates)),
        Break("rotation: backwards", hand, changed(plain, "rotate_", _argument(4, lambda s: -s))),
        Break(
            "rotation: one place late",
            hand,
            changed(plain, "rotate_", _argument(3, lambda c: c.roll(1, 0))),
        ),
        Break(
            "rotation: gradient not turned back",
            hand,
            changed(plain, "rotate_", _rotate_forward_only),
        ),
        Break(
            "attention: scale 1 % too large",
            hand,
            changed(plain, "attend", _argument(4, lambda s: s * 1.01)),
        ),
        Break("attention: sees the next token", long, changed(plain, "_scores", _not_causal)),
        Break(
            "attention: sees other rows",
            long,
            changed(plain, "attend", _rows_seen(_seen_from_lane_start)),
        ),
        Break(
            "attention: gradient of values",
            long,
            changed(plain, "attend_back", _attend_back_scaled(2)),
        ),
        Break(
            "attention: gradient of keys",
            long,
            changed(plain, "attend_back", _attend_back_scaled(1)),
        ),
        Break(
            "window: one token wider",
            long,
            changed(plain, "_scores", _argument(5, _wider)),
            "mistral",
        ),
        Break(
            "window: not looked at",
            long,
            changed(plain, "attend", _argument(5, lambda _: None)),
            "mistral",
        ),
        Break(
            "tail: what is computed one token early",
            hand,
            changed(LossTokens, "of", _picked_before),
        ),
        Break(
            "routing: answers by another's adapter", hand, changed(LossTokens, "of", _picked_owners)
        ),
        Break(
            "routing: the stretch before", long, changed(plain, "add_adapter_outputs", _thin_owners)
        ),
        Break(
            "routing: one adapter for all", long, changed(plain, "add_adapter_outputs", _thin_last)
        ),
        Break(
            "scale: none in A's gradient",
            long,
            changed(plain, "sum_adapter_gradients", _thin_back_grads(0, 0.5)),
        ),
        Break(
            "gradient: B's 5 % too large",
            long,
            changed(plain, "sum_adapter_gradients", _thin_back_grads(1, 1.05)),
        ),
        Break(
            "gradient: a lane's first token lost",
            long,
            changed(packed_steps, "lay_out_rows", _spans_short),
        ),
        Break(
            "convolution: looks into the row before",
            long,
            changed(plain, "convolve", _argument(3, _as_if_one_row)),
            "lfm2",
        ),
        Break(
            "convolution: gradient 3 % too large",
            long,
            changed(plain, "convolve_back", _scaled(0, 1.03)),
            "lfm2",
        ),
        Break(
            "scan: runs on from row to row",
            long,
            changed(row_mixers, "_scan_groups", _scan_as_it_is),
            "qwen3_5_text",
        ),
        Break(
            "experts: another group's adapter",
            long,
            changed(plain, "group_inner_values", _argument(1, lambda a: a.roll(1, 0))),
            "qwen3_moe",
        ),
        Break(
            "experts: adapters left out",
            long,
            changed(plain, "add_group_outputs_", lambda original, *arguments: None),
            "qwen3_moe",
        ),
        Break(
            "experts: gradient 5 % too large",
            long,
            changed(plain, "group_gradients", _scaled(0, 1.05)),
            "qwen3_moe",
        ),
        Break(
            "routing: a row without its adapter",
            shared,
            changed(adapter_methods, "add_adapter_share", _share_skips_a_row),
        ),
        Break(
            "routing: gradients to another lane",
            shared,
            changed(adapter_methods, "backpropagate_adapter_share", _wrong_owner),
        ),
        Break(
            "gradient: adapters' 2 % too large",
            shared,
            changed(adapter_methods, "backpropagate_adapter_share", _steeper),
        ),
        Break("scale: α/r left out", shared, changed(AdapterBank, "refresh_work", _refresh(0.5))),
        Break("scale: α/√r for α/r", shared, changed(AdapterBank, "refresh_work", _refresh(2.0))),
        Break(
            "dropout: kept values not scaled",
            shared,
            changed(dropout.Dropout, "__call__", _scaled(0, 0.9)),
        ),
        Break(
            "dropout: another layer's mask",
            shared,
            changed(dropout, "keep_mask", _argument(1, lambda n: n + 1)),
        ),
        Break(
            "loss: targets one place off", shared, changed(SplitModel, "losses", _targets_shifted)
        ),
        Break(
            "loss: all tokens weigh the same", shared, changed(SplitModel, "losses", _weights_even)
        ),
        Break("loss: gradient 2 % too large", shared, changed(SplitModel, "losses", _slopes)),
        Break(
            "loss: static, gradient 2 % too large", long, changed(plain, "loss", _scaled(1, 1.02))
        ),
        Break(
            "loss: the prompt's last token counts",
            shared,
            changed(padded_pass, "assemble_batch", _first_target),
        ),
        Break(
            "tokens: every row's second is another",
            shared,
            changed(padded_pass, "assemble_batch", _last_token),
        ),
        Break(
            "positions: run on from row to row",
            long,
            changed(packed_steps, "lay_out_rows", _position_ids_run_on),
            "gpt2",
        ),
        Break(
            "loss: the last target lost",
            long,
            changed(packed_steps, "lay_out_rows", _last_target_lost),
        ),
        Break(
            "tail: logits 1 % too large", shared, changed(SplitModel, "logits", _scaled(0, 1.01))
        ),
        Break("optimizer: no bias correction", shared, _settings(_set(5, lambda row: row[0]))),
        Break(
            "optimizer: decay with the wrong sign",
            shared,
            _settings(_set(1, lambda row: 2 - row[1])),
        ),
        Break("optimizer: β2 of 0.99", shared, _settings(_set(4, lambda row: 0.01))),
        Break("optimizer: no clipping", shared, _settings(_set(8, lambda row: float("inf")))),
        Break(
            "optimizer: adapters in use are stale", shared, changed(plain, "update_", _work_stale)
        ),
        Break(
            "mask: sees a sibling's first token",
            "score",
            changed(network.Network, "_tree_masks", _ends_late),
        ),
        Break(
            "mask: window not looked at",
            "score",
            changed(network.Network, "_tree_masks", _window_gone),
            "mistral",
        ),
        Break(
            "positions: by place in the row",
            "score",
            changed(network.Network, "_tree_inputs", _tree_positions),
        ),
        Break(
            "recomputing: 2 % too large",
            "again",
            changed(recomputation, "checkpoint", _scaled(0, 1.02)),
        ),
        Break(
            "tail: read one place early", "score", changed(network.Network, "_read", _read_early)
        ),
        Break(
            "tail: temperature of 1.02",
            "score",
            changed(network, "log_softmax", _argument(0, lambda x: x * 1.02)),
        ),
        Break(
            "tokens: answers to other requests",
            "score",
            changed(network.Network, "_read", _askers_mixed),
        ),
        Break(
            "tokens: a prefix one token too long",
            "score",
            changed(prefix_tree, "count_common_prefix", _prefix_more),
        ),
        Break(
            "routing: requests to other adapters",
            "adapters",
            changed(network.Network, "route", _owners_swapped),
        ),
        Break("cache: positions stand still", "write", changed(SplitModel, "run", _hidden_from)),
        Break(
            "cache: forgets the token before", "write", changed(SplitModel, "run", _mask_forgets)
        ),
        Break(
            "cache: seats see a token fewer", "seats", changed(plain, "attend_cached", _seat_short)
        ),
        Break(
            "cache: values of another seat",
            "seats",
            changed(Seats, "_cache_keys_and_values", _kept_wrong),
        ),
        Break(
            "cache: a seat's neighbour shines through",
            "seats",
            changed(Seats, "_choose_tokens", _chosen_second),
        ),
    ]


def _wider(window: int | None) -> int | None:
    return None if window is None else window + 1


# ---- noticing -------------------------------------------------------------------------------------------------------


# models whose linear layers have other names: queries, keys and values in one, convolutions, scans, experts
OTHER_NAMES = ("phi3", "gpt_neox", "lfm2", "qwen3_5_text", "qwen3_moe")
STACKED_EXPERTS = ("qwen3_moe",)


def lanes(model: str, by: str, count: int = 3, p: float = 0.1) -> list[LaneSpec]:
    """Make lanes of rows of several lengths."""
    targets: tuple[str, ...] | None = ("q_proj", "v_proj", "o_proj", "up_proj", "down_proj")
    if model == "gpt2":
        targets = None
    elif model in OTHER_NAMES:
        targets = ("all-linear",)
    if model in STACKED_EXPERTS:  # PEFT adapts them without dropout
        p = 0.0
    lora = LoraConfig(r=4, alpha=8, dropout=p, targets=targets)
    specs = []
    for number in range(count):
        rate = 1e-3 * (1 + number)
        stream = np.random.default_rng(number)
        lengths = stream.integers(6, 60, 12)
        ids = [stream.integers(8, 380, length).tolist() for length in lengths]
        prompts = [int(stream.integers(1, length)) for length in lengths]
        schedule = Schedule(
            epochs=1 if by in FORM else 2,
            batch=4,
            learning_rate=rate,
            clip=0.05,
            loss="completion",
        )
        specs.append(
            LaneSpec(
                f"l{number}", TokenisedExamples.from_lists(ids, prompts), schedule, lora, number
            )
        )
    return specs


def build(name: str, dtype: torch.dtype) -> Any:
    """Make the model that a break is tried on."""
    from architectures.tiny import build as tiny

    model: Any = tiny(name).to(dtype)
    stream = torch.Generator().manual_seed(0)
    for (
        weight
    ) in model.parameters():  # norms begin alike, and would hide one that is taken for another
        if weight.dim() == 1:
            weight.data += 0.2 * torch.randn(weight.shape, generator=stream)
    for buffer_name, factor in model.named_buffers():
        if buffer_name.endswith("layer_scalar"):  # one in a new model
            factor.fill_(0.7)
    return model.requires_grad_(False)


FORM = {"hand": TrainingForm.FUSED, "long": TrainingForm.PACKED, "shared": TrainingForm.PADDED}
FORM["again"] = TrainingForm.FUSED  # with activations computed again


def noticed(broken: Break, dtype: torch.dtype) -> bool:
    """Say whether the engine's own checks notice a break; what is refused unbroken proves nothing."""
    if not trusted(broken.by, broken.model, dtype):
        raise RuntimeError(f"{broken.name}: {broken.model} is not trusted unbroken")
    with broken.made():
        return not trusted.__wrapped__(broken.by, broken.model, dtype)


@cache
def trusted(by: str, name: str, dtype: torch.dtype) -> bool:
    """Say whether the engine's own checks take the form, or trust the paths, that a break is made in."""
    model = build(name, dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if by in FIRST_STEP:
                return _trains(model, by, name)
            return _check(model, by, name) == FORM[by] if by in FORM else _trusted(by, model)
        except PotentiaError:
            return False


def _check(model: Any, by: str, name: str) -> TrainingForm | None:
    specs = lanes(name, by)
    settings = TrialSettings(specs[0].lora, specs)
    if by == "again":
        form_check = choose_training_form(model, settings, may_pack=True)
        return form_check.form if form_check.may_recompute else None
    if by != "long":
        return choose_training_form(model, settings, may_pack=by == "hand").form
    with patch.object(FusedLayers, "of", lambda _: None):
        return choose_training_form(model, settings, may_pack=True).form


FIRST_STEP = {
    "first": TrainingForm.PADDED,
    "first packed": TrainingForm.FUSED,
    "resumed": TrainingForm.PADDED,
}
LANES, BUDGET = (
    6,
    400,
)  # so that a step has more than three slots and several passes of more than six rows


def _trains(model: Any, by: str, name: str) -> bool:
    """Say whether a run of lanes trains in the form that it should, from its first step or from a snapshot."""
    specs = lanes(name, by, LANES)
    with TemporaryDirectory() as folder:
        stops = [True] if by == "resumed" else []
        for stop_early in [*stops, False]:
            ended: list[Any] = []
            asks_to_stop = partial(_has_ended, ended, early=stop_early)
            with LaneTrainer(
                model,
                may_pack=by == "first packed",
                token_budget=BUDGET,
                workspace=Path(folder) if by == "resumed" else None,
            ) as trainer:
                trainer.train(specs, on_epoch=ended.extend, stop=asks_to_stop)
                form = trainer.training_facts.form
    return form is FIRST_STEP[by]


def _has_ended(epochs: Sequence[Any], *, early: bool) -> bool:
    return early and bool(epochs)


def _trusted(by: str, model: Any) -> bool:
    """Say whether paths are still trusted."""
    from architectures.tiny import words

    loaded = LoadedModel.of(model, words())
    stream = np.random.default_rng(0)
    stems = [stream.integers(8, 380, length).tolist() for length in (5, 20, 45)]
    pairs = [
        (stem, stream.integers(8, 380, count).tolist()) for stem in stems for count in (1, 2, 4)
    ]
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        if by == "adapters":  # after the bare model, as in a row
            Scorer(loaded).loglikelihood_ids(pairs)
            trainer = stack.enter_context(LaneTrainer(loaded))
            trainer.install_bank(
                LoraConfig(r=4, alpha=8, dropout=0.0, targets=None), 3
            ).make_up_adapters()
            owners = [number % 3 for number in range(len(pairs))]
            Scorer(loaded, router=trainer.router).loglikelihood_ids(pairs, owners=owners)
        elif by == "score":
            Scorer(loaded).loglikelihood_ids(pairs)
        else:
            requests = [
                Generation(text, (), 6)
                for text in ("the river is", "two", "a long and narrow way to the")
            ]
            Scorer(loaded, continuous=by == "seats").generate(requests)
    return not any(loaded.checks.routes.values())


def moved(broken: Break, dtype: torch.dtype) -> float | None:
    """Return how far a break moves lanes' gradients or updates, as a multiple of the model's own rounding."""
    if broken.by not in FORM:
        return None
    model, specs = build(broken.model, dtype), lanes(broken.model, broken.by)
    with open_trial_model(model) as trial_model:
        settings = TrialSettings(specs[0].lora, specs, 96)
        exact = FormTrial(trial_model, settings)
        reference = exact.compute_reference()
        exact.bank.close()
    original = FormTrial(
        TrialModel.itself(model), replace(settings, recompute=broken.by == "again")
    )
    try:
        rounding = original.measure_distance(
            reference_gradients(model, original.bank, reference.rows), reference
        ).lane
        original.fused_layers = FusedLayers.of(model) if broken.by in ("hand", "again") else None
        with broken.made():
            update = measure_update_error(original.bank, reference.gradients, specs[0].schedule)
            original.bank.refresh_work()
            gradients = original.compute_form_gradients(FORM[broken.by], reference.rows)
            gap = original.measure_distance(gradients, reference).lane
        return max(gap, update) / rounding
    finally:
        original.bank.close()


def try_break(name: str) -> dict[str, Any]:
    """Try one break in both dtypes."""
    broken = next(candidate for candidate in breaks() if candidate.name == name)
    began = time.monotonic()
    row: dict[str, Any] = {"by": broken.by}
    for dtype in (torch.float32, torch.bfloat16):
        row[str(dtype).removeprefix("torch.")] = noticed(broken, dtype)
    return row | {
        "moves": moved(broken, torch.bfloat16),
        "seconds": round(time.monotonic() - began, 1),
    }


def _describe_row(name: str, row: dict[str, Any]) -> str:
    size = "" if row["moves"] is None else f"{row['moves']:.1f} × its rounding"
    shown_forms = ", ".join(
        f"{kind} {'noticed' if row[kind] else 'MISSED'}" for kind in ("float32", "bfloat16")
    )
    return f"{name:44}{shown_forms}  {size}"


def main() -> int:
    """Try the breaks, and tell which were noticed."""
    parser = argparse.ArgumentParser(prog="sabotage", description=__doc__)
    parser.add_argument(
        "--only", default="", help="words, with commas between: breaks whose names hold one"
    )
    options(parser)
    arguments = parser.parse_args()
    names = [
        b.name
        for b in breaks()
        if not arguments.only or any(word in b.name for word in arguments.only.split(","))
    ]
    before = read_results(arguments.out)
    results = run_all(
        try_break, [name for name in names if name not in before], arguments, _describe_row
    )
    rows = [results[name] for name in names if name in results]
    counts = {kind: sum(row[kind] for row in rows) for kind in ("float32", "bfloat16")}
    worth = [row for row in rows if row["moves"] is None or row["moves"] > WORTH]
    seen_breaks = sum(row["bfloat16"] for row in worth)
    print(
        f"{len(rows)} breaks. Noticed in float32: {counts['float32']}; in bfloat16: {counts['bfloat16']}, "
        f"and {seen_breaks} of the {len(worth)} that move an adapter by more than {WORTH:g} times its own rounding."
    )
    return 0 if counts["float32"] == len(rows) and seen_breaks == len(worth) else 1


if __name__ == "__main__":
    raise SystemExit(main())
