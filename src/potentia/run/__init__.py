"""Running a study: plan and cost, row runner, executors, resume, progress.

What proposes cells and races lanes draws on the analyses, and so on scipy; it is loaded when first used, which spares
``potentia status`` and every worker a second.
"""

from typing import TYPE_CHECKING

from potentia.later import import_later
from potentia.run.calibration import estimate_cost
from potentia.run.cost import (
    CellWork,
    StudyCost,
    count_work,
    describe_extra_work,
    find_parameters,
    format_time,
    parse_budget,
    price_work,
)
from potentia.run.execute import RunResult, choose_worker_count, run_study
from potentia.run.executors.worker_processes import WorkerProcesses, estimate_worker_count
from potentia.run.growing_study import absorb_shorter_studies
from potentia.run.plan import Assignment, CellPlan, Row, StudyPlan, load_tasks, plan_study
from potentia.run.progress import PACED, CellCount, estimate_seconds_left
from potentia.run.status import (
    count_planned_cells,
    is_running,
    read_device,
    read_store_status,
)
from potentia.run.time_left import WORK_EVENT, StudyClock, WorkLeft, describe_time_left

if TYPE_CHECKING:
    from potentia.run.adaptive import (
        AdaptiveRun,
        complete_study,
        convert_budget,
        estimate_grid_costs,
        make_grid,
        make_proposed_study,
        render_study,
    )
    from potentia.run.elicitation import run_elicitation
    from potentia.run.select import NoCandidateError, Race

_LATER = {
    **dict.fromkeys(
        (
            "AdaptiveRun",
            "complete_study",
            "estimate_grid_costs",
            "make_grid",
            "make_proposed_study",
            "render_study",
            "convert_budget",
        ),
        "adaptive",
    ),
    "run_elicitation": "elicitation",
    "Race": "select",
    "NoCandidateError": "select",
}

__getattr__ = import_later(__name__, _LATER)
