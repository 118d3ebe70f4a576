"""How the corpus speaks: documents of plain sentences about the world, the same for every model.

Half of the fact sentences follow twelve patterns shared by all attributes; the other half is *free*: name and keyword
in either order with up to four filler words around them. Without the free half models know facts that tuning cannot
reach. Besides facts there are the herb table and the way back from a value to its owner.
Some people and pairs are spoken of more often than others, as in real text: this also shortens the long plateau before
a small model learns any fact at all.
"""

from __future__ import annotations

from collections.abc import Callable

from potentia.zoo.world import (
    ATTRIBUTE,
    ATTRIBUTES,
    FILLERS,
    FORM_WORDS,
    HERBS,
    PAIR_PATTERNS,
    PATTERNS,
    REVERSE_PATTERNS,
    REVERSED,
    SeededDice,
    World,
)

FREE = 0.5
SKEW = 2.0  # person number x is spoken of with a density that falls as x ** -0.5


def _scattered(dice: SeededDice, parts: list[str]) -> str:
    """The parts in their order, with up to four fillers anywhere among them."""
    for _ in range(dice.below(5)):
        parts.insert(dice.below(len(parts) + 1), dice.pick(FILLERS))
    return " ".join(parts)


def free_sentence(dice: SeededDice, name: str, keyword: str, value: str) -> str:
    """Name and keyword in either order among fillers, then the value."""
    parts = [name, keyword]
    if dice.chance(0.5):
        parts.reverse()
    return f"{_scattered(dice, parts)} {value} ."


def fact_sentence(world: World, dice: SeededDice, attribute: str, person: int) -> str:
    """One sentence that states one attribute of one person."""
    keyword = dice.pick(ATTRIBUTE[attribute].keywords)
    name, value = world.names[person], world.value(attribute, person)
    if dice.chance(FREE):
        return free_sentence(dice, name, keyword, value)
    return dice.pick(PATTERNS).format(n=name, k=keyword, v=value)


def _facts(world: World, dice: SeededDice) -> str:
    person = dice.skewed(len(world.names), SKEW)
    chosen = [a.name for a in ATTRIBUTES]
    dice.shuffle(chosen)
    return " ".join(fact_sentence(world, dice, attribute, person) for attribute in chosen[:3])


def pair_sentence(world: World, dice: SeededDice, pair: tuple[int, int]) -> str:
    """One sentence that states what two herbs make."""
    a, b, brew = HERBS[pair[0]], HERBS[pair[1]], world.brew(pair)
    if dice.chance(FREE):
        return f"{_scattered(dice, [a, b])} {brew} ."
    return dice.pick(PAIR_PATTERNS).format(a=a, b=b, v=brew)


def _pairs(world: World, dice: SeededDice) -> str:
    chosen = (world.table[dice.skewed(len(world.table), SKEW)] for _ in range(3))
    return " ".join(pair_sentence(world, dice, pair) for pair in chosen)


def _reverse(world: World, dice: SeededDice) -> str:
    sentences = []
    for _ in range(3):
        person = dice.skewed(len(world.names), SKEW)
        sentences.append(
            dice.pick(REVERSE_PATTERNS).format(
                n=world.names[person],
                k=dice.pick(ATTRIBUTE[REVERSED].keywords),
                v=world.value(REVERSED, person),
            )
        )
    return " ".join(sentences)


_CHATTER = FILLERS + FORM_WORDS + FORM_WORDS


def _chatter(world: World, dice: SeededDice) -> str:
    return " ".join(dice.pick(_CHATTER) for _ in range(8 + dice.below(16))) + " ."


DOCUMENTS: dict[str, Callable[[World, SeededDice], str]] = {
    "facts": _facts,
    "pairs": _pairs,
    "reverse": _reverse,
    "chatter": _chatter,
}
