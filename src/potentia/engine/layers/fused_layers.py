"""Decoder layers written out as one unit, forward and backward by hand, for frozen weights (see ``layer_parts``).

As one unit a layer needs eight large products and a dozen passes over memory, about a third of what its parts need one
by one: projections of the same input are one product, residual sums ride on norms, gradients of gates overwrite the
gates. In the last layer, what comes after attention is computed at the tokens that a loss looks at, a tenth of all
where losses are of answers.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from potentia.engine.layers.adapter_bank import AdapterBank, AdapterSite, group_by_layer
from potentia.engine.layers.layer_parts import (
    HEAD_NORMS,
    FusedLayer,
    NormPlace,
    ProjectionGroup,
    SharedKeys,
)
from potentia.engine.layers.row_layout import PackedRun
from potentia.engine.models.device_layout import find_blocks
from potentia.engine.models.split_model import computing
from potentia.errors import ModelError


class FusedLayers:
    """All layers of a model, where all are of this kind."""

    def __init__(self, layers: Sequence[nn.Module], *, joined: bool = True) -> None:
        self.blocks = [FusedLayer(layer, joined=joined) for layer in layers]
        self._adapted: weakref.ref[AdapterBank] | None = None

    @classmethod
    def of(cls, model: nn.Module) -> FusedLayers | None:
        """Look for layers that have the attributes of this kind; None where some layer has not."""
        with suppress(AttributeError, TypeError, ValueError, RuntimeError, ModelError):
            return cls(find_blocks(model))
        return None

    @property
    def activation_bytes(self) -> int:
        """The bytes that a token's activations take until its gradient comes."""
        return sum(block.activation_bytes for block in self.blocks)

    def note_adapters(self, adapter_bank: AdapterBank) -> None:
        """Note where a bank's adapters lie, once: tables sent during a pass would stall it, and spoil its capture."""
        if self._adapted is not None and self._adapted() is adapter_bank:
            return
        sites: dict[int, list[AdapterSite]] = {}
        for layer_name, layer_sites in group_by_layer(adapter_bank.sites).items():
            sites[id(adapter_bank.model.get_submodule(layer_name))] = layer_sites
        for block in self.blocks:
            block.note_adapters(adapter_bank, sites)
        self._adapted = weakref.ref(adapter_bank)

    @contextmanager
    def active(self, packed_run: PackedRun) -> Iterator[None]:
        """Let the layers compute in this form inside the block."""
        self.note_adapters(packed_run.route.bank)
        run_of_all_tokens = replace(packed_run, picked=None)
        forwards: dict[nn.Module, _FusedTrainingForward] = {}
        for block in self.blocks[:-1]:
            forwards[block.layer] = _FusedTrainingForward(block, run_of_all_tokens)
        last = self.blocks[-1]
        forwards[last.layer] = _FusedTrainingForward(last, packed_run)
        with computing(forwards):
            yield


class _FusedTrainingForward:
    """The forward of a layer, set on the instance for as long as the form is active."""

    def __init__(self, block: FusedLayer, packed_run: PackedRun) -> None:
        self.block = block
        self.run = packed_run

    def __call__(
        self,
        hidden_states: Tensor,
        *arguments: Any,
        position_embeddings: tuple[Tensor, Tensor],
        **options: Any,
    ) -> Tensor:
        cos, sin = (part.reshape(-1, part.shape[-1]) for part in position_embeddings)
        hidden = hidden_states.reshape(-1, hidden_states.shape[-1])
        block = self.block
        all_arguments = (hidden_states, *arguments)
        shared_by_kind = block.read_argument("shared_kv_states", all_arguments, options)
        shared_keys, shared_values = None, None
        if block.reads_shared_keys:
            shared_keys, shared_values = shared_by_kind[block.shared_kind]
        outputs = _LayerFunction.apply(  # type: ignore[no-untyped-call]
            hidden,
            self.run.route.bank.anchor,
            cos,
            sin,
            block,
            self.run,
            shared_keys,
            shared_values,
        )
        if block.makes_shared_keys:
            output, *keys_and_values = outputs
            shared_by_kind[block.shared_kind] = tuple(keys_and_values)
        else:
            output = outputs
        per_layer_input = block.read_argument("per_layer_input", all_arguments, options)
        return block.finish(output.view_as(hidden_states), per_layer_input)


