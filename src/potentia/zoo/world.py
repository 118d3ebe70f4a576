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
from itertools import product
from typing import TypeVar

PAD = "<pad>"
BOS = "<s>"
EOS = "</s>"
UNK = "<unk>"
USER = "<|user|>"
ASSISTANT = "<|assistant|>"
SPECIAL = (PAD, BOS, EOS, UNK, USER, ASSISTANT)


def _split_words(text: str) -> tuple[str, ...]:
    """Return the words of a text."""
    return tuple(text.split())


def _invent_words(
    word_count: int, heads: str, middles: str, tails: str, stride: int
) -> tuple[str, ...]:
    """Return ``word_count`` distinct words: a walk with a fixed stride over all head-middle-tail combinations."""
    combinations = product(heads.split(), middles.split(), tails.split())
    words = ["".join(syllables) for syllables in combinations]
    return tuple(words[(step * stride) % len(words)] for step in range(word_count))


FIRST_NAMES = _invent_words(
    80, "ba de fi go hu ka le mi no pa ri so tu va", "l r n d s v", "a o i u", 41
)
LAST_NAMES = _invent_words(
    100, "bren cald dorn ferl gand harl jost kest lorn marl", "e o a i", "sen rick vold mar", 37
)
TOWNS = _invent_words(24, "ash brim cray dun eld fen", "en er ow", "ford by ham stead", 11)
HERBS = _invent_words(60, "bitter dusk fox gold iron moon", "ar en il", "wort leaf root cap", 13)
BREWS = _invent_words(24, "am cor el fla mar pel", "bri dro sti", "an ith or um", 17)

