"""Which tasks are parts of one benchmark, and count as one: 57 subjects of MMLU say about as much as one.

The group of a task is the first of these that there is:

- the group that the user states;
- the benchmark that the shipped facts name;
- the known task with whose name its own begins ("mmlu_anatomy", "leaderboard_bbh_navigate");
- the word with which the names of several tasks begin ("law_en", "law_de"), among them known tasks whose benchmark that
  word names ("anli_r1" of ANLI beside "anli_r2"; "social_iqa" of Social-IQA has nothing to do with "social_bias");
- the task itself.

Prompt forms and folds of a task are always of one group: they ask the same questions.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from potentia.errors import DataError
from potentia.facts.benchmarks import benchmarks, find_benchmark_facts
from potentia.files import LARGEST_FILE, read_csv_rows, read_text
from potentia.values.protocol import TaskName

NO_GROUPS = "none"  # the value of the option ``task_groups`` by which every task counts by itself
# First words of names that say nothing of the benchmark.
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
MIN_PREFIX_LETTERS = 3  # a shorter first word names no benchmark
FILE_SUFFIXES = (".yaml", ".yml", ".csv", ".tsv", ".jsonl", ".json", ".parquet", ".txt")


def find_task_groups(
    tasks: Iterable[str], user_groups: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the group of every task; ``user_groups`` are those that the user states, by task."""
    stated_groups = user_groups or {}
    task_names = list(tasks)
    group_by_task: dict[str, str] = {}
    remaining_tasks = []
    known_prefixes = set()
    for task in task_names:
        base_name = TaskName(task).base
        stated_group = stated_groups.get(task) or stated_groups.get(base_name)
        group = stated_group or find_known_group(base_name)
        if group is None:
            remaining_tasks.append(task)
            continue
        group_by_task[task] = group
        if stated_group is None and _find_prefix(base_name) == group:
            known_prefixes.add(group)
    remaining_names = {TaskName(task).base for task in remaining_tasks}
    uses_of_prefix = Counter(_find_prefix(base_name) for base_name in remaining_names)
    for task in remaining_tasks:
        base_name = TaskName(task).base
        prefix = _find_prefix(base_name)
        group_by_task[task] = base_name
        if prefix is not None and (uses_of_prefix[prefix] > 1 or prefix in known_prefixes):
            group_by_task[task] = prefix
    return {task: group_by_task[task] for task in task_names}


def separate_tasks(tasks: Iterable[str]) -> dict[str, str]:
    """Return groups in which every task is alone."""
    return {task: task for task in tasks}


def find_known_group(base_name: str) -> str | None:
    """Return the benchmark of a task that the shipped facts have, or whose name begins with such a task's."""
    normalised_name = re.sub(r"[\s/.-]+", "_", base_name).casefold().removeprefix("tiny")
    facts = find_benchmark_facts(base_name) or find_benchmark_facts(normalised_name)
    if facts is None:
        facts = find_benchmark_facts(normalised_name.replace("_", ""))
    if facts is not None:
        return facts.group or facts.task
    for prefix, group in _list_known_prefixes():
        if f"{normalised_name}_".startswith(prefix):
            return group
    return None


@cache
def _list_known_prefixes() -> tuple[tuple[str, str], ...]:
    """Return the names of the shipped tasks, each with "_" after it, and their groups; the longest names first."""
    group_by_prefix = {f"{facts.task}_": facts.group or facts.task for facts in benchmarks()}
    # a benchmark that the facts have under another name (leaderboard_mmlu_pro) is no part of MMLU
    for facts in benchmarks():
        if facts.group.startswith(tuple(group_by_prefix)):
            group_by_prefix[f"{facts.group}_"] = facts.group
    prefixes = sorted(group_by_prefix, key=len, reverse=True)
    return tuple((prefix, group_by_prefix[prefix]) for prefix in prefixes)


def _find_prefix(base_name: str) -> str | None:
    """Return the first word of a name; None for a single word, or a first word that names no benchmark.

    Of a task that is named by its file or folder, only the last part counts: two files in one folder are two tasks.
    """
    is_file = base_name.casefold().endswith(FILE_SUFFIXES)
    is_path = base_name.startswith(("./", "../", "/", "~"))
    if is_file or is_path:
        base_name = Path(base_name).stem if is_file else Path(base_name).name
    words = [word for word in re.split(r"[^a-z0-9]+", base_name.casefold()) if word]
    if words and words[0] == "leaderboard":
        words = words[1:]
    if len(words) < 2:
        return None
    first_word = words[0]
    letters = sum(character.isalpha() for character in first_word)
    if letters < MIN_PREFIX_LETTERS or first_word in GENERIC_WORDS:
        return None
    return first_word


def read_task_groups(groups_path: str | Path) -> dict[str, str]:
    """Return the group of each task in a CSV with the columns ``task`` and ``group``."""
    groups: dict[str, str] = {}
    text = read_text(Path(groups_path), largest=LARGEST_FILE)
    for location, row in read_csv_rows(text, str(groups_path), _check_columns):
        task = row["task"]
        if not task or not row["group"]:
            raise DataError("a line names no task or no group", where=location)
        if task in groups:
            raise DataError(f"{task} appears twice", where=location)
        groups[task] = row["group"]
    return groups


def _check_columns(header: list[str], source: str) -> list[str]:
    """Return the header as it is; raise if it lacks one of the two columns."""
    if {"task", "group"} - set(header):
        raise DataError(
            f"the columns task and group are needed; the file has: {', '.join(header)}",
            where=source,
            hint="one line a task: task,group",
        )
    return header
