"""The manifest of a cell: how its score came about, in enough detail to explain or repeat it."""

from __future__ import annotations

import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from potentia.run.plan import SCORING_VERSION, CellPlan

if TYPE_CHECKING:
    from potentia.run.row import RowRun

PARTS = ("potentia", "torch", "transformers", "peft", "lm-eval", "tokenizers", "datasets", "numpy")


@cache
def versions() -> dict[str, str]:
    """Return the versions of everything that takes part in a score."""
    found = {"python": platform.python_version()}
    for part in PARTS:
        try:
            found[part] = version(part)
        except PackageNotFoundError:
            continue
    return found


def manifest(row: RowRun, cell: CellPlan) -> dict[str, Any]:
    """Describe the making of one cell."""
    task = row.tasks.benchmarks[cell.task]
    model = row.plan.model
    made: dict[str, Any] = {
        "scoring_version": SCORING_VERSION,
        "versions": versions(),
        "model": {
            "source": model.source,
            "revision": model.revision,
            **({"gguf_file": model.gguf_file} if model.gguf_file else {}),
            **({"adapter": model.adapter} if model.adapter else {}),
            **({"copy_of": model.copy_of, "shown": list(row.tasks.shown)} if model.copy_of else {}),
            "fingerprint": row.loaded.fingerprint,
            "dtype": str(row.loaded.dtype).removeprefix("torch."),
            "device": str(row.loaded.device),
        },
        "task": {"fingerprint": row.plan.prints[cell.task], "splits": task.plan.to_dict(), "metric": task.metric},
        "seed": row.study.seed,
        "styles": list(row.styles),
        "scorer": dict(row.scorer.notes),
    }
    if cell.protocol.kind == "train_before_test":
        made["tuning"] = row.study.tuning.model_dump(mode="json")
        made["selection"] = row.study.selection
    if cell.protocol.kind == "adjust" and row.study.adjust is not None:
        made["adjust"] = row.study.adjust.model_dump(mode="json")
    return made
