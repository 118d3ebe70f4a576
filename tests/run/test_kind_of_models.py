"""Base or instruct in a run: a chat template alone does not make an instruct model."""

from __future__ import annotations

from pathlib import Path

import pytest

import tiny
from potentia.run import plan_study, run_study
from potentia.store import Store
from potentia.study import Study, make_study


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kinds")
    tiny.save_model(folder / "talks", chat=True)
    tiny.save_model(folder / "mute")
    tiny.save_questions(folder / "colours.jsonl", n=30)
    return folder


def study(world: Path, store: str = "store.db", **models: str) -> Study:
    return make_study(
        {
            "name": "kinds",
            "models": [
                {"name": name.replace("_", "-"), "path": str(world / path)}
                for name, path in models.items()
            ],
            "tasks": [{"name": "colours", "file": str(world / "colours.jsonl")}],
            "protocols": ["direct"],
            "device": "cpu",
            "store": str(world / store),
        }
    )


def key(world: Path, **models: str) -> str:
    (cell,) = plan_study(study(world, "none.db", **models)).iterate_cells()
    return cell.key


def test_a_base_model_with_a_template_is_asked_plainly(world: Path) -> None:
    result = run_study(study(world, mine_base="talks", mine_chat="talks", mine="mute"))
    assert (result.failed, result.computed) == (0, 3)
    with Store.open(str(world / "store.db")) as store:
        found = {
            c.model: (
                c.provenance.model.kind,
                c.provenance.model.kind_by,
                list(c.provenance.styles),
            )
            for c in store.cells.read()
        }
    assert found == {
        "mine-base": ("base", "its name", ["plain"]),
        "mine-chat": ("instruct", "its name", ["plain", "chat"]),
        "mine": ("base", "its tokenizer", ["plain"]),
    }


def test_the_kind_is_in_the_key_where_it_changes_how_a_model_is_asked(world: Path) -> None:
    assert (
        key(world, mine_base="talks") != key(world, mine="talks") == key(world, mine_chat="talks")
    )
    assert key(world, mine_base="mute") == key(world, mine="mute")
