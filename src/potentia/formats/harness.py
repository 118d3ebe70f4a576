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
from potentia.formats.entries import Entry, described, document, number, origin_of, read_seeds
from potentia.formats.table import decoded, json_lines, read_parquet_table, section
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
    where = str(path)
    content = _as_lm_eval(content, where)
    results = dict(section(content, "results", where))
    for group, body in section(content, "groups", where).items():
        results.setdefault(group, body)
    if not results:
        raise DataError("the results are empty", where=where)
    model = _model_name(content, path)
    hidden = _passed_over(content, where, results, subtasks=subtasks)
    old_mmlu: list[Entry] = []
    for name, body in results.items():
        if name in hidden or name == "all":
            continue
        if not isinstance(body, dict):
            raise DataError("the entry is no object", where=f"{where}, results.{name}")
        entry = _entry(content, where, model, name, body, metric)
        if entry is None:
            if metric is None:
                raise DataError("the entry has no metric", where=f"{where}, results.{name}")
            continue
        if entry.task.startswith(_OLD_MMLU) and not subtasks:
            old_mmlu.append(entry)
        else:
            yield entry
    yield from _pool(old_mmlu)


def _entry(
    content: dict[str, Any], where: str, model: str, name: str, body: dict[str, Any], metric: str | None
) -> Entry | None:
    place = f"results.{name}"
    task = name.partition("|")[0] if name in section(content, "named", where) else name  # twice, with other examples
    if not task.strip():
        raise DataError("a task has no name", where=f"{where}, {place}")
    chosen = _choose(_measured(body), task, metric)
    if chosen is None:
        return None
    stderr = chosen.stderr if isinstance(chosen.stderr, (int, float)) else None  # "N/A" where lm-eval has none
    if isinstance(chosen.value, str):
        raise DataError(
            f"the text {chosen.value[:40]!r} stands where {chosen.metric} should", where=f"{where}, {place}"
        )
    error = number(stderr, f"{where}, {place}.{chosen.metric}_stderr")
    if error < 0:
        raise DataError("the standard error is negative", where=f"{where}, {place}")
    own = section(section(section(content, "potentia", where), "scores", where), name, where)
    metric_found = _metric(content, where, name, task, chosen.metric)
    shots = _shots(content, where, name)
    if own:  # written by Potentia: what lm-eval has no place for
        record = {**own, "higher_is_better": metric_found.higher_is_better, "shots": shots}
        metric_found = described(record, task, str(own.get("metric") or "") or None, f"{where}, potentia.{name}")
    return Entry(
        protocol=_protocol(content, where, name),
        model=model,
        task=task,
        value=number(chosen.value, f"{where}, {place}.{chosen.metric}", required=True),
        stderr=error,
        n=_size(content, where, name),
        metric=metric_found,
        origin=origin_of(record, where) if own else Origin(shots=shots),
        seeds=read_seeds(own.get("seeds"), where),
        place=f"{where}, {place}",
        items=_items(Path(where), name, chosen) or _details(content, Path(where), name, chosen.metric),
    )


def _items(results: Path, task: str, chosen: _Measured) -> dict[int, float] | None:
    """Return the value of every document from ``samples_TASK_TIME.jsonl`` beside ``results_TIME.json``."""
    stamp = results.stem.removeprefix("results")
    file = results.parent / f"samples_{task}{stamp}.jsonl"
    if not stamp or not file.is_file():
        return None
    found: dict[int, float] = {}
    for sample in json_lines(decoded(file), str(file)):
        value = sample.get(chosen.metric) if isinstance(sample, dict) else None
        if isinstance(value, (int, float)) and sample.get("filter", "none") == chosen.filter:
            found[document(sample.get("doc_hash") or sample.get("doc"), found)] = float(value)
    return found


def _as_lm_eval(content: dict[str, Any], where: str) -> dict[str, Any]:
    """Write a file of lighteval, or of the leaderboard before it, as lm-eval would have written it."""
    results = section(content, "results", where)
    parts = {name: found for name in results if (found := _SUITED.fullmatch(name))}
    if not parts:
        return content
    made: dict[str, Any] = {"results": {}, "n-shot": {}, "n-samples": {}, "higher_is_better": {}, "named": {}}
    groups: dict[str, list[str]] = {}
    for name, body in results.items():
        if name not in parts:
            made["results"][name] = body
            continue
        shots, long = int(parts[name]["shots"]), parts[name]["task"]
        task = long.removesuffix(_AVERAGE).replace(":", "_")
        twice = task in made["results"]  # the same benchmark with another number of examples
        task = f"{task}|{shots}" if twice else task
        if long.endswith(_AVERAGE):
            begins = long.removesuffix("_average")
            groups[task] = [m["task"].replace(":", "_") for m in parts.values() if m["task"].startswith(begins)]
            groups[task] = [member for member in groups[task] if member != long.replace(":", "_")]
        config = section(section(content, "config_tasks", where), name.rpartition("|")[0], where)
        config = config or section(section(content, "config_tasks", where), name, where)
        made["results"][task], made["n-shot"][task], made["named"][task] = body, shots, name
        made["n-samples"][task] = {"effective": config.get("effective_num_docs")}
        metrics = config.get("metric") or config.get("metrics")
        made["higher_is_better"][task] = {
            m.get("metric_name"): m.get("higher_is_better")
            for m in (metrics if isinstance(metrics, list) else ())
            if isinstance(m, dict) and isinstance(m.get("metric_name"), str)
        }
    return {**content, **made, "group_subtasks": groups}


