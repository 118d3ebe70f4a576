"""A tokenizer that breaks down (its Rust code panics, which is no ``Exception``) costs its own row and no other."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

import tiny
from potentia.errors import ModelError
from potentia.run import Race, run_study
from potentia.store import Store
from potentia.study import Study, make_study

CATASTROPHIC = (
    "(([a-z ]+)+)+[!]"  # takes for ever on a sentence; Oniguruma gives up, and tokenizers panics
)


def spoil_tokenizer(model: Path) -> Path:
    """Give a model's tokenizer.json a regular expression without an end."""
    file = model / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    tokenizer["pre_tokenizer"] = {
        "type": "Split",
        "pattern": {"Regex": CATASTROPHIC},
        "behavior": "Isolated",
        "invert": False,
    }
    file.write_text(json.dumps(tokenizer))
    return model


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    spoil_tokenizer(tiny.save_model(folder / "bad", seed=0))
    tiny.save_model(folder / "good", seed=1)
    tiny.save_questions(folder / "colours.jsonl", n=60)
    return folder


def study(world: Path, store: Path, **changes: object) -> Study:
    return make_study(
        {
            "name": "spoilt",
            "models": [{"name": name, "path": str(world / name)} for name in ("bad", "good")],
            "tasks": [{"name": "colours", "file": str(world / "colours.jsonl")}],
            "tuning": {"learning_rates": [3e-3], "epochs": 1, "dropout": 0.0},
            "store": str(store),
            **changes,
        }
    )


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.long)])
def test_the_other_rows_go_on(world: Path, tmp_path: Path, workers: int) -> None:
    new_study = study(world, tmp_path / "s.db", protocols=["direct"])
    result = run_study(new_study, workers=workers)
    assert (result.computed, result.failed, result.exit_code) == (1, 1, 1), result.reasons
    with Store.open(new_study.store) as store:
        assert [cell.model for cell in store.cells.read()] == ["good"]
        (failure,) = store.failures.read()
    assert failure.model == "bad"
    assert "retry-limit-in-match" in failure.reason


def test_a_selection_goes_on_with_the_others(world: Path, tmp_path: Path) -> None:
    race = Race(study(world, tmp_path / "s.db", protocols=["direct", "train_before_test"]))
    choice = race.run()
    assert choice.best == "good"
    assert "retry-limit-in-match" in race.problems["bad"]
    assert choice.failed == ("bad",)
    assert choice.standings[0].model == "good"
    assert math.isnan(choice.p_best), "the only one left is not the best of anything"
    assert "over 99 %" not in str(choice)


def test_who_encodes_texts_hears_of_it_as_of_any_bad_model(world: Path) -> None:
    from potentia.engine import load

    loaded = load(str(world / "good"), device="cpu")
    spoilt = loaded.encoder
    from transformers import AutoTokenizer

    spoilt.tokenizer = AutoTokenizer.from_pretrained(world / "bad")
    spoilt._rust_tokenizer = spoilt.tokenizer.backend_tokenizer
    with pytest.raises(ModelError, match="retry-limit-in-match"):
        spoilt.prompt("what is the cat old new in the and the old")
