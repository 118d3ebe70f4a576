"""What is publicly known of the benchmarks: those of the papers, those they left out and why; and of one's own tasks.

``options`` of the shipped file is the number of answers to choose from, 0 where the answer is written freely, and one
number per member for a group (BBH: 2;2;6;…): the accuracy of a guess is the mean of 1/k.
"""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

from potentia.errors import DataError
from potentia.files import plain_file
from potentia.values.plain_yaml import LARGEST

CATEGORIES = {
    "LU": "language understanding",
    "CR": "commonsense reasoning",
    "QA": "question answering",
    "PBC": "physics, biology, chemistry",
    "Math": "mathematics",
    "Med": "medicine",
}
COLUMNS = ("task", "name", "category", "metric", "train_size", "options", "chance", "status", "reason")


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One benchmark: the harness's name, the paper's name and category (table 1), the metric of its scores.

    ``status`` is ``paper`` (one of the 24), ``excluded`` (one of the 13, with the reason), ``test-task`` (MMLU) or
    ``leaderboard-v2``; ``own`` for a task of the user's. ``train_size`` is that of the public split before any cap,
    ``chance`` the accuracy of a guess.
    """

    task: str
    name: str = ""
    category: str = ""
    metric: str = ""
    train_size: int | None = None
    chance: float | None = None
    status: str = "own"
    reason: str = ""


@cache
def benchmarks() -> tuple[Benchmark, ...]:
    """Return all known benchmarks, in the order of the file."""
    text = files("potentia.facts").joinpath("benchmarks.csv").read_text("utf-8")
    return _parse(text, "potentia/facts/benchmarks.csv")


def benchmark(task: str) -> Benchmark | None:
    """Return what is known of one task, if anything."""
    return next((known for known in benchmarks() if known.task == task), None)


def read_benchmarks(path: str | Path) -> tuple[Benchmark, ...]:
    """Read a CSV of facts on tasks: ``task``, and any of ``category``, ``train_size``, ``chance`` (or ``options``)."""
    try:
        text = plain_file(Path(path), LARGEST, DataError).read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"the facts of tasks cannot be read: {error}", where=str(path)) from None
    return _parse(text, str(path))


def _parse(text: str, where: str) -> tuple[Benchmark, ...]:
    reader = csv.DictReader(io.StringIO(text, newline=""))
    columns = [str(column).strip() for column in reader.fieldnames or ()]
    unknown = [column for column in columns if column not in COLUMNS]
    if "task" not in columns or unknown:
        what = f"unknown column {unknown[0]}" if unknown else "no column names the tasks"
        raise DataError(what, where=where, hint=f"the columns are {', '.join(COLUMNS)}; task is enough")
    reader.fieldnames = columns
    found: dict[str, Benchmark] = {}
    for raw in reader:
        place = f"{where}, line {reader.line_num}"
        row = {key: (value or "").strip() for key, value in raw.items() if isinstance(key, str)}
        if not row["task"] or row["task"] in found:
            raise DataError("a task has no name" if not row["task"] else f"{row['task']} is there twice", where=place)
        found[row["task"]] = Benchmark(
            task=row["task"],
            name=row.get("name", ""),
            category=row.get("category", ""),
            metric=row.get("metric", ""),
            train_size=_whole(row, place),
            chance=_chance(row, place),
            status=row.get("status") or "own",
            reason=row.get("reason", ""),
        )
    return tuple(found.values())


def _whole(row: dict[str, str], place: str) -> int | None:
    text = row.get("train_size", "")
    if text and not text.isdecimal():
        raise DataError(f"{text!r} is no number of examples", where=f"{place}, column train_size")
    return int(text) if text else None


def _chance(row: dict[str, str], place: str) -> float | None:
    """Return the accuracy of a guess: as given, else the mean of 1/k over the numbers of options."""
    if text := row.get("chance", ""):
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 <= value <= 1:
            raise DataError(f"{text!r} is no share from 0 to 1", where=f"{place}, column chance")
        return value
    parts = [part.strip() for part in row.get("options", "").split(";") if part.strip()]
    if not all(part.isdecimal() and part != "1" for part in parts):
        raise DataError(f"{row['options']!r} is no number of options", where=f"{place}, column options")
    return sum(1 / int(part) if int(part) else 0.0 for part in parts) / len(parts) if parts else None
