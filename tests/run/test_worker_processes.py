"""Workers who are there before it is known what for: they serve the run, or leave nothing behind."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

import tiny
from potentia import zoo
from potentia.cli.app import app
from potentia.errors import InputError
from potentia.run import WorkerProcesses, estimate_worker_count, plan_study, run_study
from potentia.run.worker import load_tasks_once
from potentia.study import Study, make_study
from speed import PATIENCE


@pytest.fixture
def study(tmp_path: Path) -> Study:
    for seed in (0, 1):
        tiny.save_model(tmp_path / f"m{seed}", seed=seed)
    tiny.save_questions(tmp_path / "colours.jsonl", n=60)
    return make_study(
        {
            "name": "early",
            "models": [{"name": f"m{seed}", "path": str(tmp_path / f"m{seed}")} for seed in (0, 1)],
            "tasks": [{"name": "colours", "file": str(tmp_path / "colours.jsonl")}],
            "protocols": ["direct"],
            "device": "cpu",
            "store": str(tmp_path / "s.db"),
        }
    )


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_early_workers_serve_the_run_and_those_not_needed_leave(study: Study) -> None:
    with WorkerProcesses(3, study) as crew:
        early = {process.pid for _, process in crew._spare}
        result = run_study(plan_study(study), workers=2, processes=crew)
        assert not crew._spare
    assert result.computed == 2
    (log,) = Path(f"{study.store}.logs").glob("*.jsonl")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    served = {line["pid"] for line in lines if line["kind"] == "lease"}
    assert served < early
    assert all(map(gone, early))


def test_tasks_that_a_worker_loaded_early_are_those_of_its_rows(study: Study) -> None:
    row = pickle.loads(pickle.dumps(plan_study(study).rows[0]))
    assert load_tasks_once(study) is load_tasks_once(row.study)


def test_a_worker_that_died_before_it_was_needed_is_replaced(study: Study) -> None:
    with WorkerProcesses(2, study) as crew:
        (_, dead), (_, other) = crew._spare
        dead.kill()
        dead.join()
        hired = [crew.start_worker(number, 2, False)[1] for number in (0, 1)]
        assert dead not in hired
        assert other in hired
        assert all(process.is_alive() for process in hired)


def test_a_study_that_is_refused_leaves_no_process(study: Study, tmp_path: Path) -> None:
    (tmp_path / "colours.jsonl").unlink()
    with pytest.raises(InputError), WorkerProcesses(2, study) as crew:  # noqa: PT012
        early = [process.pid for _, process in crew._spare]
        plan_study(study)
    assert all(map(gone, early))


def test_an_interrupt_while_workers_start_leaves_none(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They ignore who asks them to end: the program waited for them without end."""
    begun, early = WorkerProcesses._start, []

    def start(self: WorkerProcesses) -> None:
        early.append(begun(self)[1].pid)
        raise KeyboardInterrupt

    monkeypatch.setattr(WorkerProcesses, "_start", start)
    with pytest.raises(KeyboardInterrupt), WorkerProcesses(2, study):
        raise AssertionError
    assert len(early) == 1
    assert all(map(gone, early))
    crew = WorkerProcesses()
    with pytest.raises(KeyboardInterrupt):
        crew.start_worker(0, 1, False)
    crew.close()
    assert all(map(gone, early))


