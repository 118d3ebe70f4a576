"""The tasks of the papers that lm-eval has not: definitions of our own, on data from the hub or the user's folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from potentia import papers
from potentia.errors import TaskError
from potentia.tasks import Task, load, shipped_tasks
from potentia.tasks.definitions import task_index

DATASETS = {
    "cmath": "weitianwen--cmath",
    "gaokao2023en": "MARIO-Math-Reasoning--Gaokao2023-Math-En",
    "collegemath": "di-zhang-fdu--College_Math_Test",
    "multi_logieval": "multi_logieval",
}
ROWS: dict[str, dict[str, list[dict[str, Any]]]] = {
    "cmath": {
        "validation": [
            {
                "grade": 1,
                "question": f"小明有{n}个苹果，又买了1个，一共几个？",
                "golden": str(n + 1),
            }
            for n in range(10)
        ],
        "test": [{"grade": 6, "question": "3乘以4是多少？", "golden": "12"}] * 3,
    },
    "gaokao2023en": {
        "train": [
            {"question": f"Find ${n}+1$.", "answer": f"${n + 1}$", "source": "gk"} for n in range(6)
        ]
    },
    "collegemath": {
        "test": [{"question": f"Simplify: $-{n}-4$", "answer": f"$-{n + 4}$"} for n in range(6)]
    },
    "multi_logieval": {
        "test": [
            {
                "context": "All cats purr. Tom is a cat.",
                "question": "Does Tom purr?",
                "answer": "yes",
            },
            {
                "context": "No cat barks. Tom is a cat.",
                "question": "Does Tom bark?",
                "answer": "no",
            },
        ]
        * 4
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows in the columns of the published data sets, where a data folder has them."""
    data = tmp_path_factory.mktemp("data")
    for task, splits in ROWS.items():
        place = data / DATASETS[task] / "default"
        place.mkdir(parents=True)
        for split, rows in splits.items():
            text = "".join(json.dumps(row) + "\n" for row in rows)
            (place / f"{split}.jsonl").write_text(text, "utf-8")
    return data


def score_answer(task: Task, answer: str) -> float:
    documents = task.documents("test")[:1]
    prompts = task.prompts(documents)
    (outcome,) = task.grade(prompts, [[answer]])
    return outcome.value


def test_the_papers_other_tasks_have_a_name(folder: Path):
    """BOSE's six open-ended tasks: mgsm_zh is mgsm_direct_zh of lm-eval, minerva_math is there, the others are ours."""
    printed = json.loads(
        (Path(papers.__file__).parent / "base_models" / "printed.json").read_text()
    )
    assert set(printed["TASKS"]) - set(shipped_tasks()) == {"mgsm_zh", "minerva_math"}
    assert {"mgsm_direct_zh", "minerva_math"} <= set(task_index())
    assert "mgsm_zh" not in task_index()
    assert set(shipped_tasks()) == set(DATASETS)
    for name in DATASETS:
        assert load(name, data_dir=folder).documents("test")


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("cmath", "3乘以4等于12。", "答案是13"),
        ("gaokao2023en", "1", "2"),
        ("collegemath", "-4", "4"),
        ("multi_logieval", "Tom is a cat, so the answer is Yes.", "No"),
    ],
)
def test_answers_are_graded(folder: Path, name: str, right: str, wrong: str):
    task = load(name, data_dir=folder)
    assert task.kind == "generation"
    assert (score_answer(task, right), score_answer(task, wrong)) == (1.0, 0.0)


@pytest.mark.parametrize("name", sorted(DATASETS))
def test_boses_forms_ask_them(folder: Path, name: str):
    task = load(f"{name}:iclip:2", data_dir=folder)
    (prompt,) = task.prompts(task.documents("test")[:1])
    assert prompt.text.count("Problem:") == 3
    assert "Problem:\nProblem:" not in prompt.text
    assert "问题" not in prompt.text


@pytest.mark.parametrize("name", ["gaokao2023en", "collegemath"])
def test_examples_of_a_task_with_a_test_split_alone_are_other_test_questions(
    folder: Path, name: str
):
    task = load(f"{name}:iclip:2", data_dir=folder)
    documents = task.documents("test")
    assert not task.documents("train")
    (prompt,) = task.prompts(documents[:1])
    shown = [document for document in documents if document.data["question"] in prompt.text]
    assert documents[0] in shown
    assert len(shown) == 3


def test_cmath_can_be_trained_on(folder: Path):
    task = load("cmath", data_dir=folder)
    assert (len(task.documents("train")), len(task.documents("validation"))) == (8, 2)
    (example,) = task.examples(task.documents("train")[:1])
    assert example.context.startswith("问题：小明有")


def test_a_task_that_is_on_no_hub_says_where_its_rows_come_from(tmp_path: Path):
    with pytest.raises(TaskError, match="not on the hub") as caught:
        load("multi_logieval", data_dir=tmp_path)
    assert "Mihir3009/Multi-LogiEval" in str(caught.value.hint)
    assert "multi_logieval/default/test.jsonl" in str(caught.value.hint)
