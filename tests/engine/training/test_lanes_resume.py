"""A run of lanes can be stopped, killed or damaged, and goes on to the same numbers."""

from __future__ import annotations

import errno
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from lane_models import examples, gap, spec, tiny
from potentia.engine.training import lane_run
from potentia.engine.training.lane_run import LaneRun
from potentia.engine.training.lanes import LaneTrainer
from potentia.engine.training.snapshot import SavedStates, Snapshots, read_sealed, write_sealed
from potentia.errors import TuningError
from potentia.values.fine_tuning import ValidationScore


def row_of_lanes(p: float = 0.1) -> list:
    return [
        spec(
            f"lane-{i}",
            seed=i,
            data=examples(12 + 4 * i, seed=i),
            batch=4,
            epochs=3,
            learning_rate=1e-3 * (i + 1),
            dropout=p,
        )
        for i in range(5)
    ]


def finish(model, folder: Path | None, *, stop=None, judge=None, budget: int = 512):
    with LaneTrainer(model, workspace=folder, token_budget=budget) as trainer:
        results = trainer.train(row_of_lanes(), stop=stop, on_epoch=judge)
        states = {
            key: [trainer.adapter_state(key, epoch.epoch) for epoch in result.epochs]
            for key, result in results.items()
        }
    return results, states


def same(first_state, second_state) -> bool:
    return first_state.keys() == second_state.keys() and all(
        len(first_state[key]) == len(second_state[key])
        and all(gap(a, b) == 0 for a, b in zip(first_state[key], second_state[key], strict=True))
        for key in first_state
    )


def stopping_after(steps: int):
    asked = iter(range(10**9))
    return lambda: next(asked) >= steps


def race(epochs):
    return {epoch.key for epoch in epochs if epoch.key == "lane-3" and epoch.epoch == 2}


@cache
def undisturbed(budget: int = 512, judge: Any = None) -> tuple[Any, Any]:
    return finish(tiny("llama"), None, judge=judge, budget=budget)


@pytest.mark.parametrize(
    ("steps", "budget"), [(0, 160), (7, 160), (20, 160), (7, 64), (1, 2048), (14, 2048)]
)
def test_stopped_and_resumed_is_bitwise_the_same(steps: int, budget: int, tmp_path: Path) -> None:
    whole_results, undisturbed_states = undisturbed(budget, race)
    results, _ = finish(
        tiny("llama"), tmp_path, stop=stopping_after(steps), judge=race, budget=budget
    )
    assert any(result.status == "interrupted" for result in results.values())
    results, resumed = finish(tiny("llama"), tmp_path, judge=race, budget=budget)
    assert same(undisturbed_states, resumed)
    assert results == whole_results


