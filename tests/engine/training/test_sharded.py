"""Full tuning in shards gives the weights of one process."""

from __future__ import annotations

import pytest
import torch

import lane_models
from potentia.engine.training import FullLanes
from potentia.errors import TuningError


def test_two_processes_tune_to_the_weights_of_one() -> None:
    spec = lane_models.spec(
        seed=0, data=lane_models.examples(20), batch=5, epochs=1
    )  # an odd row each, and a last short batch

    def trained(trainer: FullLanes) -> tuple[list[torch.Tensor], list[torch.Tensor], list[float]]:
        on_the_way: list[torch.Tensor] = []

        def look(info) -> None:
            if info.step in trainer.scored_steps:
                on_the_way.extend(weight.clone() for weight in trainer.current_weights())

        with trainer:
            trainer.train([spec], on_step=look)
            return (
                [weight.clone() for weight in trainer.current_weights()],
                on_the_way,
                [step.gradient_norm for step in trainer.steps],
            )

    model = lane_models.tiny("llama")
    before = [weight.detach().clone() for weight in model.parameters()]
    first, one_way, norms = trained(FullLanes(model, scored_steps=[2]))
    second, two_way, two_norms = trained(FullLanes(model, shards=2, scored_steps=[2]))
    assert len(norms) == spec.total_steps
    assert two_norms == pytest.approx(norms, rel=1e-4)
    moved = max(float((a - b).abs().max()) for a, b in zip(first, before, strict=True))
    assert moved > 1e-4
    for alone, ours in ((first, second), (one_way, two_way)):
        assert (
            max(float((a - b).abs().max()) for a, b in zip(alone, ours, strict=True)) < 0.01 * moved
        )
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True)
    )  # put back


def test_a_first_step_that_lost_a_row_ends_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    from potentia.engine.training import sharded

    make_step = sharded.Shards.step
    monkeypatch.setattr(
        sharded.Shards, "step", lambda self, rows, rate: make_step(self, rows[:-1], rate)
    )
    spec = lane_models.spec(seed=0, data=lane_models.examples(10), batch=5, epochs=1)
    steps: list[object] = []
    with (
        FullLanes(lane_models.tiny("llama"), shards=2) as trainer,
        pytest.raises(TuningError, match="the first step of all processes: loss off"),
    ):
        trainer.train([spec], on_step=steps.append)
    assert not steps


def test_what_goes_wrong_in_a_shard_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from potentia.engine.training import sharded

    class Gone:
        def send(self, _):
            raise BrokenPipeError

    shards = sharded.Shards.__new__(sharded.Shards)
    shards.pipes = [Gone()]
    with pytest.raises(TuningError, match="a process of the sharded tuning ended"):
        shards.ask("step")
