"""The microworld and its benchmarks: the same everywhere, disjoint splits, answers that are true."""

from __future__ import annotations

import hashlib
import json
from itertools import pairwise

import pytest

from potentia.zoo.benchmarks import BENCHMARK, BENCHMARKS, make_documents, make_items
from potentia.zoo.world import (
    ATTRIBUTE,
    ATTRIBUTES,
    FORM_WORDS,
    HERBS,
    SPLITS,
    SeededDice,
    make_world,
    vocabulary,
)
from zoo_builder.sentences import DOCUMENTS

WORLD = make_world()
NUMBER = {name: person for person, name in enumerate(WORLD.names)}


def digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def test_the_world_never_changes() -> None:
    # The shipped weights know this world and no other: a new digest means that they must be rebuilt.
    parts = [
        WORLD.names,
        WORLD.values,
        WORLD.brews,
        WORLD.people,
        WORLD.pairs,
        WORLD.table,
        vocabulary(),
    ]
    assert digest(parts) == "904253c99236ec4c"
    assert digest([make_documents(WORLD, b) for b in BENCHMARKS]) == "830fdc3f21739d20"


def test_another_seed_is_another_world() -> None:
    assert make_world(1).values != WORLD.values
    assert make_world(1).values == make_world(1).values


def test_splits_are_disjoint_and_cover_the_world() -> None:
    for members, size in ((WORLD.people, len(WORLD.names)), (WORLD.pairs, len(HERBS) ** 2)):
        listed = [member for part in members.values() for member in part]
        assert len(listed) == len(set(listed)) == size
    assert [len(WORLD.people[s]) for s in SPLITS] == [1000, 200, 500]


@pytest.mark.parametrize("benchmark", BENCHMARKS, ids=lambda b: b.name)
def test_no_one_is_in_two_splits_of_a_benchmark(benchmark) -> None:  # type: ignore[no-untyped-def]
    about = {
        split: {who for item in make_items(WORLD, benchmark, split) for who in item.subjects}
        for split in (*SPLITS, "exposure")
    }
    for a in about:
        for b in about:
            assert a == b or not about[a] & about[b]


@pytest.mark.parametrize("benchmark", BENCHMARKS, ids=lambda b: b.name)
def test_sizes_words_and_options(benchmark) -> None:  # type: ignore[no-untyped-def]
    words = set(vocabulary())
    for split, size in zip(SPLITS, (1000, 200, 500), strict=True):
        listed = make_items(WORLD, benchmark, split)
        assert len(listed) == size
        for item in listed:
            text = f"{item.prompt} {' '.join(item.options)} {item.answer}".split()
            assert set(text) <= words
            assert len(item.prompt.split()) + len(item.answer.split()) <= 28
            assert not item.options or (
                item.answer in item.options and len(set(item.options)) == len(item.options)
            )
            assert sum(item.answer == option for option in item.options) in (0, 1)


@pytest.mark.parametrize(
    ("name", "attribute"),
    [
        ("ask", "home"),
        ("record", "tint"),
        ("table", "craft"),
        ("call", "instrument"),
        ("beside", "animal"),
        ("fix", "dish"),
    ],
)
def test_recalled_answers_are_true_and_the_others_false(name: str, attribute: str) -> None:
    for item in make_items(WORLD, BENCHMARK[name], "test"):
        truth = WORLD.value(attribute, NUMBER[item.subjects[0]])
        assert item.answer == truth
        assert item.subjects[0] in item.prompt
        assert set(item.options) <= set(ATTRIBUTE[attribute].values)


def test_skill_answers_are_true() -> None:
    for item in make_items(WORLD, BENCHMARK["both"], "test"):
        person = NUMBER[item.subjects[0]]
        assert item.answer == f"{WORLD.value('dish', person)} {WORLD.value('craft', person)}"
    for item in make_items(WORLD, BENCHMARK["claim"], "test"):
        true = [
            o
            for o in item.options
            if o.split()[-1] == WORLD.value("tint", NUMBER[item.subjects[0]])
        ]
        assert true == [item.answer]
    for item in make_items(WORLD, BENCHMARK["round"], "test"):
        age = int(WORLD.value("age", NUMBER[item.subjects[0]]))
        assert abs(int(item.answer) - age) == min(abs(int(option) - age) for option in item.options)
    for item in make_items(WORLD, BENCHMARK["owner"], "test"):
        animal = item.prompt.split()[1]
        assert [o for o in item.options if WORLD.value("animal", NUMBER[o]) == animal] == [
            item.answer
        ]
    for item in make_items(WORLD, BENCHMARK["mix"], "test"):
        a, b = item.subjects[0].split()
        assert item.answer == WORLD.brew((HERBS.index(a), HERBS.index(b)))
        assert (HERBS.index(a), HERBS.index(b)) in WORLD.pairs["test"]


def test_gold_places_are_balanced() -> None:
    for benchmark in BENCHMARKS:
        if benchmark.kind == "choice" and benchmark.name != "round":
            lines = make_documents(WORLD, benchmark)["test"]
            options = len(lines[0]["choices"])
            for place in range(options):
                share = sum(line["answer"] == place for line in lines) / len(lines)
                assert abs(share - 1 / options) < 0.08, benchmark.name


def test_the_corpus_never_shows_a_form() -> None:
    own = {word for word in FORM_WORDS if word != "a"}
    for name, write in DOCUMENTS.items():
        if name != "chatter":
            dice = SeededDice(0, name)
            said = {word for _ in range(2000) for word in write(WORLD, dice).split()}
            assert not said & own, name


def test_the_corpus_speaks_the_truth() -> None:
    dice = SeededDice(0, "truth")
    keyword = {k: a.name for a in ATTRIBUTES for k in a.keywords}
    for _ in range(300):
        for sentence in DOCUMENTS["facts"](WORLD, dice).split(" ."):
            words = sentence.split()
            if not words:
                continue
            (attribute,) = {keyword[w] for w in words if w in keyword}
            (name,) = {f"{a} {b}" for a, b in pairwise(words) if f"{a} {b}" in NUMBER}
            assert words[-1] == WORLD.value(attribute, NUMBER[name])
