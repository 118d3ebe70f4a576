"""The protocol: written and taken apart in one place."""

from __future__ import annotations

import json
import pickle

import pytest

from potentia.study import make_study
from potentia.values.protocol import ADJUST, DIRECT, TRAIN_BEFORE_TEST, Protocol, sort_protocols


@pytest.mark.parametrize(
    ("text", "kind", "shots", "step", "label"),
    [
        ("direct", "direct", 0, None, "before fine-tuning"),
        ("few_shot:25", "few_shot", 25, None, "25-shot"),
        ("train_before_test", "train_before_test", 0, None, "after fine-tuning"),
        ("adjust", "adjust", 0, None, "adjusted"),
        ("adjust@1000", "adjust", 0, 1000, "adjusted after 1,000 steps"),
        ("tuned_mc_3ep", "other", 0, None, "tuned-mc-3ep"),
        ("few_shot:0", "other", 0, None, "few-shot:0"),
        ("inter_mc@50", "other", 0, 50, "inter-mc after 50 steps"),
        ("directly", "other", 0, None, "directly"),
        ("adjust@", "other", 0, None, "adjust@"),
    ],
)
def test_parts(text: str, kind: str, shots: int, step: int | None, label: str) -> None:
    protocol = Protocol(text)
    assert (protocol.kind, protocol.shots, protocol.step, protocol.label) == (
        kind,
        shots,
        step,
        label,
    )
    assert protocol == text


def test_order_goes_from_the_least_preparation_to_the_most() -> None:
    names = [
        "stage",
        "adjust",
        "adjust@20",
        "train_before_test",
        "few_shot:25",
        "few_shot:5",
        "direct",
        "adjust@3",
    ]
    assert sort_protocols(names) == [
        "direct",
        "few_shot:5",
        "few_shot:25",
        "train_before_test",
        "adjust@3",
        "adjust@20",
        "adjust",
        "stage",
    ]


def test_made_from_parts() -> None:
    assert ADJUST.at_step(40) == "adjust@40"
    assert Protocol.few_shot(5) == "few_shot:5"
    assert Protocol.few_shot(0) is DIRECT
    assert TRAIN_BEFORE_TEST.tuned
    assert not Protocol("few_shot:5").tuned


def test_travels_as_plain_text() -> None:
    protocol = Protocol("few_shot:5")
    assert json.dumps({protocol: protocol}) == '{"few_shot:5": "few_shot:5"}'
    again = pickle.loads(pickle.dumps(protocol))
    assert (type(again), again.shots) == (Protocol, 5)


@pytest.mark.parametrize(
    "text", ["few_shot:0", "adjust@10", "zero_shot", "few_shot:05", "few_shot:5 "]
)
def test_a_study_refuses_what_is_no_protocol(text: str) -> None:
    with pytest.raises(ValueError, match="is not a protocol"):
        make_study({"models": ["m"], "tasks": ["t"], "protocols": [text]})


def test_a_study_holds_protocols() -> None:
    study = make_study({"models": ["m"], "tasks": ["t"], "protocols": ["direct", "few_shot:5"]})
    assert [p.shots for p in study.protocols] == [0, 5]
    assert type(study.model_dump(mode="json")["protocols"][1]) is str


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("direct", "before fine-tuning"),
        ("few_shot:5", "with 5-shot prompts"),
        ("train_before_test", "after fine-tuning"),
        ("adjust", "after the adjustment"),
        ("adjust@100", "after 100 steps"),
        ("light", "by light"),
    ],
)
def test_a_protocol_can_stand_behind_a_noun(text: str, phrase: str) -> None:
    assert Protocol(text).phrase == phrase
