"""What may be claimed: without all errors, over unlike scales, of parts, with gaps, beside a weak model."""

from __future__ import annotations

import numpy as np
import pytest

from potentia.analysis.rankings import build_scoreboard, decide_ranking
from potentia.evidence import Evidence, read
from potentia.values.findings import short_names
from potentia.values.scores import ScoreMatrix


def matrix(values, tasks=None, **settings) -> ScoreMatrix:
    values = np.asarray(values, dtype=float)
    models = [f"m{k}" for k in range(values.shape[0])]
    return ScoreMatrix.build(
        models, tasks or [f"t{k}" for k in range(values.shape[1])], values, **settings
    )


def leader(rng: np.random.Generator, models: int, tasks: int, lead: float, weak: bool = False):
    means = np.zeros(models)
    means[0] = lead
    if weak:
        means = np.append(means, -0.25)
    level = rng.uniform(0.4, 0.6, tasks)
    truth = level + means[:, None] + 0.05 * rng.normal(size=(len(means), tasks))
    values = rng.binomial(1000, np.clip(truth, 0.02, 0.98)) / 1000
    return matrix(values, stderr=np.sqrt(values * (1 - values) / 999))


def test_the_best_is_called_so_as_often_as_paired_tests_allow() -> None:
    """Shrunk draws of P(first) said it in a quarter of the studies in which the leader beats every other."""
    claims = [
        decide_ranking(leader(np.random.default_rng(seed), 10, 12, 0.08), draw_count=1000)
        for seed in range(60)
    ]
    assert sum(ranking.is_first_certain and ranking.first == "m0" for ranking in claims) >= 30
    assert sum(ranking.is_first_certain and ranking.first != "m0" for ranking in claims) == 0
    assert sum(float(ranking.p_first.max()) >= 0.975 for ranking in claims) <= 24


def test_a_weak_model_takes_no_claim_away() -> None:
    """Five models are scored by z, four by their scores: the fifth must not silence the answer."""
    without, beside = 0, 0
    for seed in range(60):
        without += decide_ranking(
            leader(np.random.default_rng(seed), 4, 12, 0.06), draw_count=1000
        ).is_first_certain
        beside += decide_ranking(
            leader(np.random.default_rng(seed), 4, 12, 0.06, weak=True), draw_count=1000
        ).is_first_certain
    assert without >= 15
    assert beside >= 0.75 * without


def test_false_claims_of_two_tied_leaders_over_a_pack_are_rare() -> None:
    false = 0
    for seed in range(150):
        rng = np.random.default_rng([2, seed])
        tied = leader(rng, 8, 10, 0.0)
        values = tied.values.copy()
        values[2:] -= 0.2
        false += decide_ranking(matrix(values), draw_count=1000).is_first_certain
    assert false <= 16  # 5 % and three standard errors


def test_one_missing_error_silences_nothing_where_tasks_are_many() -> None:
    values = np.linspace(0.8, 0.3, 6)[:, None] + 0.01 * np.random.default_rng(0).normal(size=(6, 8))
    errors = np.full(values.shape, 0.01)
    errors[3, 4] = np.nan
    board = build_scoreboard(Evidence.of(matrix(values, stderr=errors)))
    assert "m0 is the best of 6 models" in board.headline()
    assert "no standard error" not in " ".join(board.certainty())


def test_scores_without_error_are_named_where_tasks_are_few() -> None:
    values = np.linspace(0.8, 0.3, 6)[:, None] + np.zeros((6, 2))
    errors = np.full(values.shape, 0.01)
    errors[3, 1] = np.nan
    text = " ".join(build_scoreboard(Evidence.of(matrix(values, stderr=errors))).certainty())
    assert "1 of 12 scores has no standard error (m3 on t1)" in text


def test_mean_z_scores_are_centred() -> None:
    values = np.random.default_rng(1).uniform(0.3, 0.7, size=(7, 5))
    ranking = decide_ranking(matrix(values))
    expected = ((values - values.mean(axis=0)) / values.std(axis=0)).mean(axis=1)
    assert ranking.method == "mean z"
    assert ranking.scores == pytest.approx(np.sort(expected)[::-1])
    assert ranking.scores.sum() == pytest.approx(0.0, abs=1e-9)


