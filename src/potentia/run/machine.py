"""What rows on one machine share: its GPUs, processes that compute them, and the models that stay loaded.

Several processes on a GPU compute side by side by NVIDIA's Multi-Process Service, started for a run and ended with it.
Without it their kernels take turns, and small ones leave most of the GPU idle. The service is a daemon of this run
alone: its pipes lie in a temporary folder that only this run's workers know. It is used where a trial in a process of
its own computes right under it, and where ``POTENTIA_MPS`` is not 0. Numbers are the same: the kernels are.

Processes begin anew, so that nothing of the run is in them by accident, and that takes seconds: libraries, then a
study's tasks. Those of a :class:`WorkerProcesses` are there before it is known what for, while a study is planned.

Models stay loaded between the waves of an adaptive run, so that a row is loaded, and its passes proven, once. A model
on a GPU waits in the memory of the machine: what is free on the GPU decides how many lanes share a pass, and with that
the last bits of a score, so a model that waits must not be seen there. Whatever there is no room for, that was tuned as
a whole, or that lies over several devices is let go and loaded again.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potentia.engine import LoadedModel
from potentia.processes import exit_with_parent

if TYPE_CHECKING:
    from potentia.run.plan import Row
    from potentia.study import Study

log = logging.getLogger(__name__)

MOST_PER_GPU, CORES_PER_ROW = 6, 2
CONTROL = "nvidia-cuda-mps-control"
PIPES, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
OFF = "POTENTIA_MPS"
SECONDS = 20.0  # that the daemon and the trial may take
# The daemon ends when our end of the pipe does: when the run is over, and also when it is killed.
KEEPER = f'{CONTROL} -d; cat > /dev/null; echo "quit -t 3" | {CONTROL}; rm -rf "$1"'
# Without torch, which takes seconds to load: memory is taken, filled on the device, and read back.
TRIAL = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
device, context, place = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
back = (ctypes.c_uint * 1024)()
steps = (
    lambda: cuda.cuInit(0),
    lambda: cuda.cuDeviceGet(ctypes.byref(device), 0),
    lambda: cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device),
    lambda: cuda.cuCtxSetCurrent(context),
    lambda: cuda.cuMemAlloc_v2(ctypes.byref(place), ctypes.c_size_t(4096)),
    lambda: cuda.cuMemsetD32_v2(place, 7, ctypes.c_size_t(1024)),
    lambda: cuda.cuMemcpyDtoH_v2(back, place, ctypes.c_size_t(4096)),
)
for number, step in enumerate(steps):
    if status := step():
        sys.exit(f"step {number} of the trial: CUDA error {status}")
sys.exit(0 if set(back) == {7} else "the GPU gave other numbers back")
"""


class GpuSharing:
    """The service of one run; ``why_not`` says why there is none."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.why_not = ""
        self._keeper: subprocess.Popen[bytes] | None = None

    @property
    def on(self) -> bool:
        """Whether workers that start now compute under it."""
        return self.folder is not None and PIPES in os.environ

    def start(self, rows: int) -> None:
        """Start the service for so many rows on a GPU, try it, and let workers know; without it they take turns."""
        self.why_not = _obstacle()
        if self.why_not:
            return
        try:
            self.begin()
            _try()
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            self.end()
            self.why_not = str(error).splitlines()[-1][:300] if str(error) else type(error).__name__
            log.warning(
                "rows take turns on the GPU: NVIDIA's MPS does not work here (%s)", self.why_not
            )
            return
        log.warning(
            "up to %d rows share a GPU side by side (NVIDIA MPS; %s=0 lets them take turns)",
            rows,
            OFF,
        )

    def begin(self) -> None:
        """Start the daemon with a keeper that ends it when this process is gone."""
        self.folder = Path(tempfile.mkdtemp(prefix="potentia-mps-"))
        os.environ |= {PIPES: str(self.folder), LOGS: str(self.folder)}
        self._keeper = subprocess.Popen(
            ["sh", "-c", KEEPER, "sh", str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def leave(self) -> None:
        """Let workers that start from now on do without: one has died under the service, which may hang since."""
        for name in (PIPES, LOGS):
            os.environ.pop(name, None)

    def end(self) -> None:
        """End the service; its keeper tidies up."""
        self.leave()
        if self._keeper is not None and self._keeper.stdin is not None:
            with contextlib.suppress(OSError):
                self._keeper.stdin.close()
            try:
                self._keeper.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self._keeper.kill()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
        self.folder = self._keeper = None


def is_gpu_shared() -> bool:
    """Say whether this process computes under the service, a run's own or another."""
    return PIPES in os.environ


