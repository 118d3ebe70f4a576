"""The shading of figure 1: the ranks that significant differences leave possible."""

import numpy as np

from potentia.analysis.rankings.alignment import align_rankings
from potentia.show.charts import draw_chart
from potentia.values.scores import ScoreMatrix


def test_a_model_may_stand_between_those_it_surely_loses_to_and_those_it_surely_beats():
    values = np.array([[0.9, 0.5], [0.6, 0.5], [0.59, 0.5], [0.2, 0.5]])
    matrix = ScoreMatrix.build(
        ["strong", "middle", "near", "weak"],
        ["first", "second"],
        values,
        stderr=np.full(values.shape, 0.02),
    )
    aligned = align_rankings(matrix, "first", "second")
    assert aligned.best_ranks.tolist() == [[1, 1], [2, 1], [2, 1], [4, 1]]
    assert aligned.worst_ranks.tolist() == [[1, 4], [3, 4], [3, 4], [4, 4]]
    assert (aligned.best_ranks <= aligned.ranks).all()
    assert (aligned.ranks <= aligned.worst_ranks).all()
    drawn = "".join(draw_chart(aligned.charts()[0]).sheet.parts)
    assert drawn.count('class="possible') == 4
    assert "middle: rank first 2, second" in drawn
    assert "possible 2 to 3, 1 to 4" in drawn
