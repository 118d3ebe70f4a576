"""``load``: a benchmark by name, by file or by folder."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from potentia.errors import TaskError
from potentia.facts import benchmark
from potentia.study import Caps
from potentia.tasks import forms
from potentia.tasks.contamination import duplicates, overlap
from potentia.tasks.data import load_splits
from potentia.tasks.definitions import LIMITED
from potentia.tasks.harness import leaf_configs, user_leaves
from potentia.tasks.index import index
from potentia.tasks.leaf import Leaf
from potentia.tasks.splits import Division, Split
from potentia.tasks.task import Task
from potentia.tasks.userfiles import OwnData, OwnTask, read
from potentia.values.protocol import TaskName

if TYPE_CHECKING:
    from datasets import Dataset

Mean = Literal["items", "subtasks"]
LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens")  # names of one setting


def load(
    name: str,
    *,
    data_dir: Path | None = None,
    caps: Caps | None = None,
    seed: int = 0,
    carve: float = 0.2,
    drop_overlap: bool | None = None,
    own: OwnData | None = None,
    division: Division | None = None,
    hold_out: int | None = None,
    mean: Mean | None = None,
    answer_tokens: int | None = None,
    drop_bad_rows: bool = False,
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
    used are left out rather than told.
    """
    asked = (name, data_dir, repr(own), answer_tokens, drop_bad_rows)
    found = None if _remembered is None else _remembered.get(asked)
    if found is None:
        found = _read(name, data_dir, own, answer_tokens, drop_bad_rows)
        if _remembered is not None:
            _remembered[asked] = found
    leaves, weights, label, metric, mine = found
    form = TaskName(name).form
    if mean is not None:
        weights = dict.fromkeys((*leaves[0].plain_metrics, "acc", "acc_norm", "brier_score"), mean == "items")
    task = Task(
        f"{label}:{form}" if form else label,
        leaves,
        metric=metric,
        weights=weights,
        caps=caps,
        seed=seed,
        carve=carve,
        division=division,
        hold_out=hold_out,
    )
    if mine is not None:
        task.own = mine
        task.notes += mine.notes
        if drop_overlap is None and hold_out is None:
            _drop_duplicates(task)
    if drop_overlap:
        dropped = task.without(overlap(task).train_ids)
        task.notes += [f"{dropped} training documents overlap the test and are dropped."] if dropped else []
    return task


Found = tuple[list[Leaf], Mapping[str, bool], str, str | None, OwnTask | None]
_remembered: dict[Any, Found] | None = None


@contextmanager
def reading_once() -> Iterator[None]:
    """Read the data of a task once meanwhile, however often it is loaded with other caps."""
    global _remembered
    before, _remembered = _remembered, {}
    try:
        yield
    finally:
        _remembered = before


def _read(
    name: str, data_dir: Path | None, own: OwnData | None, answer_tokens: int | None, drop_bad_rows: bool
) -> Found:
    """Read what a name means: its definitions with their data, weights in a group, label, metric, own data."""
    base, form = TaskName(name).base, TaskName(name).form
    path = None if own is not None else _own_path(base)
    leaves: list[Leaf]
    mine: OwnTask | None = None
    weights: Mapping[str, bool] = {}
    if path is not None and path.suffix in {".yaml", ".yml"}:
        label, configs, weights = user_leaves(path)
        leaves = [_leaf(c, data_dir, form, answer_tokens) for c in configs]
    elif own is not None or path is not None:
        mine = read(own or OwnData(files=(str(path),), drop_bad_rows=drop_bad_rows), data_dir)
        leaves = [_formed({**mine.config, LIMITED: bool(own and own.prompt)}, mine.data, form, answer_tokens)]
        label = str(mine.config["task"])
    else:
        if base not in index():
            raise _unknown(base)
        configs, weights = leaf_configs(base)
        if not configs:
            raise TaskError(f"the group {base} has no tasks")
        leaves = [_leaf(c, data_dir, form, answer_tokens) for c in configs]
        label = base
    facts = benchmark(base) if own is None and path is None else None
    return leaves, weights, label, facts.metric if facts else next(iter(weights), None), mine


def _drop_duplicates(task: Task) -> None:
    wholly: dict[Split, str] = {
        "train": "validation and test repeat every training document",
        "validation": "the test repeats every validation document",
    }
    dropped = {split: task.without(ids, split) for split, ids in duplicates(task).items()}
    if not any(dropped.values()):
        return
    for split, what in wholly.items():
        if dropped[split] and not task.documents(split):
            raise TaskError(what, hint="drop_overlap: false keeps them")
    told = " and ".join(f"{n} of {split}" for split, n in dropped.items() if n)
    task.notes.append(f"Duplicates across splits are dropped: {told} (drop_overlap: false keeps them).")


def _leaf(config: Mapping[str, Any], data_dir: Path | None, form: str, answer_tokens: int | None) -> Leaf:
    return _formed(config, load_splits(config, data_dir), form, answer_tokens)


def _formed(config: Mapping[str, Any], data: Mapping[str, Dataset], form: str, answer_tokens: int | None) -> Leaf:
    leaf = Leaf(config, data)
    if form:
        leaf = Leaf(forms.rewrite(form, leaf.task, config), data)
    if answer_tokens is None or leaf.kind != "generation":
        return leaf
    asked = {k: v for k, v in (leaf.config.get("generation_kwargs") or {}).items() if k not in LENGTHS}
    return Leaf({**leaf.config, "generation_kwargs": {**asked, "max_gen_toks": answer_tokens}}, data)


def _own_path(name: str) -> Path | None:
    """Return the path that a name means: anything that looks like a path, or exists and is no harness task."""
    path = Path(name).expanduser()
    looks = (
        "/" in name or "\\" in name or path.suffix in {".jsonl", ".json", ".csv", ".parquet", ".txt", ".yaml", ".yml"}
    )
    if looks and not path.exists():
        raise TaskError(f"there is no file or folder {name}", hint="check the path, or name a task of the harness")
    return path if looks or (path.exists() and name not in index()) else None


def _unknown(name: str) -> TaskError:
    near = difflib.get_close_matches(name, index(), n=3, cutoff=0.6)
    hint = f"did you mean {', '.join(near)}?" if near else "potentia tasks --all lists every name"
    return TaskError(f"no task {name!r} in the harness, and no such file", hint=hint)
