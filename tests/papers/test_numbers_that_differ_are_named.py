"""The train-before-test comparison ends with the numbers that differ from the paper's."""

from __future__ import annotations

import math

import numpy as np

from potentia.papers.printed import ReproducedNumber, count_agreeing, format_our_number
from potentia.papers.train_before_test.comparison import _count_untuned
from potentia.papers.train_before_test.reproduction import NumberCheck, TrainBeforeTestPaper
from potentia.values.protocol import DIRECT, TRAIN_BEFORE_TEST
from potentia.values.scores import ScoreMatrix


def compare(*checks: NumberCheck) -> TrainBeforeTestPaper:
    return TrainBeforeTestPaper(models=3, tasks=2, checks=checks, findings={})


def test_the_last_line_names_what_differs():
    same = NumberCheck(where="Table 1", what="mean", paper=0.5, ours=0.501)
    different = NumberCheck(where="Table 2", what="median", paper=0.51, ours=0.501)
    not_printed = NumberCheck(where="Table 3", what="range", paper=math.nan, ours=0.2)
    last_table = compare(same, different, not_printed).tables()[-1]
    assert (
        last_table.note
        == "1 of 2 agree. Different from the paper: Table 2, median: 0.50, printed 0.51."
    )


def test_where_nothing_differs_that_is_said():
    same = NumberCheck(where="Table 1", what="mean", paper=0.5, ours=0.501)
    assert compare(same).tables()[-1].note == "1 of 1 agree. No number differs from the paper's."


def test_numbers_of_the_shipped_facts_are_counted_apart():
    scored = ReproducedNumber("table 1", "τ", 0.5, "0.5", True)
    known = ReproducedNumber("table 4", "FLOPs", 10.0, "10", True, from_facts=True)
    untried = ReproducedNumber("table 5", "accuracy", 0.6, "0.65", None, needs="XGBoost")
    assert count_agreeing([scored, known, untried]) == (
        "2 of 2 agree: 1 of 1 from the given scores, 1 of 1 from the shipped facts of the models, in which no score "
        "takes part. 1 more number can be compared with XGBoost."
    )
    assert untried.to_row()[4] == "– needs XGBoost"


def test_counts_have_no_decimals_and_small_numbers_are_bounded():
    assert str(format_our_number(10.0, "10")) == "10"
    assert str(format_our_number(0.00004, "p < 0.05")) == "< 0.001"
    assert str(format_our_number(0.5173, "0.52")) == "0.517"
    assert format_our_number(math.nan, "0.52") is None


def test_models_of_unknown_size_count_as_neither_small_nor_large():
    values = np.array([[0.5, 0.6], [0.4, 0.7]])
    matrices = {
        protocol: ScoreMatrix.build(["tiny", "unheard"], ["a", "b"], values)
        for protocol in (DIRECT, TRAIN_BEFORE_TEST)
    }
    note = _count_untuned(matrices, {"tiny": 159_000.0}).note
    assert note.startswith(
        "2 of them of models below 500M parameters; 2 of models of unknown size;"
    )
