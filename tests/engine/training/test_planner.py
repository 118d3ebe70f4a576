"""Packing: every row once, nothing over the budget, fewer padded tokens where passes are cheap."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from potentia.engine.steps.pass_plan import PassPlan, Workload, choose_padded_passes, make_plan
from potentia.errors import TuningError

lengths = st.lists(st.integers(2, 300), min_size=1, max_size=120)


@settings(max_examples=60, deadline=None)
@given(lengths, st.integers(64, 4096), st.integers(0, 2000))
def test_every_row_once_and_within_the_budget(rows: list[int], budget: int, price: int) -> None:
    passes = choose_padded_passes(rows, PassPlan(4, budget, price))
    assert sorted(int(i) for chosen, _ in passes for i in chosen) == list(range(len(rows)))
    for chosen, length in passes:
        assert list(chosen) == sorted(chosen)
        assert max(rows[i] for i in chosen) == length
        assert len(chosen) == 1 or len(chosen) * length <= budget


def padded(passes) -> int:
    return sum(len(chosen) * length for chosen, length in passes)


def test_cheap_passes_waste_less_and_dear_ones_are_few() -> None:
    rows = np.random.default_rng(0).integers(10, 200, 400)
    cheap, dear = (
        choose_padded_passes(rows, PassPlan(4, 10**6, 10)),
        choose_padded_passes(rows, PassPlan(4, 10**6, 10**6)),
    )
    assert len(dear) == 1
    assert padded(cheap) < 1.1 * rows.sum() < padded(dear)


def workload(parameters: int, lane_bytes: int = 0) -> Workload:
    return Workload(
        lanes=72,
        tokens_per_step=400.0,
        parameters=parameters,
        token_bytes=5 << 20,
        lane_bytes=lane_bytes,
    )


def test_plans_follow_sizes() -> None:
    roomy = make_plan(workload(8 * 10**9), memory=120 << 30)
    assert not roomy.checkpointing
    tight = make_plan(workload(8 * 10**9), memory=6 << 30)
    assert tight.checkpointing
    assert make_plan(workload(200_000), token_budget=100).slots == 1


def test_a_plan_counts_the_state_of_every_lane() -> None:
    """Found before: 24 lanes of 498 M numbers are 200 GiB, and nobody had counted them."""
    small, memory = 10**7 * 18, 120 << 30
    assert make_plan(workload(10**9, small), memory=memory) == make_plan(
        workload(10**9), memory=memory
    )
    large = 498 * 10**6 * 18
    plan = make_plan(workload(10**9, large), memory=memory)
    assert 1 < plan.slots < 24
    state = (plan.slots + 1) * large
    assert plan.checkpointing or state + plan.token_budget * (5 << 20) < memory
    with pytest.raises(TuningError, match=r"needs 16\.7 GiB") as error:
        make_plan(workload(10**9, large), memory=20 << 30)
    assert "rank" in str(error.value.hint)
