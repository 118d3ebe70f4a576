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
from lane_models import examples, spec, tiny
from potentia.engine import operations
from potentia.engine.layers import recomputation as passes
from potentia.engine.models import float32_copy as twin
from potentia.engine.operations import plain
from potentia.engine.proof.training_check import check_lanes, recheck_lanes
from potentia.engine.training import LaneSpec, LaneTrainer, LoraConfig, Schedule
from potentia.errors import TuningError
from potentia.values.training_form import TrainingForm
from speed import loop_seconds

# which form is right: without static passes, and with them
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
    schedule = Schedule(epochs=2, batch=4, learning_rate=2e-3)
    return [LaneSpec(f"l{i}", examples(12, seed=i, high=40), schedule, lora, i) for i in range(3)]


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("static", [False, True])
def test_odd_models_are_tuned_as_peft_tunes_them(name: str, static: bool) -> None:
    """Found before: cosines of 0.2 to 0.6 to PEFT's movement, silently."""
    lanes = specs(TARGETS.get(name))
    model = ODD[name]()
    with LaneTrainer(model, static=static) as trainer:
        trainer.train(lanes)
        assert trainer.record["training"]["form"] == RIGHT[name][static].value
        states = {lane.key: trainer.adapter_state(lane.key) for lane in lanes}
        bank = trainer.bank(lanes[0].lora, trainer.plan.slots)
        starts = {lane.key: bank.peft_state(bank.fresh_row(lane.seed)) for lane in lanes}
    for lane in lanes:
        theirs = by_peft(ODD[name](), lane, starts[lane.key], bank)
        assert adapter_distance(states[lane.key], theirs, starts[lane.key]) < 2e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", ["helium", "granite+factors"])
def test_layers_that_only_look_like_llamas_are_not_written_by_hand(
    case: str, dtype: torch.dtype
) -> None:
    verdict = check_lanes(build(case).to(dtype), specs()[0].lora, specs(), static=True, limit=96)
    assert verdict.form == TrainingForm.PACKED
    assert "gradients by" in verdict.facts["not_taken"][TrainingForm.FUSED.value]


def test_layers_that_do_not_rotate_are_written_by_hand() -> None:
    verdict = check_lanes(build("smollm3+nope"), specs()[0].lora, specs(), static=True, limit=96)
    assert verdict.form == TrainingForm.FUSED


def sharpened(factor: float) -> torch.nn.Module:
    """A model whose attention is nearly a choice of one token, as random weights of Gemma 4 make it."""
    model = build("gemma4_text")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "q_norm" in name:
                parameter.mul_(factor)
    return model


def test_a_model_that_differs_from_itself_by_its_last_bit_may_differ_so_much() -> None:
    verdict = check_lanes(sharpened(100.0), specs()[0].lora, specs(), static=True)
    assert verdict.form == TrainingForm.PACKED
    assert verdict.facts["own_noise"]["layer"] > 1e-3


def test_noise_excuses_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    own = plain.sum_adapter_gradients
    monkeypatch.setattr(
        plain,
        "sum_adapter_gradients",
        lambda x, dy, h, dh, *rest: own(x, 1.5 * dy, h, 1.5 * dh, *rest),
    )
    verdict = check_lanes(sharpened(100.0), specs()[0].lora, specs(), static=True)
    assert verdict.form == TrainingForm.PADDED


@pytest.mark.parametrize("case", ["olmo", "olmo2", "olmo3", "flex_olmo"])
def test_angles_in_float32_are_no_obstacle_in_bfloat16(case: str) -> None:
    """Found before: "Expected query, key, and value to have the same dtype", and a ranking by direct scores."""
    with LaneTrainer(build(case).to(torch.bfloat16)) as trainer:
        results = trainer.train(specs())
        assert trainer.record["training"]["form"] == TrainingForm.PADDED.value
    assert all(result.status == "done" for result in results.values())


def test_rows_that_change_others_are_kept_apart_in_bfloat16_too() -> None:
    with LaneTrainer(build("phi3+longrope").to(torch.bfloat16)) as trainer:
        trainer.train(specs())
        assert trainer.record["training"]["form"] == TrainingForm.ONE_ROW.value


