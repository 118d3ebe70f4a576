"""One rule decides who is first, better or tied: right where data are thin, gappy or without errors."""

from __future__ import annotations

import math

import numpy as np
import pytest

from potentia.analysis.rankings import analyze_scores, build_scoreboard, find_pair
from potentia.analysis.rankings.decide import decide_ranking
from potentia.analysis.rankings.findings import summarize_rankings
from potentia.analysis.rankings.lead import MissingEvidence
from potentia.analysis.rankings.pair import compare_tasks
from potentia.analysis.rankings.sentences import missing_sentence
from potentia.analysis.stats.first_place import first_place_shares, shrink_draws
from potentia.evidence import Evidence
from potentia.facts import Background
from potentia.show import make_answer, make_report
from potentia.values.scores import ScoreMatrix


def matrix(values, stderr=0.01, protocol="train_before_test", n=None) -> ScoreMatrix:
    values = np.asarray(values, dtype=float)
    return ScoreMatrix.build(
        [f"m{k}" for k in range(len(values))],
        [f"t{k}" for k in range(values.shape[1])],
        values,
        stderr=np.broadcast_to(stderr, values.shape),
        n=None if n is None else np.full(values.shape, float(n)),
        protocol=protocol,
    )


def measured(truth, n, rng) -> ScoreMatrix:
    values = rng.binomial(n, truth) / n
    return matrix(values, np.sqrt(values * (1 - values) / (n - 1)), n=n)


def test_with_two_models_scores_decide_and_not_the_count_of_signs():
    given = matrix([[0.505, 0.505, 0.505, 0.275], [0.5] * 4])
    board = build_scoreboard(Evidence.of(given))
    assert board.first == "m1"
    assert board.standings[0].model == "m1"
    assert board.headline().startswith("m1 is the best of 2 models")
    pair = find_pair(Evidence.of(given), "m0", "m1")
    (lead,) = pair.leads.values()
    assert (lead.first, lead.is_certain) == ("m1", True)
    assert "m1 is better than m0" in pair.sentences()[0]


def test_a_model_with_one_task_is_not_sure_of_its_rank():
    rng = np.random.default_rng(0)
    values = 0.5 + 0.05 * rng.normal(size=(8, 1)) + 0.05 * rng.normal(size=(8, 6))
    values[0] = np.nan
    values[0, 0] = np.nanmax(values[:, 0]) + 0.01  # the best of a task on which all may be lucky
    found = decide_ranking(matrix(values))
    k = found.models.index("m0")
    assert found.task_counts[k] == 1
    assert found.high[k] > 1
    assert not found.is_first_certain


def test_gaps_are_ranked_by_model_and_task():
    """A model measured on the hard tasks alone is not ranked below those measured on the easy ones."""
    ability, ease = np.linspace(0.2, 0, 6), np.array([0.7, 0.65, 0.6, 0.2, 0.15, 0.1])
    values = ability[:, None] + ease
    values[0, :3] = np.nan
    values[5, 3:] = np.nan
    found = decide_ranking(matrix(values))
    assert found.models == tuple(f"m{k}" for k in range(6))


def test_the_interval_of_a_gappy_matrix_holds_the_true_rank():
    inside, total = 0, 0
    rng = np.random.default_rng(3)
    for _ in range(40):
        truth = np.clip(
            0.5 + 0.1 * rng.normal(size=(8, 1)) + 0.05 * rng.normal(size=(8, 8)), 0.02, 0.98
        )
        given = measured(truth, 500, rng)
        given.values[rng.random(given.shape) < 0.5] = np.nan
        given = given.benchmarks()
        if given.shape != (8, 8):
            continue
        found = decide_ranking(given, draw_count=1000)
        z = (truth - truth.mean(axis=0)) / truth.std(axis=0)
        rank = {f"m{m}": 1 + r for r, m in enumerate(np.argsort(-z.mean(axis=1)))}
        inside += sum(found.low[k] <= rank[m] <= found.high[k] for k, m in enumerate(found.models))
        total += len(found.models)
    assert inside / total > 0.93


