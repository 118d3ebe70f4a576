"""Makes an interpreter on Linux miss what Windows does not have; children get it by ``PYTHONPATH``, too.

``sys.platform`` stays: libraries would look for calls that are not here. What Potentia asks of its system it asks
through ``potentia.processes``, which is told that this is Windows.
"""

import asyncio  # noqa: F401  what looks for msvcrt at its import comes before there is one
import ctypes
import multiprocessing.connection  # noqa: F401
import os
import shutil  # noqa: F401
import signal
import subprocess
import sys
import tempfile  # noqa: F401
import types
from pathlib import Path

ABSENT = {"fcntl", "resource", "pwd", "grp", "termios", "tty"}
usual_open, usual_kill, usual_popen = os.open, os.kill, subprocess.Popen.__init__


class AbsentModules:
    def find_spec(self, name, path=None, target=None):
        if name in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def refuse_folder(path, *arguments, **options):
    if isinstance(path, (str, Path)) and Path(path).is_dir():
        raise PermissionError(13, "Permission denied", str(path))
    return usual_open(path, *arguments, **options)


def refuse_signal_zero(pid, number):
    assert number != 0, "on Windows this is Ctrl-C for a process"
    usual_kill(pid, number)


def refuse_posix_options(self, *arguments, **options):
    posix_options = {"pass_fds", "preexec_fn", "start_new_session", "user", "group"} & set(options)
    assert not posix_options, f"Windows has no {posix_options}"
    usual_popen(self, *arguments, **options)


def open_process(access, inherit, pid):
    return pid if Path(f"/proc/{pid}").exists() else 0


def read_exit_code(handle, code):
    code._obj.value = 259
    return 1


sys.meta_path.insert(0, AbsentModules())
for name in ABSENT:
    sys.modules.pop(name, None)
sys.modules["msvcrt"] = types.SimpleNamespace(LK_NBLCK=2, locking=lambda handle, mode, size: None)
ctypes.windll = types.SimpleNamespace(
    kernel32=types.SimpleNamespace(
        OpenProcess=open_process, GetExitCodeProcess=read_exit_code, CloseHandle=lambda handle: 1
    )
)
os.open, os.kill = refuse_folder, refuse_signal_zero
subprocess.Popen.__init__ = refuse_posix_options
for name in ("nice", "getuid", "geteuid", "getloadavg", "sched_getaffinity"):
    if hasattr(os, name):
        delattr(os, name)
for name in ("setitimer", "ITIMER_PROF", "SIGPROF", "SIGHUP", "pthread_sigmask", "alarm"):
    delattr(signal, name)
if "-P" not in sys.orig_argv:  # the process with limits imports nothing of Potentia
    import potentia.processes

    potentia.processes.is_windows = lambda: True
