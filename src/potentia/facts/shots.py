"""How many examples the public leaderboards put before a question (footnote 1 of "Training on the test task")."""

from __future__ import annotations

from collections.abc import Mapping

from potentia.values.task_name import TaskName

LEADERBOARD_SHOTS: Mapping[str, int] = {
    "arc_challenge": 25, "arc_easy": 25, "gsm8k": 5, "hellaswag": 10, "mmlu": 5, "truthfulqa_mc2": 0, "winogrande": 5,
    "leaderboard_bbh": 3, "leaderboard_gpqa": 0, "leaderboard_math_hard": 4, "leaderboard_mmlu_pro": 5,
    "leaderboard_musr": 0, "mmlu_pro": 5,
}  # fmt: skip


def leaderboard_shots(task: str) -> int | None:
    """Return how many examples the public leaderboards put before a question of this task, if they have it.

    Prompt forms keep the number of their task, and MMLU's subjects that of MMLU.
    """
    base = TaskName(task).base
    if base.startswith("mmlu_") and base not in LEADERBOARD_SHOTS:
        base = "mmlu"
    return LEADERBOARD_SHOTS.get(base)
