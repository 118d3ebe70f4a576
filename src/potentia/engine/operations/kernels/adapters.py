"""LoRA's two narrow products with dropout, and their gradients, for lanes that share a long row.

For a token x of a lane with factors A and B, ::

    h = drop(x) A,   y += h B;        dh = dy Bᵀ,   dx += drop(dh Aᵀ);        dA += α drop(x)ᵀ dh,   dB += hᵀ dy

(A's working copy is α times A, so that dA alone is scaled here.) ``_inner_values_kernel`` computes h and dh,
``_outer_products_kernel`` adds to y and dx, ``_adapter_gradient_kernel`` adds to the lanes' sums.

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

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from potentia.engine.operations import TILE
from potentia.engine.operations.kernels.attention import find_tokens
from potentia.engine.operations.kernels.elementwise import draw
from potentia.engine.operations.kernels.launch import launch

# what the table of an adapter group has of a site (see ``layers.row_layout.AdapterGroup``)
TABLE_COLUMNS = tl.constexpr(5)
OFFSET_OF_A = tl.constexpr(0)
OFFSET_OF_B = tl.constexpr(1)
FIRST_COLUMN = tl.constexpr(2)
COLUMN_COUNT = tl.constexpr(3)
DROPOUT_MIX = tl.constexpr(4)


@triton.jit
def _read_table(table_ptr, site, FIELD: tl.constexpr, ALIGN: tl.constexpr):
    """Return a field of a site's row in the table, one of those that are multiples of ALIGN.

    Adapters of large models have more than 2^31 numbers; columns are few, and 32 bits are faster.
    """
    value = tl.load(table_ptr + site * TABLE_COLUMNS + FIELD)
    if FIELD >= FIRST_COLUMN:
        value = value.to(tl.int32)
    return tl.multiple_of(value, ALIGN)


@triton.jit
def _site_keys(keys_ptr, table_ptr, site, tokens, end):
    """Return the tokens' keys for a site's dropout (T,)."""
    mix = tl.load(table_ptr + site * TABLE_COLUMNS + DROPOUT_MIX)
    token_keys = tl.load(keys_ptr + tokens, mask=tokens < end, other=0)
    return token_keys.to(tl.uint32) * 2 + mix.to(tl.uint32)


@triton.jit
def _drop(x, site_keys, columns, threshold, factor):
    """Return the elements (T, D) that survive, times the factor, in float32."""
    is_kept = draw(columns[None, :], site_keys[:, None]) >= threshold
    return tl.where(is_kept, x.to(tl.float32) * factor, 0.0)


@triton.jit
def _load_factor(factor_ptr, columns, width, R: tl.constexpr, RANK: tl.constexpr):
    """Load some columns of an A or a B (RANK, D): RANK is the rank R, rounded up to a power of two."""
    ranks = tl.arange(0, RANK)[:, None]
    exists = (ranks < R) & (columns < width)[None, :]
    return tl.load(factor_ptr + ranks * width + columns[None, :], mask=exists, other=0.0)


@triton.jit
def _load_inner(inner_ptr, tokens, end, R: tl.constexpr, RANK: tl.constexpr):
    """Load the inner values of tokens at a site (T, RANK)."""
    ranks = tl.arange(0, RANK)[None, :]
    exists = (tokens < end)[:, None] & (ranks < R)
    return tl.load(inner_ptr + tokens[:, None].to(tl.int64) * R + ranks, mask=exists, other=0.0)


@triton.jit
def _lane_adapters(work_ptr, owners_ptr, start, lane_stride, STRETCH: tl.constexpr):
    """Return where the adapters of the lane lie that owns a token."""
    slot = tl.load(owners_ptr + start // STRETCH)
    return work_ptr + slot.to(tl.int64) * lane_stride


@triton.jit
def _inner_values_kernel(
    x_ptr,
    inner_ptr,
    keys_ptr,
    tiles_ptr,
    owners_ptr,
    work_ptr,
    table_ptr,
    x_stride,
    lane_stride,
    token_count,
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
    """Compute a tile's inner values at a site, h = drop(x) A; or, with BACK, dh = dy Bᵀ of the site's columns of dy."""
    # one dimension: the others have 65,535 programs at most; the site is the quickest to change, so that sites that
    # share an input find it in the cache
    site = tl.program_id(0) % SITES
    start, lane_end = find_tokens(tiles_ptr, tl.program_id(0) // SITES, BLOCK, TILE)
    if start < lane_end:
        tokens = start + tl.arange(0, BLOCK)
        adapters = _lane_adapters(work_ptr, owners_ptr, start, lane_stride, STRETCH)
        x_rows = x_ptr + tokens[:, None].to(tl.int64) * x_stride
        if BACK:
            x_rows += _read_table(table_ptr, site, FIRST_COLUMN, ALIGN)
            width = _read_table(table_ptr, site, COLUMN_COUNT, ALIGN)
            matrix = adapters + _read_table(table_ptr, site, OFFSET_OF_B, ALIGN)
        else:
            matrix = adapters + _read_table(table_ptr, site, OFFSET_OF_A, ALIGN)
        inner = tl.zeros((BLOCK, RANK), tl.float32)
        for first_column in range(0, width, WIDE):
            columns = first_column + tl.arange(0, WIDE)
            exists = (tokens < lane_end)[:, None] & (columns < width)[None, :]
            x = tl.load(x_rows + columns[None, :], mask=exists, other=0.0)
            if DROP:
                site_keys = _site_keys(keys_ptr, table_ptr, site, tokens, lane_end)
                x = _drop(x, site_keys, columns, threshold, factor).to(x.dtype)
            weights = tl.trans(_load_factor(matrix, columns, width, R, RANK))
            inner = tl.dot(x, weights, inner, input_precision=PRECISION)
        ranks = tl.arange(0, RANK)[None, :]
        inner_at = inner_ptr + (site.to(tl.int64) * token_count + tokens[:, None]) * R + ranks
        exists_inner = (tokens < lane_end)[:, None] & (ranks < R)
        tl.store(inner_at, inner.to(inner_ptr.dtype.element_ty), mask=exists_inner)


@triton.jit
def _outer_products_kernel(
    y_ptr,
    inner_ptr,
    keys_ptr,
    tiles_ptr,
    owners_ptr,
    work_ptr,
    table_ptr,
    y_stride,
    lane_stride,
    token_count,
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
    """Add a tile's products h B to some of a site's columns of y; or, with BACK, drop(dh Aᵀ) of all sites to dx."""
    start, lane_end = find_tokens(tiles_ptr, tl.program_id(0), BLOCK, TILE)
    piece_start = tl.program_id(1) * WIDE
    first_column = 0
    if not BACK:
        width = _read_table(table_ptr, tl.program_id(2), COLUMN_COUNT, ALIGN)
        first_column = _read_table(table_ptr, tl.program_id(2), FIRST_COLUMN, ALIGN)
    if (start < lane_end) & (piece_start < width):
        tokens = start + tl.arange(0, BLOCK)
        columns = piece_start + tl.arange(0, WIDE)
        exists = (tokens < lane_end)[:, None] & (columns < width)[None, :]
        adapters = _lane_adapters(work_ptr, owners_ptr, start, lane_stride, STRETCH)
        y_rows = y_ptr + tokens[:, None].to(tl.int64) * y_stride
        y_at = y_rows + first_column + columns[None, :]
        y = tl.load(y_at, mask=exists, other=0.0).to(tl.float32)
        for number in tl.static_range(SITES if BACK else 1):
            site = number if BACK else tl.program_id(2)
            site_inner = inner_ptr + tl.cast(site, tl.int64) * token_count * R
            inner = _load_inner(site_inner, tokens, lane_end, R, RANK)
            if BACK:
                matrix = adapters + _read_table(table_ptr, site, OFFSET_OF_A, ALIGN)
            else:
                matrix = adapters + _read_table(table_ptr, site, OFFSET_OF_B, ALIGN)
            weights = _load_factor(matrix, columns, width, R, RANK)
            if DROP:
                product = tl.dot(inner, weights, input_precision=PRECISION)
                site_keys = _site_keys(keys_ptr, table_ptr, site, tokens, lane_end)
                y += _drop(product, site_keys, columns, threshold, factor)
            else:
                y = tl.dot(inner, weights, y, input_precision=PRECISION)
        tl.store(y_at, y.to(y_ptr.dtype.element_ty), mask=exists)


@triton.jit
def _add_gradient(
    x_ptr,
    x_stride,
    columns,
    width,
    inner_ptr,
    keys_ptr,
    table_ptr,
    site,
    begin,
    end,
    sums_ptr,
    threshold,
    factor,
    scale,
    R: tl.constexpr,
    RANK: tl.constexpr,
    DROP: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Add scale · innerᵀ drop(x), over a lane's tokens begin … end, to some columns of the lane's sums (R, width)."""
    total = tl.zeros((RANK, WIDE), tl.float32)
    for start in range(begin, end, BLOCK):
        tokens = start + tl.arange(0, BLOCK)
        x_rows = x_ptr + tokens[:, None].to(tl.int64) * x_stride
        exists = (tokens < end)[:, None] & (columns < width)[None, :]
        x = tl.load(x_rows + columns[None, :], mask=exists, other=0.0)
        if DROP:
            site_keys = _site_keys(keys_ptr, table_ptr, site, tokens, end)
            x = _drop(x, site_keys, columns, threshold, factor).to(x.dtype)
        inner = tl.trans(_load_inner(inner_ptr, tokens, end, R, RANK))
        total = tl.dot(inner, x, total, input_precision=PRECISION)
    ranks = tl.arange(0, RANK)[:, None]
    sums_at = sums_ptr + ranks * width + columns[None, :]
    exists_sum = (ranks < R) & (columns < width)[None, :]
    sums = tl.load(sums_at, mask=exists_sum, other=0.0)
    tl.store(sums_at, sums + total * scale, mask=exists_sum)