def test_a_worker_that_cannot_warm_up_is_silent_and_hears_what_the_run_sets_later(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Who plans the study meets the same error and says it once; each worker printed a trace of its own.

    NVIDIA's service starts after the workers, and says of itself in the environment.
    """
    with WorkerProcesses(1, "no study") as processes:  # type: ignore[arg-type]
        monkeypatch.setenv("SAID_LATER", "in time")
        pipe, process = processes.start_worker(0, 1, False)
        pipe.send(Asks())
        assert pipe.recv().message == "RuntimeError: heard in time"
        pipe.close()
        process.join(PATIENCE)
        assert process.exitcode == 0
    assert capfd.readouterr().err == ""


def test_a_worker_that_dies_idle_costs_its_row_alone(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    hired, own = [], WorkerProcesses.start_worker

    def hire(self: WorkerProcesses, *how: object) -> object:
        hired.append(own(self, *how))
        if len(hired) == 1:
            hired[0][1].kill()
            hired[0][1].join()
        return hired[-1]

    monkeypatch.setattr(WorkerProcesses, "start_worker", hire)
    result = run_study(plan_study(study), workers=2)
    assert (result.computed, result.failed) == (1, 1)
    assert "the worker process of this model died (SIGKILL)" in result.reasons[0]


class Asks:
    """Stands for a row's plan, and fails with what its worker sees."""

    study, memory_share = SimpleNamespace(device="cpu"), 1.0

    @property
    def threads(self) -> int:
        raise RuntimeError(f"heard {os.environ['SAID_LATER']}")


EARLY = """
import os, signal, sys, time
from potentia.run import WorkerProcesses
from potentia.study import read_study
if __name__ == "__main__":
    signal.signal(signal.SIGINT, lambda *_: None)
    with WorkerProcesses(2, read_study(sys.argv[1])) as crew:
        asked = getattr(signal, sys.argv[2])
        for _ in range(40):
            os.kill(os.getpid() if asked == signal.SIGKILL else 0, asked)  # 0: the whole group, as a terminal does
            time.sleep(0.05)
        print(sum(process.is_alive() for _, process in crew._spare))
"""


@pytest.mark.parametrize(
    ("asked", "staying"), [("SIGINT", "2\n"), ("SIGTERM", ""), ("SIGKILL", "")]
)
def test_a_run_that_is_stopped_while_it_is_planned_says_nothing(
    study: Study, tmp_path: Path, asked: str, staying: str
) -> None:
    """Workers that had just begun told of an interrupt at length, and Python of semaphores that nobody let go."""
    (tmp_path / "study.yaml").write_text(
        json.dumps(study.model_dump(mode="json", exclude_defaults=True))
    )
    (tmp_path / "early.py").write_text(EARLY)
    command = [sys.executable, "early.py", "study.yaml", asked]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        start_new_session=True,
        timeout=PATIENCE,
    )
    assert (done.stdout, done.stderr) == (staying, "")


@pytest.mark.parametrize(
    ("cores", "wanted"), [(16, [0, 0, 2, 2]), (3, [0, 0, 2, 2]), (2, [0, 0, 0, 0])]
)
def test_early_workers_are_for_several_rows_at_once_and_cores_that_are_free(
    study: Study, monkeypatch: pytest.MonkeyPatch, cores: int, wanted: list[int]
) -> None:
    """On two cores they gained half a second of a study, and a study that was done took twice as long to say so."""
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert [estimate_worker_count(study, asked) for asked in (None, 1, 2, 8)] == wanted


def test_the_command_starts_workers_before_it_reads_tasks(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from potentia.run import plan

    def refused(_: Study) -> None:
        seen.append("tasks")
        raise InputError("no tasks today")

    begun, seen = WorkerProcesses._start, []
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(
        WorkerProcesses, "_start", lambda self: seen.append("worker") or begun(self)
    )
    monkeypatch.setattr(plan, "load_tasks", refused)
    models = [part for seed in (0, 1) for part in ("--models", f"{tmp_path}/m{seed}")]
    flags = ["--protocols", "direct", "--device", "cpu", "--store", study.store, "--workers", "2"]
    ran = CliRunner().invoke(app, ["run", *models, "--tasks", f"{tmp_path}/colours.jsonl", *flags])
    assert str(ran.exception) == "no tasks today"
    assert seen == ["worker", "worker", "tasks"]


def test_workers_leave_nothing_that_python_warns_of(study: Study, tmp_path: Path) -> None:
    """Found before: every run of several models ended with a warning of leaked semaphores, of progress bars' locks."""
    models = zoo.write_model_folders(tmp_path / "models", ["aster-71k", "birch-71k"])
    task = zoo.write_task_files(tmp_path / "tasks")["ask"]
    command = [sys.executable, "-m", "potentia", "run", "--tasks", str(task), "--workers", "2"]
    command += ["--models", *map(str, models.values()), "--protocols", "direct"]
    command += ["--set", "caps.test=10", "--device", "cpu", "--store", study.store, "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "Next:" not in done.stdout  # the answer alone
