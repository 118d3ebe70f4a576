"""Full tunings as lanes: one at a time, resumed bit for bit, with the states that may still be asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lane_models import NO_ADAPTERS, examples, tiny
from potentia.engine.training import FullLanes, LaneSpec, Schedule
from potentia.engine.training.snapshot import read_sealed, write_sealed
from potentia.errors import TuningError
from potentia.values.fine_tuning import ValidationScore

RECIPE = Schedule(epochs=3, batch=16, learning_rate=1e-3, loss="text")


def lanes() -> list[LaneSpec]:
    return [
        LaneSpec(f"lane-{i}", examples(40 + 10 * i, seed=i), RECIPE, NO_ADAPTERS, i)
        for i in range(2)
    ]


def weights(model) -> list[torch.Tensor]:
    return [value.detach().clone() for value in model.parameters()]


def equal(first_state, second_state) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first_state, second_state, strict=True))


class Judge:
    """Holds the last epoch of each lane and remembers the weights it saw."""

    def __init__(self, model, trainer: FullLanes) -> None:
        self.model, self.trainer = model, trainer
        self.seen: dict[tuple[str, int], list[torch.Tensor]] = {}
        self.held: dict[str, int] = {}

    def __call__(self, ended):
        (epoch,) = ended
        self.seen[epoch.key, epoch.epoch] = weights(self.model)
        epoch.validations["task"] = ValidationScore(epoch.epoch / 10, 0.1)
        self.held[epoch.key] = epoch.epoch
        self.trainer.keep_only_states(list(self.held.items()))
        return {}


@pytest.mark.parametrize("on_disk", [False, True])
def test_each_lane_is_a_full_tuning_and_a_held_state_comes_back(
    on_disk: bool, tmp_path: Path
) -> None:
    model = tiny("llama")
    before = weights(model)
    with FullLanes(model, workspace=tmp_path if on_disk else None) as trainer:
        judge = Judge(model, trainer)
        results = trainer.train(lanes(), on_epoch=judge)
        assert [result.status for result in results.values()] == ["done", "done"]
        for spec in lanes():
            alone = tiny("llama")
            with FullLanes(alone) as one:
                one.train([spec])
                steps = one.steps
                assert equal(judge.seen[spec.key, 3], weights(alone))
            per = spec.steps_per_epoch
            assert [epoch.loss for epoch in results[spec.key].epochs] == [
                sum(step.loss for step in steps[at : at + per]) / per
                for at in range(0, len(steps), per)
            ]
            tokens = sum(len(spec.text_of_example(i)[0]) for i in range(len(spec.examples)))
            assert [epoch.result.tokens for epoch in results[spec.key].epochs] == [tokens] * 3
        trainer.restore("lane-0", 3)
        assert equal(weights(model), judge.seen["lane-0", 3])
        trainer.restore_untuned()
        assert equal(weights(model), before)
        trainer.restore("lane-1", 3)
        assert equal(weights(model), judge.seen["lane-1", 3])
        with pytest.raises(TuningError, match="not there"):
            trainer.restore("lane-0", 2)  # was let go when epoch 3 was held
    assert equal(weights(model), before)


@pytest.mark.parametrize("steps", [1, 3, 5, 9, 11, 17])
def test_a_stopped_run_goes_on_bit_for_bit(steps: int, tmp_path: Path) -> None:
    def run(folder: Path | None, until: int = 10**9):
        model, made = tiny("llama"), []
        with FullLanes(model, workspace=folder) as trainer:
            judge = Judge(model, trainer)
            results = trainer.train(
                lanes(),
                on_epoch=judge,
                on_step=made.append,
                on_resume=lambda known: judge.held.update(
                    {epoch.key: epoch.epoch for epoch in known}
                ),
                stop=lambda: len(made) >= until,
            )
            held = {}
            if all(result.status == "done" for result in results.values()):
                for key in ("lane-0", "lane-1"):
                    trainer.restore(key, 3)
                    held[key] = weights(model)
        return results, made, held

    undisturbed, all_steps, expected = run(None)
    first, made, _ = run(tmp_path, steps)
    assert any(result.status == "interrupted" for result in first.values())
    assert len(made) == steps
    again, rest, resumed_state = run(tmp_path)
    assert len(rest) == len(all_steps) - steps, "no step is made twice"
    assert again == undisturbed
    assert all(equal(resumed_state[key], expected[key]) for key in expected)
    assert not list(tmp_path.rglob("snapshot-*")), (
        "a lane that is over leaves no optimizer state behind"
    )


def test_a_dropped_lane_stops_and_a_diverged_one_says_so(tmp_path: Path) -> None:
    wild = LaneSpec(
        "wild",
        examples(32),
        Schedule(learning_rate=1e30, decay="constant", loss="text"),
        NO_ADAPTERS,
    )
    with FullLanes(tiny("llama"), workspace=tmp_path) as trainer:
        results = trainer.train([*lanes(), wild], on_epoch=lambda ended: {"lane-0"})
    assert [result.status for result in results.values()] == ["dropped", "done", "failed"]
    assert len(results["lane-0"].epochs) == 1
    assert "diverged" in str(results["wild"].reason)
    with FullLanes(tiny("llama"), workspace=tmp_path) as trainer:
        assert trainer.train([*lanes(), wild]) == results, "and stays so"


@pytest.mark.parametrize("file", ["notes.sealed", "epoch-3.sealed"])
def test_a_damaged_file_costs_the_lane_and_no_number(file: str, tmp_path: Path) -> None:
    def run():
        model = tiny("llama")
        with FullLanes(model, workspace=tmp_path) as trainer:
            judge = Judge(model, trainer)
            trainer.train(lanes()[:1], on_epoch=judge)
            trainer.restore("lane-0", 3)
            return weights(model)

    result = run()
    (path,) = tmp_path.rglob(file)
    path.write_bytes(path.read_bytes()[:-3])
    if file != "notes.sealed":
        with pytest.raises(TuningError, match="run the same command again"):
            run()
    assert equal(run(), result)


def test_notes_of_another_layout_are_told_and_the_lane_starts_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first_lane = lanes()[:1]
    with FullLanes(tiny("llama"), workspace=tmp_path) as trainer:
        trainer.train(first_lane)
        expected_losses = [step.loss for step in trainer.steps]
    (notes_file,) = tmp_path.glob("*/notes.sealed")
    tensors, record = read_sealed(notes_file)
    for epoch in record["epochs"]:
        epoch.update(epoch.pop("result"))
    write_sealed(notes_file, tensors, record)
    with FullLanes(tiny("llama"), workspace=tmp_path) as trainer:
        (result,) = trainer.train(first_lane).values()
        assert [step.loss for step in trainer.steps] == expected_losses
    assert (result.status, len(result.epochs)) == ("done", 3)
    assert "starts over: another version" in caplog.text
