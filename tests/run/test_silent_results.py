"""A result in which all choices tie is no result, and unknown tokens are told for every kind of task."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tiny
from potentia.errors import PotentiaError
from potentia.evidence import read
from potentia.run import run_study
from potentia.run.ask import Evaluation
from potentia.run.select import Race
from potentia.store import Store
from potentia.study import Study, make_study


def study_of(folder: Path, task: Path, **settings: object) -> Study:
    return make_study(
        {
            "name": "silent",
            "models": [{"name": "base", "path": str(folder / "base")}],
            "tasks": [{"name": "asked", "file": str(task)}],
            "protocols": ["direct"],
            "device": "cpu",
            "store": str(folder / "p.db"),
            **settings,
        }
    )


def write_questions(file: Path, question: str, choices: list[str], n: int = 60) -> Path:
    with file.open("w") as out:
        for k in range(n):
            filler = " ".join(tiny.WORDS[(k * j) % 20] for j in range(1, 5))
            row = {"question": f"{question} {filler}", "choices": choices, "answer": k % 2}
            out.write(json.dumps(row) + "\n")
    return file


def test_ties_in_every_example_are_a_failure_with_its_reason(tmp_path: Path) -> None:
    tiny.save_model(tmp_path / "base")
    task = write_questions(tmp_path / "a.jsonl", "what is the cat", ["Apfel", "Birne"])
    study = study_of(tmp_path, task)
    assert run_study(study).failed == 1
    with Store.open(study.store, readonly=True) as store:
        (failure,) = store.failures.read()
        assert not list(store.cells.read())
    assert "every choice got the same log-probability in" in failure.reason


def test_a_selection_that_ends_so_says_the_likely_cause(tmp_path: Path) -> None:
    tiny.save_model(tmp_path / "base")
    tiny.save_model(tmp_path / "other", seed=1)
    task = write_questions(tmp_path / "a.jsonl", "what is the cat", ["Apfel", "Birne"])
    models = [str(tmp_path / "base"), str(tmp_path / "other")]
    with pytest.raises(PotentiaError, match="every choice got the same") as raised:
        Race(study_of(tmp_path, task, models=models), workers=1).run()
    hint = raised.value.hint or ""
    assert "unknown token" in hint
    assert "another model" in hint
    assert PotentiaError("no model: it is away", hint="it is away").hint is None, "said already"


def test_words_that_a_tokenizer_does_not_know_are_told(tmp_path: Path) -> None:
    tiny.save_model(tmp_path / "base")
    task = write_questions(tmp_path / "a.jsonl", "was ist the cat", ["red", "blue"])
    study = study_of(tmp_path, task)
    assert run_study(study).failed == 0
    notes = read(study.store, study="silent").notes
    (note,) = (note for note in notes if note.startswith("tokens of asked that the tokenizer"))
    assert "base" in note


@pytest.mark.parametrize("template", ["hello", "{% for m in messages %}<user>{% endfor %}"])
def test_a_chat_template_without_the_message_is_refused(tmp_path: Path, template: str) -> None:
    tiny.save_model(tmp_path / "base", chat=True)
    (tmp_path / "base" / "chat_template.jinja").write_text(template)
    tiny.save_questions(tmp_path / "colours.jsonl", n=60)
    study = study_of(tmp_path, tmp_path / "colours.jsonl", chat="always")
    assert run_study(study).failed == 1
    with Store.open(study.store, readonly=True) as store:
        (failure,) = store.failures.read()
    assert "chat template leaves out what the user says" in failure.reason


def test_an_evaluation_keeps_its_ties_in_text() -> None:
    evaluation = Evaluation(outcomes=[], scores={}, metric="acc", compared=20, tied=19)
    assert Evaluation.from_json(evaluation.to_json()) == evaluation
    assert evaluation.says_nothing
