"""The Hub's ``.eval_results``: scores as a model's page shows them, in both directions.

An entry says the dataset, the task and the value; a model is named by the folder that ``.eval_results`` lies in. The
form has no place for protocol, metric and standard error. Potentia writes them into the notes and reads them back; the
scale follows from the metric's name, else from the values: a task with any value above 1 is in per cent. Others'
entries name no metric: higher counts as better, except for texts that are scored by how well they are predicted, such
as wikitext. Where a task has several entries, a verified one counts, else the latest.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from potentia.errors import DataError, InputError, PotentiaError
from potentia.extras import Extra, require_extra
from potentia.files import make_folder_name, read_yaml, write_file
from potentia.formats.columns import metric_of_task
from potentia.formats.entries import ScoreEntry, ScoreFacts, make_entry
from potentia.formats.json_values import JsonObject
from potentia.values.protocol import DIRECT, Protocol, TaskName
from potentia.values.scores import Score, ScoreMatrix

if TYPE_CHECKING:
    from huggingface_hub import EvalResultEntry


@cache
def hub_dataset(task: str) -> str | None:
    """Return the dataset on the Hub that a task of lm-eval is made of; None where there is none, or several."""
    from potentia.tasks import read_stock_task

    try:
        definitions = read_stock_task(TaskName(task).base, as_data=True)
        datasets = {str(subtask.get("dataset_path") or "") for subtask in definitions.subtasks}
    except (PotentiaError, KeyError):
        return None
    if len(datasets) != 1:
        return None
    dataset = datasets.pop()
    is_on_hub = dataset.count("/") == 1 and not Path(dataset).suffix
    return dataset if is_on_hub else None


def write_hub_results(matrices: Mapping[Protocol, ScoreMatrix], folder: Path) -> list[Path]:
    """Write ``MODEL/.eval_results/potentia.yaml`` for every model: the tasks whose documents are on the Hub."""
    require_extra(Extra.RUN, "writing results for the hub", modules=("huggingface_hub",))
    import yaml
    from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml

    entries_by_model: dict[str, list[EvalResultEntry]] = {}
    for protocol, matrix in matrices.items():
        for model, task, score in matrix.scores():
            dataset = hub_dataset(task)
            if dataset is None:
                continue
            entry = EvalResultEntry(
                dataset_id=dataset,
                task_id=task,
                value=round(score.value, 6),
                notes=_render_notes(protocol, score),
            )
            entries_by_model.setdefault(model, []).append(entry)
    if not entries_by_model:
        raise InputError(
            "no task of these scores has its data on the Hub",
            hint="the Hub asks for a dataset id",
        )
    written = []
    for model, entries in entries_by_model.items():
        results_file = folder / make_folder_name(model) / ".eval_results" / "potentia.yaml"
        content = eval_result_entries_to_yaml(entries)
        write_file(results_file, yaml.safe_dump(content, sort_keys=False, allow_unicode=True))
        written.append(results_file)
    return written


def _render_notes(protocol: Protocol, score: Score) -> str:
    recipe = f", recipe {score.origin.recipe[:12]}" if score.origin.recipe else ""
    error = "" if math.isnan(score.stderr) else f" ± {score.stderr:.4f} (standard error)"
    metric = score.metric.name or "score"
    return f"{protocol}{recipe}; {metric}{error}; Potentia {version('potentia')}"


# --- reading ---------------------------------------------------------------------------------------------------------

FOLDER = ".eval_results"
_OWN_NOTES = re.compile(
    r"(?P<protocol>.+?)(?:, recipe \w+)?; (?P<metric>[^;]+?)"
    r"(?: ± (?P<stderr>[\d.]+) \(standard error\))?; Potentia .+"
)
_STEP_LABEL = re.compile(r"(?P<base>.+) after (?P<step>\d[\d,]*) steps")
_SHOTS_LABEL = re.compile(r"(?P<shots>\d+)-shot")
_CACHED_MODEL = re.compile(r"models--(?P<owner>[^/]+?)--(?P<name>[^/]+)")


@dataclass(frozen=True)
class _HubEntry:
    """One entry of a file, with what decides between several of one task."""

    score: ScoreEntry
    is_verified: bool
    date: str


def is_hub_results(content: object) -> bool:
    """Tell a file of the Hub's results by its content: a list of entries with a dataset and a value."""
    if not isinstance(content, list) or not content:
        return False
    return all(
        isinstance(entry, dict) and {"dataset", "value"} <= entry.keys() for entry in content
    )


def read_hub_folder(folder: Path, notes: list[str]) -> list[ScoreEntry]:
    """Read all files of one model's ``.eval_results``; ``notes`` takes what a reader must know."""
    files = sorted([*folder.glob("*.yaml"), *folder.glob("*.yml")])
    entries: list[_HubEntry] = []
    for results_file in files:
        entries.extend(_read_file(results_file))
    return _choose_entries(entries, notes)


