"""Where a split came from is decided by types; the words for people may be any."""

from __future__ import annotations

from dataclasses import replace

from potentia.values.splits import (
    EMPTY_ORIGIN,
    PlannedSplit,
    SplitOrigin,
    SplitOriginKind,
    SplitPlan,
)

PUBLIC = SplitOrigin(SplitOriginKind.PUBLIC, "validation")
CARVED = SplitOrigin(SplitOriginKind.CARVED, "train", rule="20%")
DIVIDED = SplitOrigin(SplitOriginKind.DIVIDED, "train", rule="8:1:1")


def plan_with_validation(*origins: SplitOrigin) -> SplitPlan:
    train = PlannedSplit((SplitOrigin(SplitOriginKind.PUBLIC, "train"),), available=80, used=80)
    validation = PlannedSplit(origins, available=20, used=20)
    return SplitPlan(train, validation, train, caps={}, seed=0, carve=0.2)


def test_the_size_of_train_does_not_hang_on_the_words_of_a_rule() -> None:
    assert plan_with_validation(PUBLIC).train_size_before_carving == 80
    assert plan_with_validation(CARVED, EMPTY_ORIGIN).train_size_before_carving == 100
    assert plan_with_validation(CARVED, PUBLIC).train_size_before_carving is None
    misleading = replace(CARVED, rule="all of it, validation, none")
    assert plan_with_validation(misleading).train_size_before_carving == 100


def test_one_file_is_one_that_every_split_was_cut_out_of() -> None:
    whole_file = PlannedSplit((DIVIDED,), available=9, used=9)
    assert SplitPlan(
        whole_file, whole_file, whole_file, caps={}, seed=0, carve=0.2
    ).shares_one_split
    assert not plan_with_validation(CARVED).shares_one_split


def test_an_origin_is_read_in_words() -> None:
    held_out = SplitOrigin(SplitOriginKind.HELD_OUT, "train")
    origins = (PUBLIC, CARVED, DIVIDED, held_out, EMPTY_ORIGIN)
    assert PlannedSplit(origins, available=1, used=1).origin_label == (
        "validation, 20% of train, 8 : 1 : 1 of the one split, held out of train, none"
    )
