"""Worker processes that do not outlive the process that started them."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time


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
