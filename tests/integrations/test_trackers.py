from __future__ import annotations

import sys
from pathlib import Path

import pytest

from potentia.errors import InputError, MissingExtraError
from potentia.extras import Extra
from potentia.integrations.trackers import send_to_tracker
from potentia.store import CellRecord, LaneRecord, Store
from potentia.values.fine_tuning import EpochResult
from potentia.values.metric import Metric
from potentia.values.scores import Score


@pytest.fixture
def store(tmp_path: Path) -> Store:
    new_store = Store.open(tmp_path / "s.db")
    new_store.studies.open("s", "key", {})
    new_store.cells.commit(
        CellRecord(
            "c",
            "key",
            "org/m",
            "t",
            "direct",
            {"acc": Score(0.5, 0.1, 10, Metric.of("acc"))},
            "acc",
        )
    )
    curve = (EpochResult(0, None, 0.3, 0.1), EpochResult(1, 2.5, 0.6, 0.1))
    new_store.lanes.save(LaneRecord("l", "key", "org/m", "t", 1e-3, "plain", epochs=curve))
    return new_store


def test_tensorboard_gets_curves_and_scores(store: Store, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert send_to_tracker(store, "s", to="tensorboard", folder=tmp_path / "tracks") == {"org/m": 4}
    reload = EventAccumulator(str(tmp_path / "tracks" / "s" / "org--m")).Reload()
    curve = reload.Scalars("validation/t/lr 0.001 plain seed 0")
    assert [(p.step, round(p.value, 3)) for p in curve] == [(0, 0.3), (1, 0.6)]
    assert reload.Scalars("direct/t")[0].value == pytest.approx(0.5)


def test_mlflow_gets_curves_and_scores(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    monkeypatch.chdir(tmp_path)
    assert send_to_tracker(store, "s", to="mlflow", folder=tmp_path) == {"org/m": 4}
    (run,) = mlflow.search_runs(experiment_names=["s"], output_format="list")
    assert run.data.metrics["direct/t"] == pytest.approx(0.5)
    curve = mlflow.MlflowClient().get_metric_history(
        run.info.run_id, "validation/t/lr 0.001 plain seed 0"
    )
    assert [(point.step, point.value) for point in curve] == [(0, 0.3), (1, 0.6)]


def test_wandb_gets_one_run_a_model(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    assert send_to_tracker(store, "s", to="wandb", folder=tmp_path) == {"org/m": 4}
    wandb.teardown()  # its process writes the file when it ends
    (run_file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    assert b"validation/t/lr 0.001 plain seed 0" in run_file.read_bytes()


def test_an_unknown_or_missing_tracker_names_the_fix(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="no tracker"):
        send_to_tracker(store, "s", to="paper", folder=tmp_path)
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtraError) as caught:
        send_to_tracker(store, "s", to="wandb", folder=tmp_path)
    assert caught.value.hint == Extra.TRACK.install_command
