"""A tree in the shape of the authors' clone, made from the published table of its scores.

The whole tree is not kept with the project: the archive holds ``e1``, ``e2``, ``e1+2`` and ``new_evals`` as published,
and the table holds the scores of ``base``, ``e3`` and ``intermediate``. From these, the files that the table was made
from are written again, with the names, folders and fields that lm-eval gave them.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDERS = {
    "base": "base",
    "tuned_mc_3ep": "e3/mmluaux",
    "tuned_math_3ep": "e3/gsm8kaux",
    "inter_mc": "intermediate/mmluaux/evals",
    "inter_math": "intermediate/gsm8kaux/evals",
}
WEIGHTS = {  # the paths of the weights in the authors' files
    "base": "/fast/models/{model}/snapshots/model/",
    "tuned_mc_3ep": "/fast/ttt/models/e3//mmluaux/{model}/",
    "tuned_math_3ep": "/fast/ttt/models/e3//gsm8kaux/{model}/",
    "inter_mc": "/fast/save_and_eval/mmluaux/models/{model}//{step}",
    "inter_math": "/fast/save_and_eval/gsm8kaux/models/{model}//{step}",
}
SUBJECTS = 57
GROUPS = ("humanities", "other", "social_sciences", "stem")


def write_clone(table: Path, clone: Path) -> Path:
    """Write ``notebooks/evaluations`` of a clone from the published table; return the clone."""
    evaluations = clone / "notebooks" / "evaluations"
    files: dict[Path, dict[str, dict[str, float]]] = {}
    weights: dict[Path, str] = {}
    for row in csv.DictReader(table.read_text("utf-8").splitlines()):
        folder = evaluations / FOLDERS[row["stage"]]
        task = row["benchmark"]
        if row["step"]:
            path = folder / row["model"] / f"step_{int(float(row['step']))}" / f"{task}.json"
        else:
            path = folder / f"{row['model']}-{task}.json"
        scores = files.setdefault(path, {}).setdefault(task, {})
        name, _, filter_name = row["metric"].partition("|")
        scores[f"{name},{filter_name or 'none'}"] = float(row["value"])
        weights[path] = WEIGHTS[row["stage"]].format(model=row["model"], step=path.parent.name)
    for path, scores_by_task in files.items():
        ((task, scores),) = scores_by_task.items()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(make_result_file(task, scores, weights[path])))
    (clone / "README.md").write_text("# Training on the test task\n")
    return clone


def make_result_file(
    task: str, scores: Mapping[str, Any], weights: str = "/fast/models/new-1e//model/"
) -> dict[str, Any]:
    """Return what lm-eval writes; MMLU with its 57 subjects and five groups, spread about the published mean."""
    results: dict[str, Any] = {task: {**scores, "alias": task}}
    groups: dict[str, Any] = {}
    if task.startswith("mmlu"):
        names = [f"{task}_{group}" for group in GROUPS]
        groups = {task: results[task], **{name: dict(scores) for name in names}}
        results |= groups
        for number in range(SUBJECTS):
            shift = 0.01 * (number - (SUBJECTS - 1) / 2)
            results[f"{task}_subject_{number}"] = {
                key: value + shift for key, value in scores.items()
            }
    model_args = f"pretrained={weights},trust_remote_code=True"
    return {"results": results, "groups": groups, "config": {"model_args": model_args}}
