"""Running a study: plan and cost, row runner, executors, resume, progress."""

from potentia.run.board import Board, Interrupted
from potentia.run.plan import CellPlan, Plan, RowPlan, study_key
from potentia.run.study_run import RunResult, plan_study, run_study

__all__ = [
    "Board",
    "CellPlan",
    "Interrupted",
    "Plan",
    "RowPlan",
    "RunResult",
    "plan_study",
    "run_study",
    "study_key",
]
