"""One step of training as passes: rows of all lanes gathered, packed, run forward and backward, gradients added up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from potentia.engine.split import SplitModel
from potentia.engine.tune.adapters import AdapterBank
from potentia.engine.tune.dropout import token_keys
from potentia.engine.tune.fast import FastPasses
from potentia.engine.tune.packed import STRETCH, Packing, packed_attention, spread_plan
from potentia.engine.tune.planner import PassPlan, pack
from potentia.engine.windows import horizons

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Lesson:
    """One example in one step of one lane."""

    ids: Ints
    first_target: int
    slot: int
    seed: int
    step: int
    place: int
    weight: float  # 1 / target tokens of the lane's effective batch


@dataclass(frozen=True)
class Batch:
    """One pass on the device: padded rows (R, T), or one long row (1, N) with the places and packing of its parts."""

    ids: Tensor
    owners: Tensor  # of each row, or of each stretch of the long row
    keys: Tensor | None  # dropout key of each token
    positions: Tensor  # into the flattened tokens
    targets: Tensor
    target_owners: Tensor
    weights: Tensor
    places: Tensor | None = None
    packing: Packing | None = None


def assemble(rows: Sequence[Lesson], length: int, device: torch.device, dropout: bool) -> Batch:
    """Lay rows out as a right-padded batch, with the positions whose next token is a target."""
    count = len(rows)
    ids = np.zeros((count, length), np.int64)
    lengths, firsts, owners = _columns(rows)
    for at, row in enumerate(rows):
        ids[at, : lengths[at]] = row.ids
    columns = np.arange(length)
    who, where = np.nonzero((columns >= firsts[:, None]) & (columns < lengths[:, None]))
    weights = np.fromiter((row.weight for row in rows), np.float32, count)[who]
    parts = _send([ids.ravel(), owners, who * length + where - 1, ids[who, where], owners[who]], device)
    keys = _keys(rows, np.arange(count)[:, None], columns, device) if dropout else None
    return Batch(
        ids=parts[0].view(count, length),
        owners=parts[1],
        keys=keys,
        positions=parts[2],
        targets=parts[3],
        target_owners=parts[4],
        weights=to_device(weights, device),
    )


def assemble_packed(rows: Sequence[Lesson], device: torch.device, dropout: bool) -> Batch:
    """Lay rows end to end, each lane's stretch filled up with a short row of its own that no loss looks at."""
    filled: list[Lesson] = []
    size = 0
    for row, after in zip(rows, [*rows[1:], None], strict=True):
        filled.append(row)
        size += len(row.ids)
        if (after is None or after.slot != row.slot) and size % STRETCH:
            gap = STRETCH - size % STRETCH
            filled.append(replace(row, ids=np.zeros(gap, np.int64), first_target=gap))
            size += gap
    lengths, firsts, owners = _columns(filled)
    ids = np.concatenate([row.ids for row in filled])
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    row_of = np.repeat(np.arange(len(filled)), lengths)
    places = np.arange(size) - starts[row_of]
    targets = np.flatnonzero(places >= firsts[row_of])
    weights = np.fromiter((row.weight for row in filled), np.float32, len(filled))[row_of[targets]]
    index, inverse, groups = spread_plan(lengths.tolist())
    token_owners = owners[row_of]
    parts = _send(
        [ids, token_owners[::STRETCH], targets - 1, ids[targets], token_owners[targets], places, index, inverse], device
    )
    keys = _keys(filled, row_of, places, device) if dropout else None
    return Batch(
        ids=parts[0].unsqueeze(0),
        owners=parts[1],
        keys=keys,
        positions=parts[2],
        targets=parts[3],
        target_owners=parts[4],
        weights=to_device(weights, device),
        places=parts[5].unsqueeze(0),
        packing=Packing(parts[6], parts[7], groups),
    )


def _columns(rows: Sequence[Lesson]) -> tuple[Ints, Ints, Ints]:
    lengths = np.fromiter((len(row.ids) for row in rows), np.int64, len(rows))
    firsts = np.fromiter((row.first_target for row in rows), np.int64, len(rows))
    return lengths, firsts, np.fromiter((row.slot for row in rows), np.int64, len(rows))


def _keys(rows: Sequence[Lesson], row_of: Ints, places: Ints, device: torch.device) -> Tensor:
    seeds, steps, order = (np.array([getattr(row, name) for row in rows]) for name in ("seed", "step", "place"))
    return to_device(token_keys(seeds[row_of], steps[row_of], order[row_of], places), device)


def _send(arrays: Sequence[Ints], device: torch.device) -> tuple[Tensor, ...]:
    """Send several arrays in one transfer."""
    return torch.split(to_device(np.concatenate(arrays), device), [array.size for array in arrays])


