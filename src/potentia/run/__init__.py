"""Running a study: plan and cost, row runner, executors, resume, progress."""

from potentia.run.adaptive import AdaptiveRun
from potentia.run.cost import StudyCost, parameters_of, price, read_budget, tell_time, work_of
from potentia.run.count import Count
from potentia.run.execute import RunResult, run_study
from potentia.run.pace import estimate_cost, measure_paces
from potentia.run.plan import CellPlan, RowPlan, StudyPlan, plan_study, study_key
from potentia.run.proposal import complete_study, costs_of, grid_of, proposed_study, study_text
from potentia.run.select import Race
from potentia.run.status import asked_cells, is_running, store_status
