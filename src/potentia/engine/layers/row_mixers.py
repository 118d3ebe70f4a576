"""Layers that mix tokens in order (convolutions, gated delta rules, state-space scans), kept within rows.

The rows of a pass are packed end to end into one sequence, the long row.
Hybrid models (LFM2, Qwen3-Next, Qwen3.5, Granite 4, Nemotron-H) carry a state from token to token, and on a long row it
would run on from one row to the next. All of them mix through a few functions of their transformers modules. Inside
:func:`mixing_within_rows` these functions are given the rows side by side, padded to the longest of a group of rows of
similar length, and what they return is laid end to end again. Padding comes after a row's last token, so that it
changes nothing before it.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

LONGEST_TO_SHORTEST = 1.5  # of the rows that are padded to one length


@dataclass(frozen=True)
class MixerFunction:
    """A function that mixes tokens: its arguments that have an entry for every token, and the dimension of tokens."""

    token_arguments: tuple[str, ...]
    token_dimension: int


MIXER_FUNCTIONS = {
    "causal_conv1d_fn": MixerFunction(("hidden_states",), token_dimension=2),
    "torch_chunk_gated_delta_rule": MixerFunction(
        ("query", "key", "value", "g", "beta"), token_dimension=1
    ),
    "mamba2_chunk_scan": MixerFunction(("hidden_states", "dt", "B", "C"), token_dimension=1),
}


@dataclass(frozen=True)
class RowGroup:
    """Rows of similar length: which token of the long row stands at each place of the padded rows."""

    tokens: Tensor  # (rows, longest); a row's last token where the row has ended


@dataclass(frozen=True)
class RowGroups:
    """All rows of a pass in groups, and where each token of the long row stands among the groups' places."""

    groups: list[RowGroup]
    places: Tensor  # (N,) among all places of all groups, end to end; 0 for filler tokens, which belong to no row


def group_rows(
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    token_count: int,
    device: torch.device,
) -> RowGroups:
    """Group rows, given their first tokens and lengths, by similar length."""
    order = np.argsort(-lengths, kind="stable")
    groups: list[RowGroup] = []
    places = np.zeros(token_count, np.int64)
    first_place = 0
    for rows in _divide_by_length(order, lengths):
        longest = int(lengths[rows[0]])
        offsets = np.minimum(np.arange(longest), lengths[rows][:, None] - 1)
        tokens = starts[rows][:, None] + offsets
        is_real = np.arange(longest) < lengths[rows][:, None]
        group_places = first_place + np.arange(tokens.size).reshape(tokens.shape)
        places[tokens[is_real]] = group_places[is_real]
        first_place += tokens.size
        groups.append(RowGroup(torch.from_numpy(tokens).to(device)))
    return RowGroups(groups, torch.from_numpy(places).to(device))


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


def find_mixer_modules(model: nn.Module) -> list[ModuleType]:
    """Return the Python modules of a model's layers that have functions which mix tokens."""
    names = {type(module).__module__ for module in model.modules()}
    modules = [sys.modules[name] for name in sorted(names) if name in sys.modules]
    return [module for module in modules if any(hasattr(module, name) for name in MIXER_FUNCTIONS)]


@contextmanager
def mixing_within_rows(modules: Sequence[ModuleType], rows: RowGroups | None) -> Iterator[None]:
    """Let the mixing functions of these modules mix the tokens of each row alone, inside the block."""
    if modules and rows is None:
        raise NotImplementedError("layers that mix tokens in order, and rows that are not known")
    with ExitStack() as stack:
        for module in modules:
            for name, mixer in MIXER_FUNCTIONS.items():
                function = getattr(module, name, None)
                if function is not None and rows is not None:
                    setattr(module, name, _mix_each_row(function, mixer, rows))
                    stack.callback(setattr, module, name, function)
        yield


def _mix_each_row(
    function: Callable[..., Any], mixer: MixerFunction, rows: RowGroups
) -> Callable[..., Any]:
    """Return a mixing function that is given the rows of a long row side by side."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def mix_rows(*arguments: Any, **options: Any) -> Any:
        bound = signature.bind(*arguments, **options)
        long_rows = {name: bound.arguments[name] for name in mixer.token_arguments}
        for long_row in long_rows.values():
            if long_row.shape[0] != 1 or long_row.shape[mixer.token_dimension] != len(rows.places):
                raise NotImplementedError("a mixer that is given other tokens than the pass has")
        outputs: list[Tensor] = []
        has_state = False
        for group in rows.groups:
            row_count, length = group.tokens.shape
            for name, long_row in long_rows.items():
                picked = long_row.index_select(mixer.token_dimension, group.tokens.view(-1))
                bound.arguments[name] = _rows_first(
                    picked, mixer.token_dimension, row_count, length
                )
            output = function(*bound.args, **bound.kwargs)
            if isinstance(output, tuple):  # with the final state: a pass keeps no cache
                has_state = True
                output = output[0]
            outputs.append(_tokens_first(output, mixer.token_dimension))
        long_output = torch.cat(outputs).index_select(0, rows.places)
        mixed = long_output.unsqueeze(0).movedim(1, mixer.token_dimension)
        return (mixed, None) if has_state else mixed

    return mix_rows


def _rows_first(picked: Tensor, token_dimension: int, rows: int, length: int) -> Tensor:
    """Return the tokens of a long row (1, …, rows · length, …) as rows (rows, …, length, …)."""
    tokens_first = picked.movedim(token_dimension, 1).squeeze(0)
    by_row = tokens_first.reshape(rows, length, *tokens_first.shape[1:])
    return by_row.movedim(1, token_dimension)


def _tokens_first(output: Tensor, token_dimension: int) -> Tensor:
    """Return rows (rows, …, length, …) as tokens (rows · length, …)."""
    by_row = output.movedim(token_dimension, 1)
    return by_row.reshape(-1, *by_row.shape[2:])
