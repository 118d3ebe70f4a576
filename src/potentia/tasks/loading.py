"""``load``: a benchmark by name, by file or by folder; a user's own data need no task definition (``user_tasks``)."""

from __future__ import annotations

import difflib
import re
import string
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from potentia.errors import TaskError
from potentia.facts import benchmark
from potentia.study import Caps
from potentia.tasks import forms
from potentia.tasks.data import LIMITED, SUFFIXES, UserData, load_splits
from potentia.tasks.definitions import (
    TaskDefinitions,
    find_entry,
    read_stock_task,
    read_user_task,
    task_index,
)
from potentia.tasks.splits import Division, Split
from potentia.tasks.subtask import Subtask
from potentia.tasks.task import Task
from potentia.tasks.user_tasks import UserTask, read_user_data
from potentia.values.protocol import BLIND, TaskName

if TYPE_CHECKING:
    from datasets import Dataset

Mean = Literal["items", "subtasks"]
_PUNCTUATION = str.maketrans(dict.fromkeys(string.punctuation, " "))
_BLIND_FORM = re.compile(r"(?:(?P<other>.+):)?(?P<blind>blind(?::(?:removed|swapped))?)")
LENGTH_KEYS = ("max_gen_toks", "max_new_tokens", "max_tokens")  # names of one setting


def load(
    name: str,
    *,
    data_dir: Path | None = None,
    caps: Caps | None = None,
    seed: int = 0,
    carve: float = 0.2,
    drop_overlap: bool | None = None,
    own: UserData | None = None,
    division: Division | None = None,
    hold_out: int | None = None,
    mean: Mean | None = None,
    answer_tokens: int | None = None,
    drop_bad_rows: bool = False,
    cluster: str | None = None,
    blind: bool = False,
) -> Task:
    """Load a benchmark.

    ``name`` is a task or group of the harness (``arc_easy``, ``mmlu``), the same in another prompt form
    (``arc_easy:choice``), a user's file or folder of split files, a corpus, or a harness task file (``my_task.yaml``).
    ``data_dir`` holds datasets as ``<dataset_path with / as -->/<config>/<split>.parquet``; what is not there comes
    from the hub. A user's own documents that another split repeats are dropped from training (and validation), unless
    ``drop_overlap`` is False; True drops the training documents of any benchmark that overlap the test. ``own`` says
    more of a user's data than a path does, and ``division`` how data in one split is divided. With
    ``hold_out`` the data are auxiliary: not divided, but all trained on, except so many. ``mean`` says how a group's
    score is taken, ``answer_tokens`` how long a written answer may be, ``drop_bad_rows`` whether rows that cannot be
    used are left out rather than told, ``cluster`` the column that examples about one passage share. With ``blind`` the
    questions are removed, as of ``name:blind``.
    """
    request = _TaskRequest(
        name, data_dir, repr(own), answer_tokens, drop_bad_rows, cluster=cluster, blind=blind
    )
    contents = _remembered.get(request) if _remembered is not None else None
    if contents is None:
        contents = _read_contents(request, own)
    if _remembered is not None:
        _remembered[request] = contents
    weighted_by_size = contents.weighted_by_size
    if mean is not None:
        metrics = [metric.split("|")[0] for metric in contents.subtasks[0].metric_names]
        metrics += ["acc", "acc_norm", "brier_score"]
        weighted_by_size = dict.fromkeys(metrics, mean == "items")
    task = Task(
        contents.label,
        contents.subtasks,
        metric=contents.metric,
        weighted_by_size=weighted_by_size,
        caps=caps,
        seed=seed,
        carve=carve,
        division=division,
        hold_out=hold_out,
    )
    if contents.user_task is not None:
        task.user_task = contents.user_task
        task.notes += contents.user_task.notes
        if drop_overlap is None and hold_out is None:
            _drop_duplicates(task)
    if drop_overlap:
        from potentia.tasks.checks import measure_overlap

        dropped = task.drop_documents(measure_overlap(task).train_ids)
        if dropped:
            task.notes.append(f"{dropped} training documents overlap the test and are dropped.")
    clusters = task.describe_clusters()
    if clusters is not None:
        task.notes.append(clusters)
    return task


@dataclass(frozen=True)
class _TaskRequest:
    """What decides the data and definitions of a task, whatever its caps."""

    name: str
    data_dir: Path | None
    user_data: str  # as text: it need not be hashable
    answer_tokens: int | None
    drop_bad_rows: bool
    cluster: str | None
    blind: bool


@dataclass(frozen=True)
class _TaskContents:
    """What a name means: its subtasks with their data, their weights in a group, a label, a metric."""

    subtasks: list[Subtask]
    weighted_by_size: Mapping[str, bool]
    label: str
    metric: str | None
    user_task: UserTask | None


_remembered: dict[_TaskRequest, _TaskContents] | None = None


@contextmanager
def reading_data_once() -> Iterator[None]:
    """Read the data of a task once meanwhile, however often it is loaded with other caps."""
    global _remembered
    before = _remembered
    _remembered = {}
    try:
        yield
    finally:
        _remembered = before


