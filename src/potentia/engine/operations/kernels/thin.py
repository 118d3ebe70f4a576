"""LoRA's two thin products with dropout in one kernel, and their gradients, for lanes that share a long row.

A stretch of 16 tokens belongs to one lane, so a program reads one lane's A and B. Dropout is drawn on the fly from the
tokens' keys (see :mod:`~potentia.engine.tune.dropout`). A lane's gradients are summed by one program per piece over
the lane's own tokens, in their order, and added to the float32 sums: nothing depends on neighbours or timing.
"""

# mypy: ignore-errors
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from potentia.engine.operations.kernels.elementwise import draw
from potentia.engine.operations.kernels.launch import launch


@triton.jit
def _kept(x, keys, at, threshold, factor):
    """Elements (T, D) that survive, times the factor."""
    return tl.where(draw(at[None, :], keys[:, None]) >= threshold, x.to(tl.float32) * factor, 0.0)


@triton.jit
def _mixed(keys_ptr, tokens, mix, inside):
    return tl.load(keys_ptr + tokens, mask=inside, other=0).to(tl.uint32) * 2 + mix.to(tl.uint32)


@triton.jit
def _down_up(
    x_ptr, y_ptr, h_ptr, keys_ptr, owners_ptr, work_ptr, table_ptr, x_stride, y_stride, row, tokens, width, threshold,
    factor, R: tl.constexpr, RANK: tl.constexpr, DROP: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr,
    PRECISION: tl.constexpr
):  # fmt: skip
    block = tl.program_id(0)
    site = tl.program_id(1)
    a_at, b_at = tl.load(table_ptr + site * 5), tl.load(table_ptr + site * 5 + 1)
    column, wide = tl.load(table_ptr + site * 5 + 2), tl.load(table_ptr + site * 5 + 3)
    mix = tl.load(table_ptr + site * 5 + 4)
    mine = work_ptr + tl.load(owners_ptr + block).to(tl.int64) * row
    t = block * BLOCK + tl.arange(0, BLOCK)
    r = tl.arange(0, RANK)
    lines = t[:, None].to(tl.int64)
    if DROP:
        keys = _mixed(keys_ptr, t, mix, t < tokens)
    low = tl.zeros((BLOCK, RANK), tl.float32)
    for begin in range(0, width, WIDE):
        at = begin + tl.arange(0, WIDE)
        x = tl.load(x_ptr + lines * x_stride + at[None, :], mask=(at < width)[None, :], other=0.0)
        if DROP:
            x = _kept(x, keys, at, threshold, factor).to(x_ptr.dtype.element_ty)
        a = tl.load(
            mine + a_at + at[:, None] * R + r[None, :], mask=(at < width)[:, None] & (r < R)[None, :], other=0.0
        )
        low = tl.dot(x, a, low, input_precision=PRECISION)
    h = low.to(h_ptr.dtype.element_ty)
    tl.store(h_ptr + (site * tokens + lines) * R + r[None, :], h, mask=(r < R)[None, :])
    for begin in range(0, wide, WIDE):
        at = begin + tl.arange(0, WIDE)
        b = tl.load(
            mine + b_at + r[:, None] * wide + at[None, :], mask=(r < R)[:, None] & (at < wide)[None, :], other=0.0
        )
        spot = y_ptr + lines * y_stride + column + at[None, :]
        y = tl.load(spot, mask=(at < wide)[None, :], other=0.0).to(tl.float32)
        y = tl.dot(h, b, y, input_precision=PRECISION)
        tl.store(spot, y.to(y_ptr.dtype.element_ty), mask=(at < wide)[None, :])


