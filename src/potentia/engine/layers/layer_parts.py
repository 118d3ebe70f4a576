"""The parts of a decoder layer of the commonest kind, read from the model's own modules.

Such a layer adds attention and a gated feed-forward block, each on a root-mean-square norm: ::

    h₂ = h + W_o · attend(rotate(W_qkv · norm(h)))        h₃ = h₂ + W_d · (silu(g) ∘ u),  (g, u) = W_gu · norm(h₂)

Families differ in details, which are read here so that one way of computing serves them all:

* norms stand before the branches (Llama), before and after them (Gemma 3), or after them alone (OLMo 2 and 3);
* queries and keys may be normed, head by head (Qwen 3) or over the whole projection (OLMo 2 and 3);
* some layers do not rotate queries and keys (SmolLM 3), or rotate a part of each head only (Phi 4 mini);
* projections of the same input may be one matrix already (Phi 3 and 4);
* gates open by silu or gelu, and attention may see a window.

Whether a model's layers are of this kind is found by trying (``engine.proof``): an attribute's name proves nothing.
"""

from __future__ import annotations

import copy
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
    AFTER_ATTENTION = "after attention"
    BEFORE_GATES = "before the gates"
    AFTER_GATES = "after the gates"


HEAD_NORMS = (NormPlace.QUERIES, NormPlace.KEYS)


