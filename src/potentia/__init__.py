"""Potentia ranks language models by what they can become.

The public API. Everything is loaded when first used, so that ``import potentia`` costs nothing::

    import potentia

    study = potentia.read_study("study.yaml")
    potentia.run_study(study)                                  # fine-tunes, tests, stores; resumes when run again
    scores = potentia.read_scores(study.store)                 # {"direct": ScoreMatrix, "train_before_test": …}
    finding = potentia.analysis.measure_agreement(scores["direct"])    # findings have tables(), charts() and to_dict()
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from potentia import analysis, engine, facts, tasks
    from potentia.errors import PotentiaError
    from potentia.run import plan_study, run_study
    from potentia.scores import ItemOutcome, Score, ScoreMatrix
    from potentia.store import Store, read_scores, write_scores
    from potentia.study import Study, make_study, read_study

_HOMES = {
    "ItemOutcome": "potentia.scores",
    "PotentiaError": "potentia.errors",
    "Score": "potentia.scores",
    "ScoreMatrix": "potentia.scores",
    "Store": "potentia.store",
    "Study": "potentia.study",
    "make_study": "potentia.study",
    "plan_study": "potentia.run",
    "read_scores": "potentia.store",
    "read_study": "potentia.study",
    "run_study": "potentia.run",
    "write_scores": "potentia.store",
}
_ROOMS = ("analysis", "engine", "facts", "tasks")

__all__ = [
    "ItemOutcome",
    "PotentiaError",
    "Score",
    "ScoreMatrix",
    "Store",
    "Study",
    "analysis",
    "engine",
    "facts",
    "make_study",
    "plan_study",
    "read_scores",
    "read_study",
    "run_study",
    "tasks",
    "write_scores",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in _ROOMS:
        return import_module(f"potentia.{name}")
    raise AttributeError(f"module 'potentia' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
