"""Scores from elsewhere: their uncertainty is kept, the Hub's results are read as written, and both are history."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from potentia.errors import DataError
from potentia.evidence import read
from potentia.formats import write_scores
from potentia.values.protocol import Protocol
from potentia.values.scores import ScoreMatrix


def record(model: str, scores: dict[str, tuple[float, dict[str, Any]]]) -> dict[str, Any]:
    results = []
    for task, (value, uncertainty) in scores.items():
        results.append(
            {
                "evaluation_name": task,
                "metric_config": {
                    "metric_id": "acc",
                    "lower_is_better": False,
                    "min_score": 0.0,
                    "max_score": 1.0,
                },
                "score_details": {"score": value, "uncertainty": uncertainty},
            }
        )
    return {
        "schema_version": "0.3.0",
        "evaluation_id": model,
        "model_info": {"id": model, "name": model},
        "evaluation_results": results,
    }


def stderr_of(tmp_path: Path, uncertainty: dict[str, Any]) -> float:
    file = tmp_path / "record.json"
    file.write_text(json.dumps(record("m", {"arc_easy": (0.6, uncertainty)})))
    return float(read(file).scores["direct"].stderr[0, 0])


@pytest.mark.parametrize(
    ("uncertainty", "expected"),
    [
        ({"standard_error": {"value": 0.02}}, 0.02),
        (
            {"confidence_interval": {"lower": 0.5, "upper": 0.7, "confidence_level": 0.95}},
            0.0510213,
        ),
        ({"confidence_interval": {"lower": 0.5, "upper": 0.7}}, 0.0510213),
        ({"confidence_interval": {"lower": 0.5, "upper": 0.7, "confidence_level": 0.9}}, 0.0607957),
        ({"standard_deviation": 0.49, "num_samples": 400}, 0.0245),
        (
            {
                "standard_error": {"value": 0.02},
                "confidence_interval": {"lower": 0.1, "upper": 0.9},
                "standard_deviation": 0.49,
                "num_samples": 400,
            },
            0.02,
        ),
    ],
)
def test_every_form_of_uncertainty_is_read(
    tmp_path: Path, uncertainty: dict[str, Any], expected: float
) -> None:
    assert stderr_of(tmp_path, uncertainty) == pytest.approx(expected, abs=1e-6)


def test_what_says_no_error_has_none(tmp_path: Path) -> None:
    assert math.isnan(stderr_of(tmp_path, {}))
    assert math.isnan(stderr_of(tmp_path, {"standard_deviation": 0.49}))


@pytest.mark.parametrize(
    "interval",
    [
        {"lower": 0.5, "upper": 0.7, "confidence_level": 95},
        {"lower": 0.5, "upper": 0.7, "confidence_level": "high"},
        {"lower": 0.7, "upper": 0.5},
    ],
)
def test_an_interval_that_makes_no_sense_is_refused(
    tmp_path: Path, interval: dict[str, Any]
) -> None:
    with pytest.raises(DataError, match="confidence"):
        stderr_of(tmp_path, {"confidence_interval": interval})


HUB = """
- dataset:
    id: Idavidrein/gpqa
    task_id: gpqa_diamond
  value: 0.412
- dataset: {id: cais/hle, task_id: hle, revision: 5503434}
  value: 20.90
  verifyToken: abc
  date: "2025-01-01"
  source: {url: "https://huggingface.co/x", name: logs}
- dataset: {id: cais/hle, task_id: hle}
  value: 25.10
  date: "2026-01-01"
  notes: tools
