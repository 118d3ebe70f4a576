"""The pretraining team's story: a folder of checkpoints → a curve, also of a study that is not finished."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import potentia
from potentia.cli.app import app
from potentia.errors import InputError, StudyError
from potentia.evidence import Evidence
from potentia.show import make_report
from potentia.study import make_study
from potentia.zoo import models, write_model_folders
from potentia.zoo.world import vocabulary


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    new_folder = tmp_path_factory.mktemp("pretraining")
    kept_files = sorted(
        (m for m in models("checkpoint") if m.base_model == "aster-159k"), key=lambda m: m.steps
    )[-3:]
    kept_files = kept_files or sorted(models("checkpoint"), key=lambda m: m.steps)[-3:]
    folders = write_model_folders(new_folder / "zoo", [m.name for m in kept_files])
    run = new_folder / "my run"
    run.mkdir()
    for name, model in zip(
        ("checkpoint-390", "step1000-tokens2B", "iter_0002000"), kept_files, strict=True
    ):
        shutil.copytree(folders[model.name], run / name)
    (run / "checkpoint-390" / "trainer_state.json").write_text(
        json.dumps({"num_input_tokens_seen": 780_000})
    )
    (run / "logs").mkdir()
    (run / "step7").mkdir()  # nothing in it to load
    names = [word for word in vocabulary() if word.isalpha()]
    (new_folder / "texts.jsonl").write_text(
        "\n".join(
            json.dumps({"question": names[i], "choices": names[90:92], "answer": i % 2})
            for i in range(60)
        )
    )
    return new_folder


def test_a_folder_of_checkpoints_gives_a_curve(folder: Path) -> None:
    store = folder / "my store.db"
    arguments = [
        "run",
        "--checkpoints",
        folder / "my run",
        "--tasks",
        folder / "texts.jsonl",
        "--protocols",
        "direct",
    ]
    result = CliRunner().invoke(
        app, [str(a) for a in [*arguments, "--store", store, "--device", "cpu"]]
    )
    assert result.exit_code == 0, (result.output, result.exception)
    assert f"potentia analyze checkpoints '{store}'" in result.stdout.replace("\n", "")
    evidence = potentia.read(str(store))
    assert set(evidence.models) == {"my run@390", "my run@1000", "my run@2000"}
    tokens_by_name = {row.name: row.tokens for row in evidence.specs}
    assert tokens_by_name == {"my run@390": 780_000, "my run@1000": 2e9, "my run@2000": None}
    (run,) = potentia.find_training(evidence).runs
    assert run.steps.tolist() == [390, 1000, 2000]


def test_an_unfinished_study_of_checkpoints_is_reported() -> None:
    names = ["m@100", "m@200", "m@300", "m@400"]
    rng = np.random.default_rng(0)
    of = potentia.ScoreMatrix.build
    direct = of(
        names, ["a", "b"], rng.random((4, 2)), stderr=np.full((4, 2), 0.02), n=np.full((4, 2), 100)
    )
    for done, tasks in ((2, ["a", "b"]), (3, ["a"])):
        shape = (done, len(tasks))
        tuned = of(
            names[:done],
            tasks,
            rng.random(shape),
            stderr=np.full(shape, 0.02),
            n=np.full(shape, 100),
            protocol="train_before_test",
        )
        evidence = Evidence.of({"direct": direct, "train_before_test": tuned})
        report = make_report(evidence)
        assert report.training is not None
        assert report.training.finals == ("m@400",)
        with pytest.raises(InputError, match="no model 'm@500'"):
            evidence.narrowed(models=["m@500"])


def test_a_folder_without_checkpoints_is_refused(tmp_path: Path) -> None:
    (tmp_path / "step7").mkdir()
    for where, says in (
        (tmp_path, "have no config.json"),
        (tmp_path / "step7", "holds no checkpoint"),
        ("x", "there is no folder|neither a folder"),
    ):
        with pytest.raises(StudyError, match=says):
            make_study(
                {"models": [{"name": "m", "checkpoints": str(where)}], "tasks": ["arc_easy"]}
            )
