"""A causal model in two parts: the body, which makes hidden states, and the tail, which turns some of them into logits.

Only target positions need logits, and [rows, tokens, vocabulary] is the largest tensor of a training step. So the
body runs first; then the tail runs on the target positions alone, a few thousand at a time, and each piece is
differentiated on the spot: its logits never outlive it. The tail is the model's own forward with the body's answer
put in its place, so whatever an architecture does to its logits (soft caps, scales, biases) is kept without naming
any architecture.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from potentia.errors import ModelError

_PIECE_BYTES = {"cuda": 1 << 30, "cpu": 1 << 22}  # of logits at a time
LEAST_PIECE = 64  # targets
_ATTENTION = "potentia"  # what transformers knows our attention by
# found by trying, once a model: the names of models' bodies, and those of layers that a text reaches
_BODIES: weakref.WeakKeyDictionary[nn.Module, Any] = weakref.WeakKeyDictionary()
REACHED: weakref.WeakKeyDictionary[nn.Module, Any] = weakref.WeakKeyDictionary()


class SplitModel:
    """Body and tail of one causal language model."""

    def __init__(self, model: nn.Module) -> None:
        from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions

        self.model = model
        self.body = find_body(model)
        self._answer: type[Any] = BaseModelOutputWithPastAndCrossAttentions
        self.vocabulary = int(model.get_output_embeddings().weight.shape[0])  # type: ignore[operator]

    def hidden(self, ids: Tensor, places: Tensor | None = None) -> Tensor:
        """Run the body on right-padded rows: hidden states (R, T, d). Causality makes a padding mask needless."""
        options = {} if places is None else {"position_ids": places}
        return self.run(input_ids=ids, use_cache=False, **options).last_hidden_state  # type: ignore[no-any-return]

    def run(self, **inputs: Any) -> Any:
        """The body's whole answer; its type is what the tail expects."""
        out = self.body(**inputs)
        self._answer = type(out)
        return out

    def logits(self, hidden: Tensor) -> Tensor:
        """Run the tail alone: logits (N, V) of hidden states (N, d)."""
        ids = torch.zeros(1, hidden.shape[0], dtype=torch.long, device=hidden.device)
        with computing(
            {self.body: lambda *_, **__: self._answer(last_hidden_state=hidden.unsqueeze(0))}
        ):
            return self.model(input_ids=ids, use_cache=False).logits.squeeze(0)  # type: ignore[no-any-return]

    def losses(self, hidden: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return cross-entropies (N,) at hidden states (N, d), and the gradient (N, d) of their weighted sum.

        The tail's own weights, where they ask for gradients, get theirs added as well.
        """
        if hidden.shape[0] == 0:  # nothing to predict
            return hidden.new_zeros(0, dtype=torch.float32), torch.zeros_like(hidden)
        from potentia.engine.operations import operations

        room = _PIECE_BYTES.get(hidden.device.type, 1 << 26)
        piece = max(LEAST_PIECE, room // (self.vocabulary * hidden.element_size()))
        loss, wanted = operations(hidden.device).loss, targets.to(torch.int32)
        values, slopes = [], []
        for begin in range(0, hidden.shape[0], piece):
            span = slice(begin, begin + piece)
            with torch.enable_grad():
                states = hidden[span].detach().requires_grad_()
                logits = self.logits(states)
            value, slope = loss(logits.detach(), wanted[span], weights[span])
            torch.autograd.backward(logits, slope)
            assert states.grad is not None
            values.append(value)
            slopes.append(states.grad)
        return torch.cat(values), torch.cat(slopes)

    def backward(
        self, hidden: Tensor, positions: Tensor, targets: Tensor, weights: Tensor
    ) -> Tensor:
        """Go back from the losses at some positions of the body's answer; returns these losses."""
        flat = hidden.detach().reshape(-1, hidden.shape[-1])
        values, slopes = self.losses(flat.index_select(0, positions), targets, weights)
        gradient = torch.zeros_like(flat).index_copy_(0, positions, slopes)
        torch.autograd.backward(hidden, gradient.view_as(hidden))
        return values


@contextmanager
def computing(forwards: Mapping[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """Let modules compute by these forwards, set on the instances, inside the block."""
    before = {module: module.__dict__.get("forward") for module in forwards}
    try:
        for module, forward in forwards.items():
            module.forward = forward
        yield
    finally:
        for module, own in before.items():
            module.__dict__.pop("forward", None)
            if own is not None:
                module.forward = own


@contextmanager
def asking(model: nn.Module, wanted: bool) -> Iterator[None]:
    """Let all weights of a model ask for gradients, or none, inside the block."""
    before = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        model.requires_grad_(wanted)
        yield
    finally:
        for parameter, flag in before:
            parameter.requires_grad_(flag)


def configs_of(model: nn.Module) -> list[Any]:
    """Return the configs that a model's modules read, each once."""
    found = (getattr(module, "config", None) for module in model.modules())
    return list({id(config): config for config in found if config is not None}.values())


@contextmanager
def attending(
    configs: Sequence[Any], attend: Callable[[Tensor, Tensor, Tensor, float, int | None], Tensor]
) -> Iterator[None]:
    """Let the models of these configs attend by a function of queries, keys, values (R, T, H, d), scale and window."""
    from transformers import AttentionInterface

    def call(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **options: Any,
    ) -> tuple[Tensor, None]:
        if options.get("softcap") is not None or options.get("s_aux") is not None:
            raise NotImplementedError("attention with soft caps or sinks")
        q, k, v = (part.transpose(1, 2) for part in (query, key, value))
        scale = options.get("scaling")
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        return attend(q, k, v, scale, options.get("sliding_window")), None

    AttentionInterface.register(_ATTENTION, call)
    before = [getattr(config, "_attn_implementation", None) for config in configs]
    try:
        for config in configs:
            config._attn_implementation = _ATTENTION
        yield
    finally:
        for config, name in zip(configs, before, strict=True):
            config._attn_implementation = name


def find_body(model: nn.Module) -> nn.Module:
    """Find the part that the model's forward calls for hidden states: its base model, or a part of that (OPT)."""
    if model not in _BODIES:
        called = _called(model)
        _BODIES[model] = next(
            (name for name, module in model.named_modules() if module is called), ""
        )
    return model.get_submodule(_BODIES[model])


def built_alike(model: nn.Module, other: nn.Module) -> None:
    """Note that a model is a copy of another: what was found of that holds for it."""
    for known in (_BODIES, REACHED):
        if other in known:
            known[model] = known[other]


def _called(model: nn.Module) -> nn.Module:
    """Run the model on two tokens, and see which part of it is asked."""
    base = getattr(model, "base_model", model)
    called: list[nn.Module] = []
    hooks = [
        module.register_forward_pre_hook(lambda module, _: called.append(module))
        for module in (base, *base.children())
        if module is not model
    ]
    try:
        with torch.no_grad():
            device = next(model.parameters()).device
            model(input_ids=torch.zeros(1, 2, dtype=torch.long, device=device), use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    if not called:
        raise ModelError(f"{type(model).__name__} has no separate body: it cannot be tuned here")
    return called[0]
