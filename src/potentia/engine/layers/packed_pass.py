"""One pass of lanes over a bucket of static sizes: forward, backward, gradients added, losses added; no value is read.

The pass touches nothing but tensors at fixed addresses, so a GPU can capture it once and replay it (``engine.steps``);
the same lines run uncaptured on any device. The model's own layers run, with attention kept within rows and adapters
applied to stretches of the long row; or, where they are of the commonest kind, the form that is written out in
``fused_layers``.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from potentia.engine.layers.adapter_bank import AdapterBank, AdapterSite, group_by_layer
from potentia.engine.layers.fused_layers import FusedLayers, new_like
from potentia.engine.layers.packed_experts import compute_experts, multiplies_without_host
from potentia.engine.layers.recomputation import recomputed_activations, standard_attention
from potentia.engine.layers.row_layout import (
    AdapterGroup,
    LaneRoute,
    LossTokens,
    PackedInputs,
    PackedRun,
)
from potentia.engine.layers.row_mixers import Mixers, mixing_within_rows
from potentia.engine.models.split_model import (
    Attend,
    AttentionSettings,
    SplitModel,
    attending,
    configs_of,
)
from potentia.engine.operations import compile_kernels, operations


class PackedPass:
    """A model as static passes see it; ``blocks`` is None where its own layers run."""

    def __init__(
        self, split: SplitModel, adapter_bank: AdapterBank, blocks: FusedLayers | None
    ) -> None:
        self.split = split
        self.bank = adapter_bank
        self.blocks = blocks
        self.operations = operations(adapter_bank.device)
        # of the step under way, by slot
        self.losses = torch.zeros(adapter_bank.slots + 1, device=adapter_bank.device)
        self._groups: dict[str, AdapterGroup] = {}
        for layer_name, sites in group_by_layer(adapter_bank.sites).items():
            if not sites[0].experts:
                self._groups[layer_name] = AdapterGroup.of_layer(
                    sites, adapter_bank.lora.r, adapter_bank.device
                )
        self._configs = configs_of(split.model)
        self._mixers = Mixers.of_model(split.model)
        # the operations that the first pass launches are compiled side by side before it
        self._is_compiled = False

    @property
    def scans_tokens(self) -> bool:
        """Whether layers scan tokens in order: then a pass has to know its rows."""
        return self._mixers.has_scan

    @property
    def can_be_captured(self) -> bool:
        """Whether a GPU can replay a pass: no layer scans tokens in order, and grouped products need no host."""
        return not self.scans_tokens and multiplies_without_host(self.bank)

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
            head_widths = sorted({block.head_width for block in self.blocks.blocks})
        kernel_kind = f"{self.bank.work.dtype}-{head_widths}-{lora.r}-{lora.dropout > 0}"
        compile_kernels(self.operations, kernel_kind, lambda: self._run(inputs, recompute=False))
        # what kernels left unwritten is anything, and experts added it up; a step's first pass finds zeros
        self.losses.zero_()
        self.bank.grads.zero_()
        self._is_compiled = True

    def _run(self, inputs: PackedInputs, *, recompute: bool) -> None:
        packed_run = self._make_run(inputs)
        with (
            standard_attention(self.bank.device),
            # in this thread, whose streams and handles are known: another would have to be woken for every pass
            torch.autograd.set_multithreading_enabled(False),
            # also where the layers' own attention is not called: the model makes no mask of tokens × tokens for it
            attending(self._configs, attend_within_rows(packed_run)),
            self._layers_active(packed_run),
            mixing_within_rows(self._mixers, packed_run),
            recomputed_activations(self.split.model, recompute),
        ):
            token_ids = inputs.ids.long().unsqueeze(0)
            position_ids = inputs.position_ids.long().unsqueeze(0)
            hidden = self.split.hidden(token_ids, position_ids)
            losses = self.split.backward(
                hidden, inputs.prediction_indices.long(), inputs.targets, inputs.weights
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

    def _layers_active(self, packed_run: PackedRun) -> Any:
        """Return the context in which the layers compute: in the fused form, or their own."""
        contexts = ExitStack()
        contexts.enter_context(self._adapting_stretches(packed_run))
        if self.blocks is not None:
            contexts.enter_context(self.blocks.active(packed_run))
        return contexts

    @contextmanager
    def _adapting_stretches(self, packed_run: PackedRun) -> Iterator[None]:
        """Let adapted layers, also those beside fused ones, treat their input as the long row's stretches."""
        routing = self.bank.routing

        def multiply(
            x: Tensor, sites: Sequence[AdapterSite], weight: Tensor, bias: Tensor | None
        ) -> Tensor:
            flat = x.reshape(-1, x.shape[-1])
            y: Tensor = _PackedLinear.apply(  # type: ignore[no-untyped-call]
                flat, self.bank.anchor, weight, bias, self._groups[sites[0].name], packed_run
            )
            return y.view(*x.shape[:-1], y.shape[-1])

        routing.packed_linear = multiply
        routing.packed_experts = functools.partial(compute_experts, packed_run)
        try:
            yield
        finally:
            routing.packed_linear = None
            routing.packed_experts = None


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
        packed_run: PackedRun,
    ) -> Tensor:
        y = x @ weight if bias is None else torch.addmm(bias, x, weight)
        if group.output_order is None:
            inner = packed_run.operations.add_adapter_outputs(x, y, group, packed_run.route)
        else:
            share = torch.zeros_like(y)
            inner = packed_run.operations.add_adapter_outputs(x, share, group, packed_run.route)
            y += share.index_select(1, group.output_order)
        ctx.save_for_backward(x, inner)
        ctx.held = weight, group, packed_run
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, inner = ctx.saved_tensors
        weight, group, packed_run = ctx.held
        output_gradient = gradients[0].contiguous()
        input_gradient = output_gradient @ weight.t() if ctx.needs_input_grad[0] else None
        operations = packed_run.operations
        share_gradient = output_gradient
        if group.output_order is not None:
            share_gradient = torch.empty_like(output_gradient)
            share_gradient.index_copy_(1, group.output_order, output_gradient)
        inner_gradient = operations.backpropagate_adapters(
            share_gradient, input_gradient, group, packed_run.route
        )
        operations.sum_adapter_gradients(
            x, share_gradient, inner, inner_gradient, group, packed_run.route
        )
        return input_gradient, None, None, None, None, None


