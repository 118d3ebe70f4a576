"""The plan of every step is compared with the recipe, in lanes and in full fine-tuning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lane_models import NO_ADAPTERS, examples, tiny
from potentia.engine import lane_spec
from potentia.engine.lane_spec import LaneSpec, TrainingRow, data_order
from potentia.engine.proof.plan_check import (
    check_step_plan,
    count_steps,
    find_batch_fault,
    reference_order,
)
from potentia.engine.steps.lane_states import settings_of_update
from potentia.engine.training import FullLanes, LaneTrainer, lane_run
from potentia.engine.training.lane import Lane
from potentia.errors import TuningError
from potentia.values.recipe import LoraConfig, Schedule
from speed import loop_seconds, processor_seconds

SCHEDULE = Schedule(
    epochs=3, batch=4, learning_rate=1e-3, decay="cosine", warmup_steps=2, loss="text"
)
WRONG_PLAN = "differs from its recipe"
LATE_STEP = 3  # of an epoch of four: the rehearsal of the first step does not see it


def lane_of(count: int = 14, schedule: Schedule = SCHEDULE) -> LaneSpec:
    return LaneSpec(
        "a", examples(count), schedule, LoraConfig(r=2, dropout=0.0, targets=None), seed=3
    )


def train_lanes(spec: LaneSpec) -> None:
    with LaneTrainer(tiny("llama"), may_pack=False) as trainer:
        trainer.train([spec])


def train_all_weights(spec: LaneSpec) -> None:
    with FullLanes(tiny("llama")) as trainer:
        trainer.train([spec])


TRAININGS = pytest.mark.parametrize("train", [train_lanes, train_all_weights])


def change_late_rows(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[list[TrainingRow]], list[TrainingRow]]
) -> None:
    """Let every late step of an epoch have other rows."""
    make_rows = LaneSpec.rows_of_step

    def changed_rows(self: LaneSpec, step: int, *arguments: Any) -> list[TrainingRow]:
        rows = make_rows(self, step, *arguments)
        return change(rows) if step % 4 == LATE_STEP else rows

    monkeypatch.setattr(LaneSpec, "rows_of_step", changed_rows)


def test_the_reference_order_is_the_order_of_training() -> None:
    for seed, epoch, count in ((0, 0, 10), (3, 4, 83), (2**40 + 1, 2, 500)):
        assert np.array_equal(reference_order(seed, epoch, count), data_order(seed, epoch, count))


def test_right_plans_pass_to_the_end_of_every_schedule() -> None:
    for decay in ("linear", "cosine", "constant", "late"):
        for loss in ("text", "completion"):
            schedule = Schedule(
                epochs=3, batch=5, learning_rate=2e-4, decay=decay, loss=loss, floor=0.1, clip=0.0
            )
            spec = lane_of(17, schedule)
            for step in range(count_steps(spec)):
                lane = Lane(spec, step=step, slot=0)
                settings = settings_of_update(schedule, step, spec.total_steps)
                table = np.array([[*settings, 1.0, step == 0]], np.float32)
                check_step_plan([lane], spec.rows_of_step(step, 20), table, 20)


@TRAININGS
def test_a_partial_batch_that_weighs_as_a_whole_one_ends_the_training(
    train: Callable[[LaneSpec], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def lighten(rows: list[TrainingRow]) -> list[TrainingRow]:
        return [replace(row, weight=row.weight * len(rows) / SCHEDULE.batch) for row in rows]

    change_late_rows(monkeypatch, lighten)
    with pytest.raises(TuningError, match=f"{WRONG_PLAN}: a target weighs"):
        train(lane_of())


@TRAININGS
def test_a_batch_that_is_read_twice_ends_the_training(
    train: Callable[[LaneSpec], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = lane_of()
    change_late_rows(
        monkeypatch, lambda rows: [replace(row, ids=row.ids[::-1].copy()) for row in rows]
    )
    with pytest.raises(TuningError, match=f"{WRONG_PLAN}: row 0 of a batch is not"):
        train(spec)


@TRAININGS
@pytest.mark.parametrize(
    "wrong_order",
    [
        pytest.param(lambda right, epoch: right(3, 0, 14), id="first-epoch-again"),
        pytest.param(lambda right, epoch: np.arange(14) if epoch else right(3, 0, 14), id="sorted"),
        pytest.param(
            lambda right, epoch: right(3, epoch, 14) // 2 * 2 if epoch else right(3, 0, 14),
            id="some-examples-twice",
        ),
    ],
)
def test_a_later_epoch_in_another_order_ends_the_training(
    train: Callable[[LaneSpec], None],
    wrong_order: Callable[[Any, int], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = data_order.__wrapped__
    monkeypatch.setattr(lane_spec, "data_order", lambda _, epoch, __: wrong_order(right, epoch))
    with pytest.raises(TuningError, match=WRONG_PLAN):
        train(lane_of())


@TRAININGS
def test_a_last_batch_that_is_left_out_ends_the_training(
    train: Callable[[LaneSpec], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Schedule, "steps_per_epoch", lambda self, count: count // self.batch)
    with pytest.raises(TuningError, match="where the recipe has 12"):
        train(lane_of())


@TRAININGS
def test_a_learning_rate_that_is_wrong_late_ends_the_training(
    train: Callable[[LaneSpec], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = Schedule.rate_share

    def wrong(self: Schedule, step: int, total: int) -> float:
        return right(self, step, total) * (1.01 if step == 7 else 1.0)

    monkeypatch.setattr(Schedule, "rate_share", wrong)
    with pytest.raises(TuningError, match=WRONG_PLAN):
        train(lane_of())


def test_moments_that_are_corrected_anew_in_a_later_step_end_the_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def wrong(schedule: Schedule, step: int, total: int) -> Any:
        settings = settings_of_update(schedule, step, total)
        if step < 8:
            return settings
        again = settings_of_update(schedule, step % 8, total)
        return settings._replace(second_correction=again.second_correction)

    monkeypatch.setattr(lane_run, "settings_of_update", wrong)
    with pytest.raises(TuningError, match=f"{WRONG_PLAN}: number 7 of an update"):
        train_lanes(lane_of())


def test_a_lane_that_is_called_done_early_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    right = lane_run.LaneRun._end_epochs

    def end_early(self: Any, due: Sequence[Lane]) -> None:
        total = LaneSpec.total_steps
        monkeypatch.setattr(LaneSpec, "total_steps", property(lambda _: 4))
        try:
            right(self, list(due))
        finally:
            monkeypatch.setattr(LaneSpec, "total_steps", total)

    monkeypatch.setattr(lane_run.LaneRun, "_end_epochs", end_early)
    with pytest.raises(TuningError, match="ended after 4 of its 12 steps"):
        train_lanes(lane_of())


def test_rows_of_another_lane_are_noticed() -> None:
    spec = lane_of()
    rows = spec.rows_of_step(0, None, slot=0)
    stranger = replace(rows[0], slot=1)
    lane = Lane(spec, slot=0)
    table = np.zeros((1, 11), np.float32)
    with pytest.raises(TuningError, match="rows of no fine-tuning"):
        check_step_plan([lane], [*rows, stranger], table, None)
    with pytest.raises(TuningError, match="a batch has 3 examples, not 4"):
        check_step_plan([lane], rows[:3], table, None)


def test_the_check_of_a_batch_takes_microseconds() -> None:
    schedule = Schedule(epochs=2, batch=8, learning_rate=2e-5, loss="text")
    spec = LaneSpec("a", examples(2000, high=120), schedule, NO_ADAPTERS)
    rows = spec.rows_of_step(100, None)
    find_batch_fault(spec, 100, rows, None)
    spent = processor_seconds(lambda: [find_batch_fault(spec, 100, rows, None) for _ in range(200)])
    assert spent / 200 < loop_seconds() / 100
