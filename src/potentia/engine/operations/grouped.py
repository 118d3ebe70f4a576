"""Groups of rows, each with small factors of its own: the adapters of experts, one group for an expert and a slot."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

TILE_ROWS = 32  # rows that a kernel treats at a time; a tile has rows of one group alone


@dataclass(frozen=True)
class RowGroups:
    """Rows sorted by group: where groups end, and tiles of rows for kernels; sizes do not depend on the values."""

    ends: Tensor  # (G,) one past the last row of each group
    tile_groups: Tensor  # (T,) the group of each tile
    tile_firsts: Tensor  # (T,) its first row
    tile_ends: Tensor  # (T,) one past its last row; the first row again where a tile is not needed

    @classmethod
    def from_ends(cls, group_ends: Tensor, row_count: int) -> RowGroups:
        """Cut groups that end at these rows (G,), int32, into tiles, without asking the device for a value."""
        group_count = len(group_ends)
        begins = torch.cat([group_ends.new_zeros(1), group_ends[:-1]])
        tiles_by_group = (group_ends - begins + TILE_ROWS - 1) // TILE_ROWS
        last_tiles = tiles_by_group.cumsum(0)
        tile_count = row_count // TILE_ROWS + group_count
        tiles = torch.arange(tile_count, device=group_ends.device)
        groups = torch.searchsorted(last_tiles, tiles, right=True)
        is_needed = groups < group_count
        groups = groups.clamp(max=group_count - 1)
        tile_in_group = tiles - (last_tiles - tiles_by_group)[groups]
        firsts = begins[groups] + tile_in_group * TILE_ROWS
        tile_ends = torch.minimum(firsts + TILE_ROWS, group_ends[groups])
        return cls(
            ends=group_ends,
            tile_groups=groups.to(torch.int32),
            tile_firsts=torch.where(is_needed, firsts, 0).to(torch.int32),
            tile_ends=torch.where(is_needed, tile_ends, 0).to(torch.int32),
        )

    def filled(self) -> list[tuple[int, int, int]]:
        """Return the groups that have rows: number, first row and end. Waits for the device."""
        group_ends = self.ends.tolist()
        group_begins = [0, *group_ends[:-1]]
        spans = zip(group_begins, group_ends, strict=True)
        return [(group, begin, end) for group, (begin, end) in enumerate(spans) if end > begin]
