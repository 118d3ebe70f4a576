"""Records of EuroEval, one a line: its own form of the first years, and Every Eval Ever since version 17."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from potentia.errors import DataError, suggest_names
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


def parse_euroeval(value: object, source: str) -> EuroEvalRecord | None:
    """Return a record of EuroEval, and None for any other JSON."""
    if not isinstance(value, dict):
        return None
    record = JsonObject(value, source)
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
    raw_runs = _parse_runs(details)
    results = record.find_objects("evaluation_results")
    total: dict[str, object] = {}
    for result in results:
        metric = str(_require(result, "evaluation_name")).removeprefix("test_")
        _require(result, "score_details")
        score = result.find_object("score_details").get_value("score")
        total[f"test_{metric}"] = score
        error = _standard_error(score, metric, raw_runs)
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


def _require(result: JsonObject, field_name: str) -> object:
    if field_name not in result.content:
        raise DataError(f"a record of EuroEval lacks {field_name!r}", where=result.source)
    return result.get_value(field_name)


def _parse_runs(details: JsonObject) -> list[JsonObject]:
    """Return the results of every run, which are a list or JSON in a text."""
    raw_runs = details.get_value("raw_results") or []
    if isinstance(raw_runs, str):
        try:
            raw_runs = json.loads(raw_runs)
        except (ValueError, RecursionError):
            raise DataError("raw_results is not valid JSON", where=details.source) from None
    if not isinstance(raw_runs, list):
        raise DataError("raw_results is not a list", where=details.source)
    return [
        JsonObject.require(run_value, details.source, description="a run of raw_results")
        for run_value in raw_runs
    ]


def _standard_error(score: object, metric: str, raw_runs: list[JsonObject]) -> float | None:
    """Return the standard error over the runs on the score's scale; runs may be shares where it is per cent."""
    total = float_or_none(score)
    if len(raw_runs) < 2 or total is None:
        return None
    values = []
    for raw_run in raw_runs:
        value = float_or_none(raw_run.content.get(metric, raw_run.get_value(f"test_{metric}")))
        if value is None:
            raise DataError(f"a run of raw_results has no number {metric!r}", where=raw_run.source)
        values.append(value)
    mean = statistics.fmean(values)
    if not mean:
        return None
    try:
        return statistics.stdev(values) / math.sqrt(len(values)) * abs(total / mean)
    except (ValueError, OverflowError, AttributeError):  # numbers that are no scores
        return None


def read_euroeval(record: EuroEvalRecord, source: str, *, metric: str | None) -> ScoreEntry:
    """Return the score of one record: the first metric of the test split, or the one asked for, as a share of 1."""
    test_keys = []
    for result_key in record.total:
        is_error = result_key.endswith("_se")
        if result_key.startswith("test_") and not is_error:
            test_keys.append(result_key)
    metric_names = [result_key.removeprefix("test_") for result_key in test_keys]
    metric_name = metric if metric in metric_names else next(iter(metric_names), None)
    if metric_name is None or (metric is not None and metric_name != metric):
        message = f"the record has no metric {metric or ''}".rstrip()
        raise DataError(message, where=source, hint=suggest_names(metric or "", metric_names))
    half_width = record.total.get(f"test_{metric_name}_se")
    half_width_number = float_or_none(half_width)
    return make_entry(
        source,
        record.model,
        record.dataset,
        record.total[f"test_{metric_name}"],
        stderr=half_width if half_width_number is None else half_width_number / Z95,
        divisor=100.0,
        value_location=f"{source}, test_{metric_name}",
        protocol="few_shot" if record.is_few_shot else DIRECT,
        facts=ScoreFacts(metric_of_task(str(record.dataset), metric_name)),
    )
