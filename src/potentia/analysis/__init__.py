"""Pure functions from evidence to findings, a room for each question; ``stats`` holds what they share.

A room is loaded when it is first named: ``potentia.analysis.rankings.find_pair``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from potentia.analysis import (
        base_models,
        benchmark,
        completion,
        planning,
        proxy,
        rankings,
        stats,
        test_task,
    )


def __getattr__(name: str) -> Any:
    if name in (
        "base_models",
        "benchmark",
        "completion",
        "planning",
        "proxy",
        "rankings",
        "stats",
        "test_task",
    ):
        return import_module(f"potentia.analysis.{name}")
    raise AttributeError(f"module 'potentia.analysis' has no attribute {name!r}")
