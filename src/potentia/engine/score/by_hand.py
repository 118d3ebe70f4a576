"""Rows through the layers that lanes train by, written out by hand (see ``engine.tune.static``): forward alone.

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

from potentia.engine.operations import operations
from potentia.engine.split import computing
from potentia.engine.spread import find_blocks, is_spread
from potentia.engine.tune.adapters import installed_on
from potentia.engine.tune.layout import STRETCH, Route
from potentia.engine.tune.static import GROUPS, Block, Blocks
from potentia.errors import ModelError


class HandWritten:
    """The layers of a model, where all are of the kind that is written out."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.operations = operations(next(model.parameters()).device)
        self.blocks = Blocks(find_blocks(model), joined=False)
        self.forwards = {block.layer: _Forward(block, self) for block in self.blocks.blocks}
        self.route: Route | None = None  # of the pass under way
        self._angles: tuple[Tensor, tuple[Tensor, Tensor]] | None = None

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
        bank = installed_on(self.model)
        owners = bank.routing.owners if bank is not None else None
        self.route = None
        if bank is not None and owners is not None:
            self.blocks.adapt(bank)
            each = owners.to(torch.int32).repeat_interleave(length // STRETCH)
            self.route = Route(bank, each, each, None)  # spans are gradients' affair
        self._angles = None
        with computing(self.forwards):
            yield

    @property
    def usable(self) -> bool:
        """Whether nobody has put a forward or a hook of theirs into the layers since."""
        bank = installed_on(self.model)
        plain = bank is None or bank.lora.kind != "dora"
        return plain and not any(block.altered for block in self.blocks.blocks)

    def angles(self, given: tuple[Tensor, Tensor], rows: int) -> tuple[Tensor, Tensor]:
        """Return cos and sin of every token (N, head), once a pass: all layers are given the same."""
        if self._angles is None or self._angles[0] is not given[0]:
            cos, sin = (part.expand(rows, -1, -1).reshape(-1, part.shape[-1]) for part in given)
            self._angles = given[0], (cos, sin)
        return self._angles[1]


class _Forward:
    """The forward of a layer, set on the instance for as long as the form is active."""

    def __init__(self, block: Block, whole: HandWritten) -> None:
        layer = block.layer
        self.block, self.whole = block, whole
        self.norms = layer.input_layernorm, layer.post_attention_layernorm
        for norm, (gain, _) in zip(self.norms, block.gains, strict=True):
            if gain.data_ptr() != norm.weight.data_ptr():
                raise TypeError("a norm multiplies with something else than its weight")

    def __call__(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        *_: Any,
        position_embeddings: tuple[Tensor, Tensor],
        **__: Any,
    ) -> Tensor:
        block, do = self.block, self.whole.operations
        one, two = self.norms
        (_gain, eps), (_gain, eps2) = block.gains
        rows, length, width = hidden_states.shape
        h = hidden_states.reshape(-1, width)
        x, _scale = do.norm(h, one.weight, eps)
        qkv = self._product(0, x)
        do.rotate_(qkv, block.heads + block.kept, block.head, *self.whole.angles(position_embeddings, rows))
        parts = block.queries_keys_values(qkv)
        q, k, v = (part.view(rows, length, -1, block.head).transpose(1, 2) for part in parts)
        own = block.layer.self_attn
        out, _weights = sdpa_attention_forward(own, q, k, v, attention_mask, scaling=block.scale, is_causal=True)
        y = self._product(1, out.reshape(h.shape[0], -1))
        h, x, _scale = do.add_norm(h, y, two.weight, eps2)
        return self._product(3, do.gate(self._product(2, x)), onto=h).view_as(hidden_states)

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
