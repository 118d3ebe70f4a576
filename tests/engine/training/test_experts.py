"""Experts: every linear map of the body has an adapter, twins in function are tuned alike, packed passes are right."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers as tf

from architectures import tiny as tiny_models
from architectures import tune
from architectures.tiny import build
from lane_models import VOCAB, place, spec
from potentia.engine.comparison.peft_comparison import wrapped_by_peft
from potentia.engine.lane_spec import TrainingRow
from potentia.engine.layers.adapter_bank import AdapterBank
from potentia.engine.layers.adapter_targets import ACTIVE_EXPERTS, find_targets
from potentia.engine.layers.packed_experts import grouped_product
from potentia.engine.layers.packed_pass import PackedPass
from potentia.engine.layers.row_layout import lay_out_rows
from potentia.engine.models.split_model import SplitModel
from potentia.engine.operations import plain
from potentia.engine.proof.reference import reference_loss
from potentia.engine.steps.packed_steps import PackedStepper
from potentia.engine.training import LaneTrainer, LoraConfig
from potentia.errors import TuningError

ALL = ("all-linear",)
FAMILIES = (
    "qwen3_moe",
    "mixtral",
    "olmoe",
    "gpt_oss",
    "granitemoe",
    "phimoe",
    "qwen3_5_moe",
    "lfm2_moe",
    "deepseek_v3",
    "glm4_moe",
    "qwen2_moe",
)
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "max_position_embeddings": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "tie_word_embeddings": False,
}


def dense_and_equal_experts(experts: int, active: int) -> tuple[Any, Any]:
    """Return a Qwen3 and the same function as a Qwen3-MoE whose experts are all equal."""
    torch.manual_seed(0)
    dense = tf.AutoModelForCausalLM.from_config(tf.Qwen3Config(**SIZES, intermediate_size=48))
    sparse = tf.AutoModelForCausalLM.from_config(
        tf.Qwen3MoeConfig(
            **SIZES,
            intermediate_size=48,
            moe_intermediate_size=48,
            num_experts=experts,
            num_experts_per_tok=active,
            norm_topk_prob=True,
        )
    )
    with torch.no_grad():
        for parameter in dense.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4)
        sparse.load_state_dict(dense.state_dict(), strict=False)
        for layer, twin in zip(dense.model.layers, sparse.model.layers, strict=True):
            mlp = layer.mlp
            joined = torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight])
            twin.mlp.experts.gate_up_proj.copy_(joined.expand(experts, -1, -1))
            twin.mlp.experts.down_proj.copy_(mlp.down_proj.weight.expand(experts, -1, -1))
    return dense.eval(), sparse.eval()


def last_loss(model: Any, *, may_pack: bool) -> float:
    lora = LoraConfig(r=4, alpha=8, dropout=0.0, targets=ALL)
    lane = spec("lane", learning_rate=3e-3, epochs=3)
    lanes = [lane.__class__(lane.key, lane.examples, lane.schedule, lora, lane.seed)]
    with LaneTrainer(model, may_pack=may_pack) as trainer:
        result = trainer.train(lanes)["lane"]
    assert result.status == "done"
    return float(result.epochs[-1].loss)


@pytest.mark.parametrize("may_pack", [False, True])
def test_a_dense_model_and_its_twin_of_one_expert_end_at_the_same_loss(may_pack: bool) -> None:
    dense, sparse = dense_and_equal_experts(experts=1, active=1)
    ids = torch.randint(3, VOCAB, (2, 9))
    with torch.no_grad():
        assert torch.allclose(dense(ids).logits, sparse(ids).logits, atol=1e-5)
    assert last_loss(dense, may_pack=may_pack) == pytest.approx(
        last_loss(sparse, may_pack=may_pack), abs=1e-4
    )


class UnstackedTwin(torch.nn.Module):
    """The function of a module of stacked experts, as linear layers for every expert's projections."""

    def __init__(self, experts: Any) -> None:
        super().__init__()
        first_projections = split_first_projection(experts)
        for number in range(experts.num_experts):
            for name, weights in first_projections.items():
                self.add_module(f"{name}_{number}", linear(weights[number]))
        down = out_first(experts, experts.down_proj)
        for number in range(experts.num_experts):
            self.add_module(f"down_{number}", linear(down[number]))
        self.held = [experts]  # in a list: its parameters are not the twin's

    def forward(self, hidden: Any, chosen: Any, weights: Any) -> Any:
        experts = self.held[0]
        total = torch.zeros_like(hidden)
        for number in range(experts.num_experts):
            share = (weights * (chosen == number)).sum(-1, keepdim=True)
            total = total + self.compute_expert(number, hidden) * share.to(hidden.dtype)
        return total

    def compute_expert(self, number: int, hidden: Any) -> Any:
        experts = self.held[0]
        up = getattr(self, f"up_{number}")(hidden)
        if not experts.has_gate:
            return getattr(self, f"down_{number}")(experts.act_fn(up))
        gate = getattr(self, f"gate_{number}")(hidden)
        both = torch.cat([gate, up], dim=-1)
        if not experts.is_concatenated:
            both = torch.stack([gate, up], dim=-1).flatten(-2)
        if experts.has_bias:
            both = both + experts.gate_up_proj_bias[number]
        output = getattr(self, f"down_{number}")(experts._apply_gate(both))
        return output + experts.down_proj_bias[number] if experts.has_bias else output


