"""What a budget of ``select`` holds follows from the pace that is measured, and what goes first is always the same."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from potentia.run import find_parameters, format_time
from potentia.run.encoders import count_encoder_examples
from potentia.run.race_budget import (
    CandidatePace,
    FoldTokens,
    RaceClock,
    RacePlan,
    describe_limits,
    has_more_updates,
    keep_one_rate,
    list_smaller_plans,
    plan_trial,
)
from potentia.study import ModelSpec, Tuning

PLAN = RacePlan(("t#1/3", "t#2/3", "t#3/3"), (40, 160), Tuning())
TOKENS = FoldTokens(train_example=30.0, validation=1_000.0, test=4_000.0)


def make_clock(seconds_per_token: float) -> RaceClock:
    pace = CandidatePace(score_token=seconds_per_token, train_token=2 * seconds_per_token)
    return RaceClock(TOKENS, {"a": pace, "b": pace})


def test_every_smaller_plan_takes_less_time_than_the_whole_and_the_last_next_to_nothing() -> None:
    clock = make_clock(1e-3)
    seconds = [clock.estimate_plan(plan) for plan in list_smaller_plans(PLAN, candidates=2)]
    assert max(seconds) < clock.estimate_plan(PLAN)
    assert min(seconds) == seconds[-1]
    assert seconds[-1] < clock.estimate_plan(PLAN) / 50


def test_the_order_in_which_things_are_left_out() -> None:
    plan = replace(PLAN, folds=tuple(f"t#{number}/5" for number in range(1, 6)))
    limits = [describe_limits(plan, smaller) for smaller in list_smaller_plans(plan, candidates=2)]
    assert limits[:3] == ["4 of 5 folds", "3 of 5 folds", "one learning rate instead of a search"]
    half = "100 of 200 training steps"
    assert limits.index(f"one learning rate instead of a search, {half}") == 5
    # three folds at a quarter of the length come before one fold at full length, which is none of the plans
    fewest = limits.index(
        "3 of 5 folds, one learning rate instead of a search, 60 of 200 training steps"
    )
    assert "1 of 5 folds" in limits[fewest + 2]
    assert "1 of 5 folds, one learning rate instead of a search" not in limits
    assert "no outlook" in limits[fewest + 3]
    assert "32 of 160 training examples" in limits[-1]


def test_the_first_pass_of_a_tiny_model_is_not_taken_for_its_pace() -> None:
    clock = make_clock(1e-7)
    trial = plan_trial(PLAN)
    clock.learn_tuning("a", {"train": 1.2, "test": 0.01, "check": 0.5}, trial.tuning, 32, folds=1)
    trained = TOKENS.count_trained(trial.tuning, 32)
    assert clock.paces["a"].train_token == pytest.approx(0.2 / trained)
    # 200 updates of one rate are 2 s at least, however fast the arithmetic is
    one_rate = keep_one_rate(PLAN.tuning)
    assert clock.paces["b"].estimate_training(1.0, one_rate.count_updates(160)) == pytest.approx(
        2.0
    )


def test_encoders_have_their_share_of_a_budget() -> None:
    clock = make_clock(1e-4)
    alone = clock.estimate_plan(PLAN)
    clock.expected_paces = dict(clock.paces)
    clock.encoder_token = 1e-4
    examples = count_encoder_examples(160)
    expected = 3 * 1e-4 * TOKENS.train_example * examples
    plan = replace(PLAN, has_encoders=True)
    assert clock.estimate_plan(plan) == pytest.approx(alone + expected)
    assert clock.estimate_plan(PLAN) == pytest.approx(alone)
    # a budget that does not hold them still holds the others, and the trial is without them
    smaller = list(list_smaller_plans(plan, candidates=2))
    assert [limited.has_encoders for limited in smaller].index(False) == len(smaller) // 2
    assert replace(plan, has_encoders=False) in smaller
    assert "no encoders" in describe_limits(plan, smaller[-1])
    assert not plan_trial(plan).has_encoders
    # on a machine that is ten times as slow as expected, encoders are too
    slow = replace(clock.paces["a"], train_token=2e-3, is_training_measured=True)
    clock.paces["a"] = slow
    assert clock.estimate_encoders(160, 3) == pytest.approx(10 * expected)
    assert clock.estimate_encoders(160, 1, rates=1) == pytest.approx(10 * expected / 3 / 2)


def test_a_slow_machine_gets_a_smaller_plan_after_it_was_measured() -> None:
    clock = make_clock(1e-5)
    expected = clock.estimate_plan(PLAN)
    trial = plan_trial(PLAN)
    trained = TOKENS.count_trained(trial.tuning, 32)
    scored = TOKENS.count_scored(trial.tuning, 32)
    tally = {"train": 100 * 2e-5 * trained, "test": 100 * 1e-5 * scored, "check": 50.0, "load": 0.0}
    for model in ("a", "b"):
        clock.learn_tuning(model, tally, trial.tuning, 32, folds=1)
    loading_and_updates = 2 * 4 * 4.0 + 0.01 * 4 * 3.7 * 200 * 2
    assert clock.estimate_plan(PLAN) == pytest.approx(100 * expected, rel=0.9)
    assert clock.estimate_plan(PLAN) > 20 * (expected - loading_and_updates)
    # checks are done once, and are not counted again
    assert clock.paces["a"].training_check == 0.0


def test_slow_checks_foretell_slow_training() -> None:
    pace = CandidatePace.from_flops(1e8, flops_per_second=1e10)
    tally = {"test": 1.0, "check": 10 * pace.scoring_check, "load": 3.0}
    measured = pace.learn(tally, scored_tokens=4_000.0, trained_tokens=0.0)
    assert measured.train_token == pytest.approx(10 * pace.train_token)
    assert measured.training_check == pytest.approx(10 * pace.training_check)
    assert measured.scoring_check == 0.0
    assert measured.load == 3.0


def test_a_candidate_of_unknown_size_gets_its_pace_from_scoring() -> None:
    unknown = CandidatePace.from_flops(math.nan, 1e10)
    clock = RaceClock(TOKENS, {"a": unknown})
    assert math.isnan(clock.estimate_plan(PLAN))
    clock.learn_scoring("a", {"load": 1.0, "check": 2.0, "test": 4.0}, folds=1)
    assert clock.paces["a"].train_token == pytest.approx(2 * 4.0 / TOKENS.test)
    assert math.isfinite(clock.estimate_plan(PLAN))


def test_the_speed_of_a_candidate_leaves_out_loading_and_checks() -> None:
    clock = make_clock(1e-3)
    assert math.isnan(clock.find_scoring_speed("a", test_examples=100))
    clock.learn_scoring("a", {"load": 10.0, "check": 80.0, "test": 20.0}, folds=2)
    assert clock.find_scoring_speed("a", test_examples=100) == pytest.approx(2 * 100 / 20.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_parameters_are_counted_by_the_files_headers(tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = {"a": torch.zeros(30, 10, dtype=dtype), "b": torch.zeros(7, dtype=dtype)}
    save_file(tensors, tmp_path / "model.safetensors")
    assert find_parameters(ModelSpec(name=str(tmp_path))) == 307
    (tmp_path / "model.safetensors").write_bytes(b"damaged")
    assert find_parameters(ModelSpec(name=str(tmp_path))) == len(b"damaged") / 2


def test_a_packed_file_tells_about_how_many_parameters_it_has(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(bytes(6_500))
    assert find_parameters(ModelSpec(name=str(tmp_path))) == pytest.approx(10_000)
    assert find_parameters(ModelSpec(name=str(tmp_path / "model.gguf"))) == pytest.approx(10_000)


def test_a_plan_that_trains_no_longer_than_the_trial_does_not_replace_it() -> None:
    trial = plan_trial(PLAN)
    plans = list(list_smaller_plans(PLAN, candidates=2))
    assert has_more_updates(plans[0], trial)
    assert not has_more_updates(plans[-1], trial)  # one pass over as many examples
    assert not has_more_updates(trial, trial)


@pytest.mark.parametrize(
    ("seconds", "text"), [(150, "2.5 min"), (480, "8 min"), (720, "12 min"), (60, "60 s")]
)
def test_minutes_are_not_rounded_to_another_number(seconds: float, text: str) -> None:
    assert format_time(seconds) == text
