"""Results of lm-evaluation-harness since version 0.3, and of the leaderboard and lighteval, which are built on it.

A file of lighteval is first written as lm-eval would have written it; from then on there is one way to read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from potentia.errors import DataError
from potentia.formats.columns import metric_of_task, usual_metric
from potentia.formats.entries import (
    MissingScoreError,
    ScoreEntry,
    ScoreFacts,
    facts_from_fields,
    key_by_content,
    make_entry,
)
from potentia.formats.json_values import JsonObject, read_json_lines
from potentia.formats.model_names import name_model_by_path
from potentia.formats.table import read_parquet_table
from potentia.values.metric import Metric, Origin, main_metric
from potentia.values.protocol import DIRECT, Protocol

# What a task's entry holds besides metrics.
_NO_METRIC = frozenset({"alias", "name", "sample_len", "sample_count", "task", "description"})
_FILTERS = ("none", "strict-match", "flexible-extract", "get-answer", "remove_whitespace")
# A task of lighteval, and of the leaderboard before it: its suite (since 2025 without), name, number of examples.
_LIGHTEVAL_TASK = re.compile(
    r"(?:[^|]+\|)?(?P<task>[^|]*[^|\s][^|]*)\|(?P<shots>\d{1,4})(?:\|\d+)?"
)
_AVERAGE = ":_average"  # what lighteval calls a group of subtasks
_OLD_MMLU = "hendrycksTest-"
_LARGEST_SIZE = 2**53  # of a number of documents: what a float can count to


@dataclass(frozen=True)
class _MetricValue:
    """One metric of one task as the file gives it."""

    metric: str
    filter: str
    value: object
    stderr: object

    @property
    def names(self) -> tuple[str, str, str]:
        """How the metric may be asked for."""
        return (self.metric, f"{self.metric}|{self.filter}", f"{self.metric},{self.filter}")


@dataclass(frozen=True)
class _ResultsFile:
    """One results file as lm-eval writes it; ``lighteval_names`` are the names of its tasks in a file of lighteval."""

    content: JsonObject
    path: Path
    lighteval_names: Mapping[str, str] = field(default_factory=dict)

    def part(self, *names: str) -> JsonObject:
        """Return the object under these names."""
        return self.content.get_object(*names)

    def members_of(self, group: str) -> list[str]:
        """Return everything below a group, however deep; nothing for a task."""
        members_by_group = self.part("group_subtasks")
        members: dict[str, None] = {}
        groups_to_open = [group]
        while groups_to_open:
            for child in members_by_group.find_list(groups_to_open.pop()):
                if isinstance(child, str) and child not in members and child != group:
                    members[child] = None
                    groups_to_open.append(child)
        return list(members)

    def shots_of(self, task: str) -> int | None:
        """Return how many examples a task was asked with."""
        shots = self.part("n-shot").find_integer(task)
        if shots is None:
            shots = self.part("configs", task).find_integer("num_fewshot")
        return shots


def read_lm_eval_results(
    content: dict[str, object],
    path: Path,
    *,
    metric: str | None,
    subtasks: bool,
    on_missing_score: Callable[[MissingScoreError], None] | None = None,
) -> Iterator[ScoreEntry]:
    """Give the scores of one results file: one model, any number of tasks.

    A score that is NaN is an error, or is handed to ``on_missing_score`` and left out.
    """
    file = _open_results(JsonObject(content, str(path)), path)
    results = dict(file.part("results").content)
    for group, body in file.part("groups").content.items():
        results.setdefault(group, body)
    if not results:
        raise DataError("the results are empty", where=str(path))
    model = _find_model_name(file)
    hidden_tasks = _find_hidden_tasks(file, results, subtasks=subtasks)
    old_mmlu_subjects = []
    for task, body in results.items():
        if task in hidden_tasks:
            continue
        try:
            entry = _read_task(file, model, task, body, metric)
        except MissingScoreError as error:
            if on_missing_score is None:
                raise
            on_missing_score(error)
            continue
        if entry is None:
            continue
        if entry.task.startswith(_OLD_MMLU) and not subtasks:
            old_mmlu_subjects.append(entry)
        else:
            yield entry
    yield from _pool_old_mmlu(old_mmlu_subjects)


def _read_task(
    file: _ResultsFile, model: str, name: str, body: object, metric: str | None
) -> ScoreEntry | None:
    """Return the score of a task by its metric; None where it lacks the one that is asked for."""
    where = f"{file.path}, results.{name}"
    values = _read_metrics(JsonObject.require(body, where, what="the entry"))
    # lighteval's task with another number of examples has that number behind its name.
    task = name.partition("|")[0] if name in file.lighteval_names else name
    chosen = _choose_metric(values, task, metric)
    if chosen is None and metric is None:
        raise DataError("the entry has no metric", where=where)
    if chosen is None:
        return None
    stderr = chosen.stderr if isinstance(chosen.stderr, (int, float)) else None  # or "N/A"
    items = _read_samples(file.path, name, chosen) or _read_details(file, name, chosen.metric)
    return make_entry(
        where,
        model,
        task,
        chosen.value,
        stderr=stderr,
        n=_count_documents(file, name),
        value_place=f"{where}.{chosen.metric}",
        expected=chosen.metric,
        protocol=_find_protocol(file, name),
        facts=_find_facts(file, name, task, chosen.metric),
        items=items or None,
    )


def _find_facts(file: _ResultsFile, name: str, task: str, metric_name: str) -> ScoreFacts:
    """Return what the file says of a score: as Potentia wrote it, else as lm-eval does."""
    metric = _find_metric(file, name, task, metric_name)
    shots = file.shots_of(name)
    potentia_facts = file.part("potentia", "scores", name)
    if not potentia_facts.content:
        return ScoreFacts(metric, Origin(shots=shots))
    fields = {
        **potentia_facts.content,
        "higher_is_better": metric.higher_is_better,
        "shots": shots,
    }
    written_metric = str(potentia_facts.get_value("metric") or "") or None
    return facts_from_fields(fields, task, written_metric, f"{file.path}, potentia.{name}")


def _read_samples(results: Path, task: str, chosen: _MetricValue) -> dict[int, float] | None:
    """Return the value of every document from ``samples_TASK_TIME.jsonl`` beside ``results_TIME.json``."""
    stamp = results.stem.removeprefix("results")
    file = results.parent / f"samples_{task}{stamp}.jsonl"
    if not stamp or not _is_file(file):
        return None
    pairs = []
    for sample in read_json_lines(file):
        if isinstance(sample, dict) and sample.get("filter", "none") == chosen.filter:
            content = sample.get("doc_hash") or sample.get("doc")
            pairs.append((content, sample.get(chosen.metric)))
    return key_by_content(pairs)


def _is_file(path: Path) -> bool:
    """Say whether a file is there; the name of a task may be none that a file can have."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


