"""Sending results to an experiment tracker: every lane's curve and every cell's score, read from the store.

A tracker is a mirror, never a source: it can be filled while a study runs, after it, or again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from potentia.errors import InputError, MissingExtraError
from potentia.store import Store

TRACKERS = ("tensorboard", "wandb", "mlflow")


class Run(Protocol):
    """One model's run in a tracker."""

    def log(self, name: str, value: float, step: int) -> None:
        """Record one value."""


def send(store: Store, study: str, *, to: str, folder: Path) -> dict[str, int]:
    """Send a study's lanes and cells to a tracker, one run per model; returns how many values each model has.

    TensorBoard writes below ``folder``; W&B and MLflow go where their own settings say.
    """
    if to not in TRACKERS:
        raise InputError(f"no tracker {to!r}", hint=f"one of: {', '.join(TRACKERS)}")
    cells, lanes = store.cells(study=study), store.lanes(study=study)
    counts: dict[str, int] = {}
    for model in sorted({cell.model for cell in cells} | {lane.model for lane in lanes}):
        with _OPENERS[to](study, model, folder) as run:
            sent = 0
            for lane in (lane for lane in lanes if lane.model == model):
                name = f"{lane.task}/lr {lane.learning_rate:g} {lane.style} seed {lane.seed}"
                for point in lane.epochs:
                    for kind, value in (("validation", point.value), ("train loss", point.train_loss)):
                        if value is not None:
                            run.log(f"{kind}/{name}", value, point.epoch)
                            sent += 1
            for cell in (cell for cell in cells if cell.model == model):
                run.log(f"{cell.protocol}/{cell.task}", cell.score.value, 0)
                sent += 1
        counts[model] = sent
    return counts


@contextmanager
def _tensorboard(study: str, model: str, folder: Path) -> Iterator[Run]:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise _missing("TensorBoard") from error

    writer = SummaryWriter(log_dir=str(folder / study / model.replace("/", "--")))

    class Writer:
        def log(self, name: str, value: float, step: int) -> None:
            writer.add_scalar(name, value, step)

    try:
        yield Writer()
    finally:
        writer.close()


@contextmanager
def _wandb(study: str, model: str, folder: Path) -> Iterator[Run]:
    try:
        import wandb
    except ImportError as error:
        raise _missing("W&B") from error

    session: Any = wandb.init(project=study, name=model, dir=str(folder), reinit="finish_previous")

    class Session:
        def log(self, name: str, value: float, step: int) -> None:
            session.log({name: value, "epoch": step})

    try:
        yield Session()
    finally:
        session.finish()


@contextmanager
def _mlflow(study: str, model: str, folder: Path) -> Iterator[Run]:
    try:
        import mlflow
    except ImportError as error:
        raise _missing("MLflow") from error

    mlflow.set_experiment(study)

    class Active:
        def log(self, name: str, value: float, step: int) -> None:
            allowed = "".join(c if c.isalnum() or c in "_-. /" else "_" for c in name)
            mlflow.log_metric(allowed, value, step=step)

    with mlflow.start_run(run_name=model):
        yield Active()


def _missing(name: str) -> MissingExtraError:
    return MissingExtraError(f"{name} is not installed", hint="pip install 'potentia[track]'")


_OPENERS = {"tensorboard": _tensorboard, "wandb": _wandb, "mlflow": _mlflow}
