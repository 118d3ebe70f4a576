"""One pass of lanes over a bucket of static sizes: forward, backward, gradients added, losses added; no value is read.

The pass touches nothing but tensors at fixed addresses, so a GPU can capture it once and replay it (``engine.steps``);
the same lines run uncaptured on any device. The model's own layers run, with attention kept within rows and adapters
applied to stretches of the long row; or, where they are of the commonest kind, the form that is written out in
``fused_layers``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from potentia.engine.layers.adapter_bank import AdapterBank, AdapterSite
from potentia.engine.layers.fused_layers import FusedLayers
from potentia.engine.layers.recomputation import recomputed_activations, standard_attention
from potentia.engine.layers.row_layout import (
    AdapterGroup,
    LaneRoute,
    LossTokens,
    PackedInputs,
    PackedRun,
)
from potentia.engine.layers.row_mixers import find_mixer_modules, mixing_within_rows
from potentia.engine.models.split_model import (
    Attend,
    AttentionSettings,
    SplitModel,
    attending,
    configs_of,
)
from potentia.engine.operations import operations, ready


class PackedPass:
    """A model as static passes see it; ``blocks`` is None where its own layers run."""

    def __init__(self, split: SplitModel, bank: AdapterBank, blocks: FusedLayers | None) -> None:
        self.split = split
        self.bank = bank
        self.blocks = blocks
        self.operations = operations(bank.device)
        # of the step under way, by slot
        self.losses = torch.zeros(bank.slots + 1, device=bank.device)
        self._groups: dict[int, AdapterGroup] = {}
        for site in bank.sites:
            if not site.experts:
                self._groups[site.index] = AdapterGroup([(site, 0)], bank.lora.r, bank.device)
        self._configs = configs_of(split.model)
        self._mixer_modules = find_mixer_modules(split.model)
        # the operations that the first pass launches are compiled side by side before it
        self._is_compiled = False

    @property
    def mixes_tokens(self) -> bool:
        """Whether layers mix tokens in order: then a pass has to know its rows, and cannot be captured."""
        return bool(self._mixer_modules)

    def __call__(self, inputs: PackedInputs, *, recompute: bool = False) -> None:
        """Add a laid-out pass's gradients to the bank's and its losses to the slots'."""
        if not self._is_compiled:
            self._compile(inputs)
        self._run(inputs, recompute=recompute)

    def _compile(self, inputs: PackedInputs) -> None:
        """Compile the kernels of a pass side by side, where the operations are kernels."""
        lora = self.bank.lora
        head_widths = []
        if self.blocks is not None:
            head_widths = [self.blocks.blocks[0].head_width]
        kind = f"{self.bank.work.dtype}-{head_widths}-{lora.r}-{lora.dropout > 0}"
        ready(self.operations, kind, lambda: self._run(inputs, recompute=False))
        self.losses.zero_()  # what kernels leave unwritten is anything
        self._is_compiled = True

    def _run(self, inputs: PackedInputs, *, recompute: bool) -> None:
        run = self._make_run(inputs)
        with (
            standard_attention(self.bank.device),
            # in this thread, whose streams and handles are known: another would have to be woken for every pass
            torch.autograd.set_multithreading_enabled(False),
            # also where the layers' own attention is not called: the model makes no mask of tokens × tokens for it
            attending(self._configs, attend_within_rows(run)),
            self._layers_active(run),
            mixing_within_rows(self._mixer_modules, inputs.rows),
            recomputed_activations(self.split.model, recompute),
        ):
            ids = inputs.ids.long().unsqueeze(0)
            places = inputs.places.long().unsqueeze(0)
            hidden = self.split.hidden(ids, places)
            losses = self.split.backward(
                hidden, inputs.positions.long(), inputs.targets, inputs.weights
            )
            self.losses.index_add_(0, inputs.target_owners, losses * inputs.weights)

    def _make_run(self, inputs: PackedInputs) -> PackedRun:
        """Return what every layer of a pass reads."""
        dropout_keys = inputs.keys if self.bank.lora.dropout > 0 else None
        route = LaneRoute(
            self.bank, inputs.owners, inputs.spans, keys=dropout_keys, tiles=inputs.tiles
        )
        picked = None
        if self.blocks is not None:
            picked = LossTokens.of(inputs, route)
        return PackedRun(self.operations, inputs, route, picked)

    def _layers_active(self, run: PackedRun) -> Any:
        """Return the context in which the layers compute: in the fused form, or their own."""
        if self.blocks is not None:
            return self.blocks.active(run)
        return self._adapting_stretches(run)

    @contextmanager
    def _adapting_stretches(self, run: PackedRun) -> Iterator[None]:
        """Let adapted layers treat their input as the long row's stretches."""
        routing = self.bank.routing

        def multiply(x: Tensor, site: AdapterSite, weight: Tensor, bias: Tensor | None) -> Tensor:
            flat = x.reshape(-1, x.shape[-1])
            y: Tensor = _PackedLinear.apply(  # type: ignore[no-untyped-call]
                flat, self.bank.anchor, weight, bias, self._groups[site.index], run
            )
            return y.view(*x.shape[:-1], y.shape[-1])

        routing.packed_linear = multiply
        try:
            yield
        finally:
            routing.packed_linear = None


