"""Quicker ways to the same numbers on an accelerator, used in training passes only and each checked before use.

Root-mean-square norms written out operation by operation move ten times the memory a fused kernel does. A module that
looks like one (a single weight vector and an epsilon) is replaced during a pass if, on random input, the fused kernel
gives what the module itself gives, to the rounding of its dtype: the form is found by trying, not by a model's name.
Attention backends that compile a plan for every new shape are left aside: lanes bring new shapes all the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm


class FastPasses:
    """What can be replaced in one model; found once."""

    def __init__(self, model: nn.Module) -> None:
        first = next(model.parameters())
        self.wanted = first.device.type == "cuda" and first.dtype in (torch.bfloat16, torch.float16)
        self.norms: list[tuple[nn.Module, Callable[[Tensor], Tensor]]] = []
        if self.wanted:
            found = ((module, fused_norm(module)) for module in model.modules())
            self.norms = [(module, fused) for module, fused in found if fused is not None]

    @contextmanager
    def active(self) -> Iterator[None]:
        """Use the quicker ways inside the block."""
        if not self.wanted:
            yield
            return
        from torch.nn.attention import SDPBackend, sdpa_kernel

        with ExitStack() as stack:
            stack.enter_context(
                sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])
            )
            for module, fused in self.norms:
                module.forward = fused
                stack.callback(module.__dict__.pop, "forward", None)
            yield


@torch.no_grad()
def fused_norm(module: nn.Module) -> Callable[[Tensor], Tensor] | None:
    """Return a fused form of a root-mean-square norm, or None where the module is something else."""
    parameters = dict(module.named_parameters(recurse=False))
    epsilon = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    weight = parameters.get("weight")
    if "forward" in module.__dict__ or isinstance(module, nn.LayerNorm) or any(True for _ in module.children()):
        return None
    if len(parameters) != 1 or weight is None or weight.dim() != 1 or not isinstance(epsilon, float):
        return None
    shape, size = (weight.shape[0],), float(epsilon)
    stream = torch.Generator(device=weight.device).manual_seed(0)
    sample = torch.randn(4, *shape, generator=stream, device=weight.device, dtype=torch.float32).to(weight.dtype)
    try:
        own = module(sample)
    except (TypeError, RuntimeError):
        return None
    step = torch.finfo(weight.dtype).eps
    for gain in (weight.detach(), 1 + weight.detach()):

        def fused(x: Tensor, gain: Tensor = gain) -> Tensor:
            return rms_norm(x, shape, gain, size)

        if torch.allclose(fused(sample).float(), own.float(), rtol=2 * step, atol=step):
            return fused
    return None
