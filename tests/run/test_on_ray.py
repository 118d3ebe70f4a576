"""Rows as tasks of a Ray cluster: a real one, of this machine."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import tiny
from potentia.run import RowPlan, run_study
from potentia.store import Store
from potentia.study import Study, make_study

ray = pytest.importorskip("ray")


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:  # short, for sockets
        options = {"_node_ip_address": "127.0.0.1", "_temp_dir": folder}
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, **options)
        yield
        ray.shutdown()


def study(folder: Path, store: str) -> Study:
    for seed in (0, 1):
        tiny.save_model(folder / f"m{seed}", seed=seed)
    tiny.save_questions(folder / "colours.jsonl", n=60)
    return make_study(
        {
            "name": "on-ray",
            "models": [{"name": f"m{seed}", "path": str(folder / f"m{seed}")} for seed in (0, 1)],
            "tasks": [{"name": "colours", "file": str(folder / "colours.jsonl")}],
            "tuning": {"learning_rates": [1e-3], "epochs": 2},
            "device": "cpu",
            "store": str(folder / store),
        }
    )


@pytest.mark.slow
def test_a_cluster_gives_the_scores_of_one_process(cluster, tmp_path: Path):
    here, there = study(tmp_path, "here.db"), study(tmp_path, "there.db")
    assert run_study(here).computed == 4
    result = run_study(there, executor="ray")
    assert (result.computed, result.failed) == (4, 0), result.reasons
    with Store.open(here.store) as one, Store.open(there.store) as two:
        for protocol in ("direct", "train_before_test"):
            assert (one.matrix(protocol).values == two.matrix(protocol).values).all()


@pytest.mark.slow
def test_a_row_whose_task_is_lost_again_and_again_fails_alone(cluster, tmp_path: Path, monkeypatch):
    def dies(row: RowPlan):  # inside the test, so that Ray sends its code along
        import os

        from potentia.run.execute import work_row

        if row.model.name == "m0":
            os._exit(1)
        return work_row(row, lambda: False)

    monkeypatch.setattr("potentia.run.on_ray._row", dies)
    made = study(tmp_path, "lost.db").model_copy(update={"protocols": ("direct",)})
    result = run_study(made, executor="ray")
    assert (result.computed, result.failed, result.exit_code) == (1, 1, 1)
    assert "its Ray task was lost" in result.reasons[0]
