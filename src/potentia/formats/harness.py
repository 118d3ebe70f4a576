"""Results of evaluation tools, each told by its keys.

Of lm-evaluation-harness since version 0.3, of the leaderboard and of lighteval, which are built on it; logs of Inspect,
records of EuroEval, and the papers' own files.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from potentia.errors import DataError
from potentia.formats.columns import metric_of, usual_metric
from potentia.formats.entries import Entry, documents, scored, told
from potentia.formats.table import inner, json_lines, read_parquet_table, section
from potentia.values.metric import Metric, Origin, main_metric
from potentia.values.protocol import DIRECT, Protocol

# What a task's entry holds besides metrics.
_NO_METRIC = frozenset({"alias", "name", "sample_len", "sample_count", "task", "description"})
_FILTERS = ("none", "strict-match", "flexible-extract", "get-answer", "remove_whitespace")
# A task of lighteval, and of the leaderboard before it: its suite (since 2025 without), name, number of examples.
_SUITED = re.compile(r"(?:[^|]+\|)?(?P<task>[^|]*[^|\s][^|]*)\|(?P<shots>\d{1,4})(?:\|\d+)?")
_AVERAGE = ":_average"  # what lighteval calls a group of subtasks
_OLD_MMLU = "hendrycksTest-"


@dataclass(frozen=True)
class _Measured:
    """One metric of one task as the file gives it."""

    metric: str
    filter: str
    value: Any
    stderr: Any


def harness_entries(
    content: dict[str, Any], path: Path, *, metric: str | None, subtasks: bool
) -> Iterator[Entry]:
    """Give the scores of one results file: one model, any number of tasks."""
    file = _File(_as_lm_eval(content, str(path)), path)
    results = file.part("results")
    results = results | {
        group: body for group, body in file.part("groups").items() if group not in results
    }
    if not results:
        raise DataError("the results are empty", where=str(path))
    model, hidden = _model_name(file), _passed_over(file, results, subtasks=subtasks)
    scores = [
        _entry(file, model, name, body, metric)
        for name, body in results.items()
        if name not in hidden
    ]
    found = [entry for entry in scores if entry is not None]
    yield from (entry for entry in found if subtasks or not entry.task.startswith(_OLD_MMLU))
    yield from _pool(
        [entry for entry in found if not subtasks and entry.task.startswith(_OLD_MMLU)]
    )


@dataclass(frozen=True)
class _File:
    """One results file; what it lacks is empty, and what is of another type an error."""

    content: dict[str, Any]
    path: Path

    def part(self, *names: str) -> dict[str, Any]:
        """Return the object under these names."""
        found = self.content
        for name in names:
            found = section(found, name, str(self.path))
        return found

    def below(self, name: str) -> list[str]:
        """Return everything below a group, however deep; nothing for a task."""
        groups = self.part("group_subtasks")
        found: dict[str, None] = {}
        waiting = [name]
        while waiting:
            children = groups.get(waiting.pop())
            if isinstance(children, list):
                fresh = [c for c in children if isinstance(c, str) and c not in found and c != name]
                found.update(dict.fromkeys(fresh))
                waiting += fresh
        return list(found)

    def shots(self, name: str) -> int | None:
        """Return how many examples a task was asked with."""
        found = (self.part("n-shot").get(name), self.part("configs", name).get("num_fewshot"))
        return next((int(count) for count in found if isinstance(count, int)), None)


def _entry(file: _File, model: str, name: str, body: Any, metric: str | None) -> Entry | None:
    """Return the score of a task by its metric; None where it lacks the one that is asked for."""
    where = f"{file.path}, results.{name}"
    if not isinstance(body, dict):
        raise DataError("the entry is no object", where=where)
    task = (
        name.partition("|")[0] if name in file.part("named") else name
    )  # twice, with other examples
    chosen = _choose(_measured(body), task, metric)
    if chosen is None and metric is None:
        raise DataError("the entry has no metric", where=where)
    if chosen is None:
        return None
    own, shots = file.part("potentia", "scores", name), file.shots(name)
    known: dict[str, Any] = {
        "metric": _metric(file, name, task, chosen.metric),
        "origin": Origin(shots=shots),
    }
    if own:  # written by Potentia: what lm-eval has no place for
        record = {**own, "higher_is_better": known["metric"].higher_is_better, "shots": shots}
        known = told(
            record, task, str(own.get("metric") or "") or None, f"{file.path}, potentia.{name}"
        )
    return scored(
        where,
        model,
        task,
        chosen.value,
        stderr=chosen.stderr
        if isinstance(chosen.stderr, (int, float))
        else None,  # "N/A" where lm-eval has none
        n=_size(file, name),
        at=f"{where}.{chosen.metric}",
        what=chosen.metric,
        protocol=_protocol(file, name),
        items=_items(file.path, name, chosen) or _details(file, name, chosen.metric) or None,
        **known,
    )


def _items(results: Path, task: str, chosen: _Measured) -> dict[int, float] | None:
    """Return the value of every document from ``samples_TASK_TIME.jsonl`` beside ``results_TIME.json``."""
    stamp = results.stem.removeprefix("results")
    file = results.parent / f"samples_{task}{stamp}.jsonl"
    if not stamp or not file.is_file():
        return None
    samples = (sample for sample in json_lines(file) if isinstance(sample, dict))
    return documents(
        (sample.get("doc_hash") or sample.get("doc"), sample.get(chosen.metric))
        for sample in samples
        if sample.get("filter", "none") == chosen.filter
    )


def _as_lm_eval(content: dict[str, Any], where: str) -> dict[str, Any]:
    """Write a file of lighteval, or of the leaderboard before it, as lm-eval would have written it."""
    results, configs = section(content, "results", where), section(content, "config_tasks", where)
    parts = {name: found for name in results if (found := _SUITED.fullmatch(name))}
    if not parts:
        return content
    names = ("n-shot", "n-samples", "higher_is_better", "named", "group_subtasks")
    made: dict[str, Any] = {name: {} for name in names}
    made["results"] = {name: body for name, body in results.items() if name not in parts}
    for name, found in parts.items():
        long, shots = found["task"], int(found["shots"])
        task = long.removesuffix(_AVERAGE).replace(":", "_")
        if task in made["results"]:  # the same benchmark with another number of examples
            task = f"{task}|{shots}"
        if long.endswith(_AVERAGE):
            others = [other["task"] for other in parts.values() if other["task"] != long]
            members = [other for other in others if other.startswith(long.removesuffix("_average"))]
            made["group_subtasks"][task] = [member.replace(":", "_") for member in members]
        config = section(configs, name.rpartition("|")[0], where) or section(configs, name, where)
        made["results"][task], made["n-shot"][task], made["named"][task] = (
            results[name],
            shots,
            name,
        )
        made["n-samples"][task] = {"effective": config.get("effective_num_docs")}
        made["higher_is_better"][task] = _directions(config.get("metric") or config.get("metrics"))
    return {**content, **made}


def _directions(metrics: Any) -> dict[str, Any]:
    described = (
        [metric for metric in metrics if isinstance(metric, dict)]
        if isinstance(metrics, list)
        else []
    )
    return {str(metric.get("metric_name")): metric.get("higher_is_better") for metric in described}


def _details(file: _File, task: str, metric: str) -> dict[int, float] | None:
    """Return the value of every document from the ``details`` that lighteval keeps beside its ``results``."""
    results = file.path
    name, stamp = file.part("named").get(task), results.stem.removeprefix("results_")
    folder = next((p for p in results.parents if p.name == "results"), None)
    if name is None or folder is None:
        return None
    inside = folder.with_name("details") / results.parent.relative_to(folder) / stamp
    beside = inside / f"details_{name}_{stamp}.parquet"
    if not beside.is_file():
        return None
    table = read_parquet_table(beside)
    if not {"doc", "metric"} <= set(table.columns):  # as before 2025
        return None
    both = zip(table.column("doc"), table.column("metric"), strict=True)
    return documents(
        ([doc.get("query"), doc.get("choices"), doc.get("gold_index")], values.get(metric))
        for doc, values in both
        if isinstance(doc, dict) and isinstance(values, dict)
    )


def _measured(body: dict[str, Any]) -> list[_Measured]:
    """Pair each metric with its standard error; ``acc,none`` is today's spelling, ``acc`` the old one."""
    found = []
    for key, value in body.items():
        metric, _, choice = key.partition(",")
        if not metric.strip() or metric in _NO_METRIC or metric.endswith("_stderr"):
            continue
        stderr = body.get(f"{metric}_stderr,{choice}" if choice else f"{metric}_stderr")
        found.append(_Measured(metric, choice or "none", value, stderr))
    return found


