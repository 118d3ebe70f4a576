"""Rows as jobs that submitit hands in: here as processes of this machine, by its local executor."""

from __future__ import annotations

from pathlib import Path

import pytest

import tiny
from potentia.run import run_study
from potentia.run.executors import slurm
from potentia.store import Store
from potentia.study import Study, make_study

pytest.importorskip("submitit")


@pytest.fixture
def study(tmp_path: Path) -> Study:
    for seed in (0, 1):
        tiny.save_model(tmp_path / f"m{seed}", seed=seed)
    tiny.save_questions(tmp_path / "colours.jsonl", n=60)
    return make_study(
        {
            "name": "jobs",
            "models": [{"name": f"m{seed}", "path": str(tmp_path / f"m{seed}")} for seed in (0, 1)],
            "tasks": [{"name": "colours", "file": str(tmp_path / "colours.jsonl")}],
            "protocols": ["direct"],
            "device": "cpu",
            "store": str(tmp_path / "s.db"),
        }
    )


def test_a_job_gives_the_score_of_one_process_and_one_that_is_lost_costs_its_row_alone(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = study.model_copy(update={"store": str(tmp_path / "here.db")})
    assert run_study(here).computed == 2
    submit = slurm.SlurmExecutor.submit

    def submit_and_lose(self: slurm.SlurmExecutor, assignment: object) -> object:
        job = submit(self, assignment)  # type: ignore[arg-type]
        if assignment.model.name == "m0":  # type: ignore[attr-defined]
            job.cancel()
        return job

    monkeypatch.setattr(slurm.SlurmExecutor, "submit", submit_and_lose)
    result = run_study(study, executor="slurm")
    assert (result.computed, result.failed) == (1, 1)
    assert "m0 × colours × direct: its SLURM job" in result.reasons[0]
    with Store.open(here.store) as first, Store.open(study.store) as second:
        expected = {cell.model: cell.score for cell in first.cells.read()}
        assert {cell.model: cell.score for cell in second.cells.read()} == {"m1": expected["m1"]}


def test_jobs_stop_when_they_are_asked(study: Study, tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    stop.touch()
    from potentia.run import plan_study
    from potentia.run.execute import make_assignments, register_study

    plan = plan_study(study)
    register_study(plan)
    (first, _) = make_assignments(plan, 1)
    answer = slurm._run_job(first, str(stop))
    assert answer is None or answer.done == 1, "stopped, or ended within the second"
