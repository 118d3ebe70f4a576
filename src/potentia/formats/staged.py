"""The published scores of training on the test task: one row per stage, step, model, benchmark and metric."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from potentia.errors import DataError, InputError
from potentia.formats.entries import Entry
from potentia.values.metric import Metric
from potentia.values.scores import ScoreMatrix

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("stage", "step", "model", "benchmark", "metric", "value", "stderr")


@dataclass(frozen=True, eq=False)
class StagedScores:
    """Scores by stage (before tuning, after, at intermediate steps); a thin view on the table."""

    table: pd.DataFrame
    where: str

    @classmethod
    def read(cls, path: Path) -> StagedScores:
        """Read the tidy CSV with the columns stage, step, model, benchmark, metric, value, stderr."""
        import pandas as pd

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", pd.errors.ParserWarning)  # rows longer than the header
                table = pd.read_csv(path, index_col=False)
        except OSError as error:
            raise DataError(f"cannot read the scores: {error.strerror}", where=str(path)) from error
        except (ValueError, pd.errors.ParserError, pd.errors.ParserWarning) as error:
            raise DataError(f"this is no CSV of scores: {error}", where=str(path)) from error
        missing = [name for name in COLUMNS if name not in table.columns]
        if missing:
            hint = f"the columns of staged scores are {', '.join(COLUMNS)}"
            raise DataError(f"no column named {', '.join(missing)}", where=str(path), hint=hint)
        for name in ("value", "step", "stderr"):
            table[name] = pd.to_numeric(table[name], errors="coerce")
        infinite = np.isinf(table["step"])
        for wrong, what in ((table["value"].isna(), "value is no number"), (infinite, "step is no number of steps")):
            if wrong.any():
                raise DataError(f"a {what}", where=f"{path}:{int(table.index[wrong][0]) + 2}")
        return cls(table, str(path))

    @staticmethod
    def recognises(path: Path) -> bool:
        """Tell from the first line whether a file has this layout."""
        try:
            with path.open(encoding="utf-8") as file:
                header = file.readline().strip().split(",")
        except (OSError, UnicodeDecodeError):
            return False
        return {"stage", "model", "benchmark", "value"} <= set(header)

    def entries(self, metric: str | None = None) -> list[Entry]:
        """Return every score, a stage as a protocol (``stage@step`` on the way).

        Of several metrics the wanted one is taken, or the first in the file for the benchmark at that stage.
        """
        table = self.table if metric is None else self.table[self.table["metric"] == metric]
        found = []
        for (stage, benchmark), part in table.groupby(["stage", "benchmark"], sort=False):
            name = str(part["metric"].iloc[0])
            for row in part[part["metric"] == name].itertuples():
                protocol = f"{stage}" + ("" if row.step != row.step else f"@{int(row.step)}")
                value, stderr, place = float(row.value), float(row.stderr), f"line {row.Index + 2}"
                known = Metric.of(name)
                found.append(Entry(protocol, str(row.model), str(benchmark), value, stderr, metric=known, place=place))
        return found

    def stages(self) -> tuple[str, ...]:
        """Return the names of the stages."""
        return tuple(self.table["stage"].unique())

    def scores(self, stage: str, benchmark: str, metric: str, *, step: int | None = None) -> dict[str, float]:
        """Return model → score of one benchmark at one stage (and step)."""
        rows = self._rows(stage, benchmark, metric)
        rows = rows[rows["step"].isna()] if step is None else rows[rows["step"] == step]
        if rows.empty:
            at = "" if step is None else f", step {step}"
            hint = f"stages there: {', '.join(self.stages())}"
            raise InputError(f"no {benchmark} ({metric}) at stage {stage}{at}", where=self.where, hint=hint)
        return {str(k): float(v) for k, v in zip(rows["model"], rows["value"], strict=True)}

    def steps(self, stage: str, benchmark: str, metric: str) -> dict[int, dict[str, float]]:
        """Return step → model → score of one benchmark."""
        found = sorted(int(step) for step in self._rows(stage, benchmark, metric)["step"].dropna().unique())
        return {step: self.scores(stage, benchmark, metric, step=step) for step in found}

    def _rows(self, stage: str, benchmark: str, metric: str) -> pd.DataFrame:
        table = self.table
        return table[(table["stage"] == stage) & (table["benchmark"] == benchmark) & (table["metric"] == metric)]

    def matrix(self, stage: str, metrics: Mapping[str, str]) -> ScoreMatrix:
        """Return one stage as a matrix of benchmarks, each by the metric given for it."""
        columns = {name: self.scores(stage, name, metric) for name, metric in metrics.items()}
        models = list(dict.fromkeys(model for column in columns.values() for model in column))
        values = [[column.get(model, np.nan) for column in columns.values()] for model in models]
        return ScoreMatrix.build(models, list(columns), values, metrics=list(metrics.values()), protocol=stage)
