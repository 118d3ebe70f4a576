"""The index of names: lm-eval's own, found faster and kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from potentia import tasks
from potentia.errors import TaskError
from potentia.facts import CATEGORIES, benchmarks
from potentia.tasks import definitions as module
from potentia.tasks.definitions import build_index, scan_names, task_index, tasks_folder


def test_every_kind_of_name_is_found() -> None:
    index = build_index(tasks_folder() / "mmlu" / "default")
    assert index["mmlu"] == module.HarnessEntry("group", "_mmlu.yaml")
    assert index["mmlu_anatomy"] == module.HarnessEntry("task", "mmlu_anatomy.yaml")
    assert "mmlu_anatomy" in index["mmlu_stem_tasks"].members
    assert build_index(tasks_folder() / "squadv2")["squadv2"].kind == "class"


def test_the_index_is_kept_and_trusted_only_for_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = []

    def small(folder: Path) -> dict[str, module.Entry]:
        built.append(folder)
        return {"arc_easy": module.HarnessEntry("task", "arc/arc_easy.yaml")}

    monkeypatch.setenv("POTENTIA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "build_index", small)
    for _ in range(2):
        task_index.cache_clear()
        assert list(task_index()) == ["arc_easy"]
    assert len(built) == 1
    (file,) = (tmp_path / "cache").glob("tasks-*")
    content = json.loads(file.read_text())
    for spoiled in (
        "{",
        json.dumps({**content, "stamp": {"lm_eval": "0.0"}}),
        "[]",
        json.dumps({"stamp": content["stamp"]}),
    ):
        file.write_text(spoiled)
        task_index.cache_clear()
        assert list(task_index()) == ["arc_easy"]
    assert len(built) == 5
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("POTENTIA_CACHE", str(tmp_path / "file" / "below"))
    task_index.cache_clear()
    assert list(task_index()) == ["arc_easy"]
    monkeypatch.undo()
    task_index.cache_clear()


def test_two_environments_keep_an_index_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They shared one file, and who came last threw the other's away: a quarter of a minute at every turn."""
    built = []

    def build_small(folder: Path) -> dict[str, module.HarnessEntry]:
        built.append(folder.name)
        return {f"task_of_{folder.name}": module.HarnessEntry("task", "one.yaml")}

    monkeypatch.setenv("POTENTIA_CACHE", str(tmp_path))
    monkeypatch.setattr(module, "build_index", build_small)
    for environment in ("first", "second", "first", "second"):
        monkeypatch.setattr(module, "tasks_folder", lambda name=environment: tmp_path / name)
        task_index.cache_clear()
        assert list(task_index()) == [f"task_of_{environment}"]
    assert built == ["first", "second"]
    monkeypatch.undo()
    task_index.cache_clear()


def test_an_editable_installation_is_indexed_again_when_its_tasks_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its version stays as it is, so that a new task was not found."""
    built = []

    def build_small(folder: Path) -> dict[str, module.HarnessEntry]:
        built.append(folder)
        return {}

    monkeypatch.setenv("POTENTIA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "build_index", build_small)
    try:
        for name, times_built in (("site-packages", 1), ("editable", 2)):
            built.clear()
            folder = tmp_path / name
            folder.mkdir()
            monkeypatch.setattr(module, "tasks_folder", lambda folder=folder: folder)
            for file_name in (None, None, "new.yaml"):
                if file_name is not None:
                    (folder / file_name).write_text("task: new")
                task_index.cache_clear()
                task_index()
            assert built == [folder] * times_built
    finally:
        monkeypatch.undo()
        task_index.cache_clear()


def test_names_found_in_the_text_are_lm_evals() -> None:
    """Most tasks need no YAML to be read: the first study of a machine waits a second for its names, not ten."""
    scanned_names, all_names = scan_names(tasks_folder()), task_index()
    assert len(scanned_names) > 10_000
    assert {name: all_names[name].path for name in scanned_names} == scanned_names
    classes = {name for name in scanned_names if all_names[name].kind != "task"}
    assert all(all_names[name].kind == "class" for name in classes)  # what a file includes says so
    with pytest.raises(TaskError, match="Python class"):
        tasks.read_stock_task(min(classes))
    assert {"arc_easy", "boolq", "gsm8k", "hellaswag", "winogrande"} <= set(scanned_names)
    assert not {"mmlu", "squadv2"} & set(scanned_names)


def test_a_study_of_plain_tasks_reads_no_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POTENTIA_CACHE", str(tmp_path))
    monkeypatch.setattr(module, "build_index", None)
    for known in (task_index, module._index_plain_tasks):
        known.cache_clear()
    try:
        assert tasks.read_stock_task("arc_easy").subtasks[0]["dataset_path"] == "allenai/ai2_arc"
        with pytest.raises(TypeError):  # a group has to be looked up
            tasks.read_stock_task("mmlu")
    finally:
        monkeypatch.undo()
        for known in (task_index, module._index_plain_tasks):
            known.cache_clear()


def test_facts_name_tasks_of_the_harness() -> None:
    known = benchmarks()
    assert [
        sum(b.status == s for b in known)
        for s in ("paper", "excluded", "test-task", "leaderboard-v2")
    ] == [
        24,
        13,
        1,
        5,
    ]
    assert all(b.task in task_index() for b in known)
    assert all(b.reason for b in known if b.status == "excluded")
    paper = [b for b in known if b.status == "paper"]
    assert {b.category for b in paper} == set(CATEGORIES)
    assert all((b.train_size or 0) >= 1000 for b in paper)
    assert len({b.task for b in known}) == len(known)


def test_facts_cover_the_published_scores(shared_data: Path) -> None:
    import csv

    with (shared_data / "published" / "train_before_test_scores.csv").open() as stream:
        scored = {row["benchmark"] for row in csv.DictReader(stream)}
    assert {b.task for b in benchmarks() if b.status == "paper"} == {
        s for s in scored if not s.endswith("_2025")
    }


def test_unknown_names_get_a_hint() -> None:
    with pytest.raises(TaskError, match="did you mean arc_easy"):
        tasks.load("arc_esy")
    with pytest.raises(TaskError, match="Python class"):
        tasks.load("squadv2")
    with pytest.raises(TaskError, match="no folder"):
        tasks.load("arc_easy", data_dir=Path("nowhere"))


def test_no_data_and_no_network(tmp_path: Path) -> None:
    with pytest.raises(
        TaskError,
        match=r"the data of arc_easy cannot be fetched from the hub and not in .*ARC-Easy",
    ):
        tasks.load("arc_easy", data_dir=tmp_path)


def test_an_unknown_form_is_named(shared_data: Path) -> None:
    with pytest.raises(TaskError, match="no prompt form 'sideways'"):
        tasks.load("rte:sideways", data_dir=shared_data / "benchmarks")