@triton.jit
def _up_back(
    dy_ptr, dh_ptr, work_ptr, table_ptr, site: tl.constexpr, lines, lane, dy_stride, tokens, r,
    R: tl.constexpr, RANK: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    b_at, column = tl.load(table_ptr + site * 5 + 1), tl.load(table_ptr + site * 5 + 2)
    wide = tl.load(table_ptr + site * 5 + 3)
    dh = tl.zeros((BLOCK, RANK), tl.float32)
    for begin in range(0, wide, WIDE):
        at = begin + tl.arange(0, WIDE)
        dy = tl.load(dy_ptr + lines * dy_stride + column + at[None, :], mask=(at < wide)[None, :], other=0.0)
        spot = work_ptr + lane + b_at + r[None, :] * wide + at[:, None]
        b = tl.load(spot, mask=(r < R)[None, :] & (at < wide)[:, None], other=0.0)
        dh = tl.dot(dy, b, dh, input_precision=PRECISION)
    dh = dh.to(dh_ptr.dtype.element_ty)
    tl.store(dh_ptr + (site * tokens + lines) * R + r[None, :], dh, mask=(r < R)[None, :])
    return dh


@triton.jit
def _down_back(
    dh, keys, work_ptr, table_ptr, site: tl.constexpr, lane, at, width, threshold, factor, r,
    R: tl.constexpr, DROP: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    a_at = tl.load(table_ptr + site * 5)
    spot = work_ptr + lane + a_at + at[None, :] * R + r[:, None]
    a = tl.load(spot, mask=(at < width)[None, :] & (r < R)[:, None], other=0.0)
    dx = tl.dot(dh, a, input_precision=PRECISION)
    if DROP:
        dx = _kept(dx, keys, at, threshold, factor)
    return dx


@triton.jit
def _back(
    dy_ptr, dx_ptr, dh_ptr, keys_ptr, owners_ptr, work_ptr, table_ptr, dy_stride, dx_stride, row, tokens, width,
    threshold, factor, SITES: tl.constexpr, R: tl.constexpr, RANK: tl.constexpr, DROP: tl.constexpr,
    INPUT: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    block = tl.program_id(0)
    lane = tl.load(owners_ptr + block).to(tl.int64) * row
    t = block * BLOCK + tl.arange(0, BLOCK)
    lines = t[:, None].to(tl.int64)
    r = tl.arange(0, RANK)
    one = _up_back(
        dy_ptr, dh_ptr, work_ptr, table_ptr, 0, lines, lane, dy_stride, tokens, r, R, RANK, BLOCK, WIDE, PRECISION
    )
    two = one
    three = one
    if SITES > 1:
        two = _up_back(
            dy_ptr, dh_ptr, work_ptr, table_ptr, 1, lines, lane, dy_stride, tokens, r, R, RANK, BLOCK, WIDE, PRECISION
        )
    if SITES > 2:
        three = _up_back(
            dy_ptr, dh_ptr, work_ptr, table_ptr, 2, lines, lane, dy_stride, tokens, r, R, RANK, BLOCK, WIDE, PRECISION
        )
    if INPUT:
        keys_one = _mixed(keys_ptr, t, tl.load(table_ptr + 4), t < tokens) if DROP else t.to(tl.uint32)
        keys_two, keys_three = keys_one, keys_one
        if DROP and SITES > 1:
            keys_two = _mixed(keys_ptr, t, tl.load(table_ptr + 9), t < tokens)
        if DROP and SITES > 2:
            keys_three = _mixed(keys_ptr, t, tl.load(table_ptr + 14), t < tokens)
        for begin in range(0, width, WIDE):
            at = begin + tl.arange(0, WIDE)
            spot = dx_ptr + lines * dx_stride + at[None, :]
            dx = tl.load(spot, mask=(at < width)[None, :], other=0.0).to(tl.float32)
            dx += _down_back(
                one, keys_one, work_ptr, table_ptr, 0, lane, at, width, threshold, factor, r, R, DROP, PRECISION
            )
            if SITES > 1:
                dx += _down_back(
                    two, keys_two, work_ptr, table_ptr, 1, lane, at, width, threshold, factor, r, R, DROP, PRECISION
                )
            if SITES > 2:
                dx += _down_back(
                    three, keys_three, work_ptr, table_ptr, 2, lane, at, width, threshold, factor, r, R, DROP, PRECISION
                )
            tl.store(spot, dx.to(dx_ptr.dtype.element_ty), mask=(at < width)[None, :])


@triton.jit
def _sum_down(
    x_ptr, dh_ptr, keys_ptr, sums_ptr, table_ptr, site, begin, end, at, x_stride, tokens, width, threshold, factor,
    alpha, R: tl.constexpr, RANK: tl.constexpr, DROP: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr,
    PRECISION: tl.constexpr
):  # fmt: skip
    r = tl.arange(0, RANK)
    mix = tl.load(table_ptr + site * 5 + 4)
    total = tl.zeros((WIDE, RANK), tl.float32)
    for start in range(begin, end, BLOCK):
        t = start + tl.arange(0, BLOCK)
        lines = t[:, None].to(tl.int64)
        inside = (t < end)[:, None]
        x = tl.load(x_ptr + lines * x_stride + at[None, :], mask=inside & (at < width)[None, :], other=0.0)
        if DROP:
            x = _kept(x, _mixed(keys_ptr, t, mix, t < end), at, threshold, factor).to(x_ptr.dtype.element_ty)
        dh_at = dh_ptr + (site * tokens + lines) * R + r[None, :]
        dh = tl.load(dh_at, mask=inside & (r < R)[None, :], other=0.0)
        total = tl.dot(tl.trans(x), dh, total, input_precision=PRECISION)
    spot = sums_ptr + tl.load(table_ptr + site * 5) + at[:, None] * R + r[None, :]
    there = (at < width)[:, None] & (r < R)[None, :]
    tl.store(spot, tl.load(spot, mask=there, other=0.0) + total * alpha, mask=there)


@triton.jit
def _sum_up(
    dy_ptr, h_ptr, sums_ptr, table_ptr, site, begin, end, at, dy_stride, tokens,
    R: tl.constexpr, RANK: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    r = tl.arange(0, RANK)
    column, wide = tl.load(table_ptr + site * 5 + 2), tl.load(table_ptr + site * 5 + 3)
    total = tl.zeros((RANK, WIDE), tl.float32)
    for start in range(begin, end, BLOCK):
        t = start + tl.arange(0, BLOCK)
        lines = t[:, None].to(tl.int64)
        inside = (t < end)[:, None]
        dy = tl.load(dy_ptr + lines * dy_stride + column + at[None, :], mask=inside & (at < wide)[None, :], other=0.0)
        h_at = h_ptr + (site * tokens + lines) * R + r[None, :]
        h = tl.load(h_at, mask=inside & (r < R)[None, :], other=0.0)
        total = tl.dot(tl.trans(h), dy, total, input_precision=PRECISION)
    spot = sums_ptr + tl.load(table_ptr + site * 5 + 1) + r[:, None] * wide + at[None, :]
    there = (r < R)[:, None] & (at < wide)[None, :]
    tl.store(spot, tl.load(spot, mask=there, other=0.0) + total, mask=there)


@triton.jit
def _sums(
    x_ptr, dy_ptr, h_ptr, dh_ptr, keys_ptr, spans_ptr, grads_ptr, table_ptr, x_stride, dy_stride, row, tokens, width,
    threshold, factor, alpha, pieces, R: tl.constexpr, RANK: tl.constexpr, DROP: tl.constexpr, BLOCK: tl.constexpr,
    WIDE: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    slot = tl.program_id(0)
    piece = tl.program_id(1)
    site = tl.program_id(2)
    begin, end = tl.load(spans_ptr + slot * 2), tl.load(spans_ptr + slot * 2 + 1)
    mine = grads_ptr + slot.to(tl.int64) * row
    if begin < end:
        if piece < pieces:
            _sum_down(
                x_ptr, dh_ptr, keys_ptr, mine, table_ptr, site, begin, end, piece * WIDE + tl.arange(0, WIDE),
                x_stride, tokens, width, threshold, factor, alpha, R, RANK, DROP, BLOCK, WIDE, PRECISION
            )  # fmt: skip
        else:
            _sum_up(
                dy_ptr, h_ptr, mine, table_ptr, site, begin, end, (piece - pieces) * WIDE + tl.arange(0, WIDE),
                dy_stride, tokens, R, RANK, BLOCK, WIDE, PRECISION
            )  # fmt: skip


SUMS = {"BLOCK": 32, "WIDE": 64, "num_warps": 4}


def _options(x: Tensor, route) -> dict[str, object]:
    return {
        "R": route.bank.lora.r,
        "RANK": max(16, triton.next_power_of_2(route.bank.lora.r)),
        "DROP": route.keys is not None,
        "PRECISION": "ieee" if x.dtype == torch.float32 else "tf32",
    }


def _draws(route) -> tuple[int, float]:
    return round(route.bank.lora.dropout * 65536), 1.0 / (1.0 - route.bank.lora.dropout)


def thin(x: Tensor, y: Tensor, group, route) -> Tensor:
    """Add every site's adapter product to its columns of ``y`` (N, …), in place; returns the inner values (S, N, r)."""
    tokens, width = x.shape
    h = x.new_empty(len(group.sites), tokens, route.bank.lora.r)
    keys = route.keys if route.keys is not None else route.owners
    launch(
        _down_up, (tokens // route.stretch, len(group.sites)),
        x, y, h, keys, route.owners, route.bank.work, group.table, x.stride(0), y.stride(0),
        route.bank.work.stride(0), tokens, width, *_draws(route), **_options(x, route), BLOCK=route.stretch, WIDE=128,
        num_warps=4,
    )  # fmt: skip
    return h


def thin_back(x: Tensor, dy: Tensor, dx: Tensor | None, h: Tensor, group, route) -> None:
    """Add the adapters' share to ``dx`` (where given) in place, and their own gradients to the lanes' sums."""
    tokens, width = x.shape
    dh = torch.empty_like(h)
    options, draws = _options(x, route), _draws(route)
    keys = route.keys if route.keys is not None else route.owners
    launch(
        _back, (tokens // route.stretch,),
        dy, dy if dx is None else dx, dh, keys, route.owners, route.bank.work, group.table, dy.stride(0),
        dy.stride(0) if dx is None else dx.stride(0), route.bank.work.stride(0), tokens, width, *draws,
        SITES=len(group.sites), INPUT=dx is not None, **options, BLOCK=route.stretch, WIDE=128, num_warps=4,
    )  # fmt: skip
    slots = route.spans.shape[0]
    pieces = triton.cdiv(width, 64)
    launch(
        _sums, (slots, pieces + triton.cdiv(group.widest, 64), len(group.sites)),
        x, dy, h, dh, keys, route.spans, route.bank.grads, group.table, x.stride(0), dy.stride(0),
        route.bank.grads.stride(0), tokens, width, *draws, route.bank.lora.scale, pieces, **options, **SUMS,
    )  # fmt: skip
