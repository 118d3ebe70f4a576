"""The Ray executor: rows as tasks of a cluster, each with the processors, memory and share of a GPU that it needs.

The store must be one that every machine reaches (PostgreSQL), with its items in a folder that all see. Ray tries a task
again elsewhere when its worker or machine is lost, and the row goes on from what the store and its lanes have.
"""

from __future__ import annotations

import logging
import math
import re
import threading
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from potentia.errors import InputError, StoreError
from potentia.run.cost import estimate_weight_bytes
from potentia.run.local import Answer, AssignmentQueue, answer_assignment, give_up_assignment
from potentia.run.plan import LoadedTasks, Row
from potentia.run.progress import Stopped, open_store
from potentia.run.row import RowOutcome
from potentia.timing import repeatedly

STOP_SECONDS = 60.0  # that rows get to end once they are told to stop
TRIES = 3  # of a row whose worker or machine is lost, after the first
ROOM_BYTES = 2 * 2**30  # beside the weights: passes, adapters, the runtime itself
ROOM = 1.5  # times the weights
FULL, FILLED = (
    0.9,
    0.8,
)  # of a GPU's memory that weights may take: of one alone, and of each of several
STEP = 0.05  # shares of a GPU are whole multiples of this
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def needs(row: Row, gpu_bytes: int | None) -> dict[str, Any]:
    """Say in Ray's words what a row needs by the size of its weights; models that fit beside others share a GPU.

    A row keeps to its share. One whose size is not known has a GPU to itself, one that does not fit a GPU several.
    """
    weights = estimate_weight_bytes(row)
    memory = int(ROOM * (weights or 0)) + ROOM_BYTES
    if gpu_bytes is None or row.study.device == "cpu":
        return {"num_cpus": max(1, row.threads), "memory": memory}
    share = 1.0 if weights is None else min(1.0, STEP * math.ceil(memory / gpu_bytes / STEP))
    if weights is not None and weights > FULL * gpu_bytes:
        share = float(math.ceil(weights / (FILLED * gpu_bytes)))
    return {"num_cpus": 1, "memory": memory, "num_gpus": round(share, 2)}


def run_elsewhere(
    rows: Sequence[Row],
    tasks: LoadedTasks,
    *,
    stop: Callable[[], bool],
    divide: Callable[[int, str], Sequence[Row]],
) -> dict[str, RowOutcome]:
    """Run each row as a Ray task; one that stays lost costs its row alone.

    ``divide`` gives the rows in parts, for so many workers of a kind of device.
    """
    import ray

    if not ray.is_initialized():
        ray.init(
            ignore_reinit_error=True,
            log_to_driver=False,
            include_dashboard=False,
            logging_level=logging.ERROR,
        )
    check_shared(ray, rows[0])
    gpu_bytes = _gpu_bytes(ray)
    rows = divide(*_workers(ray, rows[0], gpu_bytes))
    flag = ray.remote(num_cpus=0)(_Flag).remote()
    turns, pending = AssignmentQueue(rows, tasks), dict[Any, Row]()
    try:
        while turns or pending:
            while (row := turns.take(pending.values())) is not None:
                need = _within(ray, needs(row, gpu_bytes))
                task = ray.remote(max_retries=TRIES, **need)(_row)
                pending[task.remote(row, flag, need.get("num_gpus", 0))] = row
            ready, _ = ray.wait(list(pending), timeout=0.5) if pending else ([], [])
            for reference in ready:
                row = pending.pop(reference)
                turns.end(row, _outcome(ray, reference, row, tasks))
            if stop():
                raise Stopped
            if not pending:
                threading.Event().wait(0.2)
    except (Stopped, StoreError):
        _leave(ray, flag, pending)
        raise
    return turns.ended


