"""What is publicly known of benchmarks: their size, what guessing scores on them, and the usual number of shots.

The facts are in the shipped ``benchmarks.csv`` and in files of the same columns that users give. Its benchmarks are
those of the papers "Train-before-test" (24 that it uses, 13 that it excluded) and "Training on the test task" (MMLU and
the second version of the Open LLM Leaderboard).

*Guess accuracy* (column ``chance``) is the accuracy of a uniform guess: 1/k with k ``options`` to choose from, 0 where
the answer is written freely (0 options), and for a group the mean over its members (BBH: 2;2;6;…). *Chance score* is
what such a guess scores by any metric.
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
    """What is known of one benchmark, or of one of a user's own tasks."""

    task: str  # its name in lm-eval
    name: str = ""  # its name in the papers
    category: str = ""  # a key of CATEGORIES
    metric: str = ""  # the metric that the paper's scores use
    train_size: int | None = None  # examples of the public train split, before any cap
    chance: float | None = None  # the accuracy of a uniform guess
    group: str = ""  # the benchmark that the task is a part of, unless it is all of it
    # paper (one of the 24), excluded (one of the 13), test-task (MMLU), leaderboard-v2, or own: the user's
    status: str = "own"
    reason: str = ""  # why it was excluded


@cache
def benchmarks() -> tuple[Benchmark, ...]:
    """Return the facts on all shipped benchmarks, in the order of the file."""
    text = files("potentia.facts").joinpath("benchmarks.csv").read_text("utf-8")
    return _parse_benchmarks(text, "potentia/facts/benchmarks.csv")


def find_benchmark_facts(task: str) -> Benchmark | None:
    """Return the shipped facts on a task; None if there are none."""
    return next((facts for facts in benchmarks() if facts.task == task), None)


def read_benchmarks(facts_path: str | Path) -> tuple[Benchmark, ...]:
    """Read a user's CSV of facts on tasks: the column ``task``, and any others of ``COLUMNS``."""
    return _parse_benchmarks(read_text(Path(facts_path), largest=LARGEST_FILE), str(facts_path))


def _check_columns(header: list[str], source: str) -> list[str]:
    """Return the header as it is; raise if it has no column ``task``, or one that is not in ``COLUMNS``."""
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
            raise DataError(f"{task} appears twice", where=location)
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
            f"{text!r} is not a number of examples", where=f"{location}, column train_size"
        )
    return int(text)


def _read_chance(row: dict[str, str], location: str) -> float | None:
    """Return the guess accuracy of a row: its ``chance``, else the mean of 1/k over the numbers in ``options``."""
    text = row.get("chance", "")
    if text:
        return _parse_accuracy(text, location)
    option_texts = [option_text.strip() for option_text in row.get("options", "").split(";")]
    option_counts = [option_text for option_text in option_texts if option_text]
    if not option_counts:
        return None
    if not all(count.isdecimal() and int(count) != 1 for count in option_counts):
        raise DataError(
            f"{row['options']!r} is not a number of options", where=f"{location}, column options"
        )
    accuracies = [_compute_guess_accuracy(int(option_count)) for option_count in option_counts]
    return sum(accuracies) / len(accuracies)


def _parse_accuracy(text: str, location: str) -> float:
    try:
        accuracy = float(text)
    except ValueError:
        accuracy = math.nan
    if not 0 <= accuracy <= 1:
        raise DataError(f"{text!r} is not a share from 0 to 1", where=f"{location}, column chance")
    return accuracy


def _compute_guess_accuracy(options: int) -> float:
    """Return the accuracy of a uniform guess among so many options; 0 options stand for a freely written answer."""
    if options == 0:
        return 0.0
    return 1 / options


# --- the score of guessing -------------------------------------------------------------------------------------------

# Options per question of usual tasks that benchmarks.csv does not have; 0 where the answer is written freely.
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


