"""The models of a comparison, what is known of them, and their scores on a task before and after adjustment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt

from potentia.analysis.left_out import drop_names_in, join_first_names, keep_names_in
from potentia.errors import InputError
from potentia.facts import ModelTable
from potentia.facts import models as known_models
from potentia.values.findings import Line, Plot, Points, picked
from potentia.values.protocol import TaskName
from potentia.values.scores import Floats, ScoreMatrix

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Split:
    """A yes/no variable of the models (N of equation 1), and who belongs to it. Labels follow the word "models"."""

    label: str
    members: Flags  # (models,)
    others: str = "of the other side"

    @property
    def size(self) -> int:
        """How many models belong to it."""
        return int(np.sum(self.members))

    def sides(self) -> list[tuple[str, Flags]]:
        """Return the others and the group, each with its members; one where the models are not divided."""
        inside = np.asarray(self.members, dtype=bool)
        return [
            (name, mask)
            for name, mask in ((self.others, ~inside), (self.label, inside))
            if mask.any()
        ]

    def points(self, cohort: Cohort, values: Floats) -> tuple[Points, ...]:
        """Return both sides' values against compute."""
        x = cohort.compute
        return tuple(
            Points(name, x[mask], values[mask], cohort.named(mask)) for name, mask in self.sides()
        )


@dataclass(frozen=True, eq=False)
class Cohort:
    """Models with their facts. Compute is in FLOPs, C ≈ 6 × parameters × tokens (section 2 of the document)."""

    models: tuple[str, ...]
    compute: Floats  # (models,)
    family: tuple[str, ...]
    trained: tuple[str, ...] = ()  # "2023-11"; an empty string where unknown
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def build(cls, records: Iterable[Mapping[str, Any]]) -> Cohort:
        """Make a cohort from ``model``, ``compute`` (FLOPs), ``family``, ``trained`` and other columns of each model.

        Models without compute are left out.
        """
        rows = [record for record in records if record.get("compute")]
        extra = sorted(set().union(*rows) - {"model", "family", "compute"})
        columns = {key: tuple(_text(row.get(key)) for row in rows) for key in extra}
        models, compute = (tuple(row[key] for row in rows) for key in ("model", "compute"))
        family = tuple(row.get("family") or row["model"] for row in rows)
        trained = tuple(date[:7] for date in columns.get("trained", ("",) * len(rows)))
        return cls(models, np.array(compute, dtype=np.float64), family, trained, columns)

    @classmethod
    def known(cls, models: Iterable[str] | None = None, table: ModelTable | None = None) -> Cohort:
        """Return what the facts say of these models, or of all in the table; those without compute are left out."""
        table = table or known_models()
        names = [facts.name for facts in table] if models is None else models
        found = ((name, facts) for name in names if (facts := table.find(name)) is not None)
        rows = []
        for name, facts in found:
            told = {
                "model": name,
                "family": facts.family,
                "compute": facts.flops,
                "trained": facts.date,
            }
            told |= {
                "language": facts.language,
                "kind": facts.kind,
                "exposure": ";".join(facts.exposure),
            }
            rows.append({**facts.extra, **told})
        return cls.build(rows)

    @property
    def log_compute(self) -> Floats:
        """log₁₀ of the pretraining FLOPs."""
        return np.asarray(np.log10(self.compute), dtype=np.float64)

    def named(self, mask: Flags) -> tuple[str, ...]:
        """Return the names of some of the models."""
        return tuple(compress(self.models, mask))

    def select(self, models: Sequence[str]) -> Cohort:
        """Return the facts of these models, in the order given."""
        index = {name: i for i, name in enumerate(self.models)}
        if missing := drop_names_in(models, index):
            hint = "add their parameters and training tokens to the facts (--facts models.csv)"
            raise InputError(
                f"no pretraining compute known for {join_first_names(missing, 5)}", hint=hint
            )
        places = [index[name] for name in models]
        trained = picked(self.trained, places) if self.trained else ()
        columns = {key: picked(values, places) for key, values in self.columns.items()}
        return Cohort(
            tuple(models), self.compute[places], picked(self.family, places), trained, columns
        )

    def since(self, cutoff: str) -> Split:
        """Split by training month: N = 1 for models trained in ``cutoff`` ("2023-11") or later."""
        unknown = (
            self.named(np.array([not date for date in self.trained], dtype=bool))
            if self.trained
            else ()
        )
        if not self.trained or unknown:
            hint = "add a column `trained` (year-month) to the facts, or split by another column"
            raise InputError(
                f"no training date known for {', '.join(unknown[:5]) or 'these models'}", hint=hint
            )
        members = np.array([date >= cutoff for date in self.trained], dtype=bool)
        return Split(f"trained {cutoff} or later", members, f"trained before {cutoff}")

    def exposed(self, task: str) -> Split:
        """Split by what the facts say of exposure: N = 1 where the column ``exposure`` (a;b;c) names the task."""
        name = TaskName(task).base
        seen = self.columns.get("exposure", ("",) * len(self.models))
        members = np.array([name in map(str.strip, cell.split(";")) for cell in seen], dtype=bool)
        if not members.any() or members.all():
            hint = "give --facts with a column `exposure` that lists the tasks a model has seen, as ask;table"
            raise InputError(
                f"the facts do not divide these models by exposure to {name}", hint=hint
            )
        return Split(f"shown the form of {name}", members, "not shown it")

    def where(self, column: str, value: str) -> Split:
        """Split by any column of the facts: N = 1 where it has this value."""
        if column not in self.columns:
            raise InputError(
                f"no column {column!r} in the facts", hint=f"there are: {', '.join(self.columns)}"
            )
        cells = np.array(self.columns[column])
        members = cells == value
        if not members.any() or members.all():
            seen = ", ".join(np.unique(cells)[:8])
            raise InputError(
                f"{column} = {value!r} does not split these models", hint=f"values there: {seen}"
            )
        return Split(f"of {column} {value}", members, f"of another {column}")