def split_first_projection(experts: Any) -> dict[str, torch.Tensor]:
    """Return the weights (experts, out, in) of gates and ups, or of ups alone."""
    if not experts.has_gate:
        return {"up": out_first(experts, experts.up_proj)}
    both = out_first(experts, experts.gate_up_proj)
    if experts.is_concatenated:
        gates, ups = both.chunk(2, dim=1)
    else:
        gates, ups = both[:, ::2], both[:, 1::2]
    return {"gate": gates, "up": ups}


def out_first(experts: Any, weight: torch.Tensor) -> torch.Tensor:
    return weight.transpose(1, 2) if experts.is_transposed else weight


def linear(weight: torch.Tensor) -> torch.nn.Linear:
    layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    layer.weight.data = weight.detach().clone()
    return layer


def twins_of_family(case: str, experts: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """Return a model of a family of which one expert is active, and the same with linear layers for its experts."""
    config = tiny_models.config(case)
    text_config = getattr(config, "text_config", None) or config
    for name in ("num_experts", "num_local_experts", "n_routed_experts"):
        if getattr(text_config, name, None) is not None:
            setattr(text_config, name, experts)
    for name in ACTIVE_EXPERTS:
        if getattr(text_config, name, None) is not None:
            setattr(text_config, name, 1)
    monkeypatch.setattr(tiny_models, "config", lambda _: config)
    sparse = build(case)
    twin = copy.deepcopy(sparse)
    mixtures = [name for name, module in sparse.named_modules() if hasattr(module, "is_transposed")]
    assert mixtures
    for name in mixtures:
        parent, _, own_name = name.rpartition(".")
        setattr(twin.get_submodule(parent), own_name, UnstackedTwin(sparse.get_submodule(name)))
    return sparse, twin


@pytest.mark.parametrize(
    ("case", "experts"),
    [
        ("mixtral", 1),
        ("olmoe", 1),
        ("granitemoe", 1),
        ("qwen3_5_moe", 1),
        ("lfm2_moe", 1),
        ("qwen2_moe", 2),
        ("deepseek_v3", 2),
        ("glm4_moe", 2),
        ("dots1", 2),
        ("solar_open", 2),
        ("jamba", 2),
        ("nemotron_h", 2),  # no gates
        ("gpt_oss", 2),  # gates and ups alternate, inputs first, biases
    ],
)
def test_stacked_experts_and_their_twin_of_linear_layers_end_at_the_same_loss(
    case: str, experts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sparse, twin = twins_of_family(case, experts, monkeypatch)
    ids = torch.randint(3, VOCAB, (2, 9))
    with torch.no_grad():
        assert torch.allclose(twin(ids).logits, sparse(ids).logits, atol=1e-5)
    loss_of_twin = last_loss(twin, may_pack=True)
    assert loss_of_twin == pytest.approx(last_loss(sparse, may_pack=True), abs=1e-4)


class Llama4Twin(torch.nn.Module):
    """The function of Llama 4's experts, which are given every token once for each of them, as linear layers."""

    def __init__(self, experts: Any) -> None:
        super().__init__()
        gates, ups = experts.gate_up_proj.transpose(1, 2).chunk(2, dim=1)
        for number in range(experts.num_experts):
            self.add_module(f"gate_{number}", linear(gates[number]))
            self.add_module(f"up_{number}", linear(ups[number]))
        for number in range(experts.num_experts):
            self.add_module(f"down_{number}", linear(experts.down_proj[number].t()))
        self.act_fn = experts.act_fn
        self.num_experts = experts.num_experts

    def forward(self, hidden: Any) -> Any:
        outputs = []
        for number, x in enumerate(hidden.chunk(self.num_experts)):
            gate = self.act_fn(getattr(self, f"gate_{number}")(x))
            outputs.append(getattr(self, f"down_{number}")(getattr(self, f"up_{number}")(x) * gate))
        return torch.cat(outputs)


def test_llama_4_and_its_twin_of_linear_layers_end_at_the_same_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PEFT takes its experts' inputs for their outputs, and knows no gates and ups in them."""
    config = tiny_models.config("llama4_text")
    config.num_local_experts = 2
    config.num_experts_per_tok = 1
    monkeypatch.setattr(tiny_models, "config", lambda _: config)
    sparse = build("llama4_text")
    twin = copy.deepcopy(sparse)
    for layer in twin.model.layers:
        layer.feed_forward.experts = Llama4Twin(layer.feed_forward.experts)
    ids = torch.randint(3, VOCAB, (2, 9))
    with torch.no_grad():
        assert torch.allclose(twin(ids).logits, sparse(ids).logits, atol=1e-5)
    loss_of_twin = last_loss(twin, may_pack=True)
    assert loss_of_twin == pytest.approx(last_loss(sparse, may_pack=True), abs=1e-4)


@pytest.mark.parametrize("case", FAMILIES)
def test_all_linear_reaches_every_linear_map_of_the_body(case: str) -> None:
    model = build(case)
    lora = LoraConfig(r=8, dropout=0.0, targets=ALL)
    targets = find_targets(model, lora)
    adapted = {module for _, module in targets.layers}
    head = model.get_output_embeddings()
    left_out = [
        name
        for name, module in model.named_modules()
        if type(module) is torch.nn.Linear and module not in adapted and module is not head
    ]
    assert left_out == []
    stacks = {(entry.module, entry.parameter): entry for entry in targets.stacked}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if name.endswith("_proj") and parameter.dim() == 3:
                entry = stacks[module, name]
                assert entry.rank == 4 * entry.projections  # two experts are active
                assert entry.projections == (2 if name == "gate_up_proj" else 1)


def test_an_expert_has_at_least_rank_one() -> None:
    targets = find_targets(build("qwen3_moe"), LoraConfig(r=1, dropout=0.0, targets=ALL))
    assert {entry.rank for entry in targets.stacked} == {1, 2}  # gates and ups have one each


def test_a_config_that_does_not_say_how_many_experts_are_active_is_refused() -> None:
    model = build("ernie4_5_moe")
    model.config.moe_k = None
    with pytest.raises(TuningError, match="how many experts"):
        find_targets(model, LoraConfig(dropout=0.0, targets=ALL))


@pytest.mark.parametrize(
    "case",
    [
        "qwen3_moe",
        "gpt_oss",
        "deepseek_v3",
        "granitemoe",
        "glm4_moe",
        "qwen2_moe",
        "lfm2_moe",
        "longcat_flash",  # experts that no token of some steps reaches
        "llama4_text",  # every expert is given every token
        "jetmoe",  # sorted by expert: the block around them runs once for each lane
        "laguna",  # shared experts that PEFT's files know by another name
    ],
)
def test_adapters_on_experts_are_pefts(case: str) -> None:
    comparison = tune.compare(build(case), ALL, 96, tune.QUICKEST)
    assert not comparison.refused
    assert comparison.exact, comparison


@pytest.mark.parametrize("case", ["qwen3_moe", "gpt_oss", "glm4_moe", "lfm2_moe"])
def test_packed_passes_train_experts_as_padded_ones_do(case: str) -> None:
    lora = LoraConfig(r=4, alpha=8, dropout=0.0, targets=ALL)
    specs = tune.lanes(lora, 400, 96)[:3]
    states: list[dict[str, tune.AdapterTensors]] = []
    forms: list[type] = []
    for may_pack in (False, True):
        with LaneTrainer(build(case), may_pack=may_pack) as trainer:
            trainer.train(
                specs, on_step=lambda _, t=trainer: forms.append(type(t.run_under_way.stepper))
            )
            states.append({lane.key: trainer.adapter_state(lane.key) for lane in specs})
    assert forms[-1] is PackedStepper
    for key, state in states[0].items():
        gaps = [float((state[name] - states[1][key][name]).abs().max()) for name in state]
        assert max(gaps) < 1e-3


# ---- one packed pass ------------------------------------------------------------------------------------------------


def rows_of_slots(slots: int) -> list[TrainingRow]:
    rows: list[TrainingRow] = []
    for slot in range(slots):
        for row in spec(seed=slot).rows_of_step(0):
            rows.append(replace(row, slot=slot))
    return rows


def packed_gradients(
    model: Any, bank: AdapterBank, rows: Sequence[TrainingRow]
) -> tuple[torch.Tensor, torch.Tensor]:
    packed_pass = PackedPass(SplitModel(model), bank, None)
    bank.grads.zero_()
    packed_pass(place(lay_out_rows(rows), bank, few=False))
    return packed_pass.losses.clone(), bank.grads.clone()


def peft_gradients(
    model: Any, bank: AdapterBank, slot: int, rows: Sequence[TrainingRow]
) -> tuple[float, dict[str, torch.Tensor]]:
    """Return the loss and the gradients of plain PEFT with a slot's adapter, every row alone in its pass."""
    state = bank.peft_state(bank.weights[slot])
    total_loss = 0.0
    with wrapped_by_peft(model, bank) as wrapped:
        parameters: dict[str, torch.nn.Parameter] = {}
        for name, parameter in wrapped.named_parameters():
            if "lora_" in name:
                parameters[name.replace(".default", "")] = parameter
        assert parameters.keys() == state.keys()
        for name, parameter in parameters.items():
            parameter.data.copy_(state[name])
        for row in rows:
            loss = reference_loss(wrapped, row, torch.device("cpu"))
            loss.backward()
            total_loss += float(loss)
        gradients = {name: parameter.grad.clone() for name, parameter in parameters.items()}
    return total_loss, gradients


@pytest.mark.parametrize(
    "case",
    ["qwen3_moe", "mixtral", "gpt_oss", "granitemoe", "glm4_moe", "qwen2_moe", "lfm2_moe"],
)
def test_a_packed_pass_gives_pefts_loss_and_gradients(case: str) -> None:
    model = build(case)
    plain_model = copy.deepcopy(model)
    bank = AdapterBank(model, LoraConfig(r=4, alpha=8, dropout=0.0, targets=ALL), 3)
    bank.make_up_adapters()
    rows = rows_of_slots(3)
    losses, gradients = packed_gradients(model, bank, rows)
    for slot in range(3):
        slot_rows = [row for row in rows if row.slot == slot]
        peft_loss, expected_gradients = peft_gradients(plain_model, bank, slot, slot_rows)
        assert float(losses[slot]) == pytest.approx(peft_loss, rel=1e-5)
        slot_gradients = bank.peft_state(gradients[slot])
        for name, expected in expected_gradients.items():
            size = float(expected.abs().max())
            gap = float((slot_gradients[name] - expected).abs().max())
            assert gap <= 1e-3 * size + 1e-6, name
    assert sum(float(gradients[slot].norm()) for slot in range(3)) > 0


def copy_dense_adapters(dense_bank: AdapterBank, sparse_bank: AdapterBank) -> None:
    """Give every expert the adapters of its dense twin's projections; attention has none in either."""
    dense_sites = {site.name: site for site in dense_bank.sites}
    for site in dense_bank.sites:
        if ".self_attn." in site.name:
            a, b = dense_bank.views(dense_bank.weights, site)
            a.zero_()
            b.zero_()
    sparse_bank.weights.zero_()
    for site in sparse_bank.sites:
        if not site.experts:
            continue
        for part, dense_name in enumerate(projections_of(sparse_bank, site)):
            dense_site = dense_sites[dense_name]
            dense_a, dense_b = dense_bank.views(dense_bank.weights, dense_site)
            a, b = expert_views(sparse_bank, sparse_bank.weights, site)
            ranks = slice(part * dense_site.rank, (part + 1) * dense_site.rank)
            columns = slice(part * dense_site.fan_out, (part + 1) * dense_site.fan_out)
            a[:, :, ranks] = dense_a.transpose(1, 2)[:, None]
            b[:, ranks, :, columns] = dense_b[:, :, None]
    dense_bank.refresh_work()
    sparse_bank.refresh_work()


def projections_of(bank: AdapterBank, site: Any) -> list[str]:
    """Return the names of the dense projections that lie in a stacked parameter, in their order."""
    module_name, parameter = bank.stacked_at[site.index]
    mlp_name = module_name.removesuffix(".experts")
    names = ["gate_proj", "up_proj"] if parameter == "gate_up_proj" else [parameter]
    return [f"{mlp_name}.{name}" for name in names]


def expert_views(
    bank: AdapterBank, flat: torch.Tensor, site: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """View A (slots, experts, rank, in) and B (slots, rank, experts, out) of a stacked parameter."""
    a, b = bank.views(flat, site)
    rank = site.rank // site.experts
    by_expert = a.transpose(1, 2).unflatten(1, (site.experts, rank))
    return by_expert, b.unflatten(1, (rank, site.experts))


def test_equal_experts_have_the_loss_and_together_the_gradient_of_their_dense_twin() -> None:
    dense, sparse = dense_and_equal_experts(experts=4, active=2)
    ids = torch.randint(3, VOCAB, (2, 9))
    with torch.no_grad():
        assert torch.allclose(dense(ids).logits, sparse(ids).logits, atol=1e-5)
    dense_bank = AdapterBank(dense, LoraConfig(r=4, alpha=8, dropout=0.0, targets=ALL), 2)
    sparse_bank = AdapterBank(sparse, LoraConfig(r=8, alpha=8, dropout=0.0, targets=ALL), 2)
    dense_bank.make_up_adapters()
    copy_dense_adapters(dense_bank, sparse_bank)
    rows = rows_of_slots(2)
    dense_losses, dense_gradients = packed_gradients(dense, dense_bank, rows)
    losses, gradients = packed_gradients(sparse, sparse_bank, rows)
    assert torch.allclose(losses, dense_losses, rtol=1e-5)
    dense_sites = {site.name: site for site in dense_bank.sites}
    compared = 0
    for site in sparse_bank.sites:
        if not site.experts:
            continue
        a, b = expert_views(sparse_bank, gradients, site)
        assert (a.abs().amax(dim=(0, 2, 3)) > 0).all()  # every expert learns
        for part, dense_name in enumerate(projections_of(sparse_bank, site)):
            dense_site = dense_sites[dense_name]
            dense_a, dense_b = dense_bank.views(dense_gradients, dense_site)
            ranks = slice(part * dense_site.rank, (part + 1) * dense_site.rank)
            columns = slice(part * dense_site.fan_out, (part + 1) * dense_site.fan_out)
            a_sum = a[:, :, ranks].sum(dim=1).transpose(1, 2)
            b_sum = b[:, ranks, :, columns].sum(dim=2)
            assert torch.allclose(a_sum, dense_a, rtol=1e-3, atol=1e-6)
            assert torch.allclose(b_sum, dense_b, rtol=1e-3, atol=1e-6)
            compared += 1
    assert compared == 6


def test_an_expert_that_diverged_in_one_slot_leaves_the_others_alone() -> None:
    model = build("qwen3_moe")
    bank = AdapterBank(model, LoraConfig(r=4, alpha=8, dropout=0.0, targets=ALL), 3)
    bank.make_up_adapters()
    rows = rows_of_slots(3)
    losses, gradients = packed_gradients(model, bank, rows)
    bank.work[1].fill_(float("nan"))
    diverged_losses, diverged_gradients = packed_gradients(model, bank, rows)
    assert diverged_losses[1].isnan()
    for slot in (0, 2):
        assert torch.allclose(diverged_losses[slot], losses[slot], rtol=1e-5)
        assert torch.allclose(diverged_gradients[slot], gradients[slot], rtol=1e-4, atol=1e-7)


def test_what_is_computed_while_kernels_are_compiled_is_no_gradient(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Experts' gradients are added up by torch, which goes on where kernels are compiled and not run."""
    model = build("qwen3_moe")
    bank = AdapterBank(model, LoraConfig(r=4, alpha=8, dropout=0.0, targets=ALL), 3)
    bank.make_up_adapters()
    rows = rows_of_slots(3)
    losses, gradients = packed_gradients(model, bank, rows)

    @contextmanager
    def compiling(kind: str) -> Iterator[None]:
        yield

    monkeypatch.setattr(plain, "compiling", compiling)
    losses_after_compiling, gradients_after_compiling = packed_gradients(model, bank, rows)
    assert torch.equal(losses, losses_after_compiling)
    assert torch.equal(gradients, gradients_after_compiling)


def test_more_groups_than_the_kernel_takes_are_multiplied_in_parts() -> None:
    stream = torch.Generator().manual_seed(0)
    sizes = torch.tensor([3, 0, 5, 1, 0, 0, 4, 2, 6, 0, 7])
    ends = sizes.cumsum(0).to(torch.int32)
    x = torch.randn(int(ends[-1]), 6, generator=stream)
    weights = torch.randn(len(sizes), 6, 5, generator=stream)
    x_with_hole = x.clone()
    x_with_hole[4] = float("nan")  # a row of another part is none of a part's business
    whole = grouped_product(x_with_hole, weights, ends)
    for most_groups in (2, 3, 5, 10):
        parts = grouped_product(x_with_hole, weights, ends, most_groups)
        assert torch.equal(parts.isnan(), whole.isnan())
        assert torch.allclose(parts, whole, equal_nan=True)