CRAFTS = _split_words(
    "baker barber brewer carver cobbler cooper dyer farmer fletcher glazier hatter mason miller miner potter printer "
    "roper saddler sailor smith tailor tanner thatcher weaver"
)
ANIMALS = _split_words(
    "badger bear bee cat crane crow deer dog duck eagle ferret goat goose hare hawk horse lamb lynx mole otter owl "
    "pony raven toad"
)
DISHES = _split_words(
    "barley beans bread broth cabbage cheese chowder curry dumplings eggs figs lentils noodles olives oysters pancakes "
    "pears pie porridge rice salad soup stew trout"
)
TINTS = _split_words(
    "amber azure beige black blue bronze brown coral cream crimson gray green indigo ivory lilac maroon olive orange "
    "pink purple red teal white yellow"
)
INSTRUMENTS = _split_words(
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

FILLERS = _split_words(
    "so well then also now here there too just even still often always again today perhaps truly surely indeed oh "
    "and , : ; | = / & # ( ) { } + - @ ? * the of is to"
)
# Words of the benchmarks' own forms: the corpus holds them in chatter only, where they name nothing.
FORM_WORDS = _split_words(
    "question answer where a name hue row trade call tune error dines fix beside beast file food job claim verdict "
    "seek whose flask yields chronicle entry round nearest"
)
CHAT_WORDS = _split_words("what do who tell me please")


def vocabulary() -> tuple[str, ...]:
    """Return all tokens in a fixed order; the position is the token's id."""
    words = [*SPECIAL, *FIRST_NAMES, *LAST_NAMES, *HERBS, *BREWS]
    for attribute in ATTRIBUTES:
        words.extend(attribute.values)
    for attribute in ATTRIBUTES:
        words.extend(attribute.keywords)
    words += [*FILLERS, *FORM_WORDS, *CHAT_WORDS]
    for pattern in (*PATTERNS, *PAIR_PATTERNS, *REVERSE_PATTERNS):
        words.extend(word for word in pattern.split() if not _is_placeholder(word))
    return tuple(dict.fromkeys(words))


def _is_placeholder(word: str) -> bool:
    """Return whether a word of a pattern stands for a name, a keyword or a value; a brace alone is a word."""
    return word.startswith("{") and word != "{"


T = TypeVar("T")
SEED = 20240611
SPLITS = ("train", "validation", "test")
EXPOSURE = "exposure"  # the rest of the people and pairs: pretraining on forms alone


class SeededDice:
    """Reproducible choices from a named stream of one seed."""

    def __init__(self, seed: int, stream: str) -> None:
        self._random = random.Random(f"{seed}/{stream}").random

    def below(self, limit: int) -> int:
        """Return an integer in ``[0, limit)``."""
        return int(self._random() * limit)

    def pick(self, items: Sequence[T]) -> T:
        """Return one of the items."""
        return items[self.below(len(items))]

    def shuffle(self, items: MutableSequence[T]) -> None:
        """Shuffle the items in place, as Fisher and Yates do."""
        for last_position in range(len(items) - 1, 0, -1):
            chosen = self.below(last_position + 1)
            items[last_position], items[chosen] = items[chosen], items[last_position]

    def skewed(self, limit: int, power: float) -> int:
        """Return an integer in ``[0, limit)``; small ones are likelier (density falls as ``x ** (1 / power - 1)``)."""
        return int(limit * self._random() ** power)

    def chance(self, probability: float) -> bool:
        """Return True with this probability."""
        return self._random() < probability


SIZES = (1000, 200, 500, 700)  # people of the three splits, and of the exposure


@dataclass(frozen=True)
class World:
    """The truth: ``values[attribute][person]`` indexes that attribute's values, ``brews[a][b]`` indexes BREWS.

    The splits of people are disjoint and cover all; so are the splits of pairs of herbs, which cover the whole table.
    ``table`` holds all pairs of herbs, the most spoken of first (as the persons are).
    """

    seed: int
    names: tuple[str, ...]
    values: dict[str, tuple[int, ...]]
    brews: tuple[tuple[int, ...], ...]
    people: dict[str, tuple[int, ...]]  # split → persons
    pairs: dict[str, tuple[tuple[int, int], ...]]  # split → pairs of herbs
    table: tuple[tuple[int, int], ...]

    def value(self, attribute: str, person: int) -> str:
        """Return the word for a person's attribute."""
        index = self.values[attribute][person]
        return ATTRIBUTE[attribute].values[index]

    def brew(self, pair: tuple[int, int]) -> str:
        """Return what the two herbs make, in this order."""
        first_herb, second_herb = pair
        return BREWS[self.brews[first_herb][second_herb]]


def _divide_into_splits(members: list[T], sizes: tuple[int, ...]) -> dict[str, tuple[T, ...]]:
    """Give each split its number of members, in their order, and the rest to the exposure."""
    members_by_split = {}
    start = 0
    for split, split_size in zip(SPLITS, sizes[: len(SPLITS)], strict=True):
        members_by_split[split] = tuple(members[start : start + split_size])
        start += split_size
    members_by_split[EXPOSURE] = tuple(members[start:])
    return members_by_split


def _draw_values(dice: SeededDice, choices: int, value_count: int) -> tuple[int, ...]:
    """Return ``value_count`` integers, each below the number of choices."""
    return tuple(dice.below(choices) for _ in range(value_count))


@lru_cache(maxsize=4)
def make_world(seed: int = SEED, sizes: tuple[int, ...] = SIZES) -> World:
    """Build the world of a seed; milliseconds.

    The order of the draws is part of the world: another order makes other people.
    """
    dice = SeededDice(seed, "world")
    all_names = [
        f"{first_name} {last_name}" for first_name, last_name in product(FIRST_NAMES, LAST_NAMES)
    ]
    dice.shuffle(all_names)
    names = tuple(all_names[: sum(sizes)])
    values = {}
    for attribute in ATTRIBUTES:
        values[attribute.name] = _draw_values(dice, len(attribute.values), len(names))
    brews = tuple(_draw_values(dice, len(BREWS), len(HERBS)) for _ in HERBS)
    people = list(range(len(names)))
    pairs = list(product(range(len(HERBS)), range(len(HERBS))))
    dice.shuffle(people)
    dice.shuffle(pairs)
    table = list(pairs)
    dice.shuffle(table)
    return World(
        seed=seed,
        names=names,
        values=values,
        brews=brews,
        people=_divide_into_splits(people, sizes),
        pairs=_divide_into_splits(pairs, sizes),
        table=tuple(table),
    )
