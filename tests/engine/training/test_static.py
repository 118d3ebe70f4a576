"""Packed passes: the arithmetic that a GPU captures, run uncaptured on a processor, against the plain passes."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from architectures.tiny import build
from architectures.tune import lanes as lanes_of_family
from capture_audit import Audit
from lane_models import VOCAB, check_form, examples, gap, place, spec, tiny
from potentia.engine.lane_spec import TokenisedExamples, TrainingRow
from potentia.engine.layers import packed_pass as static_module
from potentia.engine.layers.adapter_bank import AdapterBank
from potentia.engine.layers.fused_layers import FusedLayers
from potentia.engine.layers.packed_pass import PackedPass
from potentia.engine.layers.row_layout import STRETCH, Bucket, PackedInputs, lay_out_rows
from potentia.engine.layers.row_mixers import group_rows
from potentia.engine.models import split_model as split_module
from potentia.engine.models.split_model import SplitModel
from potentia.engine.proof.training_check import TrainingFormCheck
from potentia.engine.steps.lane_states import UPDATE_COLUMNS, LaneStates
from potentia.engine.steps.packed_steps import PackedStepper
from potentia.engine.steps.padded_steps import PaddedStepper
from potentia.engine.training import lanes as lanes_module
from potentia.engine.training.lane import Lane
from potentia.engine.training.lanes import LaneTrainer
from potentia.values.recipe import LoraConfig
from potentia.values.training_form import TrainingForm

FORMS = {
    "llama": TrainingForm.FUSED,
    "mistral": TrainingForm.FUSED,  # with a window that its rows are longer than
    "neox": TrainingForm.PACKED,
    "gpt2": TrainingForm.PACKED,
    "opt": TrainingForm.PACKED,
    "gemma2": TrainingForm.PADDED,  # soft caps on attention
    "gemma3": TrainingForm.FUSED,  # four norms a layer, norms of queries and keys, a window in every other layer
    "bloom": TrainingForm.PADDED,  # ALiBi
    "olmo2": TrainingForm.FUSED,  # norms after the branches, queries and keys normed over all their heads
    "olmo3": TrainingForm.FUSED,  # the same with windows
    "smollm3": TrainingForm.FUSED,  # layers that do not rotate
    "lfm2": TrainingForm.PACKED,  # convolutions
    "qwen3_5": TrainingForm.PACKED,  # gated delta rules
    "granite4": TrainingForm.PACKED,  # state-space scans
    "gpt_oss": TrainingForm.PACKED,  # attention sinks
    "phi3": TrainingForm.FUSED,  # projections that are one matrix, heads that rotate in part
    "gemma4": TrainingForm.FUSED,  # values normed, layers multiplied, two widths of heads
    "gemma4_one_key": TrainingForm.FUSED,  # keys are values
    "gemma4_inputs": TrainingForm.FUSED,  # inputs of each layer
    "gemma4_shared": TrainingForm.FUSED,  # layers that read the keys and values of others
}


def lessons(slots: tuple[int, ...], **options) -> list[TrainingRow]:
    rows = []
    for slot in slots:
        lane = Lane(spec(f"l{slot}", seed=slot, **options))
        lane.slot = slot
        rows += lane.next_rows(64)
    return rows


def test_a_long_row_holds_what_its_rows_say() -> None:
    rows = lessons((0, 2, 5), dropout=0.1, loss="completion")
    row = lay_out_rows(rows)
    assert len(row.ids) % STRETCH == 0
    bucket = Bucket.holding(len(row.ids), len(row.targets), 6, coarse=True)
    inputs = PackedInputs.on(torch.device("cpu"), bucket)
    inputs.buffer.copy_(torch.from_numpy(row.filled(bucket)))
    first, last, real = inputs.first.tolist(), inputs.last.tolist(), set()
    spans = {slot: (begin, end) for slot, begin, end in inputs.spans.tolist() if begin < end}
    assert list(spans) == sorted(spans, key=lambda slot: spans[slot][0] - spans[slot][1])
    assert set(spans) == {0, 2, 5}
    result = [first[at] for at in range(bucket.tokens) if first[at] == at and last[at] > at + 1]
    assert [inputs.ids[at : last[at]].tolist() for at in result] == [r.ids.tolist() for r in rows]
    for at, lesson in zip(result, rows, strict=True):
        real |= set(range(at, last[at]))
        assert spans[lesson.slot][0] <= at < last[at] <= spans[lesson.slot][1]
        assert inputs.position_ids[at : last[at]].tolist() == list(range(len(lesson.ids)))
        owners = inputs.owners[at // STRETCH : (last[at] - 1) // STRETCH + 1]
        assert set(owners.tolist()) == {lesson.slot}
    for at in set(range(bucket.tokens)) - real:  # what fills gaps sees itself alone
        assert (first[at], last[at]) == (at, at + 1)
    expected = [
        (at + i - 1, r.ids[i], r.slot)
        for at, r in zip(result, rows, strict=True)
        for i in range(r.first_target, len(r.ids))
    ]
    n = len(expected)
    assert (
        list(
            zip(
                inputs.prediction_indices[:n].tolist(),
                inputs.targets[:n].tolist(),
                inputs.target_owners[:n].tolist(),
                strict=True,
            )
        )
        == expected
    )
    assert float(inputs.weights[n:].abs().sum()) == 0
    assert set(inputs.prediction_indices[n:].tolist()) == {bucket.tokens - 1}
    assert bucket.tokens - 1 not in real


def test_buckets_are_few() -> None:
    sizes = {Bucket.holding(n, n // 2, 4, coarse=True).tokens for n in range(1000, 4000)}
    assert len(sizes) < 36
    for n in range(1000, 4000, 37):
        bucket = Bucket.holding(n, n // 2, 4, coarse=True)
        assert n < bucket.tokens <= 1.125 * n + 128
        assert n // 2 < bucket.targets


def test_one_lane_of_mixed_tasks_meets_few_buckets() -> None:
    lengths = (
        np.random.default_rng(0).choice([20, 30, 40, 140], size=(1000, 16)) + 10
    )  # a thousand steps of a copy
    steps = [(int(row.sum()), int(40 + row.sum() % 30)) for row in lengths]
    assert (
        len({Bucket.holding(n, targets, 1, coarse=True, grain=1024) for n, targets in steps}) <= 3
    )
    assert (
        len({Bucket.holding(n, targets, 1, coarse=True) for n, targets in steps}) >= 10
    )  # a graph each


@pytest.mark.parametrize("targets", [None, ("all-linear",)])
@pytest.mark.parametrize("kind", FORMS)
def test_the_form_of_a_model_is_found_by_trying(kind: str, targets: tuple[str, ...] | None) -> None:
    model = tiny(kind)
    # PEFT adapts stacked experts, which all-linear reaches, without dropout only
    dropout = 0.0 if kind == "gpt_oss" and targets else 0.1
    specs = [spec(f"l{i}", seed=i, dropout=dropout) for i in range(3)]
    lora = LoraConfig(dropout=dropout, targets=targets)
    form_check = check_form(model, specs, lora=lora, may_pack=True)
    assert form_check.form == FORMS[kind], form_check.facts
    if kind == "neox":  # the hand-written layer has no such parts, and is not tried
        assert FusedLayers.of(model) is None
        assert not form_check.facts.not_taken
    assert all("forward" not in module.__dict__ for module in model.modules())


@pytest.mark.parametrize(
    "kind",
    ["llama", "gemma3", "neox", "gpt2", "olmo3", "phi3", "gemma4_inputs", "gemma4_shared", "lfm2"],
)
def test_a_pass_and_an_update_can_be_captured(kind: str) -> None:
    """Nothing is sent from the host or read by it, and no mask of tokens × tokens is made."""
    model = tiny(kind)
    bank = AdapterBank(model, LoraConfig(dropout=0.1, targets=("all-linear",)), 4)
    packed_pass = static_module.PackedPass(SplitModel(model), bank, FusedLayers.of(model))
    inputs = place(lay_out_rows(lessons((0, 1, 3), dropout=0.1)), bank, few=True)
    stepper = PackedStepper(packed_pass, LaneStates(4, bank.width, bank.device))
    packed_pass(inputs)  # the first pass of a run is never captured
    stepper.update(np.ones((4, UPDATE_COLUMNS), np.float32))
    with Audit(inputs.bucket.tokens**2) as audit:
        packed_pass(inputs)
        stepper._update()
    assert audit.count > 100
    assert audit.found == []


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_the_end_of_the_last_layer_is_computed_where_losses_look(
    kind: str, dropout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny(kind)
    bank = AdapterBank(model, LoraConfig(r=4, dropout=dropout, targets=("all-linear",)), 4)
    bank.make_up_adapters()
    packed_pass = static_module.PackedPass(SplitModel(model), bank, FusedLayers.of(model))
    stream = np.random.default_rng(0)
    rows = []
    for slot in (3, 0, 1):  # in no order, and one is absent
        ids = [stream.integers(3, VOCAB, n).tolist() for n in stream.integers(30, 60, 8)]
        data = TokenisedExamples.from_lists(
            ids, [len(row) - 1 - k % 3 for k, row in enumerate(ids)]
        )
        lane = Lane(spec(f"l{slot}", seed=slot, data=data, dropout=dropout, loss="completion"))
        lane.slot = slot
        rows += lane.next_rows(64)
    inputs = place(lay_out_rows(rows), bank, few=False)
    sizes, gates = [], packed_pass.operations.gate
    monkeypatch.setattr(
        packed_pass.operations,
        "gate",
        lambda both, gelu: (sizes.append(len(both)), gates(both, gelu))[1],
    )
    results = []
    for picking in (True, False):
        if not picking:
            monkeypatch.setattr(static_module.LossTokens, "of", lambda *_: None)
        bank.grads.zero_()
        packed_pass.losses.zero_()
        packed_pass(inputs)
        results.append((bank.grads.clone(), packed_pass.losses.clone()))
        assert {*sizes} == {
            inputs.bucket.tokens,
            inputs.bucket.picked if picking else inputs.bucket.tokens,
        }
        sizes.clear()
    assert 4 * inputs.bucket.picked < inputs.bucket.tokens
    for ours, theirs in zip(*results, strict=True):
        assert float(theirs.norm()) > 0
        assert float((ours - theirs).norm()) < 1e-6 * float(theirs.norm())
    monkeypatch.undo()
    bank.weights[3].fill_(float("nan"))  # what fills up whole stretches is one token for all lanes
    bank.refresh_work()
    bank.grads.zero_()
    packed_pass.losses.zero_()
    packed_pass(inputs)
    assert not bool(torch.isfinite(bank.grads[3]).all())
    for ours, sound in zip((bank.grads, packed_pass.losses), results[0], strict=True):
        assert torch.equal(ours[:3], sound[:3])


def test_the_largest_pass_is_captured_first_and_none_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each size that was larger than those before it took memory of its own, until there was none."""
    buckets: list[Bucket] = []

    def capture(self: PackedStepper, piece, work):
        if piece.inputs is not None:
            buckets.append(piece.inputs.bucket)
        self.capture_count += 1
        return SimpleNamespace(replay=work)

    made = PackedStepper.__init__
    specs = [spec(f"l{i}", seed=i, data=examples(80, seed=i, high=60), epochs=2) for i in range(3)]
    adapters = []
    for capturing in (False, True):
        with monkeypatch.context() as patch:
            patch.setattr(PackedStepper, "_capture", capture)
            now = partial(
                lambda how, *given: (made(*given), setattr(given[0], "may_capture", how))[0],
                capturing,
            )
            patch.setattr(PackedStepper, "__init__", lambda *given, now=now: now(*given))
            patch.setattr("potentia.engine.steps.packed_steps.MOST_FILLING", 128)
            with LaneTrainer(tiny("llama"), may_pack=True) as trainer:
                trainer.train(specs)
                adapters.append([trainer.adapter_state(one.key) for one in specs])
                stepper = trainer.run_under_way.stepper
                assert stepper.largest_step_tokens >= max(
                    sum(map(len, (row.ids for row in one.rows_of_step(0)))) for one in specs
                )
    sizes = [bucket.tokens for bucket in buckets]
    assert len(set(sizes)) > 2
    assert sizes[0] == max(sizes)
    assert len(buckets) == len(set(buckets))
    assert max(map(gap, *adapters)) < 1e-5


