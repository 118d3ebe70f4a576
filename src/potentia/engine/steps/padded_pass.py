"""A pass of rows padded to one length: laid out, run forward and backward, gradients added up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from potentia.engine.lane_spec import TrainingRow
from potentia.engine.layers.adapter_bank import AdapterBank
from potentia.engine.layers.recomputation import recomputed_activations, standard_attention
from potentia.engine.models.device_layout import pinned
from potentia.engine.models.split_model import SplitModel
from potentia.engine.operations.dropout import token_keys
from potentia.engine.steps.pass_plan import PassPlan, divide_rows
from potentia.values.training_form import TrainingForm


@dataclass(frozen=True)
class PaddedBatch:
    """One pass on the device: rows padded to one length (R, T)."""

    ids: Tensor
    owners: Tensor  # of each row
    keys: Tensor | None  # dropout key of each token
    positions: Tensor  # into the flattened tokens
    targets: Tensor
    target_owners: Tensor
    weights: Tensor


def assemble_batch(
    rows: Sequence[TrainingRow], length: int, device: torch.device, dropout: bool
) -> PaddedBatch:
    """Lay rows out as a right-padded batch, with the positions whose next token is a target."""
    count = len(rows)
    ids = np.zeros((count, length), np.int64)
    lengths = np.array([len(row.ids) for row in rows])
    firsts, owners, seeds, steps, order = (
        np.array([getattr(row, name) for row in rows])
        for name in ("first_target", "slot", "seed", "step", "batch_index")
    )
    for at, row in enumerate(rows):
        ids[at, : lengths[at]] = row.ids
    columns = np.arange(length)
    target_rows, target_columns = np.nonzero(
        (columns >= firsts[:, None]) & (columns < lengths[:, None])
    )
    weights = np.fromiter((row.weight for row in rows), np.float32, count)[target_rows]
    arrays = [
        ids.ravel(),
        owners,
        target_rows * length + target_columns - 1,
        ids[target_rows, target_columns],
        owners[target_rows],
    ]  # sent in one transfer
    sent = torch.split(to_device(np.concatenate(arrays), device), [array.size for array in arrays])
    tokens, whose, positions, targets, target_owners = sent
    drawn = token_keys(seeds[:, None], steps[:, None], order[:, None], columns) if dropout else None
    keys = to_device(drawn, device) if drawn is not None else None
    tokens = tokens.view(count, length)
    return PaddedBatch(
        tokens, whose, keys, positions, targets, target_owners, to_device(weights, device)
    )


def to_device(values: npt.NDArray[Any], device: torch.device) -> Tensor:
    """Send an array without waiting for the device."""
    on_gpu = device.type == "cuda"
    return (
        pinned(values).to(device, non_blocking=True)
        if on_gpu
        else torch.from_numpy(values).to(device)
    )


def copy_into(values: npt.NDArray[Any], into: Tensor) -> None:
    """Copy an array into a tensor without waiting for the device; torch keeps the pinned copy until it has arrived."""
    into.copy_(pinned(values) if into.is_cuda else torch.from_numpy(values), non_blocking=True)


def compute_step_gradients(
    split: SplitModel,
    bank: AdapterBank,
    rows: Sequence[TrainingRow],
    plan: PassPlan,
    form: TrainingForm = TrainingForm.PADDED,
) -> Tensor:
    """Add the gradients of one step of every lane into the bank; return each slot's loss (mean over its targets).

    Rows must come slot by slot. Within a pass they keep that order, so a lane's gradients are added in one fixed order.
    """
    one_lane = form is TrainingForm.ONE_LANE
    losses = torch.zeros(bank.slots + 1, device=bank.device)
    has_dropout = bank.lora.dropout > 0
    with standard_attention(bank.device), recomputed_activations(split.model, plan.checkpointing):
        for chosen, length in divide_rows(rows, plan, form):
            batch = assemble_batch(chosen, length, bank.device, has_dropout)
            with bank.route_training_rows(batch.owners, batch.keys, alone=one_lane):
                values = backpropagate(split, batch, all_positions=one_lane)
            losses.index_add_(0, batch.target_owners, values * batch.weights)
    return losses


def backpropagate(split: SplitModel, batch: PaddedBatch, *, all_positions: bool = False) -> Tensor:
    """Run one pass forward and backward; returns the loss at each target.

    Without ``whole`` the head runs at targets alone; with it the model's own forward makes all logits.
    """
    if not all_positions:
        return split.backward(
            split.hidden(batch.ids), batch.positions, batch.targets, batch.weights
        )
    values = model_losses(split.model, batch)
    torch.autograd.backward((values * batch.weights).sum())
    return values.detach()


def model_losses(model: nn.Module, batch: PaddedBatch) -> Tensor:
    """Return the loss at each target by the model's own forward."""
    logits = model(input_ids=batch.ids, use_cache=False).logits.flatten(0, 1)
    picked = logits.index_select(0, batch.positions).float()
    return nn.functional.cross_entropy(picked, batch.targets, reduction="none")
