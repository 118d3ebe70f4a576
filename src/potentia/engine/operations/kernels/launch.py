"""Launching kernels, or compiling them alone: the first pass of a process would wait for a score of compilations."""

# mypy: ignore-errors
from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from pathlib import Path

import triton

_COMPILING = ContextVar("compiling", default=False)


def launch(kernel, grid: tuple[int, ...], *args, **options) -> None:
    """Launch a kernel; where kernels are being readied, compile it and let it be."""
    if _COMPILING.get():
        kernel.warmup(*args, grid=grid, **options)
    else:
        kernel[grid](*args, **options)


@contextmanager
def readying(kind: str) -> Iterator[None]:
    """Compile what is launched inside, side by side, and run none of it: what it would have written is not written.

    Of the processes that need kernels of one kind, one compiles and the others find them in Triton's cache.
    """
    folder = Path(os.environ.get("TRITON_CACHE_DIR") or Path.home() / ".triton")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"potentia-{kind}.lock").open("w") as lock, ThreadPoolExecutor(os.cpu_count()) as threads:
        with suppress(OSError):  # some file systems have no locks: then each compiles for itself
            fcntl.flock(lock, fcntl.LOCK_EX)
        before = _COMPILING.set(True)
        try:
            with triton.AsyncCompileMode(threads) if hasattr(triton, "AsyncCompileMode") else nullcontext():
                yield
        finally:
            _COMPILING.reset(before)
