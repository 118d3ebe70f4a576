"""Makes an interpreter on Linux refuse what macOS refuses: no limit on addresses, fewer descriptors, no ``/proc``."""

import builtins
import io
import os
import resource

usual_setrlimit, usual_open, usual_readlink = resource.setrlimit, io.open, os.readlink
MOST_DESCRIPTORS = 10_240
ASKED_BY_LIBRARIES = "/proc/self/maps"  # which know that this is Linux


def setrlimit(kind, limits):
    if kind == resource.RLIMIT_AS:
        raise ValueError("current limit exceeds maximum limit")
    if kind == resource.RLIMIT_NOFILE and limits[0] > MOST_DESCRIPTORS:
        raise OSError(22, "Invalid argument")
    usual_setrlimit(kind, limits)


def open_without_proc(file, *arguments, **options):
    if str(file).startswith("/proc") and file != ASKED_BY_LIBRARIES:
        raise FileNotFoundError(2, "No such file or directory", str(file))
    return usual_open(file, *arguments, **options)


def readlink_without_proc(path, *arguments, **options):
    if str(path).startswith("/proc"):
        raise FileNotFoundError(2, "No such file or directory", str(path))
    return usual_readlink(path, *arguments, **options)


resource.setrlimit = setrlimit
io.open = builtins.open = open_without_proc
os.readlink = readlink_without_proc
