"""Models that stay between waves: the same object comes back, and what has to go goes."""

from __future__ import annotations

from pathlib import Path

import pytest

import tiny
from potentia.engine import load
from potentia.run import model_cache, plan_study
from potentia.run.plan import Row
from potentia.study import make_study


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shelf")
    tiny.save_model(folder / "m0", seed=0, width=32)
    tiny.save_questions(folder / "colours.jsonl", n=40, seed=0)
    return folder


def row(world: Path, **tuning: object) -> Row:
    body = {
        "models": [{"name": "m0", "path": str(world / "m0")}],
        "tasks": [{"name": "colours", "file": str(world / "colours.jsonl")}],
        "tuning": tuning,
        "device": "cpu",
        "store": str(world / "none.db"),
    }
    return plan_study(make_study(body)).rows[0]


def test_a_model_is_kept_for_its_own_row_alone(world: Path):
    kept, plan = model_cache.ModelCache(), row(world)
    loaded = load(str(world / "m0"), device="cpu")
    loaded.checks.requests.add("continuations")
    kept.put(plan, "cpu", loaded)
    assert len(kept) == 1
    assert kept.take(plan, "cuda:0") is None
    again = kept.take(plan, "cpu")
    assert again is loaded
    assert again.checks.requests == {"continuations"}
    assert kept.take(plan, "cpu") is None  # it is out
    kept.put(plan, "cpu", loaded)
    kept.clear()
    assert loaded.model is None


def test_what_has_no_room_or_was_tuned_whole_goes(world: Path, monkeypatch: pytest.MonkeyPatch):
    kept = model_cache.ModelCache()
    loaded = load(str(world / "m0"), device="cpu")
    kept.put(row(world, method="full"), "cpu", loaded)
    assert (len(kept), loaded.model) == (0, None)
    large = load(str(world / "m0"), device="cpu")
    monkeypatch.setattr(model_cache, "read_free_bytes", lambda: 1e3)
    kept.put(row(world), "cpu", large)
    assert (len(kept), large.model) == (0, None)
