"""Quicker ways to the same numbers, used in training passes of lanes only and each checked before use.

Norms, gated products and rotations written out operation by operation move several times the memory that they need
to. A part that looks like one of them is replaced during a pass if, on random input, the quicker form gives what the
part itself gives, to the rounding of its dtype: the form is found by trying, not by a model's name. On an accelerator,
attention backends that compile a plan for every new shape are left aside: lanes bring new shapes all the time.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm

from potentia.engine.tuning import fused as quick

Forward = Callable[[Tensor], Tensor]
SCALES = (1.0, 100.0)
_ROTATION = "apply_rotary_pos_emb"  # what transformers calls it in every architecture's own module


class FastPasses:
    """What can be replaced in one model; found once."""

    def __init__(self, model: nn.Module) -> None:
        first = next(model.parameters())
        self.device = first.device
        self.parts: list[tuple[nn.Module, Forward]] = []
        for module in model.modules():
            fused = fused_norm(module) or fused_gate(module)
            if fused is not None:
                self.parts.append((module, fused))
        found = ((home, fused_rotation(getattr(home, _ROTATION), first)) for home in _homes(model))
        self.rotations = [(home, fused) for home, fused in found if fused is not None]

    @contextmanager
    def active(self) -> Iterator[None]:
        """Use the quicker ways inside the block."""
        with ExitStack() as stack:
            if self.device.type == "cuda":
                from torch.nn.attention import SDPBackend, sdpa_kernel

                backends = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
                stack.enter_context(sdpa_kernel(backends))
            for module, fused in self.parts:
                module.forward = fused
                stack.callback(module.__dict__.pop, "forward", None)
            for home, rotation in self.rotations:
                stack.callback(setattr, home, _ROTATION, getattr(home, _ROTATION))
                setattr(home, _ROTATION, rotation)
            yield


@torch.no_grad()
def fused_norm(module: nn.Module) -> Forward | None:
    """Return a fused form of a root-mean-square norm, or None where the module is something else."""
    parameters = dict(module.named_parameters(recurse=False))
    epsilon = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    weight = parameters.get("weight")
    if "forward" in module.__dict__ or isinstance(module, nn.LayerNorm) or any(True for _ in module.children()):
        return None
    if len(parameters) != 1 or weight is None or weight.dim() != 1 or not isinstance(epsilon, float):
        return None
    if not _takes_one(module):  # a gate, or something else that a plain norm knows nothing of
        return None
    shape, size = (weight.shape[0],), float(epsilon)
    # an accelerator has a kernel for it
    kernel = weight.device.type == "cuda"

    def fused_with(gain: Tensor) -> Forward:
        return lambda x: rms_norm(x, shape, gain, size) if kernel else quick.norm(x, gain, size)

    for gain in (weight.detach(), 1 + weight.detach()):
        if _agree(module, fused_with(gain), weight, shape):
            return fused_with(gain)
    return None


@torch.no_grad()
def fused_gate(module: nn.Module) -> Forward | None:
    """Return a fused form of a gated feed-forward block, or None where the module is something else."""
    parts = [getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
    if "forward" in module.__dict__ or not all(isinstance(part, nn.Module) for part in parts):
        return None
    if not _takes_one(module):
        return None
    gate, up, down = parts

    def fused(x: Tensor) -> Tensor:
        return down(quick.gated(gate(x), up(x)))  # type: ignore[no-any-return, misc]

    weight = getattr(gate, "weight", None)
    if not isinstance(weight, Tensor) or weight.dim() != 2:
        return None
    return fused if _agree(module, fused, weight, (weight.shape[1],)) else None


@torch.no_grad()
def fused_rotation(own: Callable[..., Any], like: Tensor) -> Callable[..., Any] | None:
    """Return a fused form of a function that turns queries and keys, or None where it does something else."""

    def fused(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *more: Any, unsqueeze_dim: int = 1, **others: Any) -> Any:
        if more or others or cos.shape[-1] != q.shape[-1]:  # some architectures turn a part of each head
            return own(q, k, cos, sin, *more, unsqueeze_dim=unsqueeze_dim, **others)
        cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
        return quick.rotated(q, cos, sin), quick.rotated(k, cos, sin)

    q, k = _sample(like, 2, 3, 5, 8), _sample(like, 2, 1, 5, 8)
    angles = torch.arange(40, device=like.device).view(1, 5, 8).expand(2, 5, 8).float()
    cos, sin = angles.cos().to(like.dtype), angles.sin().to(like.dtype)
    try:
        wanted = own(q, k, cos, sin, unsqueeze_dim=1)
        agreed = all(_close(a, b) for a, b in zip(fused(q, k, cos, sin), wanted, strict=True))
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError):
        return None
    return fused if agreed else None


def _homes(model: nn.Module) -> list[ModuleType]:
    """The modules of transformers that this model's layers come from, where they define a rotation."""
    names = {type(module).__module__ for module in model.modules()}
    homes = [sys.modules[name] for name in sorted(names) if name.startswith("transformers.models.")]
    return [home for home in homes if hasattr(home, _ROTATION)]


def _sample(like: Tensor, *shape: int) -> Tensor:
    stream = torch.Generator(device=like.device).manual_seed(0)
    return torch.randn(*shape, generator=stream, device=like.device, dtype=torch.float32).to(like.dtype)


def _takes_one(module: nn.Module) -> bool:
    """Whether the forward takes an input and nothing else."""
    parameters = inspect.signature(module.forward).parameters.values()
    return len(parameters) == 1 and all(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters)


def _agree(module: nn.Module, fused: Forward, like: Tensor, shape: tuple[int, ...]) -> bool:
    """Try small and large inputs: some parts cap theirs."""
    try:
        for scale in SCALES:
            sample = _sample(like, 4, *shape) * scale
            own: Any = module(sample)
            if not isinstance(own, Tensor) or own.dtype != sample.dtype or not _close(fused(sample), own):
                return False
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError):
        return False
    return True


def _close(ours: Tensor, own: Tensor) -> bool:
    """Equal up to the rounding of a few operations in their dtype."""
    if ours.shape != own.shape or ours.dtype != own.dtype:
        return False
    step = torch.finfo(own.dtype).eps
    size = float(own.float().abs().max())
    return torch.allclose(ours.float(), own.float(), rtol=4 * step, atol=4 * step * max(1.0, size))
