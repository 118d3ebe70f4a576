"""The score of guessing: r of equation 1, and the floor below which a task tells nothing."""

from __future__ import annotations

from collections.abc import Mapping

from potentia.errors import InputError
from potentia.facts.benchmarks import benchmark
from potentia.values.metric import Metric
from potentia.values.task_name import TaskName

# Options per question of usual tasks beside those of benchmarks.csv.
OPTIONS: Mapping[str, int] = {
    "anli": 3, "anli_r2": 3, "anli_r3": 3, "cb": 3, "copa": 2, "gpqa": 4, "math": 0, "minerva_math": 0, "mmlu_pro": 10,
    "pubmedqa": 3, "race": 4, "wsc": 2,
}  # fmt: skip


def chance(
    task: str, *, metric: str = "", higher_is_better: bool = True, known: Mapping[str, float] | None = None
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
    share = guess(task, known) if measured.guess == ("share" if higher_is_better else "rest") else None
    if share is None:
        what = f"{task} by {measured.plain}" if measured.name else task
        raise InputError(
            f"the score of guessing on {what} is not known here",
            hint="give it with --task-facts (a CSV of task and chance), or one number for all such tasks with --chance",
        )
    return share if higher_is_better else 1 - share


def guess(task: str, known: Mapping[str, float] | None = None) -> float | None:
    """Return the accuracy of a uniform guess; None where nobody knows it."""
    given = known or {}
    if task in given:
        return given[task]
    named = TaskName(task)
    base = named.base
    if named.choices is not None:
        return 1 / named.choices
    for name in (base, base.removesuffix("_cloze"), base.split(" ")[0], "mmlu" if base.startswith("mmlu_") else base):
        if name in given:
            return given[name]
        facts = benchmark(name)
        if facts is not None and facts.chance is not None:
            return facts.chance
        if name in OPTIONS:
            return 1 / OPTIONS[name] if OPTIONS[name] else 0.0
    return None
