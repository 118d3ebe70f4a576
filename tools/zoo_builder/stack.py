"""Many small Llama models of one shape as one stack of weights: every matrix gains a leading model axis.

Tiny models leave an accelerator idle when trained one by one; stacked, one batched product serves them all. The same
forward pass pretrains, fine-tunes (with merged low-rank updates) and scores, and equals transformers' Llama.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

EPS = 1e-5
THETA = 10_000.0
Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Shape:
    """The shape of a Llama model with tied head."""

    layers: int
    width: int
    hidden: int
    heads: int
    vocab: int
    context: int = 64

    def slots(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Names (transformers' own) and shapes of all weights, in the order of the flat vector."""
        d, f = self.width, self.hidden
        yield "model.embed_tokens.weight", (self.vocab, d)
        for i in range(self.layers):
            at = f"model.layers.{i}."
            yield at + "input_layernorm.weight", (d,)
            for name in ("q", "k", "v"):
                yield f"{at}self_attn.{name}_proj.weight", (d, d)
            yield at + "self_attn.o_proj.weight", (d, d)
            yield at + "post_attention_layernorm.weight", (d,)
            yield at + "mlp.gate_proj.weight", (f, d)
            yield at + "mlp.up_proj.weight", (f, d)
            yield at + "mlp.down_proj.weight", (d, f)
        yield "model.norm.weight", (d,)

    @property
    def parameters(self) -> int:
        """Number of weights, the tied head counted once."""
        return sum(math.prod(shape) for _, shape in self.slots())

    def config(self) -> dict[str, Any]:
        """What transformers needs to rebuild the model; weights are kept in half and used in single precision."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": self.vocab,
            "hidden_size": self.width,
            "intermediate_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.heads,
            "head_dim": self.width // self.heads,
            "hidden_act": "silu",
            "max_position_embeddings": self.context,
            "rms_norm_eps": EPS,
            "rope_parameters": {"rope_theta": THETA, "rope_type": "default"},
            "tie_word_embeddings": True,
            "attention_bias": False,
            "mlp_bias": False,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "dtype": "float32",
        }


def initial(shape: Shape, seeds: list[int]) -> Tensor:
    """Flat initial weights (models, parameters), each model from its own seed."""
    rows = []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        parts = []
        for name, size in shape.slots():
            if len(size) == 1:
                parts.append(torch.ones(size))
                continue
            std = 0.06 if "embed" in name else 0.6 / math.sqrt(size[1])
            if "o_proj" in name or "down_proj" in name:
                std /= math.sqrt(2 * shape.layers)
            parts.append((torch.randn(size, generator=generator) * std).flatten())
        rows.append(torch.cat(parts))
    return torch.stack(rows)


def unflatten(shape: Shape, flat: Tensor) -> Weights:
    """Views of a flat (models, parameters) tensor by name."""
    names, sizes = zip(*shape.slots(), strict=True)
    parts = torch.split(flat, [math.prod(size) for size in sizes], dim=1)
    return {n: p.view(len(flat), *size) for n, p, size in zip(names, parts, sizes, strict=True)}


@cache
def _rotation(context: int, head: int, device: str) -> tuple[Tensor, Tensor]:
    frequency = THETA ** (-torch.arange(0, head, 2, dtype=torch.float32) / head)
    angle = torch.outer(torch.arange(context, dtype=torch.float32), frequency)
    angle = torch.cat([angle, angle], dim=1)
    return angle.cos().to(device), angle.sin().to(device)  # (T, head)


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    return functional.rms_norm(x, (x.shape[-1],), eps=EPS) * weight[:, None, :]


def _linear(x: Tensor, *weights: Tensor) -> Tensor:
    weight = weights[0] if len(weights) == 1 else torch.cat(weights, dim=1)
    return torch.bmm(x, weight.transpose(1, 2))


def _turn(weight: Tensor, heads: int) -> Tensor:
    """The projection whose output is the half-turned output of ``weight``, as rotary positions need it."""
    M, d, _ = weight.shape
    left, right = weight.view(M, heads, 2, d // heads // 2, d).unbind(2)
    return torch.stack([-right, left], dim=2).view(M, d, d)


def hidden(shape: Shape, w: Weights, tokens: Tensor) -> Tensor:
    """Final hidden states (M, B·T, d) of tokens (M, B, T)."""
    M, B, T = tokens.shape
    d, heads = shape.width, shape.heads
    head = d // heads
    cos, sin = _rotation(shape.context, head, str(tokens.device))
    embed = w["model.embed_tokens.weight"]
    cos, sin = cos[:T, None, :].to(embed.dtype), sin[:T, None, :].to(embed.dtype)
    shift = torch.arange(M, device=tokens.device)[:, None, None] * shape.vocab
    x = functional.embedding(tokens + shift, embed.reshape(M * shape.vocab, d)).view(M, B * T, d)
    for i in range(shape.layers):
        at = f"model.layers.{i}."
        q, k, v = (w[f"{at}self_attn.{name}_proj.weight"] for name in "qkv")
        y = _norm(x, w[at + "input_layernorm.weight"])
        out = _linear(y, q, k, _turn(q, heads), _turn(k, heads), v).view(M * B, T, 5 * heads, head)
        plain, turned, v = torch.split(out, [2 * heads, 2 * heads, heads], dim=2)
        qk = torch.addcmul(plain * cos, turned, sin)
        q, k = torch.split(qk.transpose(1, 2), heads, dim=1)
        y = functional.scaled_dot_product_attention(q, k, v.transpose(1, 2), is_causal=True)
        x = x + _linear(y.transpose(1, 2).reshape(M, B * T, d), w[at + "self_attn.o_proj.weight"])
        y = _norm(x, w[at + "post_attention_layernorm.weight"])
        gate_and_up = _linear(y, w[at + "mlp.gate_proj.weight"], w[at + "mlp.up_proj.weight"])
        gate, up = torch.split(gate_and_up, shape.hidden, dim=-1)
        x = x + _linear(functional.silu(gate) * up, w[at + "mlp.down_proj.weight"])
    return _norm(x, w["model.norm.weight"])


def logits(w: Weights, states: Tensor) -> Tensor:
    """Next-token logits (M, N, vocab) of states (M, N, d), by the tied head."""
    return torch.bmm(states, w["model.embed_tokens.weight"].transpose(1, 2))
