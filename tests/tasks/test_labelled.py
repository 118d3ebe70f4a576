"""Labelled texts: a file of texts and labels is a classification, never a corpus."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from sklearn.metrics import balanced_accuracy_score, f1_score

from potentia import tasks
from potentia.errors import TaskError
from potentia.tasks import grading
from potentia.tasks.checks import compute_baselines
from potentia.tasks.splits import SPLITS
from potentia.values.baselines import Baseline

WORDS = {
    "billing_issue": ["invoice", "charged", "refund"],
    "shipping": ["parcel", "courier", "late"],
    "login": ["password", "account", "locked"],
}


def tickets(n: int = 120) -> list[tuple[str, str]]:
    names = list(WORDS)
    return [
        (f"Ticket {i}: the {WORDS[names[i % 3]][i % 7 % 3]} thing number {i * 7}", names[i % 3])
        for i in range(n)
    ]


def table(
    path: Path, rows: list[tuple[str, ...]], header: tuple[str, ...] = ("text", "category")
) -> str:
    with path.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([header, *rows])
    return str(path)


def test_texts_with_labels_are_a_classification(tmp_path: Path) -> None:
    task = tasks.load(table(tmp_path / "tickets.csv", tickets()))
    assert (task.kind, task.metric, task.higher_is_better) == ("choice", "acc", True)
    assert task.labels == {
        "billing_issue": "billing issue",
        "login": "login",
        "shipping": "shipping",
    }
    prompt = task.prompts(task.documents("test")[:1])[0]
    assert prompt.text.startswith("Text: Ticket ")
    assert prompt.text.endswith("\nCategory:")
    assert prompt.choices == ("billing issue", "login", "shipping")
    assert prompt.gold in prompt.choices
    assert any('billing_issue → "billing issue"' in note for note in task.notes)
    assert task.chance == pytest.approx(1 / 3)


@pytest.mark.parametrize("names", [("premise", "hypothesis"), ("sentence1", "sentence2")])
def test_two_texts_with_a_label(tmp_path: Path, names: tuple[str, str]) -> None:
    rows = [(f"a {i}", f"b {i}", str(i % 2)) for i in range(40)]
    task = tasks.load(table(tmp_path / "pairs.csv", rows, (*names, "label")))
    text = task.prompts(task.documents("test")[:1])[0].text
    assert text.startswith(f"{names[0].capitalize()}: a ")
    assert f"\n{names[1].capitalize()}: b " in text
    assert any("labels are numbers" in note for note in task.notes)
    user_data = tasks.UserData(
        (str(tmp_path / "pairs.csv"),), labels={"0": "different", "1": "same"}
    )
    assert tasks.load("pairs", user_data=user_data).labels == {"0": "different", "1": "same"}
    with pytest.raises(TaskError, match="no row has the label '7'"):
        tasks.load("pairs", user_data=tasks.UserData(user_data.files, labels={"7": "x"}))


def test_a_label_that_begins_another_can_still_lose(tmp_path: Path) -> None:
    rows = [(f"text {i}", ("refund", "refund request")[i % 2]) for i in range(40)]
    task = tasks.load(table(tmp_path / "t.csv", rows))
    assert task.labels == {"refund": "refund.", "refund request": "refund request."}


def test_a_column_that_may_be_a_label_is_asked_for(tmp_path: Path) -> None:
    file = table(tmp_path / "t.csv", tickets(), ("text", "desk"))
    with pytest.raises(TaskError, match="is the column desk a label") as error:
        tasks.load(file)
    assert "--map text=text label=desk" in str(error.value.hint)
    assert tasks.load("t", user_data=tasks.UserData((file,), columns={"label": "desk"})).labels
    assert (
        tasks.load("t", user_data=tasks.UserData((file,), columns={"text": "text"})).kind
        == "corpus"
    )
    unlike = table(
        tmp_path / "u.csv", [(f"text {i}", f"title {i}") for i in range(40)], ("text", "title")
    )
    assert tasks.load(unlike).kind == "corpus"
    same = table(tmp_path / "s.csv", [(f"text {i}", "x") for i in range(40)])
    with pytest.raises(TaskError, match="the same in every row"):
        tasks.load(same)


def test_all_bad_rows_are_told_at_once_and_may_be_left_out(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    table(file, [*tickets(60), ("two\nlines", ""), ("", "login"), *tickets(90)[60:]])
    with file.open("a") as stream:
        stream.write("a,b,c\n")
    with pytest.raises(TaskError) as error:
        tasks.load(str(file))
    message = str(error.value)
    assert "3 of 93 rows cannot be used" in message
    for line, why in ((62, "label is empty"), (64, "text is empty"), (95, "2 columns are named")):
        assert f"t.csv, line {line}: {why}" in message
    assert "--drop-bad-rows" in message
    task = tasks.load(str(file), drop_bad_rows=True)
    assert sum(len(task.documents(s)) for s in ("train", "validation", "test")) == 90
    assert any("3 of 93 rows" in note for note in task.notes)


def test_one_bad_answer_does_not_change_how_the_others_count(tmp_path: Path) -> None:
    rows = [
        {"question": f"q{i}", "choices": ["a", "b", "c"], "answer": 1 + i % 3} for i in range(40)
    ]
    rows[7]["answer"] = ""
    file = tmp_path / "q.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    task = tasks.load(str(file), drop_bad_rows=True)
    docs = task.documents("train")
    assert {(doc["question"], doc["answer"]) for doc in docs} <= {
        (f"q{i}", i % 3) for i in range(40)
    }


def test_duplicates_across_splits_are_dropped_and_counted(tmp_path: Path) -> None:
    rows = tickets(60)
    file = table(
        tmp_path / "t.csv", [*rows, *[(text.upper() + "!", label) for text, label in rows[:30]]]
    )
    together = tasks.load(file)
    loaded = tasks.load(file, drop_overlap=False)
    assert tasks.measure_overlap(loaded).train_exact > 0
    assert tasks.measure_overlap(together).train_exact == 0
    assert together.split_plan.dropped_overlap == 0  # repeated rows stay in one split
    assert sum(len(together.documents(split)) for split in SPLITS) == 90
    table(tmp_path / "train.csv", rows)
    table(tmp_path / "test.csv", [(text.upper() + "!", label) for text, label in rows[:30]])
    user_data = tasks.UserData((str(tmp_path / "train.csv"), str(tmp_path / "test.csv")))
    task = tasks.load("t", user_data=user_data)
    assert tasks.measure_overlap(task).train_exact == 0
    assert task.split_plan.dropped_overlap == 30
    assert any("Duplicates across splits are dropped" in note for note in task.notes)
    table(tmp_path / "train.csv", rows)
    table(tmp_path / "test.csv", rows)
    user_data = tasks.UserData((str(tmp_path / "train.csv"), str(tmp_path / "test.csv")))
    with pytest.raises(TaskError, match="repeat every training example"):
        tasks.load("t", user_data=user_data)


def test_scores_of_classes_are_scikit_learns() -> None:
    pairs = [[i % 3, (i * i + i // 4) % 4] for i in range(50)]
    gold, predicted = zip(*pairs, strict=True)
    value, error = grading.aggregate_items(grading.LABEL_METRICS["macro_f1"], pairs)
    assert value == pytest.approx(f1_score(gold, predicted, average="macro", zero_division=0))
    assert 0 < error < 0.2
    assert grading.LABEL_METRICS["balanced_accuracy"](
        [[a, b % 3] for a, b in pairs]
    ) == pytest.approx(balanced_accuracy_score(gold, [b % 3 for b in predicted]))


def test_the_most_frequent_class_is_at_chance_over_folds_of_equal_classes(tmp_path: Path) -> None:
    lines = ["text,label"]
    for number in range(60):
        text_number = number - 3 * (number % 2) if number % 5 == 0 else number  # some texts repeat
        lines.append(f"message {text_number} of a customer,{'abc'[number % 3]}")
    path = tmp_path / "equal.csv"
    path.write_text("\n".join(lines), encoding="utf-8")
    right = 0.0
    tested = 0
    for fold in range(1, 6):
        task = tasks.load(str(path), division=tasks.Division(fold=(fold, 5)))
        count = len(task.documents("test"))
        right += compute_baselines(task)[Baseline.MAJORITY]["acc"] * count
        tested += count
    assert right / tested == pytest.approx(1 / 3)


def test_graded_labels_and_baselines(tmp_path: Path) -> None:
    rows = tickets(240)
    rows += [(f"Another parcel thing {i}", "shipping") for i in range(120)]
    task = tasks.load(table(tmp_path / "t.csv", rows))
    prompts = task.prompts(task.documents("test"))
    always = [[(-1.0, False), (-2.0, False), (-0.5, False)] for _ in prompts]
    scores = task.score(task.grade(prompts, always))
    assert scores["balanced_accuracy"].value == pytest.approx(1 / 3)
    assert scores["macro_f1"].value < scores["acc"].value
    beside = compute_baselines(task)
    assert beside[Baseline.MAJORITY]["acc"] == pytest.approx(scores["acc"].value)
    assert beside[Baseline.TFIDF]["acc"] > 0.95
    description = task.describe()
    assert description.labels == task.labels
    assert description.config["doc_to_choice"] == list(task.labels.values())
    json.dumps(description.to_dict())
