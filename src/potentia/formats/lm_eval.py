"""Results of lm-evaluation-harness since version 0.3, and of the leaderboard and lighteval, which are built on it.

A file of lighteval is first written as lm-eval would have written it; from then on there is one way to read.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from potentia.errors import DataError
from potentia.facts import find_known_group
from potentia.formats.columns import metric_of_task, usual_metric
from potentia.formats.entries import (
    MissingScoreError,
    ReadExample,
    ScoreEntry,
    ScoreFacts,
    facts_from_fields,
    float_or_none,
    key_by_content,
    make_entry,
    number_content,
)
from potentia.formats.json_values import JsonObject, read_json_lines
from potentia.formats.model_names import FileNaming, find_model_in_file_name
from potentia.formats.table import read_parquet_table
from potentia.values.metric import Metric, Origin, choose_main_metric
from potentia.values.protocol import DIRECT, Protocol
from potentia.values.scores import ExampleText, ExampleValues

# What a task's entry holds besides metrics.
_NO_METRIC = frozenset({"alias", "name", "sample_len", "sample_count", "task", "description"})
_FILTERS = ("none", "strict-match", "flexible-extract", "get-answer", "remove_whitespace")
# A task of lighteval, and of the leaderboard before it: its suite (since 2025 without), name, number of examples.
_LIGHTEVAL_TASK = re.compile(
    r"(?:[^|]+\|)?(?P<task>[^|]*[^|\s][^|]*)\|(?P<shots>\d{1,4})(?:\|\d+)?"
)
_AVERAGE = ":_average"  # what lighteval calls a group of subtasks
_OLD_MMLU_PREFIX = "hendrycksTest-"  # of a subject of MMLU in version 0.3
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

    def part(self, *section_names: str) -> JsonObject:
        """Return the object under these names."""
        return self.content.get_object(*section_names)

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
    results_path: Path,
    *,
    metric: str | None,
    subtasks: bool,
    on_missing_score: Callable[[MissingScoreError], None] | None = None,
) -> Iterator[ScoreEntry]:
    """Give the scores of one results file: one model, any number of tasks.

    A score that is NaN is an error, or is handed to ``on_missing_score`` and left out.
    """
    results_file = _open_results(JsonObject(content, str(results_path)), results_path)
    results = dict(results_file.part("results").content)
    for group, group_results in results_file.part("groups").content.items():
        results.setdefault(group, group_results)
    if not results:
        raise DataError("the results are empty", where=str(results_path))
    model = _find_model_name(results_file)
    uncounted_tasks = _find_uncounted_tasks(results_file, results, subtasks=subtasks)
    group_by_task = _find_task_groups(results_file)
    old_mmlu_subjects = []
    for task, task_results in results.items():
        if task in uncounted_tasks:
            continue
        try:
            entry = _read_task(results_file, model, task, task_results, metric)
        except MissingScoreError as error:
            if on_missing_score is None:
                raise
            on_missing_score(error)
            continue
        if entry is None:  # the task lacks the metric that is asked for
            continue
        if entry.task.startswith(_OLD_MMLU_PREFIX) and not subtasks:
            old_mmlu_subjects.append(entry)
        else:
            yield replace(entry, task_group=group_by_task.get(task, ""))
    yield from _pool_old_mmlu(old_mmlu_subjects)


def _read_task(
    results_file: _ResultsFile, model: str, task_name: str, task_results: object, metric: str | None
) -> ScoreEntry | None:
    """Return the score of a task by its metric; None where it lacks the one that is asked for."""
    source = f"{results_file.path}, results.{task_name}"
    values = _read_metrics(JsonObject.require(task_results, source, description="the entry"))
    # lighteval's task with another number of examples has that number behind its name.
    task = task_name.partition("|")[0] if task_name in results_file.lighteval_names else task_name
    chosen = _choose_metric(values, task, metric)
    if chosen is None and metric is None:
        raise DataError("the entry has no metric", where=source)
    if chosen is None:
        return None
    stderr = chosen.stderr if isinstance(chosen.stderr, (int, float)) else None  # or "N/A"
    items = _read_samples(results_file.path, task_name, chosen) or _read_details(
        results_file, task_name, chosen.metric
    )
    return make_entry(
        source,
        model,
        task,
        chosen.value,
        stderr=stderr,
        example_count=_count_documents(results_file, task_name),
        value_location=f"{source}.{chosen.metric}",
        expected=chosen.metric,
        protocol=_find_protocol(results_file, task_name),
        facts=_find_facts(results_file, task_name, task, chosen.metric),
        items=items or None,
    )


def _find_facts(
    results_file: _ResultsFile, task_name: str, task: str, metric_name: str
) -> ScoreFacts:
    """Return what the file says of a score: as Potentia wrote it, else as lm-eval does."""
    metric = _find_metric(results_file, task_name, task, metric_name)
    shots = results_file.shots_of(task_name)
    potentia_facts = results_file.part("potentia", "scores", task_name)
    if not potentia_facts.content:
        return ScoreFacts(metric, Origin(shots=shots))
    fields = {
        **potentia_facts.content,
        "higher_is_better": metric.higher_is_better,
        "shots": shots,
    }
    written_metric = str(potentia_facts.get_value("metric") or "") or None
    return facts_from_fields(
        fields, task, written_metric, f"{results_file.path}, potentia.{task_name}"
    )


def _read_samples(results: Path, task: str, chosen: _MetricValue) -> ExampleValues | None:
    """Return the value of every document from ``samples_TASK_TIME.jsonl`` beside ``results_TIME.json``."""
    stamp = results.stem.removeprefix("results")
    samples_file = results.parent / f"samples_{task}{stamp}.jsonl"
    if not stamp or not _is_file(samples_file):
        return None
    return key_by_content(
        _iterate_examples(samples_file, chosen), partial(_read_sample_texts, samples_file, chosen)
    )


def _iterate_examples(samples_file: Path, chosen: _MetricValue) -> Iterator[ReadExample]:
    """Give every document with its value of the metric."""
    for sample in _iterate_filtered_samples(samples_file, chosen):
        document = sample.get("doc")
        fields = document if isinstance(document, dict) else {}
        yield ReadExample(_content_of_sample(sample), sample.get(chosen.metric), fields)


def _iterate_filtered_samples(
    samples_file: Path, chosen: _MetricValue
) -> Iterator[dict[str, object]]:
    """Give the samples of the filter that the metric goes by."""
    for sample in read_json_lines(samples_file):
        if isinstance(sample, dict) and sample.get("filter", "none") == chosen.filter:
            yield sample


def _content_of_sample(sample: dict[str, object]) -> object:
    return sample.get("doc_hash") or sample.get("doc")


def _read_sample_texts(samples_file: Path, chosen: _MetricValue) -> dict[int, ExampleText]:
    """Return lm-eval's number and the prompt of every sample, by the number that names its content."""
    texts: dict[int, ExampleText] = {}
    for sample in _iterate_filtered_samples(samples_file, chosen):
        if float_or_none(sample.get(chosen.metric)) is None:
            continue
        doc_id = sample.get("doc_id")
        text = ExampleText(
            doc_id=doc_id if isinstance(doc_id, int) else None, question=_find_prompt(sample)
        )
        texts[number_content(_content_of_sample(sample), texts)] = text
    return texts


