"""The models of a comparison, what is known of them, and their scores on a task before and after adjustment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt

from potentia.analysis.left_out import drop_names_in, join_first_names, keep_names_in
from potentia.errors import InputError, list_names, suggest_names
from potentia.facts import ModelTable
from potentia.facts import models as known_models
from potentia.values.findings import Line, Plot, Points, select_positions
from potentia.values.protocol import TaskName
from potentia.values.scores import Floats, ScoreMatrix

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class ModelSplit:
    """A yes/no variable of the models (N of equation 1), and who belongs to it. Labels follow the word "models"."""

    label: str
    members: Mask  # (models,)
    others: str = "of the other side"

    @property
    def size(self) -> int:
        """How many models belong to it."""
        return int(np.sum(self.members))

    def sides(self) -> list[tuple[str, Mask]]:
        """Return the others and the group, each with its members; one where the models are not divided."""
        members = np.asarray(self.members, dtype=bool)
        labelled_masks = ((self.others, ~members), (self.label, members))
        return [(label, mask) for label, mask in labelled_masks if mask.any()]

    def to_points(self, cohort: Cohort, values: Floats) -> tuple[Points, ...]:
        """Return both sides' values against compute."""
        points = []
        for label, mask in self.sides():
            names = cohort.select_names(mask)
            points.append(Points(label, cohort.compute[mask], values[mask], names))
        return tuple(points)


@dataclass(frozen=True, eq=False)
class Cohort:
    """Models with their facts. Compute is in FLOPs, C ≈ 6 × parameters × tokens (section 2 of the paper)."""

    models: tuple[str, ...]
    compute: Floats  # (models,)
    family: tuple[str, ...]
    trained: tuple[str, ...] = ()  # "2023-11"; an empty string where unknown
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def from_records(cls, records: Iterable[Mapping[str, Any]]) -> Cohort:
        """Make a cohort from ``model``, ``compute`` (FLOPs), ``family``, ``trained`` and other columns of each model.

        Models without compute are left out.
        """
        rows = [record for record in records if record.get("compute")]
        all_columns: set[str] = set().union(*rows)
        columns = {}
        for column in sorted(all_columns - {"model", "family", "compute"}):
            columns[column] = tuple(_to_text(row.get(column)) for row in rows)
        unknown_dates = ("",) * len(rows)
        dates = columns.get("trained", unknown_dates)
        compute = [row["compute"] for row in rows]
        return cls(
            models=tuple(row["model"] for row in rows),
            compute=np.array(compute, dtype=np.float64),
            # a model of unknown family is a family of its own
            family=tuple(row.get("family") or row["model"] for row in rows),
            trained=tuple(date[:7] for date in dates),  # the month alone
            columns=columns,
        )

    @classmethod
    def from_facts(
        cls, models: Iterable[str] | None = None, table: ModelTable | None = None
    ) -> Cohort:
        """Return what the facts say of these models, or of all in the table.

        Those that the facts do not know, or give no compute for, are left out.
        """
        table = table or known_models()
        model_names = [facts.name for facts in table] if models is None else models
        records = []
        for model in model_names:
            facts = table.find(model)
            if facts is None:
                continue
            record = {
                **facts.extra,
                "model": model,
                "family": facts.family,
                "compute": facts.flops,
                "trained": facts.date,
                "language": facts.language,
                "kind": facts.kind,
                "exposure": ";".join(facts.exposure),
            }
            records.append(record)
        return cls.from_records(records)

    @property
    def log_compute(self) -> Floats:
        """log₁₀ of the pretraining FLOPs."""
        return np.asarray(np.log10(self.compute), dtype=np.float64)

    def select_names(self, mask: Mask) -> tuple[str, ...]:
        """Return the names of some of the models."""
        return tuple(compress(self.models, mask))

    def select(self, models: Sequence[str]) -> Cohort:
        """Return the facts of these models, in the order given."""
        index = {model: position for position, model in enumerate(self.models)}
        missing = drop_names_in(models, index)
        if missing:
            raise InputError(
                f"no pretraining compute known for {join_first_names(missing, 5)}",
                hint="add their parameters and training tokens to the facts (--facts models.csv)",
            )
        positions = [index[model] for model in models]
        trained: tuple[str, ...] = ()
        if self.trained:
            trained = select_positions(self.trained, positions)
        columns = {}
        for column, values in self.columns.items():
            columns[column] = select_positions(values, positions)
        return Cohort(
            models=tuple(models),
            compute=self.compute[positions],
            family=select_positions(self.family, positions),
            trained=trained,
            columns=columns,
        )

    def split_by_month(self, cutoff: str) -> ModelSplit:
        """Split by training month: N = 1 for models trained in ``cutoff`` ("2023-11") or later."""
        undated = [
            model for model, date in zip(self.models, self.trained, strict=False) if not date
        ]
        if not self.trained or undated:
            raise InputError(
                f"no training date known for {', '.join(undated[:5]) or 'these models'}",
                hint="add a column `trained` (year-month) to the facts, or split by another column",
            )
        members = np.array([date >= cutoff for date in self.trained], dtype=bool)
        return ModelSplit(f"trained {cutoff} or later", members, f"trained before {cutoff}")

    def split_by_exposure(self, task: str) -> ModelSplit:
        """Split by what the facts say of exposure: N = 1 where the column ``exposure`` (a;b;c) names the task."""
        benchmark = TaskName(task).base
        nothing_known = ("",) * len(self.models)
        is_exposed = []
        for cell in self.columns.get("exposure", nothing_known):
            tasks_seen = map(str.strip, cell.split(";"))
            is_exposed.append(benchmark in tasks_seen)
        members = np.array(is_exposed, dtype=bool)
        if not members.any() or members.all():
            raise InputError(
                f"the facts do not divide these models by exposure to {benchmark}",
                hint="give --facts with a column `exposure` that lists the tasks a model has seen, as ask;table",
            )
        return ModelSplit(f"trained on the form of {benchmark}", members, "not trained on it")

    def split_by_column(self, column: str, value: str) -> ModelSplit:
        """Split by any column of the facts: N = 1 where it has this value."""
        if column not in self.columns:
            raise InputError(
                f"no column {column!r} in the facts", hint=suggest_names(column, self.columns)
            )
        cells = np.array(self.columns[column])
        members = cells == value
        if not members.any() or members.all():
            values = list_names(np.unique(cells).tolist(), 8)
            raise InputError(
                f"{column} = {value!r} does not split these models", hint=f"values there: {values}"
            )
        return ModelSplit(f"of {column} {value}", members, f"of another {column}")


