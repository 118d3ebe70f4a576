"""Sending results to an experiment tracker: every lane's curve and every cell's score, read from the store.

A tracker is a mirror, never a source: it can be filled while a study runs, after it, or again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from potentia.errors import InputError, MissingExtraError
from potentia.store import LaneRecord, Store

Log = Callable[
    [str, float, int], Any
]  # of one model's run in a tracker: a name, a value, the epoch


def send_to_tracker(store: Store, study: str, *, to: str, folder: Path) -> dict[str, int]:
    """Send a study's lanes and cells to a tracker, one run per model; returns how many values each model has.

    TensorBoard writes below ``folder``; W&B and MLflow go where their own settings say.
    """
    if to not in _OPENERS:
        raise InputError(f"no tracker {to!r}", hint=f"one of: {', '.join(_OPENERS)}")
    cells, lanes = store.cells.read(study=study), store.lanes.read(study=study)
    counts = {}
    for model in sorted({cell.model for cell in cells} | {lane.model for lane in lanes}):
        values = [
            (f"{cell.protocol}/{cell.task}", cell.score.value, 0)
            for cell in cells
            if cell.model == model
        ]
        values += [value for lane in lanes if lane.model == model for value in _curves(lane)]
        with _OPENERS[to](study, model, folder) as log:
            for value in values:
                log(*value)
        counts[model] = len(values)
    return counts


def _curves(lane: LaneRecord) -> list[tuple[str, float, int]]:
    """Return what is known of a lane's epochs."""
    name = f"{lane.task}/lr {lane.learning_rate:g} {lane.style} seed {lane.seed}"
    curves = [(f"validation/{name}", point.value, point.epoch) for point in lane.epochs]
    curves += [(f"train loss/{name}", point.train_loss, point.epoch) for point in lane.epochs]
    return [(what, value, epoch) for what, value, epoch in curves if value is not None]


@contextmanager
def _tensorboard(study: str, model: str, folder: Path) -> Iterator[Log]:
    writer = _imported("torch.utils.tensorboard", "TensorBoard").SummaryWriter(
        log_dir=str(folder / study / model.replace("/", "--"))
    )
    try:
        yield writer.add_scalar
    finally:
        writer.close()


@contextmanager
def _wandb(study: str, model: str, folder: Path) -> Iterator[Log]:
    wandb = _imported("wandb", "W&B")
    session = wandb.init(project=study, name=model, dir=str(folder), reinit="finish_previous")
    try:
        yield lambda name, value, step: session.log({name: value, "epoch": step})
    finally:
        session.finish()


@contextmanager
def _mlflow(study: str, model: str, folder: Path) -> Iterator[Log]:
    mlflow = _imported("mlflow", "MLflow")
    mlflow.set_experiment(study)

    def log(name: str, value: float, step: int) -> None:
        allowed = "".join(c if c.isalnum() or c in "_-. /" else "_" for c in name)
        mlflow.log_metric(allowed, value, step=step)

    with mlflow.start_run(run_name=model):
        yield log


def _imported(module: str, name: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"{name} is not installed", hint="pip install 'potentia[track]'"
        ) from error


_OPENERS = {"tensorboard": _tensorboard, "wandb": _wandb, "mlflow": _mlflow}