def test_unlike_scales_are_never_averaged(tmp_path) -> None:
    """B wins every column of scores; 10 ms of latency made A the best."""
    file = tmp_path / "scores.csv"
    file.write_text(
        "model,MT-Bench,WER ↓,MMLU,latency (ms) ↓\nA,7.0,0.30,0.60,10\nB,7.5,0.20,0.65,20\n"
    )
    evidence = read(file, scale={"MT-Bench": "range"})
    board = build_scoreboard(evidence)
    assert "latency (ms)" not in board.ranking.tasks
    assert board.ranking.models == ("B", "A")
    assert "B has the best share of comparisons won" in board.headline()
    assert board.tables()[0].rows[0][0] == "1"  # no interval


def test_few_wins_over_unlike_scales_are_no_claim() -> None:
    """Five wins of five happen to equal models in one of sixteen studies."""
    metrics = ["acc", "mt_bench", "bleu", "acc", "acc"]
    values = np.array([[0.6, 8.0, 30.0, 0.6, 0.6], [0.5, 7.0, 20.0, 0.5, 0.5]])
    ranking = decide_ranking(matrix(values, metrics=metrics))
    assert ranking.method == "share of wins"
    assert not ranking.is_first_certain


def test_parts_without_a_common_task_are_ranked_side_by_side() -> None:
    values = np.full((7, 6), np.nan)
    values[:3, :5] = np.linspace(0.9, 0.7, 3)[:, None] + np.linspace(0, 0.05, 5)
    values[3:, 5] = [0.2, 0.3, 0.4, 0.5]
    board = build_scoreboard(Evidence.of(matrix(values, stderr=np.full(values.shape, 0.01))))
    assert set(board.ranking.models) == {"m0", "m1", "m2"}
    (weak,) = board.other_parts
    assert weak.ranking.models[0] == "m6"
    headline = board.headline()
    assert "2 parts that share no task" in headline
    assert "no model can be called the best of all" in headline
    assert "m0 is the best of 3 models" in headline
    assert "m6 is the best of 4 models" in headline
    assert len(board.tables()) == 2
    strong_part, weak_part = headline.split("m6 is the best")
    assert "other tasks like these" in strong_part
    assert "other tasks like these" not in weak_part  # it has one task
    assert "other tasks like these" not in " ".join(board.certainty())


def test_a_partial_row_says_of_how_many_tasks_it_is() -> None:
    values = np.linspace(0.8, 0.3, 5)[:, None] + 0.01 * np.random.default_rng(0).normal(
        size=(5, 12)
    )
    values[0, 6:] = np.nan
    board = build_scoreboard(Evidence.of(matrix(values, stderr=np.full(values.shape, 0.01))))
    assert "m0 has 6 of 12 tasks" in board.headline()
    (table,) = board.tables()
    assert table.columns[-1] == "tasks"
    assert table.rows[0][-1] == "6 of 12"


def test_luck_on_single_tasks_is_no_lead_on_different_tasks() -> None:
    """Of 24 tasks each of two equal models is ahead on some by chance alone."""
    rng = np.random.default_rng(5)
    values = 0.5 + 0.01 * rng.normal(size=(2, 24))
    board = build_scoreboard(Evidence.of(matrix(values, stderr=np.full(values.shape, 0.01))))
    assert "each win some tasks" not in " ".join(board.certainty())


def test_names_that_stand_twice_stay_distinct() -> None:
    assert short_names(["a/x", "a/x", "b/x", "b/x"]) == ["a/x", "a/x", "b/x", "b/x"]
    assert short_names(["a/x", "a/x", "b/y"]) == ["x", "x", "y"]


def test_an_accuracy_has_at_least_the_error_of_its_examples() -> None:
    values = np.array([[0.56], [0.50]])
    errors = np.full(values.shape, 0.005)  # of 100 examples it is 0.05
    ranking = decide_ranking(
        matrix(values, stderr=errors, n=np.full(values.shape, 100), metrics=["acc"])
    )
    assert not ranking.is_first_certain