def test_killed_at_random_steps_and_resumed_is_bitwise_the_same(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(lane_run, "SNAPSHOT_SECONDS", 0.0)
    _, undisturbed_states = undisturbed()

    class Killed(SystemExit):
        pass

    def killing_after(steps: int):
        asked = iter(range(10**9))

        def check():
            if next(asked) >= steps:
                raise Killed
            return False

        return check

    for steps in (9, 3, 2, 4):
        with pytest.raises(Killed):
            finish(tiny("llama"), tmp_path, stop=killing_after(steps))
    _, resumed = finish(tiny("llama"), tmp_path)
    assert same(undisturbed_states, resumed)


def test_finished_lanes_are_not_trained_again_and_keep_their_validations(tmp_path: Path) -> None:
    def judge(epochs):
        for epoch in epochs:
            epoch.validations["task"] = ValidationScore(0.25 * epoch.epoch, 0.1)

    finish(tiny("llama"), tmp_path, judge=judge)

    def never(_epochs):
        raise AssertionError("computed twice")

    results, _ = finish(tiny("llama"), tmp_path, judge=never)
    assert [epoch.validations["task"].value for epoch in results["lane-0"].epochs] == [
        0.25,
        0.5,
        0.75,
    ]


def test_what_is_over_leaves_no_optimizer_state_on_disk(tmp_path: Path) -> None:
    finish(tiny("llama"), tmp_path)
    (file,) = tmp_path.glob(
        "*/snapshot-*.sealed"
    )  # one, at the end: a run of a second is not saved on the way
    tensors, _ = read_sealed(file)
    assert {len(part) for part in tensors.values()} == {0}
    finish(tiny("llama"), tmp_path / "stopped", stop=stopping_after(5))
    (file,) = (tmp_path / "stopped").glob("*/snapshot-*.sealed")
    tensors, facts = read_sealed(file)
    assert {len(part) for part in tensors.values()} == {len(facts["slots"])}
    assert facts["slots"]


def damage(path: Path, how: str) -> None:
    raw = bytearray(path.read_bytes())
    if how == "cut":
        raw = raw[: len(raw) // 2]
    else:
        raw[len(raw) // 2] ^= 0x10
    path.write_bytes(bytes(raw))


@pytest.mark.parametrize("how", ["cut", "flipped"])
def test_a_broken_snapshot_falls_back_to_the_one_before(
    how: str, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(lane_run, "SNAPSHOT_SECONDS", 0.0)
    _, undisturbed_states = undisturbed()
    finish(tiny("llama"), tmp_path, stop=stopping_after(13))
    files = list(tmp_path.glob("*/snapshot-*.sealed"))
    assert len(files) == 2
    newest = max(files, key=lambda file: read_sealed(file)[1]["serial"])
    damage(newest, how)
    steps = []
    with LaneTrainer(tiny("llama"), workspace=tmp_path, token_budget=512) as trainer:
        trainer.train(row_of_lanes(), on_step=lambda info: steps.append(info.step))
        states = {
            s.key: [trainer.adapter_state(s.key, e) for e in (1, 2, 3)] for s in row_of_lanes()
        }
    assert 1 < steps[0] <= 13
    assert same(undisturbed_states, states)


def test_a_broken_adapter_file_changes_no_bit(tmp_path: Path) -> None:
    _, undisturbed_states = finish(tiny("llama"), tmp_path)
    path = SavedStates(next(tmp_path.iterdir())).path_of_state("lane-2", 2)
    damage(path, "flipped")
    with LaneTrainer(tiny("llama"), workspace=tmp_path, token_budget=512) as trainer:
        trainer.train(row_of_lanes())
        states = {
            s.key: [trainer.adapter_state(s.key, e) for e in (1, 2, 3)] for s in row_of_lanes()
        }
    assert same(undisturbed_states, states), "computed again beside the lanes it was computed with"


def rewrite_newest_snapshot(folder: Path, change) -> None:
    """Write the newest snapshot again, whole, as another version might have laid it out."""
    files = list(folder.glob("*/snapshot-*.sealed"))
    newest = max(files, key=lambda file: read_sealed(file)[1]["serial"])
    tensors, facts = read_sealed(newest)
    change(tensors, facts)
    write_sealed(newest, tensors, facts)


def without_results(_tensors, facts) -> None:
    for record in facts["lanes"].values():
        for epoch in record["epochs"]:
            epoch.update(epoch.pop("result"))


def with_another_plan(_tensors, facts) -> None:
    facts["plan"]["lanes"] = facts["plan"].pop("slots")


def with_other_moments(tensors, _facts) -> None:
    tensors["exp_avg"] = tensors.pop("first")


def without_tokens(_tensors, facts) -> None:
    for record in facts["lanes"].values():
        del record["tokens"]


@pytest.mark.parametrize(
    "change", [without_results, with_another_plan, with_other_moments, without_tokens]
)
def test_a_snapshot_of_another_layout_is_told_and_starts_over(
    change, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    finish(tiny("llama"), tmp_path, stop=stopping_after(13))
    rewrite_newest_snapshot(tmp_path, change)
    steps = []
    with LaneTrainer(tiny("llama"), workspace=tmp_path, token_budget=512) as trainer:
        trainer.train(row_of_lanes(), on_step=lambda info: steps.append(info.step))
        states = {
            s.key: [trainer.adapter_state(s.key, e) for e in (1, 2, 3)] for s in row_of_lanes()
        }
    assert steps[0] == 1
    assert same(undisturbed()[1], states)
    assert "5 fine-tunings start over: another version" in caplog.text


def test_other_lanes_or_another_model_never_resume_from_a_snapshot(tmp_path: Path) -> None:
    class Loaded:
        def __init__(self, name: str) -> None:
            self.model, self.fingerprint, self.max_length = tiny("llama"), name, 64

    counted = []
    for name, learning_rate in (("a", 1e-3), ("b", 1e-3), ("a", 2e-3), ("a", 1e-3)):
        with LaneTrainer(Loaded(name), workspace=tmp_path) as trainer:
            steps: list = []
            trainer.train([spec(epochs=1, learning_rate=learning_rate)], on_step=steps.append)
            counted.append(len(steps))
    assert counted == [5, 5, 5, 0]


def test_a_full_disk_is_a_clear_error_and_harms_nothing(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "x.sealed"
    write_sealed(path, {"a": torch.ones(3)}, {"n": 1})

    def full(_descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(TuningError, match="No space left"):
        write_sealed(path, {"a": torch.zeros(3)}, {"n": 2})
    monkeypatch.undo()
    tensors, facts = read_sealed(path)
    assert facts == {"n": 1}
    assert tensors["a"].tolist() == [1, 1, 1]
    assert [file.name for file in tmp_path.iterdir()] == ["x.sealed"]


def test_snapshots_alternate(tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path, 60.0)
    for n in range(3):
        snapshots.save({"a": torch.full((2,), float(n))}, {"n": n})
    again = Snapshots(tmp_path, 60.0)
    tensors, facts = again.read_latest()
    assert (facts["n"], tensors["a"][0].item(), again.serial) == (2, 2.0, 3)
    assert len(list(tmp_path.iterdir())) == 2


def test_progress_goes_on_from_what_a_resumed_run_found_done(tmp_path: Path) -> None:
    total = sum(s.total_steps for s in row_of_lanes())
    finish(tiny("llama"), tmp_path, stop=stopping_after(13))
    infos = []
    with LaneTrainer(tiny("llama"), workspace=tmp_path, token_budget=512) as trainer:
        trainer.train(row_of_lanes(), on_step=infos.append)
    assert infos[0].resumed > 0
    assert infos[0].done == infos[0].resumed + infos[0].active
    assert infos[-1].done == total
    assert len({info.resumed for info in infos}) == 1


@pytest.mark.parametrize("fault", ["weights", "first", "second", "slots", "step", "work"])
def test_a_state_that_is_not_the_saved_one_is_not_trained_on(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish(tiny("llama"), tmp_path, stop=stopping_after(7), budget=160)
    restore = LaneRun._restore_snapshot

    def restore_badly(self: LaneRun, tensors: Any, facts: Any) -> None:
        if fault in tensors:
            tensors[fault] = torch.zeros_like(tensors[fault])
        if fault == "slots":
            facts["slots"] = facts["slots"][::-1]
        if fault == "step":
            for record in facts["lanes"].values():
                record["step"] = max(0, record["step"] - 1)
        if fault == "work":
            monkeypatch.setattr(self.bank, "refresh_work", lambda *_: None)
        restore(self, tensors, facts)

    monkeypatch.setattr(LaneRun, "_restore_snapshot", restore_badly)
    with pytest.raises(TuningError, match="resumed"):
        finish(tiny("llama"), tmp_path, budget=160)
