"""The Hub's ``.eval_results``: scores as a model's page shows them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from potentia.errors import InputError, PotentiaError
from potentia.extras import Extra, require_extra
from potentia.files import write_file
from potentia.formats.table import safe_name
from potentia.values.protocol import Protocol, TaskName
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
            "no task of these scores has its documents on the Hub",
            hint="the Hub asks for a dataset id",
        )
    written = []
    for model, entries in entries_by_model.items():
        file = folder / safe_name(model) / ".eval_results" / "potentia.yaml"
        content = eval_result_entries_to_yaml(entries)
        write_file(file, yaml.safe_dump(content, sort_keys=False, allow_unicode=True))
        written.append(file)
    return written


def _render_notes(protocol: Protocol, score: Score) -> str:
    recipe = f", recipe {score.origin.recipe[:12]}" if score.origin.recipe else ""
    error = "" if math.isnan(score.stderr) else f" ± {score.stderr:.4f} (standard error)"
    metric = score.metric.name or "score"
    return f"{protocol.label}{recipe}; {metric}{error}; Potentia {version('potentia')}"
