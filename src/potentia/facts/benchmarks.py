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
    "status",
    "reason",
)


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
    return _parse(read_text(Path(path), largest=LARGEST_FILE), str(path))


def _columns(given: list[str], where: str) -> list[str]:
    unknown = [column for column in given if column not in COLUMNS]
    if "task" not in given or unknown:
        what = f"unknown column {unknown[0]}" if unknown else "no column names the tasks"
        raise DataError(
            what, where=where, hint=f"the columns are {', '.join(COLUMNS)}; task is enough"
        )
    return given


def _parse(text: str, where: str) -> tuple[Benchmark, ...]:
    found: dict[str, Benchmark] = {}
    for place, row in read_csv_rows(text, where, _columns):
        if not row["task"] or row["task"] in found:
            raise DataError(
                "a task has no name" if not row["task"] else f"{row['task']} is there twice",
                where=place,
            )
        plain = {
            key: value
            for key, value in row.items()
            if value and key not in ("train_size", "chance", "options")
        }
        found[row["task"]] = Benchmark(
            **plain, train_size=_whole(row, place), chance=_chance(row, place)
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
        raise DataError(
            f"{row['options']!r} is no number of options", where=f"{place}, column options"
        )
    return (
        sum(1 / int(part) if int(part) else 0.0 for part in parts) / len(parts) if parts else None
    )


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
    known: Mapping[str, float] | None = None,
) -> float:
    """Return the score of a uniform guess: 1/k for accuracy over k options, 1 − 1/k for the Brier score, 0 for MCC.

    ``known`` is the accuracy of guessing by task, where the study or the user says it. A prompt form (``mmlu:cloze``)
    behind the name changes nothing, except that ``choice:4`` has four options.
    """
    facts = benchmark(TaskName(task).base)
    usual = facts.metric if facts is not None and higher_is_better else ""
    measured = Metric(metric or usual, higher_is_better)
    if measured.guess == "zero":
        return 0.0
    share = (
        guess(task, known) if measured.guess == ("share" if higher_is_better else "rest") else None
    )
    if share is None:
        what = f"{task} by {measured.plain}" if measured.name else task
        raise InputError(
            f"the score of guessing on {what} is not known here",
            hint="give it with --task-facts (a CSV of task and chance), or one number for all such tasks with --chance",
        )
    return share if higher_is_better else 1 - share


def known_chance(task: str, metric: Metric, known: Mapping[str, float]) -> float | None:
    """Return the score of a uniform guess by this metric; None where nobody knows it."""
    try:
        return chance(
            task, metric=metric.name, higher_is_better=metric.higher_is_better, known=known
        )
    except InputError:
        return None


def guess(task: str, known: Mapping[str, float] | None = None) -> float | None:
    """Return the accuracy of a uniform guess; None where nobody knows it."""
    given, named = known or {}, TaskName(task)
    if task in given:
        return given[task]
    if named.choices is not None:
        return 1 / named.choices
    base = named.base
    for name in (
        base,
        base.removesuffix("_cloze"),
        base.split(" ")[0],
        "mmlu" if base.startswith("mmlu_") else base,
    ):
        facts = benchmark(name)
        share = given.get(name, facts.chance if facts is not None else None)
        if share is None and name in OPTIONS:
            share = 1 / OPTIONS[name] if OPTIONS[name] else 0.0
        if share is not None:
            return share
    return None


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
