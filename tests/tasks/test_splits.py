"""Splits: disjoint, seeded, capped, and by the paper's rules."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from potentia.errors import TaskError
from potentia.tasks import Caps
from potentia.tasks.splits import SPLITS, SplitRows, cap_rows, divide_documents

sizes = st.fixed_dictionaries({split: st.integers(0, 400) for split in SPLITS}).filter(
    lambda s: s["train"] >= 3 or s["validation"] or s["test"]
)
seeds = st.integers(0, 2**32)


@settings(max_examples=150, deadline=None)
@given(sizes, seeds, st.floats(0.05, 0.6))
def test_no_document_is_in_two_splits(size: dict[str, int], seed: int, carve: float) -> None:
    chosen, origins = divide_documents(size, seed=seed, carve=carve)
    placed = [(rows.public_split, row) for rows in chosen.values() for row in rows.rows]
    assert len(placed) == len(set(placed))
    assert all(0 <= row < size[public] for public, row in placed)
    assert set(origins) == set(SPLITS)
    assert chosen["test"].rows
    assert divide_documents(size, seed=seed, carve=carve) == (chosen, origins)


@settings(max_examples=150, deadline=None)
@given(sizes, seeds)
def test_the_rules_of_the_paper(size: dict[str, int], seed: int) -> None:
    chosen, _ = divide_documents(size, seed=seed, carve=0.2)
    train, validation, test = (size[split] for split in SPLITS)
    counts = {split: len(chosen[split].rows) for split in SPLITS}
    if test and validation:
        assert counts == {"train": train, "validation": validation, "test": test}
        return
    if not test and not validation:  # one split: 8:1:1
        tenth = max(1, round(train / 10))
        assert (counts["validation"], counts["test"], sum(counts.values())) == (tenth, tenth, train)
        return
    assert chosen["test"].public_split == ("test" if test else "validation")
    assert counts["test"] == (test or validation)
    assert counts["train"] + counts["validation"] == train
    if train >= 2:
        assert counts["validation"] == min(train - 1, max(1, round(train * 0.2)))
        assert chosen["validation"].public_split == "train"


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 60), min_size=1, max_size=5), st.integers(1, 120), seeds)
def test_a_cap_keeps_a_seeded_sample_in_order(counts: list[int], limit: int, seed: int) -> None:
    parts = [SplitRows("test", tuple(range(count))) for count in counts]
    kept = cap_rows(parts, limit, seed=seed)
    assert sum(len(part.rows) for part in kept) == min(limit, sum(counts))
    for part, whole in zip(kept, parts, strict=True):
        assert set(part.rows) <= set(whole.rows)
        assert list(part.rows) == sorted(part.rows)
    assert cap_rows(parts, limit, seed=seed) == kept


def test_another_seed_carves_other_documents() -> None:
    size = {"train": 200, "validation": 0, "test": 50}
    drawn = {
        divide_documents(size, seed=seed, carve=0.2)[0]["validation"].rows for seed in range(5)
    }
    assert len(drawn) == 5


@pytest.mark.parametrize(
    ("size", "carve", "says"),
    [
        ({"train": 0, "validation": 0, "test": 0}, 0.2, "no split has any example"),
        ({"train": 2, "validation": 0, "test": 0}, 0.2, "too few to divide"),
        ({"train": 9, "validation": 0, "test": 9}, 1.0, "between 0 and 1"),
    ],
)
def test_what_cannot_be_divided(size: dict[str, int], carve: float, says: str) -> None:
    with pytest.raises(TaskError, match=says):
        divide_documents(size, seed=0, carve=carve)


def test_a_cap_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="greater than 0"):
        Caps(train=0)
