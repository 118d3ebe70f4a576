"""Running a study: plan and cost, row runner, executors, resume, progress.

What proposes cells and races lanes draws on the analyses, and so on scipy; it is loaded when first used, which spares
``potentia status`` and every worker a second.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from potentia.run.calibration import estimate_cost
from potentia.run.cost import StudyCost, parameters_of, price, read_budget, tell_time, work_of
from potentia.run.execute import RunResult, default_workers, run_study
from potentia.run.machine import Crew, expected_workers
from potentia.run.plan import CellPlan, RowPlan, StudyPlan, load_tasks, plan_study
from potentia.run.progress import PACED, Count, asked_cells, is_running, seconds_left, store_status

if TYPE_CHECKING:
    from potentia.run.adaptive import (
        AdaptiveRun,
        complete_study,
        costs_of,
        grid_of,
        proposed_study,
        study_text,
        within,
    )
    from potentia.run.select import Race, elicit

_LATER = {
    **dict.fromkeys(
        (
            "AdaptiveRun",
            "complete_study",
            "costs_of",
            "grid_of",
            "proposed_study",
            "study_text",
            "within",
        ),
        "adaptive",
    ),
    **dict.fromkeys(("Race", "elicit"), "select"),
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(f"potentia.run.{_LATER[name]}"), name)
    raise AttributeError(f"module 'potentia.run' has no attribute {name!r}")
