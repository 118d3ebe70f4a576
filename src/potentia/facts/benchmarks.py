"""What is publicly known of the benchmarks: those of the papers, those they left out and why."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

CATEGORIES = {
    "LU": "language understanding",
    "CR": "commonsense reasoning",
    "QA": "question answering",
    "PBC": "physics, biology, chemistry",
    "Math": "mathematics",
    "Med": "medicine",
}


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One benchmark: the harness's name, the paper's name and category (table 1), the metric of its scores.

    ``status`` is ``paper`` (one of the 24), ``excluded`` (one of the 13, with the reason), ``test-task`` (MMLU) or
    ``leaderboard-v2``. ``train_size`` is that of the public split before any cap.
    """

    task: str
    name: str
    category: str
    metric: str
    train_size: int | None
    status: str
    reason: str


@cache
def benchmarks() -> tuple[Benchmark, ...]:
    """Return all known benchmarks, in the order of the file."""
    text = files("potentia.facts").joinpath("benchmarks.csv").read_text("utf-8")
    return tuple(
        Benchmark(
            task=row["task"],
            name=row["name"],
            category=row["category"],
            metric=row["metric"],
            train_size=int(row["train_size"]) if row["train_size"] else None,
            status=row["status"],
            reason=row["reason"],
        )
        for row in csv.DictReader(text.splitlines())
    )


def benchmark(task: str) -> Benchmark | None:
    """Return what is known of one task, if anything."""
    return next((known for known in benchmarks() if known.task == task), None)