def _find_prompt(sample: dict[str, object]) -> str:
    """Return the prompt of a sample: the first argument of its first request; without one, its document."""
    arguments = sample.get("arguments")
    while isinstance(arguments, (dict, list)) and arguments:
        values = list(arguments.values()) if isinstance(arguments, dict) else arguments
        arguments = values[0]
    if isinstance(arguments, str) and arguments.strip():
        return arguments
    return json.dumps(sample.get("doc", ""), ensure_ascii=False, default=str)


def _is_file(path: Path) -> bool:
    """Say whether a file is there; the name of a task may be none that a file can have."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


# --- lighteval -------------------------------------------------------------------------------------------------------


def _open_results(content: JsonObject, results_path: Path) -> _ResultsFile:
    """Take a file of lm-eval as it is; write one of lighteval, or of the leaderboard before it, as lm-eval would."""
    results = content.get_object("results").content
    configs = content.get_object("config_tasks")
    name_parts_by_task = {}
    for task_name in results:
        parts = _LIGHTEVAL_TASK.fullmatch(task_name)
        if parts is not None:
            name_parts_by_task[task_name] = parts
    if not name_parts_by_task:
        return _ResultsFile(content, results_path)
    bodies: dict[str, object] = {
        task_name: body
        for task_name, body in results.items()
        if task_name not in name_parts_by_task
    }
    lighteval_names: dict[str, str] = {}
    members: dict[str, list[str]] = {}
    shots_by_task: dict[str, int] = {}
    sizes: dict[str, dict[str, object]] = {}
    directions: dict[str, dict[str, bool | None]] = {}
    for task_name, parts in name_parts_by_task.items():
        shots = int(parts["shots"])
        task = parts["task"].removesuffix(_AVERAGE).replace(":", "_")
        if task in bodies:  # the same benchmark with another number of examples
            task = f"{task}|{shots}"
        if parts["task"].endswith(_AVERAGE):
            members[task] = _find_lighteval_members(parts["task"], name_parts_by_task)
        config = configs.get_object(task_name.rpartition("|")[0])
        if not config.content:
            config = configs.get_object(task_name)
        bodies[task] = results[task_name]
        shots_by_task[task] = shots
        lighteval_names[task] = task_name
        sizes[task] = {"effective": config.get_value("effective_num_docs")}
        directions[task] = _read_directions(config)
    rewritten = {
        "results": bodies,
        "group_subtasks": members,
        "n-shot": shots_by_task,
        "n-samples": sizes,
        "higher_is_better": directions,
    }
    as_lm_eval = JsonObject({**content.content, **rewritten}, content.source)
    return _ResultsFile(as_lm_eval, results_path, lighteval_names)


def _find_lighteval_members(group: str, names: Mapping[str, re.Match[str]]) -> list[str]:
    """Return the subtasks of a group, which begin with its name."""
    prefix = group.removesuffix("_average")
    tasks = [parts["task"] for parts in names.values()]
    members = [task for task in tasks if task != group and task.startswith(prefix)]
    return [member.replace(":", "_") for member in members]


def _read_directions(config: JsonObject) -> dict[str, bool | None]:
    """Return whether higher is better, by metric."""
    metrics_key = "metric" if config.get_value("metric") else "metrics"
    return {
        str(metric.get_value("metric_name")): metric.find_boolean("higher_is_better")
        for metric in config.find_objects(metrics_key)
    }


def _read_details(results_file: _ResultsFile, task: str, metric: str) -> ExampleValues | None:
    """Return the value of every document from the ``details`` that lighteval keeps beside its ``results``."""
    results = results_file.path
    lighteval_name = results_file.lighteval_names.get(task)
    folder = next((parent for parent in results.parents if parent.name == "results"), None)
    if lighteval_name is None or folder is None:
        return None
    stamp = results.stem.removeprefix("results_")
    details_folder = folder.with_name("details") / results.parent.relative_to(folder) / stamp
    details = details_folder / f"details_{lighteval_name}_{stamp}.parquet"
    if not _is_file(details):
        return None
    table = read_parquet_table(details)
    if not {"doc", "metric"} <= set(table.columns):  # as before 2025
        return None
    examples = []
    for document, values in zip(table.column("doc"), table.column("metric"), strict=True):
        if isinstance(document, dict) and isinstance(values, dict):
            content = [
                document.get(field_name) for field_name in ("query", "choices", "gold_index")
            ]
            examples.append(ReadExample(content, values.get(metric)))
    return key_by_content(examples)


# --- one task --------------------------------------------------------------------------------------------------------


def _read_metrics(task_results: JsonObject) -> list[_MetricValue]:
    """Pair each metric with its standard error; ``acc,none`` is today's spelling, ``acc`` the old one."""
    values = []
    for metric_key, value in task_results.content.items():
        metric, _, filter_name = metric_key.partition(",")
        if not metric.strip() or metric in _NO_METRIC or metric.endswith("_stderr"):
            continue
        error_key = f"{metric}_stderr,{filter_name}" if filter_name else f"{metric}_stderr"
        stderr = task_results.get_value(error_key)
        values.append(_MetricValue(metric, filter_name or "none", value, stderr=stderr))
    return values


