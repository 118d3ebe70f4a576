"""What a lane finds in its slot: a fresh adapter where it begins, and exactly its own state where a run is resumed.

The rehearsal sees the lanes of a run's first step. Lanes that wait take the slots of others later, and a resumed run
puts states back that another process saved. Both are compared when they happen, for they happen seldom.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from potentia.engine.layers.adapter_bank import AdapterBank
from potentia.engine.proof.plan_check import REPORT
from potentia.errors import TuningError

if TYPE_CHECKING:
    from potentia.engine.steps.lane_states import LaneStates

LaneDigest = dict[str, int]  # a checksum of each of a lane's tensors, by the tensor's name


def check_begun_lanes(bank: AdapterBank, states: LaneStates, slots: Sequence[int]) -> None:
    """Raise an error where a lane does not begin with a fresh adapter and empty moments."""
    for slot in slots:
        fault = find_start_fault(bank, states, slot) or find_copy_fault(bank, slot)
        if fault is not None:
            raise TuningError(f"a fine-tuning does not begin anew: {fault}", hint=REPORT)


def find_start_fault(bank: AdapterBank, states: LaneStates, slot: int) -> str | None:
    """Return what another lane left in a slot, or None; a new adapter's B is zero, and its A is not."""
    row = bank.weights[slot][None]
    outputs = [bank.views(row, site)[1] for site in bank.sites]
    if any(bool(output.any()) for output in outputs):
        return "its adapter is not new"
    if not bool(row.any()):
        return "its adapter is empty"
    for name, part in vars(states).items():
        if name != "first_losses" and bool(part[slot].any()):
            return f"{name.replace('_', ' ')} of another are left in its slot"
    return None


def find_copy_fault(bank: AdapterBank, slot: int) -> str | None:
    """Return a sentence where the copy of an adapter that passes multiply with is not that adapter, or None."""
    expected = (bank.weights[slot] * bank.factors).to(bank.work.dtype)
    if torch.equal(bank.work[slot], expected):
        return None
    return "passes use the adapter of another"


def digest_lane(state: Mapping[str, Tensor], slot: int | None, step: int) -> LaneDigest:
    """Return a checksum of each tensor of the lane in a slot, and the number of its step."""
    assert slot is not None
    digest = {name: _checksum(part[slot]) for name, part in state.items()}
    return digest | {"step": step}


def _checksum(tensor: Tensor) -> int:
    return zlib.crc32(tensor.detach().cpu().contiguous().numpy().tobytes())


def check_resumed_lanes(
    saved: Mapping[str, LaneDigest], resumed: Mapping[str, LaneDigest], bank: AdapterBank
) -> None:
    """Raise an error where a lane has not the weights, moments and step that were saved under its key."""
    if saved.keys() != resumed.keys():
        raise TuningError("a resumed run has other fine-tunings than the saved one", hint=REPORT)
    for key, digest in saved.items():
        for name, checksum in digest.items():
            if resumed[key].get(name) != checksum:
                raise TuningError(
                    f"the resumed fine-tuning {key} has other {name.replace('_', ' ')} than were saved",
                    hint=REPORT,
                )
    for slot in range(bank.slots):
        fault = find_copy_fault(bank, slot)
        if fault is not None:
            raise TuningError(f"a resumed run is not as it was saved: {fault}", hint=REPORT)
