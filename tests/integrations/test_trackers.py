from __future__ import annotations

import sys
from pathlib import Path

import pytest

from potentia.errors import InputError, MissingExtraError
from potentia.integrations.trackers import send_to_tracker
from potentia.store import CellRecord, EpochRecord, LaneRecord, Store
from potentia.values.metric import Metric
from potentia.values.scores import Score


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store.open(tmp_path / "s.db")
    made.studies.open("s", "key", {})
    made.cells.commit(
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
    curve = (EpochRecord(0, None, 0.3, 0.1), EpochRecord(1, 2.5, 0.6, 0.1))
    made.lanes.save(LaneRecord("l", "key", "org/m", "t", 1e-3, "plain", epochs=curve))
    return made


def test_tensorboard_gets_curves_and_scores(store: Store, tmp_path: Path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert send_to_tracker(store, "s", to="tensorboard", folder=tmp_path / "tracks") == {"org/m": 4}
    found = EventAccumulator(str(tmp_path / "tracks" / "s" / "org--m")).Reload()
    curve = found.Scalars("validation/t/lr 0.001 plain seed 0")
    assert [(p.step, round(p.value, 3)) for p in curve] == [(0, 0.3), (1, 0.6)]
    assert found.Scalars("direct/t")[0].value == pytest.approx(0.5)


def test_an_unknown_or_missing_tracker_names_the_fix(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with pytest.raises(InputError, match="no tracker"):
        send_to_tracker(store, "s", to="paper", folder=tmp_path)
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtraError) as caught:
        send_to_tracker(store, "s", to="wandb", folder=tmp_path)
    assert "potentia[track]" in str(caught.value)
