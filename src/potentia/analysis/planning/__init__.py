"""Choosing under a budget: the cells nobody has run yet, the ranking as far as it can be known, what to run next."""

from potentia.analysis.planning.choose import Choice, Costs, NextCells, Standing, choose_cells
from potentia.analysis.planning.complete import Completion, complete
from potentia.analysis.planning.find import Grid, find_completion, find_grid, find_outlook
from potentia.analysis.rankings.aggregate import TaskCurve, find_task_curve
