"""The check: forms that are not the model's own computation are not taken, whatever the model is called."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from architectures.odd import ODD
from architectures.tiny import build
from architectures.tune import adapter_distance, by_peft, read_back
from architectures.tune import lanes as specs_of
from lane_models import check_form, examples, spec, tiny
from potentia.engine import operations
from potentia.engine.layers import recomputation as passes
from potentia.engine.models import float32_copy
from potentia.engine.operations import plain
from potentia.engine.training import LaneSpec, LaneTrainer, LoraConfig, Schedule
from potentia.errors import TuningError
from potentia.values.training_form import TrainingForm
from speed import loop_seconds

# which form is right: without packed passes, and with them
RIGHT = {
    "attention in [s, b, h]": (TrainingForm.ONE_LANE, TrainingForm.ONE_LANE),
    "MLP in [s, b, h]": (TrainingForm.ONE_LANE, TrainingForm.PACKED),
    "a list of experts": (TrainingForm.ONE_LANE, TrainingForm.ONE_LANE),
    "a head that reads tokens": (TrainingForm.ONE_LANE, TrainingForm.ONE_LANE),
    "a look-back by another name": (TrainingForm.PADDED, TrainingForm.PADDED),
    "a residual factor": (TrainingForm.PADDED, TrainingForm.PACKED),
    "a layer without rotary": (TrainingForm.PADDED, TrainingForm.PACKED),
}
TARGETS = {
    "MLP in [s, b, h]": ("up_proj", "down_proj"),
    "a list of experts": ("experts.0", "experts.1", "q_proj"),
}


def specs(targets: tuple[str, ...] | None = None, dropout: float = 0.0) -> list[LaneSpec]:
    lora = LoraConfig(r=4, alpha=8, dropout=dropout, targets=targets)
    schedule = Schedule(epochs=2, batch=4, learning_rate=2e-3, loss="text")
    return [LaneSpec(f"l{i}", examples(12, seed=i, high=40), schedule, lora, i) for i in range(3)]


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("may_pack", [False, True])
def test_odd_models_are_tuned_as_peft_tunes_them(name: str, may_pack: bool) -> None:
    """Found before: cosines of 0.2 to 0.6 to PEFT's movement, silently."""
    lanes = specs(TARGETS.get(name))[:2]
    model = ODD[name]()
    with LaneTrainer(model, may_pack=may_pack) as trainer:
        trainer.train(lanes)
        assert trainer.training_facts.form is RIGHT[name][may_pack]
        states = {lane.key: trainer.adapter_state(lane.key) for lane in lanes}
        bank = trainer.install_bank(lanes[0].lora, trainer.plan.slots)
        starts = {lane.key: bank.peft_state(bank.fresh_row(lane.seed)) for lane in lanes}
    for lane in lanes:
        theirs = by_peft(ODD[name](), lane, starts[lane.key], bank)
        assert adapter_distance(states[lane.key], theirs, starts[lane.key]) < 2e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", ["helium", "granite+factors"])
def test_layers_that_only_look_like_llamas_are_not_written_by_hand(
    case: str, dtype: torch.dtype
) -> None:
    form_check = check_form(build(case).to(dtype), specs(), may_pack=True, limit=96)
    assert form_check.form == TrainingForm.PACKED
    assert "gradients by" in form_check.facts.not_taken[TrainingForm.FUSED]


def test_layers_that_do_not_rotate_are_written_by_hand() -> None:
    form_check = check_form(build("smollm3+nope"), specs(), may_pack=True, limit=96)
    assert form_check.form == TrainingForm.FUSED


def sharpened(factor: float) -> torch.nn.Module:
    """A model whose attention is nearly a choice of one token, as random weights of Gemma 4 make it."""
    model = build("gemma4_text")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "q_norm" in name:
                parameter.mul_(factor)
    return model


def test_a_model_that_differs_from_itself_by_its_last_bit_may_differ_so_much() -> None:
    form_check = check_form(sharpened(100.0), specs(), may_pack=True)
    assert form_check.form == TrainingForm.FUSED
    assert form_check.facts.distances.reference_noise.layer > 1e-3


def test_noise_excuses_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    original = plain.sum_adapter_gradients
    monkeypatch.setattr(
        plain,
        "sum_adapter_gradients",
        lambda x, dy, h, dh, *rest: original(x, 1.5 * dy, h, 1.5 * dh, *rest),
    )
    form_check = check_form(sharpened(100.0), specs(), may_pack=True)
    assert form_check.form == TrainingForm.PADDED