def test_a_fall_back_is_told_with_its_cost(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        lanes = specs(("experts.0", "experts.1"))
        verdict = check_lanes(ODD["a list of experts"](), lanes[0].lora, lanes, static=False)
    assert verdict.form == TrainingForm.ONE_LANE
    assert "as many passes as there are lanes" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        check_lanes(tiny("llama"), specs()[0].lora, specs(), static=True)
    assert not caplog.text


def test_a_model_that_no_form_computes_is_tuned_row_by_row_by_its_own_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from potentia.engine.layers import adapter_methods

    lanes = specs()
    own = adapter_methods.backpropagate_adapter_share
    monkeypatch.setattr(
        adapter_methods,
        "backpropagate_adapter_share",
        lambda ctx, slope, base: own(ctx, slope * 1.05, base),
    )
    model = tiny("llama")
    with LaneTrainer(model) as trainer:
        trainer.train(lanes)
        assert trainer.record["training"]["form"] == TrainingForm.ONE_ROW.value
        assert "gradients by" in trainer.record["training"]["not_taken"][TrainingForm.PADDED.value]
        ours = trainer.adapter_state(lanes[0].key)
        bank = trainer.bank(lanes[0].lora, trainer.plan.slots)
        start = bank.peft_state(bank.fresh_row(lanes[0].seed))
    assert adapter_distance(ours, by_peft(tiny("llama"), lanes[0], start, bank), start) < 2e-3


def test_wrong_updates_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    own = plain.update_

    def wrong(weights: torch.Tensor, *rest: torch.Tensor) -> None:
        own(weights, *rest)
        weights[:-1] += 1e-5

    monkeypatch.setattr(plain, "update_", wrong)
    with pytest.raises(TuningError, match="updates are off"):
        check_lanes(tiny("llama"), specs()[0].lora, specs(), static=False)


@pytest.mark.parametrize("case", ["doge+moe", "flex_olmo", "beam", "gemma4_text+moe"])
def test_bfloat16_is_no_farther_off_than_pefts(case: str) -> None:
    """Found before: up to 8 times as far, by a router's near ties."""
    facts = check_lanes(
        build(case).to(torch.bfloat16), specs()[0].lora, specs(), static=False, limit=96
    ).facts
    assert facts["distance_in_few_bits"]["lane"] <= max(1.5 * facts["own_rounding"]["lane"], 0.02)


def test_the_check_of_a_small_model_costs_little() -> None:
    lanes = [spec(f"l{i}", seed=i, dropout=0.1) for i in range(3)]
    began = time.process_time()
    verdict = check_lanes(tiny("llama"), lanes[0].lora, lanes, static=True, limit=128)
    assert time.process_time() - began < 300 * loop_seconds()
    assert verdict.facts["update"] < 1e-5


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("kind", ["lora", "rslora"])
@pytest.mark.parametrize("case", ["llama", "gpt2"])
def test_adapters_of_every_kind_are_pefts(case: str, kind: Any, static: bool) -> None:
    lora = LoraConfig(r=4, alpha=8, dropout=0.0, kind=kind)
    lanes = [replace(lane, lora=lora) for lane in specs()]
    model = build(case)
    with LaneTrainer(model, static=static) as trainer:
        trainer.train(lanes)
        fast = TrainingForm.PACKED if case == "gpt2" else TrainingForm.FUSED
        assert trainer.record["training"]["form"] == (fast if static else TrainingForm.PADDED).value
        ours = {lane.key: trainer.adapter_state(lane.key) for lane in lanes}
        bank = trainer.bank(lora, trainer.plan.slots)
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
        if callable(made) and made.__module__ == plain.__name__
    ]
    kernels = SimpleNamespace(**{name: kernel(name) for name in names})
    monkeypatch.setattr(operations, "kernels_for", lambda _: kernels)
    found = check_lanes(tiny("llama").to(torch.bfloat16), specs()[0].lora, specs(), static=True)
    assert {dtype for name, dtype in seen if name != "update_"} == {torch.bfloat16}
    assert (found.form == TrainingForm.FUSED) == (not broken)
    if not broken:
        assert {*KERNELS} <= found.facts["kernels"].keys()
        assert max(found.facts["kernels"].values()) == 0


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
    found = check_lanes(model, lanes[0].lora, lanes, static=True)
    assert found.form == TrainingForm.FUSED
    assert found.recomputes, found.facts["recomputing"]
    again = recheck_lanes(model, lanes[0].lora, lanes, found, limit=128, recompute=False)
    assert again is not None
    assert again.facts["judged_blocks"].startswith("2 of 12" if kind == "llama" else "4 of 12")
    assert len(getattr(model.config, "layer_types", None) or range(12)) == 12


def test_a_model_too_large_for_a_whole_copy_keeps_its_hand_written_layers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its copy has fewer blocks than its config says: its layers were said to be of another kind, in silence."""
    monkeypatch.setattr(twin, "_free_bytes", lambda _: 0)
    found = check_lanes(deep(), specs()[0].lora, specs(), static=True)
    assert found.facts["judged_blocks"] == "2 of 4, two of each kind"
    assert found.form == TrainingForm.FUSED


def test_recomputing_is_judged_by_blocks_that_another_follows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A norm after a model's only block hides how large its answer is."""
    own = passes.checkpoint
    monkeypatch.setattr(passes, "checkpoint", lambda *given, **how: own(*given, **how) * 1.02)
    found = check_lanes(deep(), specs()[0].lora, specs(), static=True)
    assert found.form == TrainingForm.FUSED
    assert not found.recomputes
    assert "losses off" in found.facts["recomputing"]


def test_in_16_bits_gradients_are_at_most_half_as_far_off_again_as_the_models_own() -> None:
    """By other rows where some are an accident: what is allowed had a floor, and this one was at 1.52 under it."""
    lanes = specs_of(
        LoraConfig(r=4, alpha=8, dropout=0.0), int(build("roberta").config.vocab_size), 96
    )
    found = check_lanes(
        build("roberta").to(torch.bfloat16), lanes[0].lora, lanes, static=False, limit=96
    )
    assert found.form == TrainingForm.PADDED
    assert found.facts["distance_in_few_bits"]["lane"] <= 1.5 * found.facts["own_rounding"]["lane"]
