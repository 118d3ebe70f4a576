"""``load``: a benchmark by name, by file or by folder."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from potentia.errors import TaskError
from potentia.facts import benchmark
from potentia.study import Caps
from potentia.tasks import forms
from potentia.tasks.contamination import overlap
from potentia.tasks.data import load_splits
from potentia.tasks.definitions import read_definition
from potentia.tasks.harness import group_from_config, leaf_configs
from potentia.tasks.index import index
from potentia.tasks.leaf import Leaf
from potentia.tasks.splits import Division
from potentia.tasks.task import Task
from potentia.tasks.userfiles import OwnData, read

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
    drop_overlap: bool = False,
    own: OwnData | None = None,
    division: Division | None = None,
    hold_out: int | None = None,
    mean: Mean | None = None,
    answer_tokens: int | None = None,
) -> Task:
    """Load a benchmark.

    ``name`` is a task or group of the harness (``arc_easy``, ``mmlu``), the same in another prompt form
    (``arc_easy:choice``), a user's file or folder of split files, a corpus, or a harness task file (``my_task.yaml``).
    ``data_dir`` holds datasets as ``<dataset_path with / as -->/<config>/<split>.parquet``; what is not there comes
    from the hub. ``drop_overlap`` drops the training documents that the test split repeats. ``own`` says more of a
    user's data than a path does, and ``division`` how data in one split is divided. With
    ``hold_out`` the data are auxiliary: not divided, but all trained on, except so many. ``mean`` says how a group's
    score is taken, ``answer_tokens`` how long a written answer may be.
    """
    base, _, form = name.partition(":")
    path = None if own is not None else _own_path(base)
    leaves: list[Leaf]
    weights: Mapping[str, bool] = {}
    if path is not None and path.suffix in {".yaml", ".yml"}:
        config = read_definition(path)
        configs, weights = group_from_config(config) if "group" in config else ([config], {})
        leaves = [_leaf(c, data_dir, form, answer_tokens) for c in configs]
        label = str(config.get("group") or config.get("task") or path.stem)
    elif own is not None or path is not None:
        config, data = read(own or OwnData(files=(str(path),)), data_dir)
        leaves = [_formed(config, data, form, answer_tokens)]
        label = str(config["task"])
    else:
        if base not in index():
            raise _unknown(base)
        configs, weights = leaf_configs(base)
        if not configs:
            raise TaskError(f"the group {base} has no tasks")
        leaves = [_leaf(c, data_dir, form, answer_tokens) for c in configs]
        label = base
    facts = benchmark(base) if own is None and path is None else None
    first = next(iter(weights), None)
    if mean is not None:
        weights = dict.fromkeys((*leaves[0].plain_metrics, "acc", "acc_norm", "brier_score"), mean == "items")
    task = Task(
        f"{label}:{form}" if form else label,
        leaves,
        metric=facts.metric if facts else first,
        weights=weights,
        caps=caps,
        seed=seed,
        carve=carve,
        division=division,
        hold_out=hold_out,
    )
    if drop_overlap:
        task.without(overlap(task).train_ids)
    return task


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
