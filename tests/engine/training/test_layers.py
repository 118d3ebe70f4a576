"""Which layers are adapted, and that adapters on layers of every make are PEFT's."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from architectures import tune
from architectures.tiny import build
from lane_models import VOCAB, examples, gap, spec, tiny
from potentia.engine.layers.adapter_targets import find_targets
from potentia.engine.steps.packed_steps import PackedStepper
from potentia.engine.steps.padded_steps import PaddedStepper
from potentia.engine.training import LaneSpec, LaneTrainer, LoraConfig, Schedule, TokenisedExamples
from potentia.errors import TuningError

ALL = ("all-linear",)


def right(found: tune.Tuning) -> bool:
    return found.exact and not found.refused


# ---- the same adapters as PEFT's ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "targets"),
    [
        ("bamba", None),  # its norm takes a gate
        ("opt+dropout", ALL),  # its blocks drop out where they believe to be in training
        ("olmo+clip", None),  # clips adapted outputs in place
        ("falcon", ALL),  # adds to an adapted output in place
        ("mixtral", ALL),  # experts are stacked parameters
        ("deepseek_v3", None),  # PEFT takes the names of its dense layers for its experts'
        ("gpt_oss", ALL),  # experts that PEFT leaves alone where it is asked for all linear layers
        ("phimoe", ALL),  # a router that looks like a linear layer
        ("mamba", ALL),  # PEFT refuses one of its layers
        ("bert", ALL),  # a head with a layer of its own
        ("phi3+longrope", None),  # turns positions otherwise where one row of a pass is long
    ],
)
def test_lanes_are_pefts_adapters(case: str, targets: tuple[str, ...] | None) -> None:
    assert right(tune.compare(build(case), targets, 96, tune.QUICK))


# ---- layers that are more than linear -------------------------------------------------------------------------------


class Doubled(nn.Linear):
    """A layer with a forward of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


def replaced(kind: type[nn.Linear]) -> nn.Module:
    model = tiny("llama")
    for layer in model.model.layers:
        original = layer.self_attn.q_proj
        layer.self_attn.q_proj = kind(original.in_features, original.out_features, bias=False)
        layer.self_attn.q_proj.weight.data.copy_(original.weight)
    return model


@pytest.fixture
def uncompiled() -> Iterator[None]:
    """Run BitNet's layers as they are written: a C++ compiler takes a minute for them on a new machine."""
    with torch.compiler.set_stance("force_eager"):
        yield


def _bit_linear() -> type[nn.Linear]:
    from transformers.integrations.bitnet import AutoBitLinear

    return AutoBitLinear


@pytest.mark.parametrize("kind", [Doubled, _bit_linear()])
def test_a_layer_keeps_its_own_forward(kind: type[nn.Linear], uncompiled: None) -> None:
    model = replaced(kind)
    ids = torch.randint(3, VOCAB, (2, 9))
    with torch.no_grad():
        before = model(ids).logits
    with LaneTrainer(model) as trainer:
        bank = trainer.install_bank(LoraConfig(dropout=0.0, targets=None), 2)
        bank.weights[0].copy_(bank.fresh_row(0))  # B is zero: nothing may change
        bank.refresh_work()
        with torch.no_grad():
            for owners in ([0, 1], [0, 0]):
                trainer.route(torch.tensor(owners))
                assert torch.allclose(model(ids).logits, before, atol=1e-5)


def test_lanes_on_such_a_layer_are_pefts() -> None:
    assert right(tune.compare(replaced(Doubled), None, 64, tune.QUICK))


# ---- packed passes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "targets", "form"),
    [
        ("bamba", None, PackedStepper),  # states stay within rows
        ("opt+dropout", ALL, PackedStepper),
        ("olmo+clip", None, PackedStepper),
        ("mixtral", ALL, PackedStepper),  # stacked experts
        ("mixtral", None, PackedStepper),
        ("gpt_oss", None, PackedStepper),  # attention sinks
        ("llama4_text", None, PaddedStepper),  # attends within chunks, which a mask alone tells
        ("bitnet", None, PackedStepper),
        ("gemma3", None, PackedStepper),
    ],
)
def test_static_lanes_are_the_plain_lanes(
    case: str, targets: tuple[str, ...] | None, form: type, uncompiled: None
) -> None:
    specs = tune.lanes(LoraConfig(r=4, alpha=8, dropout=0.0, targets=targets), 400, 96)[:3]
    results: list[dict[str, tune.AdapterTensors]] = []
    taken = []
    for may_pack, recompute in ((False, False), (True, False), (True, True)):
        with LaneTrainer(build(case), may_pack=may_pack, recompute=recompute) as trainer:
            trainer.train(
                specs, on_step=lambda _, t=trainer: taken.append(type(t.run_under_way.stepper))
            )
            results.append({spec.key: trainer.adapter_state(spec.key) for spec in specs})
    assert set(taken) == {PaddedStepper, form}
    for other in results[1:]:
        assert max(gap(results[0][spec.key], other[spec.key]) for spec in specs) < 1e-4


