"""The form of the operations of static passes: Triton kernels where they run, plain tensor operations elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from potentia.timing import spending

_chosen: ContextVar[Any] = ContextVar("operations", default=None)
TILE = (
    64  # tokens that attention treats at a time; a tile never looks beyond its part of the long row
)


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
    tiles = [
        (start, end)
        for begin, end in zip([0, *ends], ends, strict=False)
        for start in range(begin, end, TILE)
    ]
    return np.array(tiles, np.int32).ravel()


def operations(device: torch.device) -> Any:
    """Return the module with the operations for a device: ``kernels``, or ``plain`` where these do not run."""
    return _chosen.get() or kernels_for(device) or plain_operations()


def plain_operations() -> Any:
    """Return the plain operations."""
    from potentia.engine.operations import plain

    return plain


def kernels_for(device: torch.device) -> Any:
    """Return the kernels, or None where they do not run."""
    return triton_kernels() if device.type == "cuda" else None


def compared_kernels(device: torch.device, dtype: torch.dtype) -> Any:
    """Return kernels that are compared with the plain operations, call by call, in 16 bits; None where there are none.

    In float32 a whole pass tells as much.
    """
    from potentia.engine.operations.compared import Compared

    kernels = kernels_for(device)
    return (
        Compared(kernels)
        if kernels is not None and dtype not in (torch.float32, torch.float64)
        else None
    )


@contextmanager
def choosing(operations: Any) -> Iterator[None]:
    """Let what is made inside the block compute by these operations; None for the device's own."""
    token = _chosen.set(operations)
    try:
        yield
    finally:
        _chosen.reset(token)


def ready(module: Any, kind: str, work: Callable[[], object]) -> None:
    """Compile the kernels of some work, where operations have any, side by side and without running them."""
    if hasattr(module, "readying"):
        with (
            spending("compile"),
            module.readying(kind),
        ):  # not the check's: a run without checks would wait as long
            work()


@cache
def triton_kernels() -> Any:
    """Return the kernels, or None where Triton is not installed."""
    try:
        from potentia.engine.operations import kernels as found
    except ImportError:
        return None
    return found
