"""Two models are compared by their own difference: other models, and tasks that one of them lacks, change nothing."""

import math

import numpy as np
import pytest

import potentia
from potentia.analysis.rankings import decide_ranking, find_rankings, sentences
from potentia.analysis.rankings.lead import RankedOtherwise, measure_lead
from potentia.analysis.rankings.pair import find_pair
from potentia.values.scores import ScoreMatrix, TaskOutcomes

BYSTANDERS = """m3,0.6,0.0155,0.245,0.0136
m4,0.5,0.0158,0.235,0.0134
m5,0.4,0.0155,0.24,0.0135
m6,0.3,0.0145,0.238,0.0135
"""
PAIR = """model,record,record_stderr,ask,ask_stderr
m1,0.86,0.0110,0.23,0.0133
m2,0.78,0.0131,0.25,0.0137
"""
TASKS = ("arc_easy", "boolq", "piqa", "hellaswag", "winogrande", "mytask")
SCORES = {
    "acme-7b": (0.68, 0.7645, 0.7359, 0.6366, 0.6132, 0.6851),
    "acme-13b-chat": (0.7209, 0.8201, 0.7726, 0.6807, 0.6673, 0.7454),
    "borealis-3b": (0.6016, 0.666, 0.6596, 0.5804, 0.5198, 0.6131),
    "cirrus-8b": (0.6865, 0.7757, 0.7474, 0.6815, 0.636, math.nan),
    "delta-1b": (0.5024, 0.5772, 0.5222, 0.4619, 0.4393, 0.5217),
}
PAIRED_T = 0.024  # of the first over cirrus-8b on the five tasks that both have


def read(tmp_path, text):
    path = tmp_path / "scores.csv"
    path.write_text(text)
    return potentia.read(path)


def make_matrix(tasks=6, *, with_errors=True):
    values = np.array(list(SCORES.values()))[:, :tasks]
    errors = np.sqrt(values * (1 - values) / 1_000)
    return ScoreMatrix.build(
        list(SCORES),
        list(TASKS[:tasks]),
        values,
        stderr=errors if with_errors else np.full(values.shape, np.nan),
        metrics=["acc"] * tasks,
    )


def p_value_of_first(matrix):
    ranking = decide_ranking(matrix)
    assert ranking.first == "acme-13b-chat"
    assert ranking.closest == "cirrus-8b"
    return 2 * (1 - ranking.p_beats_closest)


def test_other_models_of_the_table_do_not_decide_which_of_two_is_better(tmp_path):
    """By z scores over six models the worse of two was said to be better."""
    alone = find_pair(read(tmp_path, PAIR), "m1", "m2").sentences()
    among_others = find_pair(read(tmp_path, PAIR + BYSTANDERS), "m1", "m2").sentences()
    assert alone[0].startswith("m1 is better than m2")
    assert among_others[0] == alone[0]
    assert "puts m2 before m1" in among_others[1]
    assert not any("puts" in sentence for sentence in alone)


def test_a_ranking_says_why_it_orders_two_models_otherwise(tmp_path):
    evidence = read(tmp_path, PAIR + BYSTANDERS)
    (protocol,) = evidence.final_scores
    matrix = evidence.final_scores[protocol]
    ranking = decide_ranking(matrix)
    assert ranking.models.index("m2") < ranking.models.index("m1")
    lead = measure_lead(ranking, matrix, None, "m2", "m1")
    assert (lead.first, lead.ranked_otherwise) == ("m1", RankedOtherwise.BY_SPREAD)
    assert ranking.probability_better("m1", "m2") == pytest.approx(lead.chance)
    said = " ".join(sentences.certainty_sentences(ranking, lead, None))
    assert "m1 scores 3.0 points more than m2" in said
    assert "puts m2 before m1" in said


def test_a_task_that_one_of_two_lacks_says_nothing_of_the_pair():
    """A sixth task without a score of the rival took p from 0.080 to 0.043."""
    assert p_value_of_first(make_matrix(5)) == pytest.approx(PAIRED_T, abs=0.002)
    assert p_value_of_first(make_matrix(6)) == p_value_of_first(make_matrix(5))


def test_no_answer_is_surer_without_standard_errors():
    without_errors = p_value_of_first(make_matrix(5, with_errors=False))
    assert without_errors == pytest.approx(PAIRED_T, abs=0.002)
    assert p_value_of_first(make_matrix(5)) >= without_errors


def test_a_spread_smaller_than_test_noise_makes_nothing_sure():
    """Five differences of 0.01 and a little on tests of 100 examples."""
    values = np.array([[0.5] * 5, [0.49, 0.489, 0.491, 0.49, 0.4895]])
    errors = np.full(values.shape, 0.05)
    matrix = ScoreMatrix.build(["a", "b"], list(TASKS[:5]), values, stderr=errors)
    assert decide_ranking(matrix).probability_better("a", "b") < 0.7


def test_differences_that_are_all_alike_are_no_proof_without_errors():
    values = np.array([[0.5] * 5, [0.4] * 5])
    matrix = ScoreMatrix.build(["a", "b"], list(TASKS[:5]), values, metrics=["acc"] * 5)
    assert not decide_ranking(matrix).is_first_certain


def test_what_is_allowed_for_without_standard_errors_is_said(tmp_path):
    rows = "".join(f"{model},{','.join(map(str, row[:5]))}\n" for model, row in SCORES.items())
    evidence = read(tmp_path, f"model,{','.join(TASKS[:5])}\n{rows}")
    ranking = next(iter(find_rankings(evidence).overall.values()))
    said = " ".join(sentences.certainty_sentences(ranking, None, None))
    assert "the scores have no standard errors: test noise is allowed for only as far as it" in said
    compared = " ".join(find_pair(evidence, "acme-13b", "cirrus").sentences())
    assert "No single task can be tested: the scores have no standard errors." in compared
    assert "On none" not in compared


def test_one_test_decides_every_sentence_about_two_models_with_answers():
    """116 texts, of which one model alone gets 10 right and the other 21: McNemar's p is 0.071."""
    first = [1.0] * 54 + [1.0] * 10 + [0.0] * 21 + [0.0] * 31
    second = [1.0] * 54 + [0.0] * 10 + [1.0] * 21 + [0.0] * 31
    outcomes = {"zt": TaskOutcomes({"a": dict(enumerate(first)), "b": dict(enumerate(second))})}
    values = np.array([[np.mean(first)], [np.mean(second)]])
    matrix = ScoreMatrix.build(
        ["a", "b"],
        ["zt"],
        values,
        stderr=np.sqrt(values * (1 - values) / 115),
        n=np.full(values.shape, 116),
        metrics=["acc"],
    )
    ranking = decide_ranking(matrix, outcomes)
    lead = measure_lead(ranking, matrix, outcomes, "a", "b")
    assert lead.first == "b"
    assert 2 * (1 - lead.chance) == pytest.approx(0.0708, abs=1e-3)
    assert not lead.is_certain
    assert not ranking.is_first_certain
    assert lead.difference.low < 0 < lead.difference.value
    assert ranking.p_first.tolist() == pytest.approx([lead.chance, 1 - lead.chance])
    assert ranking.low.tolist() == [1, 1]
