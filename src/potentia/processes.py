"""What holds for a process and those it starts: which one it is, leaving with the parent, threads beside.

OpenMP's threads spin for milliseconds at the end of every parallel part. On a machine that does nothing else that saves
a little; where the cores have other work it takes them from the very thread that is waited for, and small models, whose
parts are short, become several times slower (``bench/threads.py``). Threads that sleep cost little when idle.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

ASLEEP = {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"}  # GNU's runtime, and Intel's and LLVM's


def leave_with_parent() -> None:
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


def wait_asleep() -> None:
    """Let threads sleep while they wait, unless the environment says otherwise.

    The runtimes read this when they are loaded: it must be said before torch or numpy is imported.
    """
    for name, value in ASLEEP.items():
        os.environ.setdefault(name, value)


@cache
def place() -> str:
    """Name where process numbers mean something: the machine since it was started, and its space of processes."""
    parts = [socket.gethostname()]
    for file in (Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")):
        try:
            parts.append(str(file.readlink()) if file.is_symlink() else file.read_text().strip())
        except OSError:
            continue
    return "/".join(parts)


def began(pid: int) -> str | None:
    """Return when a process of this machine began, in the kernel's count; None where there is no such process.

    A number is given again some day: with its beginning it names one process.
    """
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if state[0] in "ZX" else state[19]
    except OSError:  # no such process, or a system without /proc
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except OSError:
        pass
    return ""


@contextmanager
def repeatedly(act: Callable[[], None], seconds: float) -> Iterator[None]:
    """Do something every so many seconds beside what runs here, and once more at the end."""
    over = threading.Event()

    def loop() -> None:
        while not over.wait(seconds):
            act()

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        act()
