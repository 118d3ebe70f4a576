"""Scores, outcomes of single documents, and the ``ScoreMatrix``: models × tasks of one protocol.

The matrix is the input of every analysis. Its missing cells are NaN, and so is what is unknown of a cell.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from typing import Protocol as TypingProtocol

import numpy as np
import numpy.typing as npt

from potentia.errors import InputError, suggest_names
from potentia.extras import Extra, require_extra
from potentia.values.metric import UNKNOWN_ORIGIN, Measured, Metric, Origin
from potentia.values.protocol import Protocol

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]
Objects = npt.NDArray[np.object_]
NamesOrPositions = Any
"""Names, or an array: a mask or positions."""

Outcomes = Mapping[str, Mapping[str, Mapping[int, float]]]
"""Task → model → example → value."""

NO_CLUSTERS: Mapping[int, str] = MappingProxyType({})


ROUNDING_ERROR = 1e-12  # of sums in double precision, beside values near 1


@dataclass(frozen=True, slots=True)
class Score:
    """One score, with everything that is needed to judge it."""

    value: float
    stderr: float  # of the test examples, and of the seeds where there are several
    n: int  # test examples
    metric: Metric
    origin: Origin = UNKNOWN_ORIGIN
    # the values with the fine-tuning seeds, not the seeds, where there are several; files and stores call them so
    seeds: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        # of examples that all have one value, rounding alone leaves an error
        if 0 < self.stderr < ROUNDING_ERROR * max(1.0, abs(self.value)):
            object.__setattr__(self, "stderr", 0.0)

    @property
    def higher_is_better(self) -> bool:
        """Whether a larger value is better."""
        return self.metric.higher_is_better

    @classmethod
    def mean(cls, scores: Sequence[Score]) -> Score:
        """Return the mean of one model's scores over seeds.

        Every seed is tested on the same documents, so their noise does not average out. The standard error has both
        parts: that of the documents, and that of the seeds.
        """
        values = tuple(score.value for score in scores)
        document_error = sum(score.stderr for score in scores) / len(scores)
        total_error = math.hypot(document_error, seed_error(values))
        mean_value = sum(values) / len(values)
        return replace(scores[0], value=mean_value, stderr=total_error, seeds=values)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Score:
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
    """Return the standard error of a mean over seeds; 0 for a single seed, of which nothing is known."""
    if len(values) < 2:
        return 0.0
    return float(np.std(values, ddof=1)) / math.sqrt(len(values))


@dataclass(frozen=True, slots=True)
class ItemOutcome:
    """What happened on one example: its id in the split, its value of the main metric, and how it was answered.

    ``value`` is the metric of this example if the metric is a mean over examples (0 or 1 for accuracy; with several
    seeds, its mean over them). For metrics of a whole set (mcc, f1) it is 1.0 where prediction and gold agree.
    ``detail`` holds what the page of a result shows: prompt, log-likelihoods of the choices, generated text. Examples
    with the same ``cluster`` share a passage, so that their outcomes are not independent; it is empty for an example
    without one.
    """

    doc_id: int
    value: float
    prediction: str
    gold: str
    detail: dict[str, Any]
    cluster: str = ""


@dataclass(frozen=True, slots=True)
class ExampleText:
    """What a person finds an example by: its number in the task's split, as lm-eval counts, and its question."""

    doc_id: int | None
    question: str


class ExampleValues(dict[int, float]):
    """The value of every example, by a number made of its content, with the clusters of the examples.

    ``read_texts`` loads what the examples ask.
    """

    def __init__(
        self,
        values: Mapping[int, float],
        read_texts: Callable[[], dict[int, ExampleText]] = dict,
        cluster_by_example: Mapping[int, str] = NO_CLUSTERS,
    ) -> None:
        super().__init__(values)
        self.read_texts = read_texts
        self.cluster_by_example = cluster_by_example


class TaskOutcomes(dict[str, Mapping[int, float]]):
    """The outcomes of one task, model → example → value, and the clusters of its examples.

    ``cluster_by_example`` leaves out examples that share no passage.
    """

    def __init__(
        self,
        values_by_model: Mapping[str, Mapping[int, float]],
        cluster_by_example: Mapping[int, str] = NO_CLUSTERS,
    ) -> None:
        super().__init__(values_by_model)
        self.cluster_by_example = cluster_by_example


def find_clusters(outcomes: Outcomes | None, task: str) -> Mapping[int, str]:
    """Return the clusters of a task's examples; empty if they are independent, or nothing is known of it."""
    return clusters_of_task((outcomes or {}).get(task))


def clusters_of_task(outcomes: Mapping[str, Mapping[int, float]] | None) -> Mapping[int, str]:
    """Return the clusters that come with the outcomes of one task; empty if none do."""
    if isinstance(outcomes, TaskOutcomes):
        return outcomes.cluster_by_example
    return NO_CLUSTERS


class MeasuredValue(Measured, TypingProtocol):
    """A score, or anything else that has its fields."""

    @property
    def value(self) -> float:
        """The score."""

    @property
    def stderr(self) -> float:
        """Its standard error."""

    @property
    def n(self) -> float:
        """The number of test examples."""

    @property
    def seeds(self) -> tuple[float, ...]:
        """The value with every seed, where there are several."""


