"""Rows through fused layers, forward alone (see ``engine.layers.fused_layers``): for scoring.

The model's own attention takes the model's own mask; norms, rotation and gates are one operation each, a residual sum
rides on a norm, and the adapters of projections that read the same input are one more. Weights stay where they are
and are read when they are used, so nothing here can be out of date. Whether a model may be scored so is found by trying
(see ``engine.proof.scoring_check``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from potentia.engine.layers.adapter_bank import bank_on
from potentia.engine.layers.fused_layers import FusedLayers
from potentia.engine.layers.layer_parts import FusedLayer, NormPlace, ProjectionGroup, read_bias
from potentia.engine.layers.row_layout import STRETCH, LaneRoute
from potentia.engine.models.device_layout import find_blocks, is_spread
from potentia.engine.models.split_model import computing
from potentia.engine.operations import TILE, compared_kernels, compile_kernels, operations
from potentia.errors import ModelError

Angles = tuple[Tensor, Tensor]  # cosines and sines of the tokens' positions


class FusedScoringLayers:
    """The layers of a model, where all are of the kind that is written out."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.operations = operations(next(model.parameters()).device)
        self.blocks = FusedLayers(find_blocks(model), joined=False)
        self.forwards = {
            block.layer: _FusedScoringForward(block, self) for block in self.blocks.blocks
        }
        self.route: LaneRoute | None = None  # of the pass under way
        self.compiled: set[bool] = set()  # whether kernels without and with adapters are compiled
        self._angles: dict[int, tuple[Tensor, Tensor, Tensor]] = {}

    @classmethod
    def find(cls, model: nn.Module) -> FusedScoringLayers | None:
        """Look for layers of this kind; None where some layer is of another, or attention is not torch's."""
        config: Any = getattr(model.config, "text_config", None) or model.config
        if is_spread(model) or getattr(config, "_attn_implementation", None) != "sdpa":
            return None
        try:
            return cls(model)
        except (AttributeError, TypeError, ValueError, RuntimeError, ModelError):
            return None

    @contextmanager
    def active(self, length: int) -> Iterator[None]:
        """Let the layers compute in this form inside the block, for rows of ``length`` tokens."""
        self.route = self._find_route(length)
        self._angles.clear()
        with computing(self.forwards):
            yield

    def _find_route(self, length: int) -> LaneRoute | None:
        """Return whose adapters the rows of a pass go through; None where they go through none."""
        adapter_bank = bank_on(self.model)
        if adapter_bank is None or adapter_bank.routing.owners is None:
            return None
        self.blocks.note_adapters(adapter_bank)
        row_owners = adapter_bank.routing.owners
        rows = row_owners.shape[0]
        device = row_owners.device
        owners = row_owners.to(torch.int32).repeat_interleave(length // STRETCH)
        row_ends = length * torch.arange(1, rows + 1, dtype=torch.int32, device=device)[:, None]
        tile_offsets = torch.arange(0, length, TILE, dtype=torch.int32, device=device)
        tile_starts = row_ends - length + tile_offsets
        tiles = torch.stack([tile_starts, row_ends.expand_as(tile_starts)], dim=2).view(-1, 2)
        no_spans = owners  # spans are for gradients
        return LaneRoute(adapter_bank, owners, no_spans, keys=None, tiles=tiles)

    @contextmanager
    def compared(self) -> Iterator[None]:
        """Compare kernels with the plain operations inside the block, in 16 bits."""
        own_operations = self.operations
        weight = next(self.model.parameters())
        compared = compared_kernels(weight.device, weight.dtype)
        self.operations = compared or own_operations
        try:
            yield
        finally:
            self.operations = own_operations
        if compared is not None:
            compared.check_distances()

    @property
    def is_unaltered(self) -> bool:
        """Whether nobody has put a forward or a hook of theirs into the layers since."""
        return not any(block.is_altered for block in self.blocks.blocks)

    def flat_angles(self, angles: Angles, rows: int) -> Angles:
        """Return cos and sin of every token (N, head), once a pass: layers of one kind are given the same."""
        given_cos, given_sin = angles
        if id(given_cos) not in self._angles:
            cos = given_cos.expand(rows, -1, -1).reshape(-1, given_cos.shape[-1])
            sin = given_sin.expand(rows, -1, -1).reshape(-1, given_sin.shape[-1])
            # the key is held, so that no other tensor takes its id
            self._angles[id(given_cos)] = cos, sin, given_cos
        cos, sin, _ = self._angles[id(given_cos)]
        return cos, sin


class _FusedScoringForward:
    """The forward of a layer, set on the instance for as long as fused layers are active."""

    def __init__(self, block: FusedLayer, layers: FusedScoringLayers) -> None:
        self.block = block
        self.layers = layers

    def __call__(
        self,
        hidden_states: Tensor,
        *arguments: Any,
        position_embeddings: Angles,
        **options: Any,
    ) -> Tensor:
        all_arguments = (hidden_states, *arguments)
        attention_mask = self.block.read_argument("attention_mask", all_arguments, options)
        per_layer_input = self.block.read_argument("per_layer_input", all_arguments, options)
        shared_by_kind = self.block.read_argument("shared_kv_states", all_arguments, options)
        has_adapters = self.layers.route is not None
        if has_adapters not in self.layers.compiled:
            self.layers.compiled.add(has_adapters)
            kernel_kind = f"scoring-{hidden_states.dtype}-{self.block.head_width}-{has_adapters}"
            compile_kernels(
                self.layers.operations,
                kernel_kind,
                lambda: self._compute(
                    hidden_states, attention_mask, position_embeddings, shared_by_kind
                ),
            )
        output = self._compute(hidden_states, attention_mask, position_embeddings, shared_by_kind)
        return self.block.finish(output, per_layer_input)

    def _compute(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None,
        angles: Angles,
        shared_by_kind: Any,
    ) -> Tensor:
        block = self.block
        operations = self.layers.operations
        rows, length, width = hidden_states.shape
        hidden = hidden_states.reshape(-1, width)
        attention_input, _ = block.norm_input(operations, hidden)
        qkv = self._multiply(ProjectionGroup.QUERIES_KEYS_VALUES, attention_input)
        turned, _ = block.norm_heads(operations, qkv)
        cos, sin = self.layers.flat_angles(angles, rows)
        block.rotate(operations, turned, cos, sin)
        shared = shared_by_kind[block.shared_kind] if block.reads_shared_keys else None
        parts = block.split_heads(turned, qkv, shared)
        if block.makes_shared_keys:
            shared_by_kind[block.shared_kind] = parts[1:]
        heads: list[Tensor] = []
        for part in parts:
            heads.append(part.view(rows, length, -1, block.head_width).transpose(1, 2))
        queries, keys, values = heads
        # Imported here: it loads torch._dynamo and Triton, which nothing else needs.
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        attended, _ = sdpa_attention_forward(
            block.layer.self_attn,
            queries,
            keys,
            values,
            attention_mask,
            scaling=block.scale,
            is_causal=True,
        )
        answers = attended.reshape(hidden.shape[0], -1)
        branch = self._multiply(ProjectionGroup.ATTENTION_OUTPUT, answers)
        normed_branch, _ = block.norm_branch(operations, NormPlace.AFTER_ATTENTION, branch)
        middle, gates_input, _ = block.add_branch(operations, hidden, normed_branch)
        gated = operations.gate(
            self._multiply(ProjectionGroup.GATES, gates_input), block.opens_by_gelu
        )
        if NormPlace.AFTER_FEED_FORWARD not in block.gains:
            return self._multiply(ProjectionGroup.DOWN, gated, onto=middle).view_as(hidden_states)
        down_branch = self._multiply(ProjectionGroup.DOWN, gated)
        normed_down, _ = block.norm_branch(operations, NormPlace.AFTER_FEED_FORWARD, down_branch)
        return normed_down.add_(middle).view_as(hidden_states)

    def _multiply(self, group: ProjectionGroup, x: Tensor, *, onto: Tensor | None = None) -> Tensor:
        """Multiply by the weights of a group side by side, with its adapters; one layer's product may be a sum's."""
        projections = self.block.projections[group]
        sizes = [projection.weight.shape[0] for projection in projections]
        y = x.new_empty(x.shape[0], sum(sizes))
        for projection, columns in zip(projections, torch.split(y, sizes, dim=1), strict=True):
            added = read_bias(projection) if onto is None else onto
            if added is None:
                torch.mm(x, projection.weight.t(), out=columns)
            else:
                torch.addmm(added, x, projection.weight.t(), out=columns)
        adapters = self.block.adapters[group]
        if self.layers.route is not None and adapters is not None:
            self.layers.operations.add_adapter_outputs(x, y, adapters, self.layers.route)
        return y
