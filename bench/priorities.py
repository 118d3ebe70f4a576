"""How long a short kernel waits where others train on the same GPU, by its stream's priority.

    python bench/priorities.py            # needs a CUDA device and NVIDIA's multi-process service; half a minute

Three processes multiply large matrices, captured as training is; beside them one queues short operations that depend on
each other, as loading, checks and scoring do: at the priority of training, and above it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "src")]
LOADS, SECONDS = 3, 14.0


def main() -> None:
    """Measure alone, then beside the loads."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--role", choices=("load", "short"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role is not None:
        return load() if options.role == "load" else short()
    from potentia.run.gpu_sharing import GpuSharing

    itself = [sys.executable, __file__, "--role"]
    print("alone", flush=True)
    subprocess.run([*itself, "short"], check=True)
    service = GpuSharing()
    service.start(LOADS + 1)
    print(
        f"beside {LOADS} that train ({'under' if service.on else 'without'} the service)",
        flush=True,
    )
    try:
        load_processes = [subprocess.Popen([*itself, "load"]) for _ in range(LOADS)]
        time.sleep(SECONDS / 2)
        subprocess.run([*itself, "short"], check=True)
        for load_process in load_processes:
            load_process.wait()
    finally:
        service.end()


def load() -> None:
    """Train, as far as the device can tell: long products and passes over memory, in a graph."""
    import torch

    rows = [torch.randn(16384, 2048, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    weight = torch.randn(11264, 2048, device="cuda", dtype=torch.bfloat16)

    def work() -> None:
        for number in range(20):
            opened = torch.nn.functional.silu(rows[number % 3] @ weight.t())
            rows[number % 3].copy_(opened @ weight * 1e-4)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        work()
        torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        work()
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        graph.replay()
        torch.cuda.synchronize()


def short() -> None:
    """Time a chain of short operations at both priorities."""
    import torch

    for priority in (0, -1):
        with torch.cuda.stream(torch.cuda.Stream(priority=priority)):
            x = torch.randn(600, 576, device="cuda", dtype=torch.bfloat16)
            weight = torch.randn(576, 576, device="cuda", dtype=torch.bfloat16) * 0.04
            for count in (50, 1000):  # the first readies the kernels
                torch.cuda.synchronize()
                began = time.perf_counter()
                for _ in range(count):
                    y = x @ weight
                    y = (y + x) * 0.5
                torch.cuda.synchronize()
                took = (time.perf_counter() - began) / count / 3
        print(f"  priority {priority}: {1e6 * took:.0f} us an operation", flush=True)


if __name__ == "__main__":
    main()
