"""The embedded study: zoo models × zoo tasks, direct and train-before-test, on a laptop's CPU in minutes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from potentia import zoo
from potentia.study import Study, make_study

# Tiny models need larger steps than the paper's: this grid, the batch and the caps are fitted to them.
LEARNING_RATES = (1e-3, 3e-3)
SIZES = ("71k", "159k", "237k")
QUICK_SIZES = ("71k", "159k")
QUICK_TASKS = ("ask", "record", "table", "beside", "fix", "claim")


def recipe(learning_rates: Sequence[float] = LEARNING_RATES, *, epochs: int = 5, batch: int = 8) -> dict[str, Any]:
    """Return the tuning that suits zoo models: adapters on all layers, loss on the answer alone."""
    return {
        "rank": 8,
        "alpha": 16,
        "dropout": 0.0,
        "targets": ["all-linear"],
        "epochs": epochs,
        "learning_rates": list(learning_rates),
        "batch": batch,
        "race": False,
    }


def demo_study(folder: Path, *, quick: bool = False) -> Study:
    """Lay out the zoo's models and tasks below ``folder`` and return the study over them.

    The zoo's control task, which no model can do, is left out.
    """
    sizes = QUICK_SIZES if quick else SIZES
    chosen = [model for model in zoo.models("base") if model.name.rpartition("-")[2] in sizes]
    models = zoo.model_folders(folder / "models", [model.name for model in chosen])
    tasks = zoo.task_folder(folder / "tasks")
    names = QUICK_TASKS if quick else [benchmark.name for benchmark in zoo.BENCHMARKS if not benchmark.control]
    return make_study(
        {
            "name": "demo-quick" if quick else "demo",
            "models": [
                {
                    "name": model.name,
                    "path": str(models[model.name]),
                    "kind": "base",
                    "family": model.family,
                    "parameters": model.parameters,
                    "tokens": model.tokens,
                    "date": model.date,
                }
                for model in chosen
            ],
            "tasks": [{"name": name, "file": str(tasks[name])} for name in names],
            "protocols": ["direct", "train_before_test"],
            "caps": {"train": 400 if quick else 320, "validation": 100, "test": 500 if quick else 400},
            "tuning": recipe(LEARNING_RATES[:1] if quick else LEARNING_RATES, epochs=3 if quick else 4),
            "device": "cpu",
            "store": str(folder / "potentia.db"),
        }
    )
