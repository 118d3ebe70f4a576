"""``potentia run --checkpoints FOLDER --watch``: new checkpoints are scored as they come."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

import tiny
from potentia.cli import run as run_module
from potentia.store import Store


def test_new_checkpoints_are_scored_until_ctrl_c(
    potentia, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "out"
    tiny.save_model(folder / "checkpoint-10", seed=1)
    tiny.save_questions(tmp_path / "q.jsonl", n=30)
    looks = []

    def wait(seconds: float) -> None:
        """Put the second checkpoint there at the first look, and press Ctrl-C at the third."""
        looks.append(seconds)
        if len(looks) == 1:
            tiny.save_model(folder / "checkpoint-20", seed=2)
            make_old(folder)
        elif len(looks) == 3:
            raise KeyboardInterrupt

    make_old(folder)
    monkeypatch.setattr(run_module.time, "sleep", wait)
    done = potentia(
        *("run", "--checkpoints", folder, "--tasks", "q.jsonl", "--protocols", "direct"),
        *("--device", "cpu", "--store", "s.db", "--workers", "1", "--watch"),
    )
    assert done.returncode == 0, done.stderr
    with Store.open(tmp_path / "s.db", readonly=True) as store:
        (study,) = store.studies.read()
        assert {cell.model for cell in store.cells.read(study=study.key)} == {"out@10", "out@20"}
        finished = [
            event.payload["row"] for event in store.events.read(study.key) if event.kind == "cell"
        ]
        assert finished == ["out@10", "out@20"]
    assert done.stderr.count("Waiting for new checkpoints") == 2


def make_old(folder: Path) -> None:
    """Let all files look as if they were written a minute ago."""
    before = time.time() - 60
    for file in folder.rglob("*"):
        os.utime(file, (before, before))


def test_a_checkpoint_that_is_still_written_waits(tmp_path: Path) -> None:
    tiny.save_model(tmp_path / "checkpoint-10")
    assert run_module._list_settled_checkpoints([str(tmp_path)]) == ()
    make_old(tmp_path)
    assert run_module._list_settled_checkpoints([str(tmp_path)]) == (f"{tmp_path} 10",)


def test_there_is_something_to_watch(potentia) -> None:
    done = potentia("run", "--models", "m", "--tasks", "arc_easy", "--watch")
    assert done.returncode == 2
    assert "--watch waits for checkpoints" in done.stderr
