"""All-linear adapts every linear map of the body; what PEFT cannot read back is named here, and in docs/methods.md."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from architectures.tiny import build
from potentia.engine.layers.adapter_targets import find_targets
from potentia.engine.models.split_model import find_body
from potentia.values.recipe import LoraConfig

LORA = LoraConfig(r=8, alpha=8, dropout=0.0, targets=("all-linear",))
# weights that a text reaches and that have no adapter, by case, but for routers
LEFT_OUT: dict[str, set[str]] = {
    # PEFT refuses `out_proj` of these architectures, whose kernels may read its weight without calling the layer
    "mamba": {"mixer.out_proj.weight", "mixer.dt_proj.weight"},
    "mamba2": {"mixer.out_proj.weight"},
    "falcon_mamba": {"mixer.out_proj.weight", "mixer.dt_proj.weight"},
    "falcon_h1": {"mamba.out_proj.weight"},
    "nemotron_h": {"mixer.out_proj.weight"},
    # read without a call of the layer, for which PEFT's wrapper waits
    "jamba": {"mamba.dt_proj.weight"},
    # of a module that is given its input by name, where PEFT's wrapper wants it by its place
    "zamba": {"mamba.x_proj_weight", "mamba.dt_proj_weight"},
    # of a module whose state the model clears, and would clear in PEFT's wrapper
    "recurrent_gemma": {"rg_lru.input_gate_weight", "rg_lru.recurrent_gate_weight"},
    # PEFT changes the name on reading
    "inkling2_text": {"k_sconv.weight_proj.weight", "v_sconv.weight_proj.weight"},
}
CASES = (
    *LEFT_OUT,
    "aria_text",
    "bamba",
    "deepseek_v3",
    "deepseek_v32",
    "deepseek_v4",
    "glm4_moe",
    "gpt_oss",
    "granitemoehybrid",
    "hy_v4",
    "inkling_text",
    "jetmoe",
    "kimi_linear",
    "laguna",
    "lfm2_moe",
    "llama4_text",
    "minimax_m3_vl_text",
    "phimoe",
    "qwen3_5_moe_text",
    "qwen3_next",
    "zamba2",
)
# parameters of two or three dimensions that multiply no token, or decide which experts do
NO_MAP = re.compile(
    r"A_log$|bias$|position_bias$|\.D$|static_weight$|\.query$|\.scale$|"
    r"mlp\.(gate|router)\.weight$|feed_forward\.(gate|router)\.weight$|mixer\.gate\.weight$|"
    r"block_sparse_moe\.router\.weight$|router\.(layer|weight)"
)


def weights_that_learn(model: nn.Module) -> set[str]:
    """Return the weights of the body that the prediction of a text depends on."""
    body_modules = set(find_body(model).modules())
    named: dict[str, nn.Parameter] = {}
    for module_name, module in model.named_modules():
        if module in body_modules and not isinstance(module, nn.Embedding | nn.Conv1d):
            for name, parameter in module.named_parameters(recurse=False):
                if parameter.dim() > 1:
                    named[f"{module_name}.{name}"] = parameter
    logits = model(input_ids=torch.arange(6)[None], use_cache=False).logits
    total = torch.logsumexp(logits, dim=-1).sum()
    gradients = torch.autograd.grad(total, list(named.values()), allow_unused=True)
    return {name for name, gradient in zip(named, gradients, strict=True) if gradient is not None}


def adapted_weights(model: nn.Module) -> set[str]:
    targets = find_targets(model, LORA)
    names = {f"{name}.weight" for name, _ in targets.layers}
    module_names = {module: name for name, module in model.named_modules()}
    for entry in targets.stacked:
        names.add(f"{module_names[entry.module]}.{entry.parameter}")
    return names


@pytest.mark.parametrize("case", CASES)
def test_every_linear_map_has_an_adapter(case: str) -> None:
    model = build(case)
    missing = weights_that_learn(model) - adapted_weights(model)
    maps = {name for name in missing if not NO_MAP.search(name)}
    expected = LEFT_OUT.get(case, set())
    assert {name for name in maps if not any(name.endswith(ending) for ending in expected)} == set()
    for ending in expected:
        assert any(name.endswith(ending) for name in maps)


def test_blocks_that_every_token_goes_through_have_the_rank_of_a_layer() -> None:
    """An expert's rank is divided by the active ones; groups and shared experts are no choice."""
    entries = {entry.parameter: entry for entry in find_targets(build("deepseek_v4"), LORA).stacked}
    assert (entries["weight"].rank, entries["weight"].projections) == (8 * 8, 8)  # eight groups
    inkling = find_targets(build("inkling_text"), LORA).stacked
    shared = [entry for entry in inkling if "shared_experts" in entry.name]
    assert {entry.rank for entry in shared} == {8}


def test_the_blocks_of_jetmoe_hold_queries_or_gates_and_ups() -> None:
    """Their experts are told apart by trying: both go by one name."""
    parts = {
        re.sub(r"\d+", "N", entry.name): entry.projections
        for entry in find_targets(build("jetmoe"), LORA).stacked
    }
    assert parts == {
        "model.layers.N.mlp.input_linear": 2,
        "model.layers.N.mlp.output_linear": 1,
        "model.layers.N.self_attention.experts.input_linear": 1,
        "model.layers.N.self_attention.experts.output_linear": 1,
    }


def test_linear_layers_have_forwards_of_their_own() -> None:
    """A linear layer's weight is no matrix of a module."""
    for case in ("llama", "gpt2", "opt"):
        model = build(case)
        targets = find_targets(model, LORA)
        assert targets.stacked == []
        assert all(isinstance(module, nn.Linear | Conv1D) for _, module in targets.layers)