# --- lighteval -------------------------------------------------------------------------------------------------------


def _open_results(content: JsonObject, path: Path) -> _ResultsFile:
    """Take a file of lm-eval as it is; write one of lighteval, or of the leaderboard before it, as lm-eval would."""
    results = content.get_object("results").content
    configs = content.get_object("config_tasks")
    names = {name: parts for name in results if (parts := _LIGHTEVAL_TASK.fullmatch(name))}
    if not names:
        return _ResultsFile(content, path)
    bodies: dict[str, object] = {name: body for name, body in results.items() if name not in names}
    lighteval_names: dict[str, str] = {}
    members: dict[str, list[str]] = {}
    shots_by_task: dict[str, int] = {}
    sizes: dict[str, dict[str, object]] = {}
    directions: dict[str, dict[str, bool | None]] = {}
    for name, parts in names.items():
        shots = int(parts["shots"])
        task = parts["task"].removesuffix(_AVERAGE).replace(":", "_")
        if task in bodies:  # the same benchmark with another number of examples
            task = f"{task}|{shots}"
        if parts["task"].endswith(_AVERAGE):
            members[task] = _find_lighteval_members(parts["task"], names)
        config = configs.get_object(name.rpartition("|")[0])
        if not config.content:
            config = configs.get_object(name)
        bodies[task] = results[name]
        shots_by_task[task] = shots
        lighteval_names[task] = name
        sizes[task] = {"effective": config.get_value("effective_num_docs")}
        directions[task] = _read_directions(config)
    rewritten = {
        "results": bodies,
        "group_subtasks": members,
        "n-shot": shots_by_task,
        "n-samples": sizes,
        "higher_is_better": directions,
    }
    as_lm_eval = JsonObject({**content.content, **rewritten}, content.where)
    return _ResultsFile(as_lm_eval, path, lighteval_names)


