"""Blind twins: a planted annotation artefact is found, and none where there is none."""

from __future__ import annotations

import numpy as np
import pytest

from potentia import zoo
from potentia.analysis.benchmark import (
    Recommendation,
    compare_blind,
    find_benchmark,
    find_blind_twins,
)
from potentia.errors import InputError
from potentia.evidence import Evidence, read
from potentia.run import run_study
from potentia.study import make_study
from potentia.values.protocol import TRAIN_BEFORE_TEST, TaskName

pytestmark = pytest.mark.slow  # 16 fine-tunings, and 80 in `make long`


@pytest.fixture(scope="module", params=[4, pytest.param(20, marks=pytest.mark.long)])
def seeds(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture(scope="module")
def evidence(seeds: int, tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    """One row whose lanes are so many tasks with the artefact, as many without, all of them blind as well."""
    folder = tmp_path_factory.mktemp("blind")
    models = zoo.write_model_folders(folder / "models", ["aster-71k"])
    tasks = []
    for seed in range(seeds):
        for kind, gives_away in (("giveaway", True), ("honest", False)):
            name = f"{kind}{seed}"
            path = zoo.write_skewed_task(
                folder / "tasks",
                name,
                gives_away=gives_away,
                benchmark=("ask", "table", "record", "beside")[seed % 4],
                seed=seed,
            )
            tasks.append({"name": name, "file": str(path), "blind": True})
    study = make_study(
        {
            "name": "blind",
            "models": [{"name": name, "path": str(path)} for name, path in models.items()],
            "tasks": tasks,
            "protocols": ["train_before_test"],
            "caps": {"train": 240, "validation": 60, "test": 300},
            "tuning": {
                "rank": 8,
                "alpha": 32,
                "dropout": 0.0,
                "targets": ["all-linear"],
                "epochs": 3,
                "learning_rates": [3e-3],
                "batch": 8,
                "race": False,
            },
            "device": "cpu",
            "store": str(folder / "potentia.db"),
        }
    )
    result = run_study(study)
    assert result.exit_code == 0
    return read(study.store)


def test_a_planted_artefact_is_found_and_its_absence_too(seeds: int, evidence: Evidence) -> None:
    twins = find_blind_twins(evidence)
    result = {twin.task: twin.gives_answers_away for twin in twins.twins}
    assert len(result) == 2 * seeds
    artefacts = [result[task] for task in result if task.startswith("giveaway")]
    honest = [result[task] for task in result if task.startswith("honest")]
    assert sum(artefacts) >= seeds - 1, artefacts
    assert sum(honest) <= 1, honest
    assert 0 < twins.token_share < 0.5, "a blind question is shorter"
    assert "training tokens" in " ".join(twins.sentences())
    assert twins.tables()[1].rows, "examples that are answered blind are listed"


def test_twins_are_in_no_ranking(evidence: Evidence) -> None:
    matrix = evidence.scores[TRAIN_BEFORE_TEST]
    assert not any(TaskName(task).sighted for task in matrix.tasks)
    assert all(TaskName(task).sighted for task in evidence.blind[TRAIN_BEFORE_TEST].tasks)


def test_names() -> None:
    assert TaskName("arc_easy:blind").sighted == "arc_easy"
    assert TaskName("arc_easy:choice:blind:swapped").sighted == "arc_easy:choice"
    assert TaskName("mine:blind#2/5").sighted == "mine"
    assert TaskName("arc_easy:cloze").sighted is None


def test_always_the_most_frequent_answer_is_no_artefact() -> None:
    """Nine of ten answers are "yes": a blind model that says so has learned nothing but that."""
    stream = np.random.default_rng(0)
    right_answers = {number: "yes" if number % 10 else "no" for number in range(400)}
    values = {number: float(answer == "yes") for number, answer in right_answers.items()}
    twin = compare_blind(
        TRAIN_BEFORE_TEST,
        "boolq",
        sighted={"a": 0.95},
        blind={"a": 0.9},
        items={"a": values},
        right_answers=right_answers,
        chance=0.5,
    )
    assert twin.baseline == pytest.approx(0.9)
    assert not twin.gives_answers_away
    better = {number: float(stream.random() < 0.98) for number in right_answers}
    knows = compare_blind(
        TRAIN_BEFORE_TEST,
        "boolq",
        sighted={"a": 0.99},
        blind={"a": 0.98},
        items={"a": better},
        right_answers=right_answers,
        chance=0.5,
    )
    assert knows.gives_answers_away


def test_a_task_that_is_solved_blind_fails_the_verdict(evidence: Evidence) -> None:
    """The verdict needs several models; the items of the one stand for all, beside a task that is sound."""
    from potentia.analysis.benchmark import judge_benchmark
    from potentia.values.scores import ScoreMatrix

    twin = next(t for t in find_blind_twins(evidence).twins if t.task == "giveaway0")
    stream = np.random.default_rng(1)
    ability = np.linspace(0.4, 0.9, 6)
    items = {
        f"m{row}": dict(enumerate((stream.random(500) < share).astype(float)))
        for row, share in enumerate(ability)
    }
    means = np.array([np.mean(list(values.values())) for values in items.values()])
    values = np.stack([means, means + stream.normal(0, 0.01, 6), means], axis=1)
    matrix = ScoreMatrix.build(
        list(items),
        ["giveaway0", "one", "two"],
        values,
        stderr=np.full((6, 3), 0.02),
        n=np.full((6, 3), 500),
        protocol="train_before_test",
        metrics=["acc"] * 3,
    )
    sound = judge_benchmark(matrix, "giveaway0", items=items, chance=0.25)
    assert sound.verdict is Recommendation.KEEP
    failed = judge_benchmark(matrix, "giveaway0", items=items, chance=0.25, blind=twin)
    assert failed.verdict is not Recommendation.KEEP
    assert "without its question" in failed.reasons[0]
    assert any("without the question" in str(row[0]) for row in failed.tables()[1].rows)


def test_evidence_without_twins_says_how_to_ask_for_them(evidence: Evidence) -> None:
    from dataclasses import replace

    with pytest.raises(InputError, match="no blind twins") as error:
        find_blind_twins(replace(evidence, blind={}))
    assert "blind: true" in str(error.value.hint)
    with pytest.raises(InputError):
        find_benchmark(evidence, "giveaway0:blind")