# The benchmark of its many subtasks, by how their names begin. MMLU-Pro (and MMLU-ProX, its translations) is not MMLU.
_BENCHMARK_BY_PREFIX = {"mmlu_pro": "mmlu_pro", "mmlu_": "mmlu"}


def find_chance_score(
    task: str, metric: Metric, guess_accuracies: Mapping[str, float] | None = None
) -> float | None:
    """Return what a uniform guess scores on a task by this metric; None if it is not known.

    That is 1/k for accuracy over k options, 1 − 1/k for the Brier score, 0 for MCC. A metric without a name is the
    task's usual one. ``guess_accuracies`` are those that the study or the user states, by task.
    """
    metric = _name_metric(task, metric)
    if metric.guess_rule == "zero":
        return 0.0
    expected_rule = "accuracy" if metric.higher_is_better else "one_minus_accuracy"
    if metric.guess_rule != expected_rule:
        return None
    accuracy = find_guess_accuracy(task, guess_accuracies)
    if accuracy is None:
        return None
    return accuracy if metric.higher_is_better else 1 - accuracy


def compute_chance_score(
    task: str,
    *,
    metric: str = "",
    higher_is_better: bool | None = None,
    guess_accuracies: Mapping[str, float] | None = None,
) -> float:
    """Return the same as ``find_chance_score``, of a metric by its name; raise if it is not known."""
    named_metric = _name_metric(task, Metric.of(metric, higher_is_better))
    score = find_chance_score(task, named_metric, guess_accuracies)
    if score is None:
        subject = f"{task} by {named_metric.name_without_filter}" if named_metric.name else task
        raise InputError(
            f"the score of guessing on {subject} is not known here",
            hint="give a CSV of task and chance: task_facts: FILE.csv in --columns FILE, or task_facts= in Python",
        )
    return score


def _name_metric(task: str, metric: Metric) -> Metric:
    """Return the metric; one without a name becomes the task's usual metric, if that is known."""
    facts = find_benchmark_facts(TaskName(task).base)
    if metric.name or facts is None or not metric.higher_is_better:
        return metric
    return Metric.of(facts.metric, higher_is_better=True)


def find_guess_accuracy(
    task: str, guess_accuracies: Mapping[str, float] | None = None
) -> float | None:
    """Return the accuracy of a uniform guess on a task; None if it is not known.

    Prompt forms of a task have the same accuracy, except for ``choice:K``, which has K options.
    """
    stated_accuracies = guess_accuracies or {}
    task_name = TaskName(task)
    if task in stated_accuracies:
        return stated_accuracies[task]
    if task_name.choices is not None:
        return 1 / task_name.choices
    for lookup_name in _list_lookup_names(task_name.base):
        if lookup_name in stated_accuracies:
            return stated_accuracies[lookup_name]
        facts = find_benchmark_facts(lookup_name)
        if facts is not None and facts.chance is not None:
            return facts.chance
        if lookup_name in OPTIONS:
            return _compute_guess_accuracy(OPTIONS[lookup_name])
    return None


def _list_lookup_names(base_name: str) -> tuple[str, ...]:
    """Return the names under which a task's number of options may be known, the nearest first.

    After the name itself come the name without "_cloze", without what follows a blank, and the benchmark of a subtask.
    """
    lookup_names = [base_name, base_name.removesuffix("_cloze"), base_name.split(" ")[0]]
    for prefix, benchmark in _BENCHMARK_BY_PREFIX.items():
        if base_name.startswith(prefix):
            lookup_names.append(benchmark)
            break
    return tuple(lookup_names)


# How many examples the public leaderboards put before a question (footnote 1 of "Training on the test task"); arc_easy,
# which they do not have, is asked as arc_challenge.
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
    """Return how many examples the public leaderboards put before a question of this task; None for other tasks.

    Prompt forms have the number of their task, and MMLU's subjects that of MMLU.
    """
    base_name = TaskName(task).base
    if base_name.startswith("mmlu_") and base_name not in LEADERBOARD_SHOTS:
        base_name = "mmlu"
    return LEADERBOARD_SHOTS.get(base_name)