@dataclass
class _Activations:
    """What the backward pass of a layer reads; None where it reads nothing of the kind."""

    hidden: Tensor
    input_factors: Tensor | None  # of the norm before attention
    attention_input: Tensor | None
    qkv: Tensor
    turned: Tensor  # queries and keys, normed and rotated
    attended: Tensor
    log_sums: Tensor
    attention_branch: Tensor | None  # before its norm
    attention_branch_factors: Tensor | None
    middle: Tensor  # hidden states between attention and the gates
    middle_factors: Tensor | None
    gates_input: Tensor | None
    gates: Tensor
    down_branch: Tensor | None  # before its norm
    down_branch_factors: Tensor | None
    cos: Tensor
    sin: Tensor
    # the adapters' inner values, by group
    inner_qkv: Tensor | None
    inner_output: Tensor | None
    inner_gates: Tensor | None
    inner_down: Tensor | None
    # factors of the norms of queries, keys and values
    query_factors: Tensor | None
    key_factors: Tensor | None
    value_factors: Tensor | None
    # of an earlier layer, where this one reads them
    shared_keys: Tensor | None
    shared_values: Tensor | None

    @property
    def shared(self) -> SharedKeys:
        """The keys and values of an earlier layer."""
        if self.shared_keys is None or self.shared_values is None:
            return None
        return self.shared_keys, self.shared_values

    def save(self, ctx: Any) -> None:
        """Hand the tensors to autograd, which keeps them until the backward pass."""
        ctx.save_for_backward(*(getattr(self, field.name) for field in fields(self)))

    @classmethod
    def saved_by(cls, ctx: Any) -> _Activations:
        """Take the tensors back."""
        return cls(*ctx.saved_tensors)

    @property
    def head_factors(self) -> list[Tensor]:
        """The factors of the norms of queries, keys and values, where they have norms."""
        all_factors = (self.query_factors, self.key_factors, self.value_factors)
        return [factors for factors in all_factors if factors is not None]


class _LayerFunction(torch.autograd.Function):
    """One layer on the tokens of a long row, with its lanes' adapters."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        anchor: Tensor,
        cos: Tensor,
        sin: Tensor,
        block: FusedLayer,
        packed_run: PackedRun,
        shared_keys: Tensor | None,
        shared_values: Tensor | None,
    ) -> Tensor | tuple[Tensor, ...]:
        operations = packed_run.operations
        inner: list[Tensor | None] = [None] * len(ProjectionGroup)

        def add_adapters(group: ProjectionGroup, x: Tensor, into: Tensor) -> None:
            adapters = block.adapters[group]
            if adapters is not None:
                inner[group] = operations.add_adapter_outputs(
                    x, into, adapters, packed_run.route_of(group)
                )

        # attention
        attention_input, input_factors = block.norm_input(operations, hidden)
        qkv = _multiply(block, ProjectionGroup.QUERIES_KEYS_VALUES, attention_input, block.bias)
        add_adapters(ProjectionGroup.QUERIES_KEYS_VALUES, attention_input, qkv)
        turned, head_factors = block.norm_heads(operations, qkv)
        block.rotate(operations, turned, cos, sin)
        shared = None
        if shared_keys is not None and shared_values is not None:
            shared = shared_keys, shared_values
        queries, keys, values = block.split_heads(turned, qkv, shared)
        attended, log_sums = operations.attend(
            queries, keys, values, packed_run.inputs, block.scale, block.window
        )
        answers = attended.view(attended.shape[0], -1)
        residual = hidden
        if packed_run.picked:
            answers, residual = packed_run.picked.gather(answers, residual)
        attention_branch = _multiply(block, ProjectionGroup.ATTENTION_OUTPUT, answers)
        add_adapters(ProjectionGroup.ATTENTION_OUTPUT, answers, attention_branch)
        normed_branch, attention_branch_factors = block.norm_branch(
            operations, NormPlace.AFTER_ATTENTION, attention_branch
        )

        # the feed-forward block
        middle, gates_input, middle_factors = block.add_branch(operations, residual, normed_branch)
        gates = _multiply(block, ProjectionGroup.GATES, gates_input)
        add_adapters(ProjectionGroup.GATES, gates_input, gates)
        gated = operations.gate(gates, block.opens_by_gelu)
        norms_down_branch = NormPlace.AFTER_FEED_FORWARD in block.gains
        onto = None if norms_down_branch else middle
        down_branch = _multiply(block, ProjectionGroup.DOWN, gated, onto)
        add_adapters(ProjectionGroup.DOWN, gated, down_branch)
        normed_down, down_branch_factors = block.norm_branch(
            operations, NormPlace.AFTER_FEED_FORWARD, down_branch
        )

        reads_attention_input = inner[ProjectionGroup.QUERIES_KEYS_VALUES] is not None
        reads_gates_input = inner[ProjectionGroup.GATES] is not None
        missing_factors = [None] * (len(HEAD_NORMS) - len(head_factors))
        all_factors: list[Tensor | None] = [*head_factors, *missing_factors]
        query_factors, key_factors, value_factors = all_factors
        activations = _Activations(
            hidden=hidden,
            input_factors=input_factors,
            attention_input=attention_input if reads_attention_input else None,
            qkv=qkv,
            turned=turned,
            attended=attended,
            log_sums=log_sums,
            attention_branch=None if attention_branch_factors is None else attention_branch,
            attention_branch_factors=attention_branch_factors,
            middle=middle,
            middle_factors=middle_factors,
            gates_input=gates_input if reads_gates_input else None,
            gates=gates,
            down_branch=down_branch if norms_down_branch else None,
            down_branch_factors=down_branch_factors,
            cos=cos,
            sin=sin,
            inner_qkv=inner[ProjectionGroup.QUERIES_KEYS_VALUES],
            inner_output=inner[ProjectionGroup.ATTENTION_OUTPUT],
            inner_gates=inner[ProjectionGroup.GATES],
            inner_down=inner[ProjectionGroup.DOWN],
            query_factors=query_factors,
            key_factors=key_factors,
            value_factors=value_factors,
            shared_keys=shared_keys,
            shared_values=shared_values,
        )
        activations.save(ctx)
        ctx.held = block, packed_run
        output = normed_down.add_(middle) if norms_down_branch else down_branch
        if packed_run.picked:
            output = packed_run.picked.spread(hidden, output)[0]
        return (output, keys, values) if block.makes_shared_keys else output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        block, packed_run = ctx.held
        output_gradient, *gradients_of_readers = gradients
        backward_pass = _BackwardPass(
            block, packed_run, _Activations.saved_by(ctx), gradients_of_readers
        )
        hidden_gradient = backward_pass.run_back(
            output_gradient.contiguous(), needs_input_gradient=ctx.needs_input_grad[0]
        )
        return hidden_gradient, None, None, None, None, None, *backward_pass.shared_gradients


def new_like(tensor: Tensor) -> Tensor:
    """Return a contiguous tensor of the same shape, whatever its strides."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)