@pytest.mark.parametrize("case", ["olmo", "olmo2", "olmo3", "flex_olmo"])
def test_angles_in_float32_are_no_obstacle_in_bfloat16(case: str) -> None:
    """Found before: "Expected query, key, and value to have the same dtype", and a ranking by direct scores."""
    with LaneTrainer(build(case).to(torch.bfloat16)) as trainer:
        results = trainer.train(specs()[:2])
        assert trainer.training_facts.form is TrainingForm.PADDED
    assert all(result.status == "done" for result in results.values())


def test_rows_that_change_others_are_kept_apart_in_bfloat16_too() -> None:
    with LaneTrainer(build("phi3+longrope").to(torch.bfloat16)) as trainer:
        trainer.train(specs())
        assert trainer.training_facts.form is TrainingForm.ONE_ROW


def test_a_fall_back_is_told_with_its_cost(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        lanes = specs(("experts.0", "experts.1"))
        form_check = check_form(ODD["a list of experts"](), lanes, may_pack=False)
    assert form_check.form == TrainingForm.ONE_LANE
    assert "as many passes as there are fine-tunings" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        check_form(tiny("llama"), specs(), may_pack=True)
    assert not caplog.text


def test_a_model_that_no_form_computes_is_tuned_row_by_row_by_its_own_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from potentia.engine.layers import adapter_methods

    lanes = specs()
    original = adapter_methods.backpropagate_adapter_share
    monkeypatch.setattr(
        adapter_methods,
        "backpropagate_adapter_share",
        lambda ctx, grad_output, base: original(ctx, grad_output * 1.05, base),
    )
    model = tiny("llama")
    with LaneTrainer(model) as trainer:
        trainer.train(lanes)
        assert trainer.training_facts.form is TrainingForm.ONE_ROW
        assert "gradients by" in trainer.training_facts.not_taken[TrainingForm.PADDED]
        ours = trainer.adapter_state(lanes[0].key)
        bank = trainer.install_bank(lanes[0].lora, trainer.plan.slots)
        start = bank.peft_state(bank.fresh_row(lanes[0].seed))
    assert adapter_distance(ours, by_peft(tiny("llama"), lanes[0], start, bank), start) < 2e-3


def test_wrong_updates_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    original = plain.update_

    def wrong(weights: torch.Tensor, *rest: torch.Tensor) -> None:
        original(weights, *rest)
        weights[:-1] += 1e-5

    monkeypatch.setattr(plain, "update_", wrong)
    with pytest.raises(TuningError, match="updates are off"):
        check_form(tiny("llama"), specs(), may_pack=False)


@pytest.mark.parametrize("case", ["doge+moe", "flex_olmo", "beam", "gemma4_text+moe"])
def test_bfloat16_is_no_farther_off_than_pefts(case: str) -> None:
    """Found before: up to 8 times as far, by a router's near ties."""
    facts = check_form(build(case).to(torch.bfloat16), specs(), may_pack=False, limit=96).facts
    assert facts.gradient_error <= max(1.5 * facts.reference_rounding.lane, 0.02)


def test_the_check_of_a_small_model_costs_little() -> None:
    lanes = [spec(f"l{i}", seed=i, dropout=0.1) for i in range(3)]
    began = time.process_time()
    form_check = check_form(tiny("llama"), lanes, may_pack=True, limit=128)
    assert time.process_time() - began < 300 * loop_seconds()
    assert form_check.facts.update_error < 1e-5


@pytest.mark.parametrize("may_pack", [False, True])
@pytest.mark.parametrize("kind", ["lora", "rslora"])
@pytest.mark.parametrize("case", ["llama", "gpt2"])
def test_adapters_of_every_kind_are_pefts(case: str, kind: Any, may_pack: bool) -> None:
    lora = LoraConfig(r=4, alpha=8, dropout=0.0, kind=kind, targets=None)
    lanes = [replace(lane, lora=lora) for lane in specs()[:2]]
    model = build(case)
    with LaneTrainer(model, may_pack=may_pack) as trainer:
        trainer.train(lanes)
        fast = TrainingForm.PACKED if case == "gpt2" else TrainingForm.FUSED
        assert trainer.training_facts.form is (fast if may_pack else TrainingForm.PADDED)
        ours = {lane.key: trainer.adapter_state(lane.key) for lane in lanes}
        bank = trainer.install_bank(lora, trainer.plan.slots)
        starts = {lane.key: bank.peft_state(bank.fresh_row(lane.seed)) for lane in lanes}
        saved, effect = read_back(trainer, lanes[0].key, model, build(case))
        assert saved < 1e-4 < 1e-3 < effect
    for lane in lanes:
        theirs = by_peft(build(case), lane, starts[lane.key], bank)
        assert adapter_distance(ours[lane.key], theirs, starts[lane.key]) < 2e-3


KERNELS = {
    "norm": 0,
    "gate": 0,
    "gate_back_": 1,
    "add_adapter_outputs": 0,
    "backpropagate_adapters": 0,
    "sum_adapter_gradients": 1,
    "attend": 2,
    "attend_back": 0,
}


@pytest.mark.parametrize(
    "broken", ["", "norm", "gate_back_", "sum_adapter_gradients", "attend_back"]
)
def test_kernels_are_compared_one_by_one_in_the_dtype_of_the_run(
    broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Structure is judged by plain operations: no kernel is made for a dtype that nothing is trained in."""
    seen: set[tuple[str, torch.dtype]] = set()

    def kernel(name: str) -> Any:
        def run(*args: Any, **options: Any) -> Any:
            seen.add((name, args[0].dtype))
            given = [
                arg * 1.1 if name == broken and at == KERNELS[name] else arg
                for at, arg in enumerate(args)
            ]
            return getattr(plain, name)(*given, **options)

        return run

    names = [
        name
        for name, made in vars(plain).items()
        if callable(made) and made.__module__ == plain.__name__ and name != "compiling"
    ]
    kernels = SimpleNamespace(compiling=plain.compiling, **{name: kernel(name) for name in names})
    monkeypatch.setattr(operations, "kernels_for", lambda _: kernels)
    lanes = check_form(tiny("llama").to(torch.bfloat16), specs(), may_pack=True)
    assert {dtype for name, dtype in seen if name != "update_"} == {torch.bfloat16}
    assert (lanes.form == TrainingForm.FUSED) == (not broken)
    if not broken:
        assert {*KERNELS} <= lanes.facts.distances.kernels.keys()
        assert max(lanes.facts.distances.kernels.values()) == 0


def deep(kind: str = "llama", layers: int = 4) -> Any:
    small = tiny(kind)
    settings = {
        name: value for name, value in small.config.to_dict().items() if name != "layer_types"
    }
    config = type(small.config).from_dict(settings | {"num_hidden_layers": layers})
    return type(small)(config).eval().to(torch.bfloat16)


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_fewer_blocks_are_the_ones_that_they_were(kind: str) -> None:
    """Gemma's config names the kind of every block: a copy of four had the first four kinds, and was wrong."""
    model = deep(kind, 12)
    lanes = [
        spec(f"l{i}", seed=i, data=examples(12, seed=i, low=20, high=40)) for i in range(3)
    ]  # beyond its window
    result = check_form(model, lanes, may_pack=True)
    assert result.form == TrainingForm.FUSED
    assert result.may_recompute, result.facts.recomputation_refused
    again = check_form(model, lanes, may_pack=True, limit=128, proof=result)
    assert not again.was_full
    assert again.facts.distances.blocks == (2 if kind == "llama" else 4)
    assert len(getattr(model.config, "layer_types", None) or range(12)) == 12


def test_a_model_too_large_for_a_whole_copy_keeps_its_hand_written_layers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its copy has fewer blocks than its config says: its layers were said to be of another kind, in silence."""
    monkeypatch.setattr(float32_copy, "_free_bytes", lambda _: 0)
    lanes = check_form(deep(), specs(), may_pack=True)
    assert lanes.facts.distances.blocks == 2
    assert lanes.form == TrainingForm.FUSED


def test_recomputing_is_judged_by_blocks_that_another_follows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A norm after a model's only block hides how large its answer is."""
    original = passes.checkpoint
    monkeypatch.setattr(passes, "checkpoint", lambda *given, **how: original(*given, **how) * 1.02)
    lanes = check_form(deep(), specs(), may_pack=True)
    assert lanes.form == TrainingForm.FUSED
    assert not lanes.may_recompute
    assert "losses off" in lanes.facts.recomputation_refused


def test_in_16_bits_gradients_are_at_most_half_as_far_off_again_as_the_models_own() -> None:
    """By other rows where some are an accident: what is allowed had a floor, and this one was at 1.52 under it."""
    lanes = specs_of(
        LoraConfig(r=4, alpha=8, dropout=0.0, targets=None),
        int(build("roberta").config.vocab_size),
        96,
    )
    result = check_form(build("roberta").to(torch.bfloat16), lanes, may_pack=False, limit=96)
    assert result.form == TrainingForm.PADDED
    assert result.facts.gradient_error <= 1.5 * result.facts.reference_rounding.lane
