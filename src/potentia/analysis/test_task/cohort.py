"""What is known about the models of a comparison: pretraining compute, family, date, and any other column."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from potentia.errors import InputError
from potentia.facts import ModelTable
from potentia.facts import models as known_models
from potentia.values.scores import Floats
from potentia.values.task_name import TaskName

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Split:
    """A yes/no variable of the models (N of equation 1): a label for people, and who belongs to it."""

    label: str
    members: Flags  # (models,)
    others: str = "the others"


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
        """Make a cohort from one mapping per model.

        Needs ``model``, ``family`` and either ``compute`` (FLOPs) or ``params_b`` and ``tokens_b`` (billions);
        ``trained`` (or ``date``, ``released``) is needed for date splits. Models without compute are left out.
        """
        rows = [dict(record) for record in records]
        known = [(row, flops) for row in rows if (flops := _flops(row)) > 0]
        names = tuple(str(row["model"]) for row, _ in known)
        if len(set(names)) != len(names):
            raise InputError("a model is named twice in the facts")
        extra = sorted({key for row, _ in known for key in row} - {"model", "family", "compute"})
        return cls(
            models=names,
            compute=np.array([flops for _, flops in known], dtype=np.float64),
            family=tuple(str(row.get("family") or row["model"]) for row, _ in known),
            trained=tuple(_date(row) for row, _ in known),
            columns={key: tuple(_text(row.get(key)) for row, _ in known) for key in extra},
        )

    @classmethod
    def known(cls, models: Iterable[str] | None = None, table: ModelTable | None = None) -> Cohort:
        """Return what the facts say of these models, or of all in the table; those without compute are left out."""
        table = table or known_models()
        names = [facts.name for facts in table] if models is None else models
        found = ((name, facts) for name in names if (facts := table.find(name)) is not None)
        return cls.build(
            {
                **facts.extra,
                "model": name,
                "family": facts.family,
                "compute": facts.flops,
                "trained": facts.date,
                "language": facts.language,
                "kind": facts.kind,
                "exposure": ";".join(facts.exposure),
            }
            for name, facts in found
        )

    @property
    def log_compute(self) -> Floats:
        """log₁₀ of the pretraining FLOPs."""
        return np.asarray(np.log10(self.compute), dtype=np.float64)

    def select(self, models: Sequence[str]) -> Cohort:
        """Return the facts of these models, in the order given."""
        index = {name: i for i, name in enumerate(self.models)}
        missing = [name for name in models if name not in index]
        if missing:
            raise InputError(
                f"no pretraining compute known for {', '.join(missing[:5])}{' …' if len(missing) > 5 else ''}",
                hint="add their parameters and training tokens to the facts (--facts models.csv)",
            )
        places = [index[name] for name in models]
        return Cohort(
            models=tuple(models),
            compute=self.compute[places],
            family=tuple(self.family[i] for i in places),
            trained=tuple(self.trained[i] for i in places) if self.trained else (),
            columns={key: tuple(values[i] for i in places) for key, values in self.columns.items()},
        )

    def since(self, cutoff: str) -> Split:
        """Split by training month: N = 1 for models trained in ``cutoff`` ("2023-11") or later."""
        unknown = [name for name, date in zip(self.models, self.trained or self.models, strict=True) if not date]
        if not self.trained or unknown:
            raise InputError(
                f"no training date known for {', '.join(unknown[:5]) or 'these models'}",
                hint="add a column `trained` (year-month) to the facts, or split by another column",
            )
        members = np.array([date >= cutoff for date in self.trained], dtype=bool)
        return Split(f"trained {cutoff} or later", members, f"before {cutoff}")

    def exposed(self, task: str) -> Split:
        """Split by what the facts say of exposure: N = 1 where the column ``exposure`` (a;b;c) names the task."""
        name = TaskName(task).base
        seen = self.columns.get("exposure", ("",) * len(self.models))
        members = np.array([name in [part.strip() for part in cell.split(";")] for cell in seen], dtype=bool)
        if not members.any() or members.all():
            raise InputError(
                f"the facts do not divide these models by exposure to {name}",
                hint="give --facts with a column `exposure` that lists the tasks a model has seen, as ask;table",
            )
        return Split(f"saw the form of {name}", members, "did not")

    def where(self, column: str, value: str) -> Split:
        """Split by any column of the facts: N = 1 where it has this value."""
        if column not in self.columns:
            raise InputError(f"no column {column!r} in the facts", hint=f"there are: {', '.join(self.columns)}")
        members = np.array([cell == value for cell in self.columns[column]], dtype=bool)
        if not members.any() or members.all():
            seen = ", ".join(sorted(set(self.columns[column]))[:8])
            raise InputError(f"{column} = {value!r} does not split these models", hint=f"values there: {seen}")
        return Split(f"{column} {value}", members, f"other {column}")


def _flops(row: Mapping[str, Any]) -> float:
    direct = _number(row.get("compute"))
    if np.isfinite(direct):
        return direct
    flops = 6.0 * _number(row.get("params_b")) * 1e9 * _number(row.get("tokens_b")) * 1e9
    return flops if np.isfinite(flops) else 0.0


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return float("nan")


def _text(value: Any) -> str:
    return "" if value is None or value != value else str(value)


def _date(row: Mapping[str, Any]) -> str:
    for key in ("trained", "date", "released"):
        if text := _text(row.get(key)):
            return text[:7]
    return ""
