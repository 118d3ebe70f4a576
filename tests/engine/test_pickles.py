"""Weights are data unless pickles were allowed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from potentia import files
from potentia.engine import load
from potentia.engine.models.identity import fingerprint
from potentia.errors import ModelError
from scoring_models import tiny


class Mark:
    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self):
        return (Path.touch, (self.place,))


def test_a_pickle_is_neither_named_nor_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tiny_model = tiny("llama")
    for part in (tiny_model.model, tiny_model.tokenizer):
        part.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save({"evil": Mark(tmp_path / "mark")}, tmp_path / "pytorch_model.bin")
    for ask in (fingerprint, load):
        with pytest.raises(ModelError) as refused:
            ask(str(tmp_path))
        assert refused.value.hint
    assert "--allow pickle" in fingerprint_hint(tmp_path)
    torch.save(tiny_model.model.state_dict(), tmp_path / "pytorch_model.bin")
    monkeypatch.setenv(files.PICKLE, "1")
    assert load(str(tmp_path), device="cpu").fingerprint == fingerprint(str(tmp_path))
    assert not (tmp_path / "mark").exists()


def fingerprint_hint(folder: Path) -> str:
    with pytest.raises(ModelError) as refused:
        fingerprint(str(folder))
    return refused.value.hint or ""
