"""The authors' evaluation tree of "Training on the test task": lm-eval's result files, by stage and auxiliary data.

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

Scores = dict[str, float]  # by model


@dataclass(frozen=True)
class Evaluations:
    """What lies in the tree: stage → task → model → its results."""

    where: str
    found: Mapping[str, Mapping[str, Mapping[str, Mapping[str, Any]]]]
    skipped: tuple[str, ...] = ()  # files that are no results

    @classmethod
    def read(cls, folder: Path) -> Evaluations:
        """Read every result file below a folder; a stage is the path to it, as ``e1/mmluaux``."""
        if not folder.is_dir():
            raise DataError("there is no such folder", where=str(folder), hint="give the folder of the evaluations")
        top = folder
        while not any(top.glob("*.json")) and len(inside := [p for p in top.iterdir() if p.is_dir()]) == 1:
            top = inside[0]  # archives hold one folder that holds all
        found: dict[str, dict[str, dict[str, Mapping[str, Any]]]] = {}
        skipped = []
        for path in sorted(top.rglob("*.json")):
            try:
                whole = json.loads(path.read_text("utf-8"))
                task = max((key for key in whole["results"] if path.stem.endswith(f"-{key}")), key=len)
            except (OSError, ValueError, KeyError, TypeError):
                skipped.append(str(path.relative_to(top)))
                continue
            stage = path.parent.relative_to(top).as_posix()
            found.setdefault(stage, {}).setdefault(task, {})[path.stem.removesuffix(f"-{task}")] = whole
        if not found:
            raise DataError("no lm-eval results", where=str(folder), hint="files are called MODEL-TASK.json")
        return cls(str(folder), found, tuple(skipped))

    def has(self, stage: str, task: str) -> bool:
        """Say whether there are results of a task at a stage."""
        return task in self.found.get(stage, {})

    def scores(self, stage: str, task: str, *metrics: str) -> Scores:
        """Return the score of every model by the first of the metrics that its file has.

        MMLU is the mean over its 57 subjects, as in the document; lm-eval's own is the mean over questions.
        """
        made = {}
        names = [f"{metric},{filtered}" for metric in metrics for filtered in FILTERS]
        for model, whole in self.found.get(stage, {}).get(task, {}).items():
            results = whole["results"]
            if own := next(filter(results[task].__contains__, names), ""):
                single = [of for name, of in results.items() if name not in whole.get("groups", {}) and own in of]
                leaves = single if task.startswith("mmlu") and single else [results[task]]
                made[model] = float(np.mean([of[own] for of in leaves]))
        return made


FILTERS = ("flexible-extract", "none")
