"""LoRA's two narrow products with dropout, and their gradients, for lanes that share a long row.

A tile of tokens belongs to one lane, so a program reads one lane's A and B, both (rank, width) in memory. Each kernel
is bound by reading its wide operand; programs of layers that share an input run one after the other, so that all but
the first find it in the cache. Where places in the table are multiples of 16, as they are for nearly every model, the
compiler is told so: what it does not know to be aligned it reads two bytes at a time. Dropout is drawn on the fly
from the tokens' keys (see :mod:`~potentia.engine.operations.dropout`). A lane's gradients are summed by one program per
piece over the lane's own tokens, in their order, and added to the float32 sums: nothing depends on neighbours or
timing.
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
def _keys(keys_ptr, table_ptr, site, t, stop):
    """The tokens' keys for a site's dropout."""
    mix = tl.load(table_ptr + site * 5 + 4)
    return tl.load(keys_ptr + t, mask=t < stop, other=0).to(tl.uint32) * 2 + mix.to(tl.uint32)


@triton.jit
def _entry(table_ptr, site, number: tl.constexpr, ALIGN: tl.constexpr):
    """Of a site: where its A and its B lie (0, 1), its first column (2), its columns (3).

    Adapters of large models have more than 2^31 numbers; columns are few, and 32 bits are faster.
    """
    entry = tl.load(table_ptr + site * 5 + number)
    if number >= 2:
        entry = entry.to(tl.int32)
    return tl.multiple_of(entry, ALIGN)


@triton.jit
def _factor(ptr, at, wide, R: tl.constexpr, RANK: tl.constexpr):
    """Columns of an A or a B (RANK, D)."""
    r = tl.arange(0, RANK)[:, None]
    return tl.load(ptr + r * wide + at[None, :], mask=(r < R) & (at < wide)[None, :], other=0.0)


@triton.jit
def _inner(h_ptr, t, stop, R: tl.constexpr, RANK: tl.constexpr):
    """Inner values of tokens (T, RANK)."""
    r = tl.arange(0, RANK)[None, :]
    lines = h_ptr + t[:, None].to(tl.int64) * R
    return tl.load(lines + r, mask=(t < stop)[:, None] & (r < R), other=0.0)


@triton.jit
def _inward(
    x_ptr,
    h_ptr,
    keys_ptr,
    tiles_ptr,
    owners_ptr,
    work_ptr,
    table_ptr,
    x_stride,
    row,
    tokens,
    width,
    threshold,
    factor,
    BACK: tl.constexpr,
    SITES: tl.constexpr,
    ALIGN: tl.constexpr,
    R: tl.constexpr,
    RANK: tl.constexpr,
    DROP: tl.constexpr,
    STRETCH: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Inner values of a tile at a site, x A; or, going back, their gradient dy Bᵀ by the site's own columns."""
    # one dimension: the others have 65,535 programs at most; the site is the quickest to change, so that sites that
    # share an input find it in the cache
    site = tl.program_id(0) % SITES
    start, stop = place(tiles_ptr, tl.program_id(0) // SITES, BLOCK, TILE)
    if start < stop:
        t = start + tl.arange(0, BLOCK)
        mine = work_ptr + tl.load(owners_ptr + start // STRETCH).to(tl.int64) * row
        lines, wide = x_ptr + t[:, None].to(tl.int64) * x_stride, width
        if BACK:
            lines += _entry(table_ptr, site, 2, ALIGN)
            wide = _entry(table_ptr, site, 3, ALIGN)
        matrix = mine + _entry(table_ptr, site, BACK, ALIGN)
        h = tl.zeros((BLOCK, RANK), tl.float32)
        for begin in range(0, wide, WIDE):
            at = begin + tl.arange(0, WIDE)
            x = tl.load(
                lines + at[None, :], mask=(t < stop)[:, None] & (at < wide)[None, :], other=0.0
            )
            if DROP:
                x = _kept(x, _keys(keys_ptr, table_ptr, site, t, stop), at, threshold, factor).to(
                    x.dtype
                )
            h = tl.dot(
                x, tl.trans(_factor(matrix, at, wide, R, RANK)), h, input_precision=PRECISION
            )
        r = tl.arange(0, RANK)[None, :]
        spot = h_ptr + (site.to(tl.int64) * tokens + t[:, None]) * R + r
        tl.store(spot, h.to(h_ptr.dtype.element_ty), mask=(t < stop)[:, None] & (r < R))


@triton.jit
def _outward(
    y_ptr,
    h_ptr,
    keys_ptr,
    tiles_ptr,
    owners_ptr,
    work_ptr,
    table_ptr,
    y_stride,
    row,
    tokens,
    width,
    threshold,
    factor,
    BACK: tl.constexpr,
    SITES: tl.constexpr,
    ALIGN: tl.constexpr,
    R: tl.constexpr,
    RANK: tl.constexpr,
    DROP: tl.constexpr,
    STRETCH: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Add a tile's products h B to some of a site's columns; or, going back, dh Aᵀ of all sites to the input's."""
    start, stop = place(tiles_ptr, tl.program_id(0), BLOCK, TILE)
    first, wide, column = tl.program_id(1) * WIDE, width, 0
    if not BACK:
        wide = _entry(table_ptr, tl.program_id(2), 3, ALIGN)
        column = _entry(table_ptr, tl.program_id(2), 2, ALIGN)
    if (start < stop) & (first < wide):
        t = start + tl.arange(0, BLOCK)
        at = first + tl.arange(0, WIDE)
        inside = (t < stop)[:, None] & (at < wide)[None, :]
        mine = work_ptr + tl.load(owners_ptr + start // STRETCH).to(tl.int64) * row
        spot = y_ptr + t[:, None].to(tl.int64) * y_stride + column + at[None, :]
        y = tl.load(spot, mask=inside, other=0.0).to(tl.float32)
        for number in tl.static_range(SITES if BACK else 1):
            site = number if BACK else tl.program_id(2)
            h = _inner(h_ptr + tl.cast(site, tl.int64) * tokens * R, t, stop, R, RANK)
            matrix = _factor(
                mine + _entry(table_ptr, site, 0 if BACK else 1, ALIGN), at, wide, R, RANK
            )
            if DROP:
                add = tl.dot(h, matrix, input_precision=PRECISION)
                y += _kept(add, _keys(keys_ptr, table_ptr, site, t, stop), at, threshold, factor)
            else:
                y = tl.dot(h, matrix, y, input_precision=PRECISION)
        tl.store(spot, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _sum(
    x_ptr,
    stride,
    at,
    wide,
    h_ptr,
    keys_ptr,
    table_ptr,
    site,
    begin,
    end,
    sums_ptr,
    threshold,
    factor,
    alpha,
    R: tl.constexpr,
    RANK: tl.constexpr,
    DROP: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Add a lane's inner values times some columns of their wide side to the lane's sums."""
    total = tl.zeros((RANK, WIDE), tl.float32)
    for start in range(begin, end, BLOCK):
        t = start + tl.arange(0, BLOCK)
        lines = x_ptr + t[:, None].to(tl.int64) * stride
        x = tl.load(lines + at[None, :], mask=(t < end)[:, None] & (at < wide)[None, :], other=0.0)
        if DROP:
            x = _kept(x, _keys(keys_ptr, table_ptr, site, t, end), at, threshold, factor).to(
                x.dtype
            )
        total = tl.dot(
            tl.trans(_inner(h_ptr, t, end, R, RANK)), x, total, input_precision=PRECISION
        )
    r = tl.arange(0, RANK)[:, None]
    spot, there = sums_ptr + r * wide + at[None, :], (r < R) & (at < wide)[None, :]
    tl.store(spot, tl.load(spot, mask=there, other=0.0) + total * alpha, mask=there)


@triton.jit
def _sums(
    x_ptr,
    dy_ptr,
    h_ptr,
    dh_ptr,
    keys_ptr,
    spans_ptr,
    grads_ptr,
    table_ptr,
    x_stride,
    dy_stride,
    row,
    tokens,
    width,
    threshold,
    factor,
    alpha,
    pieces,
    ALIGN: tl.constexpr,
    R: tl.constexpr,
    RANK: tl.constexpr,
    DROP: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    site = tl.program_id(
        0
    )  # the quickest to change: sites that share an input find it in the cache
    piece = tl.program_id(1)
    span = spans_ptr + tl.program_id(2) * 3  # the longest first: what is left for the end is short
    slot, begin, end = tl.load(span), tl.load(span + 1), tl.load(span + 2)
    mine = grads_ptr + slot.to(tl.int64) * row
    inner = site.to(tl.int64) * tokens * R
    if begin < end:
        if piece < pieces:
            a = mine + _entry(table_ptr, site, 0, ALIGN)
            _sum(
                x_ptr,
                x_stride,
                piece * WIDE + tl.arange(0, WIDE),
                width,
                dh_ptr + inner,
                keys_ptr,
                table_ptr,
                site,
                begin,
                end,
                a,
                threshold,
                factor,
                alpha,
                R,
                RANK,
                DROP,
                BLOCK,
                WIDE,
                PRECISION,
            )
        else:
            wide, first = _entry(table_ptr, site, 3, ALIGN), (piece - pieces) * WIDE
            if first < wide:
                b, source = (
                    mine + _entry(table_ptr, site, 1, ALIGN),
                    dy_ptr + _entry(table_ptr, site, 2, ALIGN),
                )
                _sum(
                    source,
                    dy_stride,
                    first + tl.arange(0, WIDE),
                    wide,
                    h_ptr + inner,
                    keys_ptr,
                    table_ptr,
                    site,
                    begin,
                    end,
                    b,
                    threshold,
                    factor,
                    1.0,
                    R,
                    RANK,
                    False,
                    BLOCK,
                    WIDE,
                    PRECISION,
                )


def _options(x: Tensor, group, route) -> dict[str, object]:
    return {
        "ALIGN": group.align,
        "R": route.bank.lora.r,
        "RANK": max(16, triton.next_power_of_2(route.bank.lora.r)),
        "PRECISION": "ieee" if x.dtype == torch.float32 else "tf32",
        "num_warps": 4,
    }


def _tiled(x: Tensor, h: Tensor, group, route, width: int, block: int, *, dropping: bool):
    """Programs, arguments and sizes of a kernel on tiles of so many tokens; fewer where their numbers are large."""
    options = _options(x, group, route)
    rank, work = options["RANK"], route.bank.work
    block = 16 if x.dtype == torch.float32 or rank > 64 else block
    keys, threshold, factor, drop = _drops(route)
    arguments = (
        x,
        h,
        keys,
        route.tiles,
        route.owners,
        work,
        group.table,
        x.stride(0),
        work.stride(0),
        x.shape[0],
        width,
        threshold,
        factor,
    )
    sizes = {"STRETCH": route.stretch, "BLOCK": block, "TILE": TILE, "DROP": drop and dropping}
    sizes["WIDE"] = 128 if rank * x.element_size() <= 128 else 32
    return route.tiles.shape[0] * (TILE // block), arguments, options | sizes


def _drops(route) -> tuple[Tensor, int, float, bool]:
    """The tokens' keys (or anything), threshold and factor, and whether anything is dropped."""
    p = route.bank.lora.dropout
    drop = route.keys is not None
    return route.keys if drop else route.owners, round(p * 65536), 1.0 / (1.0 - p), drop


def add_adapter_outputs(x: Tensor, y: Tensor, group, route) -> Tensor:
    h = _in(x, group, route, x.shape[1], back=False)
    _out(y, h, group, route, group.widest, back=False)
    return h


def backpropagate_adapters(dy: Tensor, dx: Tensor | None, group, route) -> Tensor:
    dh = _in(dy, group, route, group.widest, back=True)
    if dx is not None:
        _out(dx, dh, group, route, dx.shape[1], back=True)
    return dh


# tokens at a time, widths and stages: the best of 15 to 44 forms for three models' sizes on an H200
def _in(x: Tensor, group, route, width: int, *, back: bool) -> Tensor:
    h = x.new_empty(len(group.sites), x.shape[0], route.bank.lora.r)
    programs, arguments, options = _tiled(x, h, group, route, width, 64, dropping=not back)
    sites = len(group.sites)
    launch(
        _inward, (sites * programs,), *arguments, BACK=back, SITES=sites, num_stages=3, **options
    )
    return h


def _out(y: Tensor, h: Tensor, group, route, width: int, *, back: bool) -> None:
    programs, arguments, options = _tiled(y, h, group, route, width, 32, dropping=back)
    sites, pieces = len(group.sites), triton.cdiv(width, options["WIDE"])
    launch(
        _outward,
        (programs, pieces, 1 if back else sites),
        *arguments,
        BACK=back,
        SITES=sites,
        **options,
    )


def sum_adapter_gradients(x: Tensor, dy: Tensor, h: Tensor, dh: Tensor, group, route) -> None:
    tokens, width = x.shape
    options = _options(x, group, route)
    wide = 128 if options["RANK"] <= 64 else 32
    pieces = triton.cdiv(width, wide)
    keys, threshold, factor, drop = _drops(route)
    launch(
        _sums,
        (len(group.sites), pieces + triton.cdiv(group.widest, wide), route.spans.shape[0]),
        x,
        dy,
        h,
        dh,
        keys,
        route.spans,
        route.bank.grads,
        group.table,
        x.stride(0),
        dy.stride(0),
        route.bank.grads.stride(0),
        tokens,
        width,
        threshold,
        factor,
        route.bank.scale,
        pieces,
        DROP=drop,
        BLOCK=32 if x.dtype == torch.float32 else 128,
        WIDE=wide,
        num_stages=2,
        **options,
    )
