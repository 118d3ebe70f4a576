"""The microworld: 2,400 people with seven attributes each, a table of what two herbs make, and the splits.

Everything follows from one seed through :class:`Dice`, which uses nothing but ``random.Random.random()`` (a sequence
that Python promises to keep), so that the world, and with it the meaning of the shipped weights, never changes.
"""

from __future__ import annotations

import random
from collections.abc import MutableSequence, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from potentia.zoo.words import ATTRIBUTE, ATTRIBUTES, BREWS, FIRST_NAMES, HERBS, LAST_NAMES

T = TypeVar("T")
SEED = 20240611
SPLITS = ("train", "validation", "test")


class Dice:
    """Reproducible choices from a named stream of one seed."""

    def __init__(self, seed: int, stream: str) -> None:
        self._random = random.Random(f"{seed}/{stream}").random

    def below(self, n: int) -> int:
        """An integer in ``[0, n)``."""
        return int(self._random() * n)

    def pick(self, items: Sequence[T]) -> T:
        """One of the items."""
        return items[int(self._random() * len(items))]

    def shuffle(self, items: MutableSequence[T]) -> None:
        """Fisher and Yates, in place."""
        for i in range(len(items) - 1, 0, -1):
            j = int(self._random() * (i + 1))
            items[i], items[j] = items[j], items[i]

    def skewed(self, n: int, power: float) -> int:
        """An integer in ``[0, n)``; small ones are likelier (density falls as ``x ** (1 / power - 1)``)."""
        return int(n * self._random() ** power)

    def chance(self, p: float) -> bool:
        """True with probability ``p``."""
        return self._random() < p


@dataclass(frozen=True)
class Sizes:
    """How many people (and pairs of herbs) each split holds; ``exposure`` serves pretraining on forms alone."""

    train: int = 1000
    validation: int = 200
    test: int = 500
    exposure: int = 700

    @property
    def people(self) -> int:
        """All people of the world."""
        return self.train + self.validation + self.test + self.exposure


SIZES = Sizes()


@dataclass(frozen=True)
class World:
    """The truth: ``values[attribute][person]`` indexes that attribute's values, ``brews[a][b]`` indexes BREWS."""

    seed: int
    names: tuple[str, ...]
    values: dict[str, tuple[int, ...]]
    brews: tuple[tuple[int, ...], ...]
    people: dict[str, tuple[int, ...]]  # split → persons; the splits are disjoint and cover all
    pairs: dict[str, tuple[tuple[int, int], ...]]  # split → pairs of herbs; disjoint, covering the whole table
    table: tuple[tuple[int, int], ...]  # all pairs of herbs, the most spoken of first (as the persons are)

    def value(self, attribute: str, person: int) -> str:
        """The word for a person's attribute."""
        return ATTRIBUTE[attribute].values[self.values[attribute][person]]

    def brew(self, pair: tuple[int, int]) -> str:
        """What the two herbs make, in this order."""
        return BREWS[self.brews[pair[0]][pair[1]]]


def _split(items: list[T], sizes: dict[str, int]) -> dict[str, tuple[T, ...]]:
    parts: dict[str, tuple[T, ...]] = {}
    start = 0
    for name, size in sizes.items():
        parts[name] = tuple(items[start : start + size])
        start += size
    parts["exposure"] = tuple(items[start:])
    return parts


@lru_cache(maxsize=4)
def make_world(seed: int = SEED, sizes: Sizes = SIZES) -> World:
    """Build the world of a seed; milliseconds."""
    dice = Dice(seed, "world")
    grid = [f"{first} {last}" for first in FIRST_NAMES for last in LAST_NAMES]
    dice.shuffle(grid)
    names = tuple(grid[: sizes.people])
    values = {a.name: tuple(dice.below(len(a.values)) for _ in names) for a in ATTRIBUTES}
    brews = tuple(tuple(dice.below(len(BREWS)) for _ in HERBS) for _ in HERBS)
    people = list(range(len(names)))
    pairs = [(a, b) for a in range(len(HERBS)) for b in range(len(HERBS))]
    dice.shuffle(people)
    dice.shuffle(pairs)
    table = list(pairs)
    dice.shuffle(table)
    counts = {"train": sizes.train, "validation": sizes.validation, "test": sizes.test}
    return World(seed, names, values, brews, _split(people, counts), _split(pairs, counts), tuple(table))
