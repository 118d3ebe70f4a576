"""The authors' evaluation tree: lm-eval's result files, by stage and auxiliary data.

The tree is the folder ``notebooks/evaluations`` of a clone of their repository; the clone itself, or any part of the
tree, can be given as well:

- ``base/MODEL-TASK.json``: models before tuning;
- ``e1/mmluaux/MODEL-TASK.json`` and so on: after one, two or three epochs on auxiliary data (``e1``, ``e2``, ``e3``),
  and after one epoch as treatment and two more as adjustment (``e1+2``);
- ``intermediate/mmluaux/evals/MODEL/step_N/TASK.json``: at steps on the way;
- ``new_evals/base/MODEL-TASK.json`` and so on: the leaderboard's second version.

Files in a folder of another name count as ``base``, unless their weights were tuned; a remark says so.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from potentia.analysis.left_out import join_first_names
from potentia.analysis.wording import join_names
from potentia.errors import DataError
from potentia.papers.task_training.published_scores import (
    LEARNING_RATE,
    PublishedScores,
    ScoreKey,
    normalize_model_name,
)

PRETRAINED = re.compile(r"\bpretrained=([^,]*)")
STEP_FOLDER = re.compile(r"step_(\d+)")
FOLDERS_OF_A_CLONE = ("notebooks/evaluations", "evaluations")
STAGE_FOLDERS = ("base", "e1", "e2", "e3", "e1+2", "intermediate", "new_evals")
UNTUNED_STAGE = "base"
LEADERBOARD_PREFIX = "leaderboard_"
STAGE_WITH_STAGES = "new_evals"  # it has a folder ``base`` of its own
AUXILIARY_FOLDERS = ("mmluaux", "gsm8kaux")  # by the data that the models were tuned on
FOLDERS_INSIDE_A_STAGE = (*AUXILIARY_FOLDERS, "evals")
NAME_STAGES_HINT = (
    "call the folder base where no model was tuned, else as in the repository: e1/mmluaux, e3/mmluaux, "
    "e1+2/gsm8kaux, new_evals/base …"
)
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
class ResultFile:
    """What one file of the tree says: whose scores, at which stage, and where the weights lay."""

    location: FileLocation
    weights_path: str  # of the authors' machine, as lm-eval noted it
    score_by_metric: Mapping[str, float]


@dataclass(frozen=True)
class EvaluationTree:
    """All scores of the tree, and the files that gave none."""

    folder: str
    scores: PublishedScores
    files: int
    skipped: tuple[SkippedFile, ...] = ()
    remark: str = ""  # what was assumed of files in no folder of a stage

    @classmethod
    def read(cls, folder: Path) -> EvaluationTree:
        """Read every result file below a folder: the tree, a part of it, or a clone of the repository."""
        if not folder.is_dir():
            raise DataError(
                "there is no such folder",
                where=str(folder),
                hint="give the clone of the repository, or its folder notebooks/evaluations",
            )
        folder_to_read = _find_folder_to_read(folder)
        top_folder = _find_top(folder_to_read)
        result_files = []
        skipped = []
        paths = sorted(folder_to_read.rglob("*.json"))
        for path in paths:
            relative_path = path.relative_to(top_folder)
            try:
                result_file = _read_result_file(path, relative_path)
            except _UnusableFileError as error:
                skipped.append(SkippedFile(relative_path.as_posix(), str(error)))
                continue
            skipped += _list_nan_metrics(relative_path, result_file.score_by_metric)
            result_files.append(result_file)
        result_files, remark = _name_stages(result_files, top_folder)
        scores = _collect_scores(result_files)
        if not scores:
            first_reason = f" ({skipped[0].path}: {skipped[0].reason})" if skipped else ""
            raise DataError(
                f"no lm-eval results{first_reason}",
                where=str(folder),
                hint="files are called MODEL-TASK.json, or MODEL/step_N/TASK.json",
            )
        return cls(
            str(folder), PublishedScores(str(folder), scores), len(paths), tuple(skipped), remark
        )


def _collect_scores(result_files: Sequence[ResultFile]) -> dict[ScoreKey, dict[str, float]]:
    """Return model → score for every stage, task and metric; NaN is no score."""
    scores: dict[ScoreKey, dict[str, float]] = {}
    for result_file in result_files:
        location = result_file.location
        for metric, value in result_file.score_by_metric.items():
            if math.isfinite(value):
                score_key = ScoreKey(
                    stage=location.stage, task=location.task, metric=metric, step=location.step
                )
                scores.setdefault(score_key, {})[location.model] = value
    return scores


# --- stages ----------------------------------------------------------------------------------------------------------


def _name_stages(
    result_files: Sequence[ResultFile], top_folder: Path
) -> tuple[list[ResultFile], str]:
    """Count files in no folder of a stage as ``base``, and say so; fail where they cannot be of that stage."""
    named = [result_file for result_file in result_files if _has_known_stage(result_file.location)]
    if named or not result_files:
        return list(result_files), ""
    stages = {result_file.location.stage for result_file in result_files}
    is_tuned = top_folder.name in FOLDERS_INSIDE_A_STAGE or any(map(_is_tuned, result_files))
    if stages != {""} or is_tuned:
        folder_names = sorted(stage or top_folder.name for stage in stages)
        raise DataError(
            "no folder says at which stage these models were scored: "
            f"{join_first_names(folder_names)}",
            where=str(top_folder),
            hint=NAME_STAGES_HINT,
        )
    assumed = [_assume_untuned(result_file) for result_file in result_files]
    assumed_stages = sorted({result_file.location.stage for result_file in assumed})
    stage_names = join_names(assumed_stages)
    remark = (
        f"The files of {top_folder.name}, which is not called {stage_names}, count as {stage_names}"
    )
    return assumed, remark


def _has_known_stage(location: FileLocation) -> bool:
    """Whether a file lies in a folder of the authors' tree, or of a sweep of learning rates."""
    is_sweep = LEARNING_RATE.search(location.stage) is not None
    return location.stage.split("/")[0] in STAGE_FOLDERS or is_sweep


