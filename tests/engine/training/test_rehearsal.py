"""The rehearsal of the first step: it notices what a few rows do not show, and leaves no trace."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from lane_models import NO_ADAPTERS, examples, tiny
from potentia.engine.layers import lane_layers
from potentia.engine.layers.adapter_bank import AdapterBank
from potentia.engine.layers.adapter_methods import find_adapter_method
from potentia.engine.operations import plain
from potentia.engine.proof import rehearsal
from potentia.engine.proof.plan_check import find_batch_fault
from potentia.engine.proof.reference import peft_scale, reference_learning_rate
from potentia.engine.proof.rehearsal import RehearsalResult
from potentia.engine.steps import packed_steps, pass_plan
from potentia.engine.training import (
    LaneSpec,
    LaneTrainer,
    LoraConfig,
    Schedule,
    TokenisedExamples,
    lane_run,
)
from potentia.errors import TuningError
from potentia.values.training_form import TrainingForm


def specs(count: int = 6, dropout: float = 0.1, **settings: Any) -> list[LaneSpec]:
    lora = LoraConfig(r=4, alpha=8, dropout=dropout, targets=("q_proj", "v_proj", "down_proj"))
    common: dict[str, Any] = {"epochs": 2, "batch": 4, "loss": "text"}
    return [
        LaneSpec(
            f"l{number}",
            examples(10, seed=number, high=40),
            Schedule(**common | {"learning_rate": 1e-3 * (1 + number)} | settings),
            lora,
            number,
        )
        for number in range(count)
    ]


def train(lanes: list[LaneSpec], **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    with LaneTrainer(tiny("llama"), token_budget=300, **options) as trainer:
        trainer.train(lanes)
        adapters = {lane.key: trainer.adapter_state(lane.key) for lane in lanes}
        return adapters, trainer.training_facts


@pytest.mark.parametrize("may_pack", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_training_goes_on_as_if_nothing_had_been(
    may_pack: bool, dropout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    lanes = specs(dropout=dropout)
    rehearsed, facts = train(lanes, may_pack=may_pack)
    assert facts.form is (TrainingForm.FUSED if may_pack else TrainingForm.PADDED)
    assert facts.rehearsal.lanes == 6
    assert facts.rehearsal.passes > 1
    assert 5 in facts.rehearsal.slots
    monkeypatch.setattr(lane_run, "rehearse_first_step", lambda *_, **__: RehearsalResult())
    plain, facts = train(lanes, may_pack=may_pack)
    assert facts.rehearsal.passes is None
    for key, state in plain.items():
        for name, value in state.items():
            assert torch.equal(value, rehearsed[key][name]), name


def test_a_resumed_run_is_rehearsed_and_goes_on_bit_for_bit(tmp_path: Path) -> None:
    lanes = specs()
    undisturbed, _ = train(lanes)
    with LaneTrainer(tiny("llama"), token_budget=300, workspace=tmp_path) as trainer:
        ended: list[Any] = []
        trainer.train(lanes, on_epoch=ended.extend, stop=lambda: bool(ended))
    resumed, facts = train(lanes, workspace=tmp_path)
    assert facts.rehearsal.lanes == 6
    assert facts.rehearsal.update < 1e-5
    for key, state in undisturbed.items():
        for name, value in state.items():
            assert torch.equal(value, resumed[key][name]), name


def test_a_form_that_fails_the_rehearsal_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the check of six rows does not see, a real step does: the next slower form is taken, and said."""
    original = lane_layers.add_factor_gradients

    def lose_seventh(bank: Any, site: Any, owners: torch.Tensor, *parts: torch.Tensor) -> None:
        kept, h, dy, dh = parts
        if owners.shape[0] > 6:
            dy, dh = dy.clone(), dh.clone()
            dy[-1], dh[-1] = 0, 0
        original(bank, site, owners, kept, h, dy, dh)

    monkeypatch.setattr(lane_layers, "add_factor_gradients", lose_seventh)
    recalled: list[Any] = []
    with LaneTrainer(tiny("llama"), token_budget=300) as trainer:
        results = trainer.train(specs(dropout=0.0), on_resume=recalled.append)
        facts = trainer.training_facts
    assert facts.form is TrainingForm.ONE_LANE
    assert "the first step of all fine-tunings: losses off" in facts.not_taken[TrainingForm.PADDED]
    assert {result.status for result in results.values()} == {"done"}
    assert not recalled


def test_wrong_updates_end_the_run_before_its_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    original = lane_run.LaneRun.update_table

    def doubled(self: Any, lanes: Any) -> Any:
        table = original(self, lanes)
        table[:, 5] *= 2
        return table

    monkeypatch.setattr(lane_run.LaneRun, "update_table", doubled)
    steps: list[Any] = []
    with (
        LaneTrainer(tiny("llama"), may_pack=True) as trainer,
        pytest.raises(TuningError, match="first two updates are off"),
    ):
        trainer.train(specs(), on_step=steps.append)
    assert not steps


