"""Measure what waiting threads cost a row on a CPU that has other work.

    python bench/threads.py --rounds 3

A row of the zoo (direct and train-before-test on one task) is run whole, in a process of its own: with threads that
spin while they wait, as OpenMP has them by default; with threads that sleep, as Potentia has them; and with one thread.
Each on the machine as it is, and beside busy processes, two for each core. The settings take turns, since a shared
machine is not equally fast all the time; told are the median seconds of the row, and the median over rounds of how many
times as long it takes as with sleeping threads.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

SETTINGS = ("spinning", "sleeping", "one thread")
ROW = """
import sys, time
from pathlib import Path
if sys.argv[2] == "spinning":
    import torch
from potentia.processes import let_threads_sleep
let_threads_sleep()
import torch
torch.set_num_threads(1 if sys.argv[2] == "one thread" else torch.get_num_threads())
from potentia.lab.demo import demo_study
from potentia.run import plan_study, run_study
folder = Path(sys.argv[1])
study = demo_study(folder)
caps = study.caps.model_copy(update={"train": 100, "test": 100})
study = study.model_copy(update={"models": study.models[-1:], "tasks": study.tasks[:1], "caps": caps})
plan = plan_study(study)
began = time.perf_counter()
assert run_study(plan).exit_code == 0
print(time.perf_counter() - began)
"""


def main() -> None:
    """Run the settings in turns and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--busy", type=int, default=2 * (os.cpu_count() or 1), help="busy processes beside the row"
    )
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before")
    for busy in (0, options.busy):
        seconds: dict[str, list[float]] = {setting: [] for setting in SETTINGS}
        with _busy(busy):
            for _ in range(options.rounds):
                for setting in SETTINGS:
                    seconds[setting].append(_row(setting))
                    print(
                        f"  {setting} {seconds[setting][-1]:.1f} s, load {os.getloadavg()[0]:.1f}",
                        flush=True,
                    )
        for setting, taken in seconds.items():
            ratio = statistics.median(
                a / b for a, b in zip(taken, seconds["sleeping"], strict=True)
            )
            beside = f"beside {busy} busy processes" if busy else "as it is"
            print(
                f"{beside:27} {setting:12} {statistics.median(taken):7.1f} s {ratio:6.2f} ×",
                flush=True,
            )


def _row(setting: str) -> float:
    environment = {
        k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "KMP_", "MKL_"))
    }
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", ROW, folder, setting]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


@contextmanager
def _busy(count: int) -> Iterator[None]:
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main()