"""


def write_hub(folder: Path, text: str) -> Path:
    file = folder / ".eval_results" / "results.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    return file


def test_the_hubs_results_are_read_as_they_are_written(tmp_path: Path) -> None:
    write_hub(tmp_path / "org__one", HUB)
    cached = tmp_path / "models--org--two" / "snapshots" / "0123456789abcdef"
    write_hub(cached, HUB.replace("0.412", "0.3"))
    evidence = read(tmp_path)
    matrix = evidence.scores["direct"]
    assert set(matrix.models) == {"org/one", "org/two"}
    assert set(matrix.tasks) == {"gpqa_diamond", "hle"}
    table = matrix.to_frame()
    assert table.loc["org/one", "gpqa_diamond"] == 0.412
    assert table.loc["org/two", "gpqa_diamond"] == 0.3
    assert table.loc["org/one", "hle"] == 20.9, "the verified one counts"
    scales = dict(zip(matrix.tasks, [metric.scale for metric in matrix.metrics], strict=True))
    assert scales == {"gpqa_diamond": "share", "hle": "percent"}
    assert any("left out" in note for note in evidence.notes)
    assert any("higher counts as better" in note for note in evidence.notes)
    (single,) = read(tmp_path / "org__one" / ".eval_results" / "results.yaml").models
    assert single == "org/one"


def test_a_text_is_better_where_lower_and_its_scale_is_kept(tmp_path: Path) -> None:
    write_hub(
        tmp_path / "one",
        "- {dataset: {id: a/b, task_id: wikitext}, value: 12.3}\n"
        "- {dataset: {id: a/c, task_id: t}, value: 0.4}",
    )
    write_hub(tmp_path / "two", "- {dataset: {id: a/b, task_id: wikitext}, value: 0.9}")
    evidence = read(tmp_path)
    matrix = evidence.scores["direct"]
    metric = dict(zip(matrix.tasks, matrix.metrics, strict=True))["wikitext"]
    assert (metric.higher_is_better, metric.scale) == (False, "unbounded")
    assert set(matrix.models) == {"one", "two"}, "0.9 is no share among percentages"
    assert any("higher counts as better, lower on wikitext" in note for note in evidence.notes)


def test_a_share_among_percentages_is_left_out_and_said(tmp_path: Path) -> None:
    write_hub(tmp_path / "one", "- {dataset: {id: a/b, task_id: t}, value: 41.2}")
    write_hub(tmp_path / "two", "- {dataset: {id: a/b, task_id: t}, value: 0.3}")
    evidence = read(tmp_path)
    assert evidence.models == ["one"]
    assert any("may be a share" in note for note in evidence.notes)


@pytest.mark.parametrize(
    "text",
    [
        "- {dataset: {id: a/b, task_id: t}, value: {metric_value: }}",
        "- {dataset: {id: a/b, task_id: t}, value: high}",
        "- {dataset: {}, value: 1}",
        "models: [a]",
        "[]",
    ],
)
def test_what_is_no_result_is_refused(tmp_path: Path, text: str) -> None:
    file = write_hub(tmp_path / "one", text)
    with pytest.raises(DataError):
        read(file)


def test_what_potentia_writes_for_the_hub_comes_back(tmp_path: Path) -> None:
    matrix = ScoreMatrix.build(
        ["org/one", "org/two"],
        ["arc_easy", "boolq"],
        [[0.5, 0.6], [0.7, 0.8]],
        stderr=np.full((2, 2), 0.0123),
        metrics=["acc_norm", "acc"],
        protocol="train_before_test",
    )
    write_scores(matrix, tmp_path, "hub")
    back = read(tmp_path).scores["train_before_test"]
    assert (back.models, back.tasks) == (("org/one", "org/two"), ("arc_easy", "boolq"))
    np.testing.assert_allclose(back.values, matrix.values)
    np.testing.assert_allclose(back.stderr, matrix.stderr)
    assert [metric.name for metric in back.metrics] == ["acc_norm", "acc"]


@pytest.mark.parametrize(
    "protocol", ["adjust@100", "adjust@1000", "few_shot:5", "with hints; old", "our-way"]
)
def test_the_protocol_comes_back_from_the_hubs_notes(tmp_path: Path, protocol: str) -> None:
    matrices = {
        Protocol(name): ScoreMatrix.build(
            ["org/one"],
            ["arc_easy"],
            [[value]],
            stderr=[[0.0123]],
            metrics=["acc_norm"],
            protocol=name,
        )
        for name, value in ((protocol, 0.5), ("direct", 0.25))
    }
    write_scores(matrices, tmp_path, "hub")
    scores = read(tmp_path).scores
    assert set(scores) == {protocol, "direct"}
    assert scores["direct"].values.item() == 0.25
    back = scores[protocol]
    assert (back.values.item(), back.stderr.item()) == (0.5, 0.0123)
    assert back.metrics[0].name == "acc_norm"


@pytest.mark.parametrize(
    ("label", "protocol"),
    [
        ("train-before-test", "train_before_test"),
        ("5-shot", "few_shot:5"),
        ("adjust after 1,000 steps", "adjust@1000"),
        ("5-shot after 20 steps", "few_shot:5@20"),
    ],
)
def test_notes_that_have_the_protocols_label_are_read(
    tmp_path: Path, label: str, protocol: str
) -> None:
    notes = f"{label}, recipe 0123456789ab; acc ± 0.0100 (standard error); Potentia 0.3"
    entry = f'- {{dataset: {{id: a/b, task_id: t}}, value: 0.5, notes: "{notes}"}}'
    write_hub(tmp_path / "one", entry)
    (matrix,) = read(tmp_path).scores.values()
    assert matrix.protocol == protocol
    assert (matrix.stderr.item(), matrix.metrics[0].name) == (0.01, "acc")


def test_a_folder_of_records_is_history(tmp_path: Path) -> None:
    """The planner learns from others' scores of the study's models how far a task goes with the others."""
    from potentia.analysis.completion import complete_matrix

    stream = np.random.default_rng(0)
    ability = np.linspace(0.3, 0.9, 12)
    models = [f"org/m{row}" for row in range(12)]
    folder = tmp_path / "records"
    folder.mkdir()
    for model, level in zip(models, ability, strict=True):
        scores = {
            task: (
                float(np.clip(level + stream.normal(0, 0.02), 0.01, 0.99)),
                {"confidence_interval": {"lower": level - 0.04, "upper": level + 0.04}},
            )
            for task in ("arc_easy", "boolq", "piqa")
        }
        (folder / f"{model.replace('/', '_')}.json").write_text(json.dumps(record(model, scores)))
    history = read(folder)
    direct = history.scores["direct"]
    assert np.isfinite(direct.stderr).all()
    tuned = np.full((12, 2), np.nan)
    tuned[::2] = np.clip(ability[::2, None] + 0.05, 0, 1)
    measured = ScoreMatrix.build(
        models,
        ["mine", "ours"],
        tuned,
        stderr=np.where(np.isfinite(tuned), 0.02, np.nan),
        protocol="train_before_test",
        metrics=["acc", "acc"],
    )
    truth = ability[1::2, None] + 0.05
    with_history = complete_matrix(measured, direct=[direct])
    without = complete_matrix(measured)
    error_with = np.abs(with_history.mean[1::2] - truth).mean()
    error_without = np.abs(without.mean[1::2] - truth).mean()
    assert error_with < 0.5 * error_without
