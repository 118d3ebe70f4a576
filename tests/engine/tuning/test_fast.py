"""The quicker parts: found in the models that have them, equal to the model's own, and gone after a pass."""

from __future__ import annotations

import pytest
import torch

from lane_models import VOCAB, tiny
from potentia.engine.tuning import fast
from potentia.engine.tuning.fast import FastPasses

# norms and gated blocks of two layers, and whether rotations are replaced
FOUND = {
    "llama": (5 + 2, 1),
    "mistral": (5 + 2, 1),
    "gemma2": (9, 1),  # its gate is a GELU
    "neox": (0, 1),
    "gpt2": (0, 0),
    "opt": (0, 0),
    "bloom": (0, 0),
}


def slopes(model: torch.nn.Module, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the logits, and the gradient of a fixed mixture of them at the first layer's input."""
    with torch.no_grad():
        states = model.get_input_embeddings()(ids)
    states.requires_grad_()
    logits = model(inputs_embeds=states, use_cache=False).logits
    logits.backward(torch.linspace(-1, 1, VOCAB).expand_as(logits))
    return logits.detach(), states.grad


@pytest.mark.parametrize("kind", FOUND)
def test_quicker_parts_equal_the_models_own(kind: str):
    model = tiny(kind)
    model.requires_grad_(False)
    quick = FastPasses(model)
    assert (len(quick.parts), len(quick.rotations)) == FOUND[kind]
    ids = torch.randint(0, VOCAB, (3, 17), generator=torch.Generator().manual_seed(1))
    if kind == "opt":
        return  # takes no embeddings, and nothing of it was replaced
    plain = slopes(model, ids)
    with quick.active():
        replaced = slopes(model, ids)
    for own, ours in zip(plain, replaced, strict=True):
        assert torch.allclose(own, ours, rtol=1e-4, atol=1e-5 * float(own.abs().max()))
    assert all("forward" not in module.__dict__ for module, _ in quick.parts)
    assert all(home.apply_rotary_pos_emb is not fused for home, fused in quick.rotations)
    again = slopes(model, ids)
    assert all(torch.equal(one, two) for one, two in zip(plain, again, strict=True))


def test_a_part_that_only_looks_alike_is_left_alone():
    class Odd(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.eps = torch.nn.Parameter(torch.ones(8)), 1e-6

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 1.01 * x * self.weight * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)

    assert fast.fused_norm(Odd()) is None