def to_device(values: npt.NDArray[Any], device: torch.device) -> Tensor:
    """Send an array without waiting for the device."""
    tensor = torch.from_numpy(values)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def run_step(split: SplitModel, bank: AdapterBank, rows: Sequence[Lesson], plan: PassPlan, fast: FastPasses) -> Tensor:
    """Add the gradients of one step of every lane into the bank; returns each slot's loss (mean over its targets).

    Rows must come slot by slot. Within a pass they keep that order, so a lane's gradients are added in one fixed order.
    """
    losses = torch.zeros(bank.slots + 1, device=bank.device)
    dropout = bank.lora.dropout > 0
    with fast.active(), recomputing(split.model, plan.checkpointing):
        for chosen, length in cut(rows, plan):
            if length is None:
                batch = assemble_packed(chosen, bank.device, dropout)
            else:
                batch = assemble(chosen, length, bank.device, dropout)
            with bank.training_rows(batch.owners, batch.keys):
                values = backpropagate(split, batch)
            losses.index_add_(0, batch.target_owners, values * batch.weights)
    return losses


Cut = tuple[list[Lesson], int | None]  # rows of a pass, and the length they are padded to; None: laid end to end


def cut(rows: Sequence[Lesson], plan: PassPlan) -> list[Cut]:
    """Divide the rows of a step into passes."""
    lengths = np.array([len(row.ids) for row in rows])
    if plan.divides:
        level, alike = np.searchsorted(plan.divides, lengths), replace(plan, divides=())
        parts = ([rows[i] for i in np.flatnonzero(level == n).tolist()] for n in range(len(plan.divides) + 1))
        return [one for part in parts if part for one in cut(part, alike)]
    if not plan.packed:
        return [([rows[i] for i in chosen], length) for chosen, length in pack(lengths, plan)]
    passes = -(-int(lengths.sum()) // plan.token_budget)
    ends = np.cumsum(lengths)
    which = np.minimum((ends - 1) * passes // int(ends[-1]), passes - 1)
    parts = ([rows[i] for i in np.flatnonzero(which == number).tolist()] for number in range(passes))
    return [(part, None) for part in parts if part]


@torch.no_grad()
def find_divides(split: SplitModel, longest: int) -> tuple[int, ...]:
    """Find the lengths beyond which a row changes what shorter rows of its pass become.

    Some models turn positions otherwise in a pass with one long row (``longrope``), and a lane would depend on others.
    """
    first = next(split.model.parameters())
    stream = np.random.default_rng(0)
    found = []
    for horizon in horizons(split.model.config, longest):
        few = min(8, horizon)
        ids = torch.from_numpy(stream.integers(0, split.vocabulary, (2, horizon + 1))).to(first.device)
        alone, beside = split.hidden(ids[:1, :few])[0].float(), split.hidden(ids)[0, :few].float()
        most = 1e-3 if first.dtype == torch.float32 else 3e-2
        if not float((alone - beside).norm()) < most * float(alone.norm()):
            found.append(horizon)
    return tuple(found)


def backpropagate(split: SplitModel, batch: Batch) -> Tensor:
    """Run one pass forward and backward; returns the loss at each target."""
    with packed_attention(split.model, batch.packing) if batch.packing is not None else nullcontext():
        hidden = split.hidden(batch.ids, batch.places)
        flat = hidden.detach().reshape(-1, hidden.shape[-1])
        values, slopes = split.losses(flat.index_select(0, batch.positions), batch.targets, batch.weights)
        gradient = torch.zeros_like(flat).index_copy_(0, batch.positions, slopes)
        torch.autograd.backward(hidden, gradient.view_as(hidden))
    return values


@torch.no_grad()
def effect_of_adapters(split: SplitModel, bank: AdapterBank, rows: Sequence[Lesson]) -> list[bool]:
    """Whether each row's adapter was changed by training, and changes what the model computes.

    A first update may be smaller than half precision resolves, so the adapters are made large for the trial.
    """
    length = min(64, max(len(row.ids) for row in rows))
    batch = assemble([replace(row, ids=row.ids[:length]) for row in rows], length, bank.device, dropout=False)
    learned = [bool(bank.learned(row.slot)) for row in rows]
    bank.route(None)
    off = split.hidden(batch.ids)
    with bank.magnified(), bank.training_rows(batch.owners, None):
        on = split.hidden(batch.ids)
    changed = (on != off).flatten(1).any(dim=1).tolist()
    return [a and b for a, b in zip(learned, changed, strict=True)]


@contextmanager
def recomputing(model: nn.Module, wanted: bool) -> Iterator[None]:
    """Recompute each block in the backward pass instead of keeping its activations.

    The blocks' forwards are wrapped, and their modes left alone: a block in training mode would drop out again.
    """
    if not wanted:
        yield
        return
    blocks = _blocks(model)
    before = [block.__dict__.get("forward") for block in blocks]
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False, preserve_rng_state=False)
    try:
        yield
    finally:
        for block, own in zip(blocks, before, strict=True):
            block.__dict__.pop("forward", None)
            if own is not None:
                block.forward = own


def _blocks(model: nn.Module) -> list[nn.Module]:
    """The layers that transformers would recompute, or else the parts of the model's largest list of modules."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    blocks: list[nn.Module] = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if blocks:
        return blocks
    lists: list[nn.ModuleList] = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    sizes = [sum(p.numel() for p in part.parameters()) for part in lists]
    return list(lists[sizes.index(max(sizes))]) if lists else []
