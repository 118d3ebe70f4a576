"""Worker processes go when the one that started them is killed, however early."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from potentia.store.records import process_start
from speed import PATIENCE

PROGRAM = """
import multiprocessing, os, signal, sys, time

def work(orphaned_first):
    from potentia.processes import exit_with_parent
    while orphaned_first and os.getppid() == multiprocessing.parent_process().pid:
        time.sleep(0.01)
    exit_with_parent()
    time.sleep(60)

if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=work, args=(sys.argv[1] == "early",))
    process.start()
    open("pid", "w").write(str(process.pid))
    time.sleep(0 if sys.argv[1] == "early" else 1)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("when", ["early", "late"])
def test_a_worker_leaves_with_its_parent_also_where_that_was_killed_before_the_worker_had_begun(
    tmp_path: Path, when
):
    (tmp_path / "program.py").write_text(PROGRAM)
    subprocess.run([sys.executable, "program.py", when], cwd=tmp_path)
    pid, end = int((tmp_path / "pid").read_text()), time.monotonic() + PATIENCE
    while process_start(pid) is not None and time.monotonic() < end:
        time.sleep(0.1)
    assert process_start(pid) is None
