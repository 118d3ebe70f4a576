"""What holds for a process and those it starts: leaving with the parent, threads beside.

OpenMP's threads spin for milliseconds at the end of every parallel part. On a machine that does nothing else that saves
a little; where the cores have other work it takes them from the very thread that is waited for, and small models, whose
parts are short, become several times slower (``bench/threads.py``). Threads that sleep cost little when idle.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time

ASLEEP = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "KMP_BLOCKTIME": "0",
}  # GNU's runtime, and Intel's and LLVM's


def exit_with_parent() -> None:
    """End this process soon after its parent is gone, killed perhaps, and cannot say so any more.

    A process that Python started knows its parent by number: it may be gone before this one has come so far.
    """
    known = multiprocessing.parent_process()
    parent = os.getppid() if known is None else known.pid

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def let_threads_sleep() -> None:
    """Let threads sleep while they wait, unless the environment says otherwise.

    The runtimes read this when they are loaded: it must be said before torch or numpy is imported.
    """
    for name, value in ASLEEP.items():
        os.environ.setdefault(name, value)
