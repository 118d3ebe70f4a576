"""Convolutions of a few tokens within rows, one filter a channel, as hybrid models have them before their scans."""

# mypy: ignore-errors
# ruff: noqa: D103 - what a function does is said of its namesake in ``plain``
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from potentia.engine.operations.kernels.launch import launch

BLOCK_TOKENS = 16
BLOCK_CHANNELS = 128


@triton.jit
def _convolution_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    position_ids_ptr,
    out_ptr,
    tokens,
    channels,
    x_stride,
    HAS_BIAS: tl.constexpr,
    IS_BACKWARD: tl.constexpr,
    TAPS: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    BLOCK_CHANNELS: tl.constexpr,
):
    """Sum, over the taps j, the filter's factor of j times the token j before (backward: j after) in the same row."""
    token = tl.program_id(0) * BLOCK_TOKENS + tl.arange(0, BLOCK_TOKENS)
    channel = tl.program_id(1) * BLOCK_CHANNELS + tl.arange(0, BLOCK_CHANNELS)
    is_token = token < tokens
    is_channel = channel < channels
    total = tl.zeros((BLOCK_TOKENS, BLOCK_CHANNELS), dtype=tl.float32)
    if HAS_BIAS:
        bias = tl.load(bias_ptr + channel, mask=is_channel, other=0.0).to(tl.float32)
        total += bias[None, :]
    if not IS_BACKWARD:
        position = tl.load(position_ids_ptr + token, mask=is_token, other=0)
    for tap in tl.static_range(TAPS):
        factor = tl.load(
            weight_ptr + channel * TAPS + (TAPS - 1 - tap), mask=is_channel, other=0.0
        ).to(tl.float32)
        if IS_BACKWARD:
            other_token = token + tap
            other_exists = other_token < tokens
            position = tl.load(position_ids_ptr + other_token, mask=other_exists, other=-1)
        else:
            other_token = token - tap
            other_exists = is_token
        is_in_row = other_exists & (position >= tap)
        row_start = other_token.to(tl.int64) * x_stride
        x = tl.load(
            x_ptr + row_start[:, None] + channel[None, :],
            mask=is_in_row[:, None] & is_channel[None, :],
            other=0.0,
        )
        total += x.to(tl.float32) * factor[None, :]
    out_start = token.to(tl.int64) * channels
    tl.store(
        out_ptr + out_start[:, None] + channel[None, :],
        total.to(out_ptr.dtype.element_ty),
        mask=is_token[:, None] & is_channel[None, :],
    )


def _launch_convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, position_ids: Tensor, *, is_backward: bool
) -> Tensor:
    tokens, channels = x.shape
    channels_side_by_side = x if x.stride(1) == 1 else x.contiguous()
    out = torch.empty(tokens, channels, dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(tokens, BLOCK_TOKENS), triton.cdiv(channels, BLOCK_CHANNELS))
    launch(
        _convolution_kernel,
        grid,
        channels_side_by_side,
        weight.contiguous(),
        weight if bias is None else bias,
        position_ids,
        out,
        tokens,
        channels,
        channels_side_by_side.stride(0),
        HAS_BIAS=bias is not None,
        IS_BACKWARD=is_backward,
        TAPS=weight.shape[1],
        BLOCK_TOKENS=BLOCK_TOKENS,
        BLOCK_CHANNELS=BLOCK_CHANNELS,
    )
    return out


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, position_ids: Tensor) -> Tensor:
    return _launch_convolution(x, weight, bias, position_ids, is_backward=False)


def convolve_back(dy: Tensor, weight: Tensor, position_ids: Tensor) -> Tensor:
    return _launch_convolution(dy, weight, None, position_ids, is_backward=True)
