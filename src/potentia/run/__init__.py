"""Running a study: plan and cost, row runner, executors, resume, progress."""

from potentia.run.count import Count
from potentia.run.execute import RunResult, run_study
from potentia.run.plan import CellPlan, RowPlan, StudyPlan, plan_study, study_key
from potentia.run.status import asked_cells, is_running, store_status
