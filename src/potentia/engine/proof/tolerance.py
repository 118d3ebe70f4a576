"""How far losses and gradients of a training form are from the reference's, and how far they may be.

The reference is the model's own code on each row alone. In float32, a wrong factor moves gradients a thousand times as
far as rounding does, so constants tell them apart. In 16 bits the model's own rounding is the measure: a lane's
gradient may be 1.5 times as far from float32's as the reference of 16 bits is, and one layer's gradient three times.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from potentia.engine.layers.adapter_bank import AdapterBank
from potentia.engine.proof.reference import Gradients
from potentia.values.engine_records import GradientDistance


class Distance(NamedTuple):
    """How far losses and gradients are from the reference's, each as a share of the reference's size."""

    loss: float  # of the worst lane
    lane: float  # of the worst lane's whole gradient
    layer: float  # of the worst layer's gradient in any lane

    def is_within(self, allowed: Distance) -> bool:
        """Whether no share is larger than allowed; a share that is not finite is."""
        pairs = zip(self, allowed, strict=True)
        return all(math.isfinite(share) and share <= limit for share, limit in pairs)

    def scale(self, factor: float) -> Distance:
        """Return the shares multiplied by a factor."""
        return Distance(*(factor * share for share in self))

    def at_least(self, lowest: Distance) -> Distance:
        """Return the shares, each no smaller than that of ``lowest``."""
        pairs = zip(self, lowest, strict=True)
        return Distance(*(max(share, low) for share, low in pairs))

    def at_most(self, highest: Distance) -> Distance:
        """Return the shares, each no larger than that of ``highest``."""
        pairs = zip(self, highest, strict=True)
        return Distance(*(min(share, high) for share, high in pairs))

    def to_record(self) -> GradientDistance:
        """Return the distance as results record it."""
        return GradientDistance(*(float(f"{share:.2e}") for share in self))

    def describe_excess(self, allowed: Distance) -> str:
        """Return a sentence with the distance and what is allowed."""
        limits = f"{allowed.loss:.1e}, {allowed.lane:.1e} and {allowed.layer:.1e} are allowed"
        return f"{self} ({limits})"

    def __str__(self) -> str:
        return (
            f"losses off by {self.loss:.1e}, gradients by {self.lane:.1e}, "
            f"one layer's by {self.layer:.1e}"
        )


FULL_PRECISION = (torch.float32, torch.float64)
FLOAT32_TOLERANCE = Distance(loss=1e-4, lane=1e-3, layer=1e-2)
# the smallest tolerances in 16 bits, where a multiple of the model's own rounding is smaller still: with a reference in
# float32, and with one in 16 bits
HALF_FROM_FLOAT32 = Distance(loss=4e-3, lane=4e-3, layer=5e-2)
HALF_FROM_HALF = Distance(loss=8e-3, lane=4e-2, layer=0.2)
# the largest tolerance that the reference's noise in float32 may give: beyond it, a fault could not be told from noise
NOISE_LIMIT = Distance(loss=1e-2, lane=0.25, layer=0.5)
NOISE_DRAWS = 3  # random moves of the embeddings' last bits by which that noise is measured
UPDATE_TOLERANCE = 1e-4  # how far updates may be off, as a share of their size
# how many times the model's own rounding a form may be off: each form rounds differently
ROUNDING_FACTOR = 3.0
# the same for a lane's whole gradient, in which much rounding averages out
LANE_ROUNDING_FACTOR = 1.5


def is_full_precision(dtype: torch.dtype) -> bool:
    """Whether a dtype has 32 bits or more."""
    return dtype in FULL_PRECISION


def measure_slots_distance(
    adapter_bank: AdapterBank, our_gradients: Gradients, reference: Gradients, slots: Sequence[int]
) -> Distance:
    """Return how far the losses and gradients of the lanes in these slots are from the reference's."""
    chosen_slots = list(slots)
    losses, gradients = (part[chosen_slots] for part in our_gradients)
    reference_losses, reference_gradients = (part[chosen_slots] for part in reference)
    loss_gaps = (losses - reference_losses).abs()
    loss = (loss_gaps / reference_losses.abs().clamp(min=1e-6)).max()
    sizes = torch.linalg.vector_norm(reference_gradients, dim=1)
    gaps = gradients - reference_gradients
    lane = (torch.linalg.vector_norm(gaps, dim=1) / sizes.clamp(min=1e-12)).max()
    # a layer with hardly any gradient has hardly more than rounding: count it as a tenth of an average layer
    least_sizes = 0.1 * sizes / len(adapter_bank.sites) ** 0.5
    reference_norms = _layer_norms(adapter_bank, reference_gradients)
    layer_sizes = torch.maximum(reference_norms, least_sizes[:, None])
    layer = (_layer_norms(adapter_bank, gaps) / layer_sizes.clamp(min=1e-12)).max()
    return Distance(loss=_to_share(loss), lane=_to_share(lane), layer=_to_share(layer))


def working_copy_error(adapter_bank: AdapterBank, slots: Sequence[int]) -> float:
    """Return how far the adapters' working copies in some slots are from the adapters, beyond rounding.

    Passes multiply with the working copies: adapters times their scales, in the model's dtype.
    """
    chosen_slots = list(slots)
    scaled_weights = adapter_bank.weights[chosen_slots] * adapter_bank.scales
    rounded_weights = scaled_weights.to(adapter_bank.work.dtype)
    rounding = float(torch.linalg.vector_norm(rounded_weights - scaled_weights))
    error = float(torch.linalg.vector_norm(adapter_bank.work[chosen_slots] - scaled_weights))
    return max(0.0, error - ROUNDING_FACTOR * rounding)


def _layer_norms(adapter_bank: AdapterBank, rows: Tensor) -> Tensor:
    """Return for each row of the bank's parameters (n, P) the norm of every adapter site's part: (n, sites)."""
    ends = [0, *(site.offset + site.size for site in adapter_bank.sites)]
    sums = nn.functional.pad(rows.double().square().cumsum(1), (1, 0))
    at_ends = sums[:, torch.tensor(ends, device=rows.device)]
    return at_ends.diff(dim=1).clamp(min=0).sqrt().float()


def _to_share(share: Tensor) -> float:
    """Return a number from a tensor; infinity where it is not finite."""
    return float(share) if bool(torch.isfinite(share)) else math.inf
