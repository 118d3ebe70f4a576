"""Try every architecture and write the page."""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[2] / "docs" / "architectures.md"


def _quiet() -> None:
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


def _try(case: str) -> dict[str, Any]:
    from architectures.trial import try_case

    return try_case(case)


def main() -> int:
    """Run the cases; the exit status says whether any was wrong or crashed."""
    from architectures.page import write_page
    from architectures.tiny import cases

    parser = argparse.ArgumentParser(prog="architectures", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help="architectures to try; all of them otherwise")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--page", type=Path, help="where to write the page; docs/architectures.md for a whole run")
    parser.add_argument(
        "--results", type=Path, help="keep results in this JSON file; what it has and is not named stays"
    )
    given = parser.parse_args()
    unknown = sorted(set(given.cases) - set(cases()))
    if unknown:
        parser.error(f"no such case: {', '.join(unknown)}; there are {', '.join(cases())}")
    kept: dict[str, dict[str, Any]] = {}
    if given.results is not None and given.results.exists():
        kept = {row["case"]: row for row in json.loads(given.results.read_text())}
    wanted = given.cases or [case for case in cases() if case not in kept]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(given.jobs, context, _quiet) as pool:
        for number, done in enumerate(as_completed([pool.submit(_try, case) for case in wanted]), 1):
            row = done.result()
            kept[row["case"]] = row
            print(f"[{number}/{len(wanted)}] {_told(row)}", flush=True)
            if given.results is not None:
                given.results.write_text(json.dumps(list(kept.values()), indent=1))
    rows = [kept[case] for case in cases() if case in kept]
    page = given.page or (PAGE if len(rows) == len(cases()) else None)
    if page is not None:
        page.write_text(write_page(rows))
        print(f"wrote {page}")
    bad = [row for row in rows if row["verdict"] in ("WRONG", "CRASH")]
    print(f"{len(rows)} cases, {len(bad)} wrong or crashed" + "".join(f"\n  {_told(row)}" for row in bad))
    return 1 if bad else 0


def _told(row: dict[str, Any]) -> str:
    text = f"{row['verdict']:8}{row['case']:24}{row['seconds']:6.1f} s"
    if "choice" in row:
        off = max(row["choice"], row["rolling"])
        text += f"  {row['paths']} {off:.0e}, {row['written']}/{row['asked']} texts"
        for name in ("default", "all-linear"):
            entry = row[name]
            far = max(entry["plain"], entry["recomputed"])
            text += f"; {name} " + ("refused" if entry["refused"] else f"{far:.0e}, saved {entry['saved']:.0e}")
    return text + (f"  {' '.join(row['reason'].split())[:300]}" if "reason" in row else "")
