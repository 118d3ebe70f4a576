"""What differs between Linux, macOS and Windows: other processes, locks, limits, threads.

No other module asks which system it runs on, except ``limited``, whose child imports nothing of Potentia. The fallback
for a system that lacks a call stands beside the call.
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

# OpenMP's threads spin for milliseconds at the end of every parallel part. On an idle machine that saves a little. If
# the cores have other work, it takes them from the very thread that the others wait for, and small models, whose parts
# are short, become several times slower (``bench/threads.py``). These variables let threads sleep instead.
SLEEPING_THREADS = {
    "OMP_WAIT_POLICY": "PASSIVE",  # GNU's runtime
    "KMP_BLOCKTIME": "0",  # Intel's and LLVM's
}
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # errors of a file system without locks
WINDOWS_MAX_DESCRIPTORS = 8192  # of its C runtime


# --- other processes --------------------------------------------------------------------------------------------------


def exit_with_parent() -> None:
    """End this process soon after its parent ends, even if the parent was killed and can tell nobody.

    The parent's id comes from ``multiprocessing`` if that started this process: the parent may have ended before
    ``getppid`` is asked. On Windows ``getppid`` does not change when the parent ends, so the thread waits for its end.
    """
    python_parent = multiprocessing.parent_process()
    parent_id = os.getppid() if python_parent is None else python_parent.pid

    def watch() -> None:
        if is_windows() and python_parent is not None:
            python_parent.join()
        while os.getppid() == parent_id and not is_windows():
            time.sleep(1)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def is_process_alive(pid: int) -> bool:
    """Whether there is a process with this id on this machine."""
    if is_windows():  # there os.kill would end it, or send it a Ctrl-C
        return _is_windows_process_alive(pid)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it belongs to another user
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
    """Whether this is Windows."""
    return sys.platform == "win32"


def lower_priority() -> None:
    """Give this process a lower priority than others, on systems that can."""
    if hasattr(os, "nice"):
        os.nice(10)


# --- files ------------------------------------------------------------------------------------------------------------


def can_lock(file: IO[bytes]) -> bool:
    """Whether the file system of a file supports locks, which some network file systems do not; locks the file."""
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
    """Make new and changed names in a folder survive a power cut.

    Windows cannot open a folder, and its file system logs names by itself.
    """
    if is_windows():
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def raise_descriptor_limit(max_descriptors: int) -> int:
    """Raise the number of files that this process may open, to ``max_descriptors`` at most; return that number."""
    try:
        import resource
    except ImportError:  # Windows has no limit except that of its C runtime
        return min(max_descriptors, WINDOWS_MAX_DESCRIPTORS)
    soft_limit, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = max_descriptors
    if hard_limit != resource.RLIM_INFINITY:
        limit = min(hard_limit, max_descriptors)
    with suppress(ValueError, OSError):  # macOS refuses some values below its own hard limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard_limit))
        return limit
    return soft_limit


# --- threads ----------------------------------------------------------------------------------------------------------


def let_threads_sleep() -> None:
    """Let OpenMP's threads sleep while they wait, unless the environment says otherwise.

    Call it before torch or numpy is imported: the runtimes read the variables when they are loaded.
    """
    for name, value in SLEEPING_THREADS.items():
        os.environ.setdefault(name, value)
