"""``potentia doctor``: a model beside transformers and PEFT."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import potentia.cli.catalog  # noqa: F401
from potentia.cli.app import app
from potentia.engine.layers import adapter_methods
from scoring_models import tiny


@pytest.fixture
def folder(tmp_path: Path) -> str:
    made = tiny("llama")
    for part in (made.model, made.tokenizer):
        part.save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")


def test_a_sound_model_is_right_in_both_dtypes(folder: str) -> None:
    for dtype in ("float32", "bfloat16"):
        options = ["--dtype", dtype, "--device", "cpu", "--json"]
        done = CliRunner().invoke(app, ["doctor", folder, *options])
        assert done.exit_code == 0, done.output
        said = json.loads(done.stdout)
        assert said["right"]
        assert len(said["compared"]) >= 6
        assert said["record"]["training"]["form"] == "padded"
        assert said["record"]["load"] == {"weights": "all in place"}


def test_a_wrong_adapter_is_refused(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own = adapter_methods.add_adapter_share
    monkeypatch.setattr(
        adapter_methods,
        "add_adapter_share",
        lambda ctx, x, *rest, into: own(ctx, x * 1.02, *rest, into=into),
    )
    done = CliRunner().invoke(app, ["doctor", folder, "--device", "cpu"])
    assert done.exit_code != 0


def test_a_folder_that_is_not_there_is_bad_input() -> None:
    done = CliRunner().invoke(app, ["doctor", "./no-such-model"])
    assert "there is no folder or file ./no-such-model" in str(done.exception)
