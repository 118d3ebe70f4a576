"""Results of other tools, each told by its keys: logs of Inspect, records of EuroEval, the papers' own files."""

from __future__ import annotations

import json
import math
import statistics
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from potentia.errors import DataError, InputError
from potentia.formats.columns import metric_of
from potentia.formats.entries import Entry, documents, scored
from potentia.formats.table import inner, section
from potentia.values.metric import Metric
from potentia.values.protocol import DIRECT, Protocol
from potentia.values.scores import ScoreMatrix

if TYPE_CHECKING:
    import pandas as pd

Z95 = 1.96  # EuroEval writes the half-width of a 95 % interval as the error
_GRADES = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}  # as Inspect's accuracy counts them
_STDERR = "_stderr"
_PROTOCOLS = {"direct_eval": "direct", "direct_evaluation": "direct"}


def is_inspect(content: Any) -> bool:
    """Tell a log of Inspect: it says what was evaluated, and its results are scores with metrics."""
    return isinstance(content, dict) and isinstance(content.get("eval"), dict) and "status" in content


def inspect_entry(content: Mapping[str, Any], where: str, *, metric: str | None) -> Entry:
    """Return the score of one Inspect log: the headline metric, or the one asked for."""
    about, results = content["eval"], inner(content, "results")
    if not results.get("scores"):
        raise DataError(f"the evaluation has no scores: its status is {content.get('status')!r}", where=where)
    head = inner(results, "headline")
    for score in results["scores"]:
        metrics = inner(score, "metrics")
        wanted = metric or head.get("metric") or next((m for m in metrics if m != "stderr"), None)
        if wanted not in metrics or head.get("score") not in (None, score.get("name")):
            continue
        task, shots = str(about.get("task", "")).rpartition("/")[2], inner(about, "task_args").get("fewshot")
        return scored(
            where, about.get("model"), task, metrics[wanted].get("value"),
            stderr=inner(metrics, "stderr").get("value"),
            n=score.get("scored_samples") or results.get("completed_samples"),
            protocol=Protocol.few_shot(shots) if type(shots) is int else DIRECT,
            metric=metric_of(task, str(wanted)),
            items=_samples(content.get("samples"), str(score.get("name"))),
        )  # fmt: skip
    raise DataError("the log has no such metric", where=where, hint="leave out --metric to take the headline")


def _samples(samples: Any, scorer: str) -> dict[int, float] | None:
    """Return the value of every sample of a log that has them; of several epochs the mean."""
    values: dict[str, list[float]] = {}
    for sample in samples if isinstance(samples, list) else ():
        given = inner(sample, "scores", scorer).get("value")
        grade = _GRADES.get(given) if isinstance(given, str) else given
        if isinstance(grade, (int, float)):
            values.setdefault(json.dumps([sample.get("input"), sample.get("target")], default=str), []).append(grade)
    return documents((key, sum(parts) / len(parts)) for key, parts in values.items()) or None


def as_euroeval(record: Any) -> dict[str, Any] | None:
    """Return a record of EuroEval in the form of its first years, and None for any other.

    Since version 17 a line is of Every Eval Ever, whose evaluations are the metrics of one dataset.
    """
    library, details = inner(record, "eval_library"), inner(record, "eval_library", "additional_details")
    if str(library.get("name")).casefold() != "euroeval":
        return record if inner(record, "results", "total") and record.keys() >= {"dataset", "model"} else None
    results, runs = record.get("evaluation_results") or [], details.get("raw_results") or ()
    runs = json.loads(runs) if isinstance(runs, str) else runs
    total: dict[str, Any] = {}
    for result in results:
        name = str(result["evaluation_name"]).removeprefix("test_")
        total[f"test_{name}"] = score = result["score_details"].get("score")
        values = [run.get(name, run.get(f"test_{name}")) for run in runs]
        if len(values) > 1 and isinstance(score, (int, float)) and (mean := statistics.fmean(values)):
            error = statistics.stdev(values) / math.sqrt(len(values)) * abs(score / mean)  # runs may be shares
            total[f"test_{name}_se"] = Z95 * error
    dataset = details.get("dataset") or (inner(results[0], "source_data").get("dataset_name") if results else None)
    few = str(details.get("few_shot")).casefold() == "true"
    model = inner(record, "model_info").get("id")
    return {"dataset": dataset, "model": model, "few_shot": few, "results": {"total": total}}


def euroeval_entry(record: Mapping[str, Any], where: str, *, metric: str | None) -> Entry:
    """Return the score of one record: the first metric of the test split, or the one asked for, as a share of 1."""
    total, dataset = record["results"]["total"], record["dataset"]
    names = [k.removeprefix("test_") for k in total if k.startswith("test_") and not k.endswith("_se")]
    name = metric if metric in names else next(iter(names), None)
    if name is None or (metric is not None and name != metric):
        missing = f"the record has no metric {metric or ''}".rstrip()
        raise DataError(missing, where=where, hint=f"there are: {', '.join(names)}")
    half = total.get(f"test_{name}_se")
    return scored(
        where, record["model"], dataset, total[f"test_{name}"],
        stderr=half / Z95 if isinstance(half, (int, float)) else half,
        per=100.0,
        at=f"{where}, test_{name}",
        protocol="few_shot" if record.get("few_shot") else DIRECT,
        metric=metric_of(str(dataset), name),
    )  # fmt: skip


def paper_entries(content: dict[str, Any], where: str) -> Iterator[Entry]:
    """Give the scores of the layout in which the train-before-test paper publishes them."""
    protocols = [name for name in content if not name.endswith(_STDERR)]
    if not protocols:
        hint = 'scores are lm-eval results ({"results": …}) or {"train_before_test": {task: {model: value}}, …}'
        raise DataError("this is no score file", where=where, hint=hint)
    for name in content:
        if name.endswith(_STDERR) and name.removesuffix(_STDERR) not in content:
            raise DataError(f"there are standard errors {name!r} without scores", where=where)
    for name in protocols:
        tasks, spreads = section(content, name, where), section(content, name + _STDERR, where)
        for task in tasks:
            errors = section(spreads, task, f"{where}, {name}{_STDERR}")
            for model, value in section(tasks, task, f"{where}, {name}").items():
                place, protocol = f"{where}, {name}.{task}.{model}", _PROTOCOLS.get(name, name)
                error = errors.get(model)
                yield scored(place, model, task, value, stderr=error, protocol=protocol, metric=metric_of(task))


# --- scores by stage: before tuning, after, at steps on the way -------------------------------------------------------

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
