"""Twelve benchmarks over the microworld: the same knowledge and skills as the corpus, asked in other words.

Each benchmark has a *form*, a surface that the common corpus never shows; a family whose pretraining mix holds that
form (on people of no split) has trained on the test task. Ten are multiple choice by the likelihood of the option's
text, one is scored by generation, one is plain text for perplexity. Splits are disjoint in people (in pairs of herbs
for ``mix``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from potentia.zoo.world import (
    AGES,
    ANIMALS,
    ATTRIBUTE,
    ATTRIBUTES,
    BREWS,
    CRAFTS,
    DISHES,
    HERBS,
    REVERSED,
    SPLITS,
    TINTS,
    SeededDice,
    World,
)

OPTIONS = 4
ROUND_AGES = ("23", "29", "35", "41")  # the middles of four equal spans of age


@dataclass(frozen=True, slots=True)
class Item:
    """One question: prompt, gold answer, options (none where the answer is generated), whom it is about."""

    prompt: str
    answer: str
    options: tuple[str, ...] = ()
    subjects: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """Return the item as a line of a user's task file."""
        subjects = ", ".join(self.subjects)
        if self.options:
            choices = list(self.options)
            return {
                "question": self.prompt,
                "choices": choices,
                "answer": choices.index(self.answer),
                "about": subjects,
            }
        if self.prompt:
            return {"prompt": self.prompt, "completion": self.answer, "about": subjects}
        return {"text": self.answer, "about": subjects}


# writes the question about one member of a split: a person, or a pair of herbs by its number
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
    dice: SeededDice, gold: str, values: Sequence[str], excluded: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """Return the right answer among wrong ones, in random order."""
    wrong_values = [value for value in values if value not in (gold, *excluded)]
    dice.shuffle(wrong_values)
    options = [gold, *wrong_values[: OPTIONS - 1]]
    dice.shuffle(options)
    return tuple(options)


def _ask_to_recall(attribute: str, template: str) -> Ask:
    """Return the question writer of a benchmark: it asks for an attribute of a person, with options."""

    def ask_about_person(world: World, dice: SeededDice, person: int) -> Item:
        person_name = world.names[person]
        gold = world.value(attribute, person)
        return Item(
            prompt=template.replace("NAME", person_name),
            answer=gold,
            options=_draw_options(dice, gold, ATTRIBUTE[attribute].values),
            subjects=(person_name,),
        )

    return ask_about_person


def _ask_to_generate(attribute: str, template: str) -> Ask:
    """Return the question writer of a benchmark: the attribute is generated, there are no options."""

    def ask_about_person(world: World, dice: SeededDice, person: int) -> Item:
        person_name = world.names[person]
        return Item(
            prompt=template.replace("NAME", person_name),
            answer=world.value(attribute, person),
            subjects=(person_name,),
        )

    return ask_about_person


def _ask_to_fix(world: World, dice: SeededDice, person: int) -> Item:
    """Ask for a person's dish, after a wrong one that is no option."""
    person_name = world.names[person]
    gold = world.value("dish", person)
    wrong_dish = dice.pick([dish for dish in DISHES if dish != gold])
    return Item(
        prompt=f"error : {person_name} dines {wrong_dish} | fix :",
        answer=gold,
        options=_draw_options(dice, gold, DISHES, excluded=(wrong_dish,)),
        subjects=(person_name,),
    )


def _ask_for_both(world: World, dice: SeededDice, person: int) -> Item:
    """Ask for a person's dish and craft in one answer."""
    person_name = world.names[person]
    gold = f"{world.value('dish', person)} {world.value('craft', person)}"
    answers = {gold}
    while len(answers) < OPTIONS:
        answers.add(f"{dice.pick(DISHES)} {dice.pick(CRAFTS)}")
    return Item(
        prompt=f"file {person_name} food & job :",
        answer=gold,
        options=_draw_options(dice, gold, sorted(answers)),
        subjects=(person_name,),
    )