def _read_contents(request: _TaskRequest, user_data: UserData | None) -> _TaskContents:
    """Read what a name means: its definitions with their data."""
    name = TaskName(request.name)
    path = None if user_data is not None else _find_user_path(name.base)
    if path is not None and path.suffix not in (".yaml", ".yml"):
        user_data = UserData(
            files=(str(path),), drop_bad_rows=request.drop_bad_rows, cluster=request.cluster
        )
    user_task: UserTask | None = None
    weighted_by_size: Mapping[str, bool] = {}
    metric = None
    if user_data is not None:
        user_task = read_user_data(user_data, request.data_dir)
        label = str(user_task.config["task"])
        # a user's template is a stranger's: it is rendered within limits
        definition = {**user_task.config, LIMITED: bool(user_data.prompt)}
        sources = [(definition, user_task.data)]
    else:
        if path is not None:
            definitions = read_user_task(path)
        else:
            definitions = _read_stock_task(name.base)
            facts = benchmark(name.base)
            metric = facts.metric if facts else None
        label = definitions.name
        weighted_by_size = definitions.weighted_by_size
        sources = []
        for definition in definitions.subtasks:
            if request.cluster is not None:
                definition = {**definition, "cluster_column": request.cluster}
            sources.append((definition, load_splits(definition, request.data_dir)))
    form = name.form
    if request.blind:
        form = f"{form}:{BLIND}" if form else BLIND
    subtasks = []
    for definition, data in sources:
        subtasks.append(_make_subtask(definition, data, form, request.answer_tokens))
    return _TaskContents(
        subtasks=subtasks,
        weighted_by_size=weighted_by_size,
        label=f"{label}:{form}" if form else label,
        metric=metric or next(iter(weighted_by_size), None),
        user_task=user_task,
    )


def _read_stock_task(name: str) -> TaskDefinitions:
    """Read a task of the harness; one that is none is answered with names that are near."""
    if find_entry(name) is None:
        near = difflib.get_close_matches(name, task_index(), n=3, cutoff=0.6)
        hint = "potentia tasks --all lists every name"
        if near:
            hint = f"did you mean {', '.join(near)}?"
        raise TaskError(f"no task {name!r} in lm-eval, and no such file", hint=hint)
    definitions = read_stock_task(name)
    if not definitions.subtasks:
        raise TaskError(f"the group {name} has no tasks")
    return definitions


def _drop_duplicates(task: Task) -> None:
    """Drop training documents that validation or test repeat, and validation documents that the test repeats.

    The same question with the same choices counts as the same, without case and punctuation.
    """
    seen_keys: set[str] = set()
    dropped: dict[Split, int] = {}
    for split in ("test", "validation", "train"):
        documents = task.documents(split)
        keys = ["\n".join(texts) for texts in task.identifying_texts(documents)]
        keys = [normalise_words(key) for key in keys]
        if split != "test":
            pairs = zip(documents, keys, strict=True)
            repeated = frozenset(document.id for document, key in pairs if key in seen_keys)
            dropped[split] = task.drop_documents(repeated, split)
        seen_keys |= set(keys) - {""}
    repeats: dict[Split, str] = {
        "train": "validation and test repeat every training",
        "validation": "the test repeats every validation",
    }
    for split, words in repeats.items():
        if dropped[split] and not task.documents(split):
            raise TaskError(f"{words} document", hint="drop_overlap: false keeps them")
    counts = [f"{dropped[split]} of {split}" for split in repeats if dropped[split]]
    if counts:
        task.notes.append(
            f"Duplicates across splits are dropped: {' and '.join(counts)} (drop_overlap: false keeps them)."
        )


def normalise_words(text: str) -> str:
    """Return a text without case and punctuation."""
    return " ".join(text.lower().translate(_PUNCTUATION).split())


def _make_subtask(
    definition: Mapping[str, Any],
    data: Mapping[str, Dataset],
    form: str,
    answer_tokens: int | None,
) -> Subtask:
    """Make a subtask in a prompt form, with answers of a bounded length where that is asked for."""
    subtask = Subtask(definition, data)
    for step in split_form(form):
        subtask = Subtask(forms.rewrite_definition(step, subtask.task, subtask.config), data)
    if answer_tokens is None or subtask.kind != "generation":
        return subtask
    settings = dict(subtask.config.get("generation_kwargs") or {})
    for key in LENGTH_KEYS:
        settings.pop(key, None)
    settings["max_gen_toks"] = answer_tokens
    return Subtask({**subtask.config, "generation_kwargs": settings}, data)


def split_form(form: str) -> list[str]:
    """Return the forms to apply one after the other: a blind twin may be that of another form."""
    match = _BLIND_FORM.fullmatch(form)
    if match is None:
        return [form] if form else []
    steps = [match["other"]] if match["other"] else []
    return [*steps, match["blind"]]


def _find_user_path(name: str) -> Path | None:
    """Return the path that a name means: anything that looks like a path, or exists and is no harness task."""
    path = Path(name).expanduser()
    has_file_suffix = path.suffix in (*SUFFIXES, ".txt", ".yaml", ".yml")
    looks_like_path = "/" in name or "\\" in name or has_file_suffix
    if looks_like_path and not path.exists():
        raise TaskError(
            f"there is no file or folder {name}",
            hint="check the path, or name a task of lm-eval",
        )
    if looks_like_path:
        return path
    return path if path.exists() and find_entry(name) is None else None