def _choose(found: list[_Measured], task: str, metric: str | None) -> _Measured | None:
    wanted = metric or main_metric(
        [name for m in found for name in (m.metric, f"{m.metric}|{m.filter}")], usual_metric(task)
    )
    rank = {name: i for i, name in enumerate(_FILTERS)}
    fitting = [
        m for m in found if wanted in (m.metric, f"{m.metric}|{m.filter}", f"{m.metric},{m.filter}")
    ]
    return min(fitting, key=lambda m: rank.get(m.filter, len(rank)), default=None)


def _protocol(file: _File, name: str) -> str:
    own = file.part("potentia").get("protocol")
    if isinstance(own, str) and own.strip():
        return own
    members = [count for member in file.below(name) if (count := file.shots(member)) is not None]
    for count in (
        file.shots(name),
        max(members, default=None),
        file.part("config").get("num_fewshot"),
    ):
        if isinstance(count, int):
            return Protocol.few_shot(count)
    return DIRECT


def _size(file: _File, name: str) -> float:
    """Return the number of documents; of a group, the sum over the tasks in it."""
    sizes = file.part("n-samples")
    known = [
        sizes[task].get("effective")
        for task in (name, *file.below(name))
        if isinstance(sizes.get(task), dict)
    ]
    if known and all(isinstance(size, int) and 0 < size <= 2**53 for size in known):
        return float(sum(known))
    return math.nan