def _obstacle() -> str:
    if os.environ.get(OFF, "").lower() in ("0", "no", "false", "off"):
        return f"{OFF} says so"
    if is_gpu_shared():
        return "a service of somebody else's is used"
    return "" if shutil.which(CONTROL) else f"there is no {CONTROL}"


def _try() -> None:
    """Compute something under the service, and hear from it that it had a client."""
    until = time.monotonic() + SECONDS
    pipe = Path(os.environ[PIPES]) / "control"
    while not pipe.exists():
        if time.monotonic() > until:
            raise ValueError("its daemon did not start")
        time.sleep(0.05)
    done = subprocess.run(
        [sys.executable, "-c", TRIAL],
        capture_output=True,
        text=True,
        timeout=until - time.monotonic(),
        check=False,
    )
    if done.returncode:
        raise ValueError(done.stderr.strip() or f"the trial ended with {done.returncode}")
    asked = subprocess.run(
        [CONTROL],
        input="get_server_list\n",
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    if not any(line.strip().isdigit() for line in asked.stdout.splitlines()):
        raise ValueError("the trial did not go through it")


POLITE = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]
# asking for GPUs is not to begin with them: a service that starts later would not be used
BY_DRIVER = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
Halt = ctypes.c_byte
Post = tuple[
    int, int, bool, dict[str, str]
]  # a worker's number, of how many, whether models stay, the environment


