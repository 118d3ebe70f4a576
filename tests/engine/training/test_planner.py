"""Packing: every row once, nothing over the budget, fewer padded tokens where passes are cheap."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from potentia.engine.training.passes import PassPlan, make_plan, pack

lengths = st.lists(st.integers(2, 300), min_size=1, max_size=120)


@settings(max_examples=60, deadline=None)
@given(lengths, st.integers(64, 4096), st.integers(0, 2000))
def test_every_row_once_and_within_the_budget(rows: list[int], budget: int, price: int) -> None:
    passes = pack(rows, PassPlan(4, budget, price))
    assert sorted(int(i) for chosen, _ in passes for i in chosen) == list(range(len(rows)))
    for chosen, length in passes:
        assert list(chosen) == sorted(chosen)
        assert max(rows[i] for i in chosen) == length
        assert len(chosen) == 1 or len(chosen) * length <= budget


def padded(passes) -> int:
    return sum(len(chosen) * length for chosen, length in passes)


def test_cheap_passes_waste_less_and_dear_ones_are_few() -> None:
    rows = np.random.default_rng(0).integers(10, 200, 400)
    cheap, dear = pack(rows, PassPlan(4, 10**6, 10)), pack(rows, PassPlan(4, 10**6, 10**6))
    assert len(dear) == 1
    assert padded(cheap) < 1.1 * rows.sum() < padded(dear)


def test_plans_follow_sizes() -> None:
    common = {"lanes": 72, "tokens_per_step": 400.0}
    roomy = make_plan(parameters=8 * 10**9, memory=120 << 30, token_bytes=5 << 20, **common)
    assert not roomy.checkpointing
    tight = make_plan(parameters=8 * 10**9, memory=6 << 30, token_bytes=5 << 20, **common)
    assert tight.checkpointing
    assert make_plan(parameters=200_000, token_budget=100, **common).slots == 1
