"""Running a study: plan and cost, row runner, executors, resume, progress."""

from potentia.run.board import Interrupted
from potentia.run.plan import CellPlan, RowPlan, StudyPlan, plan_study, study_key
from potentia.run.study_run import RunResult, run_study
