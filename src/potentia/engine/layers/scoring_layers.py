"""Rows through the layers that lanes train by, written out by hand (see ``engine.layers.packed_pass``): forward alone.

The model's own attention takes the model's own mask; norms, rotation and gates are one operation each, a residual sum
rides on a norm, and the adapters of projections that read the same input are one more. Weights stay where they are
and are read when they are used, so nothing here can be out of date. Whether a model may be scored so is found by trying
(see ``trial``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from potentia.engine.layers.adapter_bank import bank_on
from potentia.engine.layers.packed_pass import AFTER, BEFORE, GROUPS, FusedLayer, FusedLayers
from potentia.engine.layers.row_layout import STRETCH, LaneRoute
from potentia.engine.models.device_layout import find_blocks, is_spread
from potentia.engine.models.split_model import computing
from potentia.engine.operations import TILE, compared_kernels, operations, ready
from potentia.errors import ModelError


class HandWritten:
    """The layers of a model, where all are of the kind that is written out."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.operations = operations(next(model.parameters()).device)
        self.blocks = FusedLayers(find_blocks(model), joined=False)
        self.forwards = {block.layer: _Forward(block, self) for block in self.blocks.blocks}
        self.route: LaneRoute | None = None  # of the pass under way
        self.ready = set[bool]()  # whether kernels without and with adapters are compiled
        self._angles: dict[int, tuple[Tensor, Tensor, Tensor]] = {}

    @classmethod
    def of(cls, model: nn.Module) -> HandWritten | None:
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
        bank = bank_on(self.model)
        owners = bank.routing.owners if bank is not None else None
        self.route = None
        if bank is not None and owners is not None:
            self.blocks.adapt(bank)
            each = owners.to(torch.int32).repeat_interleave(length // STRETCH)
            ends = (
                length
                * torch.arange(1, owners.shape[0] + 1, dtype=torch.int32, device=owners.device)[
                    :, None
                ]
            )
            starts = (
                ends
                - length
                + torch.arange(0, length, TILE, dtype=torch.int32, device=owners.device)
            )
            tiles = torch.stack([starts, ends.expand_as(starts)], dim=2).view(-1, 2)
            self.route = LaneRoute(bank, each, each, None, tiles)  # spans are gradients' affair
        self._angles.clear()
        with computing(self.forwards):
            yield

    @contextmanager
    def compared(self) -> Iterator[None]:
        """Compare kernels with the plain operations inside the block, in 16 bits."""
        own, first = self.operations, next(self.model.parameters())
        compared = compared_kernels(first.device, first.dtype)
        self.operations = compared or own
        try:
            yield
        finally:
            self.operations = own
        if compared is not None:
            compared.judge()

    @property
    def usable(self) -> bool:
        """Whether nobody has put a forward or a hook of theirs into the layers since."""
        return not any(block.altered for block in self.blocks.blocks)

    def angles(self, given: tuple[Tensor, Tensor], rows: int) -> tuple[Tensor, Tensor]:
        """Return cos and sin of every token (N, head), once a pass: layers of one kind are given the same."""
        if id(given[0]) not in self._angles:
            cos, sin = (part.expand(rows, -1, -1).reshape(-1, part.shape[-1]) for part in given)
            self._angles[id(given[0])] = cos, sin, given[0]  # held, so that no other takes its name
        return self._angles[id(given[0])][:2]


class _Forward:
    """The forward of a layer, set on the instance for as long as the form is active."""

    def __init__(self, block: FusedLayer, whole: HandWritten) -> None:
        self.block, self.whole = block, whole

    def __call__(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        *_: Any,
        position_embeddings: tuple[Tensor, Tensor],
        **__: Any,
    ) -> Tensor:
        if (adapted := self.whole.route is not None) not in self.whole.ready:
            self.whole.ready.add(adapted)
            kind = f"scoring-{hidden_states.dtype}-{self.block.head}-{adapted}"
            ready(
                self.whole.operations,
                kind,
                lambda: self._layer(hidden_states, attention_mask, position_embeddings),
            )
        return self._layer(hidden_states, attention_mask, position_embeddings)

    def _layer(
        self, hidden_states: Tensor, attention_mask: Tensor | None, angles: tuple[Tensor, Tensor]
    ) -> Tensor:
        block, do = self.block, self.whole.operations
        gains = block.gains
        rows, length, width = hidden_states.shape
        h = hidden_states.reshape(-1, width)
        x, _scale = do.norm(h, gains[BEFORE[0]])
        qkv = self._product(0, x)
        turned, _scales = block.norm_heads(do, qkv)
        do.rotate_(turned, block.heads + block.kept, block.head, *self.whole.angles(angles, rows))
        parts = block.queries_keys_values(turned, qkv)
        q, k, v = (part.view(rows, length, -1, block.head).transpose(1, 2) for part in parts)
        own = block.layer.self_attn
        out, _weights = sdpa_attention_forward(
            own, q, k, v, attention_mask, scaling=block.scale, is_causal=True
        )
        y, _scale = block.norm_branch(do, AFTER[0], self._product(1, out.reshape(h.shape[0], -1)))
        h, x, _scale = do.add_norm(h, y, gains[BEFORE[1]])
        act = do.gate(self._product(2, x), block.gelu)
        if AFTER[1] in gains:
            return (
                block.norm_branch(do, AFTER[1], self._product(3, act))[0]
                .add_(h)
                .view_as(hidden_states)
            )
        return self._product(3, act, onto=h).view_as(hidden_states)

    def _product(self, number: int, x: Tensor, *, onto: Tensor | None = None) -> Tensor:
        """Multiply by the weights of a group side by side, with its adapters; one layer's product may be a sum's."""
        parts = [self.block.parts[name] for name in GROUPS[number]]
        sizes = [part.weight.shape[0] for part in parts]
        y = x.new_empty(x.shape[0], sum(sizes))
        for part, into in zip(parts, torch.split(y, sizes, dim=1), strict=True):
            add = part.bias if onto is None else onto
            if add is None:
                torch.mm(x, part.weight.t(), out=into)
            else:
                torch.addmm(add, x, part.weight.t(), out=into)
        group = self.block.adapters[number]
        if self.whole.route is not None and group is not None:
            self.whole.operations.thin(x, y, group, self.whole.route)
        return y
