"""Which tasks are parts of one benchmark: 57 subjects of MMLU say about as much of other tasks as one.

A task belongs to the group that the user says, else to the benchmark that the shipped facts name, else to the known
task whose name its own begins with ("mmlu_anatomy", "leaderboard_bbh_navigate"), else to the tasks of this study
that begin with the same word ("law_en", "law_de"). Every other task is a group of its own. Prompt forms and
folds of a task are always of one group: they ask the same questions.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from potentia.errors import DataError
from potentia.facts.benchmarks import benchmark, benchmarks
from potentia.files import LARGEST_FILE, read_csv_rows, read_text
from potentia.values.protocol import TaskName

NO_GROUPS = "none"  # what ``task_groups`` takes for: every task counts by itself
# First words that say what a thing is, and not of which benchmark it is a part.
GENERIC_WORDS = frozenset(
    {
        "bench",
        "benchmark",
        "custom",
        "data",
        "dataset",
        "eval",
        "evaluation",
        "leaderboard",
        "new",
        "open",
        "own",
        "set",
        "task",
        "tasks",
        "test",
        "tests",
        "tiny",
    }
)
LETTERS_OF_A_PREFIX = 3  # a shorter first word names no benchmark


def find_task_groups(tasks: Iterable[str], said: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the group of every task; ``said`` are groups by task that the user names."""
    names = list(tasks)
    groups: dict[str, str] = {}
    unknown = []
    for task in names:
        base = TaskName(task).base
        group = (said or {}).get(task) or (said or {}).get(base) or _find_known_group(base)
        if group is None:
            unknown.append(task)
        else:
            groups[task] = group
    bases = {TaskName(task).base for task in unknown}
    prefix_counts = Counter(_first_word(base) for base in bases)
    for task in unknown:
        base = TaskName(task).base
        prefix = _first_word(base)
        groups[task] = prefix if prefix is not None and prefix_counts[prefix] > 1 else base
    return {task: groups[task] for task in names}


def separate_tasks(tasks: Iterable[str]) -> dict[str, str]:
    """Return groups in which every task stands by itself."""
    return {task: task for task in tasks}


def _find_known_group(base: str) -> str | None:
    """Return the benchmark of a task, or of the longest known task that its name begins with."""
    plain = re.sub(r"[\s/.-]+", "_", base).casefold()
    facts = benchmark(base) or benchmark(plain)
    if facts is not None:
        return facts.group or facts.task
    for prefix, group in _known_prefixes():
        if plain.startswith(prefix):
            return group
    return None


@cache
def _known_prefixes() -> tuple[tuple[str, str], ...]:
    """Return the beginnings of names that belong to known tasks, with their group, the longest first."""
    prefixes = {f"{facts.task}_": facts.group or facts.task for facts in benchmarks()}
    return tuple(sorted(prefixes.items(), key=lambda prefix_and_group: -len(prefix_and_group[0])))


def _first_word(base: str) -> str | None:
    """Return the word that a name begins with; None where it is all of the name, or names no benchmark."""
    words = [word for word in re.split(r"[^a-z0-9]+", base.casefold()) if word]
    if words and words[0] == "leaderboard":
        words = words[1:]
    if len(words) < 2:
        return None
    first = words[0]
    letters = sum(character.isalpha() for character in first)
    if letters < LETTERS_OF_A_PREFIX or first in GENERIC_WORDS:
        return None
    return first


def read_task_groups(path: str | Path) -> dict[str, str]:
    """Read a CSV of ``task`` and ``group``."""
    groups: dict[str, str] = {}
    text = read_text(Path(path), largest=LARGEST_FILE)
    for location, row in read_csv_rows(text, str(path), _check_columns):
        task = row["task"]
        if not task or not row["group"]:
            raise DataError("a line names no task or no group", where=location)
        if task in groups:
            raise DataError(f"{task} is there twice", where=location)
        groups[task] = row["group"]
    return groups


def _check_columns(header: list[str], where: str) -> list[str]:
    """Refuse a table that does not have the two columns."""
    if {"task", "group"} - set(header):
        raise DataError(
            f"the columns task and group are needed; the file has: {', '.join(header)}",
            where=where,
            hint="one line a task: task,group",
        )
    return header
