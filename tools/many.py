"""Many trials in processes of their own: results are kept in a file as they come, and a later call goes on from it."""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Results = dict[str, dict[str, Any]]


def options(parser: argparse.ArgumentParser) -> None:
    """Add what all such commands take."""
    parser.add_argument(
        "--workers", type=int, default=min(2, os.cpu_count() or 1), help="processes at a time"
    )
    parser.add_argument("--minutes", type=float, help="stop after so long; what is done is kept")
    parser.add_argument(
        "--out", type=Path, help="keep results in this JSON file; what it has is not run again"
    )


def read_results(out: Path | None) -> Results:
    """Read what an earlier call kept."""
    results: Results = json.loads(out.read_text()) if out is not None and out.exists() else {}
    return results


def run_all(
    work: Callable[[str], dict[str, Any]],
    names: Sequence[str],
    options: argparse.Namespace,
    describe: Callable[..., str],
) -> Results:
    """Run ``work`` on every name; returns all results, those of earlier calls among them."""
    results = read_results(options.out)
    end = time.monotonic() + 60 * options.minutes if options.minutes else None
    with multiprocessing.get_context("spawn").Pool(
        options.workers, quiet
    ) as pool:  # ended with the block
        done = pool.imap_unordered(_Named(work), names)
        for number in range(1, len(names) + 1):
            try:
                name, row = done.next(None if end is None else max(0.0, end - time.monotonic()))
            except multiprocessing.TimeoutError:
                print(
                    f"{options.minutes:g} minutes are over: {len(names) - number + 1} were not run",
                    flush=True,
                )
                break
            results[name] = row
            print(f"[{number}/{len(names)}] {describe(name, row)}", flush=True)
            if options.out is not None:
                aside = options.out.with_suffix(".part")
                aside.write_text(json.dumps(results, indent=1))
                aside.replace(options.out)
    return results


class _Named:
    """Work that says what it was done on; one of this kind can be sent to a process."""

    def __init__(self, work: Callable[[str], dict[str, Any]]) -> None:
        self.work = work

    def __call__(self, name: str) -> tuple[str, dict[str, Any]]:
        return name, self.work(name)


def quiet() -> None:
    """Set a worker up: one thread, no network, no bars."""
    os.environ |= {
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TQDM_DISABLE": "1",
    }
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity(logging.CRITICAL)
    transformers.logging.disable_progress_bar()
    logging.disable(logging.WARNING)
