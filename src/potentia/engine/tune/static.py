"""One pass of lanes over a bucket of static sizes: forward, backward, gradients added, losses added; no value is read.

The pass touches nothing but tensors at fixed addresses, so a GPU can capture it once and replay it (``captured``); the
same lines run uncaptured on any device. A model's layers run in the form of ``block`` where they are of that kind; else
the model's own layers run, with attention kept within rows and adapters applied to stretches of the long row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from potentia.engine.memory import out_of_memory
from potentia.engine.operations import operations
from potentia.engine.split import LEAST_PIECE, SplitModel
from potentia.engine.tune.adapters import AdapterBank, Site
from potentia.engine.tune.block import Blocks, StaticRun
from potentia.engine.tune.fast import FastPasses
from potentia.engine.tune.layout import Bucket, LongRow, StaticInputs, lay
from potentia.engine.tune.passes import Lesson, recomputing, run_step
from potentia.engine.tune.planner import PassPlan
from potentia.engine.tune.thin import Route, ThinGroup

FEW_BITS_ERROR = 5e-2  # of gradients, relative, between two ways to compute them in 16 bits
_NAME = "potentia_rows"
_PIECE_BYTES = 1 << 30  # of logits at a time


class StaticPass:
    """A model as static passes see it; ``blocks`` is None where its own layers run."""

    def __init__(self, split: SplitModel, bank: AdapterBank, fast: FastPasses, blocks: Blocks | None) -> None:
        self.split, self.bank, self.fast, self.blocks = split, bank, fast, blocks
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
            stack.enter_context(self.fast.active())
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


def find_static(
    split: SplitModel, bank: AdapterBank, fast: FastPasses, blocks: Blocks | None, rows: Sequence[Lesson]
) -> tuple[StaticPass | None, str]:
    """Find the quickest static pass that gives the gradients of the plain passes on rows like the real ones.

    The rows are tried with random adapters in every slot of theirs, so that both of LoRA's products count. Returns the
    pass, or None where no form agrees, and what was wrong with the forms that do not.
    """
    reasons: list[str] = []
    for form in (blocks, None) if blocks is not None else (None,):
        ours = StaticPass(split, bank, fast, form)
        found = _obstacle(ours, rows)
        if found is None:
            return ours, "; ".join(reasons)
        reasons.append(("layers by hand: " if form is not None else "its own layers: ") + found)
    return None, "; ".join(reasons)


def _obstacle(ours: StaticPass, rows: Sequence[Lesson]) -> str | None:
    bank = ours.bank
    kept = bank.weights.clone()
    stream = torch.Generator().manual_seed(0)
    try:
        for slot in {row.slot for row in rows}:
            noise = torch.randn(bank.width, generator=stream) * bank.width**-0.25
            bank.weights[slot].copy_(bank.fresh(slot) + 0.02 * noise)
        bank.refresh()
        bank.grads.zero_()
        plan = PassPlan(slots=bank.slots, token_budget=1 << 40, pass_price=0)
        losses = run_step(ours.split, bank, rows, plan, ours.fast)
        wanted = bank.grads.clone()
        bank.grads.zero_()
        ours(place(lay(rows), bank, few=False))
        error = float((bank.grads - wanted).norm() / wanted.norm())
        drift = float((ours.losses - losses).abs().max() / losses.abs().max())
        if bank.dtype == torch.float32:
            most = 1e-3
        elif error < FEW_BITS_ERROR:
            most = FEW_BITS_ERROR
        else:  # in a deep model roundings add up: what they do to the plain passes is no fault of these
            bank.grads.zero_()
            run_step(ours.split, bank, rows, plan, ours.fast.without())
            rounding = float((bank.grads - wanted).norm() / wanted.norm())
            most = max(FEW_BITS_ERROR, min(2 * rounding, 4 * FEW_BITS_ERROR))
        if not error < most or not drift < min(most, FEW_BITS_ERROR):
            return f"its gradients differ by {error:.1e}, its losses by {drift:.1e}"
        return None
    except (
        TypeError,
        ValueError,
        RuntimeError,
        KeyError,
        AttributeError,
        NotImplementedError,
        AssertionError,
    ) as error:
        if out_of_memory(error):
            if bank.device.type == "cuda":
                torch.cuda.empty_cache()
            return "no memory to try it"
        return f"{type(error).__name__}: {str(error)[:200]}"
    finally:
        ours.losses.zero_()
        bank.grads.zero_()
        bank.weights.copy_(kept)
        bank.refresh()


def place(row: LongRow, bank: AdapterBank, *, few: bool) -> StaticInputs:
    """Put a long row into a bucket of its own on the device."""
    bucket = Bucket.holding(len(row.ids), len(row.targets), bank.slots, few=few)
    inputs = StaticInputs.on(bank.device, bucket)
    buffer = np.empty(bucket.size, np.int32)
    row.fill(bucket, buffer)
    inputs.buffer.copy_(torch.from_numpy(buffer))
    return inputs


def past_windows(rows: Sequence[Lesson], windows: Sequence[int], longest: int) -> list[Lesson]:
    """Make up one row past each window, as far as rows go, with its targets beyond it: there a wrong form shows."""
    made = []
    last = rows[-1]
    for window in windows:
        ids = np.resize(np.concatenate([row.ids for row in rows]), min(longest, 2 * window))
        made.append(replace(last, ids=ids, first_target=window, weight=1 / (len(ids) - window)))
    return made


def sample(rows: Sequence[Lesson], tokens: int) -> list[Lesson]:
    """Return some rows of every slot, shortest and longest among them, of about ``tokens`` tokens in all."""
    chosen: list[Lesson] = []
    slots = sorted({row.slot for row in rows})
    for slot in slots[:4]:
        mine = sorted((row for row in rows if row.slot == slot), key=lambda row: len(row.ids))
        chosen += [mine[0], mine[-1]] if len(mine) > 1 else mine
    most = max(2, tokens // max(1, len(chosen)))
    return [replace(row, ids=row.ids[:most], first_target=min(row.first_target, most - 1)) for row in chosen]
