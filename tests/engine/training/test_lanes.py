"""Lanes do not interact, equal PEFT under the Trainer, and survive memory pressure, NaN and interruption."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lane_models import examples, gap, spec, tiny
from potentia.engine.lane_spec import TokenisedExamples, data_order
from potentia.engine.training import FullLanes
from potentia.engine.training.lane_run import LaneRun
from potentia.engine.training.lanes import LaneTrainer
from potentia.errors import InputError, TuningError
from potentia.values.fine_tuning import ValidationScore
from potentia.values.recipe import LoraConfig


def neighbours(count: int, **options) -> list:
    return [
        spec(
            f"other-{i}",
            seed=100 + i,
            data=examples(24 + 8 * (i % 5), seed=200 + i, high=12 + 2 * (i % 9)),
            learning_rate=1e-3 * (1 + i % 3),
            epochs=2 + i % 4,
            **options,
        )
        for i in range(count)
    ]


def states(model, specs, **options) -> dict[str, dict[str, torch.Tensor]]:
    with LaneTrainer(model, **options) as trainer:
        results = trainer.train(specs)
        assert all(result.status == "done" for result in results.values()), results
        return {s.key: trainer.adapter_state(s.key) for s in specs}


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_a_lane_alone_is_the_lane_among_24_others(dropout: float) -> None:
    mine = spec("mine", dropout=dropout)
    assert mine.total_steps == 15
    alone = states(tiny("llama"), [mine])["mine"]
    others = neighbours(24, dropout=dropout)
    among = states(tiny("llama"), [*others[:11], mine, *others[11:]])["mine"]
    assert gap(alone, among) < 1e-6
    fresh = spec("mine", dropout=dropout, epochs=1)
    assert gap(alone, states(tiny("llama"), [fresh])["mine"]) > 1e-3  # the comparison can fail


def test_dropout_changes_the_adapter_and_follows_the_seed() -> None:
    data = examples(seed=5)
    plain, dropped, again, other = (
        states(tiny("llama"), [spec("x", seed=seed, data=data, dropout=p, epochs=1)])["x"]
        for seed, p in ((3, 0.0), (3, 0.3), (3, 0.3), (4, 0.3))
    )
    assert gap(plain, dropped) > 1e-5
    assert gap(dropped, again) == 0
    assert gap(dropped, other) > 1e-5


def trainer_with_peft(
    model, lane, initial: dict[str, torch.Tensor], folder: Path
) -> dict[str, torch.Tensor]:
    """The same lane by Hugging Face Trainer and PEFT: same start, same order of data."""
    from peft import LoraConfig as PeftConfig
    from peft import get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
    from torch.utils.data import SequentialSampler
    from transformers import Trainer, TrainingArguments

    wrapped = get_peft_model(
        model, PeftConfig(r=8, lora_alpha=32, lora_dropout=0.0, task_type="CAUSAL_LM")
    )
    set_peft_model_state_dict(wrapped, initial)
    rows = []
    for epoch in range(lane.schedule.epochs):
        for i in data_order(lane.seed, epoch, len(lane.examples)):
            ids, first = lane.text_of_example(int(i))
            labels = np.where(np.arange(len(ids)) >= first, ids, -100)
            rows.append({"input_ids": ids.tolist(), "labels": labels.tolist()})

    def collate(batch):
        width = max(len(row["input_ids"]) for row in batch)
        fill = {"input_ids": 0, "labels": -100}
        out = {
            n: torch.tensor([row[n] + [fill[n]] * (width - len(row[n])) for row in batch])
            for n in fill
        }
        mask = [[1] * len(row["labels"]) + [0] * (width - len(row["labels"])) for row in batch]
        return {**out, "attention_mask": torch.tensor(mask)}

    class InOrder(Trainer):
        def _get_train_sampler(self, *_args):
            return SequentialSampler(self.train_dataset)

    arguments = TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=1,
        per_device_train_batch_size=lane.schedule.batch,
        learning_rate=lane.schedule.learning_rate,
        weight_decay=lane.schedule.weight_decay,
        max_grad_norm=lane.schedule.clip,
        lr_scheduler_type="linear",
        optim="adamw_torch",
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    InOrder(model=wrapped, args=arguments, train_dataset=rows, data_collator=collate).train()
    return {
        name: value.detach().clone() for name, value in get_peft_model_state_dict(wrapped).items()
    }


@pytest.mark.parametrize("loss", ["text", "completion"])
@pytest.mark.parametrize(
    ("kind", "may_pack"),
    [("llama", False), ("gpt2", False), ("neox", False), ("llama", True), ("neox", True)],
)
def test_a_lane_equals_peft_under_the_trainer(
    kind: str, may_pack: bool, loss: str, tmp_path: Path
) -> None:
    lane = spec("mine", loss=loss, clip=0.5)
    with LaneTrainer(tiny(kind), may_pack=may_pack) as trainer:
        trainer.train([*neighbours(3), lane])
        ours = trainer.adapter_state("mine")
        bank = trainer._bank
        assert bank is not None
        initial = bank.peft_state(bank.fresh_row(lane.seed))
    theirs = trainer_with_peft(tiny(kind), lane, initial, tmp_path)
    assert gap(ours, theirs) < 1e-5
    assert gap(ours, initial) > 1e-3


@pytest.mark.parametrize("loss", ["text", "completion"])
def test_a_last_batch_of_few_examples_equals_peft_under_the_trainer(
    loss: str, tmp_path: Path
) -> None:
    """83 examples leave a batch of three: Trainer weighs its targets by their own number."""
    lane = spec("mine", data=examples(83), loss=loss, clip=0.5, epochs=1, learning_rate=5e-3)
    with LaneTrainer(tiny("llama")) as trainer:
        trainer.train([lane])
        ours = trainer.adapter_state("mine")
        bank = trainer._bank
        assert bank is not None
        initial = bank.peft_state(bank.fresh_row(lane.seed))
    theirs = trainer_with_peft(tiny("llama"), lane, initial, tmp_path)
    assert lane.total_steps == 11
    assert gap(ours, theirs) < 1e-5


def test_running_out_of_memory_leaves_the_adapters_the_same() -> None:
    specs = neighbours(6, dropout=0.1)
    plain = states(tiny("llama"), specs)
    model = tiny("llama")
    refused = []

    def refuse(_module, inputs, output):
        if inputs[0].shape[0] * inputs[0].shape[1] > 150:
            refused.append(tuple(inputs[0].shape))
            raise torch.OutOfMemoryError("CUDA out of memory (simulated)")
        return output

    # after the first layer's forward, and again in its backward, when gradients are already half added
    hook = model.model.layers[1].mlp.up_proj.register_forward_hook(refuse)
    with LaneTrainer(model) as trainer:
        trainer.train(specs)
        tight = {s.key: trainer.adapter_state(s.key) for s in specs}
        assert trainer.plan is not None
        assert trainer.plan.token_budget <= 150
    hook.remove()
    assert refused
    assert max(gap(plain[key], tight[key]) for key in plain) < 1e-5


def test_running_out_of_memory_in_the_backward_pass_counts_nothing_twice() -> None:
    specs = neighbours(4)
    plain = states(tiny("llama"), specs)
    model = tiny("llama")
    refused = []

    def refuse(_module, grads, _outputs):
        if grads[0] is not None and grads[0].shape[0] * grads[0].shape[1] > 200:
            refused.append(1)
            raise torch.OutOfMemoryError("CUDA out of memory (simulated)")

    hook = model.model.layers[1].register_full_backward_hook(refuse)
    tight = states(model, specs)
    hook.remove()
    assert refused
    assert max(gap(plain[key], tight[key]) for key in plain) < 1e-5


def test_a_row_that_never_fits_is_an_error_that_names_the_fix() -> None:
    model = tiny("llama")

    def refuse(_module, inputs, _outputs):
        if (
            inputs[0].shape[0] * inputs[0].shape[1] > 2
        ):  # the look at how the model is built has two tokens
            raise torch.OutOfMemoryError("CUDA out of memory (simulated)")

    with LaneTrainer(model) as trainer:
        model.model.layers[0].register_forward_hook(refuse)
        with pytest.raises(TuningError, match="max_tokens"):
            trainer.train([spec(epochs=1)])


def test_where_memory_is_short_lanes_are_checked_with_recomputed_activations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Found before: the check ran without, and then lanes were trained with it."""
    from potentia.engine.training import lanes, trainer

    monkeypatch.setattr(trainer, "room_for_passes", lambda *_, **__: 1 << 20)
    asked, original = [], lanes.choose_training_form

    def choose(model, settings, **options):
        asked.append(settings.recompute)
        return original(model, settings, **options)

    monkeypatch.setattr(lanes, "choose_training_form", choose)
    with LaneTrainer(tiny("llama")) as made:
        made.train([spec(epochs=1)])
        assert made.plan.checkpointing
    assert asked == [True]


