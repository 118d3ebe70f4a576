"""Layers that mix tokens in order (convolutions, gated delta rules, state-space scans), kept within rows.

The rows of a pass are packed end to end into one sequence, the long row.
Hybrid models (LFM2, Qwen3-Next, Qwen3.5, Granite 4, Nemotron-H, Kimi Linear, Jamba) carry a state from token to token,
and on a long row it would run on from one row to the next. All of them mix through a few functions of their
transformers modules, which :func:`mixing_within_rows` replaces for a pass:

* a convolution looks back a few tokens, so it is computed on the long row, and only within a token's row;
* a scan (delta rule or state space) is given the rows side by side, padded to the longest of a group of rows of similar
  length, and what it returns is laid end to end again. Padding comes after a row's last token, so that it changes
  nothing before it. Where flash-linear-attention or mamba-ssm is installed, its kernels take the long row and are told
  where rows begin: by their bounds (``cu_seqlens``), or by the number of each token's row (``seq_idx``).
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import Enum
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from potentia.engine.models.scan_kernels import (
    FLOATS_OF_KERNELS,
    has_scan_kernels,
    modules_of_layers,
)

if TYPE_CHECKING:
    from potentia.engine.layers.row_layout import PackedRun

LONGEST_TO_SHORTEST = 1.5  # of the rows that are padded to one length
CHUNK = 64  # tokens that a scan treats at a time; it fills rows up to whole chunks
SHORT_CHUNKS = (16, 32)  # for rows that would leave most of a chunk empty

CONVOLUTION = "causal_conv1d_fn"


# ---- functions that scan tokens ------------------------------------------------------------------------------------


class RowsTold(Enum):
    """How a package's kernels are told where rows begin on the long row."""

    BY_BOUNDS = "cu_seqlens"
    BY_NUMBERS = "seq_idx"
    NOT_AT_ALL = "rows side by side"


@dataclass(frozen=True)
class ScanFunction:
    """A function of transformers' modules that scans tokens in order."""

    token_arguments: tuple[str, ...]  # its arguments that have an entry for every token
    token_axis: int  # of these arguments, and of what it returns
    told: RowsTold


SCAN_FUNCTIONS = {
    "torch_chunk_gated_delta_rule": ScanFunction(
        ("query", "key", "value", "g", "beta"), 1, RowsTold.BY_BOUNDS
    ),
    "chunk_kimi_delta_attention": ScanFunction(
        ("query", "key", "value", "g", "beta"), 1, RowsTold.BY_BOUNDS
    ),
    "mamba2_chunk_scan": ScanFunction(("hidden_states", "dt", "B", "C"), 1, RowsTold.BY_NUMBERS),
    "mamba_selective_scan": ScanFunction(
        ("hidden_states", "dt", "B", "C", "z"), 2, RowsTold.NOT_AT_ALL
    ),
}


# ---- the rows of a pass, as scans need them ------------------------------------------------------------------------


@dataclass(frozen=True)
class RowsOfSimilarLength:
    """Rows of similar length: which token of the long row stands at each place of the padded rows."""

    tokens: Tensor  # (rows, padded length); a row's last token where the row has ended


@dataclass(frozen=True)
class RowsByLength:
    """All rows of a pass in groups, and where each token of the long row stands among the groups' places."""

    groups: list[RowsOfSimilarLength]
    places: Tensor  # (N,) among all places of all groups, end to end; 0 for filler tokens, which belong to no row
    bounds: Tensor  # (R + 1,) where rows, and fillings between them, begin and end; on the host
    numbers: Tensor  # (N,) the row or filling that each token belongs to, counted from 0; int32


def group_rows(
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    token_count: int,
    device: torch.device,
) -> RowsByLength:
    """Group rows, given their first tokens and lengths, by similar length."""
    padded_lengths = _round_up_to_chunks(lengths)
    order = np.argsort(-padded_lengths, kind="stable")
    groups: list[RowsOfSimilarLength] = []
    places = np.zeros(token_count, np.int64)
    first_place = 0
    for rows in _divide_by_length(order, padded_lengths):
        longest = int(padded_lengths[rows[0]])
        offsets = np.minimum(np.arange(longest), lengths[rows][:, None] - 1)
        tokens = starts[rows][:, None] + offsets
        is_real = np.arange(longest) < lengths[rows][:, None]
        group_places = first_place + np.arange(tokens.size).reshape(tokens.shape)
        places[tokens[is_real]] = group_places[is_real]
        first_place += tokens.size
        groups.append(RowsOfSimilarLength(torch.from_numpy(tokens).to(device)))
    bounds = np.unique(np.concatenate([[0, token_count], starts, starts + lengths]))
    numbers = np.repeat(np.arange(len(bounds) - 1, dtype=np.int32), np.diff(bounds))
    return RowsByLength(
        groups=groups,
        places=torch.from_numpy(places).to(device),
        bounds=torch.from_numpy(bounds),
        numbers=torch.from_numpy(numbers).to(device),
    )