class FusedLayer:
    """One layer: its weights, side by side where they read the same input, and where its adapters lie.

    Without ``joined`` the weights stay where they are, and there are no ``products``: scoring moves nothing that a
    captured pass may read.
    """

    def __init__(self, layer: Any, *, joined: bool = True) -> None:
        self.layer = layer
        self.projections = _find_projections(layer)
        self.norms = _find_norms(layer)
        attention = layer.self_attn
        self.head_width = int(attention.head_dim)
        self.query_heads, self.key_heads = self._count_heads()
        self._refuse_other_kinds()
        self.gains = {place: read_gain(norm) for place, norm in self.norms.items()}
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
    def is_altered(self) -> bool:
        """Whether somebody else's forward or hook is in place."""
        modules = [self.layer, self.layer.self_attn, self.layer.mlp, *self._parts()]
        return any(_is_altered(module) for module in modules)

    def _parts(self) -> list[nn.Module]:
        """Return the modules whose computation is written out."""
        parts: list[nn.Module] = list(self.norms.values())
        for layers in self.projections.values():
            parts += layers
        return parts

    def _count_heads(self) -> tuple[int, int]:
        """Return the number of query heads, and of key heads."""
        projections = self.projections[ProjectionGroup.QUERIES_KEYS_VALUES]
        widths = [projection.weight.shape[0] for projection in projections]
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
        widths = [self.norms[place].weight.shape[0] for place in HEAD_NORMS if place in self.norms]
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

    def note_adapters(self, bank: AdapterBank, sites: Mapping[int, AdapterSite]) -> None:
        """Note where the bank's adapters of this layer lie, given the sites of all layers by their modules' ids."""
        for group in ProjectionGroup:
            placed: list[tuple[AdapterSite, int]] = []
            column = 0
            for projection in self.projections[group]:
                if id(projection) in sites:
                    placed.append((sites[id(projection)], column))
                column += projection.weight.shape[0]
            self.adapters[group] = (
                AdapterGroup(placed, bank.lora.r, bank.device) if placed else None
            )

    # ---- queries, keys and values -----------------------------------------------------------------

    def split_heads(self, turned: Tensor, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """View queries and keys as heads (N, H, d), (N, K, d), and the joint product's values (N, K, d)."""
        queries, keys = self._split_columns(turned)[:2]
        values = self._split_columns(qkv)[2]
        return self._view_heads(queries), self._view_heads(keys), self._view_heads(values)

    def _view_heads(self, columns: Tensor) -> Tensor:
        return columns.view(columns.shape[0], -1, self.head_width)

    def _split_columns(self, qkv: Tensor) -> tuple[Tensor, ...]:
        """Return the columns of queries, of keys and of values."""
        ends = [self.query_heads * self.head_width, self.rotated_heads * self.head_width]
        return torch.tensor_split(qkv, ends, dim=1)

    def norm_heads(self, do: Operations, qkv: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return queries and keys normed, and their factors; the product itself where they have no norms."""
        if not self.has_head_norms:
            return qkv, []
        normed = qkv.new_empty(qkv.shape[0], self.rotated_heads * self.head_width)
        factors: list[Tensor] = []
        columns = zip(
            HEAD_NORMS, self._split_columns(qkv), self._split_columns(normed), strict=False
        )
        for place, raw, into in columns:  # values have no norm
            factors.append(do.norm(raw, self.gains[place], into)[1])
        return normed, factors

    def backpropagate_head_norms(
        self, do: Operations, gradient: Tensor, qkv: Tensor, factors: Sequence[Tensor]
    ) -> None:
        """Replace the gradient of queries and keys by the one before their norms."""
        columns = zip(
            HEAD_NORMS,
            self._split_columns(gradient),
            self._split_columns(qkv),
            factors,
            strict=False,
        )
        for place, part, raw, scale in columns:
            do.norm_back(part, raw, self.gains[place], scale, None, part)

    def rotate(
        self, do: Operations, turned: Tensor, cos: Tensor, sin: Tensor, *, back: bool = False
    ) -> None:
        """Turn queries and keys by their positions, or a gradient back by them, where this layer turns them."""
        if self.rotates:
            do.rotate_(turned, self.rotated_heads, self.head_width, cos, sin, back=back)

    # ---- norms of branches ------------------------------------------------------------------------

    def norm_input(self, do: Operations, hidden: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return what attention reads, and the norm's factors; the hidden states where no norm stands before it."""
        if NormPlace.BEFORE_ATTENTION not in self.gains:
            return hidden, None
        return do.norm(hidden, self.gains[NormPlace.BEFORE_ATTENTION])

    def add_branch(
        self, do: Operations, hidden: Tensor, branch: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the sum of hidden states and attention's branch, what the gates read, and the norm's factors."""
        if NormPlace.BEFORE_GATES in self.gains:
            return do.add_norm(hidden, branch, self.gains[NormPlace.BEFORE_GATES])
        total = hidden + branch
        return total, total, None

    def backpropagate_input_norm(
        self,
        do: Operations,
        place: NormPlace,
        gradient: Tensor,
        hidden: Tensor,
        factors: Tensor | None,
        residual: Tensor,
    ) -> Tensor:
        """Return the gradient before a norm at a branch's begin, with the gradient that went past the branch."""
        if factors is None:
            return gradient + residual
        return do.norm_back(gradient, hidden, self.gains[place], factors, residual)

    def norm_branch(
        self, do: Operations, place: NormPlace, branch: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Return a branch normed before it is added, and its factors; itself where it has no such norm."""
        if place not in self.gains:
            return branch, None
        return do.norm(branch, self.gains[place])

    def norm_branch_back(
        self,
        do: Operations,
        place: NormPlace,
        gradient: Tensor,
        branch: Tensor | None,
        factors: Tensor | None,
    ) -> Tensor:
        """Return the gradient before such a norm."""
        if branch is None or factors is None:
            return gradient
        return do.norm_back(gradient, branch, self.gains[place], factors)

    # ---- memory -----------------------------------------------------------------------------------

    @property
    def activation_bytes(self) -> int:
        """The bytes that a token's activations take until its gradient comes."""
        down = self.projections[ProjectionGroup.DOWN][0].weight
        width, inner_width = down.shape
        heads = 2 * self.rotated_heads
        if self.has_head_norms:
            heads += self.rotated_heads
        # hidden states before and between the branches, and what each norm reads or writes beside them
        branch_norms = sum(1 for place in self.gains if place not in HEAD_NORMS)
        numbers = (2 + branch_norms) * width + heads * self.head_width + 2 * inner_width
        float32_numbers = self.query_heads + 2  # log-sums of attention and factors of norms
        return down.element_size() * numbers + 4 * float32_numbers


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
        queries_keys_values = (attention.q_proj, attention.k_proj, attention.v_proj)
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


def read_bias(projection: nn.Linear) -> Tensor | None:
    """Return a linear layer's bias, or None: torch declares that there always is one."""
    return cast("Tensor | None", projection.bias)


def _find_norms(layer: Any) -> dict[NormPlace, Any]:
    """Return the norms of a layer by their places.

    The name ``post_attention_layernorm`` means after attention where the feed-forward block has a norm after it,
    and before the gates elsewhere.
    """
    norms: dict[NormPlace, Any] = {
        NormPlace.BEFORE_ATTENTION: getattr(layer, "input_layernorm", None)
    }
    if hasattr(layer, "post_feedforward_layernorm"):
        norms[NormPlace.AFTER_ATTENTION] = layer.post_attention_layernorm
        norms[NormPlace.AFTER_GATES] = layer.post_feedforward_layernorm
        norms[NormPlace.BEFORE_GATES] = getattr(layer, "pre_feedforward_layernorm", None)
    else:
        norms[NormPlace.BEFORE_GATES] = layer.post_attention_layernorm
    norms[NormPlace.QUERIES] = getattr(layer.self_attn, "q_norm", None)
    norms[NormPlace.KEYS] = getattr(layer.self_attn, "k_norm", None)
    return {place: norm for place, norm in norms.items() if norm is not None}


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
def read_gain(module: nn.Module) -> Gain:
    """Return how a root-mean-square norm multiplies, by running its code in float32.

    Some models keep the gain less one, and add the one in float32: in 16 bits the sum would lose its last digits.
    """
    weight = module.weight
    assert isinstance(weight, Tensor)
    epsilon = float(getattr(module, "variance_epsilon", getattr(module, "eps", 0.0)))
    weight_in_float32 = nn.Parameter(weight.detach().float(), requires_grad=False)
    norm_in_float32 = copy.copy(module)
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
        end = begin + projection.weight.shape[0]
        projection.weight.data = joined[begin:end]
        begin = end
    return joined
