"""Results of other tools, each told by its keys: logs of Inspect, records of EuroEval, the paper's own file."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from potentia.errors import DataError
from potentia.formats.columns import metric_of
from potentia.formats.entries import Entry, documents, scored
from potentia.formats.table import section
from potentia.values.protocol import DIRECT, Protocol

Z95 = 1.96  # EuroEval writes the half-width of a 95 % interval as the error
_GRADES = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}  # as Inspect's accuracy counts them
_STDERR = "_stderr"
_PROTOCOLS = {"direct_eval": "direct", "direct_evaluation": "direct"}


def is_inspect(content: Any) -> bool:
    """Tell a log of Inspect: it says what was evaluated, and its results are scores with metrics."""
    return isinstance(content, dict) and isinstance(content.get("eval"), dict) and "status" in content


def inspect_entry(content: Mapping[str, Any], where: str, *, metric: str | None) -> Entry:
    """Return the score of one Inspect log: the headline metric, or the one asked for."""
    about, results = content["eval"], content.get("results")
    if not isinstance(results, dict) or not results.get("scores"):
        raise DataError(f"the evaluation has no scores: its status is {content.get('status')!r}", where=where)
    head = results.get("headline") or {}
    for score in results["scores"]:
        metrics = score.get("metrics") if isinstance(score, dict) else None
        if not isinstance(metrics, dict) or (head.get("score") not in (None, score.get("name"))):
            continue
        wanted = metric or head.get("metric") or next((m for m in metrics if m != "stderr"), None)
        if wanted in metrics:
            task, arguments = str(about.get("task", "")).rpartition("/")[2], about.get("task_args")
            shots = arguments.get("fewshot") if isinstance(arguments, dict) else None
            spread = metrics.get("stderr")
            return scored(
                where,
                about.get("model"),
                task,
                metrics[wanted].get("value"),
                stderr=spread.get("value") if isinstance(spread, dict) else None,
                n=score.get("scored_samples") or results.get("completed_samples"),
                protocol=Protocol.few_shot(shots) if type(shots) is int else DIRECT,
                metric=metric_of(task, str(wanted)),
                items=_samples(content.get("samples"), str(score.get("name"))),
            )
    raise DataError("the log has no such metric", where=where, hint="leave out --metric to take the headline")


def _samples(samples: Any, scorer: str) -> dict[int, float] | None:
    """Return the value of every sample of a log that has them; of several epochs the mean."""
    values: dict[str, list[float]] = {}
    for sample in samples if isinstance(samples, list) else ():
        given = ((sample.get("scores") or {}).get(scorer) or {}).get("value")
        grade = _GRADES.get(given) if isinstance(given, str) else given
        if isinstance(grade, (int, float)):
            values.setdefault(json.dumps([sample.get("input"), sample.get("target")], default=str), []).append(grade)
    return documents((key, sum(parts) / len(parts)) for key, parts in values.items()) or None


def as_euroeval(record: Any) -> dict[str, Any] | None:
    """Return a record of EuroEval in the form of its first years, and None for any other.

    Since version 17 a line is of Every Eval Ever, whose evaluations are the metrics of one dataset.
    """
    if not isinstance(record, dict):
        return None
    library = record.get("eval_library")
    if not isinstance(library, dict) or str(library.get("name")).casefold() != "euroeval":
        known = record.keys() >= {"dataset", "model", "results"} and "total" in (record.get("results") or {})
        return record if known else None
    details, results = library.get("additional_details") or {}, record.get("evaluation_results") or []
    runs = details.get("raw_results")
    runs = json.loads(runs) if isinstance(runs, str) else runs
    total: dict[str, Any] = {}
    for result in results:
        name = str(result["evaluation_name"]).removeprefix("test_")
        total[f"test_{name}"] = score = result["score_details"].get("score")
        values = [run.get(name, run.get(f"test_{name}")) for run in runs or ()]
        if len(values) > 1 and isinstance(score, (int, float)) and (mean := statistics.fmean(values)):
            error = statistics.stdev(values) / math.sqrt(len(values)) * abs(score / mean)  # runs may be shares
            total[f"test_{name}_se"] = Z95 * error
    dataset = details.get("dataset") or (results[0].get("source_data") or {}).get("dataset_name") if results else None
    few = str(details.get("few_shot")).casefold() == "true"
    model = (record.get("model_info") or {}).get("id")
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
        where,
        record["model"],
        dataset,
        total[f"test_{name}"],
        stderr=half / Z95 if isinstance(half, (int, float)) else half,
        per=100.0,
        at=f"{where}, test_{name}",
        protocol="few_shot" if record.get("few_shot") else DIRECT,
        metric=metric_of(str(dataset), name),
    )


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
