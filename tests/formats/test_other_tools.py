"""Results of lighteval and EuroEval, as their newer and older versions write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from potentia.errors import DataError
from potentia.evidence import read


def lighteval(folder: Path, model: str, right: list[int]) -> None:
    """What `lighteval accelerate … --save-details` writes: results and details in two trees."""
    stamp = "2026-03-01T10-00-00.000000"
    task = "gsm8k|5"
    config = {
        "name": "gsm8k",
        "metrics": [{"metric_name": "extractive_match", "higher_is_better": True}],
        "effective_num_docs": len(right),
    }
    scores: dict[str, Any] = {
        task: {"extractive_match": sum(right) / len(right), "extractive_match_stderr": 0.2},
        "lighteval|mmlu:anatomy|0": {"acc": 0.25, "acc_stderr": 0.01},
        "lighteval|mmlu:virology|0": {"acc": 0.35, "acc_stderr": 0.01},
        "lighteval|mmlu:_average|0": {"acc": 0.30, "acc_stderr": 0.01},
        "all": {"acc": 0.3},
    }
    body = {
        "config_general": {"model_config": {"model_name": model}},
        "results": scores,
        "config_tasks": {task: config},
    }
    model_folder = folder / "results" / model
    model_folder.mkdir(parents=True)
    (model_folder / f"results_{stamp}.json").write_text(json.dumps(body))
    inside = folder / "details" / model / stamp
    inside.mkdir(parents=True)
    rows = [
        {
            "doc": {"query": f"q{k}", "choices": ["x"], "gold_index": 0},
            "metric": {"extractive_match": float(v)},
        }
        for k, v in enumerate(right)
    ]
    pq.write_table(pa.Table.from_pylist(rows), inside / f"details_{task}_{stamp}.parquet")


def test_lighteval_has_examples_sizes_groups_and_items(tmp_path: Path) -> None:
    lighteval(tmp_path, "org/a", [1, 0, 1, 1])
    lighteval(tmp_path, "org/b", [0, 0, 1, 1])
    content = read(tmp_path)
    assert {protocol: matrix.tasks for protocol, matrix in content.scores.items()} == {
        "few_shot:5": ("gsm8k",),
        "direct": ("mmlu",),
    }
    matrix = content.scores["few_shot:5"]
    assert matrix.models == ("org/a", "org/b")
    assert matrix.n.tolist() == [[4], [4]]
    items = content.outcomes["few_shot:5"]["gsm8k"]
    assert items["org/a"].keys() == items["org/b"].keys()
    assert read(tmp_path, subtasks=True).scores["direct"].tasks == ("mmlu_anatomy", "mmlu_virology")


def test_one_task_with_two_numbers_of_examples(tmp_path: Path) -> None:
    scores = {
        "leaderboard|arc:challenge|25": {"acc": 0.5},
        "leaderboard|arc:challenge|0": {"acc": 0.4},
    }
    (tmp_path / "r.json").write_text(
        json.dumps({"config_general": {"model_name": "m"}, "results": scores})
    )
    result = read(tmp_path / "r.json").scores
    assert {p: (m.tasks, m.values.item()) for p, m in result.items()} == {
        "few_shot:25": (("arc_challenge",), 0.5),
        "direct": (("arc_challenge",), 0.4),
    }


def old(model: str, dataset: str, value: float) -> dict[str, Any]:
    total = {
        "test_mcc": value,
        "test_mcc_se": 1.96,
        "test_macro_f1": value + 1,
        "test_macro_f1_se": 1.0,
    }
    return {
        "dataset": dataset,
        "model": model,
        "few_shot": True,
        "results": {"raw": [], "total": total},
    }


def new(model: str, dataset: str, runs: list[float]) -> dict[str, Any]:
    mean = sum(runs) / len(runs)
    return {
        "schema_version": "0.3.0",
        "model_info": {"name": model, "id": model, "additional_details": {}},
        "eval_library": {
            "name": "euroeval",
            "version": "17.0.0",
            "additional_details": {
                "dataset": dataset,
                "few_shot": "true",
                "raw_results": json.dumps([{"test_mcc": run} for run in runs]),
            },
        },
        "evaluation_results": [
            {
                "evaluation_name": "test_mcc",
                "source_data": {"dataset_name": dataset},
                "metric_config": {"lower_is_better": False, "min_score": 0, "max_score": 100},
                "score_details": {"score": 100 * mean, "details": {}},
            }
        ],
    }


def test_euroeval_before_and_since_it_writes_every_eval_ever(tmp_path: Path) -> None:
    (tmp_path / "old.jsonl").write_text(
        "".join(json.dumps(old(m, "scala-da", v)) + "\n" for m, v in (("a", 40), ("b", 30)))
    )
    runs = {"a": [0.39, 0.40, 0.41], "b": [0.28, 0.30, 0.32]}
    (tmp_path / "new.jsonl").write_text(
        "".join(json.dumps(new(m, "scala-da", r)) + "\n" for m, r in runs.items())
    )
    before, since = (
        read(tmp_path / name).scores["few_shot"] for name in ("old.jsonl", "new.jsonl")
    )
    assert before.tasks == since.tasks == ("scala-da",)
    for matrix in (before, since):
        assert matrix.values[:, 0].tolist() == pytest.approx([0.4, 0.3])
    assert before.stderr[:, 0].tolist() == pytest.approx([0.01, 0.01])
    assert since.stderr[:, 0].tolist() == pytest.approx([0.01 / 3**0.5, 0.02 / 3**0.5])
    assert since.metrics[0].name == "mcc"


def test_a_broken_record_of_euroeval_is_named(tmp_path: Path) -> None:
    record = new("a", "scala-da", [0.4, 0.5])
    del record["evaluation_results"][0]["score_details"]
    (tmp_path / "x.jsonl").write_text(json.dumps(record) + "\n")
    with pytest.raises(DataError, match="a record of EuroEval lacks 'score_details'"):
        read(tmp_path / "x.jsonl")
