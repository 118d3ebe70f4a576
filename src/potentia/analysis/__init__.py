"""Pure functions from evidence to findings, a room for each question; ``stats`` holds what they share.

A room is loaded when it is first named: ``potentia.analysis.rankings.find_pair``. ``registration`` holds what an
analysis declares to become a command and a section of the report.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from potentia.analysis import (
        answers,
        benchmark,
        checkpoints,
        completion,
        planning,
        rankings,
        registration,
        stats,
    )

_ROOMS = (
    "answers",
    "benchmark",
    "checkpoints",
    "completion",
    "planning",
    "rankings",
    "registration",
    "stats",
)


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"potentia.analysis.{name}")
    raise AttributeError(f"module 'potentia.analysis' has no attribute {name!r}")
