"""The probe records what is left to learn of a task, before a row is tuned, and changes no score."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tiny
from potentia.run import run_study
from potentia.store import Store
from potentia.study import Study, make_study


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("probe")
    tiny.save_model(folder / "base")
    tiny.save_questions(folder / "colours.jsonl", n=120)
    return folder


def study(world: Path, store: Path, **changes: object) -> Study:
    body = {
        "models": [{"name": "base", "path": str(world / "base")}],
        "tasks": [{"name": "colours", "file": str(world / "colours.jsonl")}],
        "protocols": ["train_before_test"],
        "tuning": {"learning_rates": [3e-3], "epochs": 1, "dropout": 0.0},
        "device": "cpu",
        "store": str(store),
    }
    return make_study(body | changes)


def ran(made: Study) -> tuple[dict, float]:
    result = run_study(made)
    assert result.failed == 0, result.reasons
    with Store.open(made.store) as store:
        return store.probes(study=made.name), store.cells()[0].score.value


def test_losses_of_every_document_before_any_update_and_of_both_epochs(world: Path, tmp_path: Path) -> None:
    from potentia import engine, tasks

    made, score = ran(study(world, tmp_path / "on.db", probe={"on": True, "documents": 24, "learning_rate": 1e-2}))
    probe = made["base", "colours"]
    assert probe["epoch_2"] < probe["epoch_1"]
    assert sum(probe["after"]["nats"]) < sum(probe["validation"]["nats"])
    assert [len(probe[split]["nats"]) for split in ("train", "validation", "test")] == [24, 12, 12]

    task = tasks.load(str(world / "colours.jsonl"))
    documents = task.documents("test")
    chosen = np.random.default_rng(0).permutation(len(documents))[:12]
    loaded = engine.load(str(world / "base"), device="cpu")
    example = task.examples([documents[int(chosen[0])]])[0]
    import torch

    text = example.context + example.continuation
    ids = torch.tensor([loaded.tokenizer(text)["input_ids"]])
    with torch.no_grad():
        loss = loaded.model(ids, labels=ids).loss.item()
    assert probe["test"]["bytes"][0] == len(text.encode())
    assert probe["test"]["nats"][0] == pytest.approx(loss * probe["test"]["tokens"][0], abs=2e-3)

    without, same = ran(study(world, tmp_path / "off.db", probe=False))
    assert without == {}
    assert same == score


def test_by_default_it_is_made_where_it_costs_little(world: Path, tmp_path: Path) -> None:
    few = study(world, tmp_path / "few.db")
    assert ran(few)[0] == {}
    many = study(
        world, tmp_path / "many.db", probe={"documents": 16}, tuning={"learning_rates": [3e-3, 1e-3], "epochs": 40}
    )
    from potentia import tasks
    from potentia.run.probe import cost, wanted

    task = tasks.load(str(world / "colours.jsonl"))
    assert wanted(many.probe, many.tuning, task)
    assert cost(many.probe, many.tuning, task) < 0.03
    assert not wanted(few.probe, few.tuning, task)
