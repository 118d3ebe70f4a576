"""Scores and the ScoreMatrix: models × tasks of one protocol, the input of every analysis."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from potentia.errors import InputError
from potentia.values.metric import UNKNOWN, Metric, Origin
from potentia.values.protocol import Protocol

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]
Objects = npt.NDArray[np.object_]
Wanted = Any  # names, or an array that says where they are (a mask or places); None for all
Outcomes = Mapping[
    str, Mapping[str, Mapping[int, float]]
]  # task → model → document → value of the item


@dataclass(frozen=True, slots=True)
class Score:
    """One number that knows what it is: its standard error (of documents and seeds), items, metric, origin, seeds."""

    value: float
    stderr: float
    n: int
    metric: Metric
    origin: Origin = UNKNOWN
    seeds: tuple[float, ...] = ()  # the value with every seed, where there are several

    @property
    def higher_is_better(self) -> bool:
        """Which way is better."""
        return self.metric.higher_is_better

    @classmethod
    def mean(cls, scores: Sequence[Score]) -> Score:
        """Return the mean over seeds. The same documents are tested with every seed: their noise does not average out.

        The standard error has both parts: that of the documents, and that of the seeds.
        """
        values = tuple(score.value for score in scores)
        documents = sum(score.stderr for score in scores) / len(scores)
        error = math.hypot(documents, seed_error(values))
        return replace(scores[0], value=sum(values) / len(values), stderr=error, seeds=values)

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Score:
        """Read a score that ``dataclasses.asdict`` wrote."""
        parts = {"metric": Metric(**content["metric"]), "origin": Origin(**content["origin"])}
        return cls(**{**content, **parts, "seeds": tuple(content["seeds"])})


def seed_error(values: Sequence[float]) -> float:
    """Return the standard error of a mean over seeds; 0 where there are not two."""
    return float(np.std(values, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else 0.0


@dataclass(frozen=True, slots=True)
class ItemOutcome:
    """What happened on one document: its id in the split, the item's value of the main metric, and the evidence.

    ``value`` is the per-item metric where the metric is a mean of items (0/1 for accuracy; its mean over seeds); for
    metrics of a set (mcc, f1) it is 1.0 where prediction and gold agree. ``detail`` holds what the cell page shows:
    prompt, gold, prediction, log-likelihoods of the choices, generated text.
    """

    doc_id: int
    value: float
    prediction: str
    gold: str
    detail: dict[str, Any]


def _numbered(*names: str) -> dict[str, int]:
    return {name: place for place, name in enumerate(dict.fromkeys(names))}


_GRIDS = ("values", "stderr", "n", "origins", "seeds")  # of a ScoreMatrix: models × tasks


@dataclass(frozen=True, eq=False)
class ScoreMatrix:
    """Models × tasks of one protocol. Missing cells are NaN; ``stderr`` and ``n`` are NaN where unknown."""

    protocol: Protocol
    models: tuple[str, ...]
    tasks: tuple[str, ...]
    values: Floats  # (models, tasks)
    stderr: Floats  # (models, tasks)
    n: Floats  # (models, tasks) items behind each score
    metrics: tuple[Metric, ...]  # per task
    origins: Objects | None = None  # (models, tasks) of Origin, None where unknown
    seeds: Objects | None = (
        None  # (models, tasks) of a tuple of values, None where there is one seed
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "protocol", Protocol(self.protocol))
        shape = (len(self.models), len(self.tasks))
        for name in _GRIDS:
            array = getattr(self, name)
            if array is not None and array.shape != shape:
                raise InputError(
                    f"{name} has shape {array.shape}, but there are {shape[0]} models × {shape[1]} tasks"
                )
        if len(self.metrics) != len(self.tasks):
            raise InputError("metrics need one entry per task")
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
        higher_is_better: Sequence[bool] | bool | None = None,
        protocol: str = "direct",
        metrics: Sequence[Metric | str] = (),
    ) -> ScoreMatrix:
        """Make a matrix from plain lists or arrays; unknown standard errors and sizes become NaN.

        ``metrics`` are names or metrics, one per task; what is known of a name (which way is better, kind, scale) is
        taken. Without them a task's scores are better when higher, unless ``higher_is_better`` says otherwise.
        """
        array = np.asarray(values, dtype=np.float64).reshape(len(models), len(tasks))
        blank = np.full_like(array, np.nan)
        ups = (
            (higher_is_better,) * len(tasks)
            if higher_is_better is None or isinstance(higher_is_better, bool)
            else tuple(higher_is_better)
        )
        names = tuple(metrics) or ("",) * len(tasks)
        if not len(ups) == len(names) == len(tasks):
            raise InputError("higher_is_better and metrics need one entry per task")
        return cls(
            protocol=Protocol(protocol),
            models=tuple(models),
            tasks=tuple(tasks),
            values=array,
            stderr=blank
            if stderr is None
            else np.asarray(stderr, dtype=np.float64).reshape(array.shape),
            n=blank.copy() if n is None else np.asarray(n, dtype=np.float64).reshape(array.shape),
            metrics=tuple(
                name if isinstance(name, Metric) else Metric.of(name, up)
                for name, up in zip(names, ups, strict=True)
            ),
        )

    @classmethod
    def of_cells(
        cls,
        protocol: str,
        cells: Mapping[tuple[str, str], Any],
        models: Iterable[str] = (),
        tasks: Iterable[str] = (),
    ) -> ScoreMatrix:
        """Make a matrix of scores (or what has their fields) by model and task; a task's metric is what any knows.

        ``models`` and ``tasks`` come first, in their order; the others follow as they appear.
        """
        rows = _numbered(*models, *(model for model, _ in cells))
        columns = _numbered(*tasks, *(task for _, task in cells))
        values, stderr, n = (np.full((len(rows), len(columns)), np.nan) for _ in range(3))
        origins, seeds = (np.full(values.shape, None, dtype=object) for _ in range(2))
        metrics = dict.fromkeys(columns, Metric())
        for (model, task), score in cells.items():
            place = rows[model], columns[task]
            values[place], stderr[place], n[place] = score.value, score.stderr, score.n or np.nan
            if score.origin != UNKNOWN:
                origins[place] = score.origin
            if score.seeds:
                seeds[place] = score.seeds
            if score.metric is not metrics[task]:  # of a store, equal ones are the same
                metrics[task] = score.metric.merged(metrics[task])
        known = [array if any(array.flat) else None for array in (origins, seeds)]
        return cls(
            Protocol(protocol),
            tuple(rows),
            tuple(columns),
            values,
            stderr,
            n,
            tuple(metrics.values()),
            *known,
        )

    @property
    def shape(self) -> tuple[int, int]:
        """(number of models, number of tasks)."""
        return len(self.models), len(self.tasks)

    @property
    def higher_is_better(self) -> tuple[bool, ...]:
        """Which way is better, per task."""
        return tuple(metric.higher_is_better for metric in self.metrics)

    def score(self, row: int, column: int) -> Score:
        """Return one cell as the score that it is."""
        value, stderr, n = (float(part[row, column]) for part in (self.values, self.stderr, self.n))
        seeds = () if self.seeds is None else self.seeds[row, column] or ()
        return Score(
            value,
            stderr,
            0 if math.isnan(n) else int(n),
            self.metrics[column],
            self.origin(row, column),
            seeds,
        )

    def seed_error(self, model: str, task: str) -> float:
        """Return the part of a score's standard error that is its seeds'; 0 where there is one seed."""
        if self.seeds is None:
            return 0.0
        return seed_error(self.seeds[self.models.index(model), self.tasks.index(task)] or ())

    def origin(self, row: int, column: int) -> Origin:
        """Return where one cell comes from."""
        return (self.origins[row, column] if self.origins is not None else None) or UNKNOWN

    def scores(self) -> Iterator[tuple[str, str, Score]]:
        """Give (model, task, score) of every cell that is there."""
        for i, j in np.argwhere(np.isfinite(self.values)).tolist():
            yield self.models[i], self.tasks[j], self.score(i, j)

    def frame(self) -> pd.DataFrame:
        """Return the scores as a pandas table, models × tasks."""
        import pandas as pd

        return pd.DataFrame(
            self.values, index=pd.Index(self.models, name="model"), columns=list(self.tasks)
        )

    def _repr_html_(self) -> str:
        return str(self.frame().to_html())

    @property
    def sign(self) -> Floats:
        """1 where more is better, −1 where less is: (tasks,)."""
        return np.where(np.asarray(self.higher_is_better, dtype=bool), 1.0, -1.0)

    def oriented(self) -> Floats:
        """Values with the sign flipped where lower is better, so that higher always means better."""
        return self.values * self.sign

    def select(self, *, models: Wanted = None, tasks: Wanted = None) -> ScoreMatrix:
        """Return the sub-matrix of these models and tasks, in the order given: by name, or an array of places."""
        rows = self._places(self.models, models, "model")
        columns = self._places(self.tasks, tasks, "task")
        grid = np.ix_(rows, columns)
        parts: dict[str, Any] = {
            name: part[grid] for name in _GRIDS if (part := getattr(self, name)) is not None
        }
        return replace(
            self,
            models=tuple(self.models[i] for i in rows),
            tasks=tuple(self.tasks[j] for j in columns),
            metrics=tuple(self.metrics[j] for j in columns),
            **parts,
        )

    def laid_out(
        self, models: Sequence[str], tasks: Sequence[str]
    ) -> tuple[Floats, Floats, Floats]:
        """Return values, standard errors and n of these models and tasks; NaN where there are none."""
        rows, columns = (
            {name: k for k, name in enumerate(names)} for names in (self.models, self.tasks)
        )
        place = np.ix_([rows.get(m, -1) for m in models], [columns.get(t, -1) for t in tasks])
        values, stderr, n = (
            np.pad(x, (0, 1), constant_values=np.nan)[place]
            for x in (self.values, self.stderr, self.n)
        )
        return values, stderr, n

    def corpora(self) -> ScoreMatrix:
        """Return the texts to predict, scored in bits per byte or perplexity."""
        return self.select(tasks=self._texts)

    def benchmarks(self) -> ScoreMatrix:
        """Return the tasks without the corpora, those that anyone has a score of, and the models that have any."""
        known = np.isfinite(self.values)
        columns = known.any(axis=0) & ~self._texts
        return self.select(models=known[:, columns].any(axis=1), tasks=columns)

    @property
    def _texts(self) -> npt.NDArray[np.bool_]:
        return np.array([metric.is_text for metric in self.metrics], dtype=bool)

    def complete(self) -> ScoreMatrix:
        """Drop every model that lacks a score on some task: the listwise treatment of missing cells."""
        return self.select(models=np.isfinite(self.values).all(axis=1))

    @staticmethod
    def _places(names: tuple[str, ...], wanted: Wanted, kind: str) -> list[int]:
        if wanted is None:
            return list(range(len(names)))
        if isinstance(wanted, np.ndarray):
            return list(np.arange(len(names))[wanted].tolist())
        index = _numbered(*names)
        try:
            return [index[name] for name in wanted]
        except KeyError as error:
            known = ", ".join(names[:8]) + (" …" if len(names) > 8 else "")
            raise InputError(
                f"no {kind} {error.args[0]!r} in these scores", hint=f"there are: {known}"
            ) from None
