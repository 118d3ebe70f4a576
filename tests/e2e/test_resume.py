"""Kill a study at random moments and resume it: the scores are those of a run that was never disturbed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

import tiny
from potentia.store import Store

RUNS = int(os.environ.get("POTENTIA_KILL_RUNS", "3"))
POTENTIA = str(Path(sys.executable).with_name("potentia"))


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    for seed in (0, 1):
        tiny.save_model(folder / f"m{seed}", seed=seed)
    tiny.save_questions(folder / "colours.jsonl", n=300)
    tiny.save_texts(folder / "notes.jsonl", n=120)
    file = folder / "study.yaml"
    file.write_text(
        yaml.safe_dump(
            {
                "name": "kill",
                "models": [{"name": f"m{seed}", "path": f"m{seed}"} for seed in (0, 1)],
                "tasks": [{"name": "colours", "file": "colours.jsonl"}, {"name": "notes", "file": "notes.jsonl"}],
                "tuning": {"learning_rates": [1e-3, 3e-3, 1e-2], "epochs": 6},
            }
        )
    )
    return file


def start(study: Path, store: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [POTENTIA, "run", str(study), "--store", str(store)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def scores(store: Path) -> dict[tuple[str, str, str], tuple[float, float]]:
    with Store.open(store) as opened:
        return {(c.model, c.task, c.protocol): (c.score.value, c.score.stderr) for c in opened.cells()}


@pytest.fixture(scope="module")
def undisturbed(study: Path) -> tuple[dict[tuple[str, str, str], tuple[float, float]], float]:
    store = study.with_name("whole.db")
    began = time.monotonic()
    process = start(study, store)
    said, _ = process.communicate(timeout=600)
    assert process.returncode == 0, said
    found = scores(store)
    assert len(found) == 8
    return found, time.monotonic() - began


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, *(pytest.param(k, marks=pytest.mark.long) for k in range(1, RUNS))])
def test_killed_runs_end_with_the_same_scores(study: Path, undisturbed, number: int):
    expected, seconds = undisturbed
    store = study.with_name(f"killed-{number}.db")
    stream = random.Random(number)
    for _ in range(4):
        process = start(study, store)
        try:
            process.wait(timeout=stream.uniform(0.25, 0.95) * seconds)
            break  # it was quicker than the killer
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
    process = start(study, store)
    said, _ = process.communicate(timeout=600)
    assert process.returncode == 0, said
    assert scores(store) == expected
    with Store.open(store) as opened:
        (record,) = opened.studies()
        ended = [
            (e.payload["row"], e.payload["task"], e.payload["protocol"])
            for e in opened.events(record.key)
            if e.kind == "cell"
        ]
    assert len(ended) == len(set(ended)), "no cell is computed twice once it is committed"
    assert not any(store.with_name(store.name + ".lanes").glob("*")), "nothing is left behind"


def test_ctrl_c_saves_says_how_to_go_on_and_exits_with_130(study: Path, undisturbed):
    expected, _ = undisturbed
    store = study.with_name("stopped.db")
    process = start(study, store)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("[2/8]"):  # the first model has been scored as it is; its tuning begins
            break
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert f"To go on: potentia run {study} --store {store}\n" in said, "on one line, to be pasted"
    again = start(study, store)
    said, _ = again.communicate(timeout=600)
    assert again.returncode == 0, said
    assert scores(store) == expected