def _choose_metric(
    values: list[_MetricValue], task: str, metric: str | None
) -> _MetricValue | None:
    """Return the metric that is asked for, else the main one; of several filters the usual one."""
    available: list[str] = []
    for metric_value in values:
        available.extend(metric_value.names[:2])
    metric_name = metric or choose_main_metric(available, usual_metric(task))
    fitting = [metric_value for metric_value in values if metric_name in metric_value.names]
    rank_by_filter = {available_name: position for position, available_name in enumerate(_FILTERS)}
    return min(
        fitting,
        key=lambda value: rank_by_filter.get(value.filter, len(rank_by_filter)),
        default=None,
    )


def _find_protocol(results_file: _ResultsFile, task: str) -> str:
    written = results_file.part("potentia").get_value("protocol")
    if isinstance(written, str) and written.strip():
        return written
    shots = results_file.shots_of(task)
    if shots is None:
        member_shots = [results_file.shots_of(member) for member in results_file.members_of(task)]
        shots = max(
            (shot_count for shot_count in member_shots if shot_count is not None), default=None
        )
    if shots is None:
        shots = results_file.part("config").find_integer("num_fewshot")
    return DIRECT if shots is None else Protocol.few_shot(shots)


def _count_documents(results_file: _ResultsFile, task: str) -> float:
    """Return the number of documents; of a group, the sum over the tasks in it; NaN where it is not known."""
    sizes = results_file.part("n-samples")
    total = 0
    for task_name in (task, *results_file.members_of(task)):
        if not isinstance(sizes.get_value(task_name), dict):
            continue
        example_count = sizes.get_object(task_name).find_integer("effective")
        if example_count is None or not 0 < example_count <= _LARGEST_SIZE:
            return math.nan
        total += example_count
    return float(total) if total else math.nan


