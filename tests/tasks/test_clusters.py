"""Examples that share a passage: found in public tasks and own files, stored, and part of every error."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from potentia.errors import TaskError
from potentia.tasks import Division, Task, UserData, load
from potentia.tasks.clusters import find_cluster_column, group_rows
from potentia.tasks.grading import aggregate_items
from potentia.tasks.splits import SPLITS, divide_rows
from potentia.values.clusters import Clusters, clustered_error, label_cluster


def write_passages(path: Path, *, column: str = "context", passages: int = 12) -> Path:
    """Write five questions on each passage."""
    rows = []
    for passage in range(passages):
        for question in range(5):
            rows.append(
                {
                    column: f"This is the passage number {passage}, and it goes on for quite a while.",
                    "question": f"What is {question} in {passage}?",
                    "choices": ["yes", "no"],
                    "answer": "yes",
                }
            )
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


def test_own_files_with_a_context_are_clustered_by_it(tmp_path: Path) -> None:
    task = load(str(write_passages(tmp_path / "own.jsonl", passages=40)))
    labels = [task.cluster_label(document) for document in task.documents("test")]
    assert all(labels)
    assert len(set(labels)) < len(labels)
    assert any("share" in note and "context" in note for note in task.notes)


def test_a_study_names_the_column(tmp_path: Path) -> None:
    path = write_passages(tmp_path / "own.jsonl", column="chapter")
    assert load(str(path)).cluster_columns == (None,)
    assert load(str(path), cluster_column="chapter").cluster_columns == ("chapter",)
    with pytest.raises(TaskError, match="no column 'page'"):
        load(str(path), cluster_column="page")


def test_an_instruction_that_never_changes_is_no_passage() -> None:
    same = [{"context": "Answer the question."} for _ in range(50)]
    assert find_cluster_column(same, None, "own") is None
    different = [{"context": f"passage {k}"} for k in range(50)]
    assert find_cluster_column(different, None, "own") is None
    shared = [{"context": f"passage {k // 2}"} for k in range(50)]
    assert find_cluster_column(shared, None, "own") == "context"


def test_labels_are_short() -> None:
    assert label_cluster("chapter 3") == "chapter 3"
    assert len(label_cluster("word " * 500)) == 16
    assert label_cluster(None) == ""


def test_a_mean_has_the_clustered_error_and_a_set_metric_is_resampled_by_cluster() -> None:
    from lm_eval.api.metrics import matthews_corrcoef, mean

    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(40), 10).tolist()
    right = np.repeat(rng.random(40) < 0.7, 10).astype(float)  # a passage is understood or not
    value, error = aggregate_items(mean, right.tolist(), labels)
    assert value == pytest.approx(right.mean())
    assert error == pytest.approx(clustered_error(right, Clusters.from_labels(labels)))
    _, plain_error = aggregate_items(mean, right.tolist())
    assert error == pytest.approx(plain_error * math.sqrt(10), rel=0.05)

    gold = rng.integers(2, size=400)
    predicted = np.where(right > 0, gold, 1 - gold)
    pairs = [(int(g), int(p)) for g, p in zip(gold, predicted, strict=True)]
    _, clustered = aggregate_items(matthews_corrcoef, pairs, labels)
    _, plain = aggregate_items(matthews_corrcoef, pairs)
    assert clustered == pytest.approx(plain * math.sqrt(10), rel=0.25)


def splits_by_value(task: Task, column: str) -> dict[str, set[str]]:
    """Return the splits in which each value of a column stands."""
    splits: dict[str, set[str]] = {}
    for split in SPLITS:
        for document in task.documents(split):
            splits.setdefault(str(document[column]), set()).add(split)
    return splits


@pytest.mark.parametrize("seed", range(5))
def test_a_passage_is_never_in_two_splits(tmp_path: Path, seed: int) -> None:
    path = str(write_passages(tmp_path / "own.jsonl", passages=40))
    task = load(path, seed=seed)
    splits = splits_by_value(task, "context")
    assert len(splits) == 40
    assert all(len(names) == 1 for names in splits.values())
    assert [
        task.split_plan.train.used,
        task.split_plan.validation.used,
        task.split_plan.test.used,
    ] == [160, 20, 20]
    assert any("stay in one split" in note for note in task.notes)


def test_folds_keep_passages_together_and_test_every_row_once(tmp_path: Path) -> None:
    path = str(write_passages(tmp_path / "own.jsonl", passages=23))
    tested: list[int] = []
    for fold in range(1, 6):
        task = load(path, division=Division(fold=(fold, 5)))
        assert all(len(names) == 1 for names in splits_by_value(task, "context").values())
        assert all(task.documents(split) for split in SPLITS)
        tested += [document.id for document in task.documents("test")]
    assert sorted(tested) == list(range(23 * 5))


def test_repeated_texts_stay_together(tmp_path: Path) -> None:
    rows = []
    for number in range(120):
        label = "rare" if number % 6 == 0 else "usual"
        rows.append({"text": f"Ticket {number} is here", "label": label})
        if number % 2 == 0:
            rows.append({"text": f"ticket {number} is here!", "label": label})
    path = tmp_path / "tickets.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    tested = 0
    for fold in range(1, 6):
        task = load(str(path), division=Division(fold=(fold, 5)))
        numbers: dict[str, set[str]] = {}
        for split in SPLITS:
            for document in task.documents(split):
                number = document["text"].lower().split()[1]
                numbers.setdefault(number, set()).add(split)
        assert len(numbers) == 120  # nothing had to be dropped
        assert all(len(names) == 1 for names in numbers.values())
        tested += len(task.documents("test"))
        assert any("120 rows share their passage or text" in note for note in task.notes)
    assert tested == 180


def test_every_part_gets_a_passage_or_the_file_is_refused() -> None:
    sizes = [50, 50, 2]
    groups = np.repeat([0, 1, 2], sizes)
    parts = divide_rows(np.arange(102), [10, 10, 82], groups)
    assert sorted(map(len, parts)) == sorted(sizes)
    with pytest.raises(TaskError, match=r"3 group.* too few for 4 splits"):
        divide_rows(np.arange(102), [1, 1, 50, 50], groups)


def test_parts_have_their_sizes_and_groups_of_all_sizes() -> None:
    group_sizes = [12] * 10 + [3] * 40 + [1] * 160
    groups = np.repeat(np.arange(len(group_sizes)), group_sizes)
    rows = np.random.default_rng(0).permutation(len(groups))
    parts = divide_rows(rows, [40, 40, 320], groups)
    assert [len(part) for part in parts] == [40, 40, 320]
    for part in parts:
        sizes_in_part = {group_sizes[group] for group in groups[part]}
        assert sizes_in_part == {12, 3, 1}
    assert sorted(np.concatenate(parts)) == sorted(rows)


def test_rows_join_over_passage_and_text() -> None:
    groups = group_rows([["passage: a", "text: 1"], ["text: 2"], ["passage: a", "text: 2"], []])
    assert groups is not None
    assert groups[0] == groups[1] == groups[2] != groups[3]
    assert group_rows([["text: 1"], ["text: 2"], [], []]) is None


def test_one_question_on_many_passages_is_not_one_text(tmp_path: Path) -> None:
    rows = []
    for number in range(60):
        passage = f"In the year {1900 + number} something happened in town {number}."
        rows.append({"passage": passage, "question": "Which year?", "reply": str(1900 + number)})
    path = tmp_path / "years.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    data = UserData(
        (str(path),),
        columns={"prompt": "question", "completion": "reply"},
        prompt="{{passage}} {{question}}",
    )
    task = load("years", user_data=data)
    assert sum(len(task.documents(split)) for split in SPLITS) == 60
    assert not any("stay in one split" in note for note in task.notes)


def test_the_same_rows_are_tested_in_every_prompt_form(tmp_path: Path) -> None:
    path = str(write_passages(tmp_path / "own.jsonl", passages=20))
    plain = [document.id for document in load(path).documents("test")]
    blind = [document.id for document in load(path, blind=True).documents("test")]
    assert plain == blind


def test_a_file_of_one_text_is_refused_with_the_way_out(tmp_path: Path) -> None:
    rows = [{"prompt": "Write a poem.", "completion": f"Poem {k}"} for k in range(30)]
    path = tmp_path / "poems.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    with pytest.raises(TaskError, match=r"1 group.* too few for 3 splits") as refused:
        load(str(path))
    assert "drop_overlap: false" in str(refused.value.hint)
    assert load(str(path), drop_overlap=False).documents("test")
