"""The answer claims no more than the intervals hold."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from potentia.analysis.rankings import CLAIM_PROBABILITY
from potentia.evidence import Evidence
from potentia.show import ReportData, build_sections, make_answer, make_report
from potentia.show.answer import answer_context
from potentia.values.findings import Table
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
    answer = make_answer(make(skill, 0.001))
    assert (
        answer.headline == "m0 is the best of 8 models after the same fine-tuning (6 tasks): "
        "significantly better than each of the others (p < 0.001 against m1, the closest)."
    )
    assert "other tasks like these" in answer.sentences[0]


def test_equal_models_are_all_named_as_possible():
    answer = make_answer(
        make(np.full((3, 6), 0.5) + np.random.default_rng(0).normal(0, 0.001, (3, 6)), 0.05)
    )
    assert "most likely the best of 3 models" in answer.headline
    assert answer.headline.endswith("may be the best, too.")


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.001, 0.2))
def test_the_headline_follows_the_intervals(seed: int, noise: float):
    values = np.random.default_rng(seed).random((5, 4))
    answer = make_answer(make(values, noise))
    probability = answer.board.ranking.p_beats_closest
    assert ("is the best" in answer.headline) == (probability >= CLAIM_PROBABILITY)
    assert ("most likely" in answer.headline) == (probability < CLAIM_PROBABILITY)
    assert answer.standings[0].rank == min(s.rank for s in answer.standings)


def test_without_preparation_nothing_is_said_of_potential():
    answer = make_answer(
        make(np.linspace(0.9, 0.2, 8)[:, None] - np.linspace(0, 0.05, 6)[None, :], 0.001, "direct")
    )
    assert "after" not in answer.headline
    assert answer.headline.startswith("m0 is the best of 8 models without further fine-tuning")


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
    answer = make_answer(data)
    expected = {1: "more on", -1: "less on", 0: "It is open"}[change.direction]
    (said,) = [sentence for sentence in answer.sentences if "after fine-tuning" in sentence]
    assert expected in said
    (tile,) = [tile for tile in answer.tiles if "agreement" in str(tile)]
    assert ("open whether that is a change" in str(tile)) == (change.direction == 0)
    assert "difference" in str(tile)


def test_with_one_task_no_sentence_speaks_of_others():
    skill = np.linspace(0.9, 0.2, 8)[:, None]
    answer = make_answer(make(skill, 0.001))
    assert "1 task)" in answer.headline
    assert not any(
        "other tasks" in sentence or "choice of tasks" in sentence for sentence in answer.sentences
    )
    answer = make_answer(make(np.full((3, 1), 0.5) + np.array([[0.0], [0.001], [0.002]]), 0.05))
    assert "most likely" in answer.headline
    assert not any("choice of tasks" in sentence for sentence in answer.sentences)


def test_scores_without_errors_resolve_nothing():
    answer = make_answer(make(np.random.default_rng(0).random((4, 3)), float("nan")))
    assert any("needs standard errors to be called significant" in s for s in answer.sentences)


@pytest.mark.parametrize("gap", [True, False])
def test_a_model_with_a_gap_is_still_ranked(gap: bool):
    values = np.linspace(0.9, 0.2, 6)[:, None] - np.linspace(0, 0.05, 4)[None, :]
    if gap:
        values[2, 1] = np.nan
    answer = make_answer(make(values, 0.01))
    assert len(answer.standings) == 6
    assert answer.method == "mean z"


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
    answer = make_answer(data)
    spoken = " ".join(
        [answer.headline, *answer.sentences, *(tile["note"] for tile in answer.tiles)]
    )
    page = next(html for id, _, html in build_sections(data) if id == "answer")
    for words in ("typical task", "over tasks", "other tasks", "choice of tasks"):
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


def test_a_likely_first_is_what_to_fine_tune_and_its_rival_what_to_compare_with():
    skill = np.array(
        [[0.9, 0.8, 0.7], [0.9, 0.7, 0.3], [0.3, 0.2, 0.1], [0.2, 0.1, 0.0], [0.1, 0, 0]]
    )
    values = np.hstack([skill, skill + 0.01])
    answer = make_answer(make(values, 0.05))
    assert "most likely the best" in answer.headline
    assert answer.advice[0].startswith("Fine-tune m0: it is the best with a probability of ")
    assert answer.advice[0].endswith("To be surer, compare it with m1 on more tasks.")


def test_a_name_keeps_its_first_letter_at_the_start_of_a_sentence():
    values = np.full((3, 6), 0.5) + np.random.default_rng(0).normal(0, 0.001, (3, 6))
    rivals = make_answer(make(values, 0.05)).headline.partition("). ")[2]
    assert rivals.startswith("m")


def test_what_ranks_the_models_stands_beside_their_means():
    skill = np.linspace(0.9, 0.2, 8)[:, None] - np.linspace(0, 0.05, 6)[None, :]
    ladder = answer_context(make(skill, 0.001))["ladders"][0]
    assert ladder["mark"] == "z"
    overall = [
        float(rung["overall"].removeprefix("z ").replace("−", "-")) for rung in ladder["rungs"]
    ]
    assert overall == sorted(overall, reverse=True)
    few = answer_context(make(skill[:3], 0.001))["ladders"][0]
    assert [rung["overall"] for rung in few["rungs"]] == ["", "", ""]


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
    ladder = answer_context(report)["ladders"][0]
    assert [rung["model"] for rung in ladder["rungs"]] == [
        "gemma-2-2b",
        "gemma-3-1b-it",
        "gemma-2-9b",
        "gemma-2-9b+exposed",
    ]
    assert [rung["size"] for rung in ladder["rungs"]][:3] == ["2B", "1B", "9B"]
    sized = "The best model up to each size: gemma-3-1b-it (1B), gemma-2-2b (2B)."
    assert sized in make_answer(report).advice


def test_scores_from_before_fine_tuning_are_no_advice_to_fine_tune_the_first():
    skill = np.linspace(0.9, 0.2, 8)[:, None] - np.linspace(0, 0.05, 6)[None, :]
    (advice,) = make_answer(make(skill, 0.001, protocol="direct")).advice
    assert "do not say which will be best after it" in advice


def test_no_part_speaks_for_models_that_cannot_be_compared():
    """ "Fine-tune m0" and a P(first) over 99 % were said where the others share no task with it."""
    values = np.full((7, 6), np.nan)
    values[:3, :5] = np.linspace(0.9, 0.7, 3)[:, None] + np.linspace(0, 0.05, 5)
    values[3:, 5] = [0.2, 0.3, 0.4, 0.5]
    matrix = ScoreMatrix.build(
        [f"m{k}" for k in range(7)],
        [f"t{k}" for k in range(6)],
        values,
        stderr=np.full(values.shape, 0.01),
        protocol="train_before_test",
    )
    report_data = make_report(Evidence.of(matrix))
    answer = make_answer(report_data)
    assert answer.advice[0].startswith("Measure at least one task on all models")
    assert not [tile for tile in answer.tiles if tile["label"] == "that the first is the best"]
    sections = {id: html for id, _, html in build_sections(report_data)}
    page = sections["answer"]
    assert "stands: part 1 of 2" in page
    assert "stands: part 2 of 2" in page
    assert all(f'title="m{k}"' in page for k in range(7)), "the second part had no ladder"
    first_caption, second_caption = re.findall(r"Left, ranks[^<]*", page)
    assert "choice of tasks" in first_caption
    assert "choice of tasks" not in second_caption


def test_ranks_over_few_tasks_allow_for_test_noise_alone():
    skill = np.linspace(0.9, 0.2, 4)[:, None] - np.linspace(0, 0.05, 3)[None, :]
    data = make(skill, 0.01)
    sections = {id: html for id, _, html in build_sections(data)}
    assert "from test noise" in sections["answer"]
    assert "choice of tasks" not in sections["answer"]


def test_a_page_without_standard_errors_does_not_speak_of_test_noise():
    skill = np.linspace(0.9, 0.2, 8)[:, None] - np.linspace(0, 0.05, 6)[None, :]
    noisy = {id: html for id, _, html in build_sections(make(skill, 0.01))}
    assert "interval from test noise and the choice of tasks" in noisy["answer"]
    assert "± is the 95 % half-width" in noisy["scores"]
    bare = {id: html for id, _, html in build_sections(make(skill, np.nan))}
    assert (
        "interval from the choice of tasks (the scores have no standard errors)" in bare["answer"]
    )
    assert "from test noise" not in bare["answer"]
    assert "±" not in bare["scores"]


def test_ranks_have_no_interval_where_nothing_can_be_claimed():
    matrix = ScoreMatrix.build(["a", "b"], ["t"], np.array([[0.5], [0.6]]), protocol="direct")
    sections = {id: html for id, _, html in build_sections(make_report(Evidence.of(matrix)))}
    assert "1–1" not in sections["scores"]
    assert "rank 1, 1 to 1" not in sections["answer"]


def test_words_of_sections_have_signs_and_code_keeps_its_own():
    """ "95% interval -1.4 to +1.1" stood in the words of a section beside "95 %" and a minus sign in its answer."""
    from potentia.show.page import format_prose

    prose = str(format_prose("a 95% interval -1.4 to 1.1: `--set a=-1`"))
    assert prose == "a 95\u00a0% interval −1.4 to 1.1: <code>--set a=-1</code>"


def test_sizes_are_written_as_in_the_names_of_models():
    """A model of 159k parameters was said to have 0.159M."""
    from potentia.values.wording import format_parameters

    sizes = (1.1, 0.135, 0.000159)
    assert [format_parameters(billions) for billions in sizes] == ["1.1B", "135M", "159k"]


def test_numbers_in_tables_have_a_minus_sign_and_files_a_hyphen():
    """ "-0.007 to +0.021" stood in tables beside "−0.05" in charts."""
    from potentia.show.page import html_table

    table = Table("T", ("name", "difference", "interval"), [("a -1", -0.25, "-0.014 to +0.011")])
    html = str(html_table(table))
    assert '<td class=num data-v="-0.25">−0.250</td>' in html
    assert '<td data-v="-0.014 to +0.011">−0.014 to +0.011</td>' in html
    assert "<td>a -1</td>" in html


def test_an_interval_near_the_end_of_the_scale_is_not_written_with_one_half_width():
    """11 right answers of 12 stood on the page as 0.917 ± 0.177."""
    values = np.array([[11 / 12], [3 / 12]])
    errors = np.sqrt(values * (1 - values) / 11)
    matrix = ScoreMatrix.build(
        ["a", "b"], ["t"], values, stderr=errors, n=np.full((2, 1), 12.0), metrics=["acc"]
    )
    sections = {id: html for id, _, html in build_sections(make_report(Evidence.of(matrix)))}
    assert "0.917<small>" in sections["answer"]
    assert "0.917 ±" not in sections["answer"]
    assert "The two models differ significantly here" in sections["answer"]
    assert "pairs of models" not in sections["answer"]
