"""``load``: from a name, a file or a folder to a ``Task``.

A name stands for a task of lm-eval's or for one that Potentia defines itself (*shipped*); a YAML file is a task
definition; any other file or folder holds a user's own data, for which ``user_tasks`` makes the definition. A *prompt
form* may follow the name (``arc_easy:choice``) and rewrites the definition. The data are read, the definition becomes
one ``Subtask`` or several, and the ``Task`` divides them into splits.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from potentia.errors import TaskError
from potentia.facts import find_benchmark_facts
from potentia.study import Caps
from potentia.tasks import forms
from potentia.tasks.clusters import group_rows, normalise_words
from potentia.tasks.data import SUFFIXES, UNTRUSTED, UserData, load_splits
from potentia.tasks.definitions import (
    TaskDefinitions,
    find_entry,
    read_stock_task,
    read_user_task,
    shipped_tasks,
    task_index,
)
from potentia.tasks.forms.open_answers import add_domain
from potentia.tasks.splits import Division, RowNumbers, Split
from potentia.tasks.subtask import Subtask
from potentia.tasks.task import Task
from potentia.tasks.user_tasks import UserTask, read_user_data
from potentia.values.clusters import label_cluster
from potentia.values.protocol import BLIND, TaskName
from potentia.values.splits import SplitOriginKind

if TYPE_CHECKING:
    from datasets import Dataset

GroupMean = Literal["items", "subtasks"]
"""How a group's score is taken: every example counts the same, or every subtask."""

_BLIND_FORM = re.compile(r"(?:(?P<other>.+):)?(?P<blind>blind(?::(?:removed|swapped))?)")
LENGTH_KEYS = ("max_gen_toks", "max_new_tokens", "max_tokens")  # three names of one setting


def load(
    name: str,
    *,
    data_dir: Path | None = None,
    caps: Caps | None = None,
    seed: int = 0,
    carve: float = 0.2,
    drop_overlap: bool | None = None,
    user_data: UserData | None = None,
    division: Division | None = None,
    hold_out: int | None = None,
    group_mean: GroupMean | None = None,
    answer_tokens: int | None = None,
    drop_bad_rows: bool = False,
    cluster_column: str | None = None,
    blind: bool = False,
    category: str | None = None,
) -> Task:
    """Load a task.

    - ``name``: a task or group of lm-eval's (``arc_easy``, ``mmlu``), a user's file, folder of split files or corpus,
      or a task definition (``my_task.yaml``); a prompt form may follow (``arc_easy:choice``).
    - ``data_dir``: a folder of datasets as ``<dataset_path with / as -->/<config>/<split>.parquet``. What is not there
      comes from the hub.
    - ``caps``, ``seed``, ``carve``, ``division``, ``hold_out``: how the documents are divided; see ``plan_splits``. A
      number for ``hold_out`` marks auxiliary data, which is all trained on except for so many documents.
    - ``drop_overlap``: True drops training documents that overlap the test. None, the default, does so only for a
      user's own data: documents that another split repeats are dropped from training and validation.
    - ``user_data``: says more of a user's own data than a path can.
    - ``group_mean``: how a group's score is taken, in place of the group's own rule.
    - ``answer_tokens``: how long a written answer may be.
    - ``drop_bad_rows``: whether rows that cannot be used are left out; otherwise they are an error.
    - ``cluster_column``: the column whose value is the same for examples about one passage.
    - ``blind``: removes the questions, as ``name:blind`` does.
    - ``category``: the field of knowledge that the form ``instruct`` names.
    """
    request = _TaskRequest(
        name=name,
        data_dir=data_dir,
        user_data=repr(user_data),
        answer_tokens=answer_tokens,
        drop_bad_rows=drop_bad_rows,
        cluster_column=cluster_column,
        blind=blind,
        category=category,
    )
    contents = _read_contents_once(request, user_data)
    weighted_by_size = contents.weighted_by_size
    if group_mean is not None:
        metrics = [metric.split("|")[0] for metric in contents.subtasks[0].metric_names]
        metrics += ["acc", "acc_norm", "brier_score"]
        weighted_by_size = dict.fromkeys(metrics, group_mean == "items")
    # With drop_overlap: false the same text may be in several splits, so that only passages make groups.
    groups = contents.passage_groups if drop_overlap is False else contents.text_groups
    task = Task(
        contents.task_name,
        contents.subtasks,
        metric=contents.metric,
        weighted_by_size=weighted_by_size,
        caps=caps,
        seed=seed,
        carve=carve,
        division=division,
        hold_out=hold_out,
        groups=groups,
    )
    if contents.user_task is not None:
        is_auxiliary = hold_out is not None
        _add_user_notes(task, contents.user_task, None if is_auxiliary else groups)
        if drop_overlap is None and not is_auxiliary:
            _drop_duplicates(task)
    if drop_overlap:
        from potentia.tasks.checks import measure_overlap

        dropped = task.drop_documents(measure_overlap(task).train_ids)
        if dropped:
            task.notes.append(f"{dropped} training examples overlap the test and are dropped.")
    clusters = task.describe_clusters()
    if clusters is not None:
        task.notes.append(clusters)
    return task


