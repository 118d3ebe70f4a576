"""Scores and the ScoreMatrix: models × tasks of one protocol, the input of every analysis."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from potentia.errors import InputError
from potentia.extras import Extra, require_extra
from potentia.values.metric import UNKNOWN, Metric, Origin
from potentia.values.protocol import Protocol

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]
Objects = npt.NDArray[np.object_]
Wanted = Any  # names, or an array that says where they are (a mask or positions); None for all
# task → model → document → value of the item
Outcomes = Mapping[str, Mapping[str, Mapping[int, float]]]
NO_CLUSTERS: Mapping[int, str] = MappingProxyType({})


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
        document_error = sum(score.stderr for score in scores) / len(scores)
        total_error = math.hypot(document_error, seed_error(values))
        mean_value = sum(values) / len(values)
        return replace(scores[0], value=mean_value, stderr=total_error, seeds=values)

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Score:
        """Read a score that ``dataclasses.asdict`` wrote."""
        return cls(
            value=content["value"],
            stderr=content["stderr"],
            n=content["n"],
            metric=Metric(**content["metric"]),
            origin=Origin(**content["origin"]),
            seeds=tuple(content["seeds"]),
        )


def seed_error(values: Sequence[float]) -> float:
    """Return the standard error of a mean over seeds; 0 where there are not two."""
    if len(values) < 2:
        return 0.0
    return float(np.std(values, ddof=1)) / math.sqrt(len(values))


@dataclass(frozen=True, slots=True)
class ItemOutcome:
    """What happened on one document: its id in the split, the item's value of the main metric, and the evidence.

    ``value`` is the per-item metric where the metric is a mean of items (0/1 for accuracy; its mean over seeds); for
    metrics of a set (mcc, f1) it is 1.0 where prediction and gold agree. ``detail`` holds what the cell page shows:
    prompt, gold, prediction, log-likelihoods of the choices, generated text. Examples with the same ``cluster`` share
    a passage, so that their outcomes are not independent; it is empty where an example stands alone.
    """

    doc_id: int
    value: float
    prediction: str
    gold: str
    detail: dict[str, Any]
    cluster: str = ""


class TaskOutcomes(dict[str, Mapping[int, float]]):
    """The outcomes of one task, model → example → value, with the cluster of every example that shares its passage."""

    def __init__(
        self,
        values_by_model: Mapping[str, Mapping[int, float]],
        cluster_by_example: Mapping[int, str] = NO_CLUSTERS,
    ) -> None:
        super().__init__(values_by_model)
        self.cluster_by_example = cluster_by_example


def find_clusters(outcomes: Outcomes | None, task: str) -> Mapping[int, str]:
    """Return the cluster of every example of a task; none where examples are independent, as far as is known."""
    return clusters_of_task((outcomes or {}).get(task))


def clusters_of_task(outcomes: Mapping[str, Mapping[int, float]] | None) -> Mapping[int, str]:
    """Return the clusters that the outcomes of one task bring along."""
    if isinstance(outcomes, TaskOutcomes):
        return outcomes.cluster_by_example
    return NO_CLUSTERS


def _number_names(names: Iterable[str]) -> dict[str, int]:
    """Return the position of every name, each name counted once."""
    distinct_names = dict.fromkeys(names)
    return {name: position for position, name in enumerate(distinct_names)}


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
    # (models, tasks) of a tuple of values, None where there is one seed
    seeds: Objects | None = None
    # (tasks,) standard deviation of a score over fine-tuning seeds, pooled (``pool_seed_variance``); NaN where unknown
    seed_deviations: Floats | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "protocol", Protocol(self.protocol))
        model_count, task_count = self.shape
        for name in _GRIDS:
            array = getattr(self, name)
            if array is not None and array.shape != self.shape:
                raise InputError(
                    f"{name} has shape {array.shape}, but there are {model_count} models × {task_count} tasks"
                )
        if len(self.metrics) != len(self.tasks):
            raise InputError("metrics need one entry per task")
        for kind, names in (("model", self.models), ("task", self.tasks)):
            if len(set(names)) != len(names):
                repeated = sorted({name for name in names if names.count(name) > 1})
                raise InputError(f"{kind} named twice: {', '.join(repeated)}")

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
        shape = (len(models), len(tasks))
        directions: tuple[bool | None, ...]
        if higher_is_better is None or isinstance(higher_is_better, bool):
            directions = (higher_is_better,) * len(tasks)
        else:
            directions = tuple(higher_is_better)
        metrics_or_names = tuple(metrics) or ("",) * len(tasks)
        value_grid = _float_grid(values, shape)
        if not len(directions) == len(metrics_or_names) == len(tasks):
            raise InputError("higher_is_better and metrics need one entry per task")
        task_metrics = []
        for metric, direction in zip(metrics_or_names, directions, strict=True):
            if not isinstance(metric, Metric):
                metric = Metric.of(metric, direction)
            task_metrics.append(metric)
        return cls(
            protocol=Protocol(protocol),
            models=tuple(models),
            tasks=tuple(tasks),
            values=value_grid,
            stderr=_float_grid(stderr, shape),
            n=_float_grid(n, shape),
            metrics=tuple(task_metrics),
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
        rows = _number_names([*models, *(model for model, _ in cells)])
        columns = _number_names([*tasks, *(task for _, task in cells)])
        shape = (len(rows), len(columns))
        values = _float_grid(None, shape)
        stderr = _float_grid(None, shape)
        n = _float_grid(None, shape)
        origins = np.full(shape, None, dtype=object)
        seeds = np.full(shape, None, dtype=object)
        metrics = dict.fromkeys(columns, Metric())
        for (model, task), score in cells.items():
            cell = rows[model], columns[task]
            values[cell] = score.value
            stderr[cell] = score.stderr
            n[cell] = score.n or np.nan
            if score.origin != UNKNOWN:
                origins[cell] = score.origin
            if score.seeds:
                seeds[cell] = score.seeds
            if score.metric is not metrics[task]:  # of a store, equal ones are the same
                metrics[task] = score.metric.merged(metrics[task])
        return cls(
            protocol=Protocol(protocol),
            models=tuple(rows),
            tasks=tuple(columns),
            values=values,
            stderr=stderr,
            n=n,
            metrics=tuple(metrics.values()),
            origins=origins if any(origins.flat) else None,
            seeds=seeds if any(seeds.flat) else None,
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
        item_count = float(self.n[row, column])
        seed_values: tuple[float, ...] = ()
        if self.seeds is not None:
            seed_values = self.seeds[row, column] or ()
        return Score(
            value=float(self.values[row, column]),
            stderr=float(self.stderr[row, column]),
            n=0 if math.isnan(item_count) else int(item_count),
            metric=self.metrics[column],
            origin=self.origin(row, column),
            seeds=seed_values,
        )

    def seed_error(self, model: str, task: str) -> float:
        """Return the part of a score's standard error that is its seeds'; 0 where nothing is known of it."""
        row = self.models.index(model)
        column = self.tasks.index(task)
        seed_values: tuple[float, ...] = ()
        if self.seeds is not None:
            seed_values = self.seeds[row, column] or ()
        if self.seed_deviations is not None and math.isfinite(self.seed_deviations[column]):
            return float(self.seed_deviations[column]) / math.sqrt(max(1, len(seed_values)))
        return seed_error(seed_values)

    def origin(self, row: int, column: int) -> Origin:
        """Return where one cell comes from."""
        if self.origins is None:
            return UNKNOWN
        return self.origins[row, column] or UNKNOWN

    def scores(self) -> Iterator[tuple[str, str, Score]]:
        """Give (model, task, score) of every cell that is there."""
        for row, column in np.argwhere(np.isfinite(self.values)).tolist():
            yield self.models[row], self.tasks[column], self.score(row, column)

    def frame(self) -> pd.DataFrame:
        """Return the scores as a pandas table, models × tasks."""
        require_extra(Extra.PANDAS, "a pandas table")
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
        """Return the values with the sign flipped where lower is better, so that higher always means better."""
        return self.values * self.sign

    def select(self, *, models: Wanted = None, tasks: Wanted = None) -> ScoreMatrix:
        """Return the sub-matrix of these models and tasks, in the order given: by name, or an array of positions."""
        rows = _find_positions(self.models, models, "model")
        columns = _find_positions(self.tasks, tasks, "task")
        grid = np.ix_(rows, columns)
        return replace(
            self,
            models=tuple(self.models[row] for row in rows),
            tasks=tuple(self.tasks[column] for column in columns),
            values=self.values[grid],
            stderr=self.stderr[grid],
            n=self.n[grid],
            metrics=tuple(self.metrics[column] for column in columns),
            origins=None if self.origins is None else self.origins[grid],
            seeds=None if self.seeds is None else self.seeds[grid],
            seed_deviations=None if self.seed_deviations is None else self.seed_deviations[columns],
        )

    def laid_out(
        self, models: Sequence[str], tasks: Sequence[str]
    ) -> tuple[Floats, Floats, Floats]:
        """Return values, standard errors and n of these models and tasks; NaN where there are none."""
        row_of_model = _number_names(self.models)
        column_of_task = _number_names(self.tasks)
        # A name that is not there is at position -1: the row and the column of NaN that the padding adds.
        rows = [row_of_model.get(model, -1) for model in models]
        columns = [column_of_task.get(task, -1) for task in tasks]
        grid = np.ix_(rows, columns)
        values = np.pad(self.values, (0, 1), constant_values=np.nan)[grid]
        stderr = np.pad(self.stderr, (0, 1), constant_values=np.nan)[grid]
        n = np.pad(self.n, (0, 1), constant_values=np.nan)[grid]
        return values, stderr, n

    def corpora(self) -> ScoreMatrix:
        """Return the texts to predict, scored in bits per byte or perplexity."""
        return self.select(tasks=self._is_text)

    def benchmarks(self) -> ScoreMatrix:
        """Return the tasks without the corpora, those that anyone has a score of, and the models that have any."""
        is_scored = np.isfinite(self.values)
        is_benchmark = is_scored.any(axis=0) & ~self._is_text
        has_benchmark_score = is_scored[:, is_benchmark].any(axis=1)
        return self.select(models=has_benchmark_score, tasks=is_benchmark)

    @property
    def _is_text(self) -> npt.NDArray[np.bool_]:
        return np.array([metric.is_text for metric in self.metrics], dtype=bool)

    def complete(self) -> ScoreMatrix:
        """Return the models that have a score on every task: the listwise treatment of missing cells."""
        has_all_scores = np.isfinite(self.values).all(axis=1)
        return self.select(models=has_all_scores)


def _float_grid(values: npt.ArrayLike | None, shape: tuple[int, int]) -> Floats:
    """Return the values as floats, models × tasks; NaN in every cell where there are none."""
    if values is None:
        return np.full(shape, np.nan)
    return np.asarray(values, dtype=np.float64).reshape(shape)


def _find_positions(names: tuple[str, ...], selection: Wanted, kind: str) -> list[int]:
    """Return the positions of the wanted names, or of all where none are named."""
    if selection is None:
        return list(range(len(names)))
    if isinstance(selection, np.ndarray):
        return list(np.arange(len(names))[selection].tolist())
    position_of_name = _number_names(names)
    try:
        return [position_of_name[name] for name in selection]
    except KeyError as error:
        available_names = ", ".join(names[:8])
        if len(names) > 8:
            available_names += " …"
        raise InputError(
            f"no {kind} {error.args[0]!r} in these scores", hint=f"there are: {available_names}"
        ) from None
