"""Check what a lane finds in its slot: a fresh adapter when it begins, exactly its own state when a run is resumed.

A lane is one fine-tuning; its adapter and its optimizer's state lie in a slot, which another lane may have had before.
The rehearsal (``rehearsal``) checks the lanes of a run's first step alone. Lanes that begin later, and states that an
earlier process saved, are checked here each time; this is so seldom that it costs little.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from potentia.engine.layers.adapter_bank import AdapterBank
from potentia.engine.proof.constants import REPORT_HINT
from potentia.errors import TuningError

if TYPE_CHECKING:
    from potentia.engine.steps.lane_states import LaneStates

STATE_WORDS = {  # for what snapshots call it
    "weights": "adapter",
    "first": "first moments",
    "second": "second moments",
    "loss_sums": "losses",
    "first_losses": "first loss",
    "unsound": "mark of infinite losses",
    "step": "step",
}
LaneDigest = dict[
    str, int
]  # a checksum of each of a lane's tensors by the tensor's name, and the lane's step


def check_begun_lanes(adapter_bank: AdapterBank, states: LaneStates, slots: Sequence[int]) -> None:
    """Raise an error where a lane that begins in one of these slots lacks a fresh adapter or empty moments."""
    for slot in slots:
        fault = find_start_fault(adapter_bank, states, slot)
        if fault is None:
            fault = find_working_copy_fault(adapter_bank, slot)
        if fault is not None:
            raise TuningError(f"a fine-tuning does not start fresh: {fault}", hint=REPORT_HINT)


def find_start_fault(adapter_bank: AdapterBank, states: LaneStates, slot: int) -> str | None:
    """Return what is wrong with a slot in which a lane begins, or None.

    The B matrices of a new adapter are zero, its A matrices are not. Of the states, only the first loss may be another
    lane's: the first update overwrites it.
    """
    row = adapter_bank.weights[slot][None]
    b_matrices = [adapter_bank.views(row, site)[1] for site in adapter_bank.sites]
    if any(bool(b_matrix.any()) for b_matrix in b_matrices):
        return "its adapter is not new"
    if not bool(row.any()):
        return "its adapter is empty"
    for state_name, part in states.named_tensors().items():
        if state_name != "first_losses" and bool(part[slot].any()):
            return f"its slot still has the {STATE_WORDS[state_name]} of another"
    return None


def find_working_copy_fault(adapter_bank: AdapterBank, slot: int) -> str | None:
    """Return a sentence if the working copy of a slot's adapter is not that adapter, or None.

    Passes multiply with the working copy: the adapter times its scale, in the model's dtype.
    """
    expected = (adapter_bank.weights[slot] * adapter_bank.scales).to(adapter_bank.work.dtype)
    if torch.equal(adapter_bank.work[slot], expected):
        return None
    return "passes would use another adapter than its own"


def digest_lane(state: Mapping[str, Tensor], slot: int, step: int) -> LaneDigest:
    """Return the checksums of the lane in a slot, given all lanes' tensors stacked by slot, and its step."""
    digest = {tensor_name: _checksum(part[slot]) for tensor_name, part in state.items()}
    return digest | {"step": step}


def _checksum(tensor: Tensor) -> int:
    return zlib.crc32(tensor.detach().cpu().contiguous().numpy().tobytes())


def check_resumed_lanes(
    saved: Mapping[str, LaneDigest], resumed: Mapping[str, LaneDigest], adapter_bank: AdapterBank
) -> None:
    """Raise an error where a lane does not have the weights, moments and step that were saved under its key."""
    if saved.keys() != resumed.keys():
        raise TuningError(
            "a resumed run has other fine-tunings than the saved one", hint=REPORT_HINT
        )
    for key, digest in saved.items():
        for tensor_name, checksum in digest.items():
            if resumed[key].get(tensor_name) != checksum:
                raise TuningError(
                    f"the resumed fine-tuning {key} does not have its saved {STATE_WORDS[tensor_name]}",
                    hint=REPORT_HINT,
                )
    for slot in range(adapter_bank.slots):
        fault = find_working_copy_fault(adapter_bank, slot)
        if fault is not None:
            raise TuningError(f"a resumed run is not as it was saved: {fault}", hint=REPORT_HINT)
