"""When memory runs out, what is held for speed alone is let go first; then passes are made smaller."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch

from architectures.tiny import build, words
from lane_models import examples, gap, spec
from lane_models import tiny as lane_model
from potentia.engine import LoadedModel
from potentia.engine.lane_spec import TrainingRow
from potentia.engine.models.device_layout import give_back, may_give_back
from potentia.engine.proof.refusal import NO_MEMORY
from potentia.engine.scoring import Scorer
from potentia.engine.steps.lane_states import UPDATE_COLUMNS
from potentia.engine.steps.pass_plan import PassPlan
from potentia.engine.training import LaneSpec, LaneTrainer
from potentia.engine.training.lane import Lane
from potentia.values.requests import Continuation, Generation


class Kept:
    """Somebody who holds as much as some tokens need."""

    def __init__(self, tokens: int) -> None:
        self.tokens, self.asked = tokens, 0
        may_give_back(self)

    def give_back(self) -> bool:
        held, self.tokens = self.tokens > 0, 0
        self.asked += 1
        return held


@contextmanager
def limited(model: torch.nn.Module, kept: Kept, limit: int) -> Iterator[list[int]]:
    """Let a pass fail that has more tokens than the limit leaves beside what is held."""
    passes: list[int] = []

    def refuse(_: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        passes.append(inputs[0].shape[0] * inputs[0].shape[1])
        if passes[-1] + kept.tokens > limit:
            raise torch.OutOfMemoryError("CUDA out of memory: a part of a GPU is used up")

    hook = model.model.layers[1].register_forward_pre_hook(refuse)
    try:
        yield passes
    finally:
        hook.remove()


def requests() -> list[Continuation]:
    return [
        Continuation(f"the river {n} is " + "long " * (n % 9), f" and {word}")
        for n in range(20)
        for word in "abc"
    ]


def lanes(count: int) -> list:
    return [
        spec(f"lane {n}", seed=n, data=examples(24, seed=n), epochs=1, dropout=0.1)
        for n in range(count)
    ]


def made() -> LoadedModel:
    return LoadedModel.of(build("llama"), words())


def test_scoring_keeps_its_passes_where_something_can_be_let_go() -> None:
    loaded = made()
    expected = Scorer(loaded, token_budget=600).loglikelihood(requests())
    kept = Kept(600)
    with limited(loaded.model, kept, 1000) as passes:
        scorer = Scorer(loaded, token_budget=600)
        result = scorer.loglikelihood(requests())
    assert max(passes) > 400
    assert (kept.asked, scorer.token_budget) == (1, 600)
    assert [likelihood.logprob for likelihood in result] == pytest.approx(
        [likelihood.logprob for likelihood in expected], abs=1e-4
    )


def test_a_trial_makes_room_and_one_that_never_fits_is_told_to_nobody() -> None:
    expected = Scorer(made()).loglikelihood(requests())
    loaded, kept = made(), Kept(5000)
    with limited(loaded.model, kept, 5020):
        scorer = Scorer(loaded)
        scorer.loglikelihood(requests())
    assert (kept.asked, "tree" in scorer.notes.rows_by_route) == (1, True)
    loaded = made()
    with limited(loaded.model, Kept(0), 80):  # a row alone fits; rows of a trial do not
        scorer = Scorer(loaded)
        result = scorer.loglikelihood(requests())
    assert set(scorer.notes.rows_by_route) <= {"plain", "single", "reference"}
    assert NO_MEMORY in loaded.checks.routes.values()
    assert [likelihood.logprob for likelihood in result] == pytest.approx(
        [likelihood.logprob for likelihood in expected], abs=1e-4
    )
    again = Scorer(made())
    again.loglikelihood(requests())
    assert "tree" in again.notes.rows_by_route


def test_writing_goes_on_in_one_seat_where_something_can_be_let_go() -> None:
    loaded = made()
    asked = [Generation("the river is", (), 5)]
    expected = Scorer(loaded).generate(asked)
    kept = Kept(100)
    with limited(loaded.model, kept, 102):
        assert Scorer(loaded).generate(asked) == expected
    assert kept.asked == 1


def test_lanes_keep_their_passes_where_something_can_be_let_go() -> None:
    specs = lanes(4)
    with LaneTrainer(lane_model("llama")) as trainer:
        trainer.train(specs)
        plain = {s.key: trainer.adapter_state(s.key) for s in specs}
    model, kept = lane_model("llama"), Kept(100_000)
    with LaneTrainer(model) as trainer:
        with limited(model, kept, 100_050) as passes:
            trainer.train(specs)
        assert trainer.plan is not None
        assert trainer.plan.token_budget > max(passes)
        tight = {s.key: trainer.adapter_state(s.key) for s in specs}
    assert kept.asked == 1
    assert max(gap(plain[key], tight[key]) for key in plain) < 1e-5


def test_captured_passes_are_let_go_and_made_again_in_fewer_sizes() -> None:
    specs = lanes(2)
    with LaneTrainer(lane_model("llama"), may_pack=True) as trainer:
        trainer.train(specs)
        assert trainer.run_under_way is not None
        stepper = trainer.run_under_way.stepper
        from potentia.engine.layers.row_layout import Bucket

        for size in range(6, 0, -1):
            stepper._work_of_bucket(Bucket(128 * size, 64, 2)).graph = object()  # as if captured
        assert len(stepper._passes) == 6  # memory of the first is enough for all
        stepper._work_of_bucket(Bucket(128 * 7, 64, 2)).graph = object()
        assert list(stepper._passes) == [
            Bucket(128 * 7, 64, 2)
        ]  # theirs is too small for it: they are made again in its
        for size in range(5):
            stepper._work_of_bucket(Bucket(128 * 6, 64 + size, 2)).graph = object()
        assert give_back(torch.device("cpu"))
        assert not stepper._passes
        assert stepper.graph_limit == 3
        assert not give_back(torch.device("cpu"))


def lanes_rows(specs: list[LaneSpec]) -> list[TrainingRow]:
    made = [Lane(spec) for spec in specs]
    for slot, lane in enumerate(made):
        lane.slot = slot
    return [row for lane in made for row in lane.next_rows(64)]


def test_a_pass_that_finds_no_memory_when_it_is_captured_is_made_smaller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was run kernel by kernel instead, and so were all after it: a row of 135M took minutes in place of one."""

    @contextmanager
    def capturing(*_: object, **__: object) -> Iterator[None]:
        raise torch.OutOfMemoryError("CUDA out of memory")
        yield

    for name in ("synchronize", "empty_cache", "CUDAGraph", "Stream"):
        monkeypatch.setattr(torch.cuda, name, type(name, (), {"__init__": lambda *_, **__: None}))
    monkeypatch.setattr(torch.cuda, "graph", capturing)
    plans = []
    with LaneTrainer(lane_model("llama"), may_pack=True) as trainer:
        trainer.train(lanes(2))
        assert trainer.run_under_way is not None
        stepper = trainer.run_under_way.stepper
        stepper.may_capture = True
        rows = lanes_rows(lanes(2))
        assert trainer.plan is not None
        trainer.plan = replace(trainer.plan, token_budget=1024)

        def compute(plan: PassPlan) -> None:
            plans.append(plan.token_budget)
            stepper.add_gradients(rows, plan)
            stepper.may_capture = plan.token_budget > 256  # smaller ones do fit
            stepper.add_gradients(rows, plan)

        trainer.run_in_passes(rows, compute, stepper.clear, "")
        stepper.may_capture = True
        stepper._updating.uses = 1
        stepper.update(
            np.zeros((stepper.bank.slots, UPDATE_COLUMNS), np.float32)
        )  # this goes on without
        assert stepper.may_capture
    assert plans[0] == 1024
    assert plans[-1] == 256
