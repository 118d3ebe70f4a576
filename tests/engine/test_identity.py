from __future__ import annotations

from pathlib import Path

import pytest

from potentia.engine import identity
from potentia.engine.identity import fingerprint
from potentia.errors import ModelError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "tokenizer.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"weights")
    return model


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors", "chat_template.jinja"])
def test_any_file_that_can_change_a_score_changes_the_name(folder: Path, name: str):
    before = fingerprint(str(folder))
    (folder / name).write_bytes(b"other")
    assert fingerprint(str(folder)) != before


def test_where_the_folder_lies_does_not_matter(folder: Path):
    before = fingerprint(str(folder))
    moved = folder.rename(folder.with_name("moved"))
    (moved / "README.md").write_text("words")
    assert fingerprint(str(moved)) == before


def test_a_remembered_digest_is_forgotten_when_the_file_changes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("POTENTIA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(identity, "REMEMBER_ABOVE", 0)
    before = fingerprint(str(folder))
    assert any((tmp_path / "cache").rglob("*"))
    assert fingerprint(str(folder)) == before
    (folder / "model.safetensors").write_bytes(b"WEIGHTS")
    assert fingerprint(str(folder)) != before


def test_a_folder_without_weights_says_so(folder: Path):
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="no weights"):
        fingerprint(str(folder))
