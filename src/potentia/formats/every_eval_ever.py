"""Every Eval Ever (schema 0.3.0), aggregate and instance level, in both directions.

What the schema has no place for (protocol, seeds, fingerprints of data and recipe) goes into its ``details``, whose
values are texts, and comes back from there.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from statistics import NormalDist

from potentia.errors import DataError
from potentia.files import make_folder_name, write_file
from potentia.formats.columns import metric_of_task
from potentia.formats.entries import (
    MissingScoreError,
    ReadExample,
    ScoreEntry,
    ScoreFacts,
    facts_from_fields,
    key_by_content,
    make_entry,
    tidy_row,
)
from potentia.formats.hub_results import hub_dataset
from potentia.formats.json_values import JsonObject, float_or_none, read_json_lines
from potentia.formats.layout import FACT_FIELDS
from potentia.values.clusters import PASSAGE_COLUMNS
from potentia.values.metric import Metric, MetricScale
from potentia.values.protocol import DIRECT, Protocol
from potentia.values.scores import ExampleValues, ItemOutcome, Score, ScoreMatrix

SCHEMA = "0.3.0"
DEFAULT_LEVEL = 0.95  # of a confidence interval that does not say it
# gives the outcomes of a (protocol, model, task)
OutcomeReader = Callable[[str, str, str], Sequence[ItemOutcome]]
_BOUNDS: dict[MetricScale | None, tuple[object, object]] = {
    "share": (0.0, 1.0),
    "percent": (0.0, 100.0),
    "unbounded": ("-Infinity", "Infinity"),
}


# --- writing ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _ModelScore:
    """One score of the model that a file is about."""

    protocol: Protocol
    task: str
    score: Score

    @property
    def result_id(self) -> str:
        """What its samples refer to."""
        return f"{self.protocol}.{self.task}"


@dataclass(frozen=True)
class _ModelRun:
    """All scores of one model, which go into one file; ``time`` is in seconds since 1970."""

    model: str
    time: str
    scores: Sequence[_ModelScore]

    @property
    def id(self) -> str:
        """What the file calls this evaluation."""
        return f"potentia/{self.model.replace('/', '_')}/{self.time}"


def write_every_eval_ever(
    matrices: Mapping[Protocol, ScoreMatrix], folder: Path, items: OutcomeReader | None = None
) -> list[Path]:
    """Write one file per model, and beside it ``…_samples.jsonl`` where ``items`` gives the outcomes of documents."""
    scores_by_model: dict[str, list[_ModelScore]] = {}
    for protocol, matrix in matrices.items():
        for model, task, score in matrix.scores():
            scores_by_model.setdefault(model, []).append(_ModelScore(protocol, task, score))
    now = str(int(time.time()))
    written: list[Path] = []
    for model, scores in scores_by_model.items():
        written += _write_model_run(_ModelRun(model, now, scores), folder, items)
    return written


def _write_model_run(model_run: _ModelRun, folder: Path, items: OutcomeReader | None) -> list[Path]:
    developer, _, model_name = model_run.model.rpartition("/")
    model_folder = (
        folder
        / "data"
        / "potentia"
        / make_folder_name(developer or "unknown")
        / make_folder_name(model_name)
    )
    results_file = model_folder / f"{uuid.uuid4()}.json"
    aggregate = _render_aggregate(model_run)
    written = []
    samples = [] if items is None else _render_samples(model_run, items)
    if samples:
        samples_file = results_file.with_name(f"{results_file.stem}_samples.jsonl")
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in samples)
        write_file(samples_file, text)
        aggregate["detailed_evaluation_results"] = {
            "format": "jsonl",
            "file_path": str(samples_file.relative_to(folder)),
            "hash_algorithm": "sha256",
            "checksum": hashlib.sha256(text.encode()).hexdigest(),
            "total_rows": len(samples),
        }
        written.append(samples_file)
    write_file(results_file, json.dumps(aggregate, indent=2, ensure_ascii=False) + "\n")
    return [*written, results_file]


def _render_aggregate(model_run: _ModelRun) -> dict[str, object]:
    developer, _, model_name = model_run.model.rpartition("/")
    model_info = {
        "name": model_name,
        "id": model_run.model,
        "additional_details": {"deployment_type": "unknown", "model_availability": "unknown"},
    }
    if developer:
        model_info["developer"] = developer
    source = {
        "source_name": "Potentia",
        "source_type": "evaluation_run",
        "source_organization_name": "unknown",
        "evaluator_relationship": "other",
    }
    return {
        "schema_version": SCHEMA,
        "evaluation_id": model_run.id,
        "retrieved_timestamp": model_run.time,
        "source_metadata": source,
        "eval_library": {"name": "potentia", "version": version("potentia")},
        "model_info": model_info,
        "evaluation_results": [_render_result(model_score) for model_score in model_run.scores],
    }


def _render_result(model_score: _ModelScore) -> dict[str, object]:
    score = model_score.score
    metric = score.metric
    lowest, highest = _BOUNDS.get(metric.scale, (None, None))
    metric_config = {
        "metric_id": metric.canonical_name or "score",
        "metric_name": metric.name or "score",
        "lower_is_better": not metric.higher_is_better,
        "score_type": "continuous",
        "min_score": lowest,
        "max_score": highest,
    }
    return {
        "evaluation_result_id": model_score.result_id,
        "evaluation_name": model_score.task,
        "source_data": _render_source(model_score.task),
        "metric_config": metric_config,
        "score_details": _render_score(model_score),
    }


def _render_source(task: str) -> dict[str, object]:
    dataset = hub_dataset(task)
    if dataset is None:
        return {"dataset_name": task, "source_type": "other"}
    return {
        "dataset_name": task,
        "source_type": "hf_dataset",
        "hf_repo": dataset,
        "hf_split": "test",
    }


def _render_score(model_score: _ModelScore) -> dict[str, object]:
    score = model_score.score
    row = tidy_row(model_score.protocol, "", model_score.task, score)
    columns = [column for column in ("protocol", "shots", *FACT_FIELDS) if row[column] is not None]
    details = {column: str(row[column]) for column in columns}
    rendered: dict[str, object] = {
        "score": score.value,
        "details": {**details, "metric": score.metric.name},
    }
    uncertainty: dict[str, object] = {}
    if not math.isnan(score.stderr):
        uncertainty["standard_error"] = {"value": score.stderr}
    if score.n:
        uncertainty["num_samples"] = score.n
    if uncertainty:
        rendered["uncertainty"] = uncertainty
    return rendered


def _render_samples(model_run: _ModelRun, items: OutcomeReader) -> list[dict[str, object]]:
    samples = []
    for model_score in model_run.scores:
        for outcome in items(model_score.protocol, model_run.model, model_score.task):
            samples.append(_render_sample(model_run, model_score, outcome))
    return samples


def _render_sample(
    model_run: _ModelRun, model_score: _ModelScore, outcome: ItemOutcome
) -> dict[str, object]:
    prompt = str(outcome.detail.get("prompt", ""))
    gold = str(outcome.gold)
    prediction = str(outcome.prediction)
    attribution = {
        "turn_idx": 0,
        "source": "output.raw",
        "extracted_value": prediction,
        "extraction_method": "custom",
        "is_terminal": True,
    }
    rendered: dict[str, object] = {
        "schema_version": SCHEMA,
        "evaluation_id": model_run.id,
        "model_id": model_run.model,
        "evaluation_name": model_score.task,
        "evaluation_result_id": model_score.result_id,
        "sample_id": str(outcome.doc_id),
        "sample_hash": hashlib.sha256((prompt + gold).encode("utf-8", "replace")).hexdigest(),
        "interaction_type": "single_turn",
        "input": {"raw": prompt, "reference": [gold]},
        "output": {"raw": [prediction]},
        "answer_attribution": [attribution],
        "evaluation": {"score": outcome.value, "is_correct": outcome.value >= 1.0},
    }
    if outcome.cluster:
        rendered["metadata"] = {PASSAGE_COLUMNS[0]: outcome.cluster}
    return rendered


# --- reading ---------------------------------------------------------------------------------------------------------


def is_every_eval_ever(content: object) -> bool:
    """Tell a file of Every Eval Ever by its keys."""
    if not isinstance(content, dict):
        return False
    return "schema_version" in content and "evaluation_results" in content


def read_every_eval_ever(
    content: dict[str, object],
    results_file: Path,
    *,
    on_missing_score: Callable[[MissingScoreError], None] | None = None,
) -> Iterator[ScoreEntry]:
    """Give the scores of one file, with their items where its samples lie beside it.

    A score that is NaN is an error, or is handed to ``on_missing_score`` and left out.
    """
    source = str(results_file)
    results = content["evaluation_results"]
    model = JsonObject(content, source).get_object("model_info").get_value("id")
    if not isinstance(results, list) or not isinstance(model, str) or not model.strip():
        raise DataError("this file of Every Eval Ever names no model or no results", where=source)
    items_by_result = _read_samples(results_file)
    for position, result in enumerate(results):
        location = f"{source}, evaluation_results[{position}]"
        parsed = JsonObject.require(result, location, description="the result")
        try:
            entry = _read_result(parsed, model, items_by_result)
        except MissingScoreError as error:
            if on_missing_score is None:
                raise
            on_missing_score(error)
            continue
        yield entry


def _read_result(
    result: JsonObject, model: str, items_by_result: Mapping[str, ExampleValues]
) -> ScoreEntry:
    score = result.get_object("score_details")
    details = score.get_object("details")
    uncertainty = score.get_object("uncertainty")
    task = str(result.get_value("evaluation_name") or "").strip()
    if not task:
        raise DataError("the result has no evaluation_name", where=result.source)
    result_id = str(result.get_value("evaluation_result_id") or task)
    return make_entry(
        result.source,
        model,
        task,
        score.get_value("score"),
        stderr=_read_stderr(uncertainty),
        example_count=uncertainty.get_value("num_samples"),
        protocol=str(details.get_value("protocol") or DIRECT),
        facts=_read_facts(result.get_object("metric_config"), details, task),
        items=items_by_result.get(result_id) or items_by_result.get(task),
    )


def _read_stderr(uncertainty: JsonObject) -> object:
    """Return the standard error: as it is written, of a confidence interval, or of the samples' standard deviation.

    An interval that does not say its level counts as one of 95 %. None where a result says none of them.
    """
    stated = uncertainty.get_object("standard_error").get_value("value")
    if stated is not None:
        return stated
    interval = uncertainty.get_object("confidence_interval")
    low = float_or_none(interval.get_value("lower"))
    high = float_or_none(interval.get_value("upper"))
    if low is not None and high is not None:
        return _error_of_interval(interval, low, high)
    deviation = float_or_none(uncertainty.get_value("standard_deviation"))
    sample_count = float_or_none(uncertainty.get_value("num_samples"))
    if deviation is not None and sample_count is not None and sample_count > 0:
        return deviation / math.sqrt(sample_count)
    return None


def _error_of_interval(interval: JsonObject, low: float, high: float) -> float:
    """Return half the width of an interval, in standard errors of its level."""
    level = interval.get_value("confidence_level")
    if level is None:
        level = DEFAULT_LEVEL
    level_number = float_or_none(level)
    if level_number is None or not 0 < level_number < 1:
        raise DataError(
            f"{str(level)[:40]!r} is not a confidence level between 0 and 1",
            where=interval.source,
            hint="write 0.95 for 95 %",
        )
    if not low <= high:
        raise DataError("the confidence interval ends before it begins", where=interval.source)
    return (high - low) / 2 / NormalDist().inv_cdf((1 + level_number) / 2)


def _read_facts(config: JsonObject, details: JsonObject, task: str) -> ScoreFacts:
    """Return metric, origin and seeds: as Potentia wrote them into the details, else as the schema tells them."""
    lower_is_better = config.find_boolean("lower_is_better")
    if lower_is_better is None:
        raise DataError("lower_is_better is neither true nor false", where=config.source)
    fields = {**details.content, "higher_is_better": not lower_is_better}
    written_metric = str(details.get_value("metric") or "") or None
    facts = facts_from_fields(fields, task, written_metric, config.source)
    if "metric" in details.content:
        return facts
    metric_name = str(config.get_value("metric_id") or config.get_value("metric_name") or "")
    known_metric_facts = metric_of_task(task, metric_name or None, not lower_is_better)
    bounds = (config.get_value("min_score"), config.get_value("max_score"))
    scale = next(
        (scale for scale, limits in _BOUNDS.items() if bounds == limits), known_metric_facts.scale
    )
    metric = Metric(
        name=metric_name,
        higher_is_better=not lower_is_better,
        kind=known_metric_facts.kind,
        scale=scale,
    )
    return replace(facts, metric=metric)


def _read_samples(results_file: Path) -> dict[str, ExampleValues]:
    """Return evaluation → document → value of the samples beside a file; documents go by their hash."""
    samples_file = results_file.with_name(f"{results_file.stem}_samples.jsonl")
    if not samples_file.is_file():
        return {}
    examples_by_result: dict[str, list[ReadExample]] = {}
    for line in read_json_lines(samples_file):
        if not isinstance(line, dict):
            continue
        sample = JsonObject(line, str(samples_file))
        result = sample.get_value("evaluation_result_id") or sample.get_value("evaluation_name")
        content = sample.get_value("sample_hash") or sample.get_value("input")
        value = sample.find_object("evaluation").get_value("score")
        example = ReadExample(content, value, sample.find_object("metadata").content)
        examples_by_result.setdefault(str(result), []).append(example)
    return {result: key_by_content(examples) for result, examples in examples_by_result.items()}
