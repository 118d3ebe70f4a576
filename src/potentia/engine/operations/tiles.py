"""Tiles: how attention within rows divides a long row among programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

TILE = 64  # tokens that attention treats at a time; a tile never looks beyond its part of the long row


class LongRows(Protocol):
    """Where the rows of a long row begin and end, for every token, and its tiles."""

    @property
    def first(self) -> Tensor:
        """First token of each token's row (N,)."""

    @property
    def last(self) -> Tensor:
        """One past the last token of each token's row (N,)."""

    @property
    def tiles(self) -> Tensor:
        """First token of each tile, and where its part ends (T, 2)."""


@dataclass(frozen=True)
class Rows:
    """Rows as plain tensors."""

    first: Tensor
    last: Tensor
    tiles: Tensor


def tile(ends: Sequence[int]) -> npt.NDArray[np.int32]:
    """Return first token and part's end of every tile, flat, for parts of the long row that end at these places."""
    tiles = [(start, end) for begin, end in zip([0, *ends], ends, strict=False) for start in range(begin, end, TILE)]
    return np.array(tiles, np.int32).ravel()
