"""Encoders and bodies come in through a door with the guards of the causal models' one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModel, BertConfig, BertModel

from potentia.engine import load_text_encoder, load_tokenizer
from potentia.errors import InputError, ModelError


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    config = BertConfig(
        vocab_size=30,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
    )
    torch.manual_seed(0)
    BertModel(config).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_a_sound_encoder_is_loaded(encoder: Path) -> None:
    model = load_text_encoder(AutoModel, str(encoder), dtype=torch.float32)
    assert sum(parameter.numel() for parameter in model.parameters()) > 1000


def test_pickled_weights_are_refused_without_consent(
    encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_text_encoder(AutoModel, str(encoder))
    (encoder / "model.safetensors").unlink()
    torch.save(model.state_dict(), encoder / "pytorch_model.bin")
    for load in (
        lambda: load_text_encoder(AutoModel, str(encoder)),
        lambda: load_tokenizer(str(encoder)),
    ):
        with pytest.raises(ModelError, match="is a pickle, which can run code"):
            load()


def test_a_config_that_nothing_could_be_built_of_is_refused(encoder: Path) -> None:
    file = encoder / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps(config | {"hidden_size": 10**12}))
    with pytest.raises(InputError, match="hidden_size is"):
        load_text_encoder(AutoModel, str(encoder))


def test_weights_that_are_cut_or_no_numbers_are_told_with_the_name(encoder: Path) -> None:
    model = load_text_encoder(AutoModel, str(encoder))
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    model.save_pretrained(encoder)
    with pytest.raises(ModelError, match="not finite"):
        load_text_encoder(AutoModel, str(encoder))
    weights = encoder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:200])
    with pytest.raises(ModelError, match="model"):
        load_text_encoder(AutoModel, str(encoder))
