"""The authors' evaluation tree: lm-eval's result files, by stage and auxiliary data.

The tree is the folder ``notebooks/evaluations`` of a clone of their repository; the clone itself, or any part of the
tree, can be given as well:

- ``base/MODEL-TASK.json``: models before tuning;
- ``e1/mmluaux/MODEL-TASK.json`` and so on: after one, two or three epochs on auxiliary data (``e1``, ``e2``, ``e3``),
  and after one epoch as treatment and two more as adjustment (``e1+2``);
- ``intermediate/mmluaux/evals/MODEL/step_N/TASK.json``: at steps on the way;
- ``new_evals/base/MODEL-TASK.json`` and so on: the leaderboard's second version.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from potentia.errors import DataError
from potentia.papers.task_training.published_scores import (
    PublishedScores,
    ScoreKey,
    normalize_model_name,
)

STEP_FOLDER = re.compile(r"step_(\d+)")
FOLDERS_OF_A_CLONE = ("notebooks/evaluations", "evaluations")
METRIC_KEYS = {  # our name of a metric: its keys in a result file, the first that is there counts
    "acc": ("acc,none",),
    "acc_norm": ("acc_norm,none",),
    "brier_score": ("brier_score,none",),
    "exact_match": ("exact_match,flexible-extract", "exact_match,none"),
}
AVERAGED_TASKS = ("mmlu", "mmlu_cloze")  # the mean over everything that their files report


@dataclass(frozen=True)
class SkippedFile:
    """A file of the tree that gives no score, and why."""

    path: str
    reason: str


@dataclass(frozen=True)
class FileLocation:
    """What the path of a result file says: the stage, the step on the way (0: none), the model and the task."""

    stage: str
    step: int
    model: str
    task: str


@dataclass(frozen=True)
class EvaluationTree:
    """All scores of the tree, and the files that gave none."""

    folder: str
    scores: PublishedScores
    files: int
    skipped: tuple[SkippedFile, ...] = ()

    @classmethod
    def read(cls, folder: Path) -> EvaluationTree:
        """Read every result file below a folder: the tree, a part of it, or a clone of the repository."""
        if not folder.is_dir():
            raise DataError(
                "there is no such folder",
                where=str(folder),
                hint="give the clone of the repository, or its folder notebooks/evaluations",
            )
        top = _find_top(folder)
        scores: dict[ScoreKey, dict[str, float]] = {}
        skipped = []
        paths = sorted(top.rglob("*.json"))
        for path in paths:
            relative_path = path.relative_to(top)
            try:
                location, values = _read_result_file(path, relative_path)
            except _UnusableFileError as error:
                skipped.append(SkippedFile(relative_path.as_posix(), str(error)))
                continue
            for metric, value in values.items():
                key = ScoreKey(
                    stage=location.stage, task=location.task, metric=metric, step=location.step
                )
                scores.setdefault(key, {})[location.model] = value
        if not scores:
            raise DataError(
                "no lm-eval results",
                where=str(folder),
                hint="files are called MODEL-TASK.json, or MODEL/step_N/TASK.json",
            )
        return cls(str(folder), PublishedScores(str(folder), scores), len(paths), tuple(skipped))


class _UnusableFileError(Exception):
    """A file that gives no score; the message says why."""


def _find_top(folder: Path) -> Path:
    """Return the folder that holds the stages: inside a clone, or inside the one folder of an archive."""
    for inner in FOLDERS_OF_A_CLONE:
        if (folder / inner).is_dir():
            return folder / inner
    while not any(folder.glob("*.json")):
        subfolders = [path for path in folder.iterdir() if path.is_dir()]
        if len(subfolders) != 1 or subfolders[0].name in ("base", "intermediate"):
            break
        folder = subfolders[0]
    return folder


def _read_result_file(path: Path, relative_path: Path) -> tuple[FileLocation, dict[str, float]]:
    """Return where a file belongs and its scores by metric."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise _UnusableFileError(f"it cannot be read as JSON ({type(error).__name__})") from error
    results = content.get("results") if isinstance(content, dict) else None
    if not isinstance(results, dict) or not results:
        raise _UnusableFileError("it holds no results of lm-eval")
    location = _locate(relative_path, results)
    values = {}
    for metric, keys in METRIC_KEYS.items():
        value = _read_score(results, location.task, keys)
        if value is not None:
            values[metric] = value
    if not values:
        raise _UnusableFileError("it has no score by accuracy, Brier score or exact match")
    if not all(map(math.isfinite, values.values())):
        raise _UnusableFileError("a score in it is not a number (NaN)")
    return location, values


def _locate(relative_path: Path, results: Mapping[str, Any]) -> FileLocation:
    """Return what the path of a file says of its scores."""
    folders = relative_path.parts[:-1]
    step_folder = STEP_FOLDER.fullmatch(folders[-1]) if folders else None
    if step_folder is not None and len(folders) > 1:
        task = relative_path.stem
        if task not in results:
            raise _UnusableFileError(f"its results hold no task {task}")
        stage_folders = [folder for folder in folders[:-2] if folder != "evals"]
        return FileLocation(
            stage="/".join(stage_folders),
            step=int(step_folder[1]),
            model=normalize_model_name(folders[-2]),
            task=task,
        )
    tasks = [task for task in results if relative_path.stem.endswith(f"-{task}")]
    if not tasks:
        raise _UnusableFileError("its name does not end with a task of its results")
    task = max(tasks, key=len)
    return FileLocation(
        stage="/".join(folders),
        step=0,
        model=normalize_model_name(relative_path.stem.removesuffix(f"-{task}")),
        task=task,
    )


def _read_score(results: Mapping[str, Any], task: str, keys: tuple[str, ...]) -> float | None:
    """Return the score of a task by the first of the keys that its results have.

    MMLU is the mean over all 62 entries of its file, the 57 subjects and the five groups, as the authors' notebook
    computes it (``utils.get_brier_metrics``); lm-eval's own number is the mean over questions.
    """
    key = next((key for key in keys if key in results[task]), None)
    if key is None:
        return None
    entries = [results[task]]
    if task in AVERAGED_TASKS:
        entries = [entry for entry in results.values() if key in entry]
    try:
        return float(np.mean([float(entry[key]) for entry in entries]))
    except (TypeError, ValueError) as error:
        raise _UnusableFileError(f"{key} in it is not a number") from error
