"""A run that is asked to stop: it finishes its step, saves and says how to go on."""

from __future__ import annotations

import _thread
import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

POLITE = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


@contextmanager
def stoppable() -> Iterator[Callable[[], bool]]:
    """Turn Ctrl-C, SIGTERM and SIGHUP into a polite stop, and a second Ctrl-C into the usual interrupt.

    Schedulers send SIGTERM to all processes of a job, some more than once, and SIGHUP with it: these only ask. An
    interrupt that came while an object was let go, where Python drops what is raised, is raised once more.
    """
    flag = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield flag.is_set
        return

    def ask(number: int, frame: Any) -> None:
        if flag.is_set() and number == signal.SIGINT:
            logging.getLogger("sqlalchemy.pool").disabled = True  # would print it where a connection is just closed
            raise KeyboardInterrupt
        flag.set()

    def once_more(told: Any) -> None:
        if issubclass(told.exc_type, KeyboardInterrupt):
            threading.Timer(0.01, _thread.interrupt_main).start()
        else:
            hook(told)

    under_nohup = hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    heard = [number for number in POLITE if not (under_nohup and number == signal.SIGHUP)]
    before = {number: signal.signal(number, ask) for number in heard}
    hook, sys.unraisablehook = sys.unraisablehook, once_more
    try:
        yield flag.is_set
    finally:
        sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, handler)
