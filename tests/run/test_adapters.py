"""A base with an adapter as a model, adapters taken out of a study, and copies that were shown a test on purpose."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import tiny
from made_store import make_store
from potentia import engine, tasks
from potentia.engine.scoring import Scorer
from potentia.engine.training import FullLanes
from potentia.engine.training.full import FullTuningJob
from potentia.errors import InputError, ModelError, TuningError
from potentia.evidence import read
from potentia.integrations import export_adapter
from potentia.integrations.adapter_note import read_note
from potentia.integrations.predictions import load_adapted
from potentia.run import plan_study, run_study
from potentia.run.ask import Ask, evaluate
from potentia.store import Store
from potentia.study import Study, make_study

TUNING = {"learning_rates": [5e-3], "epochs": 3, "dropout": 0.0, "targets": ["all-linear"]}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters")
    tiny.save_model(folder / "base")
    tiny.save_model(folder / "other", seed=1)
    tiny.save_model(folder / "wide", width=48)
    tiny.save_questions(folder / "colours.jsonl", n=80)
    tiny.save_questions(folder / "plants.jsonl", n=80, seed=1)
    return folder


def study(world: Path, store: Path, **changes: Any) -> Study:
    body: dict[str, Any] = {
        "name": "adapters",
        "models": [{"name": "base", "path": str(world / "base")}],
        "tasks": [{"name": "colours", "file": str(world / "colours.jsonl")}],
        "protocols": ["direct", "train_before_test"],
        "tuning": TUNING,
        "selection": "tuned",
        "device": "cpu",
        "store": str(store),
    }
    return make_study(body | changes)


@pytest.fixture(scope="module")
def done(world: Path) -> Study:
    new_study = study(world, world / "done.db")
    assert run_study(new_study).failed == 0
    return new_study


def command(*arguments: str) -> Any:
    from potentia.cli.app import app

    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def exported(done: Study, folder: Path) -> Path:
    command(
        "adapters", "export", done.store, "--model", "base", "--task", "colours", "-o", str(folder)
    )
    return folder


def cell_of(store: str, model: str, protocol: str) -> Any:
    return next(c for c in read(store).cells() if (c.model, c.protocol) == (model, protocol))


def test_an_exported_adapter_gives_the_validation_score_again_with_plain_peft(
    done: Study, tmp_path: Path
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = exported(done, tmp_path / "out")
    base = AutoModelForCausalLM.from_pretrained(done.models[0].path)
    model = PeftModel.from_pretrained(base, str(folder)).merge_and_unload().eval()
    loaded = engine.LoadedModel.of(model, AutoTokenizer.from_pretrained(done.models[0].path))
    task = tasks.load(done.tasks[0].source)
    (evaluation,) = evaluate(Scorer(loaded), [Ask(task, "validation")])
    cell = cell_of(done.store, "base", "train_before_test")
    assert evaluation.main.value == cell.selection.validation
    assert cell.selection.epoch >= 1
    card = (folder / "README.md").read_text()
    assert "PeftModel.from_pretrained" in card
    assert f"{cell.score.value:.4f}" in card
    assert "learning rate 0.005" in card


def test_adapters_are_listed_with_their_size_and_dropped(done: Study, tmp_path: Path) -> None:
    for part in ("", ".adapters", ".items"):
        source = Path(done.store + part)
        (shutil.copytree if source.is_dir() else shutil.copy)(source, tmp_path / f"s.db{part}")
    store = str(tmp_path / "s.db")
    listed = json.loads(command("status", "--adapters", store, "--json"))
    (one,) = listed["adapters"]
    assert (one["model"], one["task"], one["protocol"]) == ("base", "colours", "train_before_test")
    files = [f for f in Path(f"{store}.adapters").rglob("*") if f.is_file()]
    assert listed["bytes"] == one["bytes"] == sum(f.stat().st_size for f in files) > 1000
    assert json.loads(command("store", "discard", "--adapters", store, "--yes", "--json")) == {
        "dropped": 1,
        "bytes": one["bytes"],
    }
    assert json.loads(command("status", "--adapters", store, "--json"))["adapters"] == []
    from potentia.cli.app import app

    gone = CliRunner().invoke(
        app, ["adapters", "export", store, "--model", "base", "--task", "colours", "-o", "x"]
    )
    assert isinstance(gone.exception, InputError)
    assert "was not kept" in str(gone.exception)


def test_a_study_may_keep_none(world: Path, tmp_path: Path) -> None:
    new_study = study(world, tmp_path / "s.db", keep_adapters=False)
    assert run_study(new_study).failed == 0
    assert not (tmp_path / "s.db.adapters").exists()
    assert (
        plan_study(study(world, tmp_path / "s.db")).key == plan_study(new_study).key
    )  # keeping changes no score


def test_a_base_and_its_adapter_are_a_model_like_any_other(
    done: Study, world: Path, tmp_path: Path
) -> None:
    folder = exported(done, tmp_path / "out")
    models = [
        {"name": "base", "path": str(world / "base")},
        {"name": "tuned", "path": str(world / "base"), "adapter": str(folder)},
    ]
    new_study = study(world, tmp_path / "s.db", models=models, protocols=["direct"])
    assert run_study(new_study).failed == 0
    tuned = cell_of(new_study.store, "tuned", "direct")
    assert tuned.score.value == cell_of(done.store, "base", "train_before_test").score.value
    assert tuned.provenance.model.adapter == str(folder)
    assert (
        tuned.provenance.model.fingerprint
        != cell_of(new_study.store, "base", "direct").provenance.model.fingerprint
    )
    assert tuned.score.value != cell_of(new_study.store, "base", "direct").score.value


def test_another_adapter_makes_another_key(done: Study, world: Path, tmp_path: Path) -> None:
    folder = exported(done, tmp_path / "out")
    source = str(world / "base")
    before = engine.models.identity.fingerprint(source, adapters=[str(folder)])
    assert before != engine.models.identity.fingerprint(source)
    config = json.loads((folder / "adapter_config.json").read_text()) | {"lora_alpha": 7}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    assert engine.models.identity.fingerprint(source, adapters=[str(folder)]) != before


@pytest.mark.parametrize(
    ("base", "unsigned", "words"),
    [
        ("other", False, "was made for"),
        ("wide", True, "does not fit the model"),
        ("base", None, "no adapter in"),
    ],
)
def test_a_wrong_base_is_refused(
    done: Study, world: Path, tmp_path: Path, base: str, unsigned: bool | None, words: str
) -> None:
    folder = exported(done, tmp_path / "out")
    if unsigned is None:
        (folder / "adapter_model.safetensors").unlink()
    elif unsigned:
        (folder / "potentia.json").unlink()
    with pytest.raises(ModelError, match=words):
        engine.load(str(world / base), device="cpu", adapters=[str(folder)])
    models = [{"name": "m", "path": str(world / base), "adapter": str(folder)}]
    result = run_study(study(world, tmp_path / "s.db", models=models, protocols=["direct"]))
    assert result.failed == 1
    assert words in result.reasons[0]


# --- treated copies --------------------------------------------------------------------------------------------------


def treated(world: Path, store: Path, **changes: Any) -> Study:
    body = {
        "models": [{"name": n, "path": str(world / n)} for n in ("base", "other")],
        "tasks": [{"name": n, "file": str(world / f"{n}.jsonl")} for n in ("colours", "plants")],
        "protocols": ["direct"],
        "treat": {"data": ["colours"], "tuning": TUNING | {"epochs": 4}},
    }
    return study(world, store, **(body | changes))


def test_copies_are_shown_the_training_data_and_nothing_else_changes(
    world: Path, tmp_path: Path
) -> None:
    new_study = treated(world, tmp_path / "s.db")
    assert [row.name for row in new_study.rows()] == [
        "base",
        "other",
        "base+exposed",
        "other+exposed",
    ]
    assert run_study(new_study).failed == 0
    direct = read(new_study.store).scores["direct"]
    value = {
        (m, t): direct.select(models=[m], tasks=[t]).values[0, 0]
        for m in direct.models
        for t in direct.tasks
    }
    plain = treated(world, tmp_path / "plain.db", treat=None)
    assert run_study(plain).failed == 0
    for model in ("base", "other"):
        assert value[f"{model}+exposed", "colours"] > value[model, "colours"]
        assert cell_of(plain.store, model, "direct").key in {
            c.key for c in read(new_study.store).cells()
        }
    facts = read(new_study.store).facts.find("base+exposed")
    assert facts is not None
    assert facts.exposure == ("colours",)
    model = cell_of(new_study.store, "base+exposed", "direct").provenance.model
    assert (model.copy_of, model.exposed_tasks) == ("base", ("colours",))


def test_a_copy_is_made_once_and_a_resumed_row_has_the_same_weights(
    world: Path, tmp_path: Path
) -> None:
    one: dict[str, Any] = {"models": [{"name": "base", "path": str(world / "base")}]}
    one["tasks"] = [{"name": "colours", "file": str(world / "colours.jsonl")}]
    new_study = treated(world, tmp_path / "s.db", **one)
    assert run_study(new_study).failed == 0
    (folder,) = (tmp_path / "s.db.adapters").glob("treated-*")
    stamp = (folder / "adapter_model.safetensors").stat().st_mtime_ns
    more = treated(world, tmp_path / "s.db", **one, protocols=["direct", "train_before_test"])
    assert run_study(more).failed == 0
    assert (folder / "adapter_model.safetensors").stat().st_mtime_ns == stamp
    with Store.open(new_study.store) as store:
        assert {c.protocol for c in store.cells.read(model="base+exposed")} == {
            "direct",
            "train_before_test",
        }


@pytest.mark.parametrize("method", ["lora", "full"])
def test_an_adapter_of_an_exposed_copy_goes_on_that_copy(
    world: Path, tmp_path: Path, method: str
) -> None:
    """The lines of the card and ``predict`` load the copy first: an adapter of it, or a whole model."""
    exposure = {"data": ["colours"], "tuning": {**TUNING, "method": method, "epochs": 1}}
    new_study = treated(
        world,
        tmp_path / "s.db",
        models=[{"name": "base", "path": str(world / "base")}],
        tasks=[{"name": "colours", "file": str(world / "colours.jsonl")}],
        protocols=["direct", "train_before_test"],
        treat=exposure,
    )
    assert run_study(new_study).failed == 0
    (copy_folder,) = (tmp_path / "s.db.adapters").glob("treated-*")
    tokens = torch.arange(4, 12)[None]
    logits = {}
    for protocol in ("direct", "train_before_test"):
        folder = tmp_path / protocol
        with Store.open(new_study.store, readonly=True) as store:
            (cell,) = store.cells.read(model="base+exposed", protocol=protocol)
            written = export_adapter(store, cell, folder)
        variables: dict[str, Any] = {}
        exec("\n".join(written.lines), variables)  # the card's own words
        logits[protocol] = variables["model"].eval()(tokens).logits
        loaded = load_adapted(folder, read_note(folder), base=None, device="cpu")
        torch.testing.assert_close(loaded.model(tokens).logits, logits[protocol])
    original = engine.load(str(world / "base"), device="cpu").model(tokens).logits
    assert not torch.allclose(logits["direct"], original)
    assert not torch.allclose(logits["direct"], logits["train_before_test"])
    shutil.rmtree(copy_folder)
    with (
        Store.open(new_study.store, readonly=True) as store,
        pytest.raises(InputError, match=r"base\+exposed is an exposed copy that is no longer kept"),
    ):
        export_adapter(store, cell, tmp_path / "late")
    assert not (tmp_path / "late").exists()


def test_half_of_the_models_are_replaced_by_a_seeded_coin(world: Path, tmp_path: Path) -> None:
    models = [
        {"name": f"m{k}", "path": str(world / "base"), "parameters": 10.0**k} for k in range(6)
    ]
    halves = set()
    for seed in range(8):
        treat = {"data": ["colours"], "who": "half", "seed": seed}
        rows = treated(world, tmp_path / "s.db", models=models, treat=treat).rows()
        chosen = tuple(row.copy_of is not None for row in rows)
        assert len(rows) == 6
        assert [sum(chosen[k : k + 2]) for k in (0, 2, 4)] == [
            1,
            1,
            1,
        ]  # one of each two alike in size
        halves.add(chosen)
    assert len(halves) > 1


def test_a_copy_of_all_weights_that_could_not_be_kept_is_not_tuned_again(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps_made: list[int] = []
    make_step = FullTuningJob.step
    monkeypatch.setattr(
        FullTuningJob,
        "step",
        lambda self, rows, rate: steps_made.append(1) or make_step(self, rows, rate),
    )
    recipe = {"method": "full", "learning_rates": [2e-3], "epochs": 2, "dropout": 0.0}
    models = [{"name": "base", "path": str(world / "base")}]
    full = treated(
        world, tmp_path / "full.db", models=models, treat={"data": ["colours"], "tuning": recipe}
    )

    def no_room(*_: Any) -> None:
        raise TuningError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(FullLanes, "save_model", no_room)
        assert run_study(full).failed > 0
    steps = len(steps_made)
    assert steps > 0
    assert run_study(full).failed == 0
    assert len(steps_made) == steps


def test_copies_of_a_model_with_an_adapter(done: Study, world: Path, tmp_path: Path) -> None:
    folder = exported(done, tmp_path / "out")
    adapted = [{"name": "tuned", "path": str(world / "base"), "adapter": str(folder)}]
    both = treated(world, tmp_path / "both.db", models=adapted)
    assert run_study(both).failed == 0
    scores = {c.model: c for c in read(both.store).cells() if c.task == "colours"}
    assert set(scores) == {"tuned", "tuned+exposed"}
    assert scores["tuned"].score.value >= cell_of(done.store, "base", "direct").score.value


def test_data_that_cannot_be_shown_is_refused(world: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere"):
        plan_study(treated(world, tmp_path / "s.db", treat={"data": ["nowhere.jsonl"]}))


def test_only_the_adapters_that_are_named_are_discarded_or_exported(tmp_path: Path) -> None:
    """``--adapters --model a`` removed the adapters of every model, and ``adapters export`` refused --model a."""
    from potentia.cli.app import app

    models = ("org/a", "org/b")
    path = str(make_store(tmp_path / "s.db", models=models, tasks=("boolq", "piqa")))
    with Store.open(path) as store:
        for cell in store.cells.read(protocol="train_before_test"):
            store.adapters.save(cell.key, lambda draft: None, {"task": cell.task})
    refused = CliRunner().invoke(app, ["adapters", "export", path, "--model", "a", "-o", "x"])
    assert "2 adapters are meant: org/a × boolq" in str(refused.exception)
    discard = ["store", "discard", path, "--adapters", "--model", "a", "--task", "boolq", "--yes"]
    assert CliRunner().invoke(app, discard).stdout.startswith("1 adapter removed")
    listed = json.loads(command("status", "--adapters", path, "--json"))["adapters"]
    left = {(adapter["model"], adapter["task"]) for adapter in listed}
    assert left == {("org/a", "piqa"), ("org/b", "boolq"), ("org/b", "piqa")}
