"""How threads wait for each other on a CPU.

OpenMP's threads spin for milliseconds at the end of every parallel part. On a machine that does nothing else that saves
a little; where the cores have other work it takes them from the very thread that is waited for, and small models, whose
parts are short, become several times slower (``bench/threads.py``). Threads that sleep cost little when idle.
"""

from __future__ import annotations

import os

ASLEEP = {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"}  # GNU's runtime, and Intel's and LLVM's


def wait_asleep() -> None:
    """Let threads sleep while they wait, unless the environment says otherwise.

    The runtimes read this when they are loaded: it must be said before torch or numpy is imported.
    """
    for name, value in ASLEEP.items():
        os.environ.setdefault(name, value)