def plot_against_compute(
    chart_name: str,
    title: str,
    caption: str,
    points: tuple[Points, ...],
    lines: tuple[Line, ...] = (),
    y_label: str = "score",
) -> Plot:
    """Draw points and lines over pretraining compute."""
    return Plot(
        chart_name,
        title,
        caption,
        points=points,
        lines=lines,
        x_label="pretraining compute (FLOPs)",
        y_label=y_label,
        log_x=True,
    )


def _to_text(value: Any) -> str:
    is_nan = value != value
    if value is None or is_nan:
        return ""
    return str(value)


# --- scores of one task, before and after ---------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ScorePair:
    """Scores of the same models on one task, before and after all of them were tuned on the same task data."""

    task: str
    cohort: Cohort
    before: Floats  # (models,)
    after: Floats  # (models,)
    chance: float = 0.0
    higher_is_better: bool = True

    def oriented(self) -> tuple[Floats, Floats]:
        """Return both scores with higher always better."""
        sign = 1.0 if self.higher_is_better else -1.0
        return sign * self.before, sign * self.after


def pair_scores(
    before: ScoreMatrix,
    after: ScoreMatrix,
    cohort: Cohort,
    *,
    tasks: Sequence[str] | None = None,
    chance: Mapping[str, float] | float = 0.0,
) -> tuple[ScorePair, ...]:
    """Join two protocols task by task, keeping the models with both scores and known compute."""
    shared_tasks = keep_names_in(tasks or before.tasks, before.tasks, after.tasks)
    if not shared_tasks:
        tasks_before = list_names(before.tasks, 6)
        tasks_after = list_names(after.tasks, 6)
        raise InputError(
            f"no task was scored both as {before.protocol} and as {after.protocol}",
            hint=f"{before.protocol}: {tasks_before}; {after.protocol}: {tasks_after}",
        )
    models = keep_names_in(before.models, cohort.models, after.models)
    if not models:
        raise InputError(
            "no model has both scores and known compute",
            hint="add the models' parameters and training tokens to the facts (--facts models.csv)",
        )
    before = before.select(models=models, tasks=shared_tasks)
    after = after.select(models=models, tasks=shared_tasks)
    pairs = []
    for index, task in enumerate(shared_tasks):
        scores_before = before.values[:, index]
        scores_after = after.values[:, index]
        has_both = np.isfinite(scores_before) & np.isfinite(scores_after)
        models_with_both = list(compress(models, has_both))
        pair = ScorePair(
            task=task,
            cohort=cohort.select(models_with_both),
            before=scores_before[has_both],
            after=scores_after[has_both],
            chance=_find_chance(chance, task),
            higher_is_better=before.higher_is_better[index],
        )
        pairs.append(pair)
    return tuple(pairs)


def _find_chance(chance: Mapping[str, float] | float, task: str) -> float:
    """Return the score of a guess on a task: one for all tasks, or by task; 0 where it is not known."""
    if isinstance(chance, Mapping):
        return chance.get(task, 0.0)
    return chance


def take_better_scores(before: ScoreMatrix, after: ScoreMatrix) -> ScoreMatrix:
    """Return the better of both scores, score by score: what the published tables report (`selection: paper`).

    Models or tasks that only one matrix has are left out. Where the score after is missing, the result is missing too:
    the score before does not stand for a model that was never tuned.
    """
    tasks = keep_names_in(after.tasks, before.tasks)
    models = keep_names_in(after.models, before.models)
    before = before.select(models=models, tasks=tasks)
    after = after.select(models=models, tasks=tasks)
    is_before_better = before.oriented() > after.oriented()  # false where one is missing
    return replace(
        after,
        values=np.where(is_before_better, before.values, after.values),
        stderr=np.where(is_before_better, before.stderr, after.stderr),
        n=np.where(is_before_better, before.n, after.n),
    )


def explain_unpaired(
    before: ScoreMatrix, after: ScoreMatrix, cohort: Cohort, task: str
) -> dict[str, tuple[str, ...]]:
    """Name the models with a score on a task that are in no comparison of the two, by the reason."""
    models_before = _list_scored_models(before, task)
    models_after = _list_scored_models(after, task)
    without_after = drop_names_in(models_before, models_after)
    without_before = drop_names_in(models_after, models_before)
    with_both = drop_names_in(models_before, without_after)
    without_compute = drop_names_in(with_both, cohort.models)
    names_by_reason = {
        f"no score {after.protocol.phrase}": without_after,
        f"no score {before.protocol.phrase}": without_before,
        "no compute known (parameters and tokens, --facts)": without_compute,
    }
    return {reason: tuple(names) for reason, names in names_by_reason.items() if names}


def _list_scored_models(matrix: ScoreMatrix, task: str) -> list[str]:
    column = matrix.select(tasks=[task])
    return list(compress(column.models, np.isfinite(column.values[:, 0])))
