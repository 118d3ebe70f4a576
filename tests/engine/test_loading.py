"""A model whose files do not hold its weights is not scored."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from potentia import files
from potentia.engine import load
from potentia.errors import ModelError
from potentia.values.engine_records import LoadedWeights, LoadRecord
from scoring_models import tiny

Tensors = dict[str, torch.Tensor]


def spoiled(folder: Path, change: Callable[[Tensors], Tensors], kind: str = "llama") -> str:
    tiny_model = tiny(kind)
    for part in (tiny_model.model, tiny_model.tokenizer):
        part.save_pretrained(folder)
    file = folder / "model.safetensors"
    save_file(change(load_file(file)), file, metadata={"format": "pt"})
    return str(folder)


def without_second_layer(tensors: Tensors) -> Tensors:
    return {name: tensor for name, tensor in tensors.items() if ".layers.1." not in name}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda t: {f"_orig_mod.{n}": v for n, v in t.items()},
            "prefix _orig_mod. (saved through torch.compile)",
        ),
        (lambda t: {f"transformer.{n}": v for n, v in t.items()}, "prefix transformer."),
        (without_second_layer, "missing (model.layers.1."),
        (
            lambda t: {**t, "model.layers.7.mlp.up_proj.weight": torch.ones(2, 2)},
            "unexpected (model.layers.7",
        ),
        (lambda t: {**t, "model.norm.weight": torch.ones(3)}, "mismatched (model.norm.weight"),
    ],
)
def test_weights_that_do_not_fit_are_named(
    tmp_path: Path, change: Callable[[Tensors], Tensors], said: str
) -> None:
    with pytest.raises(ModelError) as refused:
        load(spoiled(tmp_path, change), device="cpu")
    assert said in refused.value.message
    assert "--allow missing-weights" in (refused.value.hint or "")


def test_what_is_derived_is_not_missed(tmp_path: Path) -> None:
    folder = spoiled(
        tmp_path, lambda t: {**t, "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    )
    assert load(folder, device="cpu").record.load == LoadRecord(LoadedWeights.IN_PLACE)


def test_missing_weights_that_were_allowed_are_recorded_and_alike_every_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = spoiled(tmp_path, without_second_layer)
    monkeypatch.setenv(files.MISSING_WEIGHTS, "1")
    first = load(folder, device="cpu")
    torch.manual_seed(123)
    second = load(folder, device="cpu")
    assert first.record.load.misfits["missing"] == 9
    for name, weight in first.model.state_dict().items():
        assert torch.equal(weight, second.model.state_dict()[name]), name


@pytest.mark.parametrize("size", [4, 40, 5_000])
def test_cut_weights_are_told_in_words(tmp_path: Path, size: int) -> None:
    spoiled(tmp_path, dict)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:size])
    with pytest.raises(ModelError, match="cannot load"):
        load(str(tmp_path), device="cpu")


def test_a_config_of_other_types_is_told_in_words(tmp_path: Path) -> None:
    spoiled(tmp_path, dict)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "hidden_size": "32"}))
    with pytest.raises(ModelError, match="cannot load"):
        load(str(tmp_path), device="cpu")
