"""Choosing under a budget: the cells nobody has run yet, the ranking as far as it can be known, what to run next."""

from potentia.analysis.planning.choose import Costs, NextCells, choose_cells
from potentia.analysis.planning.complete import Completion, complete

__all__ = ["Completion", "Costs", "NextCells", "choose_cells", "complete"]
