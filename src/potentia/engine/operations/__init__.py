"""The form of the operations of static passes: Triton kernels where they run, plain tensor operations elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

TILE = 64  # tokens that attention treats at a time; a tile never looks beyond its part of the long row


@dataclass(frozen=True)
class Rows:
    """Where the rows of a long row begin and end, for every token (N,), and each tile's first token and part's end."""

    first: Tensor
    last: Tensor
    tiles: Tensor  # (T, 2)


class Gain(NamedTuple):
    """How a root-mean-square norm multiplies (d,): some models keep their weights less one, ``more`` is what to add."""

    weight: Tensor
    epsilon: float
    more: float = 0.0


def tile(ends: Sequence[int]) -> npt.NDArray[np.int32]:
    """Return first token and part's end of every tile, flat, for parts of the long row that end at these places."""
    tiles = [(start, end) for begin, end in zip([0, *ends], ends, strict=False) for start in range(begin, end, TILE)]
    return np.array(tiles, np.int32).ravel()


def operations(device: torch.device) -> Any:
    """Return the module with the operations for a device: ``kernels``, or ``plain`` where these do not run."""
    from potentia.engine.operations import plain

    found = triton_kernels() if device.type == "cuda" else None
    return plain if found is None else found


def ready(module: Any, kind: str, work: Callable[[], object]) -> None:
    """Compile the kernels of some work, where operations have any, side by side and without running them."""
    if hasattr(module, "readying"):
        with module.readying(kind):
            work()


@cache
def triton_kernels() -> Any:
    """Return the kernels, or None where Triton is not installed."""
    try:
        from potentia.engine.operations import kernels as found
    except ImportError:
        return None
    return found
