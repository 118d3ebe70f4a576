"""Predicting the results nobody has measured yet, with intervals that hold, and the ranking of the finished study."""

from potentia.analysis.completion.complete import Completion, complete_matrix
from potentia.analysis.completion.grid import (
    CellSampler,
    StudyGrid,
    build_grid,
    complete_grid,
    find_outlook,
    predict_missing_cells,
)
