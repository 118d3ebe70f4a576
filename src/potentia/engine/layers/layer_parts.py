"""The parts of a decoder layer of the commonest kind, read from the model's own modules.

Such a layer adds attention and a gated feed-forward block, each on a root-mean-square norm: ::

    h₂ = h + W_o · attend(rotate(W_qkv · norm(h)))        h₃ = h₂ + W_d · (silu(g) ∘ u),  (g, u) = W_gu · norm(h₂)

Families differ in details, which are read here so that one way of computing serves them all:

* norms stand before the branches (Llama), before and after them (Gemma 3), or after them alone (OLMo 2 and 3);
* queries and keys may be normed, head by head (Qwen 3) or over the whole projection (OLMo 2 and 3);
* some layers do not rotate queries and keys (SmolLM 3), or rotate a part of each head only (Phi 4 mini);
* projections of the same input may be one matrix already (Phi 3 and 4), and keys may serve as values (Gemma 4);
* values may be normed, and what a layer returns multiplied (Gemma 4);
* a layer may read the keys and values that an earlier one of its kind made (Gemma 4's small sizes);
* gates open by silu or gelu, and attention may see a window.

What a layer does with per-layer inputs after its two branches (Gemma 4) is left to its own modules.

Whether a model's layers are of this kind is found by trying (``engine.proof``): an attribute's name proves nothing.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, IntEnum
from typing import Any, cast

import torch
from torch import Tensor, nn

from potentia.engine.layers.adapter_bank import AdapterBank, AdapterSite
from potentia.engine.layers.lane_layers import AdaptedLinear
from potentia.engine.layers.row_layout import AdapterGroup
from potentia.engine.operations import Gain, Operations


class ProjectionGroup(IntEnum):
    """Linear layers that read the same input and write side by side."""

    QUERIES_KEYS_VALUES = 0
    ATTENTION_OUTPUT = 1
    GATES = 2
    DOWN = 3


class NormPlace(Enum):
    """Where a norm stands in a layer."""

    BEFORE_ATTENTION = "before attention"
    QUERIES = "of queries"
    KEYS = "of keys"
    VALUES = "of values"
    AFTER_ATTENTION = "after attention"
    BEFORE_FEED_FORWARD = "before the feed-forward block"
    AFTER_FEED_FORWARD = "after the feed-forward block"


SharedKeys = tuple[Tensor, Tensor] | None  # keys and values (N, K, d) of another layer
HEAD_NORMS = (NormPlace.QUERIES, NormPlace.KEYS, NormPlace.VALUES)


class FusedLayer:
    """One layer: its weights, side by side where they read the same input, and where its adapters lie.

    Without ``joined`` the weights stay where they are, and there are no ``products``: scoring moves nothing that a
    captured pass may read.
    """

    def __init__(self, layer: Any, *, joined: bool = True) -> None:
        self.layer = layer
        self.projections = _find_projections(layer)
        self.norms = _find_norms(layer)
        self.per_layer_modules = _find_per_layer_modules(layer)
        attention = layer.self_attn
        self.keys_are_values = hasattr(attention, "v_proj") and attention.v_proj is None
        # the kind of layers that this one shares keys and values with: as the one that makes them, or as a reader
        self.shared_kind: str | None = getattr(attention, "layer_type", None)
        self.makes_shared_keys = bool(getattr(attention, "store_full_length_kv", False))
        self.reads_shared_keys = _reads_shared_keys(attention)
        self.head_width = int(attention.head_dim)
        self.query_heads, self.key_heads = self._count_heads()
        self._refuse_other_kinds()
        ones = self.projections[ProjectionGroup.DOWN][0].weight.new_ones(self.head_width)
        self.gains = {place: read_gain(norm, ones) for place, norm in self.norms.items()}
        self.argument_names = list(inspect.signature(type(layer).forward).parameters)[1:]
        self.scale = float(attention.scaling)
        self.window = _find_window(attention)
        self.rotates = bool(getattr(attention, "use_rope", True))
        self.opens_by_gelu = _is_gelu(_find_activation(layer.mlp))
        self.products: list[Tensor] = []
        if joined:
            self.products = [_join_weights(self.projections[group]) for group in ProjectionGroup]
        self.bias = self._join_biases()
        self.adapters: list[AdapterGroup | None] = [None] * len(ProjectionGroup)

    @property
    def rotated_heads(self) -> int:
        """The heads of queries and keys together."""
        return self.query_heads + self.key_heads

    @property
    def has_head_norms(self) -> bool:
        """Whether queries and keys are normed."""
        return NormPlace.QUERIES in self.norms

    @property
    def has_value_norms(self) -> bool:
        """Whether values are normed, too."""
        return NormPlace.VALUES in self.norms

    @property
    def is_altered(self) -> bool:
        """Whether somebody else's forward or hook is in place."""
        modules = [self.layer, self.layer.self_attn, self.layer.mlp, *self._parts()]
        return any(_is_altered(module) for module in modules)

    def _parts(self) -> list[nn.Module]:
        """Return the modules whose computation is written out."""
        parts: list[nn.Module] = [*self.norms.values(), *self.per_layer_modules]
        for layers in self.projections.values():
            parts += layers
        return parts

    def _count_heads(self) -> tuple[int, int]:
        """Return the number of query heads, and of key heads."""
        projections = self.projections[ProjectionGroup.QUERIES_KEYS_VALUES]
        widths = [projection.weight.shape[0] for projection in projections]
        if self.reads_shared_keys:
            return widths[0] // self.head_width, 0
        if len(widths) == 1:  # one matrix for all three
            key_heads = int(self.layer.self_attn.num_key_value_heads)
            return widths[0] // self.head_width - 2 * key_heads, key_heads
        return widths[0] // self.head_width, widths[1] // self.head_width

    def _refuse_other_kinds(self) -> None:
        """Refuse layers that have more to them than is written out here, as biases of gates."""
        read_parameters = sum(len(list(part.parameters())) for part in self._parts())
        has_more = len(list(self.layer.parameters())) > read_parameters
        softcap = getattr(self.layer.self_attn, "attn_logit_softcapping", None)
        if (
            has_more
            or softcap is not None
            or self.is_altered
            or not self._projections_are_plain()
            or not self._head_norms_fit()
        ):
            raise TypeError("a layer of another kind")

    def _projections_are_plain(self) -> bool:
        """Return whether all projections are linear, and those of queries, keys and values alone may have biases."""
        for group, layers in self.projections.items():
            if any(type(layer) is not nn.Linear for layer in layers):
                return False
            biased = [read_bias(layer) is not None for layer in layers]
            if any(biased) and (group != ProjectionGroup.QUERIES_KEYS_VALUES or not all(biased)):
                return False
        return True

    def _head_norms_fit(self) -> bool:
        """Return whether queries and keys have no norms, norms of heads, or norms of all their heads together."""
        if self.has_value_norms and not self.has_head_norms:
            return False
        if self.keys_are_values and not self.has_value_norms:
            return False  # rotated in place, keys would be no values any more
        norms = [self.norms[place] for place in HEAD_NORMS if place in self.norms]
        widths = [norm.weight.shape[0] for norm in norms if hasattr(norm, "weight")]
        if self.reads_shared_keys:
            return widths in ([], [self.head_width])
        projection_widths = [self.query_heads * self.head_width, self.key_heads * self.head_width]
        return widths in ([], [self.head_width] * 2, projection_widths)

    def _join_biases(self) -> Tensor | None:
        """Return the biases of queries, keys and values as one vector; None where they have none."""
        biases = []
        for projection in self.projections[ProjectionGroup.QUERIES_KEYS_VALUES]:
            bias = read_bias(projection)
            if bias is None:
                return None
            biases.append(bias.detach())
        return torch.cat(biases)

    def note_adapters(
        self, adapter_bank: AdapterBank, sites: Mapping[int, Sequence[AdapterSite]]
    ) -> None:
        """Note where the bank's adapters of this layer lie, given the sites of all layers by their modules' ids."""
        for group in ProjectionGroup:
            placed: list[tuple[AdapterSite, int]] = []
            column = 0
            for projection in self.projections[group]:
                for adapter_site in sites.get(id(projection), ()):
                    placed.append((adapter_site, column + _first_column(adapter_site)))
                column += projection.weight.shape[0]
            self.adapters[group] = (
                AdapterGroup(placed, adapter_bank.lora.r, adapter_bank.device) if placed else None
            )

    # ---- queries, keys and values -----------------------------------------------------------------

    def split_heads(
        self, turned: Tensor, qkv: Tensor, shared: SharedKeys = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """View queries and keys as heads (N, H, d), (N, K, d), and values (N, K, d): the joint product's, or normed.

        A layer that reads the keys and values of another takes the ``shared`` ones.
        """
        if shared is not None:
            return self._view_heads(turned), *shared
        queries, keys, normed_values = self._split_columns(turned)
        values = normed_values if self.has_value_norms else self._split_columns(qkv)[2]
        return self._view_heads(queries), self._view_heads(keys), self._view_heads(values)

    def _view_heads(self, columns: Tensor) -> Tensor:
        return columns.view(columns.shape[0], -1, self.head_width)

    def _split_columns(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the columns of queries, of keys and of values."""
        group_ends = [self.query_heads * self.head_width, self.rotated_heads * self.head_width]
        queries, keys, values = torch.tensor_split(qkv, group_ends, dim=1)
        if values.shape[1] == 0 and self.keys_are_values:
            return queries, keys, keys
        return queries, keys, values

    def norm_heads(self, operations: Operations, qkv: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return queries and keys normed, values too where they are, and factors; the product itself without norms."""
        if not self.has_head_norms:
            return qkv, []
        normed = self._new_turned(qkv)
        factors: list[Tensor] = []
        columns = zip(
            HEAD_NORMS, self._split_columns(qkv), self._split_columns(normed), strict=True
        )
        for place, raw, into in columns:
            if place in self.gains:
                factors.append(operations.norm(raw, self.gains[place], into)[1])
        return normed, factors

    def _new_turned(self, qkv: Tensor) -> Tensor:
        """Return room for what attention reads and its projection did not write."""
        heads = self.rotated_heads
        if self.has_value_norms:
            heads += self.key_heads
        return qkv.new_empty(qkv.shape[0], heads * self.head_width)

    def new_attention_gradient(self, qkv: Tensor) -> Tensor:
        """Return room for the gradients of queries, keys and values side by side, as attention reads them."""
        heads = self.rotated_heads + self.key_heads
        return qkv.new_empty(qkv.shape[0], heads * self.head_width)

    def backpropagate_head_norms(
        self, operations: Operations, gradient: Tensor, qkv: Tensor, factors: Sequence[Tensor]
    ) -> Tensor:
        """Return the gradient of the joint product, given that of queries, keys and values, which is written over."""
        columns = zip(
            HEAD_NORMS,
            self._split_columns(gradient),
            self._split_columns(qkv),
            factors,
            strict=False,
        )
        for place, part, raw, scale in columns:
            operations.norm_back(part, raw, self.gains[place], scale, None, part)
        if not self.keys_are_values:
            return gradient
        _, keys_gradient, values_gradient = self._split_columns(gradient)
        keys_gradient += values_gradient
        return gradient[:, : self.rotated_heads * self.head_width].contiguous()

    def rotate(
        self,
        operations: Operations,
        turned: Tensor,
        cos: Tensor,
        sin: Tensor,
        *,
        back: bool = False,
    ) -> None:
        """Turn queries and keys by their positions, or a gradient back by them, where this layer turns them."""
        if self.rotates:
            operations.rotate_(turned, self.rotated_heads, self.head_width, cos, sin, back=back)

    # ---- norms of branches ------------------------------------------------------------------------

    def norm_input(self, operations: Operations, hidden: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return what attention reads, and the norm's factors; the hidden states where no norm stands before it."""
        if NormPlace.BEFORE_ATTENTION not in self.gains:
            return hidden, None
        return operations.norm(hidden, self.gains[NormPlace.BEFORE_ATTENTION])

    def add_branch(
        self, operations: Operations, hidden: Tensor, branch: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the sum of hidden states and attention's branch, what the gates read, and the norm's factors."""
        if NormPlace.BEFORE_FEED_FORWARD in self.gains:
            return operations.add_norm(hidden, branch, self.gains[NormPlace.BEFORE_FEED_FORWARD])
        total = hidden + branch
        return total, total, None

    def backpropagate_input_norm(
        self,
        operations: Operations,
        place: NormPlace,
        gradient: Tensor,
        hidden: Tensor,
        factors: Tensor | None,
        residual: Tensor,
    ) -> Tensor:
        """Return the gradient before a norm at a branch's begin, with the gradient that went past the branch."""
        if factors is None:
            return gradient + residual
        return operations.norm_back(gradient, hidden, self.gains[place], factors, residual)

    def norm_branch(
        self, operations: Operations, place: NormPlace, branch: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Return a branch normed before it is added, and its factors; itself where it has no such norm."""
        if place not in self.gains:
            return branch, None
        return operations.norm(branch, self.gains[place])

    def norm_branch_back(
        self,
        operations: Operations,
        place: NormPlace,
        gradient: Tensor,
        branch: Tensor | None,
        factors: Tensor | None,
    ) -> Tensor:
        """Return the gradient before such a norm."""
        if branch is None or factors is None:
            return gradient
        return operations.norm_back(gradient, branch, self.gains[place], factors)

    # ---- after the branches -----------------------------------------------------------------------

    def read_argument(
        self, argument_name: str, arguments: Sequence[Any], options: Mapping[str, Any]
    ) -> Any:
        """Return what the layer's forward was called with by this name; None where it was not."""
        if argument_name in options:
            return options[argument_name]
        by_name = dict(zip(self.argument_names, arguments, strict=False))
        return by_name.get(argument_name)

    def finish(self, output: Tensor, per_layer_input: Tensor | None) -> Tensor:
        """Return what the layer returns: the sum of its branches with its per-layer input, times its factor.

        The per-layer input (Gemma 4) is an embedding of each token for this layer alone: gated by the output, projected
        to its width and normed, it is one more branch. The factor is ``layer_scalar``, where the layer has one.
        """
        if self.per_layer_modules:
            layer = self.layer
            opened = layer.act_fn(layer.per_layer_input_gate(output))
            branch = layer.per_layer_projection(opened * per_layer_input)
            output = output + layer.post_per_layer_input_norm(branch)
        if hasattr(self.layer, "layer_scalar"):
            output = output * self.layer.layer_scalar
        return output

    # ---- memory -----------------------------------------------------------------------------------

    @property
    def activation_bytes(self) -> int:
        """The bytes that a token's activations take until its gradient comes."""
        down_weight = self.projections[ProjectionGroup.DOWN][0].weight
        width, inner_width = down_weight.shape
        heads = 2 * self.rotated_heads
        if self.has_head_norms:
            heads += self.rotated_heads
        if self.has_value_norms:
            heads += self.key_heads
        if self.keys_are_values:
            heads -= self.key_heads
        # hidden states before and between the branches, and what each norm reads or writes beside them
        branch_norms = sum(1 for place in self.gains if place not in HEAD_NORMS)
        numbers = (2 + branch_norms) * width + heads * self.head_width + 2 * inner_width
        float32_numbers = self.query_heads + 2  # log-sums of attention and factors of norms
        if (
            self.per_layer_modules
        ):  # the sum before them, the gate four times, and a norm's input in float32
            numbers += width + 4 * int(self.layer.hidden_size_per_layer_input)
            float32_numbers += width
        return down_weight.element_size() * numbers + 4 * float32_numbers


# ---- reading a layer's modules --------------------------------------------------------------------


def _find_projections(layer: Any) -> dict[ProjectionGroup, tuple[nn.Linear, ...]]:
    """Return the linear layers of each group, in the order of their columns."""
    attention = layer.self_attn
    mlp = layer.mlp
    queries_keys_values: tuple[nn.Linear, ...]
    gates: tuple[nn.Linear, ...]
    if hasattr(attention, "qkv_proj"):
        queries_keys_values = (attention.qkv_proj,)
    else:
        projections = [attention.q_proj]
        if not _reads_shared_keys(attention):
            projections += [attention.k_proj, attention.v_proj]
        queries_keys_values = tuple(layer for layer in projections if layer is not None)
    if hasattr(mlp, "gate_up_proj"):
        gates = (mlp.gate_up_proj,)
    else:
        gates = (mlp.gate_proj, mlp.up_proj)
    return {
        ProjectionGroup.QUERIES_KEYS_VALUES: queries_keys_values,
        ProjectionGroup.ATTENTION_OUTPUT: (attention.o_proj,),
        ProjectionGroup.GATES: gates,
        ProjectionGroup.DOWN: (mlp.down_proj,),
    }


def _reads_shared_keys(attention: Any) -> bool:
    """Return whether attention has no keys and values of its own, but reads those of an earlier layer."""
    return bool(getattr(attention, "is_kv_shared_layer", False))


def _first_column(adapter_site: AdapterSite) -> int:
    """Return the first output of its layer that an adapter adds to; its outputs lie side by side."""
    if adapter_site.columns is None:
        return 0
    first = adapter_site.columns[0]
    if adapter_site.columns != tuple(range(first, first + adapter_site.fan_out)):
        raise NotImplementedError(
            f"layer {adapter_site.name} has projections that are not side by side"
        )
    return first


def read_bias(projection: nn.Linear) -> Tensor | None:
    """Return a linear layer's bias, or None: torch declares that there always is one."""
    return cast("Tensor | None", projection.bias)


def _find_norms(layer: Any) -> dict[NormPlace, Any]:
    """Return the norms of a layer by their places.

    ``post_attention_layernorm`` stands after attention where the layer also has a ``post_feedforward_layernorm``, and
    before the feed-forward block elsewhere.
    """
    norms: dict[NormPlace, Any] = {
        NormPlace.BEFORE_ATTENTION: getattr(layer, "input_layernorm", None)
    }
    if hasattr(layer, "post_feedforward_layernorm"):
        norms[NormPlace.AFTER_ATTENTION] = layer.post_attention_layernorm
        norms[NormPlace.AFTER_FEED_FORWARD] = layer.post_feedforward_layernorm
        norms[NormPlace.BEFORE_FEED_FORWARD] = getattr(layer, "pre_feedforward_layernorm", None)
    else:
        norms[NormPlace.BEFORE_FEED_FORWARD] = layer.post_attention_layernorm
    norms[NormPlace.QUERIES] = getattr(layer.self_attn, "q_norm", None)
    norms[NormPlace.KEYS] = getattr(layer.self_attn, "k_norm", None)
    norms[NormPlace.VALUES] = getattr(layer.self_attn, "v_norm", None)
    return {place: norm for place, norm in norms.items() if norm is not None}


def _find_per_layer_modules(layer: Any) -> list[nn.Module]:
    """Return the modules that add a layer's own input of each token, where it has one."""
    if not getattr(layer, "hidden_size_per_layer_input", 0):
        return []
    return [
        layer.per_layer_input_gate,
        layer.per_layer_projection,
        layer.post_per_layer_input_norm,
    ]


def _find_window(attention: Any) -> int | None:
    """Return how many tokens attention sees: some layers know of a window themselves, some ask the model."""
    config = getattr(attention, "config", None)
    of_model: int | None = getattr(config, "sliding_window", None)
    window: int | None = getattr(attention, "sliding_window", of_model)
    return window


def _find_activation(mlp: Any) -> Callable[[Tensor], Tensor]:
    """Return the function that opens a feed-forward block's gates."""
    activation: Callable[[Tensor], Tensor] | None = getattr(mlp, "act_fn", None)
    if activation is None:
        activation = mlp.activation_fn
    return activation


@torch.no_grad()
def read_gain(module: nn.Module, ones: Tensor) -> Gain:
    """Return how a root-mean-square norm multiplies, by running its code in float32; one without weights by ``ones``.

    Some models keep the gain less one, and add the one in float32: in 16 bits the sum would lose its last digits.
    """
    weight = getattr(module, "weight", ones)
    assert isinstance(weight, Tensor)
    epsilon = float(getattr(module, "variance_epsilon", getattr(module, "eps", 0.0)))
    weight_in_float32 = nn.Parameter(weight.detach().float(), requires_grad=False)
    norm_in_float32 = copy.copy(module)
    if module._parameters:
        norm_in_float32.__dict__["_parameters"] = {"weight": weight_in_float32}
    stream = torch.Generator().manual_seed(0)
    x = torch.randn(4, weight_in_float32.shape[0], generator=stream).to(weight_in_float32.device)
    normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon)
    output = norm_in_float32(x)
    for added in (0.0, 1.0):
        if torch.allclose(output, normed * (weight_in_float32 + added), rtol=1e-4, atol=1e-5):
            return Gain(weight, epsilon, added)
    raise TypeError("no root-mean-square norm")


@torch.no_grad()
def _is_gelu(activation: Callable[[Tensor], Tensor]) -> bool:
    """Return whether a gate opens by gelu (its form by tanh) and not by silu; refuse what is neither."""
    x = torch.linspace(-6, 6, 97)
    output = activation(x)
    if torch.allclose(output, nn.functional.silu(x), atol=1e-6):
        return False
    if torch.allclose(output, nn.functional.gelu(x, approximate="tanh"), atol=1e-6):
        return True
    raise TypeError("a gate of another kind")


def _is_altered(module: nn.Module) -> bool:
    has_expected_forward = isinstance(module.__dict__.get("forward"), AdaptedLinear | None)
    return (
        not has_expected_forward or bool(module._forward_hooks) or bool(module._forward_pre_hooks)
    )


def _join_weights(projections: Sequence[nn.Linear]) -> Tensor:
    """Return the weights of layers as one matrix, and let the layers be views of it: nothing is kept twice."""
    if len(projections) == 1:
        return projections[0].weight.detach()
    joined = torch.cat([projection.weight.detach() for projection in projections])
    begin = 0
    for projection in projections:
        end_column = begin + projection.weight.shape[0]
        projection.weight.data = joined[begin:end_column]
        begin = end_column
    return joined
