"""Tasks of one benchmark count as one: by what is known, by their names, or as the user says."""

from __future__ import annotations

import numpy as np
import pytest

from potentia.analysis.rankings import build_scoreboard, decide_ranking
from potentia.analysis.rankings.task_groups import TaskGroups
from potentia.errors import DataError, InputError
from potentia.evidence import Evidence, read
from potentia.facts import find_task_groups
from potentia.values.scores import ScoreMatrix

SUBSETS = [f"mmlu_subject{k}" for k in range(12)]
OTHERS = ["gsm8k", "boolq", "piqa"]


def study(
    rng: np.random.Generator, models: int, tasks: list[str], benchmarks: list[int]
) -> ScoreMatrix:
    """Scores of models that do not differ, but are good and bad at whole benchmarks."""
    of_benchmark = 0.05 * rng.normal(size=(models, max(benchmarks) + 1))
    truth = 0.5 + of_benchmark[:, benchmarks] + 0.01 * rng.normal(size=(models, len(tasks)))
    values = rng.binomial(500, truth) / 500
    errors = np.sqrt(values * (1 - values) / 499)
    return ScoreMatrix.build([f"m{k}" for k in range(models)], tasks, values, stderr=errors)


def test_facts_names_and_forms_make_groups() -> None:
    tasks = [
        "arc_easy",
        "arc_challenge",
        "mmlu",
        "mmlu_anatomy",
        "MMLU-virology",
        "leaderboard_bbh_navigate",
    ]
    groups = find_task_groups(
        [*tasks, "boolq:cloze", "boolq", "law_en", "law_de", "task_1", "task_2", "t3"]
    )
    assert groups["arc_easy"] == groups["arc_challenge"] == "arc"
    assert {groups[task] for task in tasks[2:5]} == {"mmlu"}
    assert groups["leaderboard_bbh_navigate"] == "bbh"
    assert groups["boolq:cloze"] == groups["boolq"] == "boolq"
    assert groups["law_en"] == groups["law_de"] == "law"
    assert [groups[task] for task in ("task_1", "task_2", "t3")] == ["task_1", "task_2", "t3"]


def test_the_tasks_of_the_paper_stand_alone_but_for_arc() -> None:
    from potentia.facts import benchmarks

    tasks = [known.task for known in benchmarks() if known.status == "paper"]
    assert len(tasks) == 24
    assert len(TaskGroups.find(tasks).names) == 23


@pytest.mark.parametrize("models", [2, 4, 10])
def test_subsets_of_one_benchmark_say_nothing_of_other_tasks(models: int) -> None:
    benchmarks = [0] * 12 + [1, 2, 3]
    for seed in range(20):
        matrix = study(np.random.default_rng(seed), models, [*SUBSETS, *OTHERS], benchmarks)
        said = " ".join(build_scoreboard(Evidence.of(matrix)).certainty())
        assert "other tasks like these" not in said


def test_false_claims_are_rare_where_subsets_of_six_benchmarks_are_tasks() -> None:
    """Counted as 24 tasks, two equal models would be told apart in every second study."""
    names = ["aaa", "bbb", "ccc", "ddd", "eee", "fff"]
    tasks = [f"{name}_{k}" for name in names for k in range(4)]
    benchmarks = [k // 4 for k in range(24)]
    grouped, separate = 0, 0
    apart = {task: task for task in tasks}
    for seed in range(100):
        matrix = study(np.random.default_rng([1, seed]), 2, tasks, benchmarks)
        ranking = decide_ranking(matrix, draw_count=1000)
        assert ranking.generalizes
        grouped += ranking.is_first_certain
        separate += decide_ranking(matrix, task_groups=apart, draw_count=1000).is_first_certain
    assert grouped <= 12  # 5 % and three standard errors
    assert separate >= 25


def test_a_group_counts_once_in_the_mean() -> None:
    values = [[0.9, 0.9, 0.9, 0.1, 0.2], [0.1, 0.1, 0.1, 0.8, 0.9]]
    tasks = ["mmlu_a", "mmlu_b", "mmlu_c", "gsm8k", "piqa"]
    matrix = ScoreMatrix.build(["x", "y"], tasks, values)
    ranking = decide_ranking(matrix)
    assert ranking.models == ("y", "x")
    assert ranking.scores == pytest.approx([0.6, 0.4])
    assert decide_ranking(matrix, task_groups={task: task for task in tasks}).models == ("x", "y")


def test_groups_are_shown_and_can_be_changed(tmp_path) -> None:
    rng = np.random.default_rng(0)
    values = rng.uniform(0.3, 0.7, size=(3, 6))
    tasks = ["mmlu_a", "mmlu_b", "gsm8k", "boolq", "piqa", "sciq"]
    file = tmp_path / "scores.csv"
    lines = ["model,benchmark,score"]
    for model, row in zip("xyz", values, strict=True):
        lines += [f"{model},{task},{score:.3f}" for task, score in zip(tasks, row, strict=True)]
    file.write_text("\n".join(lines))
    board = build_scoreboard(read(file))
    assert "6 tasks in 5 groups" in board.headline()
    assert "mmlu (2) counts once" in " ".join(board.certainty())
    assert "task_groups  in --columns FILE" in " ".join(board.certainty())
    alone = build_scoreboard(read(file, task_groups="none"))
    assert "6 tasks)" in alone.headline()
    groups = tmp_path / "groups.csv"
    groups.write_text("task,group\ngsm8k,math\npiqa,math\nmmlu_a,a\nmmlu_b,b\n")
    changed = build_scoreboard(read(file, task_groups=groups)).ranking
    assert changed.groups.group_of_task == ("a", "b", "math", "boolq", "math", "sciq")
    groups.write_text("task,group\nnot_there,math\n")
    with pytest.raises(InputError, match="no task 'not_there'"):
        read(file, task_groups=groups)
    groups.write_text("task\ngsm8k\n")
    with pytest.raises(DataError, match="task and group"):
        read(file, task_groups=groups)
    facts = tmp_path / "facts.csv"
    facts.write_text("task,group\nsciq,science\npiqa,science\n")
    ranking = build_scoreboard(read(file, task_facts=facts)).ranking
    assert len(ranking.groups.names) == 4


def test_a_missing_group_is_as_uncertain_as_one_missing_task() -> None:
    """Four subsets that a model lacks are predicted together, not as four independent tasks."""
    rng = np.random.default_rng(3)
    tasks = [f"{name}_{k}" for name in ("aaa", "bbb", "ccc", "ddd", "eee", "fff") for k in range(4)]
    widths = {}
    values = 0.5 + 0.05 * rng.normal(size=(4, 24))
    values[0, 8:12] = np.nan
    matrix = ScoreMatrix.build(["a", "b", "c", "d"], tasks, values)
    for name, groups in (("grouped", None), ("separate", {task: task for task in tasks})):
        ranking = decide_ranking(matrix, task_groups=groups)
        widths[name] = float(np.std(ranking.draws_of("a") - ranking.draws_of("b")))
    assert widths["grouped"] > 1.2 * widths["separate"]
