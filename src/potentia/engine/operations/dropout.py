"""Dropout as a pure function of (lane seed, step, row, token, layer, element): no neighbour, no layout can change it.

A 32-bit mixer (the finaliser of MurmurHash3) of the element's pair index and a key per token gives two 16-bit draws;
an element is kept where its draw reaches ``round(p · 2^16)``. Integer arithmetic alone, so that the masks are the same
on every device. On CUDA a small Triton kernel computes the mask inside the multiplication; elsewhere plain tensor
operations do.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from potentia.engine.operations import triton_kernels

_STEP = 0x9E3779B9
Words = npt.NDArray[np.uint64]
Numbers = npt.NDArray[Any]


def _mix64(value: Words) -> Words:
    """Return the finaliser of SplitMix64, elementwise."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def token_keys(
    seeds: Numbers, steps: Numbers, batch_indices: Numbers, tokens: Numbers
) -> npt.NDArray[np.int32]:
    """Make a 31-bit key per token: from its lane's seed and step, its row's place in the batch, its place in the row.

    All four broadcast against each other.
    """
    return keys_within(row_keys(seeds, steps, batch_indices), tokens)


def row_keys(seeds: Numbers, steps: Numbers, batch_indices: Numbers) -> Words:
    """Make the part of a key that the tokens of a row share."""
    with np.errstate(over="ignore"):
        key = _mix64(seeds.astype(np.uint64) + np.uint64(_STEP))
        key = _mix64(key ^ (steps.astype(np.uint64) + np.uint64(0x51ED2701)))
        return _mix64(key ^ (batch_indices.astype(np.uint64) + np.uint64(0xA5A5A5A5)))


def keys_within(row: Words, tokens: Numbers) -> npt.NDArray[np.int32]:
    """Make the keys of tokens at these places of their rows."""
    with np.errstate(over="ignore"):
        key = _mix64(row ^ (tokens.astype(np.uint64) + np.uint64(0x3C6EF372)))
    return (key & np.uint64(0x7FFFFFFF)).astype(np.int32)


def layer_mix(layer: int) -> int:
    """Return what a layer adds to the tokens' keys, as a signed 32-bit number."""
    return _signed((layer * _STEP) & 0xFFFFFFFF)


def _signed(value: int) -> int:
    return value - (1 << 32) if value >= (1 << 31) else value


def keep_mask(keys: Tensor, layer: int, width: int, probability: float) -> Tensor:
    """Draw the mask (…, D), true where an element is kept, for tokens with ``keys`` (…)."""
    if width % 2:
        return keep_mask(keys, layer, width + 1, probability)[..., :width]
    hashed = torch.arange(width // 2, dtype=torch.int32, device=keys.device)
    hashed = torch.bitwise_xor(hashed, (keys * 2 + layer_mix(layer)).unsqueeze(-1))
    hashed.bitwise_xor_((hashed >> 16).bitwise_and_(0xFFFF))
    hashed.mul_(_signed(0x85EBCA6B))
    hashed.bitwise_xor_((hashed >> 13).bitwise_and_(0x7FFFF))
    hashed.mul_(_signed(0xC2B2AE35))
    hashed.bitwise_xor_((hashed >> 16).bitwise_and_(0xFFFF))
    return (
        hashed.view(torch.int16) >= round(probability * 65536) - 32768
    )  # draws are signed: −2^15 … 2^15 − 1


class Dropout:
    """The dropout of one layer in one pass, applied to an input going forward and to its gradient coming back."""

    def __init__(self, keys: Tensor, layer: int, p: float) -> None:
        self.keys, self.layer, self.p = keys, layer, p
        self._factors: Tensor | None = None

    def __call__(self, x: Tensor, add: Tensor | None = None) -> Tensor:
        """Return ``x`` (R, T, D) with dropped elements zero and the others scaled by 1/(1 − p); plus ``add``."""
        # Triton starts its kernels on the device that is current
        near = x.is_cuda and x.device.index == torch.cuda.current_device()
        kernels = triton_kernels() if near and x.shape[-1] % 2 == 0 else None
        if kernels is not None:  # cheaper to draw again than to keep
            return kernels.fused_drop(x, self.keys, layer_mix(self.layer), self.p, add)
        if self._factors is None:
            mask = keep_mask(self.keys, self.layer, x.shape[-1], self.p)
            self._factors = mask.to(x.dtype).mul_(1.0 / (1.0 - self.p)).view_as(x)
        return x * self._factors if add is None else torch.addcmul(add, x, self._factors)
