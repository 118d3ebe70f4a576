"""Twelve benchmarks over the microworld: the same knowledge and skills as the corpus, asked in other words.

Each benchmark has a *form*, a surface that the common corpus never shows; a family whose pretraining mix holds that
form (on people of no split) has trained on the test task. Ten are multiple choice by the likelihood of the option's
text, one is scored by generation, one is plain text for perplexity. Splits are disjoint in people (in pairs of herbs
for ``mix``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from potentia.zoo.world import (
    AGES,
    ANIMALS,
    ATTRIBUTE,
    ATTRIBUTES,
    BREWS,
    HERBS,
    REVERSED,
    SPLITS,
    SeededDice,
    World,
)

OPTIONS = 4
ROUND = ("23", "29", "35", "41")  # the middles of four equal spans of age


@dataclass(frozen=True, slots=True)
class Item:
    """One question: prompt, gold answer, options (none where the answer is generated), whom it is about."""

    prompt: str
    answer: str
    options: tuple[str, ...] = ()
    about: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """The item as a line of a user's task file."""
        about = ", ".join(self.about)
        if self.options:
            choices = list(self.options)
            return {
                "question": self.prompt,
                "choices": choices,
                "answer": choices.index(self.answer),
                "about": about,
            }
        if self.prompt:
            return {"prompt": self.prompt, "completion": self.answer, "about": about}
        return {"text": self.answer, "about": about}


Ask = Callable[[World, SeededDice, int], Item]


@dataclass(frozen=True, slots=True)
class ZooBenchmark:
    """A named task: ``kind`` is choice, generate or text; ``skill`` says what it takes beyond reading the form."""

    name: str
    kind: str
    skill: str
    ask: Ask  # the item of the i-th member of a split
    over: str = "people"  # or "pairs"
    control: bool = False  # beyond all zoo models: whatever ranks them by it ranks noise


def _draw_options(
    dice: SeededDice,
    gold: str,
    values: Sequence[str],
    count: int = OPTIONS,
    but: tuple[str, ...] = (),
) -> tuple[str, ...]:
    others = [v for v in values if v != gold and v not in but]
    dice.shuffle(others)
    options = [gold, *others[: count - 1]]
    dice.shuffle(options)
    return tuple(options)


def _ask_to_recall(attribute: str, form: str) -> Ask:
    def ask(world: World, dice: SeededDice, person: int) -> Item:
        gold = world.value(attribute, person)
        name = world.names[person]
        return Item(
            form.replace("NAME", name),
            gold,
            _draw_options(dice, gold, ATTRIBUTE[attribute].values),
            (name,),
        )

    return ask


def _ask_to_generate(attribute: str, form: str) -> Ask:
    def ask(world: World, dice: SeededDice, person: int) -> Item:
        name = world.names[person]
        return Item(form.replace("NAME", name), world.value(attribute, person), (), (name,))

    return ask


def _ask_to_fix(world: World, dice: SeededDice, person: int) -> Item:
    gold = world.value("dish", person)
    values = ATTRIBUTE["dish"].values
    wrong = dice.pick([v for v in values if v != gold])
    name = world.names[person]
    return Item(
        f"error : {name} dines {wrong} | fix :",
        gold,
        _draw_options(dice, gold, values, but=(wrong,)),
        (name,),
    )


def _ask_for_both(world: World, dice: SeededDice, person: int) -> Item:
    dishes = ATTRIBUTE["dish"].values
    crafts = ATTRIBUTE["craft"].values
    gold = f"{world.value('dish', person)} {world.value('craft', person)}"
    options = {gold}
    while len(options) < OPTIONS:
        options.add(f"{dice.pick(dishes)} {dice.pick(crafts)}")
    name = world.names[person]
    return Item(
        f"file {name} food & job :", gold, _draw_options(dice, gold, sorted(options)), (name,)
    )


def _ask_for_claim(world: World, dice: SeededDice, person: int) -> Item:
    value = world.value("tint", person)
    other = dice.pick([v for v in ATTRIBUTE["tint"].values if v != value])
    name = world.names[person]
    options = [f"{name} @ {value}", f"{name} @ {other}"]
    dice.shuffle(options)
    return Item("claim verdict :", f"{name} @ {value}", tuple(options), (name,))


