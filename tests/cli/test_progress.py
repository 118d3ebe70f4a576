"""What a run says while it goes: true totals, one message a failing model, a line every half minute, no bars."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from rich.console import Console

from potentia.cli.progress_view import ProgressView, watch_study
from potentia.run import PACED, estimate_seconds_left, plan_study, read_store_status, run_study
from potentia.run.plan import Assignment
from potentia.run.progress import RowProgress, Stopped
from potentia.run.worker import compute_assignment
from potentia.store import EventRecord, Store
from potentia.study import make_study
from tiny import save_model, save_questions


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two models, one whose weights are cut off, one without a tokenizer, one that needs a package; two tasks."""
    data_folder = tmp_path_factory.mktemp("progress")
    for k, name in enumerate(("one", "two")):
        save_model(data_folder / name, seed=k)
    for name in ("cut", "mute", "packed"):
        shutil.copytree(data_folder / "one", data_folder / name)
    weights = data_folder / "cut" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    for file in (data_folder / "mute").glob("token*"):
        file.unlink()
    config = json.loads((data_folder / "packed" / "config.json").read_text())
    (data_folder / "packed" / "config.json").write_text(
        json.dumps({**config, "quantization_config": {"quant_method": "aqlm"}})
    )
    for k, name in enumerate(("x", "y")):
        save_questions(data_folder / f"{name}.jsonl", seed=k)
    return data_folder


def study_of(folder: Path, store: Path, *models: str):
    return make_study(
        {
            "name": "progress",
            "models": [str(folder / name) for name in models],
            "tasks": [str(folder / "x.jsonl"), str(folder / "y.jsonl")],
            "protocols": ["direct"],
            "device": "cpu",
            "store": str(store),
        }
    )


def test_a_failing_model_is_one_message_and_the_others_go_on(folder, tmp_path, potentia):
    places = [folder / name for name in ("cut", "one", "x.jsonl", "y.jsonl")]
    flags = ("--protocols", "direct", "--device", "cpu", "--store", tmp_path / "p.db")
    done = potentia("run", "--models", *places[:2], "--tasks", *places[2:], *flags)
    assert done.returncode == 1
    said = [line for line in done.stderr.splitlines() if "/cut" in line]
    assert len(said) == 1, done.stderr
    assert "failed" in said[0]
    assert re.findall(r"\[(\d)/4\] .*one", done.stderr) == ["3", "4"]
    assert "it/s" not in done.stderr, "a bar of another library"
    assert "Mean acc" in done.stdout
    result = potentia("status", tmp_path / "p.db").stdout
    assert re.search(r"cut +2 results +\w+", result)


def test_on_a_resume_the_whole_study_is_counted(folder, tmp_path):
    store = tmp_path / "r.db"
    run_study(study_of(folder, store, "one"))
    plan = plan_study(study_of(folder, store, "one", "two"))
    spoken = io.StringIO()
    run_study(plan, watch=lambda p: watch_study(p, Console(file=spoken)))
    assert re.findall(r"^\[(\d)/(\d)\]", spoken.getvalue(), re.M) == [("3", "4"), ("4", "4")]


def test_more_events_than_cells_never_go_below_nothing_left(folder, tmp_path):
    plan = plan_study(study_of(folder, tmp_path / "n.db", "one"))
    with Store.open(plan.study.store) as store:
        store.studies.open("progress", plan.key, {})
        view = ProgressView(plan, store)
        for cell in [
            *plan.iterate_cells(),
            *plan.iterate_cells(),
        ]:  # as two runs would say, or one that was asked twice
            names = {"row": plan.rows[0].model.name, "task": cell.task, "protocol": cell.protocol}
            store.events.append(
                plan.key, "cell", {**names, "value": 0.5, "stderr": 0.1, "error": "± 0.1960"}
            )
        lines = view.collect_news()
        assert len(lines) == 2, "each cell once"
        assert "0.500 ± 0.1960" in lines[0], "± is the half of a 95 % interval"
        assert (view.ended_cells, view.total_cells, view.seconds_left) == (2, 2, 0.0)
        name, board = (
            plan.rows[0].model.name,
            RowProgress(Assignment(plan.rows[0]), store, seconds=0.0),
        )
        board.phase("direct x", total=10)
        board.reach(12)
        assert store.events.read_progress(plan.key)[name]["left"] == 0.0
        board.reach(3, before=5)
        state = store.events.read_progress(plan.key)[name]
        assert (state["rate"], state["left"]) == (0.0, None)


def test_a_clock_elsewhere_that_is_late_hides_no_time_left(folder, tmp_path):
    plan = plan_study(study_of(folder, tmp_path / "c.db", "one"))
    with Store.open(plan.study.store) as store:
        store.studies.open("progress", plan.key, {})
        view = ProgressView(plan, store)
    cell = next(iter(plan.iterate_cells()))
    facts = {"row": plan.rows[0].model.name, "task": cell.task, "protocol": cell.protocol}
    assert view.count.hear(EventRecord(1, plan.key, "cell", facts, "2000-01-01T00:00:00+00:00"))
    assert view.seconds_left is not None


