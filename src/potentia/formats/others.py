"""Results of other tools, each told by its keys: logs of Inspect, records of EuroEval."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from potentia.errors import DataError
from potentia.formats.columns import metric_of
from potentia.formats.entries import Entry, document, number
from potentia.formats.table import section
from potentia.values.protocol import DIRECT, Protocol

EUROEVAL_KEYS = frozenset({"dataset", "model", "results"})
Z95 = 1.96  # EuroEval writes the half-width of a 95 % interval as the error


def is_inspect(content: Any) -> bool:
    """Tell a log of Inspect: it says what was evaluated, and its results are scores with metrics."""
    return isinstance(content, dict) and isinstance(content.get("eval"), dict) and "status" in content


def inspect_entries(content: Mapping[str, Any], where: str, *, metric: str | None) -> Iterator[Entry]:
    """Give the score of one Inspect log: the headline metric, or the one asked for."""
    about, results = content["eval"], content.get("results")
    if not isinstance(results, dict) or not results.get("scores"):
        raise DataError(f"the evaluation has no scores: its status is {content.get('status')!r}", where=where)
    head = results.get("headline") or {}
    for score in results["scores"]:
        metrics = score.get("metrics") if isinstance(score, dict) else None
        if not isinstance(metrics, dict) or (head.get("score") not in (None, score.get("name"))):
            continue
        wanted = metric or head.get("metric") or next((m for m in metrics if m != "stderr"), None)
        if wanted not in metrics:
            continue
        task = str(about.get("task", "")).rpartition("/")[2]
        spread = metrics.get("stderr")
        yield Entry(
            protocol=_shots_of(about),
            model=_text(about.get("model"), f"{where}, eval.model"),
            task=_text(task, f"{where}, eval.task"),
            value=number(metrics[wanted].get("value"), f"{where}, {wanted}", required=True),
            stderr=number(spread.get("value") if isinstance(spread, dict) else None, f"{where}, stderr"),
            n=number(score.get("scored_samples") or results.get("completed_samples"), f"{where}, scored_samples"),
            metric=metric_of(task, str(wanted)),
            place=where,
            items=_samples(content.get("samples"), str(score.get("name"))),
        )
        return
    raise DataError("the log has no such metric", where=where, hint="leave out --metric to take the headline")


_GRADES = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}  # as Inspect's accuracy counts them


def _samples(samples: Any, scorer: str) -> dict[int, float] | None:
    """Return the value of every sample of a log that has them; of several epochs the mean."""
    values: dict[str, list[float]] = {}
    for sample in samples if isinstance(samples, list) else ():
        given = ((sample.get("scores") or {}).get(scorer) or {}).get("value")
        grade = _GRADES.get(given) if isinstance(given, str) else given
        if isinstance(grade, (int, float)):
            values.setdefault(json.dumps([sample.get("input"), sample.get("target")], default=str), []).append(grade)
    return {document(key): sum(parts) / len(parts) for key, parts in values.items()} or None


def as_euroeval(record: Any) -> dict[str, Any] | None:
    """Return a record of EuroEval in the form of its first years, and None for any other.

    Since version 17 a line is of Every Eval Ever, whose evaluations are the metrics of one dataset.
    """
    if not isinstance(record, dict):
        return None
    library = record.get("eval_library")
    if not isinstance(library, dict) or str(library.get("name")).casefold() != "euroeval":
        known = record.keys() >= EUROEVAL_KEYS and "total" in (record.get("results") or {})
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
    total = record["results"]["total"]
    names = [k.removeprefix("test_") for k in total if k.startswith("test_") and not k.endswith("_se")]
    name = metric if metric in names else next(iter(names), None)
    if name is None or (metric is not None and name != metric):
        missing = f"the record has no metric {metric or ''}".rstrip()
        raise DataError(missing, where=where, hint=f"there are: {', '.join(names)}")
    dataset = _text(record["dataset"], f"{where}, dataset")
    few = record.get("few_shot")
    return Entry(
        protocol="few_shot" if few else DIRECT,
        model=_text(record["model"], f"{where}, model"),
        task=dataset,
        value=number(total[f"test_{name}"], f"{where}, test_{name}", required=True) / 100,
        stderr=number(total.get(f"test_{name}_se"), f"{where}, test_{name}_se") / Z95 / 100,
        n=math.nan,
        metric=metric_of(dataset, name),
        place=where,
    )


def _shots_of(about: Mapping[str, Any]) -> Protocol:
    arguments = about.get("task_args")
    shots = arguments.get("fewshot") if isinstance(arguments, dict) else None
    return Protocol.few_shot(shots) if isinstance(shots, int) and not isinstance(shots, bool) else DIRECT


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise DataError("a name is missing", where=where)
    return value.strip()


_STDERR = "_stderr"
_PROTOCOLS = {"direct_eval": "direct", "direct_evaluation": "direct"}
_HINT = 'scores are lm-eval results ({"results": …}) or {"train_before_test": {task: {model: value}}, …}'


def paper_entries(content: dict[str, Any], where: str) -> Iterator[Entry]:
    """Give the scores of the layout in which the train-before-test paper publishes them."""
    protocols = [name for name in content if not name.endswith(_STDERR)]
    if not protocols:
        raise DataError("this is no score file", where=where, hint=_HINT)
    for name in content:
        if name.endswith(_STDERR) and name.removesuffix(_STDERR) not in content:
            raise DataError(f"there are standard errors {name!r} without scores", where=where)
    for name in protocols:
        tasks = section(content, name, where)
        spreads = section(content, name + _STDERR, where)
        for task in tasks:
            values = section(tasks, task, f"{where}, {name}")
            errors = section(spreads, task, f"{where}, {name}{_STDERR}")
            for model, value in values.items():
                place = f"{name}.{task}.{model}"
                if not task.strip() or not model.strip():
                    raise DataError("a task or model has no name", where=f"{where}, {place}")
                stderr = number(errors.get(model), f"{where}, {name}{_STDERR}.{task}.{model}")
                if stderr < 0:
                    raise DataError("the standard error is negative", where=f"{where}, {place}")
                yield Entry(
                    protocol=_PROTOCOLS.get(name, name),
                    model=model,
                    task=task,
                    value=_finite(value, f"{where}, {place}"),
                    stderr=stderr,
                    metric=metric_of(task),
                    place=place,
                )


def _finite(value: Any, where: str) -> float:
    if isinstance(value, str):
        raise DataError(f"the text {value[:40]!r} stands where a number should", where=where)
    return number(value, where, required=True)
