"""Worker processes that do not outlive the process that started them."""

from __future__ import annotations

import os
import threading
import time


def leave_with_parent() -> None:
    """End this process soon after its parent is gone, killed perhaps, and cannot say so any more."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()
