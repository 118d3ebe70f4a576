import numpy as np
import pytest

from potentia.errors import InputError
from potentia.papers.base_models.ablation import compare_methods
from potentia.values.scores import ScoreMatrix


def scores(values, tasks):
    values = np.asarray(values, dtype=float)
    return {"direct": ScoreMatrix.build([f"m{i}" for i in range(len(values))], tasks, values)}


def test_ranks_are_per_cell_and_ties_share_them():
    found = compare_methods(scores([[0.5, 0.7, 0.7], [0.9, 0.2, 0.1]], ["t:a", "t:b", "t:c"]))
    assert found.methods == ("a", "b", "c")
    assert [r.value for r in found.mean_rank] == [2.0, 1.75, 2.25]
    assert found.best == (1, 1, 1)


def test_near_best_is_within_the_tolerance_and_not_best():
    found = compare_methods(scores([[0.500, 0.495, 0.300]], ["t:a", "t:b", "t:c"]))
    assert found.near == (0, 1, 0)
    assert found.tables()[0].rows[0][2].endswith("**")


def test_cells_that_a_method_lacks_do_not_count():
    found = compare_methods(scores([[0.5, 0.6], [0.9, np.nan]], ["t:a", "t:b"]))
    assert found.cells == 1
    assert found.models == ("m0",)


def test_one_method_cannot_be_ranked():
    with pytest.raises(InputError, match="two methods"):
        compare_methods(scores([[0.5, 0.6]], ["t", "u"]))


def test_cells_without_any_score_raise_no_warning(recwarn):
    ablated = compare_methods(
        scores([[0.5, 0.6, np.nan, np.nan], [0.9, 0.2, 0.3, 0.4]], ["t:a", "t:b", "u:a", "u:b"])
    )
    assert ablated.cells == 3
    assert not recwarn.list
