"""Whether a row's memory suffices, said before the row starts, with what to change where it does not.

The need is estimated from the model's parameters, its dtype, one adapter with its optimizer's state, and the smallest
pass there is: one example of ``max_tokens``. More adapters side by side and larger passes only make a row faster (what
does not fit waits for its turn), so what they would take is not counted. An estimate is no reason to refuse a row: it
is told, and the row is tried.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from potentia.run.cost import BYTES, FEW_BYTES, ROOM_PER_TOKEN, find_parameters
from potentia.run.model_cache import read_free_bytes

if TYPE_CHECKING:
    from potentia.run.plan import Row
    from potentia.study import Tuning

# Of an adapter on every linear layer: numbers per rank and √parameter, within a third for models of 0.1B to 8B.
ADAPTER_WIDTH = 38.0
# Adapters that there is room for at least: that of one fine-tuning, and zeros for the model without one.
FEWEST_ADAPTERS = 2
# Bytes of a trained number in float32: itself, its gradient, and AdamW's two moments.
TRAINED_BYTES = 16.0
GIGABYTE = 1e9


@dataclass(frozen=True)
class MemoryNeed:
    """The bytes that a row needs at least."""

    weights: float
    training: float  # what is trained, with gradients and the optimizer's state
    smallest_pass: float

    @property
    def total(self) -> float:
        """All of it."""
        return self.weights + self.training + self.smallest_pass

    @property
    def largest_part(self) -> str:
        """The name of the part that takes most."""
        parts = {
            "weights": self.weights,
            "training": self.training,
            "pass": self.smallest_pass,
        }
        return max(parts, key=parts.__getitem__)


def estimate_memory(row: Row, device: str) -> MemoryNeed:
    """Estimate what a row needs on a kind of device; NaN where the size of its model is unknown."""
    study = row.study
    parameters = find_parameters(row.model)
    bytes_per_weight = _count_bytes_per_weight(row, device)
    weights = parameters * FEW_BYTES.get(row.model.quantise or "", bytes_per_weight)
    tuned_tasks = {cell.task for cell in row.pending if cell.protocol.tuned}
    if not tuned_tasks:
        return MemoryNeed(weights, 0.0, 0.0)
    training = _estimate_training_bytes(study.tuning, parameters)
    activations = ROOM_PER_TOKEN * bytes_per_weight / 2 * math.sqrt(parameters)
    return MemoryNeed(weights, training, activations * study.tuning.max_tokens)


def _estimate_training_bytes(tuning: Tuning, parameters: float) -> float:
    """Return the bytes of what is trained at once at least: an adapter, or all weights."""
    if tuning.method == "full":
        return TRAINED_BYTES * parameters
    numbers = ADAPTER_WIDTH * tuning.rank * math.sqrt(parameters)
    return FEWEST_ADAPTERS * TRAINED_BYTES * numbers


def find_free_bytes(device: str, memory_share: float = 1.0) -> float | None:
    """Return the bytes that a row may take on a device, of a GPU at most ``memory_share`` of its memory.

    None where the system does not tell.
    """
    if device == "spread":
        return None
    import torch

    from potentia.engine import pick_device

    torch_device = pick_device(device)
    if torch_device.type == "cpu":
        return read_free_bytes() or None
    if torch_device.type == "cuda":
        free_bytes, total_bytes = torch.cuda.mem_get_info(torch_device)
        return min(float(free_bytes), memory_share * total_bytes)
    return None


def describe_shortage(row: Row, device: str, free_bytes: float | None) -> str | None:
    """Say that memory would not suffice, and what to change; None where it does, or nothing is known."""
    memory_need = estimate_memory(row, device)
    if free_bytes is None or not memory_need.total > free_bytes:
        return None
    memory_kind = "memory" if device == "cpu" else "GPU memory"
    return (
        f"{row.model.name} needs about {_format_bytes(memory_need.total)} of {memory_kind}"
        f" (weights {_format_bytes(memory_need.weights)}, training {_format_bytes(memory_need.training)},"
        f" one pass {_format_bytes(memory_need.smallest_pass)}), {_format_bytes(free_bytes)} are free:"
        f" it may not fit. {_suggest_change(row, device, memory_need)}"
    )


def list_shortages(rows: Iterable[Row], device: str) -> dict[str, str]:
    """Return by model that memory would not suffice, and what to change; models that fit are not in it."""
    free_bytes = find_free_bytes(device)
    shortages = {}
    for row in rows:
        shortage = describe_shortage(row, device, free_bytes)
        if shortage is not None:
            shortages[row.model.name] = shortage
    return shortages


def _count_bytes_per_weight(row: Row, device: str) -> int:
    """Return the bytes of one weight in the dtype of the row's model, which is the study's where it has none."""
    dtype = row.model.dtype or row.study.dtype
    return BYTES.get(dtype, 4 if device == "cpu" else 2)


def _suggest_change(row: Row, device: str, memory_need: MemoryNeed) -> str:
    """Say what would make the part smaller that takes most."""
    if memory_need.largest_part == "pass":
        return "Lower tuning.max_tokens."
    if memory_need.largest_part == "training":
        if row.study.tuning.method == "full":
            return "Train adapters: tuning.method: lora."
        return "Lower tuning.rank, or name fewer layers with tuning.targets."
    if _count_bytes_per_weight(row, device) == 4 and row.model.quantise is None:
        return "dtype: bfloat16 halves the weights."
    if device == "cpu":
        return "Take a smaller model, or a machine with more memory."
    if row.model.quantise is None:
        return (
            "quantise: 4bit in the model's entry, or device: spread over all GPUs and the memory."
        )
    return "device: spread lays it over all GPUs and the memory."


def _format_bytes(byte_count: float) -> str:
    gigabytes = byte_count / GIGABYTE
    return f"{gigabytes:.0f} GB" if gigabytes >= 10 else f"{gigabytes:.1f} GB"
