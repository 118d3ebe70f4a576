"""Launching kernels, or compiling them alone: the first pass of a process would wait for a score of compilations."""

# mypy: ignore-errors
from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from functools import partial
from pathlib import Path

import torch
import triton

_MADE = ContextVar("made", default=None)  # kernels that are being readied, by their numbers


def launch(kernel, grid: tuple[int, ...], *args, **options) -> None:
    """Launch a kernel; where kernels are being readied, compile it and let it be."""
    kernels_by_id = _MADE.get()
    if kernels_by_id is None:
        kernel[grid](*args, **options)
    else:
        compiled = kernel.warmup(*args, grid=grid, **options)
        kernels_by_id[id(compiled)] = compiled


@contextmanager
def compiling(kind: str) -> Iterator[None]:
    """Compile what is launched inside, side by side, and run none of it: what it would have written is not written.

    Of the processes that need kernels of one kind, one compiles and the others find them in Triton's cache.
    """
    folder = Path(os.environ.get("TRITON_CACHE_DIR") or Path.home() / ".triton")
    folder.mkdir(parents=True, exist_ok=True)
    with (
        (folder / f"potentia-{kind}.lock").open("w") as lock,
        ThreadPoolExecutor(os.cpu_count()) as threads,
    ):
        with suppress(OSError):  # some file systems have no locks: then each compiles for itself
            fcntl.flock(lock, fcntl.LOCK_EX)
        compiled = {}
        before = _MADE.set(compiled)
        try:
            with (
                triton.AsyncCompileMode(threads)
                if hasattr(triton, "AsyncCompileMode")
                else nullcontext()
            ):
                yield
        finally:
            _MADE.reset(before)
        if (
            torch.cuda.is_available()
        ):  # what hands arguments over is compiled too, a third of a second each
            on = torch.cuda.current_device()
            done = {}
            for kernel_or_future in compiled.values():
                kernel = kernel_or_future
                if hasattr(kernel_or_future, "result"):
                    kernel = kernel_or_future.result()
                done[id(kernel)] = kernel
            list(threads.map(partial(_load, on), done.values()))


def _load(device: int, kernel) -> None:
    with torch.cuda.device(device):
        kernel.run  # noqa: B018 - a property that loads
