"""Quicker ways to the same numbers, used in training passes of lanes only and each checked before use.

Norms, gated products and rotations written out operation by operation move several times the memory that they need
to. A part that looks like one of them is replaced during a pass if, on random input, the quicker form gives what the
part itself gives: the form is found by trying, not by a model's name. It is tried in float32, on a twin of the part
that runs its code: in bfloat16 a norm whose gain is 1 + w, with w of some dozens, looks like one whose gain is w. Then
the part itself is asked, to the rounding of its dtype. On an accelerator, attention backends that compile a plan for
every new shape are left aside: lanes bring new shapes all the time.
"""

from __future__ import annotations

import copy
import inspect
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm

from potentia.engine.split import SplitModel
from potentia.engine.tune import fused as quick

log = logging.getLogger(__name__)

Forward = Callable[[Tensor], Tensor]
SCALES = (0.1, 1.0, 100.0)  # some parts cap what is large; where inputs are small, all gates look alike
WIDTHS = (16, 24)  # of a twin's input and of its gate
_ROTATION = "apply_rotary_pos_emb"  # what transformers calls it in every architecture's own module


class FastPasses:
    """What can be replaced in one model; found once."""

    def __init__(self, model: nn.Module) -> None:
        first = next(model.parameters())
        self.device, self.dtype = first.device, first.dtype
        self.parts: list[tuple[nn.Module, Forward]] = []
        for module in model.modules():
            fused = fused_norm(module) or fused_gate(module)
            if fused is not None:
                self.parts.append((module, fused))
        found = ((home, fused_rotation(getattr(home, _ROTATION), first)) for home in _homes(model))
        self.rotations = [(home, fused) for home, fused in found if fused is not None]

    @torch.no_grad()
    def keep_if_sound(self, split: SplitModel) -> None:
        """Compare the hidden states of random texts with the model's own; where they differ, replace nothing."""
        ids = torch.randint(0, split.vocabulary, (2, 24), generator=torch.Generator().manual_seed(0)).to(self.device)
        own = split.hidden(ids).float()
        with self.active():
            ours = split.hidden(ids).float()
        error = float((ours - own).norm() / own.norm())
        if not error < (1e-3 if self.dtype == torch.float32 else 0.15):  # many roundings add up in few bits
            log.warning("lanes take longer: quicker parts change what the model computes, by %.1e", error)
            self.parts, self.rotations = [], []

    def without(self) -> FastPasses:
        """Return passes in which the model's own parts run."""
        bare = copy.copy(self)
        bare.parts, bare.rotations = [], []
        return bare

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
    found = norm_gain(module)
    if found is None:
        return None
    gain, epsilon = found
    shape, kernel = (gain.shape[0],), gain.device.type == "cuda"  # an accelerator has a kernel for it

    def fused(x: Tensor) -> Tensor:
        if not kernel:
            return quick.norm(x, gain, epsilon)
        return rms_norm(x.to(gain.dtype), shape, gain, epsilon).to(x.dtype)

    return fused if _agree(module, fused, next(module.parameters()), shape) else None


@torch.no_grad()
def norm_gain(module: nn.Module) -> tuple[Tensor, float] | None:
    """Return a root-mean-square norm's gain as it multiplies, and its ε.

    Some models keep the gain less one, and multiply in float32: one more than it has no room in fewer bits.
    """
    parameters = dict(module.named_parameters(recurse=False))
    epsilon = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    weight = parameters.get("weight")
    if "forward" in module.__dict__ or isinstance(module, nn.LayerNorm) or any(True for _ in module.children()):
        return None
    if len(parameters) != 1 or weight is None or weight.dim() != 1 or not isinstance(epsilon, float):
        return None
    if not _takes_one(module):  # a gate, or something else that a plain norm knows nothing of
        return None
    whole = nn.Parameter(weight.detach().float(), requires_grad=False)
    twin = _twin(module, parameters={"weight": whole})
    for less in (0, 1):

        def plain(x: Tensor, gain: Tensor = whole + less) -> Tensor:
            return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon) * gain

        if _agree(twin, plain, whole, (weight.shape[0],)):
            return (whole + less).detach() if less else weight.detach(), float(epsilon)
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
    if not isinstance(weight, Tensor) or weight.dim() != 2 or not gates_with_silu(module):
        return None
    return fused if _agree(module, fused, weight, (weight.shape[1],)) else None


@torch.no_grad()
def gates_with_silu(module: nn.Module) -> bool:
    """Say whether a block computes W_d · (silu(W_g · x) ∘ W_u · x), by running its code on small weights."""
    device = next(module.parameters()).device
    stream = torch.Generator(device=device).manual_seed(1)
    shapes = {"gate_proj": WIDTHS[::-1], "up_proj": WIDTHS[::-1], "down_proj": WIDTHS}
    small: dict[str, nn.Linear] = {}
    for name, (rows, columns) in shapes.items():
        small[name] = nn.Linear(columns, rows, bias=False, device=device, dtype=torch.float32)
        small[name].weight.copy_(torch.randn(rows, columns, generator=stream, device=device) * columns**-0.5)
    gate, up, down = small.values()

    def plain(x: Tensor) -> Tensor:
        return down(nn.functional.silu(gate(x)) * up(x))  # type: ignore[no-any-return]

    return _agree(_twin(module, modules=small), plain, gate.weight, (WIDTHS[0],))


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


def _twin(
    module: nn.Module,
    *,
    parameters: Mapping[str, nn.Parameter] | None = None,
    modules: Mapping[str, nn.Module] | None = None,
) -> nn.Module:
    """Return a module that runs the same code with other weights or parts; the module itself stays as it is."""
    twin = copy.copy(module)
    twin.__dict__["_parameters"] = {**module._parameters, **(parameters or {})}
    twin.__dict__["_modules"] = {**module._modules, **(modules or {})}
    return twin


def _agree(module: nn.Module, fused: Forward, like: Tensor, shape: tuple[int, ...]) -> bool:
    """Say whether a part gives what a form of it gives, on small and on large inputs."""
    try:
        for scale in SCALES:
            sample = _sample(like, 4, *shape) * scale
            own: Any = module(sample)
            if not isinstance(own, Tensor) or own.dtype != sample.dtype or not _close(fused(sample), own):
                return False
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError):
        return False
    return True


def _close(ours: Tensor, own: Tensor) -> bool:
    """Equal up to the rounding of a few operations in their dtype."""
    if ours.shape != own.shape or ours.dtype != own.dtype:
        return False
    step = torch.finfo(own.dtype).eps
    size = float(own.float().abs().max())
    return torch.allclose(ours.float(), own.float(), rtol=4 * step, atol=4 * step * max(1.0, size))
