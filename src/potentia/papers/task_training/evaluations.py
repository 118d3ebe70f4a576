"""The authors' evaluation tree: lm-eval's result files, by stage and auxiliary data.

``base/MODEL-TASK.json``, ``e1/mmluaux/MODEL-TASK.json`` and so on: models as they are (``base``), after one, two or
three epochs on auxiliary data (``e1``, ``e2``, ``e3``), after one epoch as treatment and two more as adjustment
(``e1+2``), at steps on the way (``intermediate``), and on the leaderboard's second version (``new_evals``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from potentia.errors import DataError

FILTERS = ("flexible-extract", "none")

ResultFile = Mapping[str, Any]  # as lm-eval writes it


@dataclass(frozen=True)
class EvaluationTree:
    """What lies in the tree: stage → task → model → its result file."""

    folder: str
    files: Mapping[str, Mapping[str, Mapping[str, ResultFile]]]
    skipped: tuple[str, ...] = ()  # files that are no results

    @classmethod
    def read(cls, folder: Path) -> EvaluationTree:
        """Read every result file below a folder; a stage is the path to it, as ``e1/mmluaux``."""
        if not folder.is_dir():
            raise DataError(
                "there is no such folder",
                where=str(folder),
                hint="give the folder of the evaluations",
            )
        top = _skip_single_folders(folder)
        files: dict[str, dict[str, dict[str, ResultFile]]] = {}
        skipped = []
        for path in sorted(top.rglob("*.json")):
            try:
                result_file = json.loads(path.read_text("utf-8"))
                task = _find_task(path, result_file)
            except (OSError, ValueError, KeyError, TypeError):
                skipped.append(str(path.relative_to(top)))
                continue
            stage = path.parent.relative_to(top).as_posix()
            model = path.stem.removesuffix(f"-{task}")
            files.setdefault(stage, {}).setdefault(task, {})[model] = result_file
        if not files:
            raise DataError(
                "no lm-eval results", where=str(folder), hint="files are called MODEL-TASK.json"
            )
        return cls(str(folder), files, tuple(skipped))

    def has_results(self, stage: str, task: str) -> bool:
        """Whether there are results of a task at a stage."""
        return task in self.files.get(stage, {})

    def scores(self, stage: str, task: str, *metrics: str) -> dict[str, float]:
        """Return the score of every model by the first of the metrics that its file has.

        MMLU is the mean over its 57 subjects, as in the document; lm-eval's own is the mean over questions.
        """
        keys = [f"{metric},{name}" for metric in metrics for name in FILTERS]
        scores = {}
        for model, result_file in self.files.get(stage, {}).get(task, {}).items():
            score = _read_score(result_file, task, keys)
            if score is not None:
                scores[model] = score
        return scores


def _skip_single_folders(folder: Path) -> Path:
    """Return the folder that holds the stages: archives hold one folder that holds all."""
    while not any(folder.glob("*.json")):
        subfolders = [path for path in folder.iterdir() if path.is_dir()]
        if len(subfolders) != 1:
            break
        folder = subfolders[0]
    return folder


def _find_task(path: Path, result_file: ResultFile) -> str:
    """Return the longest task of the file's results that its name ends with; ValueError where there is none."""
    tasks: list[str] = [task for task in result_file["results"] if path.stem.endswith(f"-{task}")]
    return max(tasks, key=len)


def _read_score(result_file: ResultFile, task: str, keys: list[str]) -> float | None:
    """Return a model's score by the first key that it has; of MMLU the mean over its subjects."""
    results = result_file["results"]
    key = next((key for key in keys if key in results[task]), None)
    if key is None:
        return None
    groups = result_file.get("groups", {})
    subtasks = [scores for name, scores in results.items() if name not in groups and key in scores]
    averaged = [results[task]]
    if task.startswith("mmlu") and subtasks:
        averaged = subtasks
    return float(np.mean([scores[key] for scores in averaged]))
