"""A method is a protocol with a prompt form: ``direct``, ``blank_ppl``, ``train_before_test:cloze``.

A task named ``arc_easy:blank_ppl`` is the benchmark ``arc_easy`` in the form ``blank_ppl``. Stability, consistency and
the ablation compare methods on the same benchmark, so they read score matrices as columns of (benchmark, method).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from potentia.errors import InputError
from potentia.values.protocol import Protocol
from potentia.values.scores import Floats, ScoreMatrix
from potentia.values.task_name import TaskName


@dataclass(frozen=True, eq=False)
class Column:
    """The scores of some models on one benchmark by one method; higher always means better."""

    task: str
    method: str
    models: tuple[str, ...]
    values: Floats  # (models,)
    stderr: Floats  # (models,)

    def at(self, models: Sequence[str]) -> tuple[Floats, Floats]:
        """Return values and standard errors of these models, NaN where the column lacks one."""
        index = {model: place for place, model in enumerate(self.models)}
        places = [index.get(model, -1) for model in models]
        known = np.array([place >= 0 for place in places], dtype=bool)
        values = np.where(known, self.values[places] if len(self.models) else np.nan, np.nan)
        stderr = np.where(known, self.stderr[places] if len(self.models) else np.nan, np.nan)
        return values, stderr


def split_form(task: str) -> tuple[str, str]:
    """Split a task's name into benchmark and prompt form; the form is empty for the task's own prompt."""
    return TaskName(task).base, TaskName(task).form


def method_name(protocol: Protocol, form: str) -> str:
    """Name a method as reports do; a form scored without tuning or examples needs no protocol in front."""
    if not form:
        return protocol
    return form if protocol == "direct" else f"{protocol}:{form}"


def columns(scores: Mapping[Protocol, ScoreMatrix]) -> tuple[Column, ...]:
    """Read matrices, keyed by protocol, as columns; a column without any score is left out."""
    found: list[Column] = []
    for protocol, matrix in scores.items():
        oriented = matrix.oriented()
        for place, task in enumerate(matrix.tasks):
            if not np.isfinite(oriented[:, place]).any():
                continue
            benchmark, form = split_form(task)
            found.append(
                Column(
                    benchmark, method_name(protocol, form), matrix.models, oriented[:, place], matrix.stderr[:, place]
                )
            )
    if not found:
        raise InputError("no scores to analyse", hint="choose a protocol and tasks that have scores")
    return tuple(found)


def order_methods(found: Sequence[Column], baseline: str | None = None) -> tuple[str, ...]:
    """Return the methods in order of appearance, the baseline first where one is named."""
    names = tuple(dict.fromkeys(column.method for column in found))
    if baseline is None:
        return names
    if baseline not in names:
        raise InputError(f"no method {baseline!r} in these scores", hint=f"there are: {', '.join(names)}")
    return (baseline, *(name for name in names if name != baseline))