def _number_names(names: Iterable[str]) -> dict[str, int]:
    """Return the position of each distinct name, in the order in which they first appear."""
    distinct_names = dict.fromkeys(names)
    return {distinct_name: position for position, distinct_name in enumerate(distinct_names)}


_GRIDS = ("values", "stderr", "n", "origins", "seeds")  # of a ScoreMatrix: models × tasks


@dataclass(frozen=True, eq=False)
class ScoreMatrix:
    """Models × tasks of one protocol. Missing scores are NaN; ``stderr`` and ``n`` are NaN if unknown."""

    protocol: Protocol
    models: tuple[str, ...]
    tasks: tuple[str, ...]
    values: Floats  # (models, tasks)
    stderr: Floats  # (models, tasks)
    n: Floats  # (models, tasks) items behind each score
    metrics: tuple[Metric, ...]  # one per task
    origins: Objects | None = None  # (models, tasks) of Origin; None if unknown
    # (models, tasks) of the values with every seed, as a tuple; None if there is one seed
    seeds: Objects | None = None
    # (tasks,) standard deviation of a score over fine-tuning seeds, pooled (``pool_seed_variance``); NaN if unknown
    seed_deviations: Floats | None = None

    def __repr__(self) -> str:
        """Return the protocol and the size; ``to_frame()`` shows the scores."""
        model_count, task_count = self.values.shape
        missing = int(np.isnan(self.values).sum())
        gaps = f", {missing} missing" if missing else ""
        return (
            f"ScoreMatrix({str(self.protocol)!r}, {model_count} models × {task_count} tasks{gaps})"
        )

    def __post_init__(self) -> None:
        object.__setattr__(self, "protocol", Protocol(self.protocol))
        model_count, task_count = self.shape
        for grid_name in _GRIDS:
            array = getattr(self, grid_name)
            if array is not None and array.shape != self.shape:
                raise InputError(
                    f"{grid_name} has shape {array.shape}, but there are {model_count} models × {task_count} tasks"
                )
        if len(self.metrics) != len(self.tasks):
            raise InputError("metrics need one entry per task")
        for axis_label, names in (("model", self.models), ("task", self.tasks)):
            if len(set(names)) != len(names):
                repeated = sorted({name for name in names if names.count(name) > 1})
                raise InputError(f"{axis_label} named twice: {', '.join(repeated)}")

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
        """Make a matrix of plain lists or arrays; unknown standard errors and sizes become NaN.

        ``metrics`` are metrics or their names, one per task; direction, kind and scale are those that Potentia knows of
        the name. Without metrics higher is better, unless ``higher_is_better`` says otherwise.
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
    def from_cells(
        cls,
        protocol: str,
        cells: Mapping[tuple[str, str], MeasuredValue],
        models: Iterable[str] = (),
        tasks: Iterable[str] = (),
    ) -> ScoreMatrix:
        """Make a matrix of scores (or of what has their fields) by model and task.

        ``models`` and ``tasks`` come first, in their order; the others follow as they appear. What is unknown of a
        task's metric in one score is taken from the others.
        """
        rows = _number_names([*models, *(model for model, _ in cells)])
        columns = _number_names([*tasks, *(task for _, task in cells)])
        shape = (len(rows), len(columns))
        values = _float_grid(None, shape)
        stderr = _float_grid(None, shape)
        example_counts = _float_grid(None, shape)
        origins = np.full(shape, None, dtype=object)
        seeds = np.full(shape, None, dtype=object)
        metrics = dict.fromkeys(columns, Metric())
        for (model, task), score in cells.items():
            position = rows[model], columns[task]
            values[position] = score.value
            stderr[position] = score.stderr
            example_counts[position] = score.n or np.nan
            if score.origin != UNKNOWN_ORIGIN:
                origins[position] = score.origin
            if score.seeds:
                seeds[position] = score.seeds
            # scores of a store share one object if their metrics are equal: nothing to merge
            if score.metric is not metrics[task]:
                metrics[task] = score.metric.fill_gaps_from(metrics[task])
        return cls(
            protocol=Protocol(protocol),
            models=tuple(rows),
            tasks=tuple(columns),
            values=values,
            stderr=stderr,
            n=example_counts,
            metrics=tuple(metrics.values()),
            origins=origins if any(origins.flat) else None,
            seeds=seeds if any(seeds.flat) else None,
        )

    @property
    def shape(self) -> tuple[int, int]:
        """The number of models, and the number of tasks."""
        return len(self.models), len(self.tasks)

    @property
    def higher_is_better(self) -> tuple[bool, ...]:
        """Whether a larger score is better, for each task."""
        return tuple(metric.higher_is_better for metric in self.metrics)

    def score(self, row: int, column: int) -> Score:
        """Return one entry as a score."""
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
        """Return the part of a score's standard error that is due to its seeds; 0 where nothing is known of it."""
        row = self.models.index(model)
        column = self.tasks.index(task)
        seed_values: tuple[float, ...] = ()
        if self.seeds is not None:
            seed_values = self.seeds[row, column] or ()
        if self.seed_deviations is not None and math.isfinite(self.seed_deviations[column]):
            return float(self.seed_deviations[column]) / math.sqrt(max(1, len(seed_values)))
        return seed_error(seed_values)

    def origin(self, row: int, column: int) -> Origin:
        """Return what one score was computed from."""
        if self.origins is None:
            return UNKNOWN_ORIGIN
        return self.origins[row, column] or UNKNOWN_ORIGIN

    def scores(self) -> Iterator[tuple[str, str, Score]]:
        """Yield (model, task, score) of every score that is there."""
        for row, column in np.argwhere(np.isfinite(self.values)).tolist():
            yield self.models[row], self.tasks[column], self.score(row, column)

    def to_frame(self) -> pd.DataFrame:
        """Return the scores as a pandas table, models × tasks."""
        require_extra(Extra.PANDAS, "a pandas table")
        import pandas as pd

        return pd.DataFrame(
            self.values,
            index=pd.Index(self.models, name="model"),
            columns=list(self.tasks),
            copy=True,  # the frame may be changed, the matrix may not
        )

    def _repr_html_(self) -> str:
        return str(self.to_frame().to_html())

    @property
    def sign(self) -> Floats:
        """For each task 1 if higher is better, −1 if lower is: (tasks,)."""
        return np.where(np.asarray(self.higher_is_better, dtype=bool), 1.0, -1.0)

    @property
    def has_unit_scale(self) -> bool:
        """Whether the scores of every task lie between 0 and 1, or between −1 and 1 as MCC does.

        Their differences are then shown in percentage points.
        """
        largest_scores = np.nanmax(np.abs(self.values), axis=0, initial=0.0)
        return all(
            metric.has_unit_scale(float(largest))
            for metric, largest in zip(self.metrics, largest_scores, strict=True)
        )

    def oriented(self) -> Floats:
        """Return the values with the sign flipped where lower is better, so that higher always means better."""
        return self.values * self.sign

    def select(
        self, *, models: NamesOrPositions | None = None, tasks: NamesOrPositions | None = None
    ) -> ScoreMatrix:
        """Return the matrix of these models and tasks alone, in the order given: names, or an array of positions."""
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

    def arrange(self, models: Sequence[str], tasks: Sequence[str]) -> tuple[Floats, Floats, Floats]:
        """Return values, standard errors and n of these models and tasks, in this order; NaN for those without a score.

        Unlike in ``select``, the models and tasks need not be in the matrix.
        """
        row_by_model = _number_names(self.models)
        column_by_task = _number_names(self.tasks)
        # a name that is not in the matrix is at position -1: the row and column of NaN that the padding adds
        rows = [row_by_model.get(model, -1) for model in models]
        columns = [column_by_task.get(task, -1) for task in tasks]
        grid = np.ix_(rows, columns)
        values = np.pad(self.values, (0, 1), constant_values=np.nan)[grid]
        stderr = np.pad(self.stderr, (0, 1), constant_values=np.nan)[grid]
        example_counts = np.pad(self.n, (0, 1), constant_values=np.nan)[grid]
        return values, stderr, example_counts

    def corpora(self) -> ScoreMatrix:
        """Return the matrix of corpora alone: texts to predict, scored in bits per byte or perplexity."""
        return self.select(tasks=self._is_text)

    def benchmarks(self) -> ScoreMatrix:
        """Return the matrix without corpora, and without tasks and models that have no score then."""
        is_scored = np.isfinite(self.values)
        is_benchmark = is_scored.any(axis=0) & ~self._is_text
        has_benchmark_score = is_scored[:, is_benchmark].any(axis=1)
        return self.select(models=has_benchmark_score, tasks=is_benchmark)

    @property
    def _is_text(self) -> npt.NDArray[np.bool_]:
        return np.array([metric.is_text for metric in self.metrics], dtype=bool)

    def drop_incomplete_models(self) -> ScoreMatrix:
        """Return the matrix of the models that have a score on every task (listwise deletion)."""
        has_all_scores = np.isfinite(self.values).all(axis=1)
        return self.select(models=has_all_scores)


def _float_grid(values: npt.ArrayLike | None, shape: tuple[int, int]) -> Floats:
    """Return values as an array of floats of this shape; all NaN if there are none."""
    if values is None:
        return np.full(shape, np.nan)
    return np.asarray(values, dtype=np.float64).reshape(shape)


def _find_positions(
    names: tuple[str, ...], selection: NamesOrPositions | None, kind: str
) -> list[int]:
    """Return the positions of the selected names; of all names without a selection."""
    if selection is None:
        return list(range(len(names)))
    if isinstance(selection, np.ndarray):
        return list(np.arange(len(names))[selection].tolist())
    position_by_name = _number_names(names)
    try:
        return [position_by_name[selected_name] for selected_name in selection]
    except KeyError as error:
        unknown_name = str(error.args[0])
        raise InputError(
            f"no {kind} {unknown_name!r} in these scores", hint=suggest_names(unknown_name, names)
        ) from None
