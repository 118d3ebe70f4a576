"""The operations of packed passes and fused layers: Triton kernels where they run, plain tensor code elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from potentia.timing import spending

if TYPE_CHECKING:
    from potentia.engine.layers.row_layout import AdapterGroup, LaneRoute
    from potentia.engine.operations.compared import ComparedKernels
    from potentia.engine.operations.grouped import RowGroups

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
    """How a root-mean-square norm multiplies (d,): some models keep their weights less one, ``offset`` is added."""

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

    def gate(self, gates: Tensor, gelu: bool = False) -> Tensor:
        """Return silu(g) · u, or gelu(g) · u, of ``gates``, g in their first half and u in their second."""

    def gate_back_(
        self, gates: Tensor, gradient: Tensor, gelu: bool = False, keep: bool = True
    ) -> None:
        """Replace ``gates`` by their gradient, given the product's, and that by the product where it is kept."""

    def convolve(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, position_ids: Tensor
    ) -> Tensor:
        """Return each channel's convolution with its filter, each token with earlier ones of its row."""

    def convolve_back(self, dy: Tensor, weight: Tensor, position_ids: Tensor) -> Tensor:
        """Return the gradient at a convolution's input."""

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, rows: RowBounds, scale: float, window: int | None
    ) -> tuple[Tensor, Tensor]:
        """Return the outputs of queries on keys and values, and their log-sums."""

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
        capacity: int,
        scale: float,
        window: int | None,
    ) -> Tensor:
        """Return the outputs (seats, heads, d) of decode attention: one query a seat on its cached tokens.

        Args:
            q: (seats, heads, d).
            k: (at least seats · capacity, kv_heads, d), seat by seat, ``capacity`` tokens each.
            v: as ``k``.
            lengths: (seats,), the cached tokens of each seat, the current one included.
            capacity: the tokens that a seat's part of the cache holds at most.
            scale: of the scores.
            window: the last tokens that a query sees; None for all.
        """

    def add_adapter_outputs(
        self, x: Tensor, y: Tensor, group: AdapterGroup, route: LaneRoute
    ) -> Tensor:
        """Add every site's adapter product to its columns of ``y``; returns the inner values."""

    def backpropagate_adapters(
        self, dy: Tensor, dx: Tensor | None, group: AdapterGroup, route: LaneRoute
    ) -> Tensor:
        """Add the adapters' share to ``dx``; returns the gradients of the inner values."""

    def sum_adapter_gradients(
        self,
        x: Tensor,
        dy: Tensor,
        inner: Tensor,
        inner_gradient: Tensor,
        group: AdapterGroup,
        route: LaneRoute,
    ) -> None:
        """Add the adapters' own gradients to the lanes' sums."""

    def group_inner_values(self, x: Tensor, factors: Tensor, groups: RowGroups) -> Tensor:
        """Return the products of rows with the factors of their group, a few numbers a row."""

    def add_group_outputs_(
        self, inner: Tensor, factors: Tensor, y: Tensor, groups: RowGroups
    ) -> None:
        """Add to ``y`` the products of inner values with the factors of their group."""

    def group_gradients(self, inner: Tensor, x: Tensor, groups: RowGroups) -> Tensor:
        """Return the gradients of every group's factors, in float32."""

    def loss(self, logits: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return cross-entropies at the targets, and the gradient of their weighted sum."""

    def update_(
        self,
        weights: Tensor,
        first: Tensor,
        second: Tensor,
        grads: Tensor,
        working_copy: Tensor,
        scales: Tensor,
        settings: Tensor,
        norms: Tensor,
    ) -> None:
        """Update the rows that are active and sound, with their working copies, and clear all gradients."""

    def compiling(self, kind: str, /) -> AbstractContextManager[None] | None:
        """Return a context in which kernels are compiled and not run; None where there is nothing to compile."""


class Kernels(Operations, Protocol):
    """The operations as Triton kernels, and one kernel more."""

    def fused_drop(
        self, x: Tensor, keys: Tensor, mix: int, p: float, add: Tensor | None = None
    ) -> Tensor:
        """Return ``x`` after dropout by its tokens' keys, plus ``add``."""


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
    return triton_kernels()


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


def compile_kernels(chosen: Operations, kind: str, work: Callable[[], object]) -> None:
    """Compile the kernels of some work, where operations have any, side by side and without running them."""
    compiling = chosen.compiling(kind)
    if compiling is not None:
        # not the check's time: a run without checks would wait as long
        with spending("compile"), compiling:
            work()


@cache
def triton_kernels() -> Kernels | None:
    """Return the module of kernels, or None where Triton is not installed."""
    try:
        from potentia.engine.operations import kernels
    except ImportError:
        return None
    return kernels
