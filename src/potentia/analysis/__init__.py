"""Pure functions from evidence to findings, a room for each question; ``stats`` holds what they share.

A room is loaded when it is first named: ``potentia.analysis.rankings.find_pair``. ``registration`` holds what an
analysis declares to become a command and a section of the report.
"""

from typing import TYPE_CHECKING

from potentia.later import import_later

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

__getattr__ = import_later(__name__, {room: room for room in _ROOMS})
