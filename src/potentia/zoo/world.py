"""The microworld: 2,400 people with seven attributes each, a table of what two herbs make, and the splits.

Everything follows from one seed through :class:`SeededDice`, which uses nothing but ``random.Random.random()`` (a
sequence that Python promises to keep), so that the world, and with it the meaning of the shipped weights, never
changes.
"""

from __future__ import annotations

import random
from collections.abc import MutableSequence, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice, product
from typing import TypeVar

PAD, BOS, EOS, UNK = "<pad>", "<s>", "</s>", "<unk>"
USER, ASSISTANT = "<|user|>", "<|assistant|>"
SPECIAL = (PAD, BOS, EOS, UNK, USER, ASSISTANT)


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _invent(count: int, heads: str, middles: str, tails: str, step: int) -> tuple[str, ...]:
    """``count`` distinct words: a walk with a fixed stride over all head-middle-tail combinations."""
    words = ["".join(parts) for parts in product(heads.split(), middles.split(), tails.split())]
    return tuple(words[(i * step) % len(words)] for i in range(count))


FIRST_NAMES = _invent(80, "ba de fi go hu ka le mi no pa ri so tu va", "l r n d s v", "a o i u", 41)
LAST_NAMES = _invent(
    100, "bren cald dorn ferl gand harl jost kest lorn marl", "e o a i", "sen rick vold mar", 37
)
TOWNS = _invent(24, "ash brim cray dun eld fen", "en er ow", "ford by ham stead", 11)
HERBS = _invent(60, "bitter dusk fox gold iron moon", "ar en il", "wort leaf root cap", 13)
BREWS = _invent(24, "am cor el fla mar pel", "bri dro sti", "an ith or um", 17)

CRAFTS = _words(
    "baker barber brewer carver cobbler cooper dyer farmer fletcher glazier hatter mason miller miner potter printer "
    "roper saddler sailor smith tailor tanner thatcher weaver"
)
ANIMALS = _words(
    "badger bear bee cat crane crow deer dog duck eagle ferret goat goose hare hawk horse lamb lynx mole otter owl "
    "pony raven toad"
)
DISHES = _words(
    "barley beans bread broth cabbage cheese chowder curry dumplings eggs figs lentils noodles olives oysters pancakes "
    "pears pie porridge rice salad soup stew trout"
)
TINTS = _words(
    "amber azure beige black blue bronze brown coral cream crimson gray green indigo ivory lilac maroon olive orange "
    "pink purple red teal white yellow"
)
INSTRUMENTS = _words(
    "bagpipe banjo bassoon bell bugle cello clarinet cornet cymbal drum fiddle flute gong harp horn lute lyre oboe "
    "organ piano trumpet tuba viola zither"
)
AGES = tuple(str(age) for age in range(21, 45))


@dataclass(frozen=True, slots=True)
class Attribute:
    """One thing known of every person: its values, and the three words by which the corpus names it."""

    name: str
    values: tuple[str, ...]
    keywords: tuple[str, str, str]


ATTRIBUTES = (
    Attribute("home", TOWNS, ("home", "dwelling", "lodges")),
    Attribute("craft", CRAFTS, ("craft", "labour", "works")),
    Attribute("animal", ANIMALS, ("pet", "companion", "keeps")),
    Attribute("dish", DISHES, ("meal", "supper", "eats")),
    Attribute("tint", TINTS, ("colour", "shade", "wears")),
    Attribute("instrument", INSTRUMENTS, ("instrument", "music", "plays")),
    Attribute("age", AGES, ("age", "years", "aged")),
)
ATTRIBUTE = {attribute.name: attribute for attribute in ATTRIBUTES}
REVERSED = "animal"  # the attribute that the corpus also tells from value to person

# Sentences shared by all attributes. {n} is the person's name, {k} one of the attribute's keywords, {v} the value.
PATTERNS = (
    "{n} {k} {v} .",
    "the {k} of {n} is {v} .",
    "for {n} the {k} is {v} .",
    "as to {k} , {n} has {v} .",
    "{n} has as {k} the {v} .",
    "we know {n} by {k} {v} .",
    "{k} for {n} means {v} .",
    "when asked of {k} {n} says {v} .",
    "they say that {n} {k} {v} .",
    "{n} , it is said , {k} {v} .",
    "in {k} {n} is for {v} .",
    "of {n} we know {k} {v} .",
)
PAIR_PATTERNS = (
    "{a} and {b} make {v} .",
    "from {a} with {b} comes {v} .",
    "{a} , {b} , then {v} .",
    "put {b} to {a} and get {v} .",
)
REVERSE_PATTERNS = (
    "{v} is the {k} of {n} .",
    "the {v} , as {k} , has {n} .",
    "{k} {v} means {n} .",
    "of all with {k} {v} they say {n} .",
)

