from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

from potentia.engine import load
from potentia.engine.models import identity
from potentia.engine.models.identity import fingerprint
from potentia.errors import ModelError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "tokenizer.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"weights")
    return model


@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "generation_config.json",  # it names the tokens that end a text
        "tokenizer.json",
        "spiece.model",
        "model.safetensors",
        "model.safetensors.index.json",
        "chat_template.jinja",
    ],
)
def test_any_file_that_can_change_a_score_changes_the_name(folder: Path, name: str):
    before = fingerprint(str(folder))
    (folder / name).write_bytes(b"other")
    assert fingerprint(str(folder)) != before


def test_code_counts_where_the_model_brings_its_own(folder: Path):
    before = fingerprint(str(folder))
    (folder / "modeling.py").write_text("a script that nobody loads")
    assert fingerprint(str(folder)) == before
    (folder / "config.json").write_text(
        json.dumps({"auto_map": {"AutoModelForCausalLM": "modeling.Model"}})
    )
    declared = fingerprint(str(folder))
    (folder / "modeling.py").write_text("another network")
    assert fingerprint(str(folder)) != declared


def test_every_tokenizer_file_of_a_causal_architecture_is_on_the_list():
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

    files: set[str] = set()
    for name in {
        TOKENIZER_MAPPING_NAMES.get(kind) for kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    } - {None}:
        try:
            files |= set(getattr(transformers, name).vocab_files_names.values())
        except (AttributeError, ImportError):  # a tokenizer whose own library is not installed
            continue
    assert len(files) > 5
    assert [
        name
        for name in files
        if not any(fnmatch(name, pattern) for pattern in identity.SETTING_FILES)
    ] == []


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
    assert not any((tmp_path / "cache").rglob("*")), "these files changed a moment ago"
    monkeypatch.setattr(identity, "SETTLED", 0)
    before = fingerprint(str(folder))
    assert any((tmp_path / "cache").rglob("*"))
    assert fingerprint(str(folder)) == before
    (folder / "model.safetensors").write_bytes(b"WEIGHTS")
    assert fingerprint(str(folder)) != before


def test_a_model_copied_over_another_is_the_other_model(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # as `cp -a other/. model/` does: same path, inode, size and modification time, another content
    monkeypatch.setenv("POTENTIA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(identity, "REMEMBER_ABOVE", 0)
    monkeypatch.setattr(identity, "SETTLED", 0)
    other_folder = tmp_path / "other"
    shutil.copytree(folder, other_folder)
    (other_folder / "model.safetensors").write_bytes(b"WEIGHTS")
    for model in (folder, other_folder):
        for file in model.iterdir():
            os.utime(file, ns=(10**18, 10**18))
    before, expected = fingerprint(str(folder)), fingerprint(str(other_folder))
    subprocess.run(["cp", "-a", f"{other_folder}/.", str(folder)], check=True)
    state = (folder / "model.safetensors").stat()
    assert state.st_mtime_ns == 10**18
    assert state.st_size == len(b"weights")
    assert fingerprint(str(folder)) == expected != before


def test_an_adapter_is_named_with_the_model_it_is_put_on(folder: Path, tmp_path: Path):
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_model.safetensors").write_bytes(b"adapter")
    (adapter / "adapter_config.json").write_text(
        json.dumps({"base_model_name_or_path": str(folder)})
    )
    before = fingerprint(str(adapter))
    (folder / "model.safetensors").write_bytes(b"other")
    assert fingerprint(str(adapter)) != before


def test_a_folder_without_weights_says_so(folder: Path):
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="no weights"):
        fingerprint(str(folder))


def test_the_loaded_model_has_the_name_of_its_files(tmp_path: Path):
    from scoring_models import tiny

    tiny_model = tiny("llama")
    for part in (tiny_model.model, tiny_model.tokenizer):
        part.save_pretrained(tmp_path)
    assert load(str(tmp_path), device="cpu").fingerprint == fingerprint(str(tmp_path))
    again, other_model = tiny("llama"), tiny("llama")
    other_model.model.generation_config.eos_token_id = 5
    assert tiny_model.fingerprint == again.fingerprint
    assert (
        identity.memory_fingerprint(other_model.model, other_model.tokenizer)
        != tiny_model.fingerprint
    )


def test_naming_a_model_loads_no_torch(folder: Path):
    code = (
        "import sys; from potentia.engine.models.identity import fingerprint; fingerprint(sys.argv[1]);"
        "sys.exit(1 if {'torch', 'transformers'} & set(sys.modules) else 0)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(folder)], check=False).returncode == 0
