"""Choosing under a budget: which results to measure next, how few tasks suffice, which model wins a race."""

from potentia.analysis.planning.choice import (
    CandidateStanding,
    ModelChoice,
    SmallerModel,
    describe_seeds,
    find_smaller_model,
)
from potentia.analysis.planning.learning_curve import (
    CurvePoint,
    LearningCurve,
    measure_learning_curve,
)
from potentia.analysis.planning.next_cells import CellCosts, NextCells, choose_cells
from potentia.analysis.planning.selection import SelectionFinding, find_selection
from potentia.analysis.planning.study_power import StudyPower, TestSize, estimate_study_power
from potentia.analysis.planning.trust import TestedAnswer, Trust, answers_from_items, measure_trust
from potentia.analysis.rankings.task_curve import TaskCurve, measure_task_curve