def test_lanes_that_are_clipped_by_the_norm_of_another_end_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first rehearsed gradient lies below the clip, the second above it, each lane by its own factor."""
    right = plain.update_

    def clip_together(*arguments: Any) -> None:
        *others, norms = arguments
        right(*others, torch.full_like(norms, float(norms.max())))

    monkeypatch.setattr(plain, "update_", clip_together)
    for may_pack in (False, True):
        with (
            LaneTrainer(tiny("llama"), may_pack=may_pack) as trainer,
            pytest.raises(TuningError, match="cannot be tuned here"),
        ):
            trainer.train(specs(clip=0.3))


@pytest.mark.parametrize("may_pack", [False, True])
def test_a_row_that_is_in_no_pass_ends_the_run_in_any_step(
    may_pack: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[Any] = []
    for module, name in (
        (pass_plan, "divide_into_padded_passes"),
        (packed_steps, "divide_into_packed_passes"),
    ):
        right = getattr(module, name)

        def lose_row(rows: Any, plan: Any, right: Any = right) -> Any:
            return right(rows[:-1] if len(steps) >= 3 else rows, plan)

        monkeypatch.setattr(module, name, lose_row)
    with (
        LaneTrainer(tiny("llama"), may_pack=may_pack, token_budget=300) as trainer,
        pytest.raises(TuningError, match="do not have each of its"),
    ):
        trainer.train(specs(), on_step=steps.append)
    assert len(steps) == 3


def test_without_memory_for_the_reference_the_run_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory (simulated)")

    monkeypatch.setattr(rehearsal, "reference_gradients", refuse)
    _, facts = train(specs())
    assert facts.rehearsal.lacked_memory
    assert "no memory to rehearse" in caplog.text


@pytest.mark.parametrize("decay", ["linear", "cosine", "constant", "late"])
@pytest.mark.parametrize(("warmup", "floor"), [(0, 0.0), (5, 0.0), (5, 0.1)])
def test_learning_rates_are_those_of_transformers(decay: Any, warmup: int, floor: float) -> None:
    schedule = Schedule(
        learning_rate=3e-4, decay=decay, warmup_steps=warmup, floor=floor, loss="text"
    )
    rate = reference_learning_rate(schedule, 40)
    for step in range(40):
        ours = schedule.learning_rate * schedule.rate_share(step, 40)
        assert ours == pytest.approx(rate(step), rel=1e-9, abs=1e-15)


def test_scales_are_those_of_peft() -> None:
    for rank, alpha in ((8, 32), (4, 8.5), (64, 16)):
        for kind in ("lora", "rslora"):
            ours = find_adapter_method(kind).scale(rank, alpha)
            assert ours == peft_scale(rank, alpha, kind == "rslora")


def test_defaults_are_those_of_the_trainer_of_transformers() -> None:
    from transformers import TrainingArguments

    theirs = TrainingArguments(output_dir="unused")
    ours = Schedule(learning_rate=2e-5, loss="text")
    assert ours.betas == (theirs.adam_beta1, theirs.adam_beta2)
    assert (ours.eps, ours.clip) == (theirs.adam_epsilon, theirs.max_grad_norm)


@pytest.mark.parametrize("loss", ["text", "completion"])
@pytest.mark.parametrize("start_id", [None, 1])
def test_rows_of_long_texts_are_those_that_the_cut_leaves(loss: Any, start_id: int | None) -> None:
    texts = [[1, *range(5, 5 + length)] for length in (3, 8, 20, 30)]
    data = TokenisedExamples.from_lists(texts, [1, 4, 6, 28], start_id)
    spec = LaneSpec(
        "l",
        data,
        Schedule(epochs=1, batch=2, max_tokens=12, loss=loss, learning_rate=2e-5),
        NO_ADAPTERS,
    )
    for step in range(spec.total_steps):
        rows = spec.rows_of_step(step, 10)
        assert find_batch_fault(spec, step, rows, 10) is None
        late = replace(rows[0], first_target=rows[0].first_target + 1)
        assert "targets" in str(find_batch_fault(spec, step, [late, *rows[1:]], 10))
        short = replace(rows[0], ids=rows[0].ids[:-1])
        assert "text" in str(find_batch_fault(spec, step, [short, *rows[1:]], 10))


def test_slower_forms_follow_in_order() -> None:
    from potentia.engine.proof.refusal import Refusal
    from potentia.engine.proof.training_check import _list_forms_to_try

    refused = Refusal("wrong")
    assert _list_forms_to_try({}, may_pack=True) == tuple(TrainingForm)
    assert (
        _list_forms_to_try({TrainingForm.FUSED: refused}, may_pack=True) == tuple(TrainingForm)[1:]
    )
    assert (
        _list_forms_to_try({TrainingForm.PADDED: refused}, may_pack=False)
        == tuple(TrainingForm)[3:]
    )


def test_a_slot_whose_numbers_change_or_change_places_has_another_checksum() -> None:
    bank = AdapterBank(tiny("llama"), LoraConfig(r=4, dropout=0.0, targets=("q_proj",)), 2)
    bank.make_up_adapters()
    before = rehearsal._checksums_of_slots(bank)
    bank.weights[0, 7] = torch.nextafter(bank.weights[0, 7], torch.tensor(9.0))
    assert rehearsal._checksums_of_slots(bank)[1:] == before[1:]
    assert rehearsal._checksums_of_slots(bank)[0] != before[0]
    bank.weights[1, :2] = bank.weights[1, :2].flip(0)
    assert rehearsal._checksums_of_slots(bank)[1] != before[1]


def test_a_fresh_adapter_is_the_same_whoever_changed_the_one_before() -> None:
    bank = AdapterBank(tiny("llama"), LoraConfig(r=4, dropout=0.0, targets=("q_proj",)), 1)
    first = bank.fresh_row(3)
    expected = first.clone()
    first.zero_()
    assert torch.equal(bank.fresh_row(3), expected)
    assert not torch.equal(bank.fresh_row(4), expected)