def test_tokens_of_steps_are_those_of_their_rows() -> None:
    lane_spec = spec("l", data=examples(50, high=60), epochs=2)
    for limit in (None, 24):
        expected = [
            sum(len(row.ids) for row in lane_spec.rows_of_step(step, limit))
            for step in range(lane_spec.total_steps)
        ]
        assert lane_spec.tokens_by_step(limit).tolist() == expected


@pytest.mark.parametrize(
    "kind", ["llama", "gemma3", "olmo3", "phi3", "gemma4", "gemma4_one_key", "gemma4_inputs"]
)
def test_activations_take_what_passes_are_planned_by(kind: str) -> None:
    model = tiny(kind).to(torch.bfloat16)
    bank = AdapterBank(model, LoraConfig(r=1, targets=("all-linear",), dropout=0.1), 3)
    packed_pass = static_module.PackedPass(SplitModel(model), bank, FusedLayers.of(model))
    inputs, kept = place(lay_out_rows(lessons((0, 1, 2))), bank, few=False), dict[int, int]()

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        whole = tensor.untyped_storage()
        if len(inputs.ids) in tensor.shape:  # of tokens, not of weights
            kept[whole.data_ptr()] = whole.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        packed_pass(inputs)
    planned = packed_pass.blocks.activation_bytes * len(inputs.ids)
    assert planned < sum(kept.values()) < 1.2 * planned  # and the angles, the last norm