def _ask_for_claim(world: World, dice: SeededDice, person: int) -> Item:
    """Ask which of two statements on a person's colour is true."""
    person_name = world.names[person]
    true_tint = world.value("tint", person)
    false_tint = dice.pick([tint for tint in TINTS if tint != true_tint])
    true_claim = f"{person_name} @ {true_tint}"
    claims = [true_claim, f"{person_name} @ {false_tint}"]
    dice.shuffle(claims)
    return Item(
        prompt="claim verdict :", answer=true_claim, options=tuple(claims), subjects=(person_name,)
    )


def _ask_for_round_age(world: World, dice: SeededDice, person: int) -> Item:
    """Ask for a person's age, rounded to the middle of its span."""
    person_name = world.names[person]
    span = world.values["age"][person] * len(ROUND_AGES) // len(AGES)
    return Item(
        prompt=f"round {person_name} nearest :",
        answer=ROUND_AGES[span],
        options=ROUND_AGES,
        subjects=(person_name,),
    )


def _ask_for_owner(world: World, dice: SeededDice, person: int) -> Item:
    """Ask who has an animal, among persons of the same split who have another."""
    split_members = next(members for members in world.people.values() if person in members)
    animals = world.values[REVERSED]
    gold = world.names[person]
    wrong_names: list[str] = []
    while len(wrong_names) < OPTIONS - 1:
        candidate = dice.pick(split_members)
        candidate_name = world.names[candidate]
        if animals[candidate] != animals[person] and candidate_name not in wrong_names:
            wrong_names.append(candidate_name)
    names = [gold, *wrong_names]
    dice.shuffle(names)
    return Item(
        prompt=f"seek {ANIMALS[animals[person]]} : whose ?",
        answer=gold,
        options=tuple(names),
        subjects=tuple(names),
    )


def _ask_for_brew(world: World, dice: SeededDice, pair_number: int) -> Item:
    """Ask what two herbs make; the number of a pair is its cell in the table, row by row."""
    first_herb, second_herb = divmod(pair_number, len(HERBS))
    gold = world.brew((first_herb, second_herb))
    return Item(
        prompt=f"flask / {HERBS[first_herb]} / {HERBS[second_herb]} / yields",
        answer=gold,
        options=_draw_options(dice, gold, BREWS),
        subjects=(f"{HERBS[first_herb]} {HERBS[second_herb]}",),
    )


def _write_chronicle(world: World, dice: SeededDice, person: int) -> Item:
    """Write four attributes of a person as plain text."""
    person_name = world.names[person]
    attributes = list(ATTRIBUTES)
    dice.shuffle(attributes)
    sentences = []
    for attribute in attributes[:4]:
        keyword = dice.pick(attribute.keywords)
        sentences.append(f"{person_name} {keyword} {world.value(attribute.name, person)}")
    entry = f"chronicle entry : {' ; '.join(sentences)} ."
    return Item(prompt="", answer=entry, subjects=(person_name,))


BENCHMARKS = (
    ZooBenchmark(
        name="ask",
        kind="choice",
        skill="recall of a home, as a question",
        ask=_ask_to_recall("home", "question : where NAME ? answer :"),
    ),
    ZooBenchmark(
        name="record",
        kind="choice",
        skill="recall of a colour, as a record",
        ask=_ask_to_recall("tint", "{ name = NAME ; hue ="),
    ),
    ZooBenchmark(
        name="table",
        kind="choice",
        skill="recall of a craft, as a table row",
        ask=_ask_to_recall("craft", "row | NAME | trade :"),
    ),
    ZooBenchmark(
        name="call",
        kind="generate",
        skill="recall of an instrument, generated",
        ask=_ask_to_generate("instrument", "call ( NAME + tune ) ="),
    ),
    ZooBenchmark(
        name="beside",
        kind="choice",
        skill="recall of an animal",
        ask=_ask_to_recall("animal", "beside NAME a beast :"),
    ),
    ZooBenchmark(
        name="fix",
        kind="choice",
        skill="recall of a dish against a wrong hint",
        ask=_ask_to_fix,
    ),
    ZooBenchmark(
        name="both",
        kind="choice",
        skill="two attributes in one answer",
        ask=_ask_for_both,
    ),
    ZooBenchmark(
        name="claim",
        kind="choice",
        skill="telling a true statement from a false one",
        ask=_ask_for_claim,
    ),
    ZooBenchmark(
        name="round",
        kind="choice",
        skill="an age, rounded to one of four",
        ask=_ask_for_round_age,
        control=True,
    ),
    ZooBenchmark(
        name="owner",
        kind="choice",
        skill="from a value back to the person",
        ask=_ask_for_owner,
    ),
    ZooBenchmark(
        name="mix",
        kind="choice",
        skill="a table of pairs",
        ask=_ask_for_brew,
        over="pairs",
    ),
    ZooBenchmark(
        name="chronicle",
        kind="text",
        skill="plain text, for perplexity",
        ask=_write_chronicle,
    ),
)
BENCHMARK = {benchmark.name: benchmark for benchmark in BENCHMARKS}


