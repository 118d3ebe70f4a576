"""An adapter from a stranger is data, whoever loads it: read with types and limits, and put on the base it names."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import potentia
from made_adapter import CONFIG, change_json, make_adapter, make_base
from potentia import engine
from potentia.engine.models import foreign_files
from potentia.engine.models.identity import fingerprint
from potentia.errors import InputError, ModelError, PotentiaError
from potentia.integrations import merge_adapter_into_base, predict

ROWS = [{"text": "a fine day"}, {"text": "a poor day"}]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters")
    make_base(folder / "base")
    make_base(folder / "other", seed=1)
    make_adapter(folder / "adapter", folder / "base")
    return folder


@pytest.fixture
def adapter(world: Path, tmp_path: Path) -> Path:
    shutil.copytree(world / "adapter", tmp_path / "adapter")
    return tmp_path / "adapter"


def test_an_adapter_predicts_and_merges(world: Path, adapter: Path, tmp_path: Path) -> None:
    answers = predict(adapter, ROWS, device="cpu")
    assert set(answers.predicted) <= {"good", "bad"}
    merge_adapter_into_base(adapter, tmp_path / "merged")
    assert (tmp_path / "merged" / "config.json").exists()


def test_a_file_with_another_name_for_the_text_is_told_how_to_map_it(
    adapter: Path, tmp_path: Path
) -> None:
    change_json(adapter / "potentia.json", asked={"config": CONFIG})  # its columns had these names
    (tmp_path / "new.csv").write_text("id,Body\n1,a fine day\n2,a poor day\n")
    with pytest.raises(PotentiaError, match="no row to predict") as raised:
        predict(adapter, tmp_path / "new.csv", device="cpu")
    hint = "its columns are id, Body; say which is the text: --map text=Body"
    assert raised.value.hint == hint
    assert predict(adapter, tmp_path / "new.csv", device="cpu", columns={"text": "Body"}).predicted


BAD_NOTES: dict[str, dict[str, Any]] = {
    "before": {"model": {"source": "x", "before": 5}},
    "asked": {"asked": [1]},
    "selection": {"selection": "chat"},
    "model": {"model": [1]},
    "quantise": {"model": {"source": "x", "quantise": "evil"}},
    "score": {"score": "high"},
    "base": {"base": 7},
    "fingerprint": {"base": {"fingerprint": 7}},
    "columns": {"asked": {"config": CONFIG, "columns": [1]}},
    "labels": {"asked": {"config": {**CONFIG, "labels": 3}}},
    "template": {"asked": {"config": {**CONFIG, "doc_to_text": {"function": "x"}}}},
    "choices": {"asked": {"config": {**CONFIG, "doc_to_choice": {"a": 1}}}},
}


@pytest.mark.parametrize("kind", sorted(BAD_NOTES))
def test_a_note_of_other_types_is_refused(adapter: Path, kind: str) -> None:
    change_json(adapter / "potentia.json", **BAD_NOTES[kind])
    with pytest.raises(PotentiaError):
        predict(adapter, ROWS, device="cpu")


@pytest.mark.parametrize("name", ["potentia.json", "adapter_config.json"])
@pytest.mark.parametrize("text", ["[" * 100_000, "", "[1]", "{", '{"a":' * 100_000, "\0", "null"])
def test_a_json_that_is_none_is_refused(world: Path, adapter: Path, name: str, text: str) -> None:
    (adapter / name).write_text(text)
    with pytest.raises(PotentiaError):
        predict(adapter, ROWS, device="cpu")
    with pytest.raises(PotentiaError):
        merge_adapter_into_base(adapter, adapter.parent / "merged")
    with pytest.raises(PotentiaError):
        engine.load(str(world / "base"), device="cpu", adapters=[str(adapter)])


BAD_CONFIGS: dict[str, dict[str, Any]] = {
    "no rank": {"r": None},
    "rank of text": {"r": "8"},
    "no kind": {"peft_type": None},
    "unknown kind": {"peft_type": "EVIL"},
    "huge rank": {"r": 10**9},
    "huge rank of some": {"rank_pattern": {"q_proj": 10**9}},
    "alpha": {"lora_alpha": None},
    "targets": {"target_modules": {"a": 1}},
    "many targets": {"target_modules": [f"q{n}" for n in range(10**5)]},
    "slow targets": {"target_modules": "(([a-z_.0-9]+)+)+!"},
    "slow exclusion": {"exclude_modules": "(([a-z_.0-9]+)+)+!"},
    "slow layers": {"layers_to_transform": [0], "layers_pattern": ["(([a-z_.0-9]+)+)+!"]},
    "slow ranks": {"rank_pattern": {"(([a-z_.0-9]+)+)+!": 4}},
    "slow alphas": {"alpha_pattern": {"(.*)*(.*)*(.*)*x!": 4.0}},
    "no pattern": {"target_modules": "("},
    "replication": {"layer_replication": [[0, 10**6]]},
    "imports": {"megatron_config": {"a": 1}, "megatron_core": "evil"},
    "tokenizer": {
        "peft_type": "PROMPT_TUNING",
        "task_type": "CAUSAL_LM",
        "num_virtual_tokens": 4,
        "prompt_tuning_init": "TEXT",
        "prompt_tuning_init_text": "x",
        "tokenizer_name_or_path": "evil",
        "tokenizer_kwargs": {"trust_remote_code": True},
    },
    "nested number": {"corda_config": {"x": 10**12}},
}


@pytest.mark.parametrize("kind", sorted(BAD_CONFIGS))
def test_a_config_that_does_harm_is_refused_at_every_door(
    world: Path, adapter: Path, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("potentia.limited.DEADLINE", 1.0)
    change_json(adapter / "adapter_config.json", **BAD_CONFIGS[kind])
    base = str(world / "base")
    for act in (
        lambda: predict(adapter, ROWS, device="cpu"),
        lambda: merge_adapter_into_base(adapter, tmp_path / "merged"),
        lambda: engine.load(base, device="cpu", adapters=[str(adapter)]),
        lambda: engine.load(str(adapter), device="cpu"),
        lambda: fingerprint(base, adapters=[str(adapter)]),
        lambda: foreign_files.check_adapter_config(adapter, "model 'm'"),
    ):
        with pytest.raises((InputError, ModelError)):
            act()


def test_a_pattern_is_tried_on_the_names_of_the_model(
    world: Path, adapter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("potentia.limited.DEADLINE", 1.0)
    monkeypatch.setattr(foreign_files, "SAMPLE_MODULES", ("x",))
    change_json(adapter / "adapter_config.json", exclude_modules="(([a-z_.0-9]+)+)+!")
    with pytest.raises(ModelError, match="too long"):
        engine.load(str(world / "base"), device="cpu", adapters=[str(adapter)])


@pytest.mark.parametrize("size", [0, 5, 40, 500])
def test_cut_weights_are_refused(world: Path, adapter: Path, tmp_path: Path, size: int) -> None:
    file = adapter / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:size])
    for act in (
        lambda: predict(adapter, ROWS, device="cpu"),
        lambda: merge_adapter_into_base(adapter, tmp_path / "merged"),
        lambda: engine.load(str(world / "base"), device="cpu", adapters=[str(adapter)]),
    ):
        with pytest.raises(ModelError, match="cannot be read"):
            act()


BOMBS = (
    "{{ 'x'|center(6000000000) }}",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{{ cycler.__init__.__globals__.os.system('touch mark') }}",
)


@pytest.mark.parametrize("key", ["doc_to_text", "doc_to_choice", "doc_to_target"])
@pytest.mark.parametrize("bomb", BOMBS)
def test_templates_of_a_note_have_limits(
    adapter: Path, key: str, bomb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("potentia.limited.DEADLINE", 1.0)
    config = {**CONFIG, key: bomb + "{{text}}"}
    change_json(adapter / "potentia.json", asked={"config": config})
    with pytest.raises(InputError):
        predict(adapter, ROWS, device="cpu")
    assert not (tmp_path / "mark").exists()


def test_another_base_is_not_used_in_silence(world: Path, adapter: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="was made for"):
        predict(adapter, ROWS, base=str(world / "other"), device="cpu")
    change_json(adapter / "potentia.json", base=None)
    for act in (
        lambda: predict(adapter, ROWS, base=str(world / "other"), device="cpu"),
        lambda: predict(adapter, ROWS, device="cpu"),
        lambda: merge_adapter_into_base(adapter, tmp_path / "merged", base=str(world / "other")),
    ):
        with pytest.raises(InputError, match="fingerprint") as error:
            act()
        assert "unchecked_base=True" in (error.value.hint or "")
    vouched = predict(adapter, ROWS, device="cpu", unchecked_base=True)
    assert len(vouched.predicted) == 2


def test_an_adapter_that_names_no_content_is_recorded(
    world: Path, adapter: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (adapter / "potentia.json").unlink()
    loaded = engine.load(str(world / "base"), device="cpu", adapters=[str(adapter)])
    assert loaded.record.load.unchecked_adapters == ("adapter",)
    assert "does not say by a fingerprint" in caplog.text


def test_an_untuned_choice_is_asked_of_its_own_model(world: Path, adapter: Path) -> None:
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (adapter / name).unlink()
    model = {"source": str(world / "base"), "fingerprint": fingerprint(str(world / "base"))}
    change_json(adapter / "potentia.json", model=model)
    assert len(predict(adapter, ROWS, device="cpu").predicted) == 2
    with pytest.raises(InputError, match="another model"):
        predict(adapter, ROWS, base=str(world / "other"), device="cpu")


def test_predictions_compute_nothing_in_a_spreadsheet(tmp_path: Path) -> None:
    from potentia.formats.table import read_text_table

    predictions = potentia.Predictions(
        rows=({"=cmd()": '=HYPERLINK("http://x")', "text": "@x", "n": "-5", "k": -5.5},),
        predicted=("=a",),
        probabilities=({"=a": 0.25},),
        gold=(None,),
        tested=None,
        metric="acc",
        labels=("=a",),
    )
    predictions.write(tmp_path / "p.csv")
    text = (tmp_path / "p.csv").read_text()
    header, row = text.splitlines()
    assert header == "'=cmd(),text,n,k,predicted,probability,p(=a)"
    assert row == '"\'=HYPERLINK(""http://x"")",\'@x,\'-5,-5.5,\'=a,0.25,0.25'
    table = read_text_table(tmp_path / "p.csv")
    assert table.rows[0][1][:3] == ('=HYPERLINK("http://x")', "@x", "-5")
    predictions.write(tmp_path / "p.json")
    assert json.loads((tmp_path / "p.json").read_text())[0]["text"] == "@x"