class _PackedLinear(torch.autograd.Function):
    """A linear layer's product on the long row, with its lanes' adapters."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        anchor: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        group: AdapterGroup,
        run: PackedRun,
    ) -> Tensor:
        y = x @ weight if bias is None else torch.addmm(bias, x, weight)
        inner = run.operations.add_adapter_outputs(x, y, group, run.route)
        ctx.save_for_backward(x, inner)
        ctx.held = weight, group, run
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, inner = ctx.saved_tensors
        weight, group, run = ctx.held
        output_gradient = gradients[0].contiguous()
        input_gradient = output_gradient @ weight.t() if ctx.needs_input_grad[0] else None
        do = run.operations
        inner_gradient = do.backpropagate_adapters(
            output_gradient, input_gradient, group, run.route
        )
        do.sum_adapter_gradients(x, output_gradient, inner, inner_gradient, group, run.route)
        return input_gradient, None, None, None, None, None


class _PackedAttention(torch.autograd.Function):
    """Attention within rows for models whose own layers run."""

    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        run: PackedRun,
        settings: AttentionSettings,
    ) -> Tensor:
        attended, log_sums = run.operations.attend(
            queries, keys, values, run.inputs, settings.scale, settings.window
        )
        if settings.sinks is not None:
            attended, log_sums = _join_sinks(attended, log_sums, settings.sinks)
        ctx.save_for_backward(queries, keys, values, attended, log_sums)
        ctx.held = run, settings
        return attended

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        queries, keys, values, attended, log_sums = ctx.saved_tensors
        run, settings = ctx.held
        into = (_new_like(queries), _new_like(keys), _new_like(values))
        run.operations.attend_back(
            gradients[0].contiguous(),
            queries,
            keys,
            values,
            attended,
            log_sums,
            run.inputs,
            settings.scale,
            settings.window,
            into,
        )
        return *into, None, None


def _join_sinks(attended: Tensor, log_sums: Tensor, sinks: Tensor) -> tuple[Tensor, Tensor]:
    """Return answers (N, H, d) and log-sums (H, N) after each head's sink took its share of every softmax."""
    with_sinks = torch.logaddexp(log_sums, sinks.detach().float()[:, None])
    left_for_tokens = torch.exp(log_sums - with_sinks).t()[:, :, None]
    return (attended * left_for_tokens).to(attended.dtype), with_sinks


def _new_like(tensor: Tensor) -> Tensor:
    """Return a contiguous tensor of the same shape, whatever its strides."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)


def attend_within_rows(run: PackedRun) -> Attend:
    """Return attention within the rows of a pass, as ``attending`` takes it."""

    def attend(
        queries: Tensor, keys: Tensor, values: Tensor, settings: AttentionSettings
    ) -> Tensor:
        attended: Tensor = _PackedAttention.apply(  # type: ignore[no-untyped-call]
            _flatten_row(queries), _flatten_row(keys), _flatten_row(values), run, settings
        )
        return attended.unsqueeze(0)

    return attend


def _flatten_row(heads: Tensor) -> Tensor:
    """Return the heads of the one long row (1, N, H, d) as (N, H, d), with the numbers of a head side by side."""
    flat = heads.squeeze(0)
    return flat if flat.stride(2) == 1 else flat.contiguous()