@pytest.mark.parametrize("right", [True, False])
def test_activations_are_computed_again_in_mid_run_only_where_that_was_checked(
    right: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found before: memory ran out, recomputing was switched on, and nobody had compared it with anything."""
    from potentia.engine.layers import recomputation as passes
    from potentia.engine.training import trainer

    def short_of_memory(self, rows, compute, clear, hint):
        def tight(plan):
            if not plan.checkpointing:
                raise torch.OutOfMemoryError("CUDA out of memory (simulated)")
            return compute(plan)

        return own(self, rows, tight, clear, hint)

    own, again = trainer.Trainer.run_in_passes, passes.checkpoint
    specs = neighbours(2)
    plain = states(tiny("llama"), specs)
    monkeypatch.setattr(trainer.Trainer, "run_in_passes", short_of_memory)
    if not right:
        monkeypatch.setattr(
            passes, "checkpoint", lambda *given, **options: again(*given, **options) * 1.02
        )
        with pytest.raises(TuningError, match="does not fit in memory"):
            states(tiny("llama"), specs)
        return
    assert max(gap(plain[key], state) for key, state in states(tiny("llama"), specs).items()) < 1e-6


def test_recomputing_activations_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from potentia.engine.layers import recomputation as passes

    specs = neighbours(3, dropout=0.1)
    plain = states(tiny("llama"), specs)
    calls, own = [], passes.checkpoint
    monkeypatch.setattr(
        passes, "checkpoint", lambda *args, **options: calls.append(1) or own(*args, **options)
    )
    again = states(tiny("llama"), specs, recompute=True)
    assert calls
    assert max(gap(plain[key], again[key]) for key in plain) < 1e-6


@pytest.mark.parametrize("kind", ["llama", "opt"])
def test_more_threads_give_the_same_adapters(kind: str) -> None:
    specs = neighbours(6, dropout=0.1)
    by_one_thread = states(tiny(kind), specs)
    torch.set_num_threads(3)
    try:
        three, again = states(tiny(kind), specs), states(tiny(kind), specs)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(1)
    assert max(gap(by_one_thread[key], three[key]) for key in by_one_thread) < 1e-5
    assert max(gap(three[key], again[key]) for key in by_one_thread) == 0


def test_half_precision_learns_alike() -> None:
    data = examples(80)
    specs = [
        spec("a", data=data, epochs=2, dropout=0.1),
        spec("b", data=data, epochs=2, learning_rate=2e-3, dropout=0.1),
    ]
    plain = states(tiny("llama"), specs)
    with LaneTrainer(tiny("llama").to(torch.bfloat16)) as trainer:
        trainer.train(specs)
        for key, expected in plain.items():
            ours = trainer.adapter_state(key)
            for name in expected:
                if "lora_B" in name:  # bf16 rounds, but the direction learned is the same
                    cosine = torch.cosine_similarity(
                        ours[name].flatten(), expected[name].flatten(), dim=0
                    )
                    assert cosine > 0.95, (name, cosine)


def test_slots_are_handed_on_and_every_lane_is_the_same() -> None:
    specs = neighbours(7)
    wide = states(tiny("llama"), specs)
    narrow = states(tiny("llama"), specs, token_budget=64)
    with LaneTrainer(tiny("llama"), token_budget=64) as trainer:
        trainer.train(specs)
        assert trainer.plan is not None
        assert trainer.plan.slots < len(specs)
    assert max(gap(wide[key], narrow[key]) for key in wide) < 1e-5


def test_an_adapter_that_was_let_go_is_in_no_slot() -> None:
    specs = neighbours(7, dropout=0.0)
    with LaneTrainer(tiny("llama"), token_budget=64) as trainer:
        trainer.train(specs)
        assert trainer.plan is not None
        slots = trainer.plan.slots
        restored = [trainer.restore(lane.key, 1) for lane in specs[: slots + 1]]
        assert sorted(restored[:slots]) == list(range(slots))
        assert restored[slots] == restored[0]
        with pytest.raises(TuningError, match=f"fine-tuning {specs[0].key} is not in a slot"):
            trainer.slot(specs[0].key)
        owners = [trainer.slot(lane.key) for lane in specs[1 : slots + 1]]
        assert owners == restored[1:]
        bank = trainer._bank
        assert bank is not None
        for lane, slot in zip(specs[1:], owners, strict=False):
            saved = trainer.adapter_state(lane.key, 1)
            assert gap(bank.peft_state(bank.weights[slot]), saved) == 0


def test_a_restored_adapter_is_the_one_that_passes_use(monkeypatch: pytest.MonkeyPatch) -> None:
    with LaneTrainer(tiny("llama")) as trainer:
        trainer.train(neighbours(2))
        monkeypatch.setattr(trainer._bank, "refresh_work", lambda *_: None)
        with pytest.raises(TuningError, match="cannot be restored"):
            trainer.restore("other-0", 1)


@pytest.mark.parametrize("fault", ["weights", "moments", "copies"])
def test_a_lane_that_finds_something_of_another_in_its_slot_is_not_trained(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first lanes are rehearsed; those that take a slot over later are looked at when they do."""
    begin = LaneRun.put_into_slot

    def begin_badly(self: LaneRun, lane: Any, slot: int) -> None:
        weights = self.bank.weights[slot].clone()
        moments = self.states.first_moments[slot].clone()
        begin(self, lane, slot)
        if self.step > 0 and fault == "weights":
            self.bank.weights[slot].copy_(weights)
        if self.step > 0 and fault == "moments":
            self.states.first_moments[slot].copy_(moments)
        if self.step > 0 and fault == "copies":
            monkeypatch.setattr(self.bank, "refresh_work", lambda *_: None)

    monkeypatch.setattr(LaneRun, "put_into_slot", begin_badly)
    with (
        LaneTrainer(tiny("llama"), token_budget=64) as trainer,
        pytest.raises(TuningError, match="does not start fresh"),
    ):
        trainer.train(neighbours(7))


@pytest.mark.parametrize("rate", [1e38, 1e300, float("inf")])
def test_a_learning_rate_beyond_float32_fails_alone(rate: float) -> None:
    """Found before: AdamW's own RuntimeError ended all lanes."""
    others = neighbours(2)
    for trainer_type in (LaneTrainer, FullLanes):
        with trainer_type(tiny("llama")) as trainer:
            results = trainer.train([spec("wild", learning_rate=rate), *others])
        assert results["wild"].status == "failed"
        assert "learning rate of" in str(results["wild"].reason)
        assert {results[other.key].status for other in others} == {"done"}


@pytest.mark.parametrize("kind", ["llama", "gpt2", "neox", "opt"])
def test_saved_adapters_load_with_peft_and_give_the_same_logits(kind: str, tmp_path: Path) -> None:
    from peft import PeftModel

    model, lane = tiny(kind), spec("mine", epochs=2)
    ids = torch.randint(3, 90, (3, 12))
    with LaneTrainer(model) as trainer:
        trainer.train([lane, *neighbours(2)])
        trainer.save_peft("mine", tmp_path / "adapter", epoch=1)
        slot = trainer.restore("mine", 1)
        assert trainer.slot("mine") == slot
        trainer.route(torch.tensor([slot, -1, slot]))
        with torch.no_grad():
            routed = model(ids).logits
            trainer.route(torch.tensor([slot] * 3))
            single = model(ids).logits
            trainer.route(None)
            bare = model(ids).logits
    with torch.no_grad():
        assert torch.equal(model(ids).logits, bare)
        theirs = PeftModel.from_pretrained(tiny(kind), str(tmp_path / "adapter")).eval()(ids).logits
    assert torch.allclose(routed[[0, 2]], theirs[[0, 2]], atol=1e-5)
    assert torch.allclose(single, theirs, atol=1e-5)
    assert torch.allclose(routed[1], bare[1], atol=1e-6)
    assert not torch.allclose(routed[0], bare[0], atol=1e-3)


def test_the_tail_keeps_what_an_architecture_does_to_its_logits() -> None:
    from potentia.engine.models.split_model import SplitModel

    for kind in ("gemma2", "opt", "gpt2", "neox", "llama"):
        model = tiny(kind)
        ids = torch.randint(3, 90, (2, 9))
        split = SplitModel(model)
        with torch.no_grad():
            whole = model(ids).logits
            parts = split.logits(split.hidden(ids).flatten(0, 1)).view_as(whole)
        assert torch.allclose(whole, parts, atol=1e-6), kind


def test_a_lane_that_is_not_finite_fails_alone() -> None:
    others = neighbours(3)
    plain = states(tiny("llama"), others)
    wild = spec("wild", learning_rate=float("nan"), epochs=5)
    with LaneTrainer(tiny("llama")) as trainer:
        results = trainer.train([others[0], wild, *others[1:]])
        assert results["wild"].status == "failed"
        assert results["wild"].reason is not None
        assert "not finite" in results["wild"].reason
        for other in others:
            assert results[other.key].status == "done"
            assert gap(plain[other.key], trainer.adapter_state(other.key)) < 1e-6


def test_a_lane_that_diverges_fails_with_its_loss() -> None:
    model = tiny("llama")
    with torch.no_grad():  # a model that repeats the last token, and is right to
        model.lm_head.weight.copy_(20 * model.model.embed_tokens.weight)
    data = TokenisedExamples.from_lists([[token] * 10 for token in range(3, 83)])
    with LaneTrainer(model) as trainer:
        results = trainer.train(
            [
                spec("wild", data=data, learning_rate=30.0, epochs=2),
                spec("tame", data=data, epochs=2),
            ]
        )
    assert results["wild"].status == "failed"
    assert "diverged" in results["wild"].reason
    assert results["tame"].status == "done"


def test_an_adapter_that_changes_nothing_is_an_error() -> None:
    model = tiny("llama")
    with torch.no_grad():  # nothing behind the adapted layers reaches the output
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
    with LaneTrainer(model) as trainer, pytest.raises(TuningError, match="no adapter changes"):
        trainer.train([spec(epochs=1)])


def test_epochs_are_reported_together_and_decisions_are_heard() -> None:
    same = [
        spec(f"lane-{i}", seed=3, data=examples(16), learning_rate=1e-3 * (i + 1), epochs=3)
        for i in range(4)
    ]
    seen = []

    def judge(epochs):
        seen.append([(e.key, e.epoch) for e in epochs])
        for epoch in epochs:
            epoch.validations["task"] = ValidationScore(0.5, 0.1)
            trainer.route(torch.tensor([trainer.slot(epoch.key)]))
            assert torch.isfinite(model(torch.ones(1, 4, dtype=torch.long)).logits).all()
        return {"lane-1"}

    model = tiny("llama")
    with LaneTrainer(model) as trainer:
        results = trainer.train(same, on_epoch=judge)
    assert len(seen[0]) == 4
    assert [len(group) for group in seen] == [4, 3, 3]
    assert results["lane-1"].status == "dropped"
    assert [e.epoch for e in results["lane-1"].epochs] == [1]
    assert results["lane-0"].epochs[2].validations == {"task": ValidationScore(0.5, 0.1)}
    losses = [e.loss for e in results["lane-3"].epochs]
    assert losses == sorted(losses, reverse=True)


def test_closing_leaves_the_model_as_it_was() -> None:
    model = tiny("gpt2").train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    flags = [p.requires_grad for p in model.parameters()]
    ids = torch.randint(3, 90, (2, 9))
    with torch.no_grad():
        logits = model(ids).logits
    with LaneTrainer(model) as trainer:
        trainer.train([spec(epochs=1)])
    assert model.training
    assert [p.requires_grad for p in model.parameters()] == flags
    assert all("forward" not in module.__dict__ for module in model.modules())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    with torch.no_grad():
        assert torch.equal(model(ids).logits, logits)


def test_targets_are_pefts_defaults_and_recorded() -> None:
    for kind, wanted in (
        ("llama", ("q_proj", "v_proj")),
        ("gpt2", ("c_attn",)),
        ("neox", ("query_key_value",)),
    ):
        with LaneTrainer(tiny(kind)) as trainer:
            assert trainer.train([spec(epochs=1, data=examples(8))])["lane"].targets == wanted


def test_lanes_of_different_shapes_take_turns() -> None:
    from dataclasses import replace

    small = replace(
        spec("small", epochs=1), lora=LoraConfig(r=2, dropout=0.0, targets=("all-linear",))
    )
    with LaneTrainer(tiny("llama")) as trainer:
        results = trainer.train([small, spec("large", epochs=1)])
        assert all(result.status == "done" for result in results.values())
        assert (
            trainer.adapter_state("small")[
                "base_model.model.model.layers.0.mlp.up_proj.lora_A.weight"
            ].shape[0]
            == 2
        )
        assert not any("lm_head" in name for name in trainer.adapter_state("small"))
        large = trainer.adapter_state("large")
        assert large["base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"].shape[0] == 8
        with pytest.raises(InputError, match="same key"):
            trainer.train([small, small])


def test_unknown_targets_name_the_fix() -> None:
    from dataclasses import replace

    with LaneTrainer(tiny("llama")) as trainer, pytest.raises(TuningError, match="all-linear"):
        trainer.train([replace(spec(), lora=LoraConfig(targets=("nowhere",), dropout=0.1))])
