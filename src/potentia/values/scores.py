"""Scores and the ScoreMatrix: models × tasks of one protocol, the input of every analysis."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from potentia.errors import InputError
from potentia.values.protocol import Protocol

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]
Outcomes = Mapping[str, Mapping[str, Mapping[int, float]]]  # task → model → document → value of the item

TASK_LOSSES = frozenset({"brier_score", "brier"})  # lower is better on a task, where else it means a text to predict


def is_text(metric: str, higher_is_better: bool) -> bool:
    """Say whether a column of scores is of a text to predict rather than of a task."""
    return not higher_is_better and metric not in TASK_LOSSES


@dataclass(frozen=True, slots=True)
class Score:
    """One number with its uncertainty: the value, its standard error, and the number of items behind it."""

    value: float
    stderr: float
    n: int
    metric: str
    higher_is_better: bool = True


@dataclass(frozen=True, slots=True)
class ItemOutcome:
    """What happened on one document: its id in the split, the item's value of the main metric, and the evidence.

    ``value`` is the per-item metric where the metric is a mean of items (0/1 for accuracy); for metrics of a set
    (mcc, f1) it is 1.0 where prediction and gold agree. ``detail`` holds what the cell page shows: prompt, gold,
    prediction, log-likelihoods of the choices, generated text.
    """

    doc_id: int
    value: float
    prediction: str
    gold: str
    detail: dict[str, Any]


@dataclass(frozen=True, eq=False)
class ScoreMatrix:
    """Models × tasks of one protocol. Missing cells are NaN; ``stderr`` and ``n`` are NaN where unknown."""

    protocol: Protocol
    models: tuple[str, ...]
    tasks: tuple[str, ...]
    values: Floats  # (models, tasks)
    stderr: Floats  # (models, tasks)
    n: Floats  # (models, tasks) items behind each score
    higher_is_better: tuple[bool, ...]  # per task
    metrics: tuple[str, ...] = ()  # per task; empty where the metric's name is not known

    def __post_init__(self) -> None:
        object.__setattr__(self, "protocol", Protocol(self.protocol))
        if not self.metrics:
            object.__setattr__(self, "metrics", ("",) * len(self.tasks))
        shape = (len(self.models), len(self.tasks))
        for name in ("values", "stderr", "n"):
            array: Floats = getattr(self, name)
            if array.shape != shape:
                raise InputError(f"{name} has shape {array.shape}, but there are {shape[0]} models × {shape[1]} tasks")
        if len(self.higher_is_better) != len(self.tasks) or len(self.metrics) != len(self.tasks):
            raise InputError("higher_is_better and metrics need one entry per task")
        for kind, names in (("model", self.models), ("task", self.tasks)):
            if len(set(names)) != len(names):
                twice = sorted({n for n in names if names.count(n) > 1})
                raise InputError(f"{kind} named twice: {', '.join(twice)}")

    @classmethod
    def build(
        cls,
        models: Sequence[str],
        tasks: Sequence[str],
        values: npt.ArrayLike,
        *,
        stderr: npt.ArrayLike | None = None,
        n: npt.ArrayLike | None = None,
        higher_is_better: Sequence[bool] | bool = True,
        protocol: str = "direct",
        metrics: Sequence[str] = (),
    ) -> ScoreMatrix:
        """Make a matrix from plain lists or arrays; unknown standard errors and sizes become NaN."""
        array = np.asarray(values, dtype=np.float64).reshape(len(models), len(tasks))
        blank = np.full_like(array, np.nan)
        directions = (higher_is_better,) * len(tasks) if isinstance(higher_is_better, bool) else higher_is_better
        return cls(
            protocol=Protocol(protocol),
            models=tuple(models),
            tasks=tuple(tasks),
            values=array,
            stderr=blank if stderr is None else np.asarray(stderr, dtype=np.float64).reshape(array.shape),
            n=blank.copy() if n is None else np.asarray(n, dtype=np.float64).reshape(array.shape),
            higher_is_better=tuple(bool(d) for d in directions),
            metrics=tuple(metrics),
        )

    @property
    def shape(self) -> tuple[int, int]:
        """(number of models, number of tasks)."""
        return len(self.models), len(self.tasks)

    def frame(self) -> pd.DataFrame:
        """Return the scores as a pandas table, models × tasks."""
        import pandas as pd

        return pd.DataFrame(self.values, index=pd.Index(self.models, name="model"), columns=list(self.tasks))

    @classmethod
    def of_frame(cls, frame: pd.DataFrame, **options: Any) -> ScoreMatrix:
        """Make a matrix of a pandas table, models × tasks; options are those of ``build``."""
        return cls.build([str(m) for m in frame.index], [str(t) for t in frame.columns], frame.to_numpy(), **options)

    def _repr_html_(self) -> str:
        return str(self.frame().to_html())

    def oriented(self) -> Floats:
        """Values with the sign flipped where lower is better, so that higher always means better."""
        sign = np.where(np.asarray(self.higher_is_better, dtype=bool), 1.0, -1.0)
        return self.values * sign

    def select(self, *, models: Iterable[str] | None = None, tasks: Iterable[str] | None = None) -> ScoreMatrix:
        """Return the sub-matrix of these models and tasks, in the order given."""
        rows = self._places(self.models, models, "model")
        columns = self._places(self.tasks, tasks, "task")
        grid = np.ix_(rows, columns)
        return replace(
            self,
            models=tuple(self.models[i] for i in rows),
            tasks=tuple(self.tasks[j] for j in columns),
            values=self.values[grid],
            stderr=self.stderr[grid],
            n=self.n[grid],
            higher_is_better=tuple(self.higher_is_better[j] for j in columns),
            metrics=tuple(self.metrics[j] for j in columns),
        )

    def corpora(self) -> ScoreMatrix:
        """Return the texts to predict: the columns where less is better, as bits per byte."""
        return self.select(tasks=[t for t, text in zip(self.tasks, self._texts(), strict=True) if text])

    def benchmarks(self) -> ScoreMatrix:
        """Return the tasks without the corpora, those that anyone has a score of, and the models that have any."""
        known = np.isfinite(self.values)
        columns = [j for j, text in enumerate(self._texts()) if not text and known[:, j].any()]
        rows = [m for m, row in zip(self.models, known, strict=True) if row[columns].any()]
        return self.select(models=rows, tasks=[self.tasks[j] for j in columns])

    def _texts(self) -> list[bool]:
        return [is_text(m, up) for up, m in zip(self.higher_is_better, self.metrics, strict=True)]

    def complete(self) -> ScoreMatrix:
        """Drop every model that lacks a score on some task: the listwise treatment of missing cells."""
        whole = np.asarray(np.isfinite(self.values).all(axis=1)).tolist()
        return self.select(models=[m for m, keep in zip(self.models, whole, strict=True) if keep])

    @staticmethod
    def _places(names: tuple[str, ...], wanted: Iterable[str] | None, kind: str) -> list[int]:
        if wanted is None:
            return list(range(len(names)))
        index = {name: i for i, name in enumerate(names)}
        try:
            return [index[name] for name in wanted]
        except KeyError as error:
            known = ", ".join(names[:8]) + (" …" if len(names) > 8 else "")
            raise InputError(f"no {kind} {error.args[0]!r} in these scores", hint=f"there are: {known}") from None