def _is_tuned(result_file: ResultFile) -> bool:
    """Whether the weights lay in a folder of models that were tuned on auxiliary data."""
    folder_names = result_file.weights_path.split("/")
    return any(auxiliary in folder_names for auxiliary in AUXILIARY_FOLDERS)


def _assume_untuned(result_file: ResultFile) -> ResultFile:
    """Return a file as one of ``base``: the leaderboard's tasks have a folder of that name of their own."""
    stage = UNTUNED_STAGE
    if result_file.location.task.startswith(LEADERBOARD_PREFIX):
        stage = f"{STAGE_WITH_STAGES}/{UNTUNED_STAGE}"
    return replace(result_file, location=replace(result_file.location, stage=stage))


# --- one file --------------------------------------------------------------------------------------------------------


class _UnusableFileError(Exception):
    """A file that gives no score; the message says why."""


def _list_nan_metrics(relative_path: Path, values: Mapping[str, float]) -> list[SkippedFile]:
    """Name the metrics of a file that are no numbers; its other metrics count."""
    nan_metrics = [metric for metric, value in values.items() if not math.isfinite(value)]
    if not nan_metrics:
        return []
    reason = f"its {' and '.join(nan_metrics)} is not a number (NaN)"
    return [SkippedFile(relative_path.as_posix(), reason)]


def _find_folder_to_read(folder: Path) -> Path:
    """Return the folder of the evaluations: inside a clone, or inside the one folder of an archive."""
    for inner in FOLDERS_OF_A_CLONE:
        if (folder / inner).is_dir():
            return folder / inner
    while not any(folder.glob("*.json")):
        subfolders = [inner_path for inner_path in folder.iterdir() if inner_path.is_dir()]
        if len(subfolders) != 1 or subfolders[0].name in STAGE_FOLDERS:
            break
        folder = subfolders[0]
    return folder


def _find_top(folder: Path) -> Path:
    """Return the folder that holds the stages: above the folder to read, where that is a stage or a part of one."""
    if any((folder / stage).is_dir() for stage in STAGE_FOLDERS if stage != "base"):
        return folder
    top_folder = folder
    for candidate in (folder, *folder.parents):
        if candidate.name in STAGE_FOLDERS:
            top_folder = candidate.parent
            if top_folder.name != STAGE_WITH_STAGES:
                break
        elif candidate.name not in FOLDERS_INSIDE_A_STAGE:
            break
    return top_folder


def _read_result_file(path: Path, relative_path: Path) -> ResultFile:
    """Return where a file belongs and its scores by metric."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise _UnusableFileError(f"it cannot be read as JSON ({type(error).__name__})") from error
    results = content.get("results") if isinstance(content, dict) else None
    if not isinstance(results, dict) or not results:
        raise _UnusableFileError("it holds no results of lm-eval")
    location = _locate(relative_path, results)
    score_by_metric = {}
    for metric, metric_keys in METRIC_KEYS.items():
        value = _read_score(results, location.task, metric_keys)
        if value is not None:
            score_by_metric[metric] = value
    if not score_by_metric:
        raise _UnusableFileError("it has no score by accuracy, Brier score or exact match")
    return ResultFile(location, _read_weights_path(content), score_by_metric)


def _read_weights_path(content: Mapping[str, Any]) -> str:
    """Return the path that lm-eval loaded; empty where the file does not say."""
    config = content.get("config")
    model_args = config.get("model_args") if isinstance(config, dict) else None
    if isinstance(model_args, dict):
        return str(model_args.get("pretrained", ""))
    weights_match = PRETRAINED.search(str(model_args))
    return weights_match[1] if weights_match else ""


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


def _read_score(
    results: Mapping[str, Any], task: str, metric_keys: tuple[str, ...]
) -> float | None:
    """Return the score of a task by the first of the keys that its results have.

    MMLU is the mean over all 62 entries of its file, the 57 subjects and the five groups, as the authors' notebook
    computes it (``utils.get_brier_metrics``); lm-eval's own number is the mean over questions.
    """
    metric_key = next(
        (metric_key for metric_key in metric_keys if metric_key in results[task]), None
    )
    if metric_key is None:
        return None
    entries = [results[task]]
    if task in AVERAGED_TASKS:
        entries = [entry for entry in results.values() if metric_key in entry]
    try:
        return float(np.mean([float(entry[metric_key]) for entry in entries]))
    except (TypeError, ValueError) as error:
        raise _UnusableFileError(f"{metric_key} in it is not a number") from error