def _find_metric(results_file: _ResultsFile, task_name: str, task: str, metric_name: str) -> Metric:
    """Return the metric, a text's where lm-eval asked for the likelihood of whole texts."""
    direction = results_file.part("higher_is_better", task_name).find_boolean(metric_name)
    metric = metric_of_task(task, metric_name, direction)
    output_type = results_file.part("configs", task_name).get_value("output_type")
    if output_type is None:
        return metric
    return replace(metric, kind="text" if output_type == "loglikelihood_rolling" else "task")


def _find_uncounted_tasks(
    results_file: _ResultsFile, results: Mapping[str, object], *, subtasks: bool
) -> set[str]:
    """Return the tasks to leave out so that nothing counts twice.

    With ``subtasks`` every group; otherwise the members of each group that has a score, and each group that has none.
    """
    uncounted = {"all"}  # lighteval's mean over its tasks
    for group in results_file.part("group_subtasks").content:
        members = results_file.members_of(group)
        if not members:
            continue
        if subtasks:
            uncounted.add(group)
            continue
        group_results = results.get(group)
        if not isinstance(group_results, dict):
            continue
        if _read_metrics(JsonObject(group_results, str(results_file.path))):
            uncounted |= set(members)
        else:
            uncounted.add(group)
    return uncounted


