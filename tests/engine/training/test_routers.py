"""Routers have no adapters in any family: an adapter there would decide which experts learn."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from architectures.tiny import build
from potentia.engine.layers.adapter_targets import find_targets
from potentia.engine.layers.routers import find_routers
from potentia.values.recipe import LoraConfig

LORA = LoraConfig(r=4, alpha=8, dropout=0.0, targets=("all-linear",))
# every mixture of experts among the cases
MIXTURES = (
    "afmoe",
    "aria_text",
    "axk1",
    "axk2",
    "bailing_hybrid",
    "beam",
    "cohere2_moe",
    "deepseek_v2",
    "deepseek_v3",
    "deepseek_v32",
    "deepseek_v4",
    "doge+moe",
    "dots1",
    "ernie4_5_moe",
    "exaone_moe",
    "flex_olmo",
    "gemma4_text+moe",
    "glm4_moe",
    "glm4_moe_lite",
    "glm_moe_dsa",
    "gpt_oss",
    "granitemoe",
    "granitemoe_swa",
    "granitemoehybrid",
    "granitemoeshared",
    "hunyuan_v1_moe",
    "hy_v3",
    "hy_v4",
    "inkling2_text",
    "inkling_text",
    "jamba",
    "jetmoe",
    "kimi_linear",
    "kolibri1",
    "laguna",
    "lfm2_moe",
    "llama4_text",
    "longcat_flash",
    "mellum",
    "mimo_v2_flash",
    "minimax",
    "minimax_m2",
    "minimax_m3_vl_text",
    "mixtral",
    "nemotron_h",
    "olmoe",
    "phimoe",
    "qwen2_moe",
    "qwen3_5_moe_text",
    "qwen3_moe",
    "qwen3_next",
    "solar_open",
    "zaya",
)
# names that routers go by in these families; a shared expert's gate is none: it chooses nothing
ROUTER = re.compile(r"(^|\.)(router|router_gate|router_mlp|mlp\.gate)(\.|$)")


def adapted_names(case: str) -> list[str]:
    """Return the adapted layers of a tiny model, with the numbers of blocks left out."""
    targets = find_targets(build(case), LORA)
    names = [name for name, _ in targets.layers]
    names += [f"{entry.name}.{entry.parameter}" for entry in targets.stacked]
    return sorted({re.sub(r"\.\d+(?=\.|$)", ".N", name) for name in names})


@pytest.mark.parametrize("case", MIXTURES)
def test_no_router_has_an_adapter(case: str) -> None:
    names = adapted_names(case)
    assert names
    assert [name for name in names if ROUTER.search(name)] == []


@pytest.mark.parametrize("case", ["qwen2_moe", "qwen3_5_moe_text", "qwen3_next"])
def test_the_gate_of_a_shared_expert_has_an_adapter(case: str) -> None:
    assert "model.layers.N.mlp.shared_expert_gate" in adapted_names(case)


def test_named_routers_are_adapted() -> None:
    """What a user names is meant."""
    lora = LoraConfig(r=4, alpha=8, dropout=0.0, targets=("layer",))
    names = [name for name, _ in find_targets(build("jetmoe"), lora).layers]
    assert "model.layers.0.mlp.router.layer" in names


class Mixture(nn.Module):
    """Two experts of which a token takes one, as its own block decides it: the names say nothing."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.second = nn.Linear(width, width)
        self.narrow = nn.Linear(width, 4)
        self.third = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = self.third(torch.tanh(self.narrow(x))).softmax(-1)
        chosen = weights.argmax(-1, keepdim=True)
        outputs = torch.stack([self.first(x), self.second(x)], dim=-2)
        index = chosen.unsqueeze(-1).expand(*chosen.shape, x.shape[-1])
        return outputs.gather(-2, index).squeeze(-2) * weights.gather(-1, chosen)


def test_what_decides_experts_is_found_whatever_its_name() -> None:
    model = build("llama")
    for layer in model.model.layers:
        layer.mlp = Mixture(32)
    layers = [(name, m) for name, m in model.named_modules() if isinstance(m, nn.Linear)]
    assert find_routers(model, layers) == {
        f"model.layers.{number}.mlp.{name}" for number in range(2) for name in ("narrow", "third")
    }


def test_what_chooses_tokens_is_no_router() -> None:
    """An indexer's choices are among tokens, so many as the row has."""
    model = build("deepseek_v32")
    layers = [(name, m) for name, m in model.named_modules() if isinstance(m, nn.Linear)]
    assert find_routers(model, layers) == set()