def _add_user_notes(task: Task, user_task: UserTask, groups: RowNumbers | None) -> None:
    """Note on a task of a user's own data what was inferred of the data and how they are divided."""
    task.user_task = user_task
    task.notes += user_task.notes
    if user_task.metric_note and task.metric == user_task.definition["main_metric"]:
        task.notes.append(user_task.metric_note)
    # groups play a part only where Potentia itself divides the data
    has_public_validation = task.split_plan.validation.origin_kinds == {SplitOriginKind.PUBLIC}
    if groups is not None and not has_public_validation:
        task.notes.append(_describe_groups(groups))


@dataclass(frozen=True)
class _TaskRequest:
    """The arguments of ``load`` that decide the data and definitions of a task, without how they are divided."""

    name: str
    data_dir: Path | None
    user_data: str  # as text: a UserData need not be hashable
    answer_tokens: int | None
    drop_bad_rows: bool
    cluster_column: str | None
    blind: bool
    category: str | None


@dataclass(frozen=True)
class _TaskContents:
    """A task before it is divided into splits: its subtasks with their data, and what is known of its scores."""

    subtasks: list[Subtask]
    weighted_by_size: Mapping[str, bool]  # by metric: whether large subtasks of a group count more
    task_name: str
    metric: str | None  # the main metric, as far as known
    user_task: UserTask | None
    # Of a user's training file, the group of each row: rows that share a passage, or share a passage or their text.
    passage_groups: RowNumbers | None = None
    text_groups: RowNumbers | None = None


_contents_by_request: dict[_TaskRequest, _TaskContents] | None = None  # None: nothing is kept


@contextmanager
def reading_data_once() -> Iterator[None]:
    """While the context is open, read the data of a task once, however often it is loaded with other caps."""
    global _contents_by_request
    outer_contents = _contents_by_request
    _contents_by_request = {}
    try:
        yield
    finally:
        _contents_by_request = outer_contents


def _read_contents_once(request: _TaskRequest, user_data: UserData | None) -> _TaskContents:
    """Read what a task is made of; within ``reading_data_once`` the second request gets what the first read."""
    if _contents_by_request is None:
        return _read_contents(request, user_data)
    if request not in _contents_by_request:
        _contents_by_request[request] = _read_contents(request, user_data)
    return _contents_by_request[request]