def _workers(ray: Any, row: Row, gpu_bytes: int | None) -> tuple[int, str]:
    """Return how many rows the cluster runs at once, and on what."""
    has = ray.cluster_resources()
    if gpu_bytes is None or row.study.device == "cpu":
        return max(1, int(has.get("CPU", 1) // max(1, row.threads))), "cpu"
    return max(1, int(has["GPU"])), "cuda"


def _within(ray: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Ask for no more than the largest machine has: Ray would wait for ever for another."""
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    for option, resource in (("num_cpus", "CPU"), ("memory", "memory"), ("num_gpus", "GPU")):
        most = max((machine.get(resource, 0) for machine in machines), default=0)
        if option in options and options[option] > most:
            options[option] = int(most)
    return options


def _outcome(ray: Any, reference: Any, row: Row, tasks: LoadedTasks) -> Answer:
    """Return how a task ended; what Ray could not bring to an end is given up with Ray's reason."""
    try:
        answer: Answer = ray.get(reference)
    except ray.exceptions.RayError as error:
        return give_up_assignment(row, tasks, f"its Ray task was lost: {cause(error)}")
    return answer


def cause(error: BaseException) -> str:
    """Say in one line why Ray lost a task, without the colours of its terminal."""
    lines = [line.strip() for line in _COLOURS.sub("", str(error)).splitlines()]
    told = [
        line for line in lines if line and not line.startswith(("class_name", "\\t", "namespace"))
    ]
    return f"{type(error).__name__}: {' '.join(told)[:400] or 'no reason given'}"


def _leave(ray: Any, flag: Any, pending: dict[Any, Row]) -> None:
    """Tell the rows to stop, and give them time to save."""
    ray.get(flag.set.remote())
    if pending:
        ray.wait(list(pending), num_returns=len(pending), timeout=STOP_SECONDS)
    for reference in pending:
        ray.cancel(reference, force=False)


def check_shared(ray: Any, row: Row) -> None:
    """Refuse a store that not every machine of the cluster reaches, and a folder of items that not all of them see."""
    from potentia.store import locate

    nodes = [node for node in ray.nodes() if node["Alive"]]
    if len(nodes) < 2:
        return
    if locate(row.study.store)[1] is not None:
        raise InputError(
            "a SQLite file cannot be shared between machines",
            hint="give a PostgreSQL store: --store postgresql+psycopg://user@host/potentia?items=/shared/folder",
        )
    with open_store(row.study.store) as store:
        folder = store.items_folder
    folder.mkdir(parents=True, exist_ok=True)
    mark = folder / f".seen-{uuid.uuid4().hex}"
    mark.touch()
    try:
        place = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        asked = {
            node["NodeManagerAddress"]: ray.remote(
                num_cpus=0, scheduling_strategy=place(node_id=node["NodeID"], soft=False)
            )(_sees).remote(str(mark))
            for node in nodes
        }
        blind = [name for name, answer in asked.items() if not ray.get(answer, timeout=60)]
    finally:
        mark.unlink(missing_ok=True)
    if blind:
        raise InputError(
            f"{folder} is not seen by every machine of the cluster: not by {', '.join(blind)}",
            hint="name a shared folder in the store's URL: ?items=/shared/potentia.items",
        )


def _sees(path: str) -> bool:
    return Path(path).exists()


def _gpu_bytes(ray: Any) -> int | None:
    """Return the memory of the cluster's GPUs, as the first that answers has it; None where there is none."""
    if not ray.cluster_resources().get("GPU"):
        return None
    return int(ray.get(ray.remote(num_gpus=0.01, num_cpus=0)(_memory).remote()))


def _memory() -> int:
    import torch

    return int(torch.cuda.get_device_properties(0).total_memory)


class _Flag:
    """Says to all rows whether they are to stop."""

    def __init__(self) -> None:
        self.up = False

    def set(self) -> None:
        self.up = True

    def is_set(self) -> bool:
        return self.up


def _row(row: Row, flag: Any, share: float) -> Answer:
    """Run a row on a machine of the cluster, which asks the flag now and then."""
    import ray

    if 0 < share < 1:
        import torch

        torch.cuda.set_per_process_memory_fraction(share)
    heard = threading.Event()

    def ask() -> None:
        with suppress(ray.exceptions.RayError):
            if not heard.is_set() and ray.get(flag.is_set.remote(), timeout=10):
                heard.set()

    with repeatedly(ask, 1.0):
        return answer_assignment(row, heard.is_set)
