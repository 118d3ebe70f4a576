"""One step of training as passes: rows of all lanes gathered, packed, run forward and backward, gradients added up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from potentia.engine.adapters import AdapterBank
from potentia.engine.dropout import row_keys
from potentia.engine.fast import FastPasses
from potentia.engine.head import SplitModel
from potentia.engine.planner import Plan, pack

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Row:
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
    """One pass on the device."""

    ids: Tensor  # (R, T)
    owners: Tensor  # (R,)
    keys: Tensor | None  # (R,)
    positions: Tensor  # (N,) into the flattened (R · T)
    targets: Tensor  # (N,)
    target_owners: Tensor  # (N,)
    weights: Tensor  # (N,)


def assemble(rows: Sequence[Row], length: int, device: torch.device, dropout: bool) -> Batch:
    """Lay rows out as a right-padded batch, with the positions whose next token is a target."""
    count = len(rows)
    ids = np.zeros((count, length), np.int64)
    lengths = np.fromiter((len(row.ids) for row in rows), np.int64, count)
    firsts = np.fromiter((row.first_target for row in rows), np.int64, count)
    owners = np.fromiter((row.slot for row in rows), np.int64, count)
    for at, row in enumerate(rows):
        ids[at, : lengths[at]] = row.ids
    columns = np.arange(length)
    wanted = (columns >= firsts[:, None]) & (columns < lengths[:, None])
    who, where = np.nonzero(wanted)
    weights = np.fromiter((row.weight for row in rows), np.float32, count)[who]
    whole = np.concatenate([ids.ravel(), owners, who * length + where - 1, ids[who, where], owners[who]])
    parts = torch.split(to_device(whole, device), [count * length, count, len(who), len(who), len(who)])
    keys = None
    if dropout:
        seeds, steps, places = (np.array([getattr(row, name) for row in rows]) for name in ("seed", "step", "place"))
        keys = row_keys(seeds, steps, places).to(device, non_blocking=True)
    return Batch(parts[0].view(count, length), parts[1], keys, parts[2], parts[3], parts[4], to_device(weights, device))


def to_device(values: npt.NDArray[Any], device: torch.device) -> Tensor:
    """Send an array without waiting for the device."""
    tensor = torch.from_numpy(values)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def run_step(split: SplitModel, bank: AdapterBank, rows: Sequence[Row], plan: Plan, fast: FastPasses) -> Tensor:
    """Add the gradients of one step of every lane into the bank; returns each slot's loss (mean over its targets).

    Rows must come slot by slot. Within a pass they keep that order, so a lane's gradients are added in one fixed order.
    """
    losses = torch.zeros(bank.slots + 1, device=bank.device)
    dropout = bank.lora.dropout > 0
    with fast.active(), recomputing(split.model, plan.checkpointing):
        for chosen, length in pack([len(row.ids) for row in rows], plan):
            batch = assemble([rows[i] for i in chosen], length, bank.device, dropout)
            with bank.training_rows(batch.owners, batch.keys):
                hidden = split.hidden(batch.ids)
                flat = hidden.detach().reshape(-1, hidden.shape[-1])
                values, slopes = split.losses(flat.index_select(0, batch.positions), batch.targets, batch.weights)
                gradient = torch.zeros_like(flat).index_copy_(0, batch.positions, slopes)
                torch.autograd.backward(hidden, gradient.view_as(hidden))
            losses.index_add_(0, batch.target_owners, values * batch.weights)
    return losses


@torch.no_grad()
def effect_of_adapters(split: SplitModel, bank: AdapterBank, rows: Sequence[Row]) -> list[bool]:
    """Whether each row's hidden states differ with its adapter on and off."""
    length = min(64, max(len(row.ids) for row in rows))
    batch = assemble([replace(row, ids=row.ids[:length]) for row in rows], length, bank.device, dropout=False)
    bank.route(None)
    off = split.hidden(batch.ids)
    with bank.training_rows(batch.owners, None):
        on = split.hidden(batch.ids)
    return (on != off).flatten(1).any(dim=1).tolist()


@contextmanager
def recomputing(model: nn.Module, wanted: bool) -> Iterator[None]:
    """Recompute each layer in the backward pass instead of keeping its activations; dropout of the base stays off."""
    if not wanted:
        yield
        return
    from transformers.modeling_layers import GradientCheckpointingLayer

    model.gradient_checkpointing_enable({"use_reentrant": False})  # type: ignore[operator]
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    for layer in layers:
        layer.training = True
    try:
        yield
    finally:
        for layer in layers:
            layer.training = False
        model.gradient_checkpointing_disable()  # type: ignore[operator]


def out_of_memory(error: BaseException) -> bool:
    """Tell whether an error means that memory ran out, on either kind of device."""
    text = str(error)
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in text or "not enough memory" in text
