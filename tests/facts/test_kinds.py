from __future__ import annotations

from pathlib import Path

import pytest

from potentia.facts import decide_kind, models, read_facts

SHIPPED = models()


@pytest.mark.parametrize(
    ("name", "template", "kind", "by"),
    [
        ("Qwen/Qwen2.5-7B", True, "base", "the facts"),  # its tokenizer has a template all the same
        ("Qwen/Qwen2.5-7B-Instruct", False, "instruct", "the facts"),
        ("me/some-model-chat", False, "instruct", "its name"),
        ("/models/some-7b-it/", False, "instruct", "its name"),
        ("me/some-model-base", True, "base", "its name"),
        ("me/chat-base", True, "instruct", "its tokenizer"),  # the name says both
        ("me/some-model", True, "instruct", "its tokenizer"),
        ("me/some-model", False, "base", "its tokenizer"),
        ("me/digital-bit", False, "base", "its tokenizer"),  # words, not letters
    ],
)
def test_facts_then_name_then_tokenizer(name: str, template: bool, kind: str, by: str) -> None:
    result = decide_kind("auto", [name], SHIPPED, template=template)
    assert result is not None
    assert (result.value, result.by) == (kind, by)


def test_the_study_goes_first() -> None:
    stated = decide_kind("instruct", ["Qwen/Qwen2.5-7B"], SHIPPED, template=False)
    assert stated is not None
    assert (stated.value, stated.by) == ("instruct", "the study")
    kind = decide_kind("auto", ["me/x"], SHIPPED, instruct_of="me/y", template=False)
    assert kind is not None
    assert (kind.value, kind.by) == ("instruct", "the study")


def test_before_the_tokenizer_is_read_nothing_may_be_known() -> None:
    assert decide_kind("auto", ["me/some-model"], SHIPPED) is None


def test_a_fact_that_says_nothing_of_the_kind_decides_nothing(tmp_path: Path) -> None:
    path = tmp_path / "facts.csv"
    path.write_text("name,family,parameters_b\nmine-chat,mine,1\n")
    kind = decide_kind("auto", ["mine-chat"], read_facts(path), template=False)
    assert kind is not None
    assert (kind.value, kind.by) == ("instruct", "its name")
