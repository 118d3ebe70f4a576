"""Blind prompts: the question is gone, the options and the right answer stay."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from potentia.errors import InputError
from potentia.study import Caps, make_study
from potentia.tasks import load

ROWS = [
    {
        "question": f"Which of these is number {n} ?",
        "choices": [f"first {n}", f"second {n}", f"third {n}"],
        "answer": n % 3,
    }
    for n in range(60)
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(map(json.dumps, ROWS)))
    return path


@pytest.mark.parametrize("form", ["", "choice:", "cloze:"])
def test_the_question_is_removed_and_the_options_stay(file: Path, form: str) -> None:
    sighted = load(f"{file}:{form.removesuffix(':')}" if form else str(file))
    blind = load(f"{file}:{form}blind")
    documents = sighted.documents("test")
    assert [d.id for d in documents] == [d.id for d in blind.documents("test")]
    for seen, unseen in zip(
        sighted.prompts(documents), blind.prompts(blind.documents("test")), strict=True
    ):
        assert "Which of these" in seen.text
        assert "Which of these" not in unseen.text
        assert (seen.choices, seen.gold) == (unseen.choices, unseen.gold)
        if form == "choice:":
            options = documents[0].data["choices"]
            assert any(option in unseen.text for option in options) or "first" in unseen.text
    assert sighted.fingerprint != blind.fingerprint
    assert blind.name.endswith(":blind")
    trained = blind.examples(blind.documents("train"))
    assert len({example.context for example in trained}) == (
        len(trained) if form == "choice:" else 1
    )


def test_swapped_shows_the_question_of_another_example(file: Path) -> None:
    swapped = load(f"{file}:blind:swapped")
    for document, prompt in zip(
        swapped.documents("test"), swapped.prompts(swapped.documents("test")), strict=True
    ):
        assert "Which of these is number" in prompt.text
        assert document.data["question"] not in prompt.text
    again = load(f"{file}:blind:swapped")
    assert again.fingerprint == swapped.fingerprint


def test_labelled_texts_keep_their_examples(tmp_path: Path) -> None:
    """Without its text every example of a class looks the same; none is a duplicate for that."""
    rows = [{"text": f"note {n}", "label": "good" if n % 2 else "bad"} for n in range(80)]
    path = tmp_path / "labelled.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    sighted, blind = load(str(path)), load(f"{path}:blind")
    assert len(blind.documents("train")) == len(sighted.documents("train")) > 40
    assert "note" not in blind.prompts(blind.documents("test")[:1])[0].text


def test_examples_in_the_prompt_are_blind_too(file: Path) -> None:
    blind = load(f"{file}:blind", caps=Caps(test=3))
    (prompt, *_) = blind.prompts(blind.documents("test"), shots=2)
    assert "Which of these" not in prompt.text
    assert prompt.text.count("\n") or prompt.text


def test_a_study_asks_for_twins(file: Path) -> None:
    study = make_study(
        {"models": ["m"], "tasks": [{"name": "mine", "file": str(file), "blind": True}]}
    )
    assert [task.name for task in study.list_task_specs()] == ["mine", "mine:blind"]
    with pytest.raises(InputError, match="blind twin"):
        make_study({"models": ["m"], "tasks": [{"name": "mine:blind", "file": str(file)}]})


def test_a_text_has_no_question(tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    path.write_text("\n".join(json.dumps({"text": f"a text {n}"}) for n in range(30)))
    with pytest.raises(InputError, match="no question to remove"):
        load(f"{path}:blind")
    with pytest.raises(InputError, match="no variant"):
        load(f"{path}:blind:often")