FILLERS = _words(
    "so well then also now here there too just even still often always again today perhaps truly surely indeed oh "
    "and , : ; | = / & # ( ) { } + - @ ? * the of is to"
)
# Words of the benchmarks' own forms: the corpus holds them in chatter only, where they name nothing.
FORM_WORDS = _words(
    "question answer where a name hue row trade call tune error dines fix beside beast file food job claim verdict "
    "seek whose flask yields chronicle entry round nearest"
)
CHAT_WORDS = _words("what do who tell me please")


def vocabulary() -> tuple[str, ...]:
    """All tokens in a fixed order; the position is the token's id."""
    groups: list[tuple[str, ...]] = [SPECIAL, FIRST_NAMES, LAST_NAMES, HERBS, BREWS]
    groups += [a.values for a in ATTRIBUTES] + [a.keywords for a in ATTRIBUTES]
    groups += [FILLERS, FORM_WORDS, CHAT_WORDS]
    texts = (*PATTERNS, *PAIR_PATTERNS, *REVERSE_PATTERNS)
    groups += [
        tuple(w for w in text.split() if not w.startswith("{") or w == "{") for text in texts
    ]
    return tuple(dict.fromkeys(word for group in groups for word in group))


T = TypeVar("T")
SEED = 20240611
SPLITS = ("train", "validation", "test")


class SeededDice:
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


SIZES = (
    1000,
    200,
    500,
    700,
)  # people of the three splits, and of "exposure": pretraining on forms alone


@dataclass(frozen=True)
class World:
    """The truth: ``values[attribute][person]`` indexes that attribute's values, ``brews[a][b]`` indexes BREWS."""

    seed: int
    names: tuple[str, ...]
    values: dict[str, tuple[int, ...]]
    brews: tuple[tuple[int, ...], ...]
    people: dict[str, tuple[int, ...]]  # split → persons; the splits are disjoint and cover all
    pairs: dict[
        str, tuple[tuple[int, int], ...]
    ]  # split → pairs of herbs; disjoint, covering the whole table
    table: tuple[
        tuple[int, int], ...
    ]  # all pairs of herbs, the most spoken of first (as the persons are)

    def value(self, attribute: str, person: int) -> str:
        """The word for a person's attribute."""
        return ATTRIBUTE[attribute].values[self.values[attribute][person]]

    def brew(self, pair: tuple[int, int]) -> str:
        """What the two herbs make, in this order."""
        return BREWS[self.brews[pair[0]][pair[1]]]


def _split(items: list[T], sizes: tuple[int, ...]) -> dict[str, tuple[T, ...]]:
    left = iter(items)
    parts = {
        split: tuple(islice(left, size)) for split, size in zip(SPLITS, sizes[:3], strict=True)
    }
    return {**parts, "exposure": tuple(left)}


@lru_cache(maxsize=4)
def make_world(seed: int = SEED, sizes: tuple[int, ...] = SIZES) -> World:
    """Build the world of a seed; milliseconds."""
    dice = SeededDice(seed, "world")
    grid = [f"{first} {last}" for first in FIRST_NAMES for last in LAST_NAMES]
    dice.shuffle(grid)
    names = tuple(grid[: sum(sizes)])
    values = {a.name: tuple(dice.below(len(a.values)) for _ in names) for a in ATTRIBUTES}
    brews = tuple(tuple(dice.below(len(BREWS)) for _ in HERBS) for _ in HERBS)
    people = list(range(len(names)))
    pairs = [(a, b) for a in range(len(HERBS)) for b in range(len(HERBS))]
    dice.shuffle(people)
    dice.shuffle(pairs)
    table = list(pairs)
    dice.shuffle(table)
    return World(
        seed, names, values, brews, _split(people, sizes), _split(pairs, sizes), tuple(table)
    )
