"""Results that lm-evaluation-harness writes, from version 0.3 to today, and those of the leaderboard built on it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from potentia.errors import DataError
from potentia.formats.columns import metric_of, usual_metric
from potentia.formats.entries import Entry, documents, scored, told
from potentia.formats.table import json_lines, read_parquet_table, section
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


def harness_entries(content: dict[str, Any], path: Path, *, metric: str | None, subtasks: bool) -> Iterator[Entry]:
    """Give the scores of one results file: one model, any number of tasks."""
    file = _File(_as_lm_eval(content, str(path)), path)
    results = file.part("results")
    results = results | {group: body for group, body in file.part("groups").items() if group not in results}
    if not results:
        raise DataError("the results are empty", where=str(path))
    model, hidden = _model_name(file), _passed_over(file, results, subtasks=subtasks)
    scores = [_entry(file, model, name, body, metric) for name, body in results.items() if name not in hidden]
    found = [entry for entry in scores if entry is not None]
    yield from (entry for entry in found if subtasks or not entry.task.startswith(_OLD_MMLU))
    yield from _pool([entry for entry in found if not subtasks and entry.task.startswith(_OLD_MMLU)])


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
    task = name.partition("|")[0] if name in file.part("named") else name  # twice, with other examples
    chosen = _choose(_measured(body), task, metric)
    if chosen is None and metric is None:
        raise DataError("the entry has no metric", where=where)
    if chosen is None:
        return None
    own, shots = file.part("potentia", "scores", name), file.shots(name)
    known: dict[str, Any] = {"metric": _metric(file, name, task, chosen.metric), "origin": Origin(shots=shots)}
    if own:  # written by Potentia: what lm-eval has no place for
        record = {**own, "higher_is_better": known["metric"].higher_is_better, "shots": shots}
        known = told(record, task, str(own.get("metric") or "") or None, f"{file.path}, potentia.{name}")
    return scored(
        where, model, task, chosen.value,
        stderr=chosen.stderr if isinstance(chosen.stderr, (int, float)) else None,  # "N/A" where lm-eval has none
        n=_size(file, name),
        at=f"{where}.{chosen.metric}",
        what=chosen.metric,
        protocol=_protocol(file, name),
        items=_items(file.path, name, chosen) or _details(file, name, chosen.metric) or None,
        **known,
    )  # fmt: skip


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
        made["results"][task], made["n-shot"][task], made["named"][task] = results[name], shots, name
        made["n-samples"][task] = {"effective": config.get("effective_num_docs")}
        made["higher_is_better"][task] = _directions(config.get("metric") or config.get("metrics"))
    return {**content, **made}


def _directions(metrics: Any) -> dict[str, Any]:
    described = [metric for metric in metrics if isinstance(metric, dict)] if isinstance(metrics, list) else []
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
    fitting = [m for m in found if wanted in (m.metric, f"{m.metric}|{m.filter}", f"{m.metric},{m.filter}")]
    return min(fitting, key=lambda m: rank.get(m.filter, len(rank)), default=None)


def _protocol(file: _File, name: str) -> str:
    own = file.part("potentia").get("protocol")
    if isinstance(own, str) and own.strip():
        return own
    members = [count for member in file.below(name) if (count := file.shots(member)) is not None]
    for count in (file.shots(name), max(members, default=None), file.part("config").get("num_fewshot")):
        if isinstance(count, int):
            return Protocol.few_shot(count)
    return DIRECT


def _size(file: _File, name: str) -> float:
    """Return the number of documents; of a group, the sum over the tasks in it."""
    sizes = file.part("n-samples")
    known = [sizes[task].get("effective") for task in (name, *file.below(name)) if isinstance(sizes.get(task), dict)]
    if known and all(isinstance(size, int) and 0 < size <= 2**53 for size in known):
        return float(sum(known))
    return math.nan


def _metric(file: _File, name: str, task: str, metric: str) -> Metric:
    """Return the metric, a text's where lm-eval asked for the likelihood of whole texts."""
    given = file.part("higher_is_better", name).get(metric)
    made = metric_of(task, metric, given if isinstance(given, bool) else None)
    asked = file.part("configs", name).get("output_type")
    return made if asked is None else replace(made, kind="text" if asked == "loglikelihood_rolling" else "task")


def _passed_over(file: _File, results: dict[str, Any], *, subtasks: bool) -> set[str]:
    """Return what does not count: members of a group that has a score of its own, or else the groups themselves."""
    groups = {name: members for name in file.part("group_subtasks") if (members := file.below(name))}
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
        yield Entry(protocol, first.model, "mmlu", value, error, metric=first.metric, place=first.place)


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
