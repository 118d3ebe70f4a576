"""Projections that lie in one linear layer: which of its outputs are queries, keys and values, or gates and ups.

Names prove nothing, and layouts differ: side by side (Phi 3), head by head (GPT-NeoX), in groups of heads (Falcon). So
the outputs are told apart by trying. The module around the layer runs with random numbers in place of the layer's
outputs, and derivatives say what each of them is:

* a row of one token attends to that token alone, whatever its query and key are: what counts there are *values*;
* nobody reads the query of an earlier token: what counts there are *keys* and values, the others are *queries*;
* a gated block is linear in its *ups*, and not in its *gates*.

A layer that these do not divide into all three, or both, is one projection.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from potentia.engine.layers.trial_runs import (
    RecordedCall,
    draw_like,
    drop_numbers,
    evaluating,
    run_and_record,
    using_weight,
)
from potentia.engine.models.device_layout import move_beside
from potentia.engine.models.split_model import requiring_gradients, try_once

TOKENS = 4  # of a row that has earlier tokens
DRAWS = 8  # of a layer's outputs
ROUNDING = 1e-2  # of a derivative's size: what is smaller is rounding
CHANGE = 0.1  # of a derivative's size: what is larger is another derivative

Columns = tuple[int, ...]  # the outputs of a layer that belong to one projection
# of a module that does not run by itself
_FAILURES = (RuntimeError, ValueError, TypeError, AttributeError, LookupError)


@dataclass(frozen=True)
class LayerKind:
    """Layers that are alike: their name without numbers, and how many outputs they have."""

    name: str
    outputs: int


def find_fused_projections(
    model: nn.Module, layers: Sequence[tuple[str, nn.Module]]
) -> dict[str, tuple[Columns, ...]]:
    """Return the outputs of each projection of the layers that hold several, by the layers' names."""
    columns_by_kind = try_once(model, "fused projections", lambda: _try_layers(model, layers))
    fused: dict[str, tuple[Columns, ...]] = {}
    for layer_name, layer in layers:
        layer_kind = _kind_of(layer_name, layer)
        if layer_kind in columns_by_kind:
            fused[layer_name] = columns_by_kind[layer_kind]
    return fused


def find_gates_and_ups_of_parameter(
    model: nn.Module, full_name: str, *, out_first: bool
) -> tuple[Columns, ...]:
    """Return the outputs of gates and of ups in a parameter of stacked experts; nothing where it has no such two."""
    module_name, _, parameter_name = full_name.rpartition(".")
    module = model.get_submodule(module_name)
    outer_module = model.get_submodule(module_name.rpartition(".")[0])
    with evaluating(model), requiring_gradients(model, False):
        recording = run_and_record(model, tokens=TOKENS, modules=[outer_module])
        if outer_module not in recording.calls:
            return ()
        call = recording.calls[outer_module]
        trial = _ParameterTrial(call, module, parameter_name, out_first)
        outputs = trial.draw_answer(0).shape[-1]
        with suppress(*_FAILURES):
            return _find_gates_and_ups(trial, outputs)
    return ()


def _kind_of(layer_name: str, layer: nn.Module) -> LayerKind:
    weight = layer.weight
    assert isinstance(weight, Tensor)
    outputs = layer.out_features if isinstance(layer, nn.Linear) else weight.shape[1]
    return LayerKind(drop_numbers(layer_name), int(outputs))


def _try_layers(
    model: nn.Module, layers: Sequence[tuple[str, nn.Module]]
) -> dict[LayerKind, tuple[Columns, ...]]:
    """Try the first layer of each kind."""
    first_layers: dict[LayerKind, tuple[str, nn.Module]] = {}
    for layer_name, layer in layers:
        first_layers.setdefault(_kind_of(layer_name, layer), (layer_name, layer))
    columns_by_kind: dict[LayerKind, tuple[Columns, ...]] = {}
    with evaluating(model), requiring_gradients(model, False):
        trials_alone = _record_trials(model, list(first_layers.values()), tokens=1)
        trials_in_row = _record_trials(model, list(first_layers.values()), tokens=TOKENS)
        for layer_kind, (layer_name, _) in first_layers.items():
            if layer_name not in trials_alone or layer_name not in trials_in_row:
                continue
            columns = _divide_outputs(
                trials_alone[layer_name], trials_in_row[layer_name], layer_kind.outputs
            )
            if columns:
                columns_by_kind[layer_kind] = columns
    return columns_by_kind


# ---- trials of layers -----------------------------------------------------------------------------------------------


def _tokens_of(output: Any) -> Tensor:
    """Return a module's output in float32, token by token (T, d)."""
    hidden: Tensor = output[0] if isinstance(output, tuple) else output
    return hidden.reshape(-1, hidden.shape[-1]).float()


@dataclass
class _Trial:
    """A layer, what the module around it was called with, and what the layer answered."""

    call: RecordedCall
    layer: nn.Module
    answer: Tensor

    def run(self, answer: Tensor) -> Tensor:
        """Return what the module answers for each token (T, d) where the layer answers with these numbers."""
        return _tokens_of(self.call.repeat({self.layer: answer}))

    def draw_answer(self, seed: int) -> Tensor:
        """Return random numbers in the shape of the layer's answer."""
        return draw_like(self.answer, seed)


