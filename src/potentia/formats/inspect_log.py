"""Logs of Inspect, as JSON: one evaluation of one model, with its samples."""

from __future__ import annotations

import json
from collections.abc import Mapping

from potentia.errors import DataError
from potentia.formats.columns import metric_of_task
from potentia.formats.entries import (
    ReadExample,
    ScoreEntry,
    ScoreFacts,
    key_by_content,
    make_entry,
)
from potentia.formats.json_values import JsonObject, float_or_none
from potentia.values.protocol import DIRECT, Protocol
from potentia.values.scores import ExampleValues

_GRADES = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}  # as Inspect's accuracy counts them


def is_inspect_log(content: object) -> bool:
    """Tell a log of Inspect: it says what was evaluated, and its results are scores with metrics."""
    if not isinstance(content, dict):
        return False
    return isinstance(content.get("eval"), dict) and "status" in content


def read_inspect_log(content: dict[str, object], source: str, *, metric: str | None) -> ScoreEntry:
    """Return the score of one log: the headline metric, or the one asked for."""
    inspect_log = JsonObject(content, source)
    results = inspect_log.find_object("results")
    if not results.get_value("scores"):
        status = inspect_log.get_value("status")
        raise DataError(f"the evaluation has no scores: its status is {status!r}", where=source)
    headline = results.find_object("headline")
    for score in results.find_objects("scores"):
        metrics = score.find_object("metrics")
        metric_name = metric or headline.get_value("metric") or _find_first_metric(metrics)
        is_headline = headline.get_value("score") in (None, score.get_value("name"))
        if isinstance(metric_name, str) and metric_name in metrics.content and is_headline:
            return _read_score(inspect_log, score, metric_name)
    hint = "leave out the metric to take the headline"
    raise DataError("the log has no such metric", where=source, hint=hint)


def _find_first_metric(metrics: JsonObject) -> str | None:
    return next((metric_name for metric_name in metrics.content if metric_name != "stderr"), None)


def _read_score(inspect_log: JsonObject, score: JsonObject, metric_name: str) -> ScoreEntry:
    evaluation = inspect_log.find_object("eval")
    metrics = score.find_object("metrics")
    task = str(evaluation.content.get("task", "")).rpartition("/")[2]
    shots = evaluation.find_object("task_args").find_integer("fewshot")
    sample_count = score.get_value("scored_samples")
    if not sample_count:
        sample_count = inspect_log.find_object("results").get_value("completed_samples")
    return make_entry(
        inspect_log.source,
        evaluation.get_value("model"),
        task,
        metrics.find_object(metric_name).get_value("value"),
        stderr=metrics.find_object("stderr").get_value("value"),
        example_count=sample_count,
        protocol=DIRECT if shots is None else Protocol.few_shot(shots),
        facts=ScoreFacts(metric_of_task(task, metric_name)),
        items=_read_samples(inspect_log, str(score.get_value("name"))),
    )


def _read_samples(inspect_log: JsonObject, scorer: str) -> ExampleValues | None:
    """Return the value of every sample of a log that has them; of several epochs the mean."""
    values_by_content: dict[str, list[float]] = {}
    metadata_by_content: dict[str, Mapping[str, object]] = {}
    for sample in inspect_log.find_objects("samples"):
        raw_value = sample.find_object("scores", scorer).get_value("value")
        value = _GRADES.get(raw_value) if isinstance(raw_value, str) else float_or_none(raw_value)
        if value is not None:
            question_and_target = [sample.get_value("input"), sample.get_value("target")]
            content = json.dumps(question_and_target, default=str)
            values_by_content.setdefault(content, []).append(value)
            metadata_by_content[content] = sample.find_object("metadata").content
    examples = []
    for content, epoch_values in values_by_content.items():
        mean = sum(epoch_values) / len(epoch_values)
        examples.append(ReadExample(content, mean, metadata_by_content[content]))
    return key_by_content(examples) or None