def _read_contents(request: _TaskRequest, user_data: UserData | None) -> _TaskContents:
    """Read what a task is made of: its definitions with their data, in the requested prompt form."""
    task_name = TaskName(request.name)
    definition_file = None
    if user_data is None:
        definition_file = _find_user_path(task_name.base) or _find_shipped_path(task_name.base)
    if definition_file is not None and definition_file.suffix not in (".yaml", ".yml"):
        user_data = UserData(
            files=(str(definition_file),),
            drop_bad_rows=request.drop_bad_rows,
            cluster_column=request.cluster_column,
        )
    user_task: UserTask | None = None
    weighted_by_size: Mapping[str, bool] = {}
    metric = None
    if user_data is not None:
        user_task = read_user_data(user_data, request.data_dir)
        base_name = str(user_task.definition["task"])
        # a template of the user's may come from anyone: it is rendered within limits
        definition = {**user_task.definition, UNTRUSTED: bool(user_data.prompt)}
        sources = [(definition, user_task.datasets_by_split)]
    else:
        if definition_file is not None:
            definitions = read_user_task(definition_file)
        else:
            definitions = _read_stock_task(task_name.base)
            facts = find_benchmark_facts(task_name.base)
            metric = facts.metric if facts else None
        base_name = definitions.name
        weighted_by_size = definitions.weighted_by_size
        sources = []
        for definition in definitions.subtasks:
            if request.cluster_column is not None:
                definition = {**definition, "cluster_column": request.cluster_column}
            sources.append((definition, load_splits(definition, request.data_dir)))
    prompt_form = task_name.form
    if request.blind:
        prompt_form = f"{prompt_form}:{BLIND}" if prompt_form else BLIND
    # the task's name leaves out the category, which its definition's form has
    form_with_domain = prompt_form
    if request.category:
        form_with_domain = add_domain(prompt_form, request.category)
    subtasks = []
    for definition, datasets_by_split in sources:
        subtasks.append(
            _make_subtask(definition, datasets_by_split, form_with_domain, request.answer_tokens)
        )
    contents = _TaskContents(
        subtasks=subtasks,
        weighted_by_size=weighted_by_size,
        task_name=f"{base_name}:{prompt_form}" if prompt_form else base_name,
        metric=metric or next(iter(weighted_by_size), None),
        user_task=user_task,
    )
    if user_task is None:
        return contents
    # grouped by the task's own prompts: its splits are the same in every prompt form
    plain_subtask = Subtask(*sources[0])
    return replace(
        contents,
        passage_groups=_group_user_rows(plain_subtask, by_text=False),
        text_groups=_group_user_rows(plain_subtask, by_text=True),
    )


def _group_user_rows(subtask: Subtask, *, by_text: bool) -> RowNumbers | None:
    """Return the group of each row of a user's training file; None if no two rows belong together.

    Rows belong together that share their passage or, if ``by_text``, their text.
    """
    documents = subtask.take_rows("train", range(len(subtask.public_documents("train"))))
    column = subtask.stated_cluster_column
    labels_by_row = []
    for document in documents:
        labels = []
        passage = "" if column is None else label_cluster(document.get(column))
        if passage:
            labels.append(f"passage: {passage}")
        text = _normalise_document(subtask, document) if by_text else ""
        if text:
            labels.append(f"text: {text}")
        labels_by_row.append(labels)
    return group_rows(labels_by_row)


def _normalise_document(subtask: Subtask, document: Mapping[str, object]) -> str:
    """Return what a document asks, without case and punctuation: documents with equal texts are duplicates."""
    return normalise_words("\n".join(subtask.identifying_texts(document)))


def _describe_groups(groups: RowNumbers) -> str:
    """Say how many rows of a file have to stay in one split with others."""
    _, group_sizes = np.unique(groups, return_counts=True)
    rows = int(group_sizes[group_sizes > 1].sum())
    return f"{rows} rows share their passage or text with another: such rows stay in one split."