def test_time_left_is_told_at_the_pace_of_the_last_cells():
    now = time.time()
    assert estimate_seconds_left(now - 60, [], 5) is None
    assert estimate_seconds_left(now - 60, [now - 70, now - 30, now], 5) == pytest.approx(
        150, rel=0.01
    )
    quick, slow = (
        [now - 1000 + k / 100 for k in range(400)],
        [now - 10 * k for k in range(PACED + 1)],
    )
    assert estimate_seconds_left(now - 1000, quick + slow, 3) == pytest.approx(30, rel=0.01)
    assert estimate_seconds_left(now - 60, [now], -1) == 0.0


def test_without_a_terminal_a_line_comes_though_no_cell_ends(folder, tmp_path):
    plan = plan_study(study_of(folder, tmp_path / "q.db", "one", "two"))
    spoken = io.StringIO()
    with Store.open(plan.study.store) as store:
        store.studies.open("progress", plan.key, {})
        name = plan.rows[0].model.name
        with watch_study(plan, Console(file=spoken), quiet_seconds=0.1):
            RowProgress(Assignment(plan.rows[0]), store).phase(
                "scoring x.jsonl before fine-tuning", total=40
            )
            time.sleep(0.5)
    lines = spoken.getvalue().splitlines()
    assert len(lines) >= 2
    assert lines[-1].startswith("0/4 results · ")
    assert lines[-1].endswith(f" {Path(name).name}: scoring x.jsonl before fine-tuning 0 of 40")


def test_after_a_stop_nothing_runs(folder, tmp_path):
    plan = plan_study(study_of(folder, tmp_path / "s.db", "one"))
    with Store.open(plan.study.store) as store:
        store.studies.open("progress", plan.key, plan.study.model_dump(mode="json"))
    with pytest.raises(Stopped):
        compute_assignment(Assignment(plan.rows[0]), lambda: True, tasks=plan.tasks)
    (state,) = read_store_status(plan.study.store)["studies"]
    assert state["running"] == 0
    assert [row["phase"] for row in state["rows"].values()] == ["stopped"]


REFUSED = [
    pytest.param(
        ("one",),
        ("--device", "cuda"),
        "no CUDA device",
        marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is one"),
    ),
    (("one", "mute"), (), "has no tokenizer"),
    (("one", "packed"), (), "aqlm weights need a package"),
    (("one", "./nowhere/at/all"), (), "./nowhere/at/all: no such folder"),
]


@pytest.mark.parametrize(("models", "flags", "said"), REFUSED)
def test_what_cannot_run_is_refused_before_anything_is_done(
    folder, tmp_path, potentia, models, flags, said
):
    places = [str(folder / name) if (folder / name).exists() else name for name in models]
    store = tmp_path / "no.db"
    flags = ("--protocols", "direct", "--store", store, *flags)
    done = potentia("run", "--models", *places, "--tasks", folder / "x.jsonl", *flags)
    assert done.returncode == 2
    assert said in done.stderr
    assert "hint:" in done.stderr
    assert not store.exists()


def test_threads_sleep_and_libraries_show_no_bars():
    code = (
        "import os, sys; from potentia.cli.app import run_command_line; sys.argv = ['potentia', '--version']\n"
        "try: run_command_line()\n"
        "except SystemExit: pass\n"
        "from tqdm import tqdm; list(tqdm(range(3)))\n"
        "print(os.environ['OMP_WAIT_POLICY'], os.environ['KMP_BLOCKTIME'], 'torch' in sys.modules)"
    )
    own = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OMP_", "KMP_", "TQDM"))
    }
    for given, expected in (
        ({}, "PASSIVE 0 False"),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE 0 False"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", code], env={**own, **given}, capture_output=True, text=True
        )
        assert done.stdout.splitlines()[-1] == expected
        assert done.stderr == ""


def test_a_study_that_is_done_says_so_without_torch(folder, tmp_path):
    store = tmp_path / "d.db"
    run_study(study_of(folder, store, "one"))
    code = (
        "import sys; from potentia.cli.app import run_command_line\n"
        "try: run_command_line()\n"
        "except SystemExit as end: print(end.code or 0, 'torch' in sys.modules)\n"
    )
    asked = ["run", "--models", folder / "one", "--tasks", folder / "x.jsonl", folder / "y.jsonl"]
    asked += ["--protocols", "direct", "--device", "cpu", "--store", store]
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, asked)], capture_output=True, text=True
    )
    assert done.stdout.splitlines()[-1] == "0 False", done.stderr
