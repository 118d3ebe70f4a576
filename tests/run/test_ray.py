"""Rows as tasks of a Ray cluster: a real one, of this machine."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import tiny
from potentia.errors import InputError, PotentiaError
from potentia.run import Assignment, plan_study, run_study
from potentia.run.cost import estimate_weight_bytes
from potentia.run.executors.ray import (
    ask_cluster,
    check_store_is_shared,
    estimate_resources,
    set_start_bounds,
    start_ray,
)
from potentia.store import Store
from potentia.study import Study, make_study

ray = pytest.importorskip("ray")


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    os.environ |= {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        "RAY_raylet_start_wait_time_s": "600",  # a busy machine starts it late
    }
    with tempfile.TemporaryDirectory(
        prefix="ray-", ignore_cleanup_errors=True
    ) as folder:  # short, for sockets
        options = {"_node_ip_address": "127.0.0.1", "_temp_dir": folder}
        ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, **options)
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


@pytest.mark.long
def test_a_cluster_gives_the_scores_of_one_process(cluster, tmp_path: Path):
    here, there = study(tmp_path, "here.db"), study(tmp_path, "there.db")
    assert run_study(here).computed == 4
    result = run_study(there, executor="ray")
    assert (result.computed, result.failed) == (4, 0), result.reasons
    with Store.open(here.store) as first, Store.open(there.store) as second:
        for protocol in ("direct", "train_before_test"):
            assert (
                first.scores.read_matrix(protocol).values
                == second.scores.read_matrix(protocol).values
            ).all()


@pytest.mark.long
def test_a_row_whose_task_is_lost_again_and_again_fails_alone(cluster, tmp_path: Path, monkeypatch):
    def dies(
        row: Assignment, flag: object, share: float
    ):  # inside the test, so that Ray sends its code along
        import os

        from potentia.run.worker import compute_assignment

        if row.model.name == "m0":
            os._exit(1)
        return compute_assignment(row, lambda: False)

    monkeypatch.setattr("potentia.run.executors.ray._run_task", dies)
    model_copy_made = study(tmp_path, "lost.db").model_copy(update={"protocols": ("direct",)})
    result = run_study(model_copy_made, executor="ray")
    assert (result.computed, result.failed, result.exit_code) == (1, 1, 1)
    assert "its Ray task was lost: WorkerCrashedError: " in result.reasons[0]
    assert "\x1b" not in result.reasons[0]


def test_needs_follow_from_the_weights(tmp_path: Path):
    model_copy_made = study(tmp_path, "needs.db").model_copy(update={"device": "cuda"})
    row = plan_study(model_copy_made).rows[0]
    assert estimate_weight_bytes(row) == (tmp_path / "m0" / "model.safetensors").stat().st_size
    small = estimate_resources(Assignment(row), 80 * 2**30)
    assert small.num_gpus == 0.05, "many small models share a GPU"
    assert estimate_resources(Assignment(row), 2**30).num_gpus == 1.0
    assert "num_gpus" not in estimate_resources(Assignment(row), None).to_options()
    unknown = replace(
        row, model=row.model.model_copy(update={"path": "nobody/knows", "parameters": None})
    )
    assert estimate_weight_bytes(unknown) is None
    assert estimate_resources(Assignment(unknown), 80 * 2**30).num_gpus == 1.0


def test_a_cluster_of_several_machines_wants_a_shared_store(tmp_path: Path):
    class Two:
        @staticmethod
        def nodes():
            return [{"Alive": True}, {"Alive": True}]

    new_study = study(tmp_path, "s.db")
    for store in (new_study.store, f"sqlite:///{new_study.store}"):
        row = plan_study(new_study.model_copy(update={"store": store})).rows[0]
        with pytest.raises(InputError, match="cannot be shared between machines"):
            check_store_is_shared(Two, Assignment(row))


class SilentCluster:
    """Stands in for a cluster that does not start, and gives no task a worker."""

    exceptions = ray.exceptions

    @staticmethod
    def is_initialized() -> bool:
        return False

    @staticmethod
    def init(**_: object) -> None:
        raise ConnectionError("the raylet did not register")

    @staticmethod
    def get(reference: object, timeout: float) -> None:
        raise ray.exceptions.GetTimeoutError(f"no answer in {timeout} s")


def test_a_cluster_that_does_not_answer_is_reported_and_not_waited_for_without_end():
    with pytest.raises(PotentiaError, match="Ray does not start: ConnectionError: the raylet"):
        start_ray(SilentCluster)
    with pytest.raises(PotentiaError, match="started no worker within 300 s") as caught:
        ask_cluster(SilentCluster, object())
    assert caught.value.hint is not None
    assert "drop --executor ray" in caught.value.hint


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_an_address_without_a_cluster_is_refused_before_ray_waits_for_it(
    scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray tried for 13 minutes to reach a cluster that was not there."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"{scheme}127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(PotentiaError, match=f"no Ray cluster answers at {address}") as caught:
        start_ray(SilentCluster)
    assert "ray start --head" in str(caught.value.hint)


@pytest.mark.parametrize("address", ["auto", "local", ""])
def test_addresses_that_ray_finds_itself_are_left_to_it(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(PotentiaError, match="Ray does not start"):
        start_ray(SilentCluster)


def test_rays_attempts_to_reach_a_cluster_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {})
    set_start_bounds()
    assert os.environ == {
        "RAY_raylet_start_wait_time_s": "300",
        "RAY_NUM_REDIS_GET_RETRIES": "7",  # of 40 s each
    }
