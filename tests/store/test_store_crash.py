"""Two processes write and are killed at random: what is committed is whole, and the rest can be written again."""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from potentia.store import Store
from speed import PATIENCE

CELLS = 2000
BATCH = 25
WRITER = f"""
import sys
from potentia.values.metric import Metric
from potentia.values.provenance import Provenance
from potentia.values.scores import ItemOutcome, Score
from potentia.store import CellRecord, Store

where, name = sys.argv[1:]
store = Store.open(where)
store.studies.open("crash", "s", {{}})
def cell(i):
    score = {{"acc": Score(i / {CELLS}, 0.01, 3, Metric.of("acc")), "f1": Score(0.5, 0.01, 3, Metric.of("f1"))}}
    provenance = Provenance(details={{"i": i}})
    return CellRecord(f"{{name}}-{{i:05d}}", "s", name, f"t{{i}}", "direct", score, "acc", provenance)
for start in range(0, {CELLS}, {BATCH}):
    store.cells.commit_many([cell(i) for i in range(start + 1, start + {BATCH})])
    store.cells.commit(cell(start), items=[ItemOutcome(j, 1.0, "a", "a", {{"i": start}}) for j in range(3)])
"""


def check(where: Path) -> int:
    """Every committed cell has its scores, its manifest, its study and its items; returns how many there are."""
    with sqlite3.connect(where) as raw:
        assert raw.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert raw.execute("PRAGMA foreign_key_check").fetchall() == []
    with Store.open(where) as store:
        cells = store.cells.read(study="crash") if store.studies.read() else []
        assert len(cells) == store.cells.count()
        for cell in cells:
            i = int(cell.key.rpartition("-")[2])
            assert cell.provenance.details == {"i": i}
            assert cell.score.value == i / CELLS
            assert set(cell.scores) == {"acc", "f1"}
            if i % BATCH == 0:
                assert [item.detail for item in store.cells.read_items(cell.key)] == [{"i": i}] * 3
        return len(cells)


@pytest.mark.slow
def test_killed_writers_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    script = tmp_path / "writer.py"
    script.write_text(WRITER)
    log = path.with_name("store.db-wal")
    dice = random.Random(7)

    def start(name: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, str(script), str(path), name])

    seen = 0
    for _ in range(4):
        writers = [start("a"), start("b")]
        # Wait until this round has written something, so that the kill falls into the writing.
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and all(w.poll() is None for w in writers):
            if log.exists() and log.stat().st_size > 300_000:
                break
            time.sleep(0.01)
        for writer in writers:
            time.sleep(dice.uniform(0.0, 0.4))
            writer.send_signal(signal.SIGKILL)
        for writer in writers:
            writer.wait()
        now = check(path) if path.exists() else 0
        assert now >= seen
        seen = now
    writers = [start("a"), start("b")]
    assert [writer.wait(timeout=PATIENCE) for writer in writers] == [0, 0]
    assert check(path) == 2 * CELLS