# ---- which layers ---------------------------------------------------------------------------------------------------


def names(case: str, targets: tuple[str, ...] | None = None) -> list[str]:
    return [
        name
        for name, _ in find_targets(build(case), LoraConfig(targets=targets, dropout=0.0)).layers
    ]


def test_a_picture_tower_gets_no_adapters() -> None:
    for targets in (None, ALL, ("q_proj", "v_proj")):
        result = names("gemma3", targets)
        assert result
        assert not [name for name in result if "vision" in name or "projector" in name]


def test_all_linear_is_pefts_where_there_are_no_experts() -> None:
    from peft import LoraConfig as PeftConfig
    from peft import get_peft_model

    for case in ("llama", "gpt2"):
        model = build(case)
        targets = find_targets(model, LoraConfig(targets=ALL, dropout=0.0))
        ours = {name for name, _ in targets.layers}
        wrapped = get_peft_model(
            copy.deepcopy(model), PeftConfig(target_modules="all-linear", task_type="CAUSAL_LM")
        )
        theirs = {
            n.partition(".lora_A")[0] for n, _ in wrapped.named_parameters() if ".lora_A." in n
        }
        assert {f"base_model.model.{name}" for name in ours} == theirs


def test_routers_are_refused_by_name_and_skipped_otherwise() -> None:
    with pytest.raises(TuningError, match="Llama4Router"):
        names("llama4_text", ("router",))
    assert not [name for name in names("llama4_text") if name.endswith("router")]


def test_stacked_experts_take_no_dropout() -> None:
    with pytest.raises(TuningError, match="without dropout") as caught:
        find_targets(build("mixtral"), LoraConfig(targets=ALL, dropout=0.1))
    assert len(str(caught.value).splitlines()) <= 2
    assert find_targets(
        build("mixtral"), LoraConfig(dropout=0.1, targets=None)
    ).layers  # PEFT's default names attention alone


# ---- small steps, empty targets -------------------------------------------------------------------------------------


def test_an_update_too_small_for_half_precision_is_an_update() -> None:
    """The first of many warm-up steps moves an adapter by less than bf16 resolves in the model's outputs."""
    model = tiny("llama").to(torch.bfloat16)
    specs = [
        spec(
            f"lane-{seed}",
            seed=seed,
            data=examples(16, seed=seed),
            learning_rate=1e-5,
            warmup_steps=500,
            epochs=2,
        )
        for seed in range(3)
    ]
    with LaneTrainer(model) as trainer:
        results = trainer.train(specs)
    assert [result.status for result in results.values()] == ["done"] * 3


def test_a_batch_without_a_target_is_a_step_without_a_loss() -> None:
    ids = [[5, 6, 7, 8]] * 8 + [[9, 10, 11, 12, 13]] * 8
    tokenised_examples = TokenisedExamples.from_lists(
        ids, [4] * 8 + [2] * 8
    )  # the first eight are prompts alone
    schedule = Schedule(epochs=2, batch=4, loss="completion", learning_rate=2e-5)
    lane = LaneSpec("half", tokenised_examples, schedule, LoraConfig(dropout=0.0, targets=None), 0)
    with LaneTrainer(tiny("llama"), token_budget=4) as trainer:
        results = trainer.train([lane])
        assert results["half"].status == "done"
        assert all(epoch.loss > 0 for epoch in results["half"].epochs)


def test_recomputing_changes_no_mode() -> None:
    from potentia.engine.layers.recomputation import recomputed_activations

    model = build("opt+dropout")
    before = {name: set(module.__dict__) for name, module in model.named_modules()}
    with recomputed_activations(model, True):
        assert not any(module.training for module in model.modules())
    assert {name: set(module.__dict__) for name, module in model.named_modules()} == {
        n: set(d) for n, d in before.items()
    }


def test_lanes_of_stacked_experts_do_not_interact() -> None:
    lora = LoraConfig(r=2, dropout=0.0, targets=ALL)
    specs = tune.lanes(lora, 400, 96)
    with LaneTrainer(build("qwen3_moe")) as trainer:
        trainer.train(specs)
        among = trainer.adapter_state(specs[2].key)
    with LaneTrainer(build("qwen3_moe")) as trainer:
        trainer.train([specs[2]])
        assert gap(among, trainer.adapter_state(specs[2].key)) < 1e-5
