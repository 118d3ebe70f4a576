"""Below five models nothing is said of other models, and one pair that is not separated is no fault of a task."""

from __future__ import annotations

import numpy as np
import pytest

from potentia.analysis.rankings import find_pair, find_rankings
from potentia.analysis.rankings.findings import summarize_rankings
from potentia.evidence import read


def findings(folder, models: int, tasks: int = 2, step: float = 0.05):
    rows = ["model,task,score,stderr"]
    rows += [
        f"m{k},t{j},{0.5 + step * k + 0.01 * j},0.01" for k in range(models) for j in range(tasks)
    ]
    (folder / "s.csv").write_text("\n".join(rows) + "\n")
    return find_rankings(read(folder / "s.csv"))


@pytest.mark.parametrize("models", [2, 3, 4])
def test_few_models_have_no_interval_over_models(tmp_path, models):
    """Two models once agreed "1.00 (1.00 to 1.00)" over other models."""
    result = findings(tmp_path, models)
    for agreement in result.agreement.values():
        assert agreement.mean == 1.0
        assert np.isnan([agreement.interval.low, agreement.interval.high]).all()
        assert all(np.isnan(task.low) for task in agreement.per_task)
    assert all(np.isnan(part.low) for c in result.components.values() for part in c.explained)
    (table,) = summarize_rankings(
        result
    )  # nor is a figure of so few models shown beside what more would say
    assert [row[0] for row in table.rows] == ["pairs of models that differ significantly on a task"]
    assert "brackets" not in table.note


def test_five_models_have_one(tmp_path):
    result = findings(tmp_path, 5)
    assert all(np.isfinite(a.interval.low) for a in result.agreement.values())
    assert "brackets" in summarize_rankings(result)[0].note


@pytest.mark.parametrize("models", [2, 4, 6])
def test_models_that_are_alike_do_not_make_a_test_too_small(tmp_path, models):
    result = findings(tmp_path, models, tasks=1, step=0.0)
    assert any(flag.reason == "test split too small" for flag in result.screening.flags) is False


def test_models_that_score_alike_are_not_told_to_differ(tmp_path):
    """ "B scores 0.000 more than A" was said of a tie."""
    text = " ".join(findings(tmp_path, 2, tasks=1, step=0.0).scoreboard.certainty())
    assert "have the same score" in text
    assert "0.000 more" not in text


def test_nothing_is_said_of_an_error_that_no_score_has(tmp_path):
    (tmp_path / "s.csv").write_text("model,task,score\nA,t,0.6\nB,t,0.5\n")
    rankings = find_rankings(read(tmp_path / "s.csv"))
    assert "±" not in str(rankings.scoreboard)
    assert "nan" not in "".join(map(str, summarize_rankings(rankings)))


def test_a_tie_is_told_in_the_order_of_the_table(tmp_path):
    (tmp_path / "s.csv").write_text("model,task,score,stderr,n\nA,t,0.0,0.0,100\nB,t,0.0,0.0,100\n")
    board = find_rankings(read(tmp_path / "s.csv")).scoreboard
    assert board.headline().startswith("A and B tie")
    assert board.certainty()[0].startswith("On this task A and B have the same score")


def test_without_standard_errors_a_difference_is_neither_real_nor_not(tmp_path):
    (tmp_path / "s.csv").write_text("model,task,score\nA,x,0.612\nB,x,0.610\n")
    pair = find_pair(read(tmp_path / "s.csv"), "A", "B")
    assert pair.tasks[0].is_significant is None
    assert pair.tables()[0].rows[0][-2:] == (None, None)


def test_two_models_of_one_score_are_compared_in_one_breath(tmp_path):
    """ "A may be better than B, but that is not sure (50 %). … have the same score … score the same" was said."""
    (tmp_path / "s.csv").write_text(
        "model,task,score,stderr,n\nA,t,0.5,0.05,100\nB,t,0.5,0.05,100\n"
    )
    (sentence,) = find_pair(read(tmp_path / "s.csv"), "A", "B").sentences()
    interval = "95 % interval of the difference by test noise alone -14.3 to 14.3 points"
    assert sentence == f"A and B score the same without further fine-tuning ({interval})."