def _find_task_groups(results_file: _ResultsFile) -> dict[str, str]:
    """Return the group of each task that lm-eval ran as a part of one, as far as the group is one benchmark.

    Groups such as those of the Open LLM Leaderboard hold tasks of several benchmarks. What the facts know is left out.
    """
    members_by_group = results_file.part("group_subtasks")
    group_by_task: dict[str, str] = {}
    for group in members_by_group.content:
        known_benchmarks = {find_known_group(member) for member in results_file.members_of(group)}
        if len(known_benchmarks - {None}) > 1:
            continue
        for member in members_by_group.find_list(group):
            if isinstance(member, str) and find_known_group(member) is None:
                group_by_task.setdefault(member, group)
    return group_by_task


def _pool_old_mmlu(subjects: list[ScoreEntry]) -> Iterator[ScoreEntry]:
    """Give MMLU of version 0.3, which wrote its subjects and no total: the mean over subjects."""
    for protocol in dict.fromkeys(entry.protocol for entry in subjects):
        same_protocol = [entry for entry in subjects if entry.protocol == protocol]
        subject_count = len(same_protocol)
        first_entry = same_protocol[0]
        yield ScoreEntry(
            protocol=protocol,
            model=first_entry.model,
            task="mmlu",
            value=sum(entry.value for entry in same_protocol) / subject_count,
            stderr=math.sqrt(sum(entry.stderr**2 for entry in same_protocol)) / subject_count,
            facts=ScoreFacts(first_entry.metric),
            location=first_entry.location,
        )


# --- the model -------------------------------------------------------------------------------------------------------


def find_file_naming(content: dict[str, object], results_path: Path) -> FileNaming | None:
    """Return what a results file says of its model by a path and by its own name; None where there is no path."""
    return _find_naming(_open_results(JsonObject(content, str(results_path)), results_path))


def _find_naming(results_file: _ResultsFile) -> FileNaming | None:
    weights_path = _find_weights_path(results_file)
    if weights_path is None:
        return None
    tasks = results_file.part("results").content
    model_in_file_name = find_model_in_file_name(results_file.path, tasks)
    return FileNaming(results_file.path, weights_path, model_in_file_name)


def _find_model_name(results_file: _ResultsFile) -> str:
    """Find the model's name; a revision other than main and an adapter make it another model."""
    config = results_file.part("config")
    naming = _find_naming(results_file)
    candidates = (
        naming.model if naming is not None else None,
        config.find_text("model_name"),
        config.find_text("model"),
        results_file.path.parent.name.replace("__", "/").strip(" \t"),
    )
    model_name = next(filter(None, candidates), None)
    if model_name is None:
        raise DataError(
            "the file does not say which model it is about", where=str(results_file.path)
        )
    arguments = _read_model_arguments(config)
    for separator, argument_name in (("@", "revision"), ("+", "peft")):
        value = arguments.get_value(argument_name)
        if isinstance(value, str) and value not in ("", "main", "None"):
            model_name += separator + value
    return model_name


def _find_weights_path(results_file: _ResultsFile) -> str | None:
    """Return what the model was loaded by: a path of weights or a repository of the hub."""
    general = results_file.part("config_general")
    arguments = _read_model_arguments(results_file.part("config"))
    candidates = (
        results_file.content.find_text("model_name"),
        general.find_text("model_name"),
        general.get_object("model_config").find_text("model_name"),
        arguments.find_text("pretrained"),
        arguments.find_text("model"),
    )
    return next(filter(None, candidates), None)


def _read_model_arguments(config: JsonObject) -> JsonObject:
    """Return lm-eval's ``model_args``, which are an object or a text such as ``pretrained=gpt2,revision=main``."""
    value = config.get_value("model_args")
    if not isinstance(value, str):
        return config.find_object("model_args")
    arguments = {}
    for assignment in value.split(","):
        argument_name, _, argument = assignment.partition("=")
        arguments[argument_name.strip()] = argument.strip()
    return JsonObject(arguments, config.source)