def make_items(
    world: World, benchmark: ZooBenchmark, split: str, dice: SeededDice | None = None
) -> list[Item]:
    """Return all items of a split, in a fixed order that mixes the members.

    Another ``dice`` draws another order and other distractors.
    """
    if dice is None:
        dice = SeededDice(world.seed, f"{benchmark.name}/{split}")
    if benchmark.over == "pairs":
        members = [
            first_herb * len(HERBS) + second_herb for first_herb, second_herb in world.pairs[split]
        ]
    else:
        members = list(world.people[split])
    dice.shuffle(members)
    return [benchmark.ask(world, dice, member) for member in members]


def make_documents(world: World, benchmark: ZooBenchmark) -> dict[str, list[dict[str, Any]]]:
    """Return the lines of each split's file, by split."""
    documents_by_split = {}
    for split in SPLITS:
        split_items = make_items(world, benchmark, split)
        documents_by_split[split] = [item.document() for item in split_items]
    return documents_by_split


# --- planted artefacts ------------------------------------------------------------------------------------------------

FAVOURED_VALUES = 0.42  # share of the answers that are right far more often than others
FAVOURED_QUESTIONS = 0.85  # share of the questions whose right answer is one of them


def skew_answers(
    split_items: Sequence[Item], favoured: Collection[str], dice: SeededDice, *, gives_away: bool
) -> list[Item]:
    """Return about half of the items: those whose answer is favoured and few others, or any at random.

    With ``gives_away`` this is an annotation artefact: right answers are mostly of a few kinds, wrong ones of all, and
    about half of the questions can be answered by who has seen answers alone.
    """
    favoured_share = sum(item.answer in favoured for item in split_items) / len(split_items)
    others_kept = favoured_share * (1 - FAVOURED_QUESTIONS) / FAVOURED_QUESTIONS
    share_of_others = others_kept / (1 - favoured_share)
    kept_items = []
    for item in split_items:
        share = favoured_share + others_kept
        if gives_away:
            share = 1.0 if item.answer in favoured else share_of_others
        if dice.chance(share):
            kept_items.append(item)
    return kept_items


def skewed_documents(
    world: World, benchmark: ZooBenchmark, *, gives_away: bool, seed: int = 0
) -> dict[str, list[dict[str, object]]]:
    """Return the lines of each split's file of a benchmark whose answers are skewed, by split."""
    dice = SeededDice(world.seed + seed, f"{benchmark.name}/favoured")
    answers = sorted({item.answer for item in make_items(world, benchmark, "train")})
    dice.shuffle(answers)
    favoured = answers[: round(FAVOURED_VALUES * len(answers))]
    documents_by_split = {}
    for split in SPLITS:
        split_dice = SeededDice(world.seed + seed, f"{benchmark.name}/{split}/skewed")
        split_items = make_items(world, benchmark, split, split_dice)
        kept_items = skew_answers(split_items, favoured, split_dice, gives_away=gives_away)
        documents_by_split[split] = [item.document() for item in kept_items]
    return documents_by_split
