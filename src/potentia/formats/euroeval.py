"""Records of EuroEval, one a line: its own form of the first years, and Every Eval Ever since version 17."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from potentia.errors import DataError
from potentia.formats.columns import metric_of_task
from potentia.formats.entries import ScoreEntry, ScoreFacts, make_entry
from potentia.formats.json_values import JsonObject, float_or_none
from potentia.values.protocol import DIRECT

Z95 = 1.96  # EuroEval writes the half-width of a 95 % interval as the error


@dataclass(frozen=True)
class EuroEvalRecord:
    """One model on one dataset: its scores on the test split in per cent, ``test_mcc`` and ``test_mcc_se``."""

    model: object
    dataset: object
    is_few_shot: bool
    total: Mapping[str, object]


def parse_euroeval(value: object, where: str) -> EuroEvalRecord | None:
    """Return a record of EuroEval, and None for any other JSON."""
    if not isinstance(value, dict):
        return None
    record = JsonObject(value, where)
    library = record.find_object("eval_library")
    if str(library.get_value("name")).casefold() == "euroeval":
        return _parse_new_record(record)
    total = record.find_object("results", "total").content
    if not total or not record.content.keys() >= {"dataset", "model"}:
        return None
    return EuroEvalRecord(
        model=record.get_value("model"),
        dataset=record.get_value("dataset"),
        is_few_shot=bool(record.get_value("few_shot")),
        total=total,
    )


def _parse_new_record(record: JsonObject) -> EuroEvalRecord:
    """Take a record of Every Eval Ever, whose evaluations are the metrics of one dataset."""
    details = record.find_object("eval_library", "additional_details")
    runs = _parse_runs(details)
    results = record.find_objects("evaluation_results")
    total: dict[str, object] = {}
    for result in results:
        metric = str(_require(result, "evaluation_name")).removeprefix("test_")
        _require(result, "score_details")
        score = result.find_object("score_details").get_value("score")
        total[f"test_{metric}"] = score
        error = _standard_error(score, metric, runs)
        if error is not None:
            total[f"test_{metric}_se"] = Z95 * error
    dataset = details.get_value("dataset")
    if not dataset and results:
        dataset = results[0].find_object("source_data").get_value("dataset_name")
    return EuroEvalRecord(
        model=record.find_object("model_info").get_value("id"),
        dataset=dataset,
        is_few_shot=str(details.get_value("few_shot")).casefold() == "true",
        total=total,
    )


def _require(result: JsonObject, name: str) -> object:
    if name not in result.content:
        raise DataError(f"a record of EuroEval lacks {name!r}", where=result.where)
    return result.get_value(name)


def _parse_runs(details: JsonObject) -> list[JsonObject]:
    """Return the results of every run, which are a list or JSON in a text."""
    runs = details.get_value("raw_results") or []
    if isinstance(runs, str):
        try:
            runs = json.loads(runs)
        except (ValueError, RecursionError):
            raise DataError("raw_results is no JSON", where=details.where) from None
    if not isinstance(runs, list):
        raise DataError("raw_results is no list", where=details.where)
    return [JsonObject.require(run, details.where, what="a run of raw_results") for run in runs]


def _standard_error(score: object, metric: str, runs: list[JsonObject]) -> float | None:
    """Return the standard error over the runs on the score's scale; runs may be shares where it is per cent."""
    total = float_or_none(score)
    if len(runs) < 2 or total is None:
        return None
    values = []
    for run in runs:
        value = float_or_none(run.content.get(metric, run.get_value(f"test_{metric}")))
        if value is None:
            raise DataError(f"a run of raw_results has no number {metric!r}", where=run.where)
        values.append(value)
    mean = statistics.fmean(values)
    if not mean:
        return None
    try:
        return statistics.stdev(values) / math.sqrt(len(values)) * abs(total / mean)
    except (ValueError, OverflowError, AttributeError):  # numbers that are no scores
        return None


def read_euroeval(record: EuroEvalRecord, where: str, *, metric: str | None) -> ScoreEntry:
    """Return the score of one record: the first metric of the test split, or the one asked for, as a share of 1."""
    test_keys = [key for key in record.total if key.startswith("test_") and not key.endswith("_se")]
    names = [key.removeprefix("test_") for key in test_keys]
    name = metric if metric in names else next(iter(names), None)
    if name is None or (metric is not None and name != metric):
        message = f"the record has no metric {metric or ''}".rstrip()
        raise DataError(message, where=where, hint=f"there are: {', '.join(names)}")
    half_width = record.total.get(f"test_{name}_se")
    number = float_or_none(half_width)
    return make_entry(
        where,
        record.model,
        record.dataset,
        record.total[f"test_{name}"],
        stderr=half_width if number is None else number / Z95,
        divisor=100.0,
        value_place=f"{where}, test_{name}",
        protocol="few_shot" if record.is_few_shot else DIRECT,
        facts=ScoreFacts(metric_of_task(str(record.dataset), name)),
    )