def test_a_wrong_form_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    original = FusedLayers.of

    def wrong(model):
        blocks = original(model)
        blocks.blocks[1].scale *= 1.01
        return blocks

    monkeypatch.setattr(FusedLayers, "of", wrong)
    specs = [spec(f"l{i}", seed=i) for i in range(3)]
    for dtype in (torch.float32, torch.bfloat16):
        form_check = check_form(tiny("llama").to(dtype), specs, may_pack=True)
        assert form_check.form == TrainingForm.PACKED
        assert "gradients by" in form_check.facts.not_taken[TrainingForm.FUSED]


def states(model, specs, **options) -> dict[str, dict[str, torch.Tensor]]:
    with LaneTrainer(model, **options) as trainer:
        results = trainer.train(specs)
        assert all(result.status == "done" for result in results.values()), results
        return {s.key: trainer.adapter_state(s.key) for s in specs}


def mixed(count: int, **options) -> list:
    return [
        spec(
            f"l{i}",
            seed=i,
            data=examples(24 + 8 * (i % 5), seed=200 + i, high=12 + 2 * (i % 9)),
            epochs=2 + i % 3,
            **options,
        )
        for i in range(count)
    ]


@pytest.mark.parametrize("kind", ["llama", "gpt2", "neox", "mistral"])
def test_static_lanes_end_with_the_plain_lanes_adapters(kind: str) -> None:
    specs = mixed(6, dropout=0.1)
    plain, ours = (
        states(tiny(kind), specs, may_pack=False),
        states(tiny(kind), specs, may_pack=True),
    )
    assert max(gap(plain[key], ours[key]) for key in plain) < 2e-5
    assert max(gap(plain["l0"], plain[key]) for key in plain if key != "l0") > 1e-3


