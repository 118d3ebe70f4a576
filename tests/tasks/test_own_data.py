"""A user's own data: any column names, several files, datasets by name, few documents."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import tiny
from potentia import tasks
from potentia.analysis.completion import build_grid, complete_grid
from potentia.errors import StudyError, TaskError
from potentia.evidence import read
from potentia.run import plan_study, read_store_status, run_study
from potentia.study import make_study

ROWS = [
    {"query": f"{i} + 1", "a": str(i), "b": str(i + 1), "c": "", "label": 2, "topic": "sums"}
    for i in range(40)
]
COLUMNS = {"question": "query", "choices": ("a", "b", "c"), "answer": "label"}


def jsonl(path: Path, rows: list[dict]) -> str:
    path.write_text("\n".join(map(json.dumps, rows)), "utf-8")
    return str(path)


def test_columns_of_any_name_and_answers_that_count_from_one(tmp_path: Path) -> None:
    user_data = tasks.UserData((jsonl(tmp_path / "q.jsonl", ROWS),), columns=COLUMNS)
    task = tasks.load("q", user_data=user_data)
    prompt = task.prompts(task.documents("test")[:1])[0]
    number = int(prompt.text.split("Question: ")[1].split(" +")[0])
    assert prompt.choices == (str(number), str(number + 1))
    assert prompt.gold == str(number + 1)
    with pytest.raises(TaskError, match="no column 'x' for answer") as error:
        tasks.load(
            "q", user_data=tasks.UserData(user_data.files, columns={**COLUMNS, "answer": "x"})
        )
    assert "label" in str(error.value.hint)
    with pytest.raises(TaskError, match="no field 'solution'"):
        tasks.load("q", user_data=tasks.UserData(user_data.files, columns={"solution": "label"}))
    guessed = tasks.load(user_data.files[0])  # "query", "a", "b", "c" and "label" are usual names
    assert [document.data for document in guessed.documents("test")] == [
        document.data for document in task.documents("test")
    ]
    odd = jsonl(tmp_path / "odd.jsonl", [{"x1": "a", "y1": str(i)} for i in range(40)])
    with pytest.raises(TaskError, match="cannot tell which columns hold the text") as error:
        tasks.load(odd)
    assert "--map text=COLUMN label=COLUMN" in str(error.value.hint)


def test_a_prompt_of_ones_own_over_any_column(tmp_path: Path) -> None:
    user_data = tasks.UserData(
        (jsonl(tmp_path / "q.jsonl", ROWS),), columns=COLUMNS, prompt="[{{topic}}] {{query}} ="
    )
    task = tasks.load("q", user_data=user_data)
    assert all(
        p.text.startswith("[sums] ") and p.text.endswith("=")
        for p in task.prompts(task.documents("test"))
    )
    plain = tasks.load("q", user_data=tasks.UserData(user_data.files, columns=COLUMNS))
    assert task.fingerprint != plain.fingerprint
    texts = jsonl(tmp_path / "t.jsonl", [{"text": f"text {i}"} for i in range(20)])
    with pytest.raises(TaskError, match="has no prompt"):
        tasks.load("t", user_data=tasks.UserData((texts,), prompt="x"))


def test_several_files_are_splits_by_their_names_or_one_pool(tmp_path: Path) -> None:
    named = tuple(
        jsonl(tmp_path / f"{n}.jsonl", ROWS[k::4]) for k, n in enumerate(("train", "dev", "test"))
    )
    task = tasks.load("q", user_data=tasks.UserData(named, columns=COLUMNS))
    assert [len(task.documents(s)) for s in ("train", "validation", "test")] == [10, 10, 10]
    loose = tuple(jsonl(tmp_path / f"part{k}.jsonl", ROWS[k::2]) for k in range(2))
    pooled = tasks.load("q", user_data=tasks.UserData(loose, columns=COLUMNS))
    assert sum(len(pooled.documents(s)) for s in ("train", "validation", "test")) == 40
    folder = tmp_path / "folder"
    folder.mkdir()
    for k in range(2):
        jsonl(folder / f"part{k}.jsonl", ROWS[k::2])
    assert (
        len(
            tasks.load("q", user_data=tasks.UserData((str(folder),), columns=COLUMNS)).documents(
                "test"
            )
        )
        == 4
    )


def test_a_dataset_by_its_name_from_the_folder_of_datasets(tmp_path: Path) -> None:
    dataset_folder = tmp_path / "org--sums" / "easy"
    dataset_folder.mkdir(parents=True)
    jsonl(dataset_folder / "train.jsonl", ROWS[:30])
    jsonl(dataset_folder / "test.jsonl", ROWS[30:])
    user_data = tasks.UserData(dataset="org/sums", subset="easy", columns=COLUMNS)
    task = tasks.load("sums", user_data=user_data, data_dir=tmp_path)
    assert [len(task.documents(s)) for s in ("train", "validation", "test")] == [24, 6, 10]
    (dataset_folder / "odd.jsonl").write_text((dataset_folder / "test.jsonl").read_text())
    for name in ("train", "test"):
        (dataset_folder / f"{name}.jsonl").unlink()
    with pytest.raises(TaskError, match="it has: odd"):
        tasks.load("sums", user_data=user_data, data_dir=tmp_path)


def test_ones_own_ratios(tmp_path: Path) -> None:
    file = jsonl(tmp_path / "t.jsonl", [{"text": f"text {i}"} for i in range(300)])
    assert tasks.UserData((file,)).count_documents_of_one_split() == 300
    for ratios, expected in (
        (None, [240, 30, 30]),
        ((6, 1, 3), [180, 30, 90]),
        ((1, 1, 1), [100, 100, 100]),
    ):
        task = tasks.load(file, division=tasks.Division(ratios=ratios))
        assert [len(task.documents(s)) for s in ("train", "validation", "test")] == expected


def test_a_run_says_when_a_test_is_small(tmp_path: Path) -> None:
    tiny.save_model(tmp_path / "m")
    file = jsonl(tmp_path / "t.jsonl", [{"text": f"text {i}"} for i in range(300)])

    def notes(**entry: object) -> tuple[str, ...]:
        raw = {"models": [str(tmp_path / "m")], "tasks": [{"name": "t", "file": file, **entry}]}
        return plan_study(make_study(raw | {"store": str(tmp_path / "s.db")})).collect_notes()

    (said,) = notes()
    assert "t is tested on 30 examples" in said
    assert "ratios: [6, 1, 3]" in said
    assert "--folds 5" in said
    assert notes(folds=5) == notes(ratios=[1, 1, 1]) == ()


def test_every_document_is_tested_once_over_the_folds(tmp_path: Path) -> None:
    file = jsonl(tmp_path / "t.jsonl", [{"text": f"text {i}"} for i in range(53)])
    seen: list[int] = []
    for k in range(1, 6):
        task = tasks.load(file, division=tasks.Division(fold=(k, 5)))
        parts = {s: {doc.id for doc in task.documents(s)} for s in ("train", "validation", "test")}
        assert sum(map(len, parts.values())) == 53
        assert not parts["train"] & parts["test"]
        assert not parts["validation"] & (parts["test"] | parts["train"])
        seen += parts["test"]
    assert sorted(seen) == list(range(53))
    user_data = tasks.UserData((jsonl(tmp_path / "s.jsonl", ROWS[:30]),), columns=COLUMNS)
    with pytest.raises(TaskError, match="too few for 20 folds"):
        tasks.load("s", user_data=user_data, division=tasks.Division(fold=(1, 20)))


def test_folds_of_a_study_become_one_task_with_all_documents(tmp_path: Path) -> None:
    tiny.save_model(tmp_path / "m")
    tiny.save_model(tmp_path / "o", seed=1)
    tiny.save_questions(tmp_path / "q.jsonl", n=60)
    study = make_study(
        {
            "name": "folds",
            "models": [str(tmp_path / "m"), str(tmp_path / "o")],
            "tasks": [{"name": "q", "file": str(tmp_path / "q.jsonl"), "folds": 3}],
            "protocols": ["direct", "train_before_test"],
            "tuning": {"learning_rates": [3e-3], "epochs": 1, "dropout": 0.0},
            "device": "cpu",
            "store": str(tmp_path / "s.db"),
        }
    )
    assert [task.name for task in study.list_task_specs()] == ["q#1/3", "q#2/3", "q#3/3"]
    assert run_study(study).failed == 0
    (status,) = read_store_status(study.store)["studies"]
    assert status["asked"] == status["done"] == 12
    evidence = read(study.store)
    assert evidence.background.chance["q"] == pytest.approx(1 / 3), (
        "what is known of a fold is known of the task"
    )
    links = complete_grid(build_grid(evidence), evidence).fitted.scale.links
    assert links.chance.tolist() == pytest.approx([1 / 3]), (
        "and known where its scores are predicted"
    )
    matrix = evidence.scores["train_before_test"]
    assert (matrix.tasks, matrix.n.tolist()) == (("q",), [[60.0], [60.0]])
    items = evidence.outcomes["train_before_test"]["q"][matrix.models[0]]
    assert len(items) == 60
    assert np.mean(list(items.values())) == pytest.approx(matrix.values[0, 0])
    assert matrix.stderr[0, 0] == pytest.approx(
        np.std(list(items.values())) / np.sqrt(60), rel=0.15
    )


def test_a_study_says_all_of_it(tmp_path: Path) -> None:
    jsonl(tmp_path / "q.jsonl", ROWS)
    tiny.save_model(tmp_path / "m")
    more = {"columns": COLUMNS, "prompt": "{{query}} =", "ratios": [2, 1, 1]}
    task = {"name": "q", "file": str(tmp_path / "q.jsonl"), **more}
    study = make_study(
        {
            "models": [str(tmp_path / "m")],
            "tasks": [task],
            "protocols": ["direct"],
            "device": "cpu",
            "store": str(tmp_path / "s.db"),
        }
    )
    loaded = plan_study(study).tasks.by_name["q"]
    assert [len(loaded.documents(s)) for s in ("train", "validation", "test")] == [20, 10, 10]
    for wrong, why in (
        ({"name": "q", "file": "x.jsonl", "dataset": "o/d"}, "not both"),
        ({"name": "arc_easy", "columns": {"answer": "x"}}, "data of your own"),
        ({"name": "q", "file": "x.jsonl", "ratios": [1, 1, 1], "folds": 3}, "not both"),
    ):
        with pytest.raises(StudyError, match=why):
            make_study({"models": ["m"], "tasks": [wrong]})
    with pytest.raises(StudyError, match="tested in folds"):
        make_study(
            {
                "models": ["m"],
                "tasks": [{"name": "q", "file": "x.jsonl", "folds": 3}],
                "treat": {"data": ["q"]},
            }
        )


def test_ratios_are_for_data_in_one_split(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    for name in ("train", "test"):
        jsonl(tmp_path / "d" / f"{name}.jsonl", ROWS)
    with pytest.raises(TaskError, match="for data in one split"):
        tasks.load(
            "d",
            user_data=tasks.UserData((str(tmp_path / "d"),), columns=COLUMNS),
            division=tasks.Division((1, 1, 1)),
        )


def test_rows_are_taken_in_the_order_that_is_asked_for(tmp_path: Path) -> None:
    """As many rows as there are were all of them, in their own order, whatever rows they were."""
    tiny.save_questions(tmp_path / "colours.jsonl", n=30)
    subtask = tasks.load(str(tmp_path / "colours.jsonl"))._subtasks[0]
    in_order = subtask.take_rows("train", range(30))
    assert subtask.take_rows("train", range(29, -1, -1)) == in_order[::-1]
    assert subtask.take_rows("train", [0] * 30) == [in_order[0]] * 30
