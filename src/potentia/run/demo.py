"""The embedded study: zoo models × zoo tasks, direct and train-before-test, on a laptop's CPU in minutes."""

from __future__ import annotations

from pathlib import Path

from potentia import zoo
from potentia.study import Study, make_study

# Tiny models need larger steps than the paper's: this grid, the batch and the caps are fitted to them.
LEARNING_RATES = (1e-3, 3e-3)
QUICK_TASKS = 6
QUICK_MODELS = 8


def demo_study(folder: Path, *, quick: bool = False) -> Study:
    """Lay out the zoo's models and tasks below ``folder`` and return the study over them."""
    base = zoo.models("base")
    chosen = base[:: max(1, len(base) // QUICK_MODELS)][:QUICK_MODELS] if quick else base
    models = zoo.model_folders(folder / "models", [model.name for model in chosen])
    tasks = zoo.task_folder(folder / "tasks")
    names = list(tasks)[:QUICK_TASKS] if quick else list(tasks)
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
            "caps": {"train": 500, "validation": 200, "test": 500},
            "tuning": {
                "rank": 8,
                "alpha": 16,
                "dropout": 0.0,
                "targets": ["all-linear"],
                "epochs": 3 if quick else 5,
                "learning_rates": LEARNING_RATES[:1] if quick else LEARNING_RATES,
                "batch": 8,
                "loss": "completion",
            },
            "device": "cpu",
            "store": str(folder / "potentia.db"),
        }
    )