@dataclass
class _ParameterTrial:
    """A parameter (experts, out, in) or (experts, in, out), and what the module around its own was called with."""

    call: RecordedCall
    module: nn.Module
    parameter_name: str
    out_first: bool

    def run(self, weight: Tensor) -> Tensor:
        """Return what the module answers for each token (T, d) with these weights (experts, in, out)."""
        if self.out_first:
            weight = weight.transpose(1, 2)
        with using_weight(self.module, self.parameter_name, weight):
            output = self.call.repeat()
        return _tokens_of(output)

    def draw_answer(self, seed: int) -> Tensor:
        """Return random weights (experts, in, out), of a size that leaves gates between open and shut."""
        weight = self.module.get_parameter(self.parameter_name).detach()
        if self.out_first:
            weight = weight.transpose(1, 2)
        size: float = weight.shape[1] ** -0.5
        return draw_like(weight, seed) * size


def _record_trials(
    model: nn.Module, layers: Sequence[tuple[str, nn.Module]], *, tokens: int
) -> dict[str, _Trial]:
    """Run the model on a row, and return the trials of these layers by their names."""
    parents = {
        layer_name: model.get_submodule(layer_name.rpartition(".")[0]) for layer_name, _ in layers
    }
    recording = run_and_record(
        model, tokens=tokens, modules=parents.values(), layers=[layer for _, layer in layers]
    )
    trials: dict[str, _Trial] = {}
    for layer_name, layer in layers:
        call = recording.calls.get(parents[layer_name])
        answer = recording.answers.get(layer)
        if call is not None and answer is not None:
            trials[layer_name] = _Trial(call, layer, answer)
    return trials


# ---- what the outputs are -------------------------------------------------------------------------------------------


def _divide_outputs(alone: _Trial, in_row: _Trial, outputs: int) -> tuple[Columns, ...]:
    """Return the outputs of queries, keys and values, or of gates and ups; nothing where they are neither."""
    with suppress(*_FAILURES):
        return _find_queries_keys_values(alone, in_row) or _find_gates_and_ups(alone, outputs)
    return ()


def _find_queries_keys_values(alone: _Trial, in_row: _Trial) -> tuple[Columns, ...]:
    sizes_alone = _derivative_sizes(alone)[-1]
    sizes_in_row = _derivative_sizes(in_row)
    sizes_of_last_token = sizes_in_row[-1]
    sizes_of_earlier_tokens = sizes_in_row[:-1].sum(0)
    if not sizes_of_last_token.all():
        return ()  # outputs that do not count at all
    # each output is compared with itself: heads differ in size
    is_value = sizes_alone > ROUNDING * sizes_of_last_token
    is_read_later = sizes_of_earlier_tokens > ROUNDING * sizes_of_last_token
    if (is_value & ~is_read_later).any():
        return ()
    is_key = is_read_later & ~is_value
    columns = (_columns_where(~is_read_later), _columns_where(is_key), _columns_where(is_value))
    return columns if all(columns) else ()


def _derivative_sizes(trial: _Trial) -> Tensor:
    """Return how much the last token's output depends on each output of the layer, for each token (T, out)."""
    squares = torch.zeros(())
    for seed in range(DRAWS):  # in one of them a number may be small by chance
        answer = trial.draw_answer(seed)
        derivative = _derivative_at(trial, answer, direction=seed, last_token_alone=True)
        squares = squares + derivative.square()
    return squares.sqrt()


def _find_gates_and_ups(trial: _Trial | _ParameterTrial, outputs: int) -> tuple[Columns, ...]:
    halves = torch.arange(outputs) < outputs // 2
    alternating = torch.arange(outputs) % 2 == 0
    if outputs % 2:
        return ()
    for is_gate in (halves, ~halves, alternating, ~alternating):
        if _are_gates(trial, is_gate):
            return _columns_where(is_gate), _columns_where(~is_gate)
    return ()


def _are_gates(trial: _Trial | _ParameterTrial, is_gate: Tensor) -> bool:
    """Return whether a block is linear in the other outputs, given these, and not in these, given the others."""
    answer = trial.draw_answer(0)
    other_answer = trial.draw_answer(1)
    places = move_beside(is_gate, answer)
    derivative = _derivative_at(trial, answer)
    with_other_ups = _derivative_at(trial, torch.where(places, answer, other_answer))
    with_other_gates = _derivative_at(trial, torch.where(places, other_answer, answer))
    ups_by_ups = _relative_change(derivative, with_other_ups, ~is_gate)
    ups_by_gates = _relative_change(derivative, with_other_gates, ~is_gate)
    gates_by_ups = _relative_change(derivative, with_other_ups, is_gate)
    gates_by_gates = _relative_change(derivative, with_other_gates, is_gate)
    changes = (ups_by_gates, gates_by_ups, gates_by_gates)
    return ups_by_ups < ROUNDING and all(change > CHANGE for change in changes)


def _derivative_at(
    trial: _Trial | _ParameterTrial,
    answer: Tensor,
    *,
    direction: int = 0,
    last_token_alone: bool = False,
) -> Tensor:
    """Return the derivative of the module's output, along a random direction, by the layer's outputs (T, out)."""
    answer = answer.detach().requires_grad_()
    with torch.enable_grad():
        output = trial.run(answer)
    stream = torch.Generator().manual_seed(direction)
    along = move_beside(torch.randn(output.shape, generator=stream), output)
    if last_token_alone:
        along[:-1] = 0
    (derivative,) = torch.autograd.grad(output, answer, along)
    return derivative.reshape(-1, answer.shape[-1]).float().cpu()


def _relative_change(derivative: Tensor, other: Tensor, places: Tensor) -> float:
    derivative_norm = derivative[:, places].norm()
    if derivative_norm == 0:
        return 0.0 if other[:, places].norm() == 0 else float("inf")
    return float((derivative - other)[:, places].norm() / derivative_norm)


def _columns_where(places: Tensor) -> Columns:
    return tuple(torch.nonzero(places).flatten().tolist())
