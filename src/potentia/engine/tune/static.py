"""One pass of lanes over a bucket of static sizes: forward, backward, gradients added, losses added; no value is read.

The pass touches nothing but tensors at fixed addresses, so a GPU can capture it once and replay it (``captured``); the
same lines run uncaptured on any device. A model's layers run in the form of ``block`` where they are of that kind; else
the model's own layers run, with attention kept within rows and adapters applied to stretches of the long row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from potentia.engine.operations import operations
from potentia.engine.split import LEAST_PIECE, SplitModel
from potentia.engine.tune.adapters import AdapterBank, Site
from potentia.engine.tune.block import Blocks, StaticRun
from potentia.engine.tune.layout import Bucket, LongRow, Route, StaticInputs, ThinGroup
from potentia.engine.tune.passes import recomputing, usual_attention

_NAME = "potentia_rows"
_PIECE_BYTES = 1 << 30  # of logits at a time


class StaticPass:
    """A model as static passes see it; ``blocks`` is None where its own layers run."""

    def __init__(self, split: SplitModel, bank: AdapterBank, blocks: Blocks | None) -> None:
        self.split, self.bank, self.blocks = split, bank, blocks
        self.operations = operations(bank.device)
        self.losses = torch.zeros(bank.slots + 1, device=bank.device)  # of the step under way, by slot
        plain = [site for site in bank.sites if not site.experts]
        self._groups = {site.index: ThinGroup([(site, 0)], bank.lora.r, bank.device) for site in plain}
        parts = (getattr(module, "config", None) for module in split.model.modules())
        self._configs = list({id(config): config for config in parts if config is not None}.values())

    def __call__(self, inputs: StaticInputs, *, recompute: bool = False) -> None:
        """Add a laid-out pass's gradients to the bank's and its losses to the slots'."""
        dropped = self.bank.lora.dropout > 0
        route = Route(self.bank, inputs.owners, inputs.spans, inputs.keys if dropped else None)
        run = StaticRun(self.operations, inputs, route)
        with ExitStack() as stack:
            stack.enter_context(usual_attention(self.bank.device))
            # in this thread, whose streams and handles are known: another would have to be woken for every pass
            stack.enter_context(torch.autograd.set_multithreading_enabled(False))
            # also where the layers' own attention is not called: the model makes no mask of tokens × tokens for it
            stack.enter_context(_within_rows(self._configs, run))
            if self.blocks is not None:
                stack.enter_context(self.blocks.active(run))
            else:
                stack.enter_context(self._stretches(run))
            stack.enter_context(recomputing(self.split.model, recompute))  # of whichever form the layers have
            hidden = self.split.hidden(inputs.ids.long().unsqueeze(0), inputs.places.long().unsqueeze(0))
            flat = hidden.detach().reshape(-1, hidden.shape[-1])
            positions = inputs.positions.long()
            values, slopes = self._head(flat.index_select(0, positions), inputs)
            gradient = torch.zeros_like(flat).index_copy_(0, positions, slopes)
            torch.autograd.backward(hidden, gradient.view_as(hidden))
            self.losses.index_add_(0, inputs.target_owners, values * inputs.weights)

    def _head(self, states: Tensor, inputs: StaticInputs) -> tuple[Tensor, Tensor]:
        """Return the cross-entropies at the targets, and the gradient of their weighted sum at the hidden states."""
        piece = max(LEAST_PIECE, _PIECE_BYTES // (self.split.vocabulary * states.element_size()))
        values, slopes = [], []
        for begin in range(0, states.shape[0], piece):
            span = slice(begin, begin + piece)
            with torch.enable_grad():
                part = states[span].detach().requires_grad_()
                logits = self.split.logits(part)
            value, slope = self.operations.loss(logits.detach(), inputs.targets[span], inputs.weights[span])
            torch.autograd.backward(logits, slope)
            assert part.grad is not None
            values.append(value)
            slopes.append(part.grad)
        return torch.cat(values), torch.cat(slopes)

    @contextmanager
    def _stretches(self, run: StaticRun) -> Iterator[None]:
        """Let adapted layers treat their input as the long row's stretches."""
        routing = self.bank.routing

        def linear(x: Tensor, site: Site, weight: Tensor, bias: Tensor | None) -> Tensor:
            flat = x.reshape(-1, x.shape[-1])
            y: Tensor = _ThinLinear.apply(flat, self.bank.anchor, weight, bias, self._groups[site.index], run)  # type: ignore[no-untyped-call]
            return y.view(*x.shape[:-1], y.shape[-1])

        routing.long_row = linear
        try:
            yield
        finally:
            routing.long_row = None


class _ThinLinear(torch.autograd.Function):
    """A linear layer's product on the long row, with its lanes' adapters."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, anchor: Tensor, weight: Tensor, bias: Tensor | None, group: ThinGroup, run: StaticRun
    ) -> Tensor:
        y = x @ weight if bias is None else torch.addmm(bias, x, weight)
        ctx.save_for_backward(x, run.operations.thin(x, y, group, run.route))
        ctx.held = weight, group, run
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, inner = ctx.saved_tensors
        weight, group, run = ctx.held
        dy = grads[0].contiguous()
        dx = dy @ weight.t() if ctx.needs_input_grad[0] else None
        run.operations.thin_back(x, dy, dx, inner, group, run.route)
        return dx, None, None, None, None, None


class _Attention(torch.autograd.Function):
    """Attention within rows for models whose own layers run."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, run: StaticRun, scale: float, window: int | None) -> Tensor:
        out, lse = run.operations.attend(q, k, v, run.inputs, scale, window)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.held = run, scale, window
        return out  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        run, scale, window = ctx.held
        into = tuple(torch.empty(part.shape, dtype=part.dtype, device=part.device) for part in (q, k, v))
        run.operations.attend_back(grads[0].contiguous(), q, k, v, out, lse, run.inputs, scale, window, into)
        return *into, None, None, None


@contextmanager
def _within_rows(configs: Sequence[Any], run: StaticRun) -> Iterator[None]:
    """Let the model attend within the rows of the pass inside the block."""
    from transformers import AttentionInterface

    def attend(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
    ) -> tuple[Tensor, None]:
        if options.get("softcap") is not None or options.get("s_aux") is not None:
            raise NotImplementedError("attention with soft caps or sinks")
        q, k, v = (part.squeeze(0).transpose(0, 1) for part in (query, key, value))  # (N, H, d)
        q, k, v = (part if part.stride(2) == 1 else part.contiguous() for part in (q, k, v))
        scale = options.get("scaling")
        out: Tensor = _Attention.apply(  # type: ignore[no-untyped-call]
            q, k, v, run, q.shape[2] ** -0.5 if scale is None else scale, options.get("sliding_window")
        )
        return out.unsqueeze(0), None

    AttentionInterface.register(_NAME, attend)
    before = [(config, getattr(config, "_attn_implementation", None)) for config in configs]
    try:
        for config, _ in before:
            config._attn_implementation = _NAME
        yield
    finally:
        for config, name in before:
            config._attn_implementation = name


def place(row: LongRow, bank: AdapterBank, *, few: bool) -> StaticInputs:
    """Put a long row into a bucket of its own on the device."""
    bucket = Bucket.holding(len(row.ids), len(row.targets), bank.slots, few=few)
    inputs = StaticInputs.on(bank.device, bucket)
    buffer = np.empty(bucket.size, np.int32)
    row.fill(bucket, buffer)
    inputs.buffer.copy_(torch.from_numpy(buffer))
    return inputs
