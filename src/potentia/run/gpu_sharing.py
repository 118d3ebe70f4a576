"""GPUs that several workers share: NVIDIA's Multi-Process Service, started for a run and ended with it.

Under the service several processes on a GPU compute side by side. Without it their kernels take turns, and small ones
leave most of the GPU idle. The service is a daemon of this run alone: its pipes lie in a temporary folder that only
this run's workers know. It is used where a trial in a process of its own computes right under it, and where
``POTENTIA_MPS`` is not 0. Numbers are the same: the kernels are.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

log = logging.getLogger(__name__)

CONTROL = "nvidia-cuda-mps-control"
PIPES = "CUDA_MPS_PIPE_DIRECTORY"
LOGS = "CUDA_MPS_LOG_DIRECTORY"
SWITCH = "POTENTIA_MPS"
TRIAL_SECONDS = 20.0  # that the daemon and the trial may take
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
    def is_on(self) -> bool:
        """Whether workers that start now compute under it."""
        return self.folder is not None and is_gpu_shared()

    def start(self, rows_per_gpu: int) -> None:
        """Start the service, try it, and let workers know; without it they take turns."""
        self.why_not = _find_obstacle()
        if self.why_not:
            return
        try:
            self.start_daemon()
            _try_service()
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            self.end()
            lines = str(error).splitlines() or [type(error).__name__]
            self.why_not = lines[-1][:300]
            log.warning(
                "models take turns on the GPU: NVIDIA's MPS does not work here (%s)", self.why_not
            )
            return
        log.warning(
            "up to %d models share a GPU side by side (NVIDIA MPS; %s=0 lets them take turns)",
            rows_per_gpu,
            SWITCH,
        )

    def start_daemon(self) -> None:
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

    def stop_for_new_workers(self) -> None:
        """Let workers that start from now on do without: one has died under the service, which may hang since."""
        for name in (PIPES, LOGS):
            os.environ.pop(name, None)

    def end(self) -> None:
        """End the service; its keeper tidies up."""
        self.stop_for_new_workers()
        if self._keeper is not None and self._keeper.stdin is not None:
            with contextlib.suppress(OSError):
                self._keeper.stdin.close()
            try:
                self._keeper.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self._keeper.kill()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
        self.folder = None
        self._keeper = None


def is_gpu_shared() -> bool:
    """Whether this process computes under the service, a run's own or another."""
    return PIPES in os.environ


def count_gpus() -> int:
    """Return how many GPUs there are."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def choose_device(device: str, worker: int, gpus: int) -> str:
    """Return the device of a worker: one each, or as many workers as there are on each."""
    if gpus and device in ("auto", "cuda"):
        return f"cuda:{worker % gpus}"
    return device


def _find_obstacle() -> str:
    """Return why the service is not even tried; nothing where it is."""
    if os.environ.get(SWITCH, "").lower() in ("0", "no", "false", "off"):
        return f"{SWITCH} says so"
    if is_gpu_shared():
        return "another user's service is used"
    return "" if shutil.which(CONTROL) else f"there is no {CONTROL}"


def _try_service() -> None:
    """Compute something under the service, and hear from it that it had a client."""
    deadline = time.monotonic() + TRIAL_SECONDS
    control_pipe = Path(os.environ[PIPES]) / "control"
    while not control_pipe.exists():
        if time.monotonic() > deadline:
            raise ValueError("its daemon did not start")
        time.sleep(0.05)
    trial = subprocess.run(
        [sys.executable, "-c", TRIAL],
        capture_output=True,
        text=True,
        timeout=deadline - time.monotonic(),
        check=False,
    )
    if trial.returncode:
        raise ValueError(trial.stderr.strip() or f"the trial ended with {trial.returncode}")
    servers = subprocess.run(
        [CONTROL],
        input="get_server_list\n",
        capture_output=True,
        text=True,
        timeout=TRIAL_SECONDS,
        check=False,
    )
    if not any(line.strip().isdigit() for line in servers.stdout.splitlines()):
        raise ValueError("the trial did not go through it")
