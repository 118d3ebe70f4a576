"""Examples that share a passage: found in public tasks and own files, stored, and part of every error."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from potentia.errors import TaskError
from potentia.tasks import load
from potentia.tasks.clusters import find_cluster_column, label_cluster
from potentia.tasks.grading import aggregate_items
from potentia.values.clusters import Clusters, clustered_error


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
    assert load(str(path), cluster="chapter").cluster_columns == ("chapter",)
    with pytest.raises(TaskError, match="no column 'page'"):
        load(str(path), cluster="page")


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