def against_compute(
    name: str,
    title: str,
    caption: str,
    points: tuple[Points, ...],
    lines: tuple[Line, ...] = (),
    what: str = "score",
) -> Plot:
    """Draw points and lines over pretraining compute."""
    return Plot(
        name, title, caption, points, lines, "pretraining compute (FLOPs)", what, log_x=True
    )


def _text(value: Any) -> str:
    return "" if value is None or value != value else str(value)


# --- scores of one task, before and after ---------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Pair:
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


def pair_up(
    before: ScoreMatrix,
    after: ScoreMatrix,
    cohort: Cohort,
    *,
    tasks: Sequence[str] | None = None,
    chance: Mapping[str, float] | float = 0.0,
) -> tuple[Pair, ...]:
    """Join two protocols task by task, keeping the models with both scores and known compute."""
    shared = keep_names_in(tasks or before.tasks, before.tasks, after.tasks)
    if not shared:
        hint = f"{before.protocol}: {', '.join(before.tasks[:6])}; {after.protocol}: {', '.join(after.tasks[:6])}"
        raise InputError(
            f"no task was scored both as {before.protocol} and as {after.protocol}", hint=hint
        )
    models = keep_names_in(before.models, cohort.models, after.models)
    if not models:
        hint = "add the models' parameters and training tokens to the facts (--facts models.csv)"
        raise InputError("no model has both scores and known compute", hint=hint)
    first, second = (
        before.select(models=models, tasks=shared),
        after.select(models=models, tasks=shared),
    )
    pairs = []
    for j, task in enumerate(shared):
        whole = np.isfinite(first.values[:, j]) & np.isfinite(second.values[:, j])
        scores = first.values[whole, j], second.values[whole, j]
        guess = chance if isinstance(chance, (int, float)) else chance.get(task, 0.0)
        here = cohort.select(list(compress(models, whole)))
        pairs.append(Pair(task, here, *scores, guess, first.higher_is_better[j]))
    return tuple(pairs)


def best_of(before: ScoreMatrix, after: ScoreMatrix) -> ScoreMatrix:
    """Return the better of both scores, model by model: what the published tables report (`selection: paper`).

    Models or tasks that only one matrix has are left out. So is a model without a score after: its score before is
    none of what all models were tuned for.
    """
    tasks, models = (
        keep_names_in(after.tasks, before.tasks),
        keep_names_in(after.models, before.models),
    )
    first, second = (
        before.select(models=models, tasks=tasks),
        after.select(models=models, tasks=tasks),
    )
    worse = first.oriented() > second.oriented()  # false where one is missing
    parts = {
        part: np.where(worse, getattr(first, part), getattr(second, part))
        for part in ("values", "stderr", "n")
    }
    return replace(second, **parts)


def unpaired(
    before: ScoreMatrix, after: ScoreMatrix, cohort: Cohort, task: str
) -> dict[str, tuple[str, ...]]:
    """Name the models with a score on a task that are in no comparison of the two, by the reason."""
    columns = [matrix.select(tasks=[task]) for matrix in (before, after)]
    first, second = (list(compress(c.models, np.isfinite(c.values[:, 0]))) for c in columns)
    missing = drop_names_in(first, second)
    found = {
        f"no score by {after.protocol}": missing,
        f"no score by {before.protocol}": drop_names_in(second, first),
        "no compute known (parameters and tokens, --facts)": drop_names_in(
            first, {*missing, *cohort.models}
        ),
    }
    return {why: tuple(names) for why, names in found.items() if names}