def _round_up_to_chunks(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the lengths that a scan computes for rows of these lengths."""
    padded_lengths = -(-lengths // CHUNK) * CHUNK
    for chunk in sorted(SHORT_CHUNKS, reverse=True):
        padded_lengths[lengths <= chunk] = chunk
    return padded_lengths


def _divide_by_length(
    order: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> list[npt.NDArray[np.int64]]:
    """Divide rows, the longest first, so that no row of a part is much longer than another."""
    parts: list[npt.NDArray[np.int64]] = []
    begin = 0
    for end in range(1, len(order) + 1):
        is_last = end == len(order)
        if is_last or lengths[order[begin]] > LONGEST_TO_SHORTEST * lengths[order[end]]:
            parts.append(order[begin:end])
            begin = end
    return parts


# ---- the functions of a model that mix -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Mixers:
    """The Python modules of a model's layers that have functions which mix tokens."""

    modules: tuple[ModuleType, ...]

    @classmethod
    def of_model(cls, model: nn.Module) -> Mixers:
        """Find the modules of a model's layers that have a convolution or a scan."""
        modules = modules_of_layers(model)
        return cls(tuple(module for module in modules if _functions_of(module)))

    @property
    def has_scan(self) -> bool:
        """Whether a layer scans its tokens: then a pass has to know its rows."""
        modules_and_names = itertools.product(self.modules, SCAN_FUNCTIONS)
        return any(hasattr(module, function_name) for module, function_name in modules_and_names)


@contextmanager
def mixing_within_rows(mixers: Mixers, packed_run: PackedRun) -> Iterator[None]:
    """Let the mixing functions of these modules mix the tokens of each row alone, inside the block."""
    if mixers.has_scan and packed_run.inputs.rows is None:
        raise NotImplementedError("layers that mix tokens in order, and rows that are not known")
    with ExitStack() as stack:
        for module in mixers.modules:
            for function_name, function in _functions_of(module):
                setattr(module, function_name, _replacement(function_name, function, packed_run))
                stack.callback(setattr, module, function_name, function)
        yield


def _functions_of(module: ModuleType) -> Sequence[tuple[str, Callable[..., Any]]]:
    """Return the functions of a module that mix tokens, with their names."""
    names = [
        function_name
        for function_name in (CONVOLUTION, *SCAN_FUNCTIONS)
        if hasattr(module, function_name)
    ]
    return [(function_name, getattr(module, function_name)) for function_name in names]


def _replacement(
    function_name: str, function: Callable[..., Any], packed_run: PackedRun
) -> Callable[..., Any]:
    """Return what mixes each row alone in place of a function."""
    if function_name == CONVOLUTION:
        return functools.partial(_convolve_rows, packed_run)
    rows = packed_run.inputs.rows
    assert rows is not None
    scan = SCAN_FUNCTIONS[function_name]
    if has_scan_kernels(function_name, packed_run.inputs.buffer.device):
        return _scan_long_row(function, scan, rows)
    return _scan_groups(function, scan, rows)


# ---- convolutions --------------------------------------------------------------------------------------------------


def _convolve_rows(
    packed_run: PackedRun,
    hidden_states: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    **_: Any,
) -> Tensor:
    """Convolve the long row (1, C, N) with a filter (C, K) for each channel, each token with those of its row."""
    if hidden_states.shape[0] != 1 or hidden_states.shape[2] != packed_run.inputs.bucket.tokens:
        raise NotImplementedError("a convolution that is given other tokens than the pass has")
    tokens_first = hidden_states.squeeze(0).t()
    convolved: Tensor = _RowConvolution.apply(  # type: ignore[no-untyped-call]
        tokens_first, weight.detach(), None if bias is None else bias.detach(), packed_run
    )
    if activation is not None:
        convolved = _activation(activation)(convolved)
    return convolved.t().unsqueeze(0)


@functools.cache
def _activation(activation_name: str) -> Callable[[Tensor], Tensor]:
    from transformers.activations import ACT2FN

    activation: Callable[[Tensor], Tensor] = ACT2FN[activation_name]
    return activation


class _RowConvolution(torch.autograd.Function):
    """A convolution of each channel within rows; its filters are frozen."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, packed_run: PackedRun
    ) -> Tensor:
        ctx.held = weight, packed_run
        return packed_run.operations.convolve(x, weight, bias, packed_run.inputs.position_ids)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        weight, packed_run = ctx.held
        x_gradient = packed_run.operations.convolve_back(
            gradients[0], weight, packed_run.inputs.position_ids
        )
        return x_gradient, None, None, None


# ---- scans ---------------------------------------------------------------------------------------------------------


def _scan_long_row(
    function: Callable[..., Any], scan: ScanFunction, rows: RowsByLength
) -> Callable[..., Any]:
    """Return a scan that tells its kernels where rows begin; in float32, where kernels round, rows are grouped."""
    signature = inspect.signature(function)
    scan_groups = _scan_groups(function, scan, rows)

    @functools.wraps(function)
    def scan_within_rows(*arguments: Any, **options: Any) -> Any:
        bound = signature.bind(*arguments, **options)
        first = bound.arguments[scan.token_arguments[0]]
        if first.dtype not in FLOATS_OF_KERNELS:
            return scan_groups(*arguments, **options)
        _check_tokens(first, scan.token_axis, rows)
        return function(*arguments, **(options | _tell_rows(scan.told, rows, first.device)))

    return scan_within_rows


def _tell_rows(told: RowsTold, rows: RowsByLength, device: torch.device) -> dict[str, Tensor]:
    """Return the arguments by which kernels are told where rows begin."""
    if told is RowsTold.BY_NUMBERS:
        return {"seq_idx": rows.numbers.unsqueeze(0)}
    bounds = rows.bounds.to(device, non_blocking=True)
    return {"cu_seqlens": bounds, "cu_seqlens_cpu": rows.bounds}


def _scan_groups(
    function: Callable[..., Any], scan: ScanFunction, rows: RowsByLength
) -> Callable[..., Any]:
    """Return a scan that is given the rows of a long row side by side."""
    signature = inspect.signature(function)
    has_chunks = "chunk_size" in signature.parameters
    axis = scan.token_axis

    @functools.wraps(function)
    def scan_rows(*arguments: Any, **options: Any) -> Any:
        bound = signature.bind(*arguments, **options)
        long_rows: dict[str, Tensor] = {}
        for argument_name in scan.token_arguments:
            long_row = bound.arguments.get(argument_name)
            if long_row is not None:
                _check_tokens(long_row, axis, rows)
                long_rows[argument_name] = long_row.movedim(axis, 1)
        outputs: list[Tensor] = []
        has_state = False
        for group in rows.groups:
            row_count, length = group.tokens.shape
            for argument_name, long_row in long_rows.items():
                picked = long_row.index_select(1, group.tokens.view(-1))
                by_row = picked.view(row_count, length, *long_row.shape[2:])
                bound.arguments[argument_name] = by_row.movedim(1, axis)
            if has_chunks:
                bound.arguments["chunk_size"] = min(length, CHUNK)
            output = function(*bound.args, **bound.kwargs)
            if isinstance(output, tuple):  # with the final state: a pass keeps no cache
                has_state = True
                output = output[0]
            tokens_first = output.movedim(axis, 1)
            outputs.append(tokens_first.reshape(-1, *tokens_first.shape[2:]))
        mixed = torch.cat(outputs).index_select(0, rows.places).unsqueeze(0).movedim(1, axis)
        return (mixed, None) if has_state else mixed

    return scan_rows


def _check_tokens(long_row: Tensor, axis: int, rows: RowsByLength) -> None:
    """Refuse tokens that are not those of the pass: one long row, with its tokens along ``axis``."""
    if long_row.shape[0] != 1 or long_row.shape[axis] != len(rows.places):
        raise NotImplementedError("a scan that is given other tokens than the pass has")
