"""The quicker parts: found in the models that have them, equal to the model's own, and gone after a pass."""

from __future__ import annotations

import pytest
import torch

from lane_models import VOCAB, tiny
from potentia.engine.split import SplitModel
from potentia.engine.tune import fast
from potentia.engine.tune.fast import FastPasses

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


def gemma_like(weight: float, width: int = 64) -> torch.nn.Module:
    from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm

    norm = Gemma3RMSNorm(width)
    norm.weight.data.uniform_(0.9 * weight, 1.1 * weight, generator=torch.Generator().manual_seed(0))
    return norm.to(torch.bfloat16)


@pytest.mark.parametrize("weight", [0.5, 60.0, 195.0])
def test_a_gain_less_one_is_seen_also_where_one_is_little_beside_it(weight: float):
    norm = gemma_like(weight)
    gain, _ = fast.norm_gain(norm)
    assert torch.equal(gain, 1 + norm.weight.float())
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(2)).bfloat16()
    fused = fast.fused_norm(norm)
    assert torch.allclose(fused(x).float(), norm(x).float(), rtol=2**-8, atol=0), "up to one rounding, everywhere"


def test_a_gelu_of_small_values_is_not_taken_for_a_silu():
    from transformers import GemmaConfig
    from transformers.models.gemma.modeling_gemma import GemmaMLP

    torch.manual_seed(0)
    block = GemmaMLP(GemmaConfig(hidden_size=64, intermediate_size=128)).to(torch.bfloat16)
    for part in (block.gate_proj, block.up_proj, block.down_proj):
        part.weight.data.mul_(0.01)
    assert fast.fused_gate(block) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_with_a_few_large_gains_stays_what_it_is(dtype: torch.dtype):
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "vocab_size": VOCAB, "head_dim": 32}
    config = Gemma3TextConfig(**sizes, num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64)
    model = Gemma3ForCausalLM(config)
    for name, weight in model.named_parameters():
        if "norm" in name:
            weight.data[3] = 150.0  # as trained models have them
    split = SplitModel(model.to(dtype).requires_grad_(False))
    quick = FastPasses(model)
    ids = torch.randint(0, VOCAB, (4, 20), generator=torch.Generator().manual_seed(1))
    own = split.hidden(ids).float()
    with quick.active():
        ours = split.hidden(ids).float()
    assert len(quick.parts) == 3 * 6 + 1
    assert float((ours - own).norm() / own.norm()) < (1e-4 if dtype == torch.float32 else 0.05)


def test_parts_that_change_the_model_are_not_used(caplog: pytest.LogCaptureFixture):
    model = tiny("llama")
    quick = FastPasses(model)
    module, own = quick.parts[0]
    quick.parts[0] = (module, lambda x: 1.5 * own(x))
    quick.keep_if_sound(SplitModel(model))
    assert (quick.parts, quick.rotations) == ([], [])
    assert "take longer" in caplog.text
