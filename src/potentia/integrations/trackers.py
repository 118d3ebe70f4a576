"""Sending results to an experiment tracker: every lane's curve and every cell's score, read from the store.

A tracker is a mirror, never a source: it can be filled while a study runs or after it. Everything is sent each time:
W&B and MLflow then have another run of the same name, TensorBoard another file in its folder.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from potentia.errors import InputError
from potentia.extras import Extra, require_extra
from potentia.store import LaneRecord, Store, find_study

ValueLogger = Callable[[str, float, int], Any]
"""Logs into one model's run in a tracker: a name, a value, the epoch."""


class TrackedValue(NamedTuple):
    """One value to send."""

    name: str
    value: float
    epoch: int


def send_to_tracker(store: Store, study: str, *, to: str, folder: Path) -> dict[str, int]:
    """Send a study's lanes and cells to a tracker, one run per model; returns how many values each model has.

    TensorBoard writes below ``folder``; W&B and MLflow go where their own settings say.
    """
    if to not in _OPENERS:
        raise InputError(f"no tracker {to!r}", hint=f"one of: {', '.join(_OPENERS)}")
    record = find_study(store, study)
    cells = store.cells.read(study=record.key)
    lanes = store.lanes.read(study=record.key)
    values_by_model: dict[str, list[TrackedValue]] = {}
    for cell in cells:
        tracked_value = TrackedValue(f"{cell.protocol}/{cell.task}", cell.score.value, 0)
        values_by_model.setdefault(cell.model, []).append(tracked_value)
    for lane in lanes:
        values_by_model.setdefault(lane.model, []).extend(_read_curves(lane))
    counts = {}
    for model in sorted(values_by_model):
        values = values_by_model[model]
        with _OPENERS[to](record.name, model, folder) as log_value:
            for tracked_value in values:
                log_value(*tracked_value)
        counts[model] = len(values)
    return counts


def _read_curves(lane: LaneRecord) -> list[TrackedValue]:
    """Return what is known of a lane's epochs: validation scores, then training losses."""
    curve_name = f"{lane.task}/lr {lane.learning_rate:g} {lane.style} seed {lane.seed}"
    points = []
    for epoch_result in lane.epochs:
        if epoch_result.value is not None:
            points.append(
                TrackedValue(f"validation/{curve_name}", epoch_result.value, epoch_result.epoch)
            )
    for epoch_result in lane.epochs:
        if epoch_result.train_loss is not None:
            points.append(
                TrackedValue(
                    f"train loss/{curve_name}", epoch_result.train_loss, epoch_result.epoch
                )
            )
    return points


@contextmanager
def _tensorboard(study: str, model: str, folder: Path) -> Iterator[ValueLogger]:
    require_extra(Extra.RUN, "writing for TensorBoard", modules=("torch",))
    _import_tracker("tensorboard", "TensorBoard")
    writer = import_module("torch.utils.tensorboard").SummaryWriter(
        log_dir=str(folder / study / model.replace("/", "--"))
    )
    try:
        yield writer.add_scalar
    finally:
        writer.close()


@contextmanager
def _wandb(study: str, model: str, folder: Path) -> Iterator[ValueLogger]:
    wandb = _import_tracker("wandb", "W&B")
    session = wandb.init(project=study, name=model, dir=str(folder), reinit="finish_previous")
    try:
        yield lambda name, value, step: session.log({name: value, "epoch": step})
    finally:
        session.finish()


@contextmanager
def _mlflow(study: str, model: str, folder: Path) -> Iterator[ValueLogger]:
    mlflow = _import_tracker("mlflow", "MLflow")
    mlflow.set_experiment(study)

    def log(name: str, value: float, step: int) -> None:
        allowed = re.sub(r"[^\w\-. /]", "_", name)
        mlflow.log_metric(allowed, value, step=step)

    with mlflow.start_run(run_name=model):
        yield log


def _import_tracker(module: str, name: str) -> Any:
    require_extra(Extra.TRACK, f"sending scores to {name}", modules=(module,))
    return import_module(module)


_OPENERS = {"tensorboard": _tensorboard, "wandb": _wandb, "mlflow": _mlflow}
