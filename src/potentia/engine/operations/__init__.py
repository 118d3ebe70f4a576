"""The operations of packed passes and fused layers: Triton kernels where they run, plain tensor code elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from potentia.timing import spending

if TYPE_CHECKING:
    from potentia.engine.layers.row_layout import AdapterGroup, LaneRoute
    from potentia.engine.operations.compared import ComparedKernels

# tokens that attention treats at a time; a tile never looks beyond its part of the long row
TILE = 64


class RowBounds(Protocol):
    """Where the rows of a long row begin and end, for every token (N,), and each tile's first token and part's end."""

    @property
    def first(self) -> Tensor:
        """The first token of each token's row."""

    @property
    def last(self) -> Tensor:
        """One past the last token of each token's row."""

    @property
    def tiles(self) -> Tensor:
        """(T, 2): each tile's first token and the end of its part."""


@dataclass(frozen=True)
class Rows:
    """The bounds of rows as plain tensors, see :class:`RowBounds`."""

    first: Tensor
    last: Tensor
    tiles: Tensor  # (T, 2)


class Gain(NamedTuple):
    """How a root-mean-square norm multiplies (d,): some models keep their weights less one, ``more`` is what to add."""

    weight: Tensor
    epsilon: float
    offset: float = 0.0


class Operations(Protocol):
    """The operations of packed passes and fused layers, as plain tensor operations or as kernels (see ``plain``)."""

    def norm(self, x: Tensor, gain: Gain, into: Tensor | None = None, /) -> tuple[Tensor, Tensor]:
        """Return the norm of stretches, and the stretches' factors."""

    def add_norm(self, x: Tensor, add: Tensor, gain: Gain, /) -> tuple[Tensor, Tensor, Tensor]:
        """Return x + add, its norm and its factors."""

    def norm_back(
        self,
        dy: Tensor,
        x: Tensor,
        gain: Gain,
        scale: Tensor,
        add: Tensor | None = None,
        into: Tensor | None = None,
        /,
    ) -> Tensor:
        """Return the gradient at a norm's input, plus ``add`` where given."""

    def rotate_(
        self, x: Tensor, heads: int, head: int, cos: Tensor, sin: Tensor, back: bool = False
    ) -> Tensor:
        """Turn the first heads of ``x`` by the tokens' angles, or back by them, in place."""

    def gate(self, both: Tensor, gelu: bool = False) -> Tensor:
        """Return silu(g) · u, or gelu(g) · u, of ``both``."""

    def gate_back_(
        self, both: Tensor, slope: Tensor, gelu: bool = False, keep: bool = True
    ) -> None:
        """Replace ``both`` by its gradient, given the product's."""

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, rows: RowBounds, scale: float, window: int | None
    ) -> tuple[Tensor, Tensor]:
        """Return the answers to queries on keys and values, and their log-sums."""

    def attend_back(
        self,
        dout: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        rows: RowBounds,
        scale: float,
        window: int | None,
        into: tuple[Tensor, Tensor, Tensor],
    ) -> None:
        """Write the gradients of queries, keys and values."""

    def attend_cached(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        lengths: Tensor,
        room: int,
        scale: float,
        window: int | None,
    ) -> Tensor:
        """Return the answers of one token a seat to what the seat kept."""

    def add_adapter_outputs(
        self, x: Tensor, y: Tensor, group: AdapterGroup, route: LaneRoute
    ) -> Tensor:
        """Add every site's adapter product to its columns of ``y``; returns the inner values."""

    def backpropagate_adapters(
        self, dy: Tensor, dx: Tensor | None, group: AdapterGroup, route: LaneRoute
    ) -> Tensor:
        """Add the adapters' share to ``dx``; returns the gradients of the inner values."""

    def sum_adapter_gradients(
        self, x: Tensor, dy: Tensor, h: Tensor, dh: Tensor, group: AdapterGroup, route: LaneRoute
    ) -> None:
        """Add the adapters' own gradients to the lanes' sums."""

    def loss(self, logits: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return cross-entropies at the targets, and the gradient of their weighted sum."""

    def update_(
        self,
        weights: Tensor,
        first: Tensor,
        second: Tensor,
        grads: Tensor,
        work: Tensor,
        factors: Tensor,
        settings: Tensor,
        norms: Tensor,
    ) -> None:
        """Update the rows that are active and sound, with their working copies, and clear all gradients."""


_chosen: ContextVar[Operations | None] = ContextVar("operations", default=None)


def tile(ends: Sequence[int]) -> npt.NDArray[np.int32]:
    """Return first token and part's end of every tile, flat, for parts of the long row that end at these places."""
    tiles: list[tuple[int, int]] = []
    begin = 0
    for end in ends:
        tiles += [(start, end) for start in range(begin, end, TILE)]
        begin = end
    return np.array(tiles, np.int32).ravel()


def operations(device: torch.device) -> Operations:
    """Return the operations for a device: kernels, or the plain ones where these do not run."""
    return _chosen.get() or kernels_for(device) or plain_operations()


def plain_operations() -> Operations:
    """Return the plain operations."""
    from potentia.engine.operations import plain

    return plain


def kernels_for(device: torch.device) -> Operations | None:
    """Return the kernels, or None where they do not run."""
    if device.type != "cuda":
        return None
    kernels: Operations | None = triton_kernels()
    return kernels


def compared_kernels(device: torch.device, dtype: torch.dtype) -> ComparedKernels | None:
    """Return kernels that are compared with the plain operations, call by call, in 16 bits; None where there are none.

    In float32 a whole pass tells as much.
    """
    from potentia.engine.operations.compared import ComparedKernels

    kernels = kernels_for(device)
    if kernels is None or dtype in (torch.float32, torch.float64):
        return None
    return ComparedKernels(kernels)


@contextmanager
def choosing(chosen: Operations | None) -> Iterator[None]:
    """Let what is made inside the block compute by these operations; None for the device's own."""
    token = _chosen.set(chosen)
    try:
        yield
    finally:
        _chosen.reset(token)


def ready(module: Any, kind: str, work: Callable[[], object]) -> None:
    """Compile the kernels of some work, where operations have any, side by side and without running them."""
    if hasattr(module, "readying"):
        # not the check's time: a run without checks would wait as long
        with spending("compile"), module.readying(kind):
            work()


@cache
def triton_kernels() -> Any:
    """Return the module of kernels, or None where Triton is not installed."""
    try:
        from potentia.engine.operations import kernels
    except ImportError:
        return None
    return kernels
