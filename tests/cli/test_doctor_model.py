"""``potentia doctor``: a model beside transformers and PEFT."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import potentia.cli.catalog  # noqa: F401
from potentia.cli.app import app
from potentia.engine.layers import adapter_methods
from potentia.engine.models.loading import pick_device
from potentia.errors import InputError
from scoring_models import tiny


@pytest.fixture
def folder(tmp_path: Path) -> str:
    tiny_model = tiny("llama")
    for part in (tiny_model.model, tiny_model.tokenizer):
        part.save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")


def test_a_sound_model_is_right_in_both_dtypes(folder: str) -> None:
    for dtype in ("float32", "bfloat16"):
        options = ["--dtype", dtype, "--device", "cpu", "--json"]
        done = CliRunner().invoke(app, ["doctor", folder, *options])
        assert done.exit_code == 0, done.output
        printed = json.loads(done.stdout)
        assert printed["right"]
        assert len(printed["compared"]) >= 6
        assert printed["record"]["training"]["form"] == "padded"
        assert printed["record"]["load"] == {"weights": "in_place"}


def test_a_wrong_adapter_is_refused(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    original = adapter_methods.add_adapter_share
    monkeypatch.setattr(
        adapter_methods,
        "add_adapter_share",
        lambda ctx, x, *rest, into: original(ctx, x * 1.02, *rest, into=into),
    )
    done = CliRunner().invoke(app, ["doctor", folder, "--device", "cpu"])
    assert done.exit_code != 0


def test_a_folder_that_is_not_there_is_bad_input() -> None:
    done = CliRunner().invoke(app, ["doctor", "./no-such-model"])
    assert "./no-such-model: no such folder" in str(done.exception)


def test_an_apple_gpu_is_told_as_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """No run takes one by itself, so models run on the processor there; here there is none to take."""
    with pytest.raises(InputError, match="no Apple GPU"):
        pick_device("mps")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    printed = json.loads(CliRunner().invoke(app, ["doctor", "--json"]).stdout)
    assert printed["device"]["kind"] == pick_device("auto").type == "cpu"
    assert "--device mps" in printed["device"]["apple_gpu"]
    assert pick_device("mps").type == "mps"