def _find_lighteval_members(group: str, names: Mapping[str, re.Match[str]]) -> list[str]:
    """Return the subtasks of a group, which begin with its name."""
    prefix = group.removesuffix("_average")
    tasks = [parts["task"] for parts in names.values()]
    members = [task for task in tasks if task != group and task.startswith(prefix)]
    return [member.replace(":", "_") for member in members]


def _read_directions(config: JsonObject) -> dict[str, bool | None]:
    """Return whether higher is better, by metric."""
    key = "metric" if config.get_value("metric") else "metrics"
    return {
        str(metric.get_value("metric_name")): metric.find_boolean("higher_is_better")
        for metric in config.find_objects(key)
    }


def _read_details(file: _ResultsFile, task: str, metric: str) -> dict[int, float] | None:
    """Return the value of every document from the ``details`` that lighteval keeps beside its ``results``."""
    results = file.path
    name = file.lighteval_names.get(task)
    folder = next((parent for parent in results.parents if parent.name == "results"), None)
    if name is None or folder is None:
        return None
    stamp = results.stem.removeprefix("results_")
    details_folder = folder.with_name("details") / results.parent.relative_to(folder) / stamp
    details = details_folder / f"details_{name}_{stamp}.parquet"
    if not _is_file(details):
        return None
    table = read_parquet_table(details)
    if not {"doc", "metric"} <= set(table.columns):  # as before 2025
        return None
    pairs = []
    for document, values in zip(table.column("doc"), table.column("metric"), strict=True):
        if isinstance(document, dict) and isinstance(values, dict):
            content = [document.get(key) for key in ("query", "choices", "gold_index")]
            pairs.append((content, values.get(metric)))
    return key_by_content(pairs)


# --- one task --------------------------------------------------------------------------------------------------------


def _read_metrics(body: JsonObject) -> list[_MetricValue]:
    """Pair each metric with its standard error; ``acc,none`` is today's spelling, ``acc`` the old one."""
    values = []
    for key, value in body.content.items():
        metric, _, filter_name = key.partition(",")
        if not metric.strip() or metric in _NO_METRIC or metric.endswith("_stderr"):
            continue
        error_key = f"{metric}_stderr,{filter_name}" if filter_name else f"{metric}_stderr"
        stderr = body.get_value(error_key)
        values.append(_MetricValue(metric, filter_name or "none", value, stderr=stderr))
    return values


def _choose_metric(
    values: list[_MetricValue], task: str, metric: str | None
) -> _MetricValue | None:
    """Return the metric that is asked for, else the main one; of several filters the usual one."""
    available = [name for value in values for name in value.names[:2]]
    wanted = metric or main_metric(available, usual_metric(task))
    fitting = [value for value in values if wanted in value.names]
    rank = {name: place for place, name in enumerate(_FILTERS)}
    return min(fitting, key=lambda value: rank.get(value.filter, len(rank)), default=None)


def _find_protocol(file: _ResultsFile, task: str) -> str:
    written = file.part("potentia").get_value("protocol")
    if isinstance(written, str) and written.strip():
        return written
    shots = file.shots_of(task)
    if shots is None:
        member_shots = [file.shots_of(member) for member in file.members_of(task)]
        shots = max((count for count in member_shots if count is not None), default=None)
    if shots is None:
        shots = file.part("config").find_integer("num_fewshot")
    return DIRECT if shots is None else Protocol.few_shot(shots)


