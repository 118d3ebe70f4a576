"""How fast the store writes and reads 100,000 cells, beside a flat table written by pandas.

    python bench/store.py            # SQLite in a temporary folder
    python bench/store.py --store postgresql+psycopg://user@host/name

Prints cells per second writing in batches (goal: at least 5,000), seconds until the ScoreMatrix is there (goal: under
2), and the ratio to pandas, which writes one flat table: one metric, no index, no foreign keys, no synced commits.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sqlite3
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from potentia.store import CellRecord, Store
from potentia.values.metric import Metric
from potentia.values.provenance import Provenance
from potentia.values.scores import Score
from potentia.values.selection import Selection

MODELS, TASKS, BATCH = 1000, 100, 2000


def make_cells() -> list[CellRecord]:
    """Cells as a study makes them: two metrics, a provenance of about a kilobyte."""
    content = {
        "versions": {
            "torch": "2.13.0",
            "transformers": "5.22.0",
            "peft": "0.21.0",
            "lm-eval": "0.4.13",
        },
        "bos": "every window",
        "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"],
        "prompts": [list(range(40)) for _ in range(3)],
    }
    provenance = Provenance.from_dict(content)
    return [
        CellRecord(
            key=hashlib.sha256(str(i).encode()).hexdigest(),
            study="bench",
            model=f"org/model-{i // TASKS:04d}",
            task=f"task_{i % TASKS:03d}",
            protocol="train_before_test",
            scores={
                "acc": Score(i % 97 / 97, 0.01, 1000, Metric.of("acc")),
                "acc_norm": Score(0.5, 0.01, 1000, Metric.of("acc_norm")),
            },
            metric="acc",
            provenance=provenance,
            selection=Selection(learning_rate=2e-5, epoch=3),
            seconds=1.5,
        )
        for i in range(MODELS * TASKS)
    ]


def ours(location: str, cells: Sequence[CellRecord]) -> tuple[float, float]:
    """Return cells per second written and seconds until the matrix."""
    with Store.open(location) as store:
        store.studies.open("bench", "bench", {})
        start = time.perf_counter()
        new = sum(
            store.cells.commit_many(cells[i : i + BATCH]) for i in range(0, len(cells), BATCH)
        )
        rate = new / (time.perf_counter() - start)
        assert new == len(cells), "the store was not empty"
    with Store.open(location) as store:
        start = time.perf_counter()
        matrix = store.scores.read_matrix("train_before_test")
        seconds = time.perf_counter() - start
        assert matrix.shape == (MODELS, TASKS)
        assert matrix.values[1, 5] == 105 % 97 / 97
    return rate, seconds


def pandas_flat(location: Path, cells: Sequence[CellRecord]) -> tuple[float, float]:
    """Return the same for ``DataFrame.to_sql`` and ``read_sql`` with a pivot."""
    import pandas as pd

    columns = ["key", "model", "task", "value", "stderr", "provenance"]
    rows = [
        (c.key, c.model, c.task, c.score.value, c.score.stderr, json.dumps(c.provenance.to_dict()))
        for c in cells
    ]
    with sqlite3.connect(location) as connection:
        start = time.perf_counter()
        for i in range(0, len(rows), BATCH):
            frame = pd.DataFrame(rows[i : i + BATCH], columns=columns)
            frame.to_sql("scores", connection, if_exists="append", index=False)
        rate = len(rows) / (time.perf_counter() - start)
        start = time.perf_counter()
        frame = pd.read_sql("SELECT model, task, value FROM scores", connection)
        assert frame.pivot(index="model", columns="task", values="value").shape == (MODELS, TASKS)
        return rate, time.perf_counter() - start


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--store", help="an empty store to write to; by default a file in a temporary folder"
    )
    options = parser.parse_args()
    cells = make_cells()
    with tempfile.TemporaryDirectory() as folder:
        rate, seconds = ours(options.store or f"{folder}/store.db", cells)
        peer_rate, peer_seconds = pandas_flat(Path(folder) / "flat.db", cells)
    print(f"{'':24}{'Potentia':>12}{'pandas':>12}{'ratio':>8}")
    print(f"{'written, cells/s':24}{rate:12,.0f}{peer_rate:12,.0f}{rate / peer_rate:8.2f}")
    print(
        f"{'read as matrix, s':24}{seconds:12.2f}{peer_seconds:12.2f}{peer_seconds / seconds:8.2f}"
    )
    ok = rate >= 5000 and seconds < 2
    print("goal (5,000 cells/s, under 2 s):", "met" if ok else "missed")
    raise SystemExit(0 if ok else 1)


if __name__ == "__main__":
    main()
