"""Tasks of one benchmark count as one: by what is known, by their names, or as the user says."""

from __future__ import annotations

import json
from pathlib import Path

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
    pro = find_task_groups(["mmlu_pro", "mmlu_pro_biology", "leaderboard_mmlu_pro", "mmlu"])
    assert set(list(pro.values())[:3]) == {"mmlu_pro"} != {pro["mmlu"]}
    assert groups["boolq:cloze"] == groups["boolq"] == "boolq"
    assert groups["law_en"] == groups["law_de"] == "law"
    assert [groups[task] for task in ("task_1", "task_2", "t3")] == ["task_1", "task_2", "t3"]


@pytest.mark.parametrize(
    ("tasks", "groups"),
    [
        (["anli_r1", "anli_r2"], ["anli", "anli"]),
        (["headqa_en", "headqa_es"], ["headqa", "headqa"]),
        (["leaderboard_math_hard", "math_algebra", "math_qa"], ["math", "math", "mathqa"]),
        (["social_iqa", "social_bias"], ["social_iqa", "social_bias"]),
        (["nq_open", "nq_x"], ["nq_open", "nq_x"]),
    ],
)
def test_known_tasks_take_part_in_the_rule_by_names(tasks: list[str], groups: list[str]) -> None:
    """A second part of a known benchmark counted as another task than the first."""
    assert list(find_task_groups(tasks).values()) == groups


def write_results(folder: Path, model: str, groups: dict[str, list[str]], score: float) -> None:
    """Write results of lm-eval whose groups have no score of their own."""
    tasks = dict.fromkeys(task for members in groups.values() for task in members)
    results: dict[str, dict[str, object]] = {}
    for number, task in enumerate(tasks):
        if task not in groups:
            results[task] = {"acc,none": score + 0.01 * number, "acc_stderr,none": 0.01}
    for group in groups:
        results[group] = {" ": " ", "alias": group}
    content = {"results": results, "group_subtasks": groups, "model_name": model}
    folder.mkdir(exist_ok=True)
    (folder / f"results_{model}.json").write_text(json.dumps(content))


def test_groups_of_lm_eval_without_a_score_are_groups_of_tasks(tmp_path: Path) -> None:
    """Members of such a group were independent tasks; groups that mix benchmarks say nothing."""
    groups = {
        "leaderboard": ["leaderboard_ifeval", "mmlu_anatomy", "gsm8k", "suite"],
        "suite": ["alpha", "bravo", "carol"],
        "mmlu_other": ["mmlu_anatomy", "mmlu_virology"],
    }
    for position, model in enumerate(("m1", "m2")):
        write_results(tmp_path, model, groups, 0.4 + 0.05 * position)
    evidence = read(tmp_path)
    assert evidence.background.task_groups == {"alpha": "suite", "bravo": "suite", "carol": "suite"}
    found = find_task_groups(evidence.scores["direct"].tasks, evidence.background.task_groups)
    assert found["leaderboard_ifeval"] == "leaderboard_ifeval"
    assert found["mmlu_anatomy"] == found["mmlu_virology"] == "mmlu"
    table = tmp_path / "more.csv"
    table.write_text("model,delta\nm1,0.5\nm2,0.6\n")
    assert read(tmp_path, table).background.task_groups["alpha"] == "suite"


def test_the_groups_of_a_user_come_before_those_of_a_file(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    for position, model in enumerate(("m1", "m2")):
        write_results(folder, model, {"suite": ["alpha", "bravo", "carol"]}, 0.4 + 0.1 * position)
    groups_file = tmp_path / "groups.csv"
    groups_file.write_text("task,group\nalpha,other\n")
    groups = read(folder, task_groups=groups_file).background.task_groups
    assert groups == {"alpha": "other", "bravo": "suite", "carol": "suite"}
    apart = read(folder, task_groups="none").background.task_groups
    assert apart == {"alpha": "alpha", "bravo": "bravo", "carol": "carol"}


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
        text = " ".join(build_scoreboard(Evidence.of(matrix)).certainty())
        assert "other tasks like these" not in text


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
    assert "task_groups in --columns FILE" in " ".join(board.certainty())
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


def test_files_of_one_folder_are_tasks_of_their_own() -> None:
    tasks = ["studies/tasks/ask.yaml", "studies/tasks/call.yaml", "studies/red_a.csv", "red_b.csv"]
    groups = find_task_groups(tasks)
    assert groups["studies/tasks/ask.yaml"] != groups["studies/tasks/call.yaml"]
    assert groups["studies/red_a.csv"] == groups["red_b.csv"] == "red"
    groups = find_task_groups(["../lab/tasks/ask", "../lab/tasks/table"])
    assert len(set(groups.values())) == 2