def _metric(file: _File, name: str, task: str, metric: str) -> Metric:
    """Return the metric, a text's where lm-eval asked for the likelihood of whole texts."""
    given = file.part("higher_is_better", name).get(metric)
    made = metric_of(task, metric, given if isinstance(given, bool) else None)
    asked = file.part("configs", name).get("output_type")
    return (
        made
        if asked is None
        else replace(made, kind="text" if asked == "loglikelihood_rolling" else "task")
    )


def _passed_over(file: _File, results: dict[str, Any], *, subtasks: bool) -> set[str]:
    """Return what does not count: members of a group that has a score of its own, or else the groups themselves."""
    groups = {
        name: members for name in file.part("group_subtasks") if (members := file.below(name))
    }
    hidden = {"all", *(groups if subtasks else ())}
    for name, members in groups.items():
        if not subtasks and isinstance(results.get(name), dict):
            hidden |= set(members) if _measured(results[name]) else {name}
    return hidden


def _pool(entries: list[Entry]) -> Iterator[Entry]:
    """Give MMLU of version 0.3, which wrote its subjects and no total: the mean over subjects."""
    for protocol in dict.fromkeys(entry.protocol for entry in entries):
        part = [entry for entry in entries if entry.protocol == protocol]
        value = sum(entry.value for entry in part) / len(part)
        error = math.sqrt(sum(entry.stderr**2 for entry in part)) / len(part)
        first = part[0]
        yield Entry(
            protocol, first.model, "mmlu", value, error, metric=first.metric, place=first.place
        )


def _model_name(file: _File) -> str:
    """Find the model's name; a revision other than main and an adapter make it another model."""
    config, general = file.part("config"), file.part("config_general")
    arguments = _arguments(config.get("model_args"))
    candidates = (
        file.content.get("model_name"),
        general.get("model_name"),
        file.part("config_general", "model_config").get("model_name"),
        arguments.get("pretrained"),
        arguments.get("model"),
        config.get("model_name"),
        config.get("model"),
        file.path.parent.name.replace("__", "/"),
    )
    name = next((c.strip(" \t") for c in candidates if isinstance(c, str) and c.strip()), None)
    if name is None:
        raise DataError("the file does not say which model it is about", where=str(file.path))
    for mark, given in (("@", arguments.get("revision")), ("+", arguments.get("peft"))):
        if isinstance(given, str) and given not in ("", "main", "None"):
            name += mark + given
    return name


def _arguments(given: Any) -> dict[str, Any]:
    if isinstance(given, str):
        pairs = (part.partition("=") for part in given.split(","))
        return {name.strip(): value.strip() for name, _, value in pairs}
    return given if isinstance(given, dict) else {}


# --- other tools -----------------------------------------------------------------------------------------------------

Z95 = 1.96  # EuroEval writes the half-width of a 95 % interval as the error
_GRADES = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}  # as Inspect's accuracy counts them
_STDERR = "_stderr"
_PROTOCOLS = {"direct_eval": "direct", "direct_evaluation": "direct"}


