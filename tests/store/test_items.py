"""Stored items: clusters travel to disk and back, and files that were written before there were clusters still read."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq

from potentia.store.items import (
    items_path,
    load_item_values,
    load_items,
    publish_items,
    stage_items,
)
from potentia.values.scores import ItemOutcome

ITEMS = [
    ItemOutcome(0, 1.0, "yes", "yes", {}, "passage 1"),
    ItemOutcome(1, 0.0, "no", "yes", {}, "passage 1"),
    ItemOutcome(2, 1.0, "no", "no", {}),
]


def write_items(folder: Path) -> None:
    publish_items(folder, "cell", stage_items(folder, "cell", ITEMS))


def test_clusters_come_back(tmp_path: Path) -> None:
    write_items(tmp_path)
    assert load_items(tmp_path, "cell") == ITEMS
    read = load_item_values(tmp_path, "cell")
    assert read is not None
    assert read.values == {0: 1.0, 1: 0.0, 2: 1.0}
    assert read.clusters == {0: "passage 1", 1: "passage 1"}


def test_items_without_clusters_still_read(tmp_path: Path) -> None:
    write_items(tmp_path)
    path = items_path(tmp_path, "cell")
    pq.write_table(pq.read_table(path).drop(["cluster"]), path)
    assert [item.cluster for item in load_items(tmp_path, "cell")] == ["", "", ""]
    read = load_item_values(tmp_path, "cell")
    assert read is not None
    assert read.clusters == {}
    assert len(load_items(tmp_path, "cell", lambda values: [1])) == 1
