"""A padded pass: rows filled up to one length, laid out on the device, run forward and backward, gradients added up.

The rows may be of many lanes (fine-tunings); every row goes through the adapter in its lane's slot.
"""

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
    """The rows of one pass on the device, padded to one length."""

    ids: Tensor  # (R, T)
    owners: Tensor  # (R,) the slot of each row's adapter
    keys: Tensor | None  # (R, T) the dropout key of each token
    # of each target, a token whose loss counts
    prediction_indices: (
        Tensor  # of the token before it, which predicts it, in the flattened (R · T)
    )
    targets: Tensor  # its token id
    target_owners: Tensor  # its row's slot
    weights: Tensor  # in its lane's loss


def assemble_batch(
    rows: Sequence[TrainingRow], length: int, device: torch.device, dropout: bool
) -> PaddedBatch:
    """Lay rows out on the device as a right-padded batch; with ``dropout``, every token gets its dropout key."""
    count = len(rows)
    lengths = np.array([len(row.ids) for row in rows])
    first_targets = np.array([row.first_target for row in rows])
    owners = np.array([row.slot for row in rows])
    token_ids = np.zeros((count, length), np.int64)
    for row_number, row in enumerate(rows):
        token_ids[row_number, : lengths[row_number]] = row.ids
    columns = np.arange(length)
    is_target = (columns >= first_targets[:, None]) & (columns < lengths[:, None])
    target_rows, target_columns = np.nonzero(is_target)
    weights = np.fromiter((row.weight for row in rows), np.float32, count)[target_rows]
    # five arrays, sent in one transfer
    arrays = [
        token_ids.ravel(),
        owners,
        target_rows * length + target_columns - 1,
        token_ids[target_rows, target_columns],
        owners[target_rows],
    ]
    sent_values = to_device(np.concatenate(arrays), device)
    sent_ids, sent_owners, prediction_indices, targets, target_owners = torch.split(
        sent_values, [array.size for array in arrays]
    )
    keys = None
    if dropout:
        keys = to_device(_draw_dropout_keys(rows, columns), device)
    return PaddedBatch(
        ids=sent_ids.view(count, length),
        owners=sent_owners,
        keys=keys,
        prediction_indices=prediction_indices,
        targets=targets,
        target_owners=target_owners,
        weights=to_device(weights, device),
    )


def _draw_dropout_keys(
    rows: Sequence[TrainingRow], columns: npt.NDArray[np.int64]
) -> npt.NDArray[Any]:
    """Return the dropout key of every token of rows that are as long as there are ``columns``."""
    seeds = np.array([row.seed for row in rows])
    steps = np.array([row.step for row in rows])
    batch_indices = np.array([row.batch_index for row in rows])
    return token_keys(seeds[:, None], steps[:, None], batch_indices[:, None], columns)


def to_device(values: npt.NDArray[Any], device: torch.device) -> Tensor:
    """Send an array to a device without waiting for it."""
    if device.type == "cuda":
        return pinned(values).to(device, non_blocking=True)
    return torch.from_numpy(values).to(device)


def copy_into(values: npt.NDArray[Any], destination: Tensor) -> None:
    """Copy an array into a tensor without waiting for the device; torch keeps the pinned copy until it has arrived."""
    source = pinned(values) if destination.is_cuda else torch.from_numpy(values)
    destination.copy_(source, non_blocking=True)


def compute_step_gradients(
    split: SplitModel,
    adapter_bank: AdapterBank,
    rows: Sequence[TrainingRow],
    pass_plan: PassPlan,
    training_form: TrainingForm = TrainingForm.PADDED,
) -> Tensor:
    """Run all passes of a step: add its gradients to the bank's, and return the loss by slot (a mean over targets).

    Rows must come slot by slot. Within a pass they keep that order, so that a lane's gradients are always added up in
    the same order.
    """
    one_lane = training_form is TrainingForm.ONE_LANE
    losses = torch.zeros(adapter_bank.slots + 1, device=adapter_bank.device)
    has_dropout = adapter_bank.lora.dropout > 0
    with (
        standard_attention(adapter_bank.device),
        recomputed_activations(split.model, pass_plan.checkpointing),
    ):
        for pass_rows, length in divide_rows(rows, pass_plan, training_form):
            batch = assemble_batch(pass_rows, length, adapter_bank.device, has_dropout)
            with adapter_bank.route_training_rows(batch.owners, batch.keys, alone=one_lane):
                target_losses = backpropagate(split, batch, all_positions=one_lane)
            losses.index_add_(0, batch.target_owners, target_losses * batch.weights)
    return losses


def backpropagate(split: SplitModel, batch: PaddedBatch, *, all_positions: bool = False) -> Tensor:
    """Run one pass forward and backward, and return the loss at each target.

    The head runs only where a target is predicted, which saves most of its work. With ``all_positions`` the model's
    own forward computes all logits instead.
    """
    if not all_positions:
        return split.backward(
            split.hidden(batch.ids), batch.prediction_indices, batch.targets, batch.weights
        )
    target_losses = model_losses(split.model, batch)
    torch.autograd.backward((target_losses * batch.weights).sum())
    return target_losses.detach()


def model_losses(model: nn.Module, batch: PaddedBatch) -> Tensor:
    """Return the loss at each target by the model's own forward."""
    logits = model(input_ids=batch.ids, use_cache=False).logits.flatten(0, 1)
    target_logits = logits.index_select(0, batch.prediction_indices).float()
    return nn.functional.cross_entropy(target_logits, batch.targets, reduction="none")
