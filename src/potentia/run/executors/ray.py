"""The Ray executor: rows as tasks of a cluster, each with the processors, memory and share of a GPU that it needs.

The store must be one that every machine reaches (PostgreSQL), with its items in a folder that all see. Ray tries a task
again elsewhere when its worker or machine is lost, and the row goes on from what the store and its lanes have.
"""

from __future__ import annotations

import logging
import math
import os
import re
import socket
import threading
import uuid
from collections.abc import Hashable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from potentia.errors import InputError, PotentiaError
from potentia.extras import Extra, require_extra
from potentia.run.cost import estimate_weight_bytes
from potentia.run.executors.base import ExecutionRequest, QueueExecutor
from potentia.run.plan import Assignment
from potentia.run.progress import open_store
from potentia.run.worker import Answer, answer_assignment
from potentia.timing import call_repeatedly

START_SECONDS = 300  # for Ray to start, and for a cluster to answer its first question
CONNECT_SECONDS = 30  # for the address of a cluster to take a connection
ATTEMPT_SECONDS = 40  # that Ray takes for each attempt to reach a cluster which does not answer
RETRIES = 3  # of a row whose worker or machine is lost
EXTRA_BYTES = 2 * 2**30  # beside the weights: passes, adapters, the runtime itself
MEMORY_PER_WEIGHTS = 1.5  # times the weights
FULL_SHARE = 0.9  # of a GPU's memory that weights may take where they lie on one
FILLED_SHARE = 0.8  # of each GPU's memory where they lie on several
SHARE_STEP = 0.05  # shares of a GPU are whole multiples of this
_NO_RAY = "`ray status` says what the cluster does; without it: drop --executor ray"
_ADDRESS = re.compile(r"(?:ray://)?(?P<host>[^/:]+|\[[^]]+\]):(?P<port>\d+)")
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


@dataclass(frozen=True)
class RayResources:
    """What a task asks of Ray, in Ray's words."""

    num_cpus: int
    memory: int
    num_gpus: float = 0.0

    def to_options(self) -> dict[str, Any]:
        """Return the options of a Ray task."""
        options = asdict(self)
        if not self.num_gpus:
            del options["num_gpus"]
        return options


def estimate_resources(assignment: Assignment, gpu_bytes: int | None) -> RayResources:
    """Return what a row needs by the size of its weights; models that fit beside others share a GPU.

    A row keeps to its share. One whose size is not known has a GPU to itself, one that does not fit a GPU several.
    """
    weights = estimate_weight_bytes(assignment.row)
    memory = int(MEMORY_PER_WEIGHTS * (weights or 0)) + EXTRA_BYTES
    if gpu_bytes is None or assignment.study.device == "cpu":
        return RayResources(num_cpus=max(1, assignment.threads), memory=memory)
    if weights is None:
        share = 1.0
    elif weights > FULL_SHARE * gpu_bytes:
        share = float(math.ceil(weights / (FILLED_SHARE * gpu_bytes)))
    else:
        share = min(1.0, SHARE_STEP * math.ceil(memory / gpu_bytes / SHARE_STEP))
    return RayResources(num_cpus=1, memory=memory, num_gpus=round(share, 2))


