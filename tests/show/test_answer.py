"""The answer claims no more than the intervals hold."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from potentia.analysis.rankings import CLAIM_PROBABILITY
from potentia.evidence import Evidence
from potentia.show import ReportData, build_sections, make_answer, make_report
from potentia.show.answer import answer_context
from potentia.values.scores import ScoreMatrix


def make(values: np.ndarray, stderr: float, protocol: str = "train_before_test") -> ReportData:
    matrix = ScoreMatrix.build(
        [f"m{k}" for k in range(len(values))],
        [f"t{k}" for k in range(values.shape[1])],
        values,
        stderr=np.full(values.shape, stderr),
        protocol=protocol,
    )
    return make_report(Evidence.of(matrix))


def test_a_clear_winner_is_named_alone():
    skill = np.linspace(0.9, 0.2, 8)[:, None] - np.linspace(0, 0.05, 6)[None, :]
    told = make_answer(make(skill, 0.001))
    assert (
        told.headline == "m0 is the best of 8 models after the same fine-tuning (6 tasks): "
        "significantly better than each of the others (p < 0.001 against m1, the closest)."
    )
    assert "other tasks like these" in told.sentences[0]


def test_equal_models_are_all_named_as_possible():
    told = make_answer(
        make(np.full((3, 6), 0.5) + np.random.default_rng(0).normal(0, 0.001, (3, 6)), 0.05)
    )
    assert "most likely the best of 3 models" in told.headline
    assert told.headline.endswith("are close.")


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.001, 0.2))
def test_the_headline_follows_the_intervals(seed: int, noise: float):
    values = np.random.default_rng(seed).random((5, 4))
    told = make_answer(make(values, noise))
    probability = told.board.ranking.p_beats_closest
    assert ("is the best" in told.headline) == (probability >= CLAIM_PROBABILITY)
    assert ("most likely" in told.headline) == (probability < CLAIM_PROBABILITY)
    assert told.standings[0].rank == min(s.rank for s in told.standings)


def test_without_preparation_nothing_is_said_of_potential():
    told = make_answer(
        make(np.linspace(0.9, 0.2, 8)[:, None] - np.linspace(0, 0.05, 6)[None, :], 0.001, "direct")
    )
    assert "fine-tuning" not in told.headline
    assert told.headline.startswith("m0 is the best of 8 models with direct scores")


def test_a_change_that_noise_explains_is_no_change():
    stream = np.random.default_rng(3)
    names, error = [f"m{k}" for k in range(5)], np.full((5, 3), 0.1)
    before, after = (
        ScoreMatrix.build(
            names, ["a", "b", "c"], stream.random((5, 3)), stderr=error, protocol=protocol
        )
        for protocol in ("direct", "train_before_test")
    )
    data = make_report(Evidence.of({"direct": before, "train_before_test": after}))
    change = data.rankings.changes["direct", "train_before_test"]
    told = make_answer(data)
    expected = {1: "more on", -1: "less on", 0: "It is open"}[change.direction]
    (said,) = [sentence for sentence in told.sentences if "after tuning" in sentence]
    assert expected in said


def test_with_one_task_no_sentence_speaks_of_others():
    skill = np.linspace(0.9, 0.2, 8)[:, None]
    told = make_answer(make(skill, 0.001))
    assert "1 task)" in told.headline
    assert not any(
        "other tasks" in sentence or "choice of tasks" in sentence for sentence in told.sentences
    )
    told = make_answer(make(np.full((3, 1), 0.5) + np.array([[0.0], [0.001], [0.002]]), 0.05))
    assert "most likely" in told.headline
    assert not any("choice of tasks" in sentence for sentence in told.sentences)


def test_scores_without_errors_resolve_nothing():
    told = make_answer(make(np.random.default_rng(0).random((4, 3)), float("nan")))
    assert any("needs standard errors to be called significant" in s for s in told.sentences)


@pytest.mark.parametrize("gap", [True, False])
def test_a_model_with_a_gap_is_still_ranked(gap: bool):
    values = np.linspace(0.9, 0.2, 6)[:, None] - np.linspace(0, 0.05, 4)[None, :]
    if gap:
        values[2, 1] = np.nan
    told = make_answer(make(values, 0.01))
    assert len(told.standings) == 6
    assert told.method == "mean z"


def test_with_one_task_no_sentence_speaks_of_other_tasks():
    scores = {
        protocol: ScoreMatrix.build(
            ["a", "b", "c"],
            ["only"],
            [[v], [v - 0.01], [v - 0.2]],
            stderr=[[0.01]] * 3,
            protocol=protocol,
        )
        for protocol, v in (("direct", 0.5), ("train_before_test", 0.8))
    }
    data = make_report(Evidence.of(scores))
    told = make_answer(data)
    spoken = " ".join([told.headline, *told.sentences, *(tile["note"] for tile in told.tiles)])
    page = next(html for id, _, html in build_sections(data) if id == "answer")
    for words in ("median task", "over tasks", "other tasks", "choice of tasks"):
        assert words not in spoken
        assert words not in page


def test_a_certain_first_is_what_to_fine_tune():
    skill = np.linspace(0.9, 0.2, 8)[:, None] - np.linspace(0, 0.05, 6)[None, :]
    assert make_answer(make(skill, 0.001)).advice == ("Fine-tune m0.",)


def test_equal_models_are_left_to_other_reasons():
    values = np.full((3, 6), 0.5) + np.random.default_rng(0).normal(0, 0.001, (3, 6))
    (advice,) = make_answer(make(values, 0.05)).advice
    assert advice.startswith("Choose between ")
    assert "cannot say which is better" in advice


def test_copies_stand_under_their_originals_and_sizes_beside_names():
    names = ["gemma-2-9b", "gemma-2-9b+exposed", "gemma-2-2b", "gemma-3-1b-it"]
    values = np.array([0.5, 0.9, 0.8, 0.6])[:, None] + np.zeros((1, 6))
    matrix = ScoreMatrix.build(
        names,
        [f"t{k}" for k in range(6)],
        values,
        stderr=np.full(values.shape, 0.001),
        protocol="train_before_test",
    )
    evidence = Evidence.of(matrix)
    report = make_report(evidence)
    ladder = answer_context(report)["ladder"]
    assert [rung["model"] for rung in ladder["rungs"]] == [
        "gemma-2-2b",
        "gemma-3-1b-it",
        "gemma-2-9b",
        "gemma-2-9b+exposed",
    ]
    assert [rung["size"] for rung in ladder["rungs"]][:3] == ["2B", "1B", "9B"]
    assert "Best for its size: gemma-3-1b-it (1B), gemma-2-2b (2B)." in make_answer(report).advice


def test_scores_from_before_fine_tuning_are_no_advice_to_fine_tune_the_first():
    skill = np.linspace(0.9, 0.2, 8)[:, None] - np.linspace(0, 0.05, 6)[None, :]
    (advice,) = make_answer(make(skill, 0.001, protocol="direct")).advice
    assert "do not say which will be best after it" in advice


def test_ranks_have_no_interval_where_nothing_can_be_claimed():
    matrix = ScoreMatrix.build(["a", "b"], ["t"], np.array([[0.5], [0.6]]), protocol="direct")
    sections = {id: html for id, _, html in build_sections(make_report(Evidence.of(matrix)))}
    assert "1–1" not in sections["scores"]
    assert "rank 1, 1 to 1" not in sections["answer"]
