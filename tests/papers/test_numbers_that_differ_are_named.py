"""The train-before-test comparison ends with the numbers that differ from the paper's."""

from __future__ import annotations

import math

from potentia.papers.train_before_test.reproduction import NumberCheck, TrainBeforeTestPaper


def compare(*checks: NumberCheck) -> TrainBeforeTestPaper:
    return TrainBeforeTestPaper(models=3, tasks=2, checks=checks, findings={})


def test_the_last_line_names_what_differs():
    same = NumberCheck(where="Table 1", what="mean", paper=0.5, ours=0.501)
    different = NumberCheck(where="Table 2", what="median", paper=0.51, ours=0.501)
    not_printed = NumberCheck(where="Table 3", what="range", paper=math.nan, ours=0.2)
    last_table = compare(same, different, not_printed).tables()[-1]
    assert last_table.note == "Different from the paper: Table 2, median: 0.50, printed 0.51."


def test_where_nothing_differs_that_is_said():
    same = NumberCheck(where="Table 1", what="mean", paper=0.5, ours=0.501)
    assert compare(same).tables()[-1].note == "No number differs from the paper's."
