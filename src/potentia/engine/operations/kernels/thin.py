"""LoRA's two thin products with dropout in one kernel, and their gradients, for lanes that share a long row.

A stretch of 16 tokens belongs to one lane, so a program reads one lane's A and B. Dropout is drawn on the fly from the
tokens' keys (see :mod:`~potentia.engine.tune.dropout`). A lane's gradients are summed by one program per piece over
the lane's own tokens, in their order, and added to the float32 sums: nothing depends on neighbours or timing.
"""

# mypy: ignore-errors
# ruff: noqa: D103 - what a function does is said of its namesake in ``plain``
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
def _down(
    x_ptr, h_ptr, keys_ptr, owners_ptr, work_ptr, table_ptr, x_stride, row, tokens, width, threshold, factor,
    R: tl.constexpr, RANK: tl.constexpr, DROP: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr,
    PRECISION: tl.constexpr
):  # fmt: skip
    """Inner values of a stretch at a site."""
    block = tl.program_id(0)
    site = tl.program_id(1)
    a_at, mix = tl.load(table_ptr + site * 5), tl.load(table_ptr + site * 5 + 4)
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
    tl.store(h_ptr + (site * tokens + lines) * R + r[None, :], low.to(h_ptr.dtype.element_ty), mask=(r < R)[None, :])


@triton.jit
def _up(
    y_ptr, h_ptr, owners_ptr, work_ptr, table_ptr, y_stride, row, tokens,
    R: tl.constexpr, RANK: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr, PIECE: tl.constexpr,
    PRECISION: tl.constexpr
):  # fmt: skip
    """Add a stretch's products to a piece of a site's columns."""
    block = tl.program_id(0)
    site = tl.program_id(1)
    b_at, column = tl.load(table_ptr + site * 5 + 1), tl.load(table_ptr + site * 5 + 2)
    wide = tl.load(table_ptr + site * 5 + 3)
    mine = work_ptr + tl.load(owners_ptr + block).to(tl.int64) * row
    lines = (block * BLOCK + tl.arange(0, BLOCK))[:, None].to(tl.int64)
    r = tl.arange(0, RANK)
    first = tl.program_id(2) * PIECE
    if first < wide:
        h = tl.load(h_ptr + (site * tokens + lines) * R + r[None, :], mask=(r < R)[None, :], other=0.0)
        for begin in range(first, tl.minimum(first + PIECE, wide), WIDE):
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
    dy_ptr, parts_ptr, owners_ptr, work_ptr, table_ptr, dy_stride, row, tokens, piece, SITES: tl.constexpr,
    R: tl.constexpr, RANK: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """Gradient of a stretch's inner values by a piece of a site's columns."""
    block = tl.program_id(0)
    site = tl.program_id(1)
    number = tl.program_id(2)
    b_at, column = tl.load(table_ptr + site * 5 + 1), tl.load(table_ptr + site * 5 + 2)
    wide = tl.load(table_ptr + site * 5 + 3)
    mine = work_ptr + tl.load(owners_ptr + block).to(tl.int64) * row
    lines = (block * BLOCK + tl.arange(0, BLOCK))[:, None].to(tl.int64)
    r = tl.arange(0, RANK)
    dh = tl.zeros((BLOCK, RANK), tl.float32)
    for begin in range(number * piece, tl.minimum((number + 1) * piece, wide), WIDE):
        at = begin + tl.arange(0, WIDE)
        dy = tl.load(dy_ptr + lines * dy_stride + column + at[None, :], mask=(at < wide)[None, :], other=0.0)
        spot = mine + b_at + r[None, :] * wide + at[:, None]
        b = tl.load(spot, mask=(r < R)[None, :] & (at < wide)[:, None], other=0.0)
        dh = tl.dot(dy, b, dh, input_precision=PRECISION)
    out = parts_ptr + ((number * SITES + site) * tokens + lines) * R + r[None, :]
    tl.store(out, dh, mask=(r < R)[None, :])