def is_inspect(content: Any) -> bool:
    """Tell a log of Inspect: it says what was evaluated, and its results are scores with metrics."""
    return (
        isinstance(content, dict) and isinstance(content.get("eval"), dict) and "status" in content
    )


def inspect_entry(content: Mapping[str, Any], where: str, *, metric: str | None) -> Entry:
    """Return the score of one Inspect log: the headline metric, or the one asked for."""
    about, results = content["eval"], inner(content, "results")
    if not results.get("scores"):
        raise DataError(
            f"the evaluation has no scores: its status is {content.get('status')!r}", where=where
        )
    head = inner(results, "headline")
    for score in results["scores"]:
        metrics = inner(score, "metrics")
        wanted = metric or head.get("metric") or next((m for m in metrics if m != "stderr"), None)
        if wanted not in metrics or head.get("score") not in (None, score.get("name")):
            continue
        task, shots = (
            str(about.get("task", "")).rpartition("/")[2],
            inner(about, "task_args").get("fewshot"),
        )
        return scored(
            where,
            about.get("model"),
            task,
            metrics[wanted].get("value"),
            stderr=inner(metrics, "stderr").get("value"),
            n=score.get("scored_samples") or results.get("completed_samples"),
            protocol=Protocol.few_shot(shots) if type(shots) is int else DIRECT,
            metric=metric_of(task, str(wanted)),
            items=_samples(content.get("samples"), str(score.get("name"))),
        )
    raise DataError(
        "the log has no such metric", where=where, hint="leave out --metric to take the headline"
    )


def _samples(samples: Any, scorer: str) -> dict[int, float] | None:
    """Return the value of every sample of a log that has them; of several epochs the mean."""
    values: dict[str, list[float]] = {}
    for sample in samples if isinstance(samples, list) else ():
        given = inner(sample, "scores", scorer).get("value")
        grade = _GRADES.get(given) if isinstance(given, str) else given
        if isinstance(grade, (int, float)):
            values.setdefault(
                json.dumps([sample.get("input"), sample.get("target")], default=str), []
            ).append(grade)
    return documents((key, sum(parts) / len(parts)) for key, parts in values.items()) or None


def as_euroeval(record: Any) -> dict[str, Any] | None:
    """Return a record of EuroEval in the form of its first years, and None for any other.

    Since version 17 a line is of Every Eval Ever, whose evaluations are the metrics of one dataset.
    """
    library, details = (
        inner(record, "eval_library"),
        inner(record, "eval_library", "additional_details"),
    )
    if str(library.get("name")).casefold() != "euroeval":
        return (
            record
            if inner(record, "results", "total") and record.keys() >= {"dataset", "model"}
            else None
        )
    results, runs = record.get("evaluation_results") or [], details.get("raw_results") or ()
    runs = json.loads(runs) if isinstance(runs, str) else runs
    total: dict[str, Any] = {}
    for result in results:
        name = str(result["evaluation_name"]).removeprefix("test_")
        total[f"test_{name}"] = score = result["score_details"].get("score")
        values = [run.get(name, run.get(f"test_{name}")) for run in runs]
        if (
            len(values) > 1
            and isinstance(score, (int, float))
            and (mean := statistics.fmean(values))
        ):
            error = (
                statistics.stdev(values) / math.sqrt(len(values)) * abs(score / mean)
            )  # runs may be shares
            total[f"test_{name}_se"] = Z95 * error
    dataset = details.get("dataset") or (
        inner(results[0], "source_data").get("dataset_name") if results else None
    )
    few = str(details.get("few_shot")).casefold() == "true"
    model = inner(record, "model_info").get("id")
    return {"dataset": dataset, "model": model, "few_shot": few, "results": {"total": total}}


def euroeval_entry(record: Mapping[str, Any], where: str, *, metric: str | None) -> Entry:
    """Return the score of one record: the first metric of the test split, or the one asked for, as a share of 1."""
    total, dataset = record["results"]["total"], record["dataset"]
    names = [
        k.removeprefix("test_") for k in total if k.startswith("test_") and not k.endswith("_se")
    ]
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
                yield scored(
                    place,
                    model,
                    task,
                    value,
                    stderr=error,
                    protocol=protocol,
                    metric=metric_of(task),
                )
