"""A server that is killed takes its worker along."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from potentia.show.board.snapshot import SnapshotCache, StudySnapshot
from speed import PATIENCE

SERVER = """
import sys, time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from potentia.show.board.snapshot import _prepare_worker
import os
if __name__ == "__main__":
    pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_prepare_worker)
    print(pool.submit(os.getpid).result(), flush=True)
    time.sleep(120)
"""


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_killed_server_leaves_no_worker_behind(tmp_path):
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    server = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    worker = int(server.stdout.readline())
    assert alive(worker)
    server.send_signal(signal.SIGKILL)
    server.wait()
    deadline = time.monotonic() + PATIENCE
    while alive(worker) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not alive(worker)


@pytest.mark.parametrize(
    ("known", "now", "age", "due"),
    [
        ((1, 0), (179, 0), 61, True),  # many more cells: as soon as the worker had a rest
        ((1, 0), (179, 0), 30, False),
        ((100, 0), (110, 0), 70, False),
        ((100, 0), (110, 0), 130, True),  # nothing new is told later than after two minutes
    ],
)
def test_an_answer_is_renewed_by_cells_and_by_time(known, now, age, due):
    """An answer that took half a minute is not kept for ten minutes while a run goes on."""
    snapshots = SnapshotCache("nowhere")
    snapshot = StudySnapshot("s", known, seconds=30.0, made=time.time() - age)
    assert snapshots._is_due("s", snapshot, now) is due