@triton.jit
def _down_back(
    dx_ptr, dh_ptr, parts_ptr, keys_ptr, owners_ptr, work_ptr, table_ptr, dx_stride, row, tokens, width, pieces,
    threshold, factor, SITES: tl.constexpr, R: tl.constexpr, RANK: tl.constexpr, DROP: tl.constexpr,
    INPUT: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr, PIECE: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """Sum the pieces' gradients of inner values, and add what they mean for a piece of the input's columns."""
    block = tl.program_id(0)
    first = tl.program_id(1) * PIECE
    mine = work_ptr + tl.load(owners_ptr + block).to(tl.int64) * row
    t = block * BLOCK + tl.arange(0, BLOCK)
    lines = t[:, None].to(tl.int64)
    r = tl.arange(0, RANK)
    if first == 0:
        for site in tl.static_range(SITES):
            dh = _summed(parts_ptr, dh_ptr, site, SITES, pieces, tokens, lines, r, R, RANK, BLOCK)
            tl.store(dh_ptr + (site * tokens + lines) * R + r[None, :], dh, mask=(r < R)[None, :])
    if INPUT:
        for begin in range(first, tl.minimum(first + PIECE, width), WIDE):
            at = begin + tl.arange(0, WIDE)
            spot = dx_ptr + lines * dx_stride + at[None, :]
            dx = tl.load(spot, mask=(at < width)[None, :], other=0.0).to(tl.float32)
            for site in tl.static_range(SITES):
                dh = _summed(parts_ptr, dh_ptr, site, SITES, pieces, tokens, lines, r, R, RANK, BLOCK)
                a_at = mine + tl.load(table_ptr + site * 5) + at[None, :] * R + r[:, None]
                a = tl.load(a_at, mask=(at < width)[None, :] & (r < R)[:, None], other=0.0)
                add = tl.dot(dh, a, input_precision=PRECISION)
                if DROP:
                    keys = _mixed(keys_ptr, t, tl.load(table_ptr + site * 5 + 4), t < tokens)
                    add = _kept(add, keys, at, threshold, factor)
                dx += add
            tl.store(spot, dx.to(dx_ptr.dtype.element_ty), mask=(at < width)[None, :])


@triton.jit
def _summed(
    parts_ptr, dh_ptr, site, SITES: tl.constexpr, pieces, tokens, lines, r, R: tl.constexpr, RANK: tl.constexpr,
    BLOCK: tl.constexpr
):  # fmt: skip
    total = tl.zeros((BLOCK, RANK), tl.float32)
    for number in range(pieces):
        spot = parts_ptr + ((number * SITES + site) * tokens + lines) * R + r[None, :]
        total += tl.load(spot, mask=(r < R)[None, :], other=0.0)
    return total.to(dh_ptr.dtype.element_ty)


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


PIECE = 512  # columns that a program treats: shorter chains of loads than a whole row of a wide layer
MOST_PIECES = 4  # that a sum over columns is made of


def _options(x: Tensor, route) -> dict[str, object]:
    return {
        "R": route.bank.lora.r,
        "RANK": max(16, triton.next_power_of_2(route.bank.lora.r)),
        "PRECISION": "ieee" if x.dtype == torch.float32 else "tf32",
    }


def _drops(route) -> tuple[Tensor, int, float, bool]:
    """The tokens' keys (or anything), threshold and factor, and whether anything is dropped."""
    p = route.bank.lora.dropout
    drop = route.keys is not None
    return route.keys if drop else route.owners, round(p * 65536), 1.0 / (1.0 - p), drop


def thin(x: Tensor, y: Tensor, group, route) -> Tensor:
    tokens, width = x.shape
    sites, work = len(group.sites), route.bank.work
    h = x.new_empty(sites, tokens, route.bank.lora.r)
    keys, threshold, factor, drop = _drops(route)
    options = {**_options(x, route), "BLOCK": route.stretch, "WIDE": 128, "num_warps": 4}
    launch(
        _down, (tokens // route.stretch, sites),
        x, h, keys, route.owners, work, group.table, x.stride(0), work.stride(0), tokens, width, threshold, factor,
        DROP=drop, **options,
    )  # fmt: skip
    launch(
        _up, (tokens // route.stretch, sites, triton.cdiv(group.widest, PIECE)),
        y, h, route.owners, work, group.table, y.stride(0), work.stride(0), tokens, PIECE=PIECE, **options,
    )  # fmt: skip
    return h


def thin_back(dy: Tensor, dx: Tensor | None, group, route) -> Tensor:
    tokens, sites, r = dy.shape[0], len(group.sites), route.bank.lora.r
    work = route.bank.work
    piece = max(PIECE, triton.cdiv(triton.cdiv(group.widest, MOST_PIECES), 128) * 128)
    pieces = triton.cdiv(group.widest, piece)
    parts = torch.empty(pieces, sites, tokens, r, dtype=torch.float32, device=dy.device)
    dh = dy.new_empty(sites, tokens, r)
    keys, threshold, factor, drop = _drops(route)
    options = {**_options(dy, route), "SITES": sites, "BLOCK": route.stretch, "WIDE": 128, "num_warps": 4}
    launch(
        _up_back, (tokens // route.stretch, sites, pieces),
        dy, parts, route.owners, work, group.table, dy.stride(0), work.stride(0), tokens, piece, **options,
    )  # fmt: skip
    into = dy if dx is None else dx
    width = 0 if dx is None else dx.shape[1]
    launch(
        _down_back, (tokens // route.stretch, max(1, triton.cdiv(width, PIECE))),
        into, dh, parts, keys, route.owners, work, group.table, into.stride(0), work.stride(0), tokens, width, pieces,
        threshold, factor, DROP=drop, INPUT=dx is not None, PIECE=PIECE, **options,
    )  # fmt: skip
    return dh


def thin_sums(x: Tensor, dy: Tensor, h: Tensor, dh: Tensor, group, route) -> None:
    tokens, width = x.shape
    pieces = triton.cdiv(width, 64)
    keys, threshold, factor, drop = _drops(route)
    launch(
        _sums, (route.spans.shape[0], pieces + triton.cdiv(group.widest, 64), len(group.sites)),
        x, dy, h, dh, keys, route.spans, route.bank.grads, group.table, x.stride(0), dy.stride(0),
        route.bank.grads.stride(0), tokens, width, threshold, factor, route.bank.lora.scale, pieces, DROP=drop,
        **_options(x, route), BLOCK=32 if x.dtype == torch.float32 else 128, WIDE=64, num_warps=4,
    )  # fmt: skip
