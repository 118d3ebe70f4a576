"""What a process asks of its system, on Linux, macOS and Windows: locks, limits, other processes, threads.

Nothing else in Potentia asks which system it runs on, save the process with limits (``limited``), which imports nothing
of Potentia. Where a system has no such call, the fallback is written beside it.

OpenMP's threads spin for milliseconds at the end of every parallel part. On a machine that does nothing else that saves
a little; where the cores have other work it takes them from the very thread that is waited for, and small models, whose
parts are short, become several times slower (``bench/threads.py``). Threads that sleep cost little when idle.
"""

from __future__ import annotations

import errno
import multiprocessing
import os
import sys
import threading
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import IO, Any

SLEEPING_THREADS = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "KMP_BLOCKTIME": "0",
}  # GNU's runtime, and Intel's and LLVM's
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
DESCRIPTORS_OF_WINDOWS = 8192  # that its C runtime opens at most


# --- other processes --------------------------------------------------------------------------------------------------


def exit_with_parent() -> None:
    """End this process soon after its parent is gone, killed perhaps, and cannot say so any more.

    A process that Python started knows its parent by number: it may be gone before this one has come so far. Windows
    keeps the number of a parent that is gone, so there the parent's end is waited for.
    """
    python_parent = multiprocessing.parent_process()
    parent = os.getppid() if python_parent is None else python_parent.pid

    def watch() -> None:
        if is_windows() and python_parent is not None:
            python_parent.join()
        while os.getppid() == parent and not is_windows():
            time.sleep(1)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def is_process_alive(pid: int) -> bool:
    """Say whether there is a process of this number on this machine."""
    if is_windows():  # where os.kill would end it, or press its Ctrl-C
        return _is_windows_process_alive(pid)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it is another user's
        pass
    return True


def _is_windows_process_alive(pid: int) -> bool:
    import ctypes

    still_active = 259
    query_limited_information = 0x1000
    kernel: Any = ctypes.windll.kernel32  # type: ignore[attr-defined,unused-ignore]
    handle = kernel.OpenProcess(query_limited_information, False, pid)
    if not handle:
        return False
    code = ctypes.c_ulong()
    kernel.GetExitCodeProcess(handle, ctypes.byref(code))
    kernel.CloseHandle(handle)
    return code.value == still_active


def is_windows() -> bool:
    """Say whether this is Windows."""
    return sys.platform == "win32"


def lower_priority() -> None:
    """Let other processes go first; a system that cannot say so shares alike."""
    if hasattr(os, "nice"):
        os.nice(10)


# --- files ------------------------------------------------------------------------------------------------------------


def can_lock(file: IO[bytes]) -> bool:
    """Say whether a file can be locked: some network file systems cannot."""
    try:
        if is_windows():
            msvcrt: Any = import_module("msvcrt")
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in NO_LOCKS
    return True


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut; Windows opens no folder, and its file system logs names."""
    if is_windows():
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def raise_descriptor_limit(most: int) -> int:
    """Take as many descriptors as this process may have, ``most`` at most, and return their number."""
    try:
        import resource
    except ImportError:  # Windows has no such limit but that of its C runtime
        return min(most, DESCRIPTORS_OF_WINDOWS)
    soft_limit, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = most
    if hard_limit != resource.RLIM_INFINITY:
        limit = min(hard_limit, most)
    with suppress(ValueError, OSError):  # macOS allows fewer than it says
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard_limit))
        return limit
    return soft_limit


# --- threads ----------------------------------------------------------------------------------------------------------


def let_threads_sleep() -> None:
    """Let threads sleep while they wait, unless the environment says otherwise.

    The runtimes read this when they are loaded: it must be said before torch or numpy is imported.
    """
    for name, value in SLEEPING_THREADS.items():
        os.environ.setdefault(name, value)