class _PackedAttention(torch.autograd.Function):
    """Attention within rows for models whose own layers run."""

    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        packed_run: PackedRun,
        settings: AttentionSettings,
    ) -> Tensor:
        attended, log_sums = packed_run.operations.attend(
            queries, keys, values, packed_run.inputs, settings.scale, settings.window
        )
        if settings.sinks is not None:
            attended, log_sums = _join_sinks(attended, log_sums, settings.sinks)
        ctx.save_for_backward(queries, keys, values, attended, log_sums)
        ctx.held = packed_run, settings
        return attended

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        queries, keys, values, attended, log_sums = ctx.saved_tensors
        packed_run, settings = ctx.held
        into = (new_like(queries), new_like(keys), new_like(values))
        packed_run.operations.attend_back(
            gradients[0].contiguous(),
            queries,
            keys,
            values,
            attended,
            log_sums,
            packed_run.inputs,
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


def attend_within_rows(packed_run: PackedRun) -> Attend:
    """Return attention within the rows of a pass, as ``attending`` takes it."""

    def attend(
        queries: Tensor, keys: Tensor, values: Tensor, settings: AttentionSettings
    ) -> Tensor:
        key_width, value_width = keys.shape[-1], values.shape[-1]
        # kernels take heads of one width: compressed attention (DeepSeek, GLM, Kimi) has narrower values
        is_narrower = value_width < key_width
        if is_narrower:
            values = nn.functional.pad(values, (0, key_width - value_width))
        attended: Tensor = _PackedAttention.apply(  # type: ignore[no-untyped-call]
            _flatten_row(queries), _flatten_row(keys), _flatten_row(values), packed_run, settings
        )
        if is_narrower:
            attended = attended[..., :value_width]
        return attended.unsqueeze(0)

    return attend


def _flatten_row(heads: Tensor) -> Tensor:
    """Return the heads of the one long row (1, N, H, d) as (N, H, d), with the numbers of a head side by side."""
    flat = heads.squeeze(0)
    return flat if flat.stride(2) == 1 else flat.contiguous()