def _details(content: dict[str, Any], results: Path, task: str, metric: str) -> dict[int, float] | None:
    """Return the value of every document from the ``details`` that lighteval keeps beside its ``results``."""
    name, stamp = section(content, "named", str(results)).get(task), results.stem.removeprefix("results_")
    folder = next((p for p in results.parents if p.name == "results"), None)
    if name is None or folder is None:
        return None
    inside = folder.with_name("details") / results.parent.relative_to(folder) / stamp
    file = inside / f"details_{name}_{stamp}.parquet"
    if not file.is_file():
        return None
    table, found = read_parquet_table(file), dict[int, float]()
    if not {"doc", "metric"} <= set(table.columns):  # as before 2025
        return None
    for _, row in table.rows:
        doc, values = (row[table.columns.index(column)] for column in ("doc", "metric"))
        value = values.get(metric) if isinstance(values, dict) else None
        if isinstance(value, (int, float)) and isinstance(doc, dict):
            found[document([doc.get("query"), doc.get("choices"), doc.get("gold_index")], found)] = float(value)
    return found or None


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


def _protocol(content: dict[str, Any], where: str, name: str) -> str:
    own = section(content, "potentia", where).get("protocol")
    if isinstance(own, str) and own.strip():
        return own
    general = section(content, "config", where).get("num_fewshot")
    members = [_shots(content, where, member) for member in _below(content, where, name)]
    in_group = max((count for count in members if count is not None), default=None)
    for count in (_shots(content, where, name), in_group, general):
        if isinstance(count, int):
            return Protocol.few_shot(count)
    return DIRECT


def _shots(content: dict[str, Any], where: str, name: str) -> int | None:
    config = section(section(content, "configs", where), name, where)
    found = (section(content, "n-shot", where).get(name), config.get("num_fewshot"))
    return next((int(count) for count in found if isinstance(count, int)), None)


def _size(content: dict[str, Any], where: str, name: str) -> float:
    """Return the number of documents; of a group, the sum over the tasks in it."""
    sizes = section(content, "n-samples", where)
    known = [sizes[task].get("effective") for task in (name, *_below(content, where, name)) if _is_object(sizes, task)]
    if known and all(isinstance(size, int) and 0 < size <= 2**53 for size in known):
        return float(sum(known))
    return math.nan


def _is_object(content: dict[str, Any], name: str) -> bool:
    return isinstance(content.get(name), dict)


def _metric(content: dict[str, Any], where: str, name: str, task: str, metric: str) -> Metric:
    """Return the metric, a text's where lm-eval asked for the likelihood of whole texts."""
    given = section(section(content, "higher_is_better", where), name, where).get(metric)
    made = metric_of(task, metric, given if isinstance(given, bool) else None)
    config = section(section(content, "configs", where), name, where)
    if "output_type" in config:
        return replace(made, kind="text" if config["output_type"] == "loglikelihood_rolling" else "task")
    return made


def _below(content: dict[str, Any], where: str, name: str) -> list[str]:
    """Return everything below a group, however deep; nothing for a task."""
    groups = section(content, "group_subtasks", where)
    found: dict[str, None] = {}
    waiting = [name]
    while waiting:
        children = groups.get(waiting.pop())
        if isinstance(children, list):
            fresh = [c for c in children if isinstance(c, str) and c not in found and c != name]
            found.update(dict.fromkeys(fresh))
            waiting += fresh
    return list(found)


def _passed_over(content: dict[str, Any], where: str, results: dict[str, Any], *, subtasks: bool) -> set[str]:
    """Return what does not count: members of a group that has a score of its own, or else the groups themselves."""
    groups = {name: _below(content, where, name) for name in section(content, "group_subtasks", where)}
    groups = {name: members for name, members in groups.items() if members}
    if subtasks:
        return set(groups)
    scored = [name for name in groups if _is_object(results, name) and _measured(results[name])]
    empty = [name for name in groups if _is_object(results, name) and not _measured(results[name])]
    return {member for name in scored for member in groups[name]} | set(empty)


def _pool(entries: list[Entry]) -> Iterator[Entry]:
    """Give MMLU of version 0.3, which wrote its subjects and no total: the mean over subjects."""
    for protocol in dict.fromkeys(entry.protocol for entry in entries):
        part = [entry for entry in entries if entry.protocol == protocol]
        k = len(part)
        yield Entry(
            protocol=protocol,
            model=part[0].model,
            task="mmlu",
            value=sum(entry.value for entry in part) / k,
            stderr=math.sqrt(sum(entry.stderr**2 for entry in part)) / k,
            metric=part[0].metric,
            place=part[0].place,
        )


def _model_name(content: dict[str, Any], path: Path) -> str:
    """Find the model's name; a revision other than main and an adapter make it another model."""
    where = str(path)
    config = section(content, "config", where)
    general = section(content, "config_general", where)
    arguments = _arguments(config.get("model_args"))
    candidates = (
        content.get("model_name"),
        general.get("model_name"),
        section(general, "model_config", where).get("model_name"),
        arguments.get("pretrained"),
        arguments.get("model"),
        config.get("model_name"),
        config.get("model"),
    )
    name = next((c.strip(" \t") for c in candidates if isinstance(c, str) and c.strip()), None)
    if name is None:
        name = path.parent.name.replace("__", "/") if path.parent.name else ""
    if not name:
        raise DataError("the file does not say which model it is about", where=where)
    revision, adapter = arguments.get("revision"), arguments.get("peft")
    if isinstance(revision, str) and revision not in ("", "main", "None"):
        name += f"@{revision}"
    if isinstance(adapter, str) and adapter not in ("", "None"):
        name += f"+{adapter}"
    return name


def _arguments(given: Any) -> dict[str, Any]:
    if isinstance(given, dict):
        return given
    if not isinstance(given, str):
        return {}
    pairs = (part.partition("=") for part in given.split(","))
    return {name.strip(): value.strip() for name, _, value in pairs}