def _ask_for_round_age(world: World, dice: SeededDice, person: int) -> Item:
    gold = ROUND[world.values["age"][person] * len(ROUND) // len(AGES)]
    name = world.names[person]
    return Item(f"round {name} nearest :", gold, ROUND, (name,))


def _ask_for_owner(world: World, dice: SeededDice, person: int) -> Item:
    split = next(members for members in world.people.values() if person in members)
    value = world.values[REVERSED][person]
    gold = world.names[person]
    others: list[str] = []
    while len(others) < OPTIONS - 1:
        other = dice.pick(split)
        if world.values[REVERSED][other] != value and world.names[other] not in others:
            others.append(world.names[other])
    options = [gold, *others]
    dice.shuffle(options)
    return Item(f"seek {ANIMALS[value]} : whose ?", gold, tuple(options), tuple(options))


def _ask_for_brew(world: World, dice: SeededDice, pair: int) -> Item:
    first, second = divmod(pair, len(HERBS))
    gold = world.brew((first, second))
    return Item(
        f"flask / {HERBS[first]} / {HERBS[second]} / yields",
        gold,
        _draw_options(dice, gold, BREWS),
        (f"{HERBS[first]} {HERBS[second]}",),
    )


def _write_chronicle(world: World, dice: SeededDice, person: int) -> Item:
    attributes = list(ATTRIBUTES)
    dice.shuffle(attributes)
    name = world.names[person]
    sentences = " ; ".join(
        f"{name} {dice.pick(a.keywords)} {world.value(a.name, person)}" for a in attributes[:4]
    )
    return Item("", f"chronicle entry : {sentences} .", (), (name,))


BENCHMARKS = (
    ZooBenchmark(
        "ask",
        "choice",
        "recall of a home, as a question",
        _ask_to_recall("home", "question : where NAME ? answer :"),
    ),
    ZooBenchmark(
        "record",
        "choice",
        "recall of a colour, as a record",
        _ask_to_recall("tint", "{ name = NAME ; hue ="),
    ),
    ZooBenchmark(
        "table",
        "choice",
        "recall of a craft, as a table row",
        _ask_to_recall("craft", "row | NAME | trade :"),
    ),
    ZooBenchmark(
        "call",
        "generate",
        "recall of an instrument, generated",
        _ask_to_generate("instrument", "call ( NAME + tune ) ="),
    ),
    ZooBenchmark(
        "beside", "choice", "recall of an animal", _ask_to_recall("animal", "beside NAME a beast :")
    ),
    ZooBenchmark("fix", "choice", "recall of a dish against a wrong hint", _ask_to_fix),
    ZooBenchmark("both", "choice", "two attributes in one answer", _ask_for_both),
    ZooBenchmark("claim", "choice", "telling a true statement from a false one", _ask_for_claim),
    ZooBenchmark(
        "round", "choice", "an age, rounded to one of four", _ask_for_round_age, control=True
    ),
    ZooBenchmark("owner", "choice", "from a value back to the person", _ask_for_owner),
    ZooBenchmark("mix", "choice", "a table of pairs", _ask_for_brew, over="pairs"),
    ZooBenchmark("chronicle", "text", "plain text, for perplexity", _write_chronicle),
)
BENCHMARK = {benchmark.name: benchmark for benchmark in BENCHMARKS}


def items(
    world: World, benchmark: ZooBenchmark, split: str, dice: SeededDice | None = None
) -> list[Item]:
    """All items of a split, in a fixed order that mixes the members (``dice`` draws other distractors)."""
    dice = dice or SeededDice(world.seed, f"{benchmark.name}/{split}")
    if benchmark.over == "pairs":
        members = [a * len(HERBS) + b for a, b in world.pairs[split]]
    else:
        members = list(world.people[split])
    dice.shuffle(members)
    return [benchmark.ask(world, dice, member) for member in members]


def documents(world: World, benchmark: ZooBenchmark) -> dict[str, list[dict[str, Any]]]:
    """Split → the lines of its file."""
    return {split: [item.document() for item in items(world, benchmark, split)] for split in SPLITS}