def test_a_static_lane_alone_is_the_lane_among_24_others() -> None:
    mine = spec("mine", dropout=0.1)
    alone = states(tiny("llama"), [mine], may_pack=True)["mine"]
    others = mixed(24, dropout=0.1)
    among = states(tiny("llama"), [*others[:11], mine, *others[11:]], may_pack=True)["mine"]
    assert gap(alone, among) < 2e-6


def test_static_passes_are_taken_and_told(caplog: pytest.LogCaptureFixture) -> None:
    taken = []

    def look(trainer) -> None:
        taken.append(type(trainer.run_under_way.stepper))

    for kind, wanted in (("llama", PackedStepper), ("bloom", PaddedStepper)):
        caplog.clear()
        with caplog.at_level(logging.WARNING), LaneTrainer(tiny(kind), may_pack=True) as trainer:
            trainer.train(mixed(2), on_step=lambda _, t=trainer: look(t))
        assert set(taken) == {wanted}
        assert ("fine-tunings run as shared passes" in caplog.text) == (wanted is PaddedStepper)
        taken.clear()


def test_running_out_of_memory_leaves_static_adapters_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    specs = mixed(6, dropout=0.1)
    plain = states(tiny("llama"), specs, may_pack=True)
    refused = []
    original_call = static_module.PackedPass.__call__

    def refuse(self, inputs, **options):
        if inputs.bucket.tokens > 256:
            refused.append(inputs.bucket.tokens)
            raise torch.OutOfMemoryError("CUDA out of memory (simulated)")
        return original_call(self, inputs, **options)

    monkeypatch.setattr(static_module.PackedPass, "__call__", refuse)
    monkeypatch.setattr(
        lanes_module,
        "choose_training_form",
        lambda *_, **__: TrainingFormCheck(TrainingForm.FUSED),
    )  # it is not what is tested
    with LaneTrainer(tiny("llama"), may_pack=True) as trainer:
        trainer.train(specs)
        tight = {s.key: trainer.adapter_state(s.key) for s in specs}
        assert trainer.plan.token_budget < 8192
    assert refused
    assert max(gap(plain[key], tight[key]) for key in plain) < 2e-5


