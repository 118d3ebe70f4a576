"""Parts of a transformer written with fewer passes over memory than operation by operation, for frozen weights.

Each equals the plain form up to the rounding of its dtype. Gradients go to inputs only: the weights of a base that
lanes share ask for none.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def norm(x: Tensor, gain: Tensor, epsilon: float) -> Tensor:
    """Return the root-mean-square norm of ``x`` times a gain."""
    return _Norm.apply(x, gain, epsilon)  # type: ignore[no-any-return, no-untyped-call]


def gated(gate: Tensor, up: Tensor) -> Tensor:
    """Return silu(gate) · up."""
    return _Gate.apply(gate, up)  # type: ignore[no-any-return, no-untyped-call]


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return ``x`` (R, H, T, d) with each pair (i, i + d/2) turned by its place's angle: rotary positions."""
    return _Rotation.apply(x, cos, sin)  # type: ignore[no-any-return, no-untyped-call]


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, epsilon: float) -> Tensor:
        # squares overflow in half precision: the scale is made in float32, as the models do
        size = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32 if x.itemsize < 4 else None)
        scale = size.square_().div_(x.shape[-1]).add_(epsilon).rsqrt_()
        ctx.save_for_backward(x, scale, gain)
        out: Tensor = (x * scale).to(gain.dtype).mul_(gain)
        return out.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        x, scale, gain = ctx.saved_tensors
        slope = (grads[0] * gain).to(scale.dtype)
        along = (slope * x).sum(dim=-1, keepdim=True).mul_(scale.pow(3).div_(-x.shape[-1]))
        return slope.mul_(scale).addcmul_(x.to(scale.dtype), along).to(x.dtype), None, None


class _Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return torch.nn.functional.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        slope = grads[0]
        return torch.ops.aten.silu_backward(slope * up, gate), torch.nn.functional.silu(gate).mul_(slope)


class _Rotation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _turn(x, cos, sin, 1.0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _turn(grads[0], cos, sin, -1.0), None, None


def _turn(x: Tensor, cos: Tensor, sin: Tensor, direction: float) -> Tensor:
    half = x.shape[-1] // 2
    out = x * cos
    out[..., :half].addcmul_(x[..., half:], sin[..., :half], value=-direction)
    out[..., half:].addcmul_(x[..., :half], sin[..., half:], value=direction)
    return out
