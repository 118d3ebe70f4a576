"""A model over several devices: the same scores, texts and adapters, and no operation on tensors of two devices."""

from __future__ import annotations

import pytest
import torch

import lane_models
import tiny
from potentia import engine
from potentia.engine.models.device_layout import find_blocks, is_spread, lay_out, room_for_passes
from potentia.engine.scoring import Scorer
from potentia.engine.training import FullLanes, LaneTrainer
from potentia.errors import InputError, ModelError
from potentia.values.requests import Continuation, Generation
from two_devices import spread_over_two

KINDS = ["llama", "gpt2", "gemma2"]
CPU = torch.device("cpu")


def test_two_devices_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    model = lane_models.tiny("llama")
    devices = spread_over_two(model, 1, monkeypatch)
    block = find_blocks(model)[1]
    with devices, pytest.raises(AssertionError, match=r"on \['away', 'home'\]"):
        block.mlp.up_proj(model.get_input_embeddings().weight)


@pytest.mark.parametrize("kind", KINDS)
def test_lanes_over_two_devices_train_the_adapters_of_one(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = [lane_models.examples(20, seed=k) for k in range(3)]
    lanes = [lane_models.spec(f"lane {k}", seed=k, data=data[k], dropout=0.1) for k in range(3)]

    def trained(model: torch.nn.Module) -> list[dict[str, torch.Tensor]]:
        with LaneTrainer(model) as trainer:
            trainer.train(lanes)
            return [trainer.adapter_state(lane.key) for lane in lanes]

    model = lane_models.tiny(kind)
    alone = trained(model)
    with spread_over_two(model, 1, monkeypatch) as devices:
        over_two = trained(model)
    assert devices.sent > 50
    assert devices.checked > 1000
    for ours, theirs in zip(over_two, alone, strict=True):
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_memory_that_runs_out_away_from_home_leaves_the_adapters_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = lane_models.tiny("llama")
    lane = lane_models.spec(data=lane_models.examples(24))

    def trained() -> dict[str, torch.Tensor]:
        with LaneTrainer(model) as trainer:
            trainer.train([lane])
            return trainer.adapter_state(lane.key)

    alone, refused = trained(), []

    def refuse(_module, inputs, _output):
        if inputs[0].numel() // inputs[0].shape[-1] > 90:
            refused.append(inputs[0].shape)
            raise torch.OutOfMemoryError("CUDA out of memory (simulated)")

    with spread_over_two(model, 1, monkeypatch):
        hook = find_blocks(model)[1].mlp.up_proj.register_forward_hook(refuse)
        tight = trained()
        hook.remove()
    assert refused
    assert all(torch.allclose(tight[name], alone[name], atol=1e-5) for name in alone)


def test_scores_and_texts_over_two_devices_are_those_of_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    tiny.save_model(tmp_path / "base")
    asks = [Continuation("the red cat", f" {word}") for word in ("is old", "was", "river house")]
    asks += [Continuation("the blue dog is in", f" {word}") for word in ("a house", "the river")]
    writes = [Generation("the cat", (".",), 6), Generation("who is the old dog", ("?",), 3)]
    result = []
    for away in (None, 1):
        loaded = engine.load(str(tmp_path / "base"), device="cpu")
        if away is None:
            result.append((Scorer(loaded).loglikelihood(asks), Scorer(loaded).generate(writes)))
            continue
        with spread_over_two(loaded.model, away, monkeypatch) as devices:
            result.append((Scorer(loaded).loglikelihood(asks), Scorer(loaded).generate(writes)))
            assert devices.sent > 0
    assert result[0] == result[1]


def test_full_tuning_over_two_devices_gives_the_weights_of_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = lane_models.spec(data=lane_models.examples(16))

    def trained(model: torch.nn.Module) -> list[torch.Tensor]:
        with FullLanes(model) as trainer:
            trainer.train([spec])
            return [weight.clone() for weight in trainer.current_weights()]

    model = lane_models.tiny("llama")
    alone = trained(model)
    devices = spread_over_two(
        model, 1, monkeypatch
    )  # not watched: optimizers take lists of both devices' weights
    over_two = trained(model)
    assert devices.sent > 10
    assert all(torch.equal(first, second) for first, second in zip(alone, over_two, strict=True))


def test_blocks_are_shared_by_the_room_of_devices() -> None:
    model = lane_models.tiny("llama")
    first = sum(p.numel() * 4 for p in find_blocks(model)[0].parameters())
    model_bytes = sum(p.numel() * 4 for p in model.parameters())
    gpu, second = torch.device("cuda", 0), torch.device("cuda", 1)
    other_bytes = model_bytes - 2 * first
    assert lay_out(model, [gpu, second], [other_bytes + 2 * first, 2 * first]).places == (
        gpu,
        second,
    )
    assert lay_out(model, [gpu, second], [other_bytes + first, first]).places == (gpu, second)
    assert lay_out(model, [gpu, second], [other_bytes, 3 * first]).places == (second, second)
    with pytest.raises(ModelError, match="there is room for"):
        lay_out(model, [gpu, second], [other_bytes + first // 2, first])
    assert lay_out(model, [CPU]).places == (CPU, CPU)
    assert not is_spread(model)
    assert room_for_passes(model) is None


def test_spread_on_a_machine_without_gpus_is_the_processor(tmp_path) -> None:
    tiny.save_model(tmp_path / "base")
    if not torch.cuda.is_available():
        assert engine.load(str(tmp_path / "base"), device="spread").device == CPU
    with pytest.raises(InputError, match="no such device"):
        engine.load(str(tmp_path / "base"), device="everywhere")
