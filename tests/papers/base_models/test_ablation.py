import numpy as np
import pytest

from potentia.errors import InputError
from potentia.papers.base_models.ablation import compare_methods
from potentia.values.scores import ScoreMatrix


def scores(values, tasks):
    values = np.asarray(values, dtype=float)
    return {"direct": ScoreMatrix.build([f"m{i}" for i in range(len(values))], tasks, values)}


def test_ranks_are_per_cell_and_ties_share_them():
    methods = compare_methods(scores([[0.5, 0.7, 0.7], [0.9, 0.2, 0.1]], ["t:a", "t:b", "t:c"]))
    assert methods.methods == ("a", "b", "c")
    assert [r.value for r in methods.mean_rank] == [2.0, 1.75, 2.25]
    assert methods.best == (1, 1, 1)


def test_near_best_is_within_the_tolerance_and_not_best():
    methods = compare_methods(scores([[0.500, 0.495, 0.300]], ["t:a", "t:b", "t:c"]))
    assert methods.near == (0, 1, 0)
    assert methods.tables()[0].rows[0][2].endswith("**")


def test_cells_that_a_method_lacks_do_not_count():
    methods = compare_methods(scores([[0.5, 0.6], [0.9, np.nan]], ["t:a", "t:b"]))
    assert methods.cells == 1
    assert methods.models == ("m0",)


def test_one_method_cannot_be_ranked():
    with pytest.raises(InputError, match="two methods"):
        compare_methods(scores([[0.5, 0.6]], ["t", "u"]))


def test_cells_without_any_score_raise_no_warning(recwarn):
    ablated = compare_methods(
        scores([[0.5, 0.6, np.nan, np.nan], [0.9, 0.2, 0.3, 0.4]], ["t:a", "t:b", "u:a", "u:b"])
    )
    assert ablated.cells == 3
    assert not recwarn.list


def test_bits_per_byte_are_shown_as_they_are_and_stay_out_of_the_mean():
    tasks = ["boolq:a", "boolq:b", "rte:a", "rte:b", "wiki:a", "wiki:b"]
    values = [[0.5, 0.7, 0.3, 0.5, 0.9, 0.8], [0.6, 0.6, 0.4, 0.2, np.nan, np.nan]]
    metrics = ["acc"] * 4 + ["bits_per_byte"] * 2
    matrix = ScoreMatrix.build(["m0", "m1"], tasks, np.array(values), metrics=metrics)
    table = compare_methods({"direct": matrix}).tables()[0]
    first_row = dict(zip(table.columns, table.rows[0], strict=True))
    assert (first_row["wiki"], first_row["mean"]) == ("0.900", pytest.approx(0.4))
    assert table.rows[1][4] == "0.800**", "fewer bits are better"
    assert table.rows[2][-1] == pytest.approx(0.5), "it has every task of the mean"
    assert "mean: of boolq and rte" in table.note
    assert "wiki: lower is better" in table.note