def _read_stock_task(task_name: str) -> TaskDefinitions:
    """Return the definitions of a task of lm-eval's; the error for an unknown name suggests similar ones."""
    if find_entry(task_name) is None:
        known_names = (*task_index(), *shipped_tasks())
        similar_names = difflib.get_close_matches(task_name, known_names, n=3, cutoff=0.6)
        hint = "potentia tasks --all lists every name"
        if similar_names:
            hint = f"did you mean {', '.join(similar_names)}?"
        raise TaskError(f"no task {task_name!r} in lm-eval, and no such file", hint=hint)
    definitions = read_stock_task(task_name)
    if not definitions.subtasks:
        raise TaskError(f"the group {task_name} has no tasks")
    return definitions


def _drop_duplicates(task: Task) -> None:
    """Drop training documents that validation or test repeat, and validation documents that the test repeats.

    The same question with the same choices counts as the same, without case and punctuation.
    """
    seen_keys: set[str] = set()
    dropped: dict[Split, int] = {}
    for split in ("test", "validation", "train"):
        documents = task.documents(split)
        text_keys = ["\n".join(texts) for texts in task.identifying_texts(documents)]
        text_keys = [normalise_words(key) for key in text_keys]
        if split != "test":
            pairs = zip(documents, text_keys, strict=True)
            repeated = frozenset(document.id for document, key in pairs if key in seen_keys)
            dropped[split] = task.drop_documents(repeated, split)
        seen_keys |= set(text_keys) - {""}
    repeats: dict[Split, str] = {
        "train": "validation and test repeat every training",
        "validation": "the test repeats every validation",
    }
    for split, words in repeats.items():
        if dropped[split] and not task.documents(split):
            raise TaskError(f"{words} example", hint="drop_overlap: false keeps them")
    counts = [f"{dropped[split]} of {split}" for split in repeats if dropped[split]]
    if counts:
        task.notes.append(
            f"Duplicates across splits are dropped: {' and '.join(counts)} (drop_overlap: false keeps them)."
        )


def _make_subtask(
    definition: Mapping[str, object],
    datasets_by_split: Mapping[str, Dataset],
    prompt_form: str,
    answer_tokens: int | None,
) -> Subtask:
    """Return a subtask in a prompt form; ``answer_tokens`` bounds written answers in place of the task's own bound."""
    subtask = Subtask(definition, datasets_by_split)
    for form_step in split_form(prompt_form):
        rewritten = forms.rewrite_definition(form_step, subtask.harness_task, subtask.definition)
        subtask = Subtask(rewritten, datasets_by_split)
    if answer_tokens is None or subtask.kind != "generation":
        return subtask
    settings = dict(subtask.definition.get("generation_kwargs") or {})
    for setting in LENGTH_KEYS:
        settings.pop(setting, None)
    settings["max_gen_toks"] = answer_tokens
    return Subtask({**subtask.definition, "generation_kwargs": settings}, datasets_by_split)


def split_form(prompt_form: str) -> list[str]:
    """Return the forms to apply one after the other: ``choice:blind`` is the form choice, then the form blind."""
    match = _BLIND_FORM.fullmatch(prompt_form)
    if match is None:
        return [prompt_form] if prompt_form else []
    steps = [match["other"]] if match["other"] else []
    return [*steps, match["blind"]]


def _find_shipped_path(task_name: str) -> Path | None:
    """Return the file of a task that Potentia defines itself; None if lm-eval has a task of that name."""
    shipped_file = shipped_tasks().get(task_name)
    return shipped_file if shipped_file is not None and find_entry(task_name) is None else None


def _find_user_path(task_name: str) -> Path | None:
    """Return the path that a name means: it looks like a path, or it exists and lm-eval has no task of that name."""
    user_file = Path(task_name).expanduser()
    has_file_suffix = user_file.suffix in (*SUFFIXES, ".txt", ".yaml", ".yml")
    looks_like_path = "/" in task_name or "\\" in task_name or has_file_suffix
    if looks_like_path and not user_file.exists():
        raise TaskError(
            f"there is no file or folder {task_name}",
            hint="check the path, or name a task of lm-eval",
        )
    if looks_like_path:
        return user_file
    return user_file if user_file.exists() and find_entry(task_name) is None else None