@triton.jit
def _adapter_gradient_kernel(
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
    lane_stride,
    token_count,
    width,
    threshold,
    factor,
    scale,
    pieces_of_a,
    ALIGN: tl.constexpr,
    R: tl.constexpr,
    RANK: tl.constexpr,
    DROP: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Add one piece of a lane's gradient at a site: WIDE columns of A's where there are any left, of B's after them."""
    # the site is the quickest to change: sites that share an input find it in the cache
    site = tl.program_id(0)
    piece = tl.program_id(1)
    # the longest lanes come first: what is left for the end is short
    span = spans_ptr + tl.program_id(2) * 3
    slot = tl.load(span)
    begin = tl.load(span + 1)
    end = tl.load(span + 2)
    lane_grads = grads_ptr + slot.to(tl.int64) * lane_stride
    site_inner = site.to(tl.int64) * token_count * R
    if begin < end:
        if piece < pieces_of_a:
            _add_gradient(
                x_ptr,
                x_stride,
                piece * WIDE + tl.arange(0, WIDE),
                width,
                dh_ptr + site_inner,
                keys_ptr,
                table_ptr,
                site,
                begin,
                end,
                lane_grads + _read_table(table_ptr, site, OFFSET_OF_A, ALIGN),
                threshold,
                factor,
                scale,
                R,
                RANK,
                DROP,
                BLOCK,
                WIDE,
                PRECISION,
            )
        else:
            column_count = _read_table(table_ptr, site, COLUMN_COUNT, ALIGN)
            piece_start = (piece - pieces_of_a) * WIDE
            if piece_start < column_count:
                _add_gradient(
                    dy_ptr + _read_table(table_ptr, site, FIRST_COLUMN, ALIGN),
                    dy_stride,
                    piece_start + tl.arange(0, WIDE),
                    column_count,
                    h_ptr + site_inner,
                    keys_ptr,
                    table_ptr,
                    site,
                    begin,
                    end,
                    lane_grads + _read_table(table_ptr, site, OFFSET_OF_B, ALIGN),
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


@dataclass(frozen=True)
class _DropoutArguments:
    """What kernels are told of dropout: the tokens' keys (anything where nothing is dropped), threshold and factor."""

    keys: Tensor
    threshold: int
    factor: float
    is_active: bool

    @classmethod
    def from_route(cls, route) -> _DropoutArguments:
        probability = route.bank.lora.dropout
        is_active = route.keys is not None
        return cls(
            keys=route.keys if is_active else route.owners,
            threshold=round(probability * 65536),
            factor=1.0 / (1.0 - probability),
            is_active=is_active,
        )


def _choose_options(x: Tensor, group, route) -> dict[str, object]:
    """Return the compile-time options that all three kernels share."""
    rank = route.bank.lora.r
    return {
        "ALIGN": group.align,
        "R": rank,
        "RANK": max(16, triton.next_power_of_2(rank)),
        "PRECISION": "ieee" if x.dtype == torch.float32 else "tf32",
        "num_warps": 4,
    }


@dataclass(frozen=True)
class _TiledLaunch:
    """Programs, arguments and options of a kernel that goes over tiles of tokens."""

    programs: int
    arguments: tuple[object, ...]
    options: dict[str, object]

    @classmethod
    def prepare(
        cls,
        x: Tensor,
        inner: Tensor,
        group,
        route,
        width: int,
        *,
        block: int,
        drops: bool,
    ) -> _TiledLaunch:
        """Prepare a launch on blocks of so many tokens; of fewer where their numbers are large."""
        options = _choose_options(x, group, route)
        padded_rank = options["RANK"]
        work = route.bank.work
        dropout = _DropoutArguments.from_route(route)
        if x.dtype == torch.float32 or padded_rank > 64:
            block = 16
        arguments = (
            x,
            inner,
            dropout.keys,
            route.tiles,
            route.owners,
            work,
            group.table,
            x.stride(0),
            work.stride(0),
            x.shape[0],
            width,
            dropout.threshold,
            dropout.factor,
        )
        is_small = padded_rank * x.element_size() <= 128
        options |= {
            "STRETCH": route.stretch,
            "BLOCK": block,
            "TILE": TILE,
            "DROP": dropout.is_active and drops,
            "WIDE": 128 if is_small else 32,
        }
        blocks_per_tile = TILE // block
        return cls(route.tiles.shape[0] * blocks_per_tile, arguments, options)


def add_adapter_outputs(x: Tensor, y: Tensor, group, route) -> Tensor:
    inner = _compute_inner_values(x, group, route, x.shape[1], back=False)
    _add_outer_products(y, inner, group, route, group.widest, back=False)
    return inner


def backpropagate_adapters(dy: Tensor, dx: Tensor | None, group, route) -> Tensor:
    inner_gradient = _compute_inner_values(dy, group, route, group.widest, back=True)
    if dx is not None:
        _add_outer_products(dx, inner_gradient, group, route, dx.shape[1], back=True)
    return inner_gradient


# tokens at a time, widths and stages: the best of 15 to 44 forms for three models' sizes on an H200
def _compute_inner_values(x: Tensor, group, route, width: int, *, back: bool) -> Tensor:
    """Return h (S, N, r) of inputs x, or with ``back`` dh of output gradients."""
    sites = len(group.sites)
    inner = x.new_empty(sites, x.shape[0], route.bank.lora.r)
    tiled = _TiledLaunch.prepare(x, inner, group, route, width, block=64, drops=not back)
    launch(
        _inner_values_kernel,
        (sites * tiled.programs,),
        *tiled.arguments,
        BACK=back,
        SITES=sites,
        num_stages=3,
        **tiled.options,
    )
    return inner


def _add_outer_products(y: Tensor, inner: Tensor, group, route, width: int, *, back: bool) -> None:
    """Add h B to outputs y, or with ``back`` dh Aᵀ of all sites to the gradient of their input."""
    sites = len(group.sites)
    tiled = _TiledLaunch.prepare(y, inner, group, route, width, block=32, drops=back)
    pieces = triton.cdiv(width, tiled.options["WIDE"])
    launch(
        _outer_products_kernel,
        (tiled.programs, pieces, 1 if back else sites),
        *tiled.arguments,
        BACK=back,
        SITES=sites,
        **tiled.options,
    )


def sum_adapter_gradients(
    x: Tensor, dy: Tensor, inner: Tensor, inner_gradient: Tensor, group, route
) -> None:
    tokens, width = x.shape
    options = _choose_options(x, group, route)
    piece_width = 128 if options["RANK"] <= 64 else 32
    pieces_of_a = triton.cdiv(width, piece_width)
    pieces_of_b = triton.cdiv(group.widest, piece_width)
    dropout = _DropoutArguments.from_route(route)
    grads = route.bank.grads
    launch(
        _adapter_gradient_kernel,
        (len(group.sites), pieces_of_a + pieces_of_b, route.spans.shape[0]),
        x,
        dy,
        inner,
        inner_gradient,
        dropout.keys,
        route.spans,
        grads,
        group.table,
        x.stride(0),
        dy.stride(0),
        grads.stride(0),
        tokens,
        width,
        dropout.threshold,
        dropout.factor,
        route.bank.scale,
        pieces_of_a,
        DROP=dropout.is_active,
        BLOCK=32 if x.dtype == torch.float32 else 128,
        WIDE=piece_width,
        num_stages=2,
        **options,
    )
