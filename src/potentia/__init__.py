"""Potentia ranks language models by what they can become.

The public API. Everything is loaded when first used, so that ``import potentia`` costs nothing::

    import potentia

    study = potentia.read_study("study.yaml")
    potentia.run_study(study)                        # fine-tunes, tests, stores; resumes when run again
    evidence = potentia.read(study.store)            # or a table, or lm-eval results
    evidence.scores["train_before_test"]             # a ScoreMatrix
    rankings = potentia.rankings(evidence)           # what `potentia analyze rankings` prints and the report shows
    rankings.overall["train_before_test"].models     # best first

All names are listed in ``potentia.api``. The packages ``analysis``, ``engine``, ``facts`` and ``tasks`` have the rest.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

__version__ = "0.3.0"

if TYPE_CHECKING:
    from potentia import analysis, engine, evidence, facts, files, formats, integrations  # isort: skip
    from potentia import lab, papers, run, show, store, study, tasks  # isort: skip
    from potentia.api import *  # noqa: F403

_ROOMS = ("analysis", "engine", "facts", "tasks")


if not TYPE_CHECKING:  # a type checker would take every name for Any

    def __getattr__(name: str) -> Any:
        """Load a module or a public name when it is first asked for."""
        # a module is imported directly, without loading the whole api
        if name in _ROOMS or find_spec(f"potentia.{name}") is not None:
            return import_module(f"potentia.{name}")
        if not name.startswith("_"):
            api_module = import_module("potentia.api")
            if name in api_module.__all__:
                return getattr(api_module, name)
        raise AttributeError(f"module 'potentia' has no attribute {name!r}")


def __dir__() -> list[str]:
    api = import_module("potentia.api")
    return sorted([*api.__all__, *_ROOMS, "__version__"])