def test_recomputed_layers_give_the_same_gradients() -> None:
    model = tiny("llama")
    bank = AdapterBank(model, LoraConfig(dropout=0.1, targets=None), 4)
    rows = lessons((0, 1, 3), dropout=0.1)
    for slot in range(4):
        bank.weights[slot] = (
            torch.randn(bank.width, generator=torch.Generator().manual_seed(slot)) * 0.05
        )
    bank.refresh_work()
    for form in (FusedLayers.of(model), None):
        ours = static_module.PackedPass(SplitModel(model), bank, form)
        results = []
        for recompute in (False, True):
            bank.grads.zero_()
            ours(place(lay_out_rows(rows), bank, few=False), recompute=recompute)
            results.append(bank.grads.clone())
        assert float(results[0].norm()) > 0
        assert torch.allclose(*results, rtol=1e-4, atol=1e-7)


def test_logits_in_pieces_give_the_same_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("llama")
    bank = AdapterBank(model, LoraConfig(dropout=0.1, targets=None), 4)
    rows = lessons((0, 1, 3))
    for slot in range(4):
        bank.weights[slot] = (
            torch.randn(bank.width, generator=torch.Generator().manual_seed(slot)) * 0.05
        )
    bank.refresh_work()
    ours = static_module.PackedPass(SplitModel(model), bank, None)
    inputs = place(lay_out_rows(rows), bank, few=False)
    assert inputs.bucket.targets > split_module.LEAST_PIECE
    results = []
    for size in (1 << 30, 1):
        monkeypatch.setattr(split_module, "_PIECE_BYTES", {"cpu": size})
        bank.grads.zero_()
        ours(inputs)
        results.append(bank.grads.clone())
    assert float(results[0].norm()) > 0
    assert torch.allclose(*results, rtol=1e-4, atol=1e-7)


def test_a_static_run_resumes_bit_for_bit(tmp_path: Path) -> None:
    specs = mixed(5, dropout=0.1)
    undisturbed = states(tiny("llama"), specs, may_pack=True, workspace=tmp_path / "whole")
    for stop_at in (3, 9):
        steps = []
        with LaneTrainer(tiny("llama"), may_pack=True, workspace=tmp_path / "cut") as trainer:
            trainer.train(
                specs,
                on_step=lambda info, s=steps: s.append(info),
                stop=lambda s=steps, n=stop_at: len(s) >= n,
            )
    again = states(tiny("llama"), specs, may_pack=True, workspace=tmp_path / "cut")
    assert max(gap(undisturbed[key], again[key]) for key in undisturbed) == 0


def test_a_lane_that_is_not_sound_fails_alone() -> None:
    bad = spec("bad", seed=9, learning_rate=1e30)
    good = spec("good", seed=1)
    with LaneTrainer(tiny("llama"), may_pack=True) as trainer:
        results = trainer.train([bad, good])
        assert results["bad"].status == "failed"
        ours = trainer.adapter_state("good")
    assert gap(ours, states(tiny("llama"), [good], may_pack=True)["good"]) < 2e-6


