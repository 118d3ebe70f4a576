"""Projections in one layer: each has an adapter of its own, so that twins in function are tuned alike."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers as tf

from architectures import tune
from architectures.tiny import build
from lane_models import VOCAB, place, spec, tiny
from potentia.engine.comparison.peft_comparison import wrapped_by_peft
from potentia.engine.layers.adapter_bank import AdapterBank, group_by_layer
from potentia.engine.layers.adapter_targets import find_targets
from potentia.engine.layers.packed_pass import PackedPass
from potentia.engine.layers.row_layout import lay_out_rows
from potentia.engine.models.split_model import SplitModel
from potentia.engine.proof.reference import peft_site_scales, reference_loss
from potentia.engine.training import LaneTrainer, LoraConfig
from potentia.values.training_form import TrainingForm

ALL = ("all-linear",)
LORA = LoraConfig(r=4, alpha=8, dropout=0.0, targets=ALL)
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-5,
}
HEADS = 4
HEAD = 8  # numbers


def llama_and_phi3() -> tuple[Any, Any]:
    """Return a Llama and the same function as a Phi 3, whose projections of one input are one matrix."""
    torch.manual_seed(0)
    llama = tf.AutoModelForCausalLM.from_config(tf.LlamaConfig(**SIZES))
    phi3 = tf.AutoModelForCausalLM.from_config(tf.Phi3Config(**SIZES))
    with torch.no_grad():
        for parameter in llama.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4)
        phi3.load_state_dict(llama.state_dict(), strict=False)
        for layer, twin in zip(llama.model.layers, phi3.model.layers, strict=True):
            attention = layer.self_attn
            projections = (attention.q_proj, attention.k_proj, attention.v_proj)
            joined = torch.cat([projection.weight for projection in projections])
            twin.self_attn.qkv_proj.weight.copy_(joined)
            gates_and_ups = torch.cat([layer.mlp.gate_proj.weight, layer.mlp.up_proj.weight])
            twin.mlp.gate_up_proj.weight.copy_(gates_and_ups)
    return llama.eval(), phi3.eval()


def train_lane(model: Any, lora: LoraConfig, *, may_pack: bool) -> tuple[float, TrainingForm]:
    """Return the loss that a lane ends at, and the form that it was trained in."""
    lane = replace(spec("lane", learning_rate=3e-3, epochs=3), lora=lora)
    with LaneTrainer(model, may_pack=may_pack) as trainer:
        result = trainer.train([lane])["lane"]
        form = trainer.training_facts.form
    assert result.status == "done"
    return float(result.epochs[-1].loss), form


@pytest.mark.parametrize("may_pack", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_a_model_and_its_twin_with_fused_projections_end_at_the_same_loss(
    may_pack: bool, dropout: float
) -> None:
    llama, phi3 = llama_and_phi3()
    ids = torch.randint(3, VOCAB, (2, 9))
    with torch.no_grad():
        assert torch.allclose(llama(ids).logits, phi3(ids).logits, atol=1e-5)
    lora = replace(LORA, dropout=dropout)
    llama_loss, _ = train_lane(llama, lora, may_pack=may_pack)
    phi3_loss, form = train_lane(phi3, lora, may_pack=may_pack)
    assert phi3_loss == pytest.approx(llama_loss, abs=1e-4)
    assert form == (TrainingForm.FUSED if may_pack else TrainingForm.PADDED)


def test_twins_draw_the_same_start() -> None:
    llama, phi3 = llama_and_phi3()
    rows = [AdapterBank(model, LORA, 1).fresh_row(7) for model in (llama, phi3)]
    assert torch.equal(rows[0], rows[1])


def heads_in_turn(parts: int) -> list[tuple[int, ...]]:
    """Return the columns of projections that lie head by head."""
    columns = torch.arange(HEADS * parts * HEAD).view(HEADS, parts, HEAD)
    return [tuple(columns[:, part].flatten().tolist()) for part in range(parts)]


def side_by_side(*widths: int) -> list[tuple[int, ...]]:
    ends = torch.tensor([0, *widths]).cumsum(0).tolist()
    return [tuple(range(begin, begin + width)) for begin, width in zip(ends, widths, strict=False)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("case", "layer", "columns"),
    [
        ("phi3", "qkv_proj", side_by_side(32, 16, 16)),  # fewer keys and values than queries
        ("phi3", "gate_up_proj", side_by_side(48, 48)),
        ("gpt2", "c_attn", side_by_side(32, 32, 32)),
        ("mpt", "Wqkv", side_by_side(32, 32, 32)),
        ("gpt_bigcode", "c_attn", side_by_side(32, 8, 8)),  # one key and value for all
        ("falcon", "query_key_value", side_by_side(32, 8, 8)),
        ("gpt_neox", "query_key_value", heads_in_turn(3)),
        ("bloom", "query_key_value", heads_in_turn(3)),
        ("persimmon", "query_key_value", heads_in_turn(3)),
        ("glm4", "gate_up_proj", side_by_side(48, 48)),
        ("modernbert-decoder", "Wi", side_by_side(48, 48)),
    ],
)
def test_outputs_of_projections_are_told_apart(
    case: str, layer: str, columns: list[tuple[int, ...]], dtype: torch.dtype
) -> None:
    targets = find_targets(build(case).to(dtype), LORA)
    fused = [found for name, found in targets.fused.items() if name.endswith(layer)]
    assert len(fused) == 2  # in both layers
    assert all(list(found) == columns for found in fused)


@pytest.mark.parametrize(
    "case",
    [
        "llama",  # nothing is fused
        "opt",  # feed-forward layers without gates
        "lfm2",  # a convolution's three inputs in one layer
        "mamba2",
        "deepseek_v3",  # keys and values of a latent vector: two of the three
        "qwen3_next",  # queries with a gate on the output, a delta rule's inputs
    ],
)
def test_a_layer_that_cannot_be_divided_has_one_adapter(case: str) -> None:
    model = build(case)
    bank = AdapterBank(model, LORA, 1)
    assert find_targets(model, LORA).fused == {}
    assert all(len(sites) == 1 for sites in group_by_layer(bank.sites).values())


def test_named_layers_have_one_adapter_each() -> None:
    """As PEFT understands names; "all-linear" alone means maps."""
    lora = replace(LORA, targets=("qkv_proj", "gate_up_proj"))
    bank = AdapterBank(tiny("phi3"), lora, 1)
    assert [site.columns for site in bank.sites] == [None] * 4
    assert not bank.block_masks()


@pytest.mark.parametrize("kind", ["lora", "rslora"])
@pytest.mark.parametrize("case", ["phi3", "granitemoe"])
def test_projections_in_one_matrix_keep_the_factor_of_one(case: str, kind: str) -> None:
    lora = replace(LORA, kind=kind)
    if case == "granitemoe":  # an expert's rank is r / 2, and so is its α / r
        lora = replace(lora, r=8, alpha=16)
    bank = AdapterBank(build(case), lora, 1)
    rank = 8 // 2 if case == "granitemoe" else 4
    expected = lora.alpha / (rank if kind == "lora" else rank**0.5)
    factors = dict(zip((site.name for site in bank.sites), peft_site_scales(bank), strict=True))
    in_one_matrix = [
        name
        for name, sites in group_by_layer(bank.sites).items()
        if len(sites) > 1 or sites[0].projections > 1
    ]
    assert in_one_matrix
    assert [factors[name] for name in in_one_matrix] == pytest.approx(
        [expected] * len(in_one_matrix)
    )


@pytest.mark.parametrize(
    "case", ["phi3", "gpt2", "gpt_neox", "falcon+new", "bloom", "codegen", "glm4"]
)
def test_adapters_of_fused_projections_are_pefts(case: str) -> None:
    comparison = tune.compare(build(case), ALL, 96, tune.QUICKEST)
    assert not comparison.refused
    assert comparison.exact, comparison


@pytest.mark.parametrize("case", ["phi3", "gpt2", "gpt_neox", "glm4"])
def test_a_packed_pass_gives_pefts_gradients_within_the_projections(case: str) -> None:
    model = build(case)
    plain_model = copy.deepcopy(model)
    bank = AdapterBank(model, LORA, 2)
    bank.make_up_adapters()
    rows = [replace(row, slot=slot) for slot in range(2) for row in spec(seed=slot).rows_of_step(0)]
    packed_pass = PackedPass(SplitModel(model), bank, None)
    packed_pass(place(lay_out_rows(rows), bank, few=False))
    for slot in range(2):
        state = bank.peft_state(bank.weights[slot])
        gradients = bank.peft_state(bank.grads[slot])
        with wrapped_by_peft(plain_model, bank) as wrapped:
            parameters: dict[str, torch.nn.Parameter] = {}
            for name, parameter in wrapped.named_parameters():
                if "lora_" in name:
                    parameters[name.replace(".default", "")] = parameter
            for name, parameter in parameters.items():
                parameter.data.copy_(state[name])
            for row in rows:
                if row.slot == slot:
                    reference_loss(wrapped, row, torch.device("cpu")).backward()
            for name, parameter in parameters.items():
                size = float(parameter.grad.abs().max())
                gap = float((gradients[name] - parameter.grad).abs().max())
                assert gap <= 1e-3 * size + 1e-6, name
