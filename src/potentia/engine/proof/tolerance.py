"""How far a way to train is from the reference, and how far it may be.

In float32 a wrong factor is a thousand times what rounding is. In 16 bits the model's own rounding is the measure: a
lane's gradient may be 1.5 times as far from float32's as the model's own, and one layer's three times.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from potentia.engine.layers.adapter_bank import AdapterBank
from potentia.engine.proof.reference import Gradients


class Distance(NamedTuple):
    """How far losses, a lane's gradient and one layer's gradient are from the reference's, as shares of these."""

    loss: float
    lane: float
    layer: float

    def within(self, allowed: Distance) -> bool:
        """Return whether nothing is farther than allowed; what is not a number is too far."""
        pairs = zip(self, allowed, strict=True)
        return all(math.isfinite(share) and share <= limit for share, limit in pairs)

    def times(self, factor: float, least: Distance) -> Distance:
        """Return a multiple, and no less than the rounding of a few operations."""
        pairs = zip(self, least, strict=True)
        return Distance(*(max(factor * share, low) for share, low in pairs))

    def at_most(self, limits: Distance) -> Distance:
        """Return the smaller share of both, each."""
        pairs = zip(self, limits, strict=True)
        return Distance(*(min(share, limit) for share, limit in pairs))

    def as_dict(self) -> dict[str, float]:
        """Return plain values for the record of a run."""
        return {name: float(f"{value:.2e}") for name, value in self._asdict().items()}

    def compared_with(self, allowed: Distance) -> str:
        """Say how far it is and how far it may be."""
        limits = f"{allowed.loss:.1e}, {allowed.lane:.1e} and {allowed.layer:.1e} are allowed"
        return f"{self} ({limits})"

    def __str__(self) -> str:
        return (
            f"losses off by {self.loss:.1e}, gradients by {self.lane:.1e}, "
            f"one layer's by {self.layer:.1e}"
        )


WHOLE_DTYPES = (torch.float32, torch.float64)
WHOLE_BITS = Distance(loss=1e-4, lane=1e-3, layer=1e-2)
FEW_BITS = Distance(loss=4e-3, lane=4e-3, layer=5e-2)  # 16 bits, from float32
FEW_ROWS = Distance(loss=8e-3, lane=4e-2, layer=0.2)  # 16 bits, from the model's own 16 bits
MOST_NOISE = Distance(loss=1e-2, lane=0.25, layer=0.5)  # that a model's own noise may excuse
NOISE_DRAWS = 3  # ways to move the last bits
UPDATE = 1e-4  # how far updates may be off, of their size
MULTIPLE = 3.0  # of the model's own rounding, which differs from form to form
LANE_MULTIPLE = 1.5  # the same of a lane's whole gradient
DRAWS = 3  # a router decides near ties by rounding: what is wrong is wrong on other rows too


def is_whole(dtype: torch.dtype) -> bool:
    """Return whether a dtype has 32 bits or more."""
    return dtype in WHOLE_DTYPES


def slots_distance(
    bank: AdapterBank, ours: Gradients, reference: Gradients, slots: Sequence[int]
) -> Distance:
    """Return how far the losses and gradients of some slots are off: the worst lane, the worst layer of any lane."""
    chosen = list(slots)
    losses, gradients = (part[chosen] for part in ours)
    reference_losses, reference_gradients = (part[chosen] for part in reference)
    loss_gaps = (losses - reference_losses).abs()
    loss = (loss_gaps / reference_losses.abs().clamp(min=1e-6)).max()
    sizes = torch.linalg.vector_norm(reference_gradients, dim=1)
    gaps = gradients - reference_gradients
    lane = (torch.linalg.vector_norm(gaps, dim=1) / sizes.clamp(min=1e-12)).max()
    least = 0.1 * sizes / len(bank.sites) ** 0.5  # a layer with hardly any gradient is rounding
    layer_sizes = torch.maximum(_layer_norms(bank, reference_gradients), least[:, None])
    layer = (_layer_norms(bank, gaps) / layer_sizes.clamp(min=1e-12)).max()
    return Distance(loss=_finite(loss), lane=_finite(lane), layer=_finite(layer))


def _layer_norms(bank: AdapterBank, rows: Tensor) -> Tensor:
    """Return the norm of every layer's part of rows (n, P): (n, sites)."""
    ends = [0, *(site.offset + site.size for site in bank.sites)]
    sums = nn.functional.pad(rows.double().square().cumsum(1), (1, 0))
    at_ends = sums[:, torch.tensor(ends, device=rows.device)]
    return at_ends.diff(dim=1).clamp(min=0).sqrt().float()


def _finite(share: Tensor) -> float:
    return float(share) if bool(torch.isfinite(share)) else math.inf