def test_a_model_without_a_common_task_is_shown_apart():
    values = np.full((4, 3), np.nan)
    values[:3, :2] = [[0.8, 0.7], [0.6, 0.5], [0.4, 0.3]]
    values[3, 2] = 0.99
    board = build_scoreboard(Evidence.of(matrix(values)))
    assert board.first == "m0"
    assert board.ranking.unranked == ("m3",)
    assert "m3" not in [s.model for s in board.standings]
    assert any("m3 shares no task with the others" in s for s in board.certainty())


def test_without_standard_errors_nothing_is_claimed():
    evidence = Evidence.of(matrix([[0.612], [0.610], [0.609], [0.400]], np.nan))
    board = build_scoreboard(evidence)
    assert not board.ranking.is_first_certain
    assert (
        board.headline() == "m0 has the best score of 4 models after the same fine-tuning (1 task)."
    )
    assert "stderr" in board.certainty()[0]
    (table,) = board.tables()
    assert table.rows[0][0] == "1", "no interval"


def test_few_tasks_say_nothing_of_others():
    skill = np.linspace(0.9, 0.2, 8)[:, None]
    for tasks, words in ((3, "It takes 5 tasks"), (6, "other tasks like these")):
        board = build_scoreboard(Evidence.of(matrix(np.repeat(skill, tasks, axis=1), 0.001)))
        assert board.ranking.is_first_certain
        assert words in board.certainty()[0]


def test_scores_that_are_all_zero_tie():
    board = build_scoreboard(Evidence.of(matrix([[0.0], [0.0]], 0.0, n=50)))
    assert not board.ranking.is_first_certain
    assert board.headline().startswith("m0 and m1 tie")
    assert board.ranking.p_first == pytest.approx([0.5, 0.5], abs=0.02)


def test_a_share_of_one_is_not_certain():
    board = build_scoreboard(Evidence.of(matrix([[1.0], [0.9]], [[0.0], [0.0688]], n=20)))
    assert not board.ranking.is_first_certain


def test_nothing_that_is_shown_is_nan():
    values = np.full((4, 4), 0.5) + 0.1 * np.random.default_rng(0).random((4, 4))
    values[3, 1:] = np.nan
    evidence = Evidence.of(
        {"direct": matrix(values - 0.1, protocol="direct"), "train_before_test": matrix(values)}
    )
    board = build_scoreboard(evidence)
    told = make_answer(make_report(evidence))
    shown = [
        *board.tables()[0].rows,
        board.headline(),
        *board.certainty(),
        told.headline,
        *told.sentences,
    ]
    shown += [f"{tile['value']} {tile['note']}" for tile in told.tiles]
    assert "nan" not in str(shown)
    assert "3 models have" in board.tables()[0].note


@pytest.mark.parametrize(("models", "tasks"), [(2, 1), (2, 3), (2, 6), (3, 2), (6, 5)])
def test_equal_models_are_hardly_ever_told_apart(models, tasks):
    rng = np.random.default_rng(models * 10 + tasks)
    truth = np.repeat(rng.uniform(0.3, 0.8, tasks)[None], models, axis=0)
    claimed = [
        decide_ranking(measured(truth, 400, rng), draw_count=400).is_first_certain
        for _ in range(150)
    ]
    assert np.mean(claimed) < 0.05 + 2 * math.sqrt(0.05 * 0.95 / 150)


def test_of_many_tasks_few_false_differences_are_called_real():
    rng = np.random.default_rng(0)
    found = []
    for _ in range(150):
        values = rng.binomial(500, np.repeat(rng.uniform(0.3, 0.8, 24)[None], 2, axis=0)) / 500
        given = matrix(values, np.sqrt(values * (1 - values) / 499))
        found.append(any(pair.is_significant for pair in compare_tasks(given, {})))
    assert np.mean(found) < 0.05 + 2 * math.sqrt(0.05 * 0.95 / 150)


def test_shared_documents_make_the_answer_sharper():
    hard = (np.arange(400) + 0.5) / 400
    right = {
        f"m{k}": (hard < p).astype(float) for k, p in enumerate((0.62, 0.60))
    }  # the same documents fall first
    values = [[v.mean()] for v in right.values()]
    error = [[float(np.sqrt(v[0] * (1 - v[0]) / 399))] for v in values]
    items = {"t0": {m: dict(enumerate(v.tolist())) for m, v in right.items()}}
    plain, paired = (
        decide_ranking(matrix(values, error, n=400)),
        decide_ranking(matrix(values, error, n=400), items),
    )
    assert plain.probability_better("m0", "m1") < 0.8
    assert paired.probability_better("m0", "m1") > 0.98


