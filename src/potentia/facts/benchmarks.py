"""What is publicly known of benchmarks, those of the papers and one's own: size, the score of guessing, usual shots.

``options`` of the shipped file is the number of answers to choose from, 0 where the answer is written freely, and one
number per member for a group (BBH: 2;2;6;…): the accuracy of a guess is the mean of 1/k.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

from potentia.errors import DataError, InputError
from potentia.files import LARGEST_FILE, read_csv_rows, read_text
from potentia.values.metric import Metric
from potentia.values.protocol import TaskName

CATEGORIES = {
    "LU": "language understanding",
    "CR": "commonsense reasoning",
    "QA": "question answering",
    "PBC": "physics, biology, chemistry",
    "Math": "mathematics",
    "Med": "medicine",
}
COLUMNS = (
    "task",
    "name",
    "category",
    "metric",
    "train_size",
    "options",
    "chance",
    "group",
    "status",
    "reason",
)


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One benchmark: the harness's name, the paper's name and category (table 1), the metric of its scores.

    ``status`` is ``paper`` (one of the 24), ``excluded`` (one of the 13, with the reason), ``test-task`` (MMLU) or
    ``leaderboard-v2``; ``own`` for a task of the user's. ``train_size`` is that of the public split before any cap,
    ``chance`` the accuracy of a guess, ``group`` the benchmark that the task is a part of, where it is not all of it.
    """

    task: str
    name: str = ""
    category: str = ""
    metric: str = ""
    train_size: int | None = None
    chance: float | None = None
    group: str = ""
    status: str = "own"
    reason: str = ""


@cache
def benchmarks() -> tuple[Benchmark, ...]:
    """Return all known benchmarks, in the order of the file."""
    text = files("potentia.facts").joinpath("benchmarks.csv").read_text("utf-8")
    return _parse_benchmarks(text, "potentia/facts/benchmarks.csv")


def benchmark(task: str) -> Benchmark | None:
    """Return what is known of one task, if anything."""
    return next((facts for facts in benchmarks() if facts.task == task), None)


def read_benchmarks(path: str | Path) -> tuple[Benchmark, ...]:
    """Read a CSV of facts on tasks: ``task``, and any of ``category``, ``train_size``, ``chance`` (or ``options``)."""
    return _parse_benchmarks(read_text(Path(path), largest=LARGEST_FILE), str(path))


def _check_columns(header: list[str], source: str) -> list[str]:
    """Return the columns as they are; refuse a table without tasks and columns of other names."""
    unknown = [column for column in header if column not in COLUMNS]
    hint = f"the columns are {', '.join(COLUMNS)}; task is enough"
    if unknown:
        raise DataError(f"unknown column {unknown[0]}", where=source, hint=hint)
    if "task" not in header:
        raise DataError("no column names the tasks", where=source, hint=hint)
    return header


def _parse_benchmarks(text: str, source: str) -> tuple[Benchmark, ...]:
    benchmarks_by_task: dict[str, Benchmark] = {}
    for location, row in read_csv_rows(text, source, _check_columns):
        task = row["task"]
        if not task:
            raise DataError("a task has no name", where=location)
        if task in benchmarks_by_task:
            raise DataError(f"{task} is there twice", where=location)
        benchmarks_by_task[task] = Benchmark(
            task=task,
            name=row.get("name", ""),
            category=row.get("category", ""),
            metric=row.get("metric", ""),
            train_size=_read_train_size(row, location),
            chance=_read_chance(row, location),
            group=row.get("group", ""),
            status=row.get("status") or "own",
            reason=row.get("reason", ""),
        )
    return tuple(benchmarks_by_task.values())


def _read_train_size(row: dict[str, str], location: str) -> int | None:
    text = row.get("train_size", "")
    if not text:
        return None
    if not text.isdecimal():
        raise DataError(
            f"{text!r} is no number of examples", where=f"{location}, column train_size"
        )
    return int(text)


def _read_chance(row: dict[str, str], location: str) -> float | None:
    """Return the accuracy of a guess: as given, else the mean of 1/k over the numbers of options."""
    text = row.get("chance", "")
    if text:
        return _parse_share(text, location)
    parts = [part.strip() for part in row.get("options", "").split(";")]
    option_counts = [part for part in parts if part]
    if not option_counts:
        return None
    if not all(count.isdecimal() and count != "1" for count in option_counts):
        raise DataError(
            f"{row['options']!r} is no number of options", where=f"{location}, column options"
        )
    shares = [_guess_share(int(count)) for count in option_counts]
    return sum(shares) / len(shares)


