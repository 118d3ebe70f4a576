"""LoRA's two thin products with dropout, and their gradients, for lanes that share a long row.

A tile of tokens belongs to one lane, so a program reads one lane's A and B, both (rank, width) in memory. Each kernel
is bound by reading its wide operand, and reads it once: where layers share their input, one program multiplies it by
all their A. That places in the table are multiples of 16, as they are for nearly every model, is told to the compiler:
what it does not know to be aligned it reads two bytes at a time. Dropout is drawn on the fly from the tokens' keys (see
:mod:`~potentia.engine.tune.dropout`). A lane's gradients are summed by one program per piece over the lane's own
tokens, in their order, and added to the float32 sums: nothing depends on neighbours or timing.
"""

# mypy: ignore-errors
# ruff: noqa: D103 - what a function does is said of its namesake in ``plain``
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from potentia.engine.operations import TILE
from potentia.engine.operations.kernels.attention import place
from potentia.engine.operations.kernels.elementwise import draw
from potentia.engine.operations.kernels.launch import launch


@triton.jit
def _kept(x, keys, at, threshold, factor):
    """Elements (T, D) that survive, times the factor."""
    return tl.where(draw(at[None, :], keys[:, None]) >= threshold, x.to(tl.float32) * factor, 0.0)


@triton.jit
def _keys(keys_ptr, table_ptr, site, t, stop, DROP: tl.constexpr):
    """The tokens' keys for a site's dropout."""
    keys = t.to(tl.uint32)
    if DROP:
        mix = tl.load(table_ptr + site * 5 + 4)
        keys = tl.load(keys_ptr + t, mask=t < stop, other=0).to(tl.uint32) * 2 + mix.to(tl.uint32)
    return keys


@triton.jit
def _entry(table_ptr, site, number, ALIGN: tl.constexpr):
    """Of a site: where its A and its B lie (0, 1), its first column (2), its columns (3)."""
    return tl.multiple_of(tl.load(table_ptr + site * 5 + number), ALIGN)


@triton.jit
def _factor(ptr, at, wide, R: tl.constexpr, RANK: tl.constexpr):
    """Columns of an A or a B (RANK, D)."""
    r = tl.arange(0, RANK)[:, None]
    return tl.load(ptr + r * wide + at[None, :], mask=(r < R) & (at < wide)[None, :], other=0.0)


@triton.jit
def _inner(h_ptr, t, stop, R: tl.constexpr, RANK: tl.constexpr):
    """Inner values of tokens (T, RANK)."""
    r = tl.arange(0, RANK)[None, :]
    return tl.load(h_ptr + t[:, None] * R + r, mask=(t < stop)[:, None] & (r < R), other=0.0)


@triton.jit
def _keep(h_ptr, h, t, stop, R: tl.constexpr, RANK: tl.constexpr):
    r = tl.arange(0, RANK)[None, :]
    tl.store(h_ptr + t[:, None] * R + r, h.to(h_ptr.dtype.element_ty), mask=(t < stop)[:, None] & (r < R))


@triton.jit
def _plus(
    h, x, ptr, at, wide, keys, threshold, factor, R: tl.constexpr, RANK: tl.constexpr, DROP: tl.constexpr,
    PRECISION: tl.constexpr
):  # fmt: skip
    """Inner values plus what some columns of their source add."""
    if DROP:
        x = _kept(x, keys, at, threshold, factor).to(x.dtype)
    return tl.dot(x, tl.trans(_factor(ptr, at, wide, R, RANK)), h, input_precision=PRECISION)