def test_chances_of_many_candidates_are_those_of_their_truth():
    """Fifty models whose true scores differ about as much as the noise: what is said of the first is true as often."""
    rng = np.random.default_rng(1)
    said, right = [], []
    for _ in range(600):
        truth = 0.044 * rng.normal(size=50)
        seen = truth + 0.06 * rng.normal(size=50)
        chance = first_place_shares(shrink_draws(seen + 0.06 * rng.normal(size=(500, 50)), rng))
        said.append(chance.max())
        right.append(truth[chance.argmax()] == truth.max())
    assert np.mean(said) == pytest.approx(np.mean(right), abs=0.05)


def test_the_first_screen_names_what_its_intervals_draw():
    rng = np.random.default_rng(0)
    families = {f"m{k}": f"f{k // 4}" for k in range(16)}
    values = (
        0.5 + 0.1 * np.repeat(rng.normal(size=(4, 1)), 4, axis=0) + 0.03 * rng.normal(size=(16, 6))
    )
    found = analyze_scores(
        {"direct": matrix(values, protocol="direct")}, Background(families=families)
    )
    agreed = found.agreement["direct"]
    assert agreed.resampled_unit == "families"
    (table, *_) = summarize_rankings(found)
    assert f"({agreed.interval.low:.2f} to {agreed.interval.high:.2f})" in table.rows[0][1]
    assert "over families" in table.note


@pytest.mark.parametrize("models", [2, 3, 4])
def test_of_few_models_no_change_of_agreement_is_claimed(models):
    rng = np.random.default_rng(models)
    both = {p: matrix(rng.random((models, 6)), protocol=p) for p in ("direct", "train_before_test")}
    data = make_report(Evidence.of(both))
    assert data.rankings.changes["direct", "train_before_test"].direction == 0
    said = " ".join(make_answer(data).sentences)
    assert "agree more on" not in said
    assert "agree less on" not in said


def test_a_model_and_its_treated_copy_are_told_as_variants():
    """A copy that scores as its original is no rival: what is asked is who of the others may be first."""
    names = ["org/a", "org/a+exposed", "org/b", "org/b@4bit", "org/c", "org/d"]
    luck = 0.01 * np.array([1, -1, 1, -1, 1, -1])
    rows = [
        0.5 + luck,
        0.5 - luck,
        0.495 + np.roll(luck, 1) * [1, 1, -1, -1, 1, 1],
        0.3 + luck,
        0.3 - luck,
        0.3 + luck,
    ]
    values = np.stack(rows)
    given = ScoreMatrix.build(
        names, [f"t{k}" for k in range(6)], values, stderr=np.full(values.shape, 0.01)
    )
    board = build_scoreboard(Evidence.of(given))
    pair = {"org/a", "org/a+exposed"}
    assert board.first in pair
    assert set(board.ranking.rival_variants) == pair - {board.first}
    other = next(iter(pair - {board.first})).removeprefix("org/")
    assert (
        f"Its variant {other} (" in board.headline() or f"its variant {other} (" in board.headline()
    )
    assert "One of " in board.headline()
    assert board.missing is None or board.missing.rival == "org/b"


@pytest.mark.parametrize(
    ("tasks", "said"), [(1, "about 1 more task would."), (99, "about 99 more tasks would.")]
)
def test_what_more_is_needed_is_named(tasks, said):
    told = missing_sentence(
        MissingEvidence("a", "b", math.inf, None, tasks, has_several_tasks=True, is_split=True)
    )
    assert told.endswith(said)


def test_who_ties_on_a_task_leads_on_no_other():
    values = np.array([[0.28, 0.33], [0.28, 0.31], [0.1, 0.1]])
    given = ScoreMatrix.build(
        ["a", "b", "c"], ["t", "u"], values, stderr=np.full(values.shape, 0.05)
    )
    said = " ".join(build_scoreboard(Evidence.of(given)).certainty())
    assert "a and b differ little on these tasks." in said
    assert "lead on different tasks" not in said