def read_hub_file(results_file: Path, notes: list[str]) -> list[ScoreEntry]:
    """Read one file of results."""
    return _choose_entries(list(_read_file(results_file)), notes)


def _read_file(results_file: Path) -> Iterator[_HubEntry]:
    content, _ = read_yaml(results_file, description="the file of results", error=DataError)
    if not is_hub_results(content):
        raise DataError(
            "this is not a file of the Hub's results",
            where=str(results_file),
            hint="it is a list of entries, each with dataset (id, task_id) and value",
        )
    model = _name_model(results_file)
    for position, entry in enumerate(content):
        location = f"{results_file}, entry {position + 1}"
        yield _read_entry(JsonObject.require(entry, location, description="the entry"), model)


def _name_model(results_file: Path) -> str:
    """Return the model that a file is of: the folder around ``.eval_results``, or the repository of the Hub's cache."""
    resolved_file = results_file.resolve()
    for name_part in reversed(resolved_file.parts):
        cached = _CACHED_MODEL.fullmatch(name_part)
        if cached is not None:
            return f"{cached['owner']}/{cached['name']}"
    folder = resolved_file.parent
    if folder.name == FOLDER:
        folder = folder.parent
    return folder.name.replace("__", "/")


def _read_entry(entry: JsonObject, model: str) -> _HubEntry:
    dataset = entry.get_object("dataset")
    task = dataset.find_text("task_id") or dataset.find_text("id")
    if not task:
        raise DataError("the entry names no dataset", where=entry.source)
    own_notes = _OWN_NOTES.fullmatch(entry.find_text("notes") or "")
    protocol: str = DIRECT
    metric = metric_of_task(task, None, None)
    stderr = None
    if own_notes is not None:
        protocol = _parse_protocol(own_notes["protocol"])
        metric = metric_of_task(task, own_notes["metric"], None)
        stderr = float(own_notes["stderr"]) if own_notes["stderr"] else None
    score = make_entry(
        entry.source,
        model,
        task,
        entry.get_value("value"),
        stderr=stderr,
        protocol=protocol,
        facts=ScoreFacts(metric=metric),
    )
    return _HubEntry(
        score=score,
        is_verified=bool(entry.get_value("verifyToken")),
        date=str(entry.get_value("date") or ""),
    )


def _parse_protocol(text: str) -> Protocol:
    """Return the protocol that Potentia's notes name; older notes have its label, such as ``5-shot``."""
    labelled = _parse_label(text)
    return Protocol(text) if labelled.kind == "other" else labelled


def _parse_label(label: str) -> Protocol:
    """Return the protocol that a label means."""
    intermediate = _STEP_LABEL.fullmatch(label)
    if intermediate is not None:
        step = int(intermediate["step"].replace(",", ""))
        return _parse_label(intermediate["base"]).at_step(step)
    shots = _SHOTS_LABEL.fullmatch(label)
    if shots is not None:
        return Protocol.few_shot(int(shots["shots"]))
    return Protocol(label.replace("-", "_"))


def _choose_entries(entries: Sequence[_HubEntry], notes: list[str]) -> list[ScoreEntry]:
    """Return one entry of each protocol and task: a verified one, else the latest."""
    chosen: dict[tuple[str, str, str], _HubEntry] = {}
    for entry in entries:
        cell = (entry.score.protocol, entry.score.model, entry.score.task)
        earlier = chosen.get(cell)
        if earlier is None or _precedence(entry) > _precedence(earlier):
            chosen[cell] = entry
    left_out = len(entries) - len(chosen)
    if left_out:
        model = entries[0].score.model
        notes.append(
            f"{model}: {left_out} results of the Hub are left out, of tasks that have a verified or a later one"
        )
    return [entry.score for entry in chosen.values()]


def _precedence(entry: _HubEntry) -> tuple[bool, str]:
    return entry.is_verified, entry.date


def scale_hub_entries(entries: Sequence[ScoreEntry], notes: list[str]) -> list[ScoreEntry]:
    """Give the scores of each task one scale, where none is known of their metric: per cent if any value is above 1.

    A share among percentages cannot be told from a small percentage: it is left out, and a note says so.
    """
    in_percent = {entry.task for entry in entries if entry.value > 1}
    scaled = []
    for entry in entries:
        if entry.metric.scale is not None:
            scaled.append(entry)
            continue
        is_percent = entry.task in in_percent
        if is_percent and 0 < entry.value <= 1:
            notes.append(
                f"{entry.model}, {entry.task}: {entry.value:g} is left out, among scores in per cent it may be a share"
            )
            continue
        metric = replace(entry.metric, scale="percent" if is_percent else "share")
        scaled.append(replace(entry, facts=replace(entry.facts, metric=metric)))
    return scaled
