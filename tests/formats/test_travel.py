"""Results that travel: Every Eval Ever and the Hub's form validate against their schemas and come back equal."""

from __future__ import annotations

import json
import math
from pathlib import Path

import jsonschema
import pytest
import yaml

from made_store import make_store
from potentia.evidence import read
from potentia.formats import write_scores
from potentia.values.metric import Metric
from potentia.values.scores import ScoreMatrix


@pytest.fixture(scope="session")
def formats(shared_data: Path) -> Path:
    """The schemas, and files that others wrote."""
    folder = shared_data.parent / "formats"
    if not folder.is_dir():
        pytest.skip("no ../shared/formats beside the checkout")
    return folder


def schema(folder: Path, name: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(
        json.loads((folder / f"every_eval_ever.{name}.schema.json").read_text())
    )


def test_every_eval_ever_validates_and_comes_back_equal(tmp_path: Path, formats: Path) -> None:
    evidence = read(make_store(tmp_path / "s.db"))
    files = write_scores(
        evidence.scores, tmp_path / "out", "every-eval-ever", items=evidence.items_of
    )
    aggregate, instance = schema(formats, "eval"), schema(formats, "instance_level_eval")
    lines = 0
    for file in files:
        if file.suffix == ".json":
            aggregate.validate(json.loads(file.read_text()))
        else:
            for line in file.read_text().splitlines():
                instance.validate(json.loads(line))
                lines += 1
    assert lines > 0
    again = read(tmp_path / "out")
    for protocol, matrix in evidence.scores.items():
        assert dict(_scores(again.scores[protocol])) == dict(_scores(matrix))
    assert again.outcomes["direct"].keys() == evidence.outcomes["direct"].keys(), (
        "items come back for paired tests"
    )


def _scores(matrix: ScoreMatrix) -> list[tuple[tuple[str, str], object]]:
    return [((model, task), score) for model, task, score in matrix.scores()]


def test_a_file_that_others_wrote(formats: Path, tmp_path: Path) -> None:
    for name in ("demo", "example"):
        content = json.loads((formats / f"every_eval_ever.{name}.json").read_text())
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
        result = read(tmp_path / f"{name}.json").scores["direct"]
        assert result.models == (content["model_info"]["id"],)
        assert len(result.tasks) == len(content["evaluation_results"])
    demo = read(tmp_path / "demo.json").scores["direct"]
    assert (demo.values[0, 0], demo.metrics[0].name, demo.metrics[0].scale) == (
        0.75,
        "accuracy",
        "share",
    )


def test_the_hubs_form_names_datasets_of_the_hub(tmp_path: Path) -> None:
    from huggingface_hub import parse_eval_result_entries

    matrix = ScoreMatrix.build(
        ["o/m"],
        ["arc_easy", "mine"],
        [[0.5, 0.25]],
        stderr=[[0.01, math.nan]],
        metrics=["acc", "acc"],
        protocol="train_before_test",
    )
    (file,) = write_scores(matrix, tmp_path, "hub")
    assert file.parent.name == ".eval_results"
    (entry,) = parse_eval_result_entries(yaml.safe_load(file.read_text()))
    assert (entry.dataset_id, entry.task_id, entry.value) == ("allenai/ai2_arc", "arc_easy", 0.5)
    assert "train_before_test" in str(entry.notes)
    assert "0.0100" in str(entry.notes)


def lm_eval(folder: Path, model: str, stamp: str, right: list[int], date: float = 1.0) -> None:
    model_folder = folder / model
    model_folder.mkdir(parents=True, exist_ok=True)
    body = {
        "results": {
            "t": {"alias": "t", "acc,none": sum(right) / len(right), "acc_stderr,none": 0.1}
        },
        "configs": {"t": {"output_type": "multiple_choice"}},
        "n-samples": {"t": {"original": len(right), "effective": len(right)}},
        "model_name": model,
        "date": date,
    }
    (model_folder / f"results_{stamp}.json").write_text(json.dumps(body))
    samples = [
        {"doc_id": k, "doc": {"q": k}, "doc_hash": f"{k:064x}", "filter": "none", "acc": float(v)}
        for k, v in enumerate(right)
    ]
    (model_folder / f"samples_t_{stamp}.jsonl").write_text(
        "".join(json.dumps(s) + "\n" for s in samples)
    )


def test_samples_of_lm_eval_are_items_and_a_later_run_counts(tmp_path: Path) -> None:
    lm_eval(tmp_path, "a", "2026-01-01T00-00-00.000000", [0, 0, 0, 1])
    lm_eval(tmp_path, "a", "2026-02-01T00-00-00.000000", [1, 0, 1, 1])
    lm_eval(tmp_path, "b", "2026-01-01T00-00-00.000000", [0, 0, 1, 1])
    content = read(tmp_path)
    assert content.scores["direct"].to_frame().to_dict() == {"t": {"a": 0.75, "b": 0.5}}
    assert any("a: 1 score(s) were measured more than once" in note for note in content.notes)
    items = content.outcomes["direct"]["t"]
    assert items["a"].keys() == items["b"].keys()
    assert sorted(items["a"].values()) == [0, 1, 1, 1]
    assert content.scores["direct"].metrics == (Metric.of("acc"),)


def test_results_that_others_wrote_have_items(formats: Path) -> None:
    content = read(formats / "lm_eval")
    assert [
        len(documents) for by in content.outcomes["direct"].values() for documents in by.values()
    ] == [10]
    logs = read(formats / "inspect")
    assert {task: len(by) for task, by in logs.outcomes["direct"].items()} == {
        "arc_easy": 1,
        "pubmedqa": 1,
    }