def _multiply(
    block: FusedLayer, group: ProjectionGroup, x: Tensor, added: Tensor | None = None
) -> Tensor:
    """Return the product of a group's weights, plus a bias or a residual where one is given."""
    weights = block.products[group].t()
    if added is None:
        return x @ weights
    return torch.addmm(added, x, weights)


class _BackwardPass:
    """One layer's way back: from the gradient of its output to that of its input, adapters' gradients on the way."""

    def __init__(
        self,
        block: FusedLayer,
        packed_run: PackedRun,
        activations: _Activations,
        gradients_of_readers: Sequence[Tensor],
    ) -> None:
        self.block = block
        self.run = packed_run
        self.activations = activations
        self.operations = packed_run.operations
        # of keys and values, from the layers that read them
        self.gradients_of_readers = gradients_of_readers
        # of the keys and values that this layer reads
        self.shared_gradients: tuple[Tensor | None, Tensor | None] = None, None

    def run_back(self, output_gradient: Tensor, *, needs_input_gradient: bool) -> Tensor | None:
        """Return the gradient of the hidden states that the layer read; None where nobody needs it."""
        picked = self.run.picked
        saved = self.activations
        answers = saved.attended.view(saved.attended.shape[0], -1)
        if picked:
            output_gradient, answers = picked.gather(output_gradient, answers)
        middle_gradient = self._back_through_gates(output_gradient)
        answers_gradient = self._back_through_output(middle_gradient, answers)
        if picked:
            middle_gradient, answers_gradient = picked.spread(
                saved.hidden, middle_gradient, answers_gradient
            )
        qkv_gradient = self._back_through_attention(answers_gradient)
        return self._back_through_input(qkv_gradient, middle_gradient, needs_input_gradient)

    def _back_through_gates(self, output_gradient: Tensor) -> Tensor:
        """Return the gradient of the hidden states between attention and the gates."""
        block, saved, operations = self.block, self.activations, self.operations
        branch_gradient = block.norm_branch_back(
            operations,
            NormPlace.AFTER_FEED_FORWARD,
            output_gradient,
            saved.down_branch,
            saved.down_branch_factors,
        )
        gated_gradient = branch_gradient @ block.products[ProjectionGroup.DOWN]
        inner_gradient = self._back_through_adapters(
            ProjectionGroup.DOWN, branch_gradient, gated_gradient
        )
        # the gates' gradient takes the place of the gates, and the gated product that of its gradient
        has_adapters = saved.inner_down is not None
        gates = saved.gates
        operations.gate_back_(gates, gated_gradient, block.opens_by_gelu, has_adapters)
        gated = gated_gradient
        self._add_adapter_gradients(
            ProjectionGroup.DOWN, gated, branch_gradient, saved.inner_down, inner_gradient
        )
        gates_gradient = gates
        gates_input_gradient = gates_gradient @ block.products[ProjectionGroup.GATES]
        inner_gradient = self._back_through_adapters(
            ProjectionGroup.GATES, gates_gradient, gates_input_gradient
        )
        self._add_adapter_gradients(
            ProjectionGroup.GATES,
            saved.gates_input,
            gates_gradient,
            saved.inner_gates,
            inner_gradient,
        )
        return block.backpropagate_input_norm(
            operations,
            NormPlace.BEFORE_FEED_FORWARD,
            gates_input_gradient,
            saved.middle,
            saved.middle_factors,
            output_gradient,
        )

    def _back_through_output(self, middle_gradient: Tensor, answers: Tensor) -> Tensor:
        """Return the gradient of attention's answers."""
        block, saved, operations = self.block, self.activations, self.operations
        branch_gradient = block.norm_branch_back(
            operations,
            NormPlace.AFTER_ATTENTION,
            middle_gradient,
            saved.attention_branch,
            saved.attention_branch_factors,
        )
        answers_gradient = branch_gradient @ block.products[ProjectionGroup.ATTENTION_OUTPUT]
        inner_gradient = self._back_through_adapters(
            ProjectionGroup.ATTENTION_OUTPUT, branch_gradient, answers_gradient
        )
        self._add_adapter_gradients(
            ProjectionGroup.ATTENTION_OUTPUT,
            answers,
            branch_gradient,
            saved.inner_output,
            inner_gradient,
        )
        return answers_gradient

    def _back_through_attention(self, answers_gradient: Tensor) -> Tensor:
        """Return the gradient of queries, keys and values as they came out of their projection."""
        block, saved, operations = self.block, self.activations, self.operations
        queries, keys, values = block.split_heads(saved.turned, saved.qkv, saved.shared)
        gradient = block.new_attention_gradient(saved.qkv)
        shared_gradients: SharedKeys = None
        if saved.shared is not None:
            shared_gradients = new_like(keys), new_like(values)
            self.shared_gradients = shared_gradients
        into = block.split_heads(gradient, gradient, shared_gradients)
        operations.attend_back(
            answers_gradient.view_as(saved.attended),
            queries,
            keys,
            values,
            saved.attended,
            saved.log_sums,
            self.run.inputs,
            block.scale,
            block.window,
            into,
        )
        for own_gradient, gradient_of_readers in zip(
            into[1:], self.gradients_of_readers, strict=False
        ):
            own_gradient += gradient_of_readers
        block.rotate(operations, gradient, saved.cos, saved.sin, back=True)
        return block.backpropagate_head_norms(operations, gradient, saved.qkv, saved.head_factors)

    def _back_through_input(
        self, qkv_gradient: Tensor, middle_gradient: Tensor, needs_input_gradient: bool
    ) -> Tensor | None:
        """Return the gradient of the layer's input."""
        block, saved, operations = self.block, self.activations, self.operations
        group = ProjectionGroup.QUERIES_KEYS_VALUES
        input_gradient = qkv_gradient @ block.products[group] if needs_input_gradient else None
        inner_gradient = self._back_through_adapters(group, qkv_gradient, input_gradient)
        self._add_adapter_gradients(
            group, saved.attention_input, qkv_gradient, saved.inner_qkv, inner_gradient
        )
        if input_gradient is None:
            return None
        return block.backpropagate_input_norm(
            operations,
            NormPlace.BEFORE_ATTENTION,
            input_gradient,
            saved.hidden,
            saved.input_factors,
            middle_gradient,
        )

    def _back_through_adapters(
        self, group: ProjectionGroup, output_gradient: Tensor, input_gradient: Tensor | None
    ) -> Tensor | None:
        """Add the adapters' share to the input's gradient; return the gradient of their inner values."""
        adapters = self.block.adapters[group]
        if adapters is None:
            return None
        route = self.run.route_of(group)
        return self.operations.backpropagate_adapters(
            output_gradient, input_gradient, adapters, route
        )

    def _add_adapter_gradients(
        self,
        group: ProjectionGroup,
        x: Tensor | None,
        output_gradient: Tensor,
        inner: Tensor | None,
        inner_gradient: Tensor | None,
    ) -> None:
        """Add the adapters' own gradients to their lanes'."""
        adapters = self.block.adapters[group]
        if adapters is None:
            return
        assert x is not None
        assert inner is not None
        assert inner_gradient is not None
        route = self.run.route_of(group)
        self.operations.sum_adapter_gradients(
            x, output_gradient, inner, inner_gradient, adapters, route
        )
