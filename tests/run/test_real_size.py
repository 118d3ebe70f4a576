"""Real size in small: every internal cap lowered until a small study crosses it, and the scores stay what they were.

The caps are found by searching for them: the memory of texts, portions of requests, rows, masks, pieces of logits, the
cache of keys and values, texts written at once, slots of lanes, gathered adapters, looks at health, snapshots,
remembered prompts, keys in a statement of the store. Each must be seen to be crossed.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

import tiny
from potentia.engine.layers import adapter_bank as adapters
from potentia.engine.layers import network
from potentia.engine.models import identity
from potentia.engine.models import split_model as split
from potentia.engine.models import tokenization as tokens
from potentia.engine.scoring import generate, scorer
from potentia.engine.training import full, lane_run, trainer
from potentia.run import ask, run_study
from potentia.store import Store, cells, database
from potentia.study import make_study

PIECE_TARGETS = 4


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    tiny.save_model(folder / "mine-chat", seed=1, chat=True)
    tiny.save_questions(folder / "colours.jsonl", n=40)
    tiny.save_texts(folder / "notes.jsonl", n=20)
    draw = random.Random(5)
    with (folder / "say.jsonl").open(
        "w"
    ) as out:  # texts to write, one prompt longer than the others
        for number in range(20):
            words = draw.choices(tiny.WORDS[:20], k=30 if number % 10 == 0 else 4)
            out.write(
                json.dumps({"prompt": " ".join(words), "completion": draw.choice(["red", "blue"])})
                + "\n"
            )
    return folder


def ran(world: Path, store_path: Path, **changes: Any) -> dict[str, Any]:
    study = make_study(
        {
            "name": "size",
            "models": [{"name": "mine-chat", "path": str(world / "mine-chat")}],
            "tasks": [
                {"name": n, "file": str(world / f"{n}.jsonl")} for n in ("colours", "notes", "say")
            ],
            "protocols": ["direct", "few_shot:2", "train_before_test"],
            "tuning": {"learning_rates": [3e-3, 1e-2], "epochs": 2, "dropout": 0.0},
            "store": str(store_path),
            **changes,
        }
    )
    result = run_study(study)
    assert (result.failed, result.exit_code) == (0, 0), result.reasons
    with Store.open(str(store_path)) as store:
        return {
            f"{cell.task} {cell.protocol}": (
                cell.score.value,
                [
                    (outcome.doc_id, outcome.prediction)
                    for outcome in store.cells.read_items(cell.key)
                ],
            )
            for cell in store.cells.read(study="size")
        }


def same(first_run: dict[str, Any], second_run: dict[str, Any]) -> None:
    assert first_run.keys() == second_run.keys()
    assert len(first_run) == 8  # a corpus has no few-shot cell
    for name, (value, items) in first_run.items():
        assert second_run[name][0] == pytest.approx(value, rel=1e-5, abs=1e-6), name
        assert items == second_run[name][1]


class Crossings:
    """Counts how often each cap made a difference."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.seen: dict[str, int] = {}
        self.patch = patch

    def note(self, name: str, crossed: bool = True) -> None:
        self.seen[name] = self.seen.get(name, 0) + bool(crossed)

    def watch(self, owner: Any, method: str, name: str, crossed: Any) -> None:
        own = getattr(owner, method)

        def seen(*given: Any, **options: Any) -> Any:
            answer = own(*given, **options)
            self.note(name, crossed(answer, *given, **options))
            return answer

        self.patch.setattr(owner, method, seen)


@pytest.fixture
def lowered(monkeypatch: pytest.MonkeyPatch) -> Crossings:
    crossings = Crossings(monkeypatch)
    lower = monkeypatch.setattr
    lower(tokens, "CACHED_TOKENS", 40)
    lower(scorer, "PORTION", 5)
    lower(scorer, "ROW_TOKENS", {"cpu": 24})
    lower(scorer, "LONGEST_SHARED", {"cpu": 14})
    lower(scorer, "MASK_CELLS", {"cpu": 2_000})
    lower(scorer, "default_token_budget", lambda _: 60)
    lower(network, "HEAD_BYTES", {"cpu": 4 * 3 * 40})
    lower(network, "CPU_CACHE_BYTES", 1 << 16)
    lower(generate, "MOST_ROWS", {"cpu": 3})
    lower(generate, "PREFILL_BUDGETS", 1)
    lower(split, "_PIECE_BYTES", {"cpu": 1})
    lower(split, "LEAST_PIECE", PIECE_TARGETS)
    lower(adapters, "GATHERED_BYTES", 0)
    lower(lane_run, "HEALTH_CHECK_STEPS", 2)
    lower(lane_run, "SNAPSHOT_SECONDS", 0.0)
    lower(identity, "REMEMBER_ABOVE", 0)
    lower(ask, "REMEMBERED", 0)
    lower(database, "_KEYS_PER_STATEMENT", 2)
    plan = trainer.make_plan
    lower(
        trainer, "make_plan", lambda work, **options: plan(work, **{**options, "token_budget": 64})
    )

    crossings.watch(
        tokens.Encoder,
        "_evict_from_cache",
        "texts",
        lambda _, encoder, count: encoder._cached_tokens == count,
    )
    crossings.watch(
        scorer.Scorer, "_make_sequences", "portions", lambda _, __, start, *___: start > 0
    )
    crossings.watch(scorer, "pack_sequences", "rows", lambda rows, *_, **__: len(rows) > 1)
    crossings.watch(scorer, "group_rows", "batches", lambda *_: True)
    crossings.watch(generate.TextWriter, "_count_rows", "texts written", lambda rows, *_: rows <= 3)
    crossings.watch(
        split.SplitModel,
        "losses",
        "pieces",
        lambda _, __, hidden, *___: hidden.shape[0] > PIECE_TARGETS,
    )
    crossings.watch(
        adapters.AdapterBank,
        "gather_factors",
        "adapters",
        lambda _, bank, __: bank.routing.gathered is None,
    )
    crossings.watch(
        lane_run.LaneRun,
        "_fill_free_slots",
        "slots",
        lambda active, run: run.bank.slots < len(run.lanes),
    )
    crossings.watch(cells, "split_keys", "statements", lambda chunks, _: len(chunks) > 1)
    return crossings


def test_every_cap_crossed_leaves_the_scores_alone(
    world: Path, tmp_path: Path, lowered: Crossings, monkeypatch: pytest.MonkeyPatch
) -> None:
    crossed = ran(world, tmp_path / "low.db")
    idle = [name for name, times in lowered.seen.items() if not times]
    assert idle == []
    assert len(lowered.seen) == 9
    monkeypatch.undo()
    same(ran(world, tmp_path / "high.db"), crossed)


def test_full_tuning_that_is_too_large_to_save_is_not_saved(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuning = {"learning_rates": [1e-3], "epochs": 1, "method": "full"}
    changes = {"tuning": tuning, "protocols": ["train_before_test"]}
    kept = ran_tuned(world, tmp_path / "kept.db", **changes)
    monkeypatch.setattr(full, "MOST_BYTES", 0)
    assert ran_tuned(world, tmp_path / "not.db", **changes) == kept


def ran_tuned(world: Path, store_path: Path, **changes: Any) -> dict[str, float]:
    return {name: value for name, (value, _) in ran(world, store_path, **changes).items()}