class RayExecutor(QueueExecutor):
    """Each assignment is a Ray task; one that stays lost costs its row alone."""

    def __init__(self) -> None:
        super().__init__()
        self._ray: Any = None
        self._stop_flag: Any = None
        self._gpu_bytes: int | None = None

    @classmethod
    def check_installed(cls) -> None:
        """Raise an error where Ray is not installed."""
        require_extra(Extra.RAY, "--executor ray", otherwise="drop --executor ray")

    def start(self, request: ExecutionRequest) -> Sequence[Assignment]:
        """Connect to the cluster, or start one here; refuse a store that not every machine reaches."""
        set_start_bounds()
        import ray

        self._ray = ray
        start_ray(ray)
        first_assignment = request.assignments[0]
        check_store_is_shared(ray, first_assignment)
        self._gpu_bytes = _ask_gpu_bytes(ray)
        self._stop_flag = ray.remote(num_cpus=0)(_StopFlag).remote()
        ask_cluster(ray, self._stop_flag.is_set.remote())
        resources = ray.cluster_resources()
        if self._gpu_bytes is None or first_assignment.study.device == "cpu":
            workers = int(resources.get("CPU", 1) // max(1, first_assignment.threads))
            return request.divide(max(1, workers), "cpu")
        return request.divide(max(1, int(resources["GPU"])), "cuda")

    def submit(self, assignment: Assignment) -> Hashable:
        """Make a Ray task of an assignment."""
        options = self._limit_to_cluster(estimate_resources(assignment, self._gpu_bytes))
        task = self._ray.remote(max_retries=RETRIES, **options)(_run_task)
        reference: Hashable = task.remote(assignment, self._stop_flag, options.get("num_gpus", 0))
        return reference

    def _limit_to_cluster(self, resources: RayResources) -> dict[str, Any]:
        """Ask for no more than the largest machine has: Ray would wait for ever for another."""
        options = resources.to_options()
        machines = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        for option, resource in (("num_cpus", "CPU"), ("memory", "memory"), ("num_gpus", "GPU")):
            largest = max((machine.get(resource, 0) for machine in machines), default=0)
            if option in options and options[option] > largest:
                options[option] = int(largest)
        return options

    def collect_answers(self) -> Iterable[tuple[Hashable, Answer]]:
        """Return the answers of the tasks that have ended; what Ray lost for good is given up."""
        ready, _ = self._ray.wait(list(self.running), timeout=0.5)
        for reference in ready:
            try:
                answer: Answer = self._ray.get(reference)
            except self._ray.exceptions.RayError as error:
                reason = f"its Ray task was lost: {describe_ray_error(error)}"
                answer = self.give_up(self.running[reference], reason)
            yield reference, answer

    def request_stop(self) -> None:
        """Raise the flag that all tasks look at."""
        if self._stop_flag is not None:
            with suppress(self._ray.exceptions.RayError):  # a cluster that is gone stops by itself
                self._ray.get(self._stop_flag.set.remote(), timeout=30)

    def close(self, *, graceful: bool) -> None:
        """Cancel what has not ended, after some time where it may have to save."""
        if not self.running:
            return
        if graceful:
            self._ray.wait(
                list(self.running), num_returns=len(self.running), timeout=self.drain_seconds
            )
        for reference in self.running:
            self._ray.cancel(reference, force=False)


def set_start_bounds() -> None:
    """Bound how long Ray waits while it starts: it reads this when it is imported, and waits a quarter of an hour."""
    os.environ.setdefault("RAY_raylet_start_wait_time_s", str(START_SECONDS))
    attempts = START_SECONDS // ATTEMPT_SECONDS
    os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", str(attempts))


def check_address_answers(address: str) -> None:
    """Refuse the address of a cluster where nobody takes a connection; Ray itself finds ``"auto"`` and ``"local"``."""
    match = _ADDRESS.fullmatch(address.strip())
    if match is None:
        return
    host = match["host"].strip("[]")
    try:
        socket.create_connection((host, int(match["port"])), timeout=CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise PotentiaError(
            f"no Ray cluster answers at {address}, which RAY_ADDRESS names: {error}",
            hint="`ray start --head` starts one there; without RAY_ADDRESS, Ray starts on this machine",
        ) from error


def start_ray(ray: Any) -> None:
    """Connect to the cluster that Ray's settings name, or start one here, within a bound."""
    if ray.is_initialized():
        return
    check_address_answers(os.environ.get("RAY_ADDRESS", ""))
    try:
        ray.init(
            ignore_reinit_error=True,
            log_to_driver=False,
            include_dashboard=False,
            logging_level=logging.ERROR,
        )
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise PotentiaError(
            f"Ray does not start: {describe_ray_error(error)}", hint=_NO_RAY
        ) from error


def ask_cluster(ray: Any, reference: Any) -> Any:
    """Return the answer of a task; a cluster that gives it no worker within the bound is reported."""
    try:
        return ray.get(reference, timeout=START_SECONDS)
    except ray.exceptions.GetTimeoutError as error:
        raise PotentiaError(
            f"the Ray cluster started no worker within {START_SECONDS} s", hint=_NO_RAY
        ) from error


def describe_ray_error(error: BaseException) -> str:
    """Say in one line why Ray lost a task, without the colours of its terminal."""
    lines = [line.strip() for line in _COLOURS.sub("", str(error)).splitlines()]
    details = ("class_name", "\\t", "namespace")
    reasons = [line for line in lines if line and not line.startswith(details)]
    return f"{type(error).__name__}: {' '.join(reasons)[:400] or 'no reason given'}"


def check_store_is_shared(ray: Any, assignment: Assignment) -> None:
    """Refuse a store that not every machine of the cluster reaches, and a folder of items that not all of them see."""
    from potentia.store import locate_store

    nodes = [node for node in ray.nodes() if node["Alive"]]
    if len(nodes) < 2:
        return
    if locate_store(assignment.study.store).file is not None:
        raise InputError(
            "a SQLite file cannot be shared between machines",
            hint="give a PostgreSQL store: --store postgresql+psycopg://user@host/potentia?items=/shared/folder",
        )
    with open_store(assignment.study.store) as store:
        folder = store.items_folder
    folder.mkdir(parents=True, exist_ok=True)
    mark_file = folder / f".seen-{uuid.uuid4().hex}"
    mark_file.touch()
    try:
        blind = _find_blind_nodes(ray, nodes, mark_file)
    finally:
        mark_file.unlink(missing_ok=True)
    if blind:
        raise InputError(
            f"{folder} is not seen by every machine of the cluster: not by {', '.join(blind)}",
            hint="name a shared folder in the store's URL: ?items=/shared/potentia.items",
        )


def _find_blind_nodes(ray: Any, nodes: Sequence[Any], mark_file: Path) -> list[str]:
    """Return the machines that do not see a file."""
    strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    answers = {}
    for node in nodes:
        on_node = strategy(node_id=node["NodeID"], soft=False)
        task = ray.remote(num_cpus=0, scheduling_strategy=on_node)(_file_exists)
        answers[node["NodeManagerAddress"]] = task.remote(str(mark_file))
    return [address for address, answer in answers.items() if not ask_cluster(ray, answer)]


def _file_exists(path: str) -> bool:
    return Path(path).exists()


def _ask_gpu_bytes(ray: Any) -> int | None:
    """Return the memory of the cluster's GPUs, as the first that answers has it; None where there is none."""
    if not ray.cluster_resources().get("GPU"):
        return None
    task = ray.remote(num_gpus=0.01, num_cpus=0)(_read_gpu_bytes)
    return int(ask_cluster(ray, task.remote()))


def _read_gpu_bytes() -> int:
    import torch

    return int(torch.cuda.get_device_properties(0).total_memory)


class _StopFlag:
    """Says to all rows whether they are to stop."""

    def __init__(self) -> None:
        self.is_up = False

    def set(self) -> None:
        self.is_up = True

    def is_set(self) -> bool:
        return self.is_up


def _run_task(assignment: Assignment, stop_flag: Any, gpu_share: float) -> Answer:
    """Compute an assignment on a machine of the cluster, which looks at the flag now and then."""
    import ray

    if 0 < gpu_share < 1:
        import torch

        torch.cuda.set_per_process_memory_fraction(gpu_share)
    stop_requested = threading.Event()

    def look_at_flag() -> None:
        with suppress(ray.exceptions.RayError):
            if not stop_requested.is_set() and ray.get(stop_flag.is_set.remote(), timeout=10):
                stop_requested.set()

    with call_repeatedly(look_at_flag, 1.0):
        return answer_assignment(assignment, stop_requested.is_set)
