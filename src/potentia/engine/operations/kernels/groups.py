"""Products of rows with the small factors of their group: the adapters of experts, thousands of groups a pass.

A group has some tens of rows and a rank of a few, so time goes into reading rows once. torch's grouped product takes
1,023 groups and ranks of eight or more; here a tile of rows finds its group in a table, and empty groups cost nothing.
"""

# mypy: ignore-errors
# ruff: noqa: D103 - what a function does is said of its namesake in ``plain``
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from potentia.engine.operations.grouped import TILE_ROWS, RowGroups
from potentia.engine.operations.kernels.launch import launch

BLOCK_COLUMNS = 128
LEAST_RANK = 16  # that a matrix unit takes


@triton.jit
def _inner_kernel(
    x_ptr,
    factors_ptr,
    inner_ptr,
    tile_groups_ptr,
    tile_firsts_ptr,
    tile_ends_ptr,
    width,
    rank,
    x_stride,
    TILE_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
    BLOCK_RANK: tl.constexpr,
):
    """Compute inner (S, r) = x · factorsᵀ of each row's group, for a tile of rows."""
    tile = tl.program_id(0)
    first = tl.load(tile_firsts_ptr + tile)
    end = tl.load(tile_ends_ptr + tile)
    if first >= end:
        return
    group = tl.load(tile_groups_ptr + tile).to(tl.int64)
    row = first + tl.arange(0, TILE_ROWS)
    is_row = row < end
    ranks = tl.arange(0, BLOCK_RANK)
    is_rank = ranks < rank
    row_starts = row.to(tl.int64) * x_stride
    factor_starts = (group * rank + ranks) * width
    total = tl.zeros((TILE_ROWS, BLOCK_RANK), dtype=tl.float32)
    for begin in range(0, width, BLOCK_COLUMNS):
        column = begin + tl.arange(0, BLOCK_COLUMNS)
        is_column = column < width
        x = tl.load(
            x_ptr + row_starts[:, None] + column[None, :],
            mask=is_row[:, None] & is_column[None, :],
            other=0.0,
        )
        factors = tl.load(
            factors_ptr + factor_starts[None, :] + column[:, None],
            mask=is_rank[None, :] & is_column[:, None],
            other=0.0,
        )
        total += tl.dot(x, factors, input_precision="ieee")
    tl.store(
        inner_ptr + row.to(tl.int64)[:, None] * rank + ranks[None, :],
        total.to(inner_ptr.dtype.element_ty),
        mask=is_row[:, None] & is_rank[None, :],
    )


@triton.jit
def _output_kernel(
    inner_ptr,
    factors_ptr,
    y_ptr,
    tile_groups_ptr,
    tile_firsts_ptr,
    tile_ends_ptr,
    width,
    rank,
    TILE_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
    BLOCK_RANK: tl.constexpr,
):
    """Add inner · factors of each row's group to y, for a tile of rows and a block of columns."""
    tile = tl.program_id(0)
    first = tl.load(tile_firsts_ptr + tile)
    end = tl.load(tile_ends_ptr + tile)
    if first >= end:
        return
    group = tl.load(tile_groups_ptr + tile).to(tl.int64)
    row = first + tl.arange(0, TILE_ROWS)
    is_row = row < end
    ranks = tl.arange(0, BLOCK_RANK)
    is_rank = ranks < rank
    column = tl.program_id(1) * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)
    is_column = column < width
    inner = tl.load(
        inner_ptr + row.to(tl.int64)[:, None] * rank + ranks[None, :],
        mask=is_row[:, None] & is_rank[None, :],
        other=0.0,
    )
    factor_starts = (group * rank + ranks) * width
    factors = tl.load(
        factors_ptr + factor_starts[:, None] + column[None, :],
        mask=is_rank[:, None] & is_column[None, :],
        other=0.0,
    )
    y_at = y_ptr + row.to(tl.int64)[:, None] * width + column[None, :]
    is_output = is_row[:, None] & is_column[None, :]
    y = tl.load(y_at, mask=is_output, other=0.0).to(tl.float32)
    y += tl.dot(inner, factors, input_precision="ieee")
    tl.store(y_at, y.to(y_ptr.dtype.element_ty), mask=is_output)


@triton.jit
def _gradient_kernel(
    inner_ptr,
    x_ptr,
    gradient_ptr,
    ends_ptr,
    width,
    rank,
    x_stride,
    TILE_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
    BLOCK_RANK: tl.constexpr,
):
    """Compute innerᵀ · x (r, width) of a group, for a block of columns; zeros where a group has no rows."""
    group = tl.program_id(0)
    begin = tl.load(ends_ptr + group - 1, mask=group > 0, other=0)
    end = tl.load(ends_ptr + group)
    ranks = tl.arange(0, BLOCK_RANK)
    is_rank = ranks < rank
    column = tl.program_id(1) * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)
    is_column = column < width
    total = tl.zeros((BLOCK_RANK, BLOCK_COLUMNS), dtype=tl.float32)
    for first in range(begin, end, TILE_ROWS):
        row = first + tl.arange(0, TILE_ROWS)
        is_row = row < end
        inner = tl.load(
            inner_ptr + row.to(tl.int64)[None, :] * rank + ranks[:, None],
            mask=is_row[None, :] & is_rank[:, None],
            other=0.0,
        )
        x = tl.load(
            x_ptr + row.to(tl.int64)[:, None] * x_stride + column[None, :],
            mask=is_row[:, None] & is_column[None, :],
            other=0.0,
        )
        total += tl.dot(inner, x, input_precision="ieee")
    gradient_starts = (group.to(tl.int64) * rank + ranks) * width
    tl.store(
        gradient_ptr + gradient_starts[:, None] + column[None, :],
        total,
        mask=is_rank[:, None] & is_column[None, :],
    )


def _choose_sizes(rank: int) -> dict[str, int]:
    block_rank = max(LEAST_RANK, triton.next_power_of_2(rank))
    return {
        "TILE_ROWS": TILE_ROWS,
        "BLOCK_COLUMNS": BLOCK_COLUMNS,
        "BLOCK_RANK": block_rank,
    }


def group_inner_values(x: Tensor, factors: Tensor, groups: RowGroups) -> Tensor:
    rank, width = factors.shape[1:]
    inner = torch.empty(x.shape[0], rank, dtype=x.dtype, device=x.device)
    launch(
        _inner_kernel,
        (len(groups.tile_groups),),
        x,
        factors,
        inner,
        groups.tile_groups,
        groups.tile_firsts,
        groups.tile_ends,
        width,
        rank,
        x.stride(0),
        **_choose_sizes(rank),
    )
    return inner


def add_group_outputs_(inner: Tensor, factors: Tensor, y: Tensor, groups: RowGroups) -> None:
    rank, width = factors.shape[1:]
    launch(
        _output_kernel,
        (len(groups.tile_groups), triton.cdiv(width, BLOCK_COLUMNS)),
        inner,
        factors,
        y,
        groups.tile_groups,
        groups.tile_firsts,
        groups.tile_ends,
        width,
        rank,
        **_choose_sizes(rank),
    )


def group_gradients(inner: Tensor, x: Tensor, groups: RowGroups) -> Tensor:
    rank, width = inner.shape[1], x.shape[1]
    group_count = len(groups.ends)
    gradients = torch.empty(group_count, rank, width, dtype=torch.float32, device=x.device)
    launch(
        _gradient_kernel,
        (group_count, triton.cdiv(width, BLOCK_COLUMNS)),
        inner,
        x,
        gradients,
        groups.ends,
        width,
        rank,
        x.stride(0),
        **_choose_sizes(rank),
    )
    return gradients
