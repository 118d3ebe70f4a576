"""Prompts that were cut to fit the model are counted for each cell, and told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tiny
from potentia.evidence import read
from potentia.run import run_study
from potentia.store import Store
from potentia.study import make_study


def test_a_cut_prompt_is_told_in_its_own_cell_alone(tmp_path: Path) -> None:
    tiny.save_model(tmp_path / "base")
    config = tmp_path / "base" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": 24}))
    tiny.save_questions(tmp_path / "colours.jsonl", n=60)
    study = make_study(
        {
            "name": "cut",
            "models": [{"name": "base", "path": str(tmp_path / "base")}],
            "tasks": [{"name": "colours", "file": str(tmp_path / "colours.jsonl")}],
            "protocols": ["direct", "few_shot:5"],
            "device": "cpu",
            "store": str(tmp_path / "p.db"),
        }
    )
    assert run_study(study).failed == 0
    with Store.open(study.store, readonly=True) as store:
        cut_prompts = store.provenance.read_cut_prompts(study="cut")
        cells = {cell.protocol: cell for cell in store.cells.read()}
    ((place, models),) = cut_prompts.items()
    assert place == ("few_shot:5", "colours")
    cut, asked = models["base"].cut, models["base"].requests
    assert cut == asked == 3 * cells["direct"].score.n, "every option of every document"
    assert cells["direct"].selection.cut_prompts is None
    (note,) = read(study.store, study="cut").notes
    assert (
        note
        == f"colours with 5-shot prompts: {cut:,} of {asked:,} prompts were truncated to fit the model (base)"
    )


def test_training_examples_that_were_cut_are_counted_and_told(tmp_path: Path) -> None:
    tiny.save_model(tmp_path / "base")
    tiny.save_questions(tmp_path / "colours.jsonl", n=60)
    settings: dict[str, Any] = {
        "models": [{"name": "base", "path": str(tmp_path / "base")}],
        "tasks": [{"name": "colours", "file": str(tmp_path / "colours.jsonl")}],
        "protocols": ["train_before_test"],
        "device": "cpu",
        "store": str(tmp_path / "p.db"),
    }
    recipe = {"epochs": 1, "least_updates": 1, "learning_rates": [1e-3]}
    short = make_study(
        {**settings, "name": "short", "tuning": {**recipe, "max_tokens": 4}, "selection": "tuned"}
    )
    long = make_study({**settings, "name": "long", "tuning": recipe, "selection": "tuned"})
    for study in (short, long):
        assert run_study(study).failed == 0
    with Store.open(short.store, readonly=True) as store:
        ((place, by_model),) = store.provenance.read_cut_examples(study="short").items()
        assert store.provenance.read_cut_examples(study="long") == {}
    examples = by_model["base"]
    assert place == ("train_before_test", "colours")
    assert 0 < examples.cut == examples.examples
    (note,) = read(short.store, study="short").notes
    assert note == (
        f"colours after fine-tuning: {examples.cut:,} of {examples.examples:,} training examples "
        "were longer than 4 tokens (max_tokens) and were truncated (base)"
    )
    assert read(long.store, study="long").notes == ()


def test_the_models_of_a_task_share_one_note_on_cut_examples(tmp_path: Path) -> None:
    names = ["a", "b", "c", "d"]
    tiny.save_questions(tmp_path / "colours.jsonl", n=60)
    for seed, name in enumerate(names):
        tiny.save_model(tmp_path / name, seed=seed)
    study = make_study(
        {
            "models": [{"name": name, "path": str(tmp_path / name)} for name in names],
            "tasks": [{"name": "colours", "file": str(tmp_path / "colours.jsonl")}],
            "protocols": ["train_before_test"],
            "device": "cpu",
            "store": str(tmp_path / "p.db"),
            "selection": "tuned",
            "tuning": {
                "epochs": 1,
                "least_updates": 1,
                "learning_rates": [1e-3],
                "max_tokens": 4,
            },
        }
    )
    assert run_study(study).failed == 0
    with Store.open(study.store, readonly=True) as store:
        (by_model,) = store.provenance.read_cut_examples().values()
    cut = sum(examples.cut for examples in by_model.values())
    count = sum(examples.examples for examples in by_model.values())
    notes = [note for note in read(study.store).notes if "training examples" in note]
    assert notes == [
        f"colours after fine-tuning: {cut:,} of {count:,} training examples were longer than 4 tokens "
        "(max_tokens) and were truncated (a, b, c and 1 more)"
    ]
