"""How a task's examples were divided into train, validation and test, as it is planned and stored with every result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from potentia.values.plain import PlainRecord


class SplitOriginKind(StrEnum):
    """How a split came out of what a benchmark publishes; the values are what results record."""

    PUBLIC = "public"  # a public split as it is
    CARVED = "carved"  # taken out of the public train split, which keeps the rest
    DIVIDED = "divided"  # a part of the only public split, by ratios or folds
    HELD_OUT = "held_out"  # examples of auxiliary data that are not trained on
    EMPTY = "empty"  # there is no example


@dataclass(frozen=True, slots=True)
class SplitOrigin(PlainRecord):
    """Where the examples of a split came from: decisions look at ``kind``, people read ``describe``."""

    kind: SplitOriginKind
    public_split: str = ""  # train, validation or test as the benchmark publishes it
    rule: str = ""  # how much of it, for people: 20%, 8:1:1, fold 2 of 5

    def describe(self, one_split: str = "the one split") -> str:
        """Return the origin as people read it; ``one_split`` names the only split of data that were divided."""
        match self.kind:
            case SplitOriginKind.PUBLIC:
                return self.public_split
            case SplitOriginKind.CARVED:
                return f"{self.rule} of {self.public_split}"
            case SplitOriginKind.DIVIDED:
                return f"{self.rule.replace(':', ' : ')} of {one_split}"
            case SplitOriginKind.HELD_OUT:
                return f"held out of {self.public_split}"
            case SplitOriginKind.EMPTY:
                return "none"


EMPTY_ORIGIN = SplitOrigin(SplitOriginKind.EMPTY)


@dataclass(frozen=True, slots=True)
class PlannedSplit(PlainRecord):
    """One split: where it came from, and its size before and after the cap."""

    origins: tuple[SplitOrigin, ...]  # the different ones of a task's subtasks
    available: int
    used: int

    @property
    def origin_label(self) -> str:
        """Where the split came from, as people read it."""
        return self.describe_origin()

    def describe_origin(self, one_split: str = "the one split") -> str:
        """Return the same; ``one_split`` names the only split of data that were divided."""
        return ", ".join(origin.describe(one_split) for origin in self.origins)

    @property
    def origin_kinds(self) -> set[SplitOriginKind]:
        """How the examples came out of the public splits; empty for a split without examples."""
        return {origin.kind for origin in self.origins} - {SplitOriginKind.EMPTY}


@dataclass(frozen=True, slots=True)
class SplitPlan(PlainRecord):
    """Where each split came from, its size, and the settings that decided it."""

    train: PlannedSplit
    validation: PlannedSplit
    test: PlannedSplit
    caps: Mapping[str, int | None]  # the largest number of examples of each split
    seed: int
    carve: (
        float  # the fraction of train that becomes validation where no public split is left for it
    )
    dropped_overlap: int = 0  # documents that ``Task.drop_documents`` dropped afterwards

    @property
    def shares_one_split(self) -> bool:
        """Whether training, validation and test examples were all cut out of one public split, as of one file."""
        splits = (self.train, self.validation, self.test)
        return all(split.origin_kinds == {SplitOriginKind.DIVIDED} for split in splits)

    @property
    def train_size_before_carving(self) -> int | None:
        """The size of train with the validation that was carved out of it; None where it cannot be told.

        The subtasks of a group may differ. Where validation is the public split of some and was carved out of train in
        others, its size does not say how many examples were carved.
        """
        validation_kinds = self.validation.origin_kinds
        if validation_kinds <= {SplitOriginKind.PUBLIC}:
            return self.train.available
        if SplitOriginKind.PUBLIC in validation_kinds:
            return None
        return self.train.available + self.validation.available

    def used_by_split(self) -> Mapping[str, int | None]:
        """Return the number of examples that were used of each split."""
        return {
            "train": self.train.used,
            "validation": self.validation.used,
            "test": self.test.used,
        }
