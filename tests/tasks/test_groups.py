"""A group is one task: the union of its subtasks' documents, and lm-eval's weighted mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from potentia import tasks
from potentia.errors import TaskError
from potentia.tasks import read_stock_task

from .conftest import answers, fake_lm


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MMLU's layout with made-up questions: another number of them in each subject."""
    import pandas as pd

    folder = tmp_path_factory.mktemp("data")
    for position, config in enumerate(read_stock_task("mmlu_stem").subtasks):
        below = folder / "cais--mmlu" / config["dataset_name"]
        below.mkdir(parents=True)
        for split, n in (("test", 5 + position), ("dev", 5)):
            rows = [
                {
                    "question": f"{split} {position} {i}?",
                    "choices": [f"{c}{i}" for c in "wxyz"],
                    "answer": i % 4,
                }
                for i in range(n)
            ]
            pd.DataFrame(rows).to_parquet(below / f"{split}.parquet")
    return folder


def test_a_group_scores_as_lm_eval_s(data: Path) -> None:
    from lm_eval.api.group import Group
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.config.group import AggMetricConfig
    from lm_eval.evaluator import evaluate

    group = Group(
        "mmlu_stem", aggregate_metric_list=[AggMetricConfig(metric="acc", weight_by_size=True)]
    )
    members: dict[str, Any] = {}
    for config in read_stock_task("mmlu_stem").subtasks:
        config = {k: v for k, v in config.items() if k != "tag"}
        files = {
            s: str(data / "cais--mmlu" / config["dataset_name"] / f"{s}.parquet")
            for s in ("test", "dev")
        }
        config.update(
            dataset_path="parquet", dataset_name=None, dataset_kwargs={"data_files": files}
        )
        members[config["task"]] = ConfigurableTask(config={**config, "num_fewshot": 0})
        group.add(members[config["task"]])
    theirs = evaluate(
        lm=fake_lm({}),
        task_dict={"tasks": members, "groups": {"mmlu_stem": group}},
        bootstrap_iters=10,
    )["results"]["mmlu_stem"]

    task = tasks.load("mmlu_stem", data_dir=data)
    assert set(task.subtasks) == set(members)
    documents = task.documents("test")
    assert (
        len({document.id for document in documents})
        == len(documents)
        == sum(range(5, 5 + len(members)))
    )
    prompts = task.prompts(documents)
    scores = task.score(task.grade(prompts, answers(prompts, {})))
    assert task.metric == "acc"
    assert scores["acc"].value == pytest.approx(theirs["acc,none"], abs=1e-15)
    assert scores["acc"].stderr == pytest.approx(theirs["acc_stderr,none"], abs=1e-15)
    assert scores["acc"].n == len(documents)
    assert 0 < scores["brier_score"].value < 2


def test_the_cap_is_on_the_whole_group(data: Path) -> None:
    task = tasks.load("mmlu_stem", data_dir=data, caps=tasks.Caps(test=40))
    documents = task.documents("test")
    assert len(documents) == task.split_plan.test.used == 40 < task.split_plan.test.available
    assert len({document.id for document in documents}) == 40
    assert len(task.documents("train")) == len(task.documents("validation")) == 0
    assert not task.split_plan.train.origin_kinds


def test_shots_come_from_the_split_set_aside(data: Path) -> None:
    task = tasks.load("mmlu_stem", data_dir=data)
    document = task.documents("test")[-1]
    prompt = task.prompts([document], shots=5)[0]
    place = document["question"].split()[1]
    asked = [line for line in prompt.text.splitlines() if line.endswith("?")]
    assert asked == [f"dev {place} {i}?" for i in range(5)] + [document["question"]]
    assert prompt.text.startswith(
        "The following are multiple choice questions (with answers) about"
    )


def test_a_group_of_unlike_tasks_is_refused(shared_data: Path, tmp_path: Path) -> None:
    file = tmp_path / "mixed.yaml"
    file.write_text("group: mixed\ntask: [rte, gsm8k]\n")
    with pytest.raises(TaskError, match="mixes choice and generation"):
        tasks.load(str(file), data_dir=shared_data / "benchmarks")


def test_a_user_s_own_group_and_task_file(shared_data: Path, tmp_path: Path) -> None:
    file = tmp_path / "pair.yaml"
    file.write_text(
        "group: pair\ntask: [rte, sst2]\naggregate_metric_list: {metric: acc, weight_by_size: false}\n"
    )
    task = tasks.load(str(file), data_dir=shared_data / "benchmarks")
    assert task.subtasks == ("rte", "sst2")
    documents = [*task.documents("test")[:40], *task.documents("test")[-10:]]
    prompts = task.prompts(documents)
    outcomes = task.grade(prompts, answers(prompts, {}))
    scores = task.score(outcomes)
    each = [
        sum(o.detail["metrics"]["acc"] for o in part) / len(part)
        for part in (outcomes[:40], outcomes[40:])
    ]
    assert scores["acc"].value == pytest.approx(sum(each) / 2)

    own = tmp_path / "own.yaml"
    own.write_text(
        "task: own_rte\ndataset_path: nyu-mll/glue\ndataset_name: rte\noutput_type: multiple_choice\n"
        "training_split: train\nvalidation_split: validation\n"
        'doc_to_text: "{{sentence1}} => {{sentence2}}"\ndoc_to_target: label\ndoc_to_choice: ["follows", "does not"]\n'
        "metric_list:\n  - metric: acc\n"
    )
    task = tasks.load(str(own), data_dir=shared_data / "benchmarks")
    assert task.name == "own_rte"
    assert task.prompts(task.documents("test")[:1])[0].choices == ("follows", "does not")
