"""The scoreboard: scores, gains, ranks, whether the first is certain, and what would make it so."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from potentia.analysis.rankings import build_scoreboard, find_rankings, summarize_rankings
from potentia.analysis.rankings.decide import decide_ranking
from potentia.analysis.rankings.lead import Lead, estimate_missing_evidence
from potentia.analysis.rankings.scoreboard import ScoresWithItems, measure_gains
from potentia.analysis.rankings.sentences import lead_sentence, missing_sentence
from potentia.errors import InputError
from potentia.evidence import Evidence
from potentia.values.findings import Bars, Heatmap, Interval, Table, drop_empty_columns
from potentia.values.metric import Metric
from potentia.values.scores import Score, ScoreMatrix


def matrix(values, protocol="train_before_test", stderr=0.01, **settings) -> ScoreMatrix:
    values = np.asarray(values, dtype=float)
    return ScoreMatrix.build(
        [f"org/m{k}" for k in range(len(values))],
        [f"t{k}" for k in range(values.shape[1])],
        values,
        stderr=np.broadcast_to(stderr, values.shape),
        protocol=protocol,
        **settings,
    )


def both(before, after, **settings) -> Evidence:
    return Evidence.of(
        {
            "direct": matrix(before, "direct", **settings),
            "train_before_test": matrix(after, **settings),
        }
    )


SPREAD = np.linspace(0.8, 0.3, 6)[:, None] - np.linspace(0, 0.1, 4)[None, :]


def test_scores_and_gains_are_means_with_their_intervals():
    board = build_scoreboard(both(SPREAD - 0.2, SPREAD))
    top = board.standings[0]
    assert top.model == "org/m0"
    assert [s.value for s in top.scores] == pytest.approx(
        [SPREAD[0].mean() - 0.2, SPREAD[0].mean()]
    )
    half = 1.959964 * 0.01 / math.sqrt(4)
    assert top.scores[1].high - top.scores[1].value == pytest.approx(half, rel=1e-5)
    assert top.gain.value == pytest.approx(0.2)
    assert top.gain.high - top.gain.value == pytest.approx(half * math.sqrt(2), rel=1e-5)
    assert board.ranking.is_first_certain
    assert board.headline().startswith(
        "m0 is the best of 6 models after the same fine-tuning"
    )  # no organisation
    (table,) = board.tables()
    before, after = "before fine-tuning", "after fine-tuning"
    assert table.columns == ("rank", "model", "P(first)", "mean z", before, after, "gain")
    assert table.rows[0] == (
        "1 (1–1)",
        "m0",
        "over 99 %",
        f"{board.ranking.scores[0]:.2f}",
        "0.550 ± 0.010",
        "0.750 ± 0.010",
        "+0.200 ± 0.014",
    )


def test_the_command_and_the_report_have_the_same_scoreboard():
    evidence = both(SPREAD - 0.2, SPREAD)
    assert find_rankings(evidence).scoreboard.to_dict() == build_scoreboard(evidence).to_dict()
    assert next(iter(find_rankings(evidence).findings_by_name())) == "scoreboard"


def outcomes(stream, before, after, n):
    """Items whose two runs part on a few documents alone."""
    first = (stream.random(n) < before).astype(float)
    second = np.where(stream.random(n) < (after - before) / (1 - before), 1.0, first)
    return dict(enumerate(first)), dict(enumerate(second))


def test_a_gain_is_paired_where_items_are_stored():
    from dataclasses import replace

    stream, n = np.random.default_rng(1), 400
    first, second = outcomes(stream, 0.5, 0.6, n)
    means = [[np.mean(list(first.values()))], [0.3]], [[np.mean(list(second.values()))], [0.35]]
    error = np.sqrt(0.25 / n)
    plain = both(*means, stderr=error)
    stored = replace(plain)
    stored.__dict__["outcomes"] = {
        "direct": {"t0": {"org/m0": first}},
        "train_before_test": {"t0": {"org/m0": second}},
    }
    wide, narrow = (build_scoreboard(e).standings[0].gain for e in (plain, stored))
    differences = np.array([second[d] - first[d] for d in first])
    assert narrow.value == pytest.approx(wide.value)
    assert narrow.high - narrow.value == pytest.approx(
        1.959964 * differences.std(ddof=1) / math.sqrt(n), rel=1e-5
    )
    assert narrow.high - narrow.low < 0.7 * (wide.high - wide.low)
    stored.__dict__["outcomes"]["direct"]["t0"]["org/m0"] = dict.fromkeys(
        first, 1.0
    )  # f1, say: not the items' mean
    assert build_scoreboard(stored).standings[0].gain == wide


def test_only_tasks_that_all_models_have_enter_the_mean_and_it_says_so():
    values = SPREAD.copy()
    values[2, 1] = np.nan
    board = build_scoreboard(both(SPREAD - 0.1, values))
    assert board.tasks == ("t0", "t2", "t3")
    note = board.tables()[0].note
    assert "Means over the 3 of 4 tasks that all models have, without t1 (no score of m2)" in note
    values[2, :3] = np.nan  # a model with a quarter of the tasks does not take them from the others
    board = build_scoreboard(both(SPREAD - 0.1, values))
    assert board.tasks == ("t0", "t1", "t2", "t3")
    (poor,) = [s for s in board.standings if s.model == "org/m2"]
    assert poor.scores[1] is None
    assert poor.gain is None


def test_losses_do_not_enter_a_mean_of_scores():
    evidence = Evidence.of(
        matrix(SPREAD, higher_is_better=[True, True, True, False], metrics=["acc"] * 3 + ["brier"])
    )
    board = build_scoreboard(evidence)
    assert board.tasks == ("t0", "t1", "t2")
    assert board.metric == "acc"
    assert len(board.ranking.tasks) == 4


def test_texts_alone_are_ranked_by_bits():
    bits = Evidence.of(
        {
            "direct": matrix(
                2 - SPREAD, "direct", higher_is_better=False, metrics=["bits_per_byte"] * 4
            )
        }
    )
    board = build_scoreboard(bits)
    assert board.first == "org/m0"
    assert board.standings[0].scores[0].value == pytest.approx((2 - SPREAD)[0].mean())
    with pytest.raises(InputError):
        find_rankings(bits)


def test_one_model_has_scores_and_no_rank():
    board = build_scoreboard(both(SPREAD[:1] - 0.2, SPREAD[:1]))
    (table,) = board.tables()
    assert table.columns == ("model", "before fine-tuning", "after fine-tuning", "gain")
    assert board.certainty() == []


def test_models_that_tie_are_said_to():
    same = np.tile(SPREAD[:1], (3, 1))
    board = build_scoreboard(both(same - 0.2, same))
    assert board.headline().startswith("m0, m1 and m2 tie")
    assert not board.ranking.is_first_certain


def test_scores_without_errors_have_no_interval():
    board = build_scoreboard(both(SPREAD - 0.2, SPREAD, stderr=np.nan))
    assert board.tables()[0].rows[0] == ("1", "m0", "1.46", "0.550", "0.750", "+0.200")
    assert board.missing is None
    assert "sure" not in board.headline()
    assert "no standard errors" in board.certainty()[0]


# --- what is missing ---


def test_as_many_examples_as_it_says_find_the_difference_four_times_in_five():
    n, p = 600, (0.62, 0.60)
    error = np.sqrt([[v * (1 - v) / n] for v in p])
    board = build_scoreboard(Evidence.of(matrix([[p[0]], [p[1]]], stderr=error, n=[[n], [n]])))
    assert not board.ranking.is_first_certain
    missing = board.missing
    assert missing.rival == "org/m1"
    assert missing.examples == pytest.approx((missing.times - 1) * n, rel=0.1)
    size = n + missing.examples
    stream = np.random.default_rng(0)
    drawn = stream.binomial(size, p, size=(4000, 2)) / size
    z = (drawn[:, 0] - drawn[:, 1]) / np.sqrt((drawn * (1 - drawn)).sum(axis=1) / size)
    assert np.mean(z > norm.ppf(0.975)) == pytest.approx(0.8, abs=0.03)
    assert f"it takes about {missing.examples:,} more test examples" in board.certainty()[-1]
    assert "other tasks" not in " ".join(board.certainty())


def test_where_tasks_disagree_examples_alone_would_not_do():
    values = np.array(
        [[0.7, 0.5, 0.7, 0.5, 0.62], [0.5, 0.7, 0.5, 0.7, 0.6], [0.1, 0.1, 0.1, 0.1, 0.1]]
    )
    board = build_scoreboard(Evidence.of(matrix(values, stderr=0.001)))
    assert board.missing.times == math.inf
    assert board.missing.examples is None
    assert "More test examples would not separate them" in board.certainty()[-1]
    assert (
        "On these 5 tasks m0 scores 0.4 points more than m1 (95 % interval by test noise alone 0.3 to 0.5)."
        in board.certainty()
    )


def test_more_examples_are_asked_for_the_closer_two_models_are():
    def asked(gap):
        two_models = matrix([[0.5 + gap], [0.5]], stderr=0.05)
        return estimate_missing_evidence(
            decide_ranking(two_models), two_models, None, {"t0": 100.0}, "org/m0", "org/m1"
        )

    counts = [asked(gap).examples for gap in (0.1, 0.05, 0.02)]
    assert counts == sorted(counts)
    assert "differ as little as measured" in missing_sentence(asked(0.0))


# --- what is not worth showing ---


def test_tables_of_dashes_and_pictures_of_one_number_say_nothing():
    table = Table("x", ("task", "a", "b"), (("t0", float("nan"), 1.0), ("t1", None, 2.0)))
    assert drop_empty_columns(table).columns == ("task", "b")
    assert (
        drop_empty_columns(Table("x", ("task", "a"), (("t0", float("nan")), ("t1", None)))) is None
    )
    assert drop_empty_columns(Table("x", ("task", "a"), ())) is None
    assert drop_empty_columns(Table("x", ("a",), ((1.0,),))) is not None
    assert not Heatmap("h", "h", "", ("t0",), ("t0",), np.array([[1.0]])).has_content
    assert not Bars("b", "b", "", ("t0",), {"s": (0.5,)}).has_content
    assert Bars("b", "b", "", ("t0",), {"s": (0.5,), "u": (0.6,)}).has_content


def test_the_summary_of_one_task_has_no_dashes():
    rankings = find_rankings(both(SPREAD[:, :1] - 0.2, SPREAD[:, :1]))
    cells = [cell for table in summarize_rankings(rankings) for row in table.rows for cell in row]
    assert cells
    assert None not in cells


def test_seeds_count_in_gains_that_are_paired_by_documents():
    """The spread between seeds is no part of the documents' differences."""
    before, after = ({"t": {"m": {k: float(k % 2 == odd) for k in range(40)}}} for odd in (0, 1))
    width = {}
    for seeds in ((0.2, 0.5, 0.8), (0.5, 0.5, 0.5)):
        cells = {("m", "t"): Score(0.5, 0.1, 40, Metric.of("acc"), seeds=seeds)}
        direct, tuned = (ScoreMatrix.from_cells(p, cells) for p in ("direct", "train_before_test"))
        scores_before = ScoresWithItems(direct, before)
        scores_after = ScoresWithItems(tuned, after)
        gain = measure_gains(scores_before, scores_after, ["m"], ["t"], np.ones(1), 0.95)["m"]
        width[seeds] = gain.high - gain.low
    assert width[0.2, 0.5, 0.8] ** 2 - width[0.5, 0.5, 0.5] ** 2 == pytest.approx(
        2 * (2 * 1.96) ** 2 * 0.03, rel=1e-3
    )


def test_differences_of_shares_are_told_in_points_and_others_as_they_are():
    values = np.array([[0.7, 0.6, 0.5], [0.6, 0.5, 0.4]])
    board = build_scoreboard(Evidence.of(matrix(values, stderr=0.01)))
    assert any("m0 scores 10.0 points more than m1" in text for text in board.certainty())
    lead = Lead(
        first="a",
        second="b",
        tasks=1,
        difference=Interval.around(1.5, 0.5),
        tasks_ahead=1,
        chance=1.0,
        generalizes=False,
    )
    assert lead_sentence(lead) == (
        "On this task a scores 1.500 more than b (95 % interval by test noise alone 1.000 to 2.000)."
    )
