"""Running a study: plan and cost, row runner, executors, resume, progress."""

from potentia.run.board import Board, Interrupted
from potentia.run.plan import CellPlan, RowPlan, StudyPlan, plan_study, study_key
from potentia.run.study_run import RunResult, run_study

__all__ = [
    "Board",
    "CellPlan",
    "Interrupted",
    "RowPlan",
    "RunResult",
    "StudyPlan",
    "plan_study",
    "run_study",
    "study_key",
]