def _count_documents(file: _ResultsFile, task: str) -> float:
    """Return the number of documents; of a group, the sum over the tasks in it; NaN where it is not known."""
    sizes = file.part("n-samples")
    total = 0
    for name in (task, *file.members_of(task)):
        if not isinstance(sizes.get_value(name), dict):
            continue
        size = sizes.get_object(name).find_integer("effective")
        if size is None or not 0 < size <= _LARGEST_SIZE:
            return math.nan
        total += size
    return float(total) if total else math.nan


def _find_metric(file: _ResultsFile, name: str, task: str, metric_name: str) -> Metric:
    """Return the metric, a text's where lm-eval asked for the likelihood of whole texts."""
    direction = file.part("higher_is_better", name).find_boolean(metric_name)
    metric = metric_of_task(task, metric_name, direction)
    output_type = file.part("configs", name).get_value("output_type")
    if output_type is None:
        return metric
    return replace(metric, kind="text" if output_type == "loglikelihood_rolling" else "task")


def _find_hidden_tasks(
    file: _ResultsFile, results: Mapping[str, object], *, subtasks: bool
) -> set[str]:
    """Return what does not count: members of a group that has a score of its own, or else the groups themselves."""
    hidden = {"all"}
    for group in file.part("group_subtasks").content:
        members = file.members_of(group)
        if not members:
            continue
        if subtasks:
            hidden.add(group)
            continue
        body = results.get(group)
        if not isinstance(body, dict):
            continue
        if _read_metrics(JsonObject(body, str(file.path))):
            hidden |= set(members)
        else:
            hidden.add(group)
    return hidden


def _pool_old_mmlu(subjects: list[ScoreEntry]) -> Iterator[ScoreEntry]:
    """Give MMLU of version 0.3, which wrote its subjects and no total: the mean over subjects."""
    for protocol in dict.fromkeys(entry.protocol for entry in subjects):
        same_protocol = [entry for entry in subjects if entry.protocol == protocol]
        count = len(same_protocol)
        first = same_protocol[0]
        yield ScoreEntry(
            protocol=protocol,
            model=first.model,
            task="mmlu",
            value=sum(entry.value for entry in same_protocol) / count,
            stderr=math.sqrt(sum(entry.stderr**2 for entry in same_protocol)) / count,
            facts=ScoreFacts(first.metric),
            place=first.place,
        )


# --- the model -------------------------------------------------------------------------------------------------------


def _find_model_name(file: _ResultsFile) -> str:
    """Find the model's name; a revision other than main and an adapter make it another model."""
    config = file.part("config")
    general = file.part("config_general")
    arguments = _read_model_arguments(config)
    candidates = (
        _find_path_name(file.content, "model_name"),
        _find_path_name(general, "model_name"),
        general.get_object("model_config").find_text("model_name"),
        _find_path_name(arguments, "pretrained"),
        _find_path_name(arguments, "model"),
        config.find_text("model_name"),
        config.find_text("model"),
        file.path.parent.name.replace("__", "/").strip(" \t"),
    )
    name = next(filter(None, candidates), None)
    if name is None:
        raise DataError("the file does not say which model it is about", where=str(file.path))
    for mark, key in (("@", "revision"), ("+", "peft")):
        value = arguments.get_value(key)
        if isinstance(value, str) and value not in ("", "main", "None"):
            name += mark + value
    return name


def _find_path_name(arguments: JsonObject, key: str) -> str | None:
    path = arguments.find_text(key)
    return name_model_by_path(path) if path else None


def _read_model_arguments(config: JsonObject) -> JsonObject:
    """Return lm-eval's ``model_args``, which are an object or a text such as ``pretrained=gpt2,revision=main``."""
    value = config.get_value("model_args")
    if not isinstance(value, str):
        return config.find_object("model_args")
    arguments = {}
    for part in value.split(","):
        name, _, argument = part.partition("=")
        arguments[name.strip()] = argument.strip()
    return JsonObject(arguments, config.where)