class WorkerProcesses:
    """Worker processes, each with a pipe: rows' plans go in, their outcomes come back.

    It knows all that it started: they ignore who asks them to end, so one that nobody knew would never be gone.
    """

    def __init__(self, count: int = 0, study: Study | None = None) -> None:
        self.context = multiprocessing.get_context("spawn")
        self.halt = self.context.RawValue(
            "b", False
        )  # tells all of them to stop; nothing is left of it behind
        self._all: list[SpawnProcess] = []
        self._early: list[tuple[Connection, SpawnProcess]] = []
        self._wanted = count, study

    def __enter__(self) -> WorkerProcesses:
        count, study = self._wanted
        try:
            for _ in range(count):
                self._early.append(self._start())
                self._early[-1][0].send(study)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End everyone who is still here."""
        _end(self._all)

    def end_waiting_workers(self) -> None:
        """Let those go who were not needed; they have nothing to lose."""
        _end([process for _, process in self._early])
        self._early = []

    def start_worker(
        self, number: int, workers: int, stays: bool
    ) -> tuple[Connection, SpawnProcess]:
        """Return the pipe of a worker who waits for rows, and its process."""
        self._early = [one for one in self._early if one[1].is_alive()]
        pipe, process = self._early.pop() if self._early else self._start()
        with contextlib.suppress(ConnectionError):  # it died just now, as it may later
            pipe.send((number, workers, stays, dict(os.environ)))
        return pipe, process

    def _start(self) -> tuple[Connection, SpawnProcess]:
        ours, theirs = self.context.Pipe()
        process = self.context.Process(
            target=_worker, args=(theirs, self.halt), daemon=True, name="potentia worker"
        )
        self._all.append(process)
        for start in (
            resource_tracker.ensure_running,
            process.start,
        ):  # Python's own lets INT and TERM in again
            _deafly(start)
        theirs.close()
        return ours, process


def estimate_worker_count(study: Study, asked: int | None = None) -> int:
    """Return how many workers to start before it is known what rows need: those that GPUs allow, a core for each.

    Planning keeps a core: sharing it took longer than workers gained, and a study that is done needs none.
    """
    there = (
        len(list(Path("/proc/driver/nvidia/gpus").glob("*")))
        if study.device not in ("cpu", "spread")
        else 0
    )
    cores = os.cpu_count() or 1
    wanted = min(
        asked or min(there * MOST_PER_GPU, cores // CORES_PER_ROW), len(study.rows()), cores - 1
    )
    return wanted if wanted > 1 else 0  # one row at a time needs none


def _end(processes: Sequence[SpawnProcess]) -> None:
    for process in processes:
        if process.pid is not None:
            process.kill()
            process.join()


def _deafly(start: Callable[[], Any]) -> None:
    """Start a process that hears no signal, sent to our group perhaps, before it can ignore it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, POLITE)
    try:
        start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def count_gpus() -> int:
    """Return how many GPUs there are."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def choose_device(device: str, number: int, gpus: int) -> str:
    """Return the device of a worker: one each, or as many workers as there are on each."""
    return f"cuda:{number % gpus}" if gpus and device in ("auto", "cuda") else device


def _worker(pipe: Connection, halt: Halt) -> None:
    for asked in POLITE:
        signal.signal(asked, signal.SIG_IGN)  # the parent decides, through `halt`
    signal.pthread_sigmask(signal.SIG_UNBLOCK, POLITE)
    exit_with_parent()
    os.environ |= BY_DRIVER
    with contextlib.suppress(EOFError, ConnectionError):  # the parent is gone, or needs nobody
        told: Study | Post = pipe.recv()
        if not isinstance(told, tuple):
            _warm_up(told)
            told = pipe.recv()
        assert isinstance(told, tuple)
        _serve(pipe, halt, *told)


def _warm_up(study: Study) -> None:
    """Load the libraries that every row needs, and the tasks; what goes wrong here goes wrong, and is told, later."""
    from transformers.models.llama import modeling_llama  # noqa: F401 - what all models' code imports takes seconds

    from potentia.engine.scoring import Scorer  # noqa: F401
    from potentia.engine.training import LaneTrainer  # noqa: F401
    from potentia.run.local import load_tasks_once

    with contextlib.suppress(BaseException):
        load_tasks_once(study)


def _serve(
    pipe: Connection,
    halt: Halt,
    number: int,
    workers: int,
    stays: bool,
    environment: dict[str, str],
) -> None:
    """Take row after row and answer how each went, until there is nobody to answer."""
    os.environ |= environment
    os.environ.setdefault(
        "TOKENIZERS_PARALLELISM", "true"
    )  # a fair share of the cores; nothing is forked here
    os.environ.setdefault("RAYON_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // workers)))
    import torch

    from potentia.run.local import answer_assignment
    from potentia.tasks import reading_data_once

    there, shelf = count_gpus(), ModelCache(among=workers) if stays else None
    with (
        reading_data_once() if stays else contextlib.nullcontext()
    ):  # rounds of a selection differ in their caps alone
        while True:
            row: Row = pipe.recv()
            device = choose_device(row.study.device, number, there)
            if device.startswith("cuda"):
                torch.cuda.set_per_process_memory_fraction(
                    row.memory, int(device.partition(":")[2] or 0)
                )
            pipe.send(answer_assignment(row, lambda: bool(halt.value), device=device, shelf=shelf))


SHARE = 0.5  # of the memory that is free now, over all processes that keep models


class ModelCache:
    """The models that one process keeps; ``among`` processes share the machine's memory."""

    def __init__(self, *, among: int = 1) -> None:
        self._among = among
        self._kept: dict[tuple[str, ...], LoadedModel] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def take(self, row: Row, device: str) -> LoadedModel | None:
        """Return the row's model where it was kept, on its device again."""
        loaded = self._kept.pop(_place(row, device), None)
        if loaded is not None and loaded.device.type != "cpu":
            loaded.model.to(loaded.device)
        return loaded

    def put(self, row: Row, device: str, loaded: LoadedModel) -> None:
        """Keep a model for its next wave, or let it go."""
        if not self._may_stay(row, loaded):
            loaded.close()
            return
        if loaded.device.type != "cpu":
            import torch

            loaded.model.to("cpu")
            torch.cuda.empty_cache()
        self._kept[_place(row, device)] = loaded

    def clear(self) -> None:
        """Let all of them go."""
        while self._kept:
            self._kept.popitem()[1].close()

    def _may_stay(self, row: Row, loaded: LoadedModel) -> bool:
        study = row.study
        tunings = [study.tuning, *([study.adjust.tuning] if study.adjust else [])]
        whole = any(tuning is not None and tuning.method == "full" for tuning in tunings)
        if (
            whole
            or (study.adjust is not None and study.adjust.recipe is not None)
            or row.model.quantise
        ):
            return False
        weights = [*loaded.model.parameters(), *loaded.model.buffers()]
        if {weight.device for weight in weights} != {loaded.device}:
            return False
        # on a CPU it is there already: as much is to stay free for the next
        return bool(_free() * SHARE / self._among > sum(weight.nbytes for weight in weights))


def _place(row: Row, device: str) -> tuple[str, ...]:
    return row.model.name, row.model_fingerprint, row.study.dtype, device


def _free() -> float:
    """Bytes of memory that a program may still take; none where the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
        return 1024 * float(
            next(line for line in lines if line.startswith("MemAvailable")).split()[1]
        )
    except (OSError, StopIteration, ValueError):
        return 0.0