@triton.jit
def _down(
    x_ptr, h_ptr, keys_ptr, tiles_ptr, owners_ptr, work_ptr, table_ptr, x_stride, row, tokens, width, threshold, factor,
    SITES: tl.constexpr, ALIGN: tl.constexpr, R: tl.constexpr, RANK: tl.constexpr, DROP: tl.constexpr,
    STRETCH: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """Inner values of a tile at all sites, x A."""
    start, stop = place(tiles_ptr, BLOCK, TILE)
    if start < stop:
        t = start + tl.arange(0, BLOCK)
        mine = work_ptr + tl.load(owners_ptr + start // STRETCH).to(tl.int64) * row
        lines = x_ptr + t[:, None].to(tl.int64) * x_stride
        one = tl.zeros((BLOCK, RANK), tl.float32)
        two = tl.zeros((BLOCK, RANK), tl.float32)
        three = tl.zeros((BLOCK, RANK), tl.float32)
        one_keys = _keys(keys_ptr, table_ptr, 0, t, stop, DROP)
        two_keys = _keys(keys_ptr, table_ptr, SITES // 2, t, stop, DROP)
        three_keys = _keys(keys_ptr, table_ptr, SITES - 1, t, stop, DROP)
        for begin in range(0, width, WIDE):
            at = begin + tl.arange(0, WIDE)
            x = tl.load(lines + at[None, :], mask=(t < stop)[:, None] & (at < width)[None, :], other=0.0)
            a = mine + _entry(table_ptr, 0, 0, ALIGN)
            one = _plus(one, x, a, at, width, one_keys, threshold, factor, R, RANK, DROP, PRECISION)
            if SITES > 1:
                a = mine + _entry(table_ptr, 1, 0, ALIGN)
                two = _plus(two, x, a, at, width, two_keys, threshold, factor, R, RANK, DROP, PRECISION)
            if SITES > 2:
                a = mine + _entry(table_ptr, 2, 0, ALIGN)
                three = _plus(three, x, a, at, width, three_keys, threshold, factor, R, RANK, DROP, PRECISION)
        _keep(h_ptr, one, t, stop, R, RANK)
        if SITES > 1:
            _keep(h_ptr + tokens * R, two, t, stop, R, RANK)
        if SITES > 2:
            _keep(h_ptr + 2 * tokens * R, three, t, stop, R, RANK)


@triton.jit
def _up_back(
    dy_ptr, dh_ptr, tiles_ptr, owners_ptr, work_ptr, table_ptr, dy_stride, row, tokens, ALIGN: tl.constexpr,
    R: tl.constexpr, RANK: tl.constexpr, STRETCH: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
    WIDE: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """Gradient of a tile's inner values at a site, dy Bᵀ."""
    start, stop = place(tiles_ptr, BLOCK, TILE)
    if start < stop:
        site = tl.program_id(1)
        t = start + tl.arange(0, BLOCK)
        mine = work_ptr + tl.load(owners_ptr + start // STRETCH).to(tl.int64) * row
        wide, b = _entry(table_ptr, site, 3, ALIGN), mine + _entry(table_ptr, site, 1, ALIGN)
        lines = dy_ptr + t[:, None].to(tl.int64) * dy_stride + _entry(table_ptr, site, 2, ALIGN)
        dh = tl.zeros((BLOCK, RANK), tl.float32)
        for begin in range(0, wide, WIDE):
            at = begin + tl.arange(0, WIDE)
            dy = tl.load(lines + at[None, :], mask=(t < stop)[:, None] & (at < wide)[None, :], other=0.0)
            dh = _plus(dh, dy, b, at, wide, t, 0, 1.0, R, RANK, False, PRECISION)
        _keep(dh_ptr + site * tokens * R, dh, t, stop, R, RANK)


@triton.jit
def _up(
    y_ptr, h_ptr, tiles_ptr, owners_ptr, work_ptr, table_ptr, y_stride, row, tokens, ALIGN: tl.constexpr,
    R: tl.constexpr, RANK: tl.constexpr, STRETCH: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
    WIDE: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """Add a tile's products h B to some of a site's columns."""
    start, stop = place(tiles_ptr, BLOCK, TILE)
    site = tl.program_id(2)
    wide, first = _entry(table_ptr, site, 3, ALIGN), tl.program_id(1) * WIDE
    if (start < stop) & (first < wide):
        t = start + tl.arange(0, BLOCK)
        at = first + tl.arange(0, WIDE)
        there = (t < stop)[:, None] & (at < wide)[None, :]
        mine = work_ptr + tl.load(owners_ptr + start // STRETCH).to(tl.int64) * row
        spot = y_ptr + t[:, None].to(tl.int64) * y_stride + _entry(table_ptr, site, 2, ALIGN) + at[None, :]
        y = tl.load(spot, mask=there, other=0.0).to(tl.float32)
        h = _inner(h_ptr + site * tokens * R, t, stop, R, RANK)
        b = _factor(mine + _entry(table_ptr, site, 1, ALIGN), at, wide, R, RANK)
        tl.store(spot, tl.dot(h, b, y, input_precision=PRECISION).to(y_ptr.dtype.element_ty), mask=there)


@triton.jit
def _down_back(
    dx_ptr, dh_ptr, keys_ptr, tiles_ptr, owners_ptr, work_ptr, table_ptr, dx_stride, row, tokens, width, threshold,
    factor, SITES: tl.constexpr, ALIGN: tl.constexpr, R: tl.constexpr, RANK: tl.constexpr, DROP: tl.constexpr,
    STRETCH: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """Add what all sites' inner gradients mean for some of the input's columns, dh Aᵀ."""
    start, stop = place(tiles_ptr, BLOCK, TILE)
    if start < stop:
        t = start + tl.arange(0, BLOCK)
        at = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
        there = (t < stop)[:, None] & (at < width)[None, :]
        mine = work_ptr + tl.load(owners_ptr + start // STRETCH).to(tl.int64) * row
        spot = dx_ptr + t[:, None].to(tl.int64) * dx_stride + at[None, :]
        dx = tl.load(spot, mask=there, other=0.0).to(tl.float32)
        for site in tl.static_range(SITES):
            dh = _inner(dh_ptr + site * tokens * R, t, stop, R, RANK)
            a = _factor(mine + _entry(table_ptr, site, 0, ALIGN), at, width, R, RANK)
            if DROP:
                keys = _keys(keys_ptr, table_ptr, site, t, stop, DROP)
                dx += _kept(tl.dot(dh, a, input_precision=PRECISION), keys, at, threshold, factor)
            else:
                dx = tl.dot(dh, a, dx, input_precision=PRECISION)
        tl.store(spot, dx.to(dx_ptr.dtype.element_ty), mask=there)


@triton.jit
def _sum(
    x_ptr, stride, at, wide, h_ptr, keys_ptr, table_ptr, site, begin, end, sums_ptr, threshold, factor, alpha,
    R: tl.constexpr, RANK: tl.constexpr, DROP: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr,
    PRECISION: tl.constexpr
):  # fmt: skip
    """Add a lane's inner values times some columns of their wide side to the lane's sums."""
    total = tl.zeros((RANK, WIDE), tl.float32)
    for start in range(begin, end, BLOCK):
        t = start + tl.arange(0, BLOCK)
        lines = x_ptr + t[:, None].to(tl.int64) * stride
        x = tl.load(lines + at[None, :], mask=(t < end)[:, None] & (at < wide)[None, :], other=0.0)
        if DROP:
            x = _kept(x, _keys(keys_ptr, table_ptr, site, t, end, DROP), at, threshold, factor).to(x.dtype)
        total = tl.dot(tl.trans(_inner(h_ptr, t, end, R, RANK)), x, total, input_precision=PRECISION)
    r = tl.arange(0, RANK)[:, None]
    spot, there = sums_ptr + r * wide + at[None, :], (r < R) & (at < wide)[None, :]
    tl.store(spot, tl.load(spot, mask=there, other=0.0) + total * alpha, mask=there)


@triton.jit
def _sums(
    x_ptr, dy_ptr, h_ptr, dh_ptr, keys_ptr, spans_ptr, grads_ptr, table_ptr, x_stride, dy_stride, row, tokens, width,
    threshold, factor, alpha, pieces, ALIGN: tl.constexpr, R: tl.constexpr, RANK: tl.constexpr, DROP: tl.constexpr,
    BLOCK: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    site = tl.program_id(0)  # the quickest to change: sites that share an input find it in the cache
    piece = tl.program_id(1)
    slot = tl.program_id(2)
    begin, end = tl.load(spans_ptr + slot * 2), tl.load(spans_ptr + slot * 2 + 1)
    mine = grads_ptr + slot.to(tl.int64) * row
    inner = site * tokens * R
    if begin < end:
        if piece < pieces:
            a = mine + _entry(table_ptr, site, 0, ALIGN)
            _sum(
                x_ptr, x_stride, piece * WIDE + tl.arange(0, WIDE), width, dh_ptr + inner, keys_ptr, table_ptr, site,
                begin, end, a, threshold, factor, alpha, R, RANK, DROP, BLOCK, WIDE, PRECISION
            )  # fmt: skip
        else:
            wide, first = _entry(table_ptr, site, 3, ALIGN), (piece - pieces) * WIDE
            if first < wide:
                b, source = mine + _entry(table_ptr, site, 1, ALIGN), dy_ptr + _entry(table_ptr, site, 2, ALIGN)
                _sum(
                    source, dy_stride, first + tl.arange(0, WIDE), wide, h_ptr + inner, keys_ptr, table_ptr, site,
                    begin, end, b, threshold, factor, 1.0, R, RANK, False, BLOCK, WIDE, PRECISION
                )  # fmt: skip


def _options(x: Tensor, group, route) -> dict[str, object]:
    return {
        "ALIGN": group.align,
        "R": route.bank.lora.r,
        "RANK": max(16, triton.next_power_of_2(route.bank.lora.r)),
        "PRECISION": "ieee" if x.dtype == torch.float32 else "tf32",
        "num_warps": 4,
    }


def _tiled(x: Tensor, group, route, block: int) -> tuple[int, dict[str, object]]:
    """Programs, and the sizes of a kernel that treats so many tokens at a time; fewer where their numbers are large."""
    options = _options(x, group, route)
    rank = options["RANK"]
    block = 16 if x.dtype == torch.float32 or rank > 64 else block
    sizes = {"STRETCH": route.stretch, "BLOCK": block, "TILE": TILE, "WIDE": 128 if rank <= 32 else 32}
    return route.tiles.shape[0] * (TILE // block), options | sizes


def _drops(route) -> tuple[Tensor, int, float, bool]:
    """The tokens' keys (or anything), threshold and factor, and whether anything is dropped."""
    p = route.bank.lora.dropout
    drop = route.keys is not None
    return route.keys if drop else route.owners, round(p * 65536), 1.0 / (1.0 - p), drop


# tokens at a time, stages and widths: the best of 15 to 44 forms for three models' sizes on an H200
def thin(x: Tensor, y: Tensor, group, route) -> Tensor:
    tokens, width = x.shape
    sites, work = len(group.sites), route.bank.work
    h = x.new_empty(sites, tokens, route.bank.lora.r)
    keys, threshold, factor, drop = _drops(route)
    programs, options = _tiled(x, group, route, 64)
    launch(
        _down, (programs,),
        x, h, keys, route.tiles, route.owners, work, group.table, x.stride(0), work.stride(0), tokens, width, threshold,
        factor, SITES=sites, DROP=drop, num_stages=3, **options,
    )  # fmt: skip
    programs, options = _tiled(x, group, route, 32)
    launch(
        _up, (programs, triton.cdiv(group.widest, options["WIDE"]), sites),
        y, h, route.tiles, route.owners, work, group.table, y.stride(0), work.stride(0), tokens, **options,
    )  # fmt: skip
    return h


def thin_back(dy: Tensor, dx: Tensor | None, group, route) -> Tensor:
    tokens, sites, work = dy.shape[0], len(group.sites), route.bank.work
    dh = dy.new_empty(sites, tokens, route.bank.lora.r)
    programs, options = _tiled(dy, group, route, 64)
    launch(
        _up_back, (programs, sites),
        dy, dh, route.tiles, route.owners, work, group.table, dy.stride(0), work.stride(0), tokens, num_stages=3,
        **options,
    )  # fmt: skip
    if dx is not None:
        keys, threshold, factor, drop = _drops(route)
        programs, options = _tiled(dy, group, route, 32)
        launch(
            _down_back, (programs, triton.cdiv(dx.shape[1], options["WIDE"])),
            dx, dh, keys, route.tiles, route.owners, work, group.table, dx.stride(0), work.stride(0), tokens,
            dx.shape[1], threshold, factor, SITES=sites, DROP=drop, **options,
        )  # fmt: skip
    return dh


def thin_sums(x: Tensor, dy: Tensor, h: Tensor, dh: Tensor, group, route) -> None:
    tokens, width = x.shape
    options = _options(x, group, route)
    wide = 128 if options["RANK"] <= 64 else 32
    pieces = triton.cdiv(width, wide)
    keys, threshold, factor, drop = _drops(route)
    launch(
        _sums, (len(group.sites), pieces + triton.cdiv(group.widest, wide), route.spans.shape[0]),
        x, dy, h, dh, keys, route.spans, route.bank.grads, group.table, x.stride(0), dy.stride(0),
        route.bank.grads.stride(0), tokens, width, threshold, factor, route.bank.lora.scale, pieces, DROP=drop,
        BLOCK=32 if x.dtype == torch.float32 else 128, WIDE=wide, num_stages=2, **options,
    )  # fmt: skip