def _parse_share(text: str, location: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = math.nan
    if not 0 <= share <= 1:
        raise DataError(f"{text!r} is no share from 0 to 1", where=f"{location}, column chance")
    return share


def _guess_share(options: int) -> float:
    """Return the accuracy of a guess among so many options; 0 where the answer is written freely."""
    if options == 0:
        return 0.0
    return 1 / options


# --- the score of guessing: r of equation 1, and the floor below which a task tells nothing ---

# Options per question of usual tasks beside those of benchmarks.csv.
OPTIONS: Mapping[str, int] = {
    "anli": 3,
    "anli_r2": 3,
    "anli_r3": 3,
    "cb": 3,
    "copa": 2,
    "gpqa": 4,
    "math": 0,
    "minerva_math": 0,
    "mmlu_pro": 10,
    "pubmedqa": 3,
    "race": 4,
    "wsc": 2,
}


def chance(
    task: str,
    *,
    metric: str = "",
    higher_is_better: bool = True,
    chances: Mapping[str, float] | None = None,
) -> float:
    """Return the score of a uniform guess: 1/k for accuracy over k options, 1 − 1/k for the Brier score, 0 for MCC.

    ``known`` is the accuracy of guessing by task, where the study or the user says it. A prompt form (``mmlu:cloze``)
    behind the name changes nothing, except that ``choice:4`` has four options.
    """
    facts = benchmark(TaskName(task).base)
    usual_metric = ""
    if facts is not None and higher_is_better:
        usual_metric = facts.metric
    measured = Metric(metric or usual_metric, higher_is_better)
    if measured.guess == "zero":
        return 0.0
    guess_by_direction = "share" if higher_is_better else "rest"
    share = None
    if measured.guess == guess_by_direction:
        share = guess(task, chances)
    if share is None:
        scored = f"{task} by {measured.plain}" if measured.name else task
        raise InputError(
            f"the score of guessing on {scored} is not known here",
            hint="give a CSV of task and chance: task_facts: FILE.csv in --columns FILE, or task_facts= in Python",
        )
    if not higher_is_better:
        return 1 - share
    return share


def known_chance(task: str, metric: Metric, chances: Mapping[str, float]) -> float | None:
    """Return the score of a uniform guess by this metric; None where nobody knows it."""
    try:
        return chance(
            task, metric=metric.name, higher_is_better=metric.higher_is_better, chances=chances
        )
    except InputError:
        return None


def guess(task: str, chances: Mapping[str, float] | None = None) -> float | None:
    """Return the accuracy of a uniform guess; None where nobody knows it."""
    given_shares = chances or {}
    task_name = TaskName(task)
    if task in given_shares:
        return given_shares[task]
    if task_name.choices is not None:
        return 1 / task_name.choices
    for name in _lookup_names(task_name.base):
        if name in given_shares:
            return given_shares[name]
        facts = benchmark(name)
        if facts is not None and facts.chance is not None:
            return facts.chance
        if name in OPTIONS:
            return _guess_share(OPTIONS[name])
    return None


def _lookup_names(base: str) -> tuple[str, ...]:
    """Return the names under which the accuracy of a guess may be known, the nearest first."""
    group = "mmlu" if base.startswith("mmlu_") else base
    return base, base.removesuffix("_cloze"), base.split(" ")[0], group


# How many examples the public leaderboards put before a question (footnote 1 of "Training on the test task").
LEADERBOARD_SHOTS: Mapping[str, int] = {
    "arc_challenge": 25,
    "arc_easy": 25,
    "gsm8k": 5,
    "hellaswag": 10,
    "mmlu": 5,
    "truthfulqa_mc2": 0,
    "winogrande": 5,
    "leaderboard_bbh": 3,
    "leaderboard_gpqa": 0,
    "leaderboard_math_hard": 4,
    "leaderboard_mmlu_pro": 5,
    "leaderboard_musr": 0,
    "mmlu_pro": 5,
}


def leaderboard_shots(task: str) -> int | None:
    """Return how many examples the public leaderboards put before a question of this task, if they have it.

    Prompt forms keep the number of their task, and MMLU's subjects that of MMLU.
    """
    base = TaskName(task).base
    if base.startswith("mmlu_") and base not in LEADERBOARD_SHOTS:
        base = "mmlu"
    return LEADERBOARD_SHOTS.get(base)