def test_a_pass_goes_back_to_no_weight_of_the_base(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found before: where a model's weights had gradients, those of adapted layers kept every pass from capture."""
    model = tiny("neox").requires_grad_()
    bank = AdapterBank(model, LoraConfig(dropout=0.0, targets=("all-linear",)), 3)
    leaves: list[torch.Tensor] = []
    backward = SplitModel.backward

    def note_leaves(self: SplitModel, hidden: torch.Tensor, *arguments: Any) -> torch.Tensor:
        leaves.extend(leaves_of(hidden))
        return backward(self, hidden, *arguments)

    monkeypatch.setattr(SplitModel, "backward", note_leaves)
    packed = PackedPass(SplitModel(model), bank, None)
    packed(place(lay_out_rows(lessons((0, 1, 2))), bank, few=False))
    assert [leaf is bank.anchor for leaf in leaves] == [True]


def leaves_of(result: torch.Tensor) -> list[torch.Tensor]:
    """Return the tensors that a backward pass from a result ends at."""
    leaves: list[torch.Tensor] = []
    waiting, seen = [result.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            leaves.append(node.variable)
        waiting += [following for following, _ in node.next_functions]
    return leaves


def test_the_vocabulary_is_what_the_tests_think() -> None:
    assert SplitModel(tiny("llama")).vocabulary == VOCAB


def test_rows_of_similar_length_are_mixed_together() -> None:
    starts = np.array([0, 10, 48, 80])
    lengths = np.array([9, 30, 25, 4])
    grouped = group_rows(starts, lengths, 96, torch.device("cpu"))
    assert [tuple(group.tokens.shape) for group in grouped.groups] == [(2, 32), (2, 16)]
    assert grouped.bounds.tolist() == [0, 9, 10, 40, 48, 73, 80, 84, 96]
    tokens = torch.cat([group.tokens.reshape(-1) for group in grouped.groups])
    for start, length in zip(starts, lengths, strict=True):
        real = torch.arange(start, start + length)
        assert torch.equal(tokens[grouped.places[real]], real)


def test_long_rows_are_padded_to_whole_chunks() -> None:
    lengths = np.array([16, 17, 33, 65, 130, 190])
    starts = np.cumsum(lengths) - lengths
    grouped = group_rows(starts, lengths, int(lengths.sum()), torch.device("cpu"))
    shapes = [tuple(group.tokens.shape) for group in grouped.groups]
    assert shapes == [(3, 192), (1, 64), (1, 32), (1, 16)]


def test_a_pass_with_convolutions_alone_needs_no_rows() -> None:
    """So a GPU may replay it; a scan has to know the rows of every pass."""
    convolving, scanning = (
        PackedPass(
            SplitModel(model), AdapterBank(model, LoraConfig(dropout=0.1, targets=None), 2), None
        )
        for model in (tiny("lfm2"), tiny("qwen3_5"))
    )
    assert convolving.can_be_captured
    assert not convolving.scans_tokens
    assert not scanning.can_be_captured
    assert scanning.scans_tokens


@pytest.mark.parametrize("kind", ["lfm2", "qwen3_5", "granite4"])
def test_a_state_does_not_run_on_from_row_to_row(kind: str) -> None:
    """The same rows in another order, beside others: each row's loss is its own."""
    model = tiny(kind)
    bank = AdapterBank(model, LoraConfig(dropout=0.1, targets=None), 3)
    losses = []
    for slots in ((0, 1, 2), (1, 0, 2)):
        rows = lessons(slots)
        packed = PackedPass(SplitModel(model), bank, None)
        packed(place(lay_out_rows(rows), bank, few=False))
        losses.append(packed.losses[:3].clone())
    assert torch.allclose(losses[0], losses[1], rtol=1e-5)
    if kind == "lfm2":  # its convolutions look at places alone
        return
    bare = PackedPass(SplitModel(model), bank, None)
    inputs = place(lay_out_rows(lessons((0, 1, 2))), bank, few=False)
    inputs.rows = None
    with pytest.raises(NotImplementedError, match="mix tokens in order"):
        bare(inputs)


def test_compressed_attention_shares_long_rows() -> None:
    """Its values are narrower than its keys, and kernels take heads of one width."""
    model = build("youtu")
    assert model.config.v_head_dim < model.config.qk_head_dim
    lora = LoraConfig(r=4, dropout=0.0, targets=("all-linear",))
    specs = lanes_of_family(lora, VOCAB, 64)
    assert check_form(model, specs, lora=lora, may_pack=True, limit=64).form is TrainingForm.PACKED
