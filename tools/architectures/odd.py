"""Models that look like others and compute otherwise: layouts, windows, factors and heads that no config names."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from architectures.tiny import build


def _made(case: str) -> Any:
    return build(case)


def sequence_first_attention() -> Any:
    """Queries, keys and values get their tokens as [sequence, batch, hidden], as ChatGLM's do."""
    model = _made("gpt_neox")
    for layer in model.gpt_neox.layers:
        _around(
            layer.attention.query_key_value, lambda own, x: own(x.transpose(0, 1)).transpose(0, 1)
        )
    return model


def sequence_first_mlp() -> Any:
    """Feed-forward blocks in that layout."""
    model = _made("llama")
    for layer in model.model.layers:
        layer.mlp = _Transposed(layer.mlp)
    return model


class _Transposed(nn.Module):
    def __init__(self, original: Any) -> None:
        super().__init__()
        self.own = original

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.own(x.transpose(0, 1)).transpose(0, 1)
        return out


class Experts(nn.Module):
    """A list of two experts, both of which see every token, in the order of their scores."""

    def __init__(self, original: Any) -> None:
        super().__init__()
        width = original.gate_proj.in_features
        self.router = nn.Linear(width, 2, bias=False)
        self.experts = nn.ModuleList([nn.Linear(width, width, bias=False) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        """Send every token through both."""
        flat = x.reshape(-1, x.shape[-1])
        scores = self.router(flat).softmax(dim=-1)
        out = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            order = scores[:, number].argsort()
            out = out.index_add(0, order, expert(flat[order]) * scores[order, number, None])
        return out.view_as(x)


def expert_list() -> Any:
    """Feed-forward blocks that are such a list."""
    model = _made("llama")
    torch.manual_seed(1)
    for layer in model.model.layers:
        layer.mlp = Experts(layer.mlp)
    return model.eval()


def reading_head() -> Any:
    """A head that looks at the tokens themselves."""
    model = _made("llama")
    torch.manual_seed(2)
    model.bonus = nn.Embedding(model.config.vocab_size, model.config.vocab_size)
    original_forward = type(model).forward

    def forward(self: Any, input_ids: Tensor, **options: Any) -> Any:
        out = original_forward(self, input_ids=input_ids, **options)
        out.logits = out.logits + 0.5 * self.bonus(input_ids)
        return out

    model.forward = types.MethodType(forward, model)
    return model


def lookback(tokens: int = 12) -> Any:
    """Attention that looks back so many tokens, by a name that no list of names has."""
    model = _made("llama")
    model.config.lookback_tokens = tokens
    for layer in model.model.layers:
        attention = layer.self_attn
        own = type(attention).forward

        def forward(
            self: Any,
            hidden_states: Tensor,
            attention_mask: Any = None,
            own: Any = own,
            **more: Any,
        ) -> Any:
            length = hidden_states.shape[1]
            places = torch.arange(length)
            near = (places[:, None] - places < tokens) & (places[:, None] >= places)
            mask = torch.zeros(length, length, dtype=hidden_states.dtype).masked_fill(
                ~near, float("-inf")
            )[None, None]
            if attention_mask is not None and attention_mask.is_floating_point():
                mask = torch.maximum(
                    attention_mask + mask, torch.tensor(torch.finfo(mask.dtype).min)
                )
            return own(self, hidden_states=hidden_states, attention_mask=mask, **more)

        attention.forward = types.MethodType(forward, attention)
    return model


def residual_factor(factor: float = 0.98) -> Any:
    """What attention says counts a little less: a factor in the weights' use, not in the config."""
    model = _made("llama")

    class Scaled(type(model.model.layers[0].self_attn)):  # type: ignore[misc]
        def forward(self, *args: Any, **options: Any) -> Any:
            out, weights = super().forward(*args, **options)
            return out * factor, weights

    for layer in model.model.layers:
        layer.self_attn.__class__ = Scaled
    return model


def layer_without_rotary() -> Any:
    """One layer that knows no positions."""
    model = _made("llama")

    class Unturned(type(model.model.layers[1].self_attn)):  # type: ignore[misc]
        def forward(self, *args: Any, position_embeddings: Any, **options: Any) -> Any:
            cos, sin = position_embeddings
            still = torch.ones_like(cos), torch.zeros_like(sin)
            return super().forward(*args, position_embeddings=still, **options)

    model.model.layers[1].self_attn.__class__ = Unturned
    return model


ODD: dict[str, Callable[[], Any]] = {
    "attention in [s, b, h]": sequence_first_attention,
    "MLP in [s, b, h]": sequence_first_mlp,
    "a list of experts": expert_list,
    "a head that reads tokens": reading_head,
    "a look-back by another name": lookback,
    "a residual factor": residual_factor,
    "a layer without rotary": layer_without_rotary,
}


def _around(
    module: nn.Module, change: Callable[[Callable[[Tensor], Tensor], Tensor], Tensor]
) -> None:
    """Let a layer's input and output go through something else; its own hooks see the inside."""
    call = module.__class__.__call__

    class Around(module.__class__):  # type: ignore[misc, name-defined]
        def __call__(self, x: Tensor) -> Tensor:
            return change(lambda inner: call(self, inner), x)

    module.__class__ = Around
